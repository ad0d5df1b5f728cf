"""Our reader of GGUF against the gguf package, bit for bit; and what it says of damaged files."""

import struct
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize, quantize
from hypothesis import given, settings
from hypothesis import strategies as st

from inferlab.checkpoints.gguf_read import BLOCK_TYPES, read_gguf
from inferlab.sizes import InvalidModelFile, UnsupportedModel

KINDS = ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"]  # the last two by package


def write(path: Path, tensors: dict[str, tuple[np.ndarray, str]], **fields: object) -> Path:
    """A GGUF by the package's writer; each tensor is float32 numbers and the type to store."""
    writer = gguf.GGUFWriter(path, "llama")
    for key, value in fields.items():
        kind = {list: writer.add_array, str: writer.add_string, bool: writer.add_bool}
        kind |= {int: writer.add_int64, float: writer.add_float64}
        kind[type(value)](key, value)
    for name, (numbers, stored) in tensors.items():
        raw = GGMLQuantizationType[stored]
        if stored in ("F32", "F16"):
            writer.add_tensor(name, numbers.astype({"F32": np.float32, "F16": np.float16}[stored]))
        else:
            writer.add_tensor(name, quantize(numbers, raw), raw_dtype=raw)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def numbers(shape=(6, 64), seed=0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def assert_equal_to_package(path: Path) -> None:
    theirs = gguf.GGUFReader(path)
    values, tensors = read_gguf(path)
    fields = {k: f.contents() for k, f in theirs.fields.items() if not k.startswith("GGUF.")}
    assert values == fields
    assert list(tensors) == [tensor.name for tensor in theirs.tensors]
    for tensor in theirs.tensors:
        expected = dequantize(tensor.data, tensor.tensor_type)
        ours = tensors[tensor.name].dequantize()
        assert ours.dtype == np.float32
        assert ours.shape == expected.shape == tensors[tensor.name].shape
        assert (ours.view(np.uint32) == expected.astype(np.float32).view(np.uint32)).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(6, 64), (64,), (2, 3, 32), (5, 131_072)])
def test_numbers_of_every_type_equal_the_packages_bit_for_bit(tmp_path, kind, shape):
    if kind in ("Q5_0", "Q5_1") and shape == (5, 131_072):
        shape = (5, 1024)
    x = numbers(shape)
    x.flat[0], x.flat[1], x.flat[2] = 0.0, -0.0, 1e-7
    if kind == "F16":
        x.flat[3] = 6e-8  # below the smallest normal number of 16 bits
    assert_equal_to_package(write(tmp_path / "t.gguf", {"x": (x, kind)}))


def test_keys_of_every_kind_equal_the_packages(tmp_path):
    fields = {
        "text": "naïve 日本語 🤖",
        "empty": "",
        "yes": True,
        "whole": -(2**40),
        "real": 0.1,
        "texts": ["a", "", "Ġthe", "🤖"] * 50,
        "wholes": [1, -2, 3],
        "reals": [0.5, -1.5],
        "flags": [True, False, True],
    }
    path = write(tmp_path / "t.gguf", {"x": (numbers(), "F32")}, **fields)
    assert_equal_to_package(path)
    assert read_gguf(path)[0]["text"] == "naïve 日本語 🤖"


@pytest.mark.model
def test_the_real_file_equals_the_packages_reading_bit_for_bit(real_model_path):
    assert_equal_to_package(real_model_path)
    kinds = {BLOCK_TYPES[tensor.kind].name for tensor in read_gguf(real_model_path)[1].values()}
    assert kinds == {"F32", "Q4_1", "Q8_0"}


def small_file(path: Path) -> bytes:
    tensors = {"a": (numbers((2, 32)), "Q8_0"), "b": (numbers((3, 32)), "F32")}
    return write(path, tensors, words=["one", "two"], size=7).read_bytes()


def test_every_shorter_file_is_refused(tmp_path):
    path = tmp_path / "t.gguf"
    whole = small_file(path)
    for n_bytes in range(4, len(whole)):
        path.write_bytes(whole[:n_bytes])
        with pytest.raises(InvalidModelFile, match=rf"cut short or damaged \({n_bytes:,} bytes"):
            read_gguf(path)


@settings(max_examples=400)
@given(st.data())
def test_a_file_with_any_changed_bytes_is_read_or_refused_by_our_own_errors(tmp_path_factory, data):
    path = tmp_path_factory.getbasetemp() / "changed.gguf"
    whole = bytearray(small_file(path))
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(4, len(whole) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(whole)
    try:
        for tensor in read_gguf(path)[1].values():
            with np.errstate(all="ignore"):
                tensor.dequantize()
    except (InvalidModelFile, UnsupportedModel):
        pass


def replaced(whole: bytes, old: bytes, new: bytes) -> bytes:
    assert whole.count(old) == 1
    return whole.replace(old, new)


def entry(name: str, *dims: int) -> bytes:
    """The start of a tensor's entry as it stands in the file."""
    text = name.encode()
    return struct.pack("<Q", len(text)) + text + struct.pack(f"<I{len(dims)}Q", len(dims), *dims)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (b"GGUF\x03", b"GGUF\x09", "version 9; needed: .*2 or 3"),
        (b"GGUF\x03\0\0\0", b"GGUF\0\0\0\x03", "big-endian"),
        (entry("b", 32, 3), entry("a", 32, 3), "tensor a is there twice"),
        (entry("a", 32, 2), entry("a", 31, 2), "rows of 31 numbers, no multiple of the 32"),
        (entry("a", 32, 2), entry("a", 32, 2**60), "tensor a would end at byte"),
        (entry("a", 32, 2), entry("a", 0, 2), r"tensor a has the shape \(2, 0\)"),
        (entry("a", 32, 2)[:-16], entry("a", 9, 9, 9, 9, 9)[:-40], "tensor a has 5 dimensions"),
        (b"\x03\0\0\0\0\0\0\0two", b"\x03\xff\xff\xff\xff\0\0\0two", "a text of"),
        (b"\x03\0\0\0\0\0\0\0two", b"\x03\0\0\0\0\0\0\0t\xffo", "can't decode byte 0xff"),
    ],
)
def test_what_is_damaged_is_named(tmp_path, old, new, message):
    path = tmp_path / "a file.gguf"
    whole = small_file(path)
    path.write_bytes(replaced(whole, old, new))
    with pytest.raises((InvalidModelFile, UnsupportedModel), match=message):
        read_gguf(path)


def test_an_unknown_type_and_an_odd_offset_are_named(tmp_path):
    path = tmp_path / "t.gguf"
    whole = small_file(path)
    start = whole.index(entry("a", 32, 2)) + len(entry("a", 32, 2))
    for value, kind, message in [
        (struct.pack("<IQ", 777, 0), UnsupportedModel, "tensor a is stored as type number 777"),
        (struct.pack("<IQ", 8, 5), InvalidModelFile, "begins at 5, no multiple of 32"),
        (struct.pack("<IQ", 8, 96), InvalidModelFile, "the tensors a and b overlap"),
    ]:
        path.write_bytes(whole[:start] + value + whole[start + 12 :])
        with pytest.raises(kind, match=message):
            read_gguf(path)


def test_a_file_cut_short_after_its_header_was_read_is_refused(tmp_path):
    path = tmp_path / "t.gguf"
    whole = small_file(path)
    tensors = read_gguf(path)[1]
    path.write_bytes(whole[:-500])
    with pytest.raises(InvalidModelFile, match="cut short while tensor b was read"):
        tensors["b"].dequantize()
