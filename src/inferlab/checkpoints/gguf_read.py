"""Read the container that GGUF is: a header of keys and values, and tensors in small blocks.

Layout, all little-endian: magic "GGUF", version, number of tensors, number of keys; the keys with
their values; one entry a tensor (name, sizes, type, offset); padding; the tensors' bytes. A
tensor's bytes are read when it is asked for, and not kept: a mapped file would count as memory in
use beside the weights. A header of 98,000 strings takes 0.04 s here and 1.9 s in the gguf package,
which makes several arrays for each of them.

Source: ggml's docs/gguf.md, versions 2 and 3; the block formats are ggml's block_q4_0 and so on.
"""

import itertools
import mmap
import struct
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from inferlab.sizes import InvalidModelFile, UnsupportedModel

# Kind of a value -> (struct code, bytes); the kinds 8 and 9 are text and array.
_SCALARS = {
    0: ("B", 1),
    1: ("b", 1),
    2: ("H", 2),
    3: ("h", 2),
    4: ("I", 4),
    5: ("i", 4),
    6: ("f", 4),
    7: ("?", 1),
    10: ("Q", 8),
    11: ("q", 8),
    12: ("d", 8),
}
_TEXT, _ARRAY = 8, 9
_MAX_DIMENSIONS = 4  # ggml's own limit
_DEFAULT_ALIGNMENT = 32


class BlockType(NamedTuple):
    """How one type of tensor stores its numbers: n_numbers of them in a block of n_bytes."""

    name: str
    n_numbers: int
    n_bytes: int


@dataclass(frozen=True)
class StoredTensor:
    """One tensor as it lies in the file. shape is row-major: (d_out, d_in) for a matrix."""

    name: str
    shape: tuple[int, ...]
    kind: int  # ggml's number of the type
    path: Path
    start: int  # of its bytes in the file
    n_bytes: int

    def blocks(self) -> np.ndarray:
        """Its bytes as they are stored, (n_bytes,) uint8.

        Raises InvalidModelFile where the file has become shorter since its header was read.
        """
        stored = np.fromfile(self.path, np.uint8, self.n_bytes, offset=self.start)
        if len(stored) != self.n_bytes:
            raise InvalidModelFile(f"{self.path} was cut short while tensor {self.name} was read")
        return stored

    def dequantize(self) -> np.ndarray:
        """All numbers in float32, in the tensor's shape.

        Raises UnsupportedModel for a type that nothing here can read.
        """
        known = _DEQUANTIZE.get(self.kind)
        if known is None:
            return _dequantize_by_package(self)
        out = np.empty(self.shape, np.float32)
        stored_block, n_numbers, fill = known
        blocks, rows = self.blocks().view(stored_block), out.reshape(-1, n_numbers)
        # In pieces that stay in the second-level cache (0.5 MB): 2.1 times as fast as at once.
        for start in range(0, len(blocks), step := max(1, 131_072 // n_numbers)):
            fill(blocks[start : start + step], rows[start : start + step])
        return out


def read_gguf(path: str | PathLike[str]) -> tuple[dict[str, Any], dict[str, StoredTensor]]:
    """Read the header of one file -> (values by key, tensors by name); no tensor is read yet.

    Raises InvalidModelFile, naming what is wrong, for what is no GGUF, cut short or damaged;
    UnsupportedModel for another version, byte order or type of tensor; FileNotFoundError.
    """
    path = Path(path)
    with path.open("rb") as file:
        magic = file.read(4)
        if magic != b"GGUF":
            raise InvalidModelFile(
                f"{path} is no GGUF file: it begins with {magic!r}, not b'GGUF'; give a .gguf file "
                "or a Hugging Face folder"
            )
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            try:
                return _Reader(path, data, position=4).read()
            except (_Damage, UnicodeDecodeError) as damage:
                raise InvalidModelFile(
                    f"{path} is cut short or damaged ({len(data):,} bytes are there; {damage}); "
                    "fetch or copy it again"
                ) from None


class _Damage(Exception):
    """What is wrong with the bytes, for the message that names the file."""


class _Reader:
    """Walks through the header once; every read is checked against the end of the file."""

    def __init__(self, path: Path, data: mmap.mmap, position: int) -> None:
        self.path, self.data, self.position, self.end = path, data, position, len(data)

    def read(self) -> tuple[dict[str, Any], dict[str, StoredTensor]]:
        version = self._scalar("I", 4)
        if version not in (2, 3):
            # A file for the other byte order holds 3 as 0x03000000.
            kind = "big-endian" if version and not version & 0xFFFF else f"version {version}"
            raise UnsupportedModel(f"this GGUF is {kind}; needed: little-endian, version 2 or 3")
        n_tensors, n_keys = self._scalar("Q", 8), self._scalar("Q", 8)
        values: dict[str, Any] = {}
        for index in range(n_keys):
            self._require(12, f"key {index + 1:,} of {n_keys:,}")
            key = self._text()
            if key in values:
                raise _Damage(f"the key {key} is there twice")
            values[key] = self._value(self._scalar("I", 4), key)
        entries = [self._entry(index, n_tensors) for index in range(n_tensors)]
        return values, self._tensors(entries, _alignment(values))

    def _require(self, n_bytes: int, what: str) -> None:
        if n_bytes > self.end - self.position:
            raise _Damage(
                f"{what} needs {n_bytes:,} bytes at byte {self.position:,}, "
                f"{self.end - self.position:,} are left"
            )

    def _scalar(self, code: str, size: int) -> Any:
        self._require(size, "a number")
        (value,) = struct.unpack_from("<" + code, self.data, self.position)
        self.position += size
        return value

    def _text(self) -> str:
        return self._texts(1)[0]

    def _texts(self, count: int) -> list[str]:
        """Texts are the bulk of a header, so this loop has no calls that it can do without."""
        data, position, end = self.data, self.position, self.end
        read_length = struct.Struct("<Q").unpack_from
        texts = []
        for _ in range(count):
            if position + 8 > end:
                raise _Damage(f"the length of a text is missing at byte {position:,}")
            start = position + 8
            position = start + read_length(data, position)[0]
            if position > end:
                raise _Damage(f"a text of {position - start:,} bytes begins at byte {start:,}")
            texts.append(data[start:position].decode())
        self.position = position
        return texts

    def _value(self, kind: int, key: str) -> Any:
        if kind == _TEXT:
            return self._text()
        if kind == _ARRAY:
            return self._array(self._scalar("I", 4), self._scalar("Q", 8), key)
        if kind not in _SCALARS:
            raise _Damage(f"the value of {key} is of the unknown kind {kind}")
        return self._scalar(*_SCALARS[kind])

    def _array(self, kind: int, count: int, key: str) -> list[Any]:
        if kind == _TEXT:
            self._require(8 * count, f"{key} with {count:,} texts")
            return self._texts(count)
        if kind == _ARRAY:
            raise UnsupportedModel(f"{key} is an array of arrays, which is not implemented")
        if kind not in _SCALARS:
            raise _Damage(f"the items of {key} are of the unknown kind {kind}")
        code, size = _SCALARS[kind]
        self._require(size * count, f"{key} with {count:,} numbers")
        items = struct.unpack_from(f"<{count}{code}", self.data, self.position)
        self.position += size * count
        return list(items)

    def _entry(self, index: int, n_tensors: int) -> tuple[str, tuple[int, ...], int, int]:
        """Name, shape, type and offset of one tensor."""
        self._require(24, f"the entry of tensor {index + 1:,} of {n_tensors:,}")
        name = self._text()
        n_dimensions = self._scalar("I", 4)
        if n_dimensions > _MAX_DIMENSIONS:
            raise _Damage(f"tensor {name} has {n_dimensions} dimensions, at most 4 are possible")
        sizes = [self._scalar("Q", 8) for _ in range(n_dimensions)]
        # The file gives the fastest-running size first.
        return name, tuple(reversed(sizes)), self._scalar("I", 4), self._scalar("Q", 8)

    def _tensors(
        self, entries: list[tuple[str, tuple[int, ...], int, int]], alignment: int
    ) -> dict[str, StoredTensor]:
        first = -(-self.position // alignment) * alignment  # rounded up
        tensors: dict[str, StoredTensor] = {}
        for name, shape, kind, offset in entries:
            if name in tensors:
                raise _Damage(f"tensor {name} is there twice")
            if offset % alignment:
                raise _Damage(f"tensor {name} begins at {offset:,}, no multiple of {alignment}")
            start, n_bytes = first + offset, _stored_bytes(name, shape, kind)
            if start + n_bytes > self.end:
                raise _Damage(f"tensor {name} would end at byte {start + n_bytes:,}")
            tensors[name] = StoredTensor(name, shape, kind, self.path, start, n_bytes)
        in_order = sorted(tensors.values(), key=lambda tensor: tensor.start)
        for before, after in itertools.pairwise(in_order):
            if before.start + before.n_bytes > after.start:
                raise _Damage(f"the tensors {before.name} and {after.name} overlap")
        return tensors


def _alignment(values: dict[str, Any]) -> int:
    alignment = values.get("general.alignment", _DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
        raise _Damage(f"general.alignment is {alignment!r}, no power of two")
    return alignment


def _stored_bytes(name: str, shape: tuple[int, ...], kind: int) -> int:
    block = BLOCK_TYPES.get(kind) or _block_type_of_package(name, kind)
    if min(shape, default=1) < 1:
        raise _Damage(f"tensor {name} has the shape {shape}")
    row = shape[-1] if shape else 1
    if row % block.n_numbers:
        raise _Damage(
            f"tensor {name} has rows of {row} numbers, no multiple of the {block.n_numbers} "
            f"in a block of {block.name}"
        )
    return prod(shape) // block.n_numbers * block.n_bytes


BLOCK_TYPES = {
    0: BlockType("F32", 1, 4),
    1: BlockType("F16", 1, 2),
    2: BlockType("Q4_0", 32, 18),
    3: BlockType("Q4_1", 32, 20),
    8: BlockType("Q8_0", 32, 34),
    30: BlockType("BF16", 1, 2),
}
"""The types that are read here, by ggml's number; the gguf package knows the others."""


def _block_type_of_package(name: str, kind: int) -> BlockType:
    from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

    try:
        found = GGMLQuantizationType(kind)
        return BlockType(found.name, *GGML_QUANT_SIZES[found])
    except (ValueError, KeyError):
        raise UnsupportedModel(
            f"tensor {name} is stored as type number {kind}, which is not known here; use a Q4_1, "
            "Q8_0, F16 or F32 file of the model"
        ) from None


def _dequantize_by_package(tensor: StoredTensor) -> np.ndarray:
    from gguf.constants import GGMLQuantizationType
    from gguf.quants import dequantize

    kind = GGMLQuantizationType(tensor.kind)
    rows = tensor.blocks().reshape(*tensor.shape[:-1], -1)
    try:
        return dequantize(rows, kind).reshape(tensor.shape)
    except NotImplementedError:
        raise UnsupportedModel(
            f"tensor {tensor.name} is stored as {kind.name}, which the gguf package cannot turn "
            "into float32; use a Q4_1, Q8_0, F16 or F32 file of the model"
        ) from None


def _fill_plain(blocks: np.ndarray, out: np.ndarray) -> None:
    out[:, 0] = blocks


def _fill_bf16(blocks: np.ndarray, out: np.ndarray) -> None:
    """bfloat16 is the upper half of a float32."""
    np.left_shift(blocks, 16, out=out.view(np.uint32)[:, 0], dtype=np.uint32)


def _fill_q8_0(blocks: np.ndarray, out: np.ndarray) -> None:
    """32 signed bytes times one scale."""
    out[:] = blocks["q"]
    out *= blocks["d"].astype(np.float32)[:, None]


def _fill_q4_0(blocks: np.ndarray, out: np.ndarray) -> None:
    """32 numbers of 4 bits, 8 subtracted, times one scale."""
    _unpack_nibbles(blocks["q"], out)
    out -= 8
    out *= blocks["d"].astype(np.float32)[:, None]


def _fill_q4_1(blocks: np.ndarray, out: np.ndarray) -> None:
    """32 numbers of 4 bits times one scale, plus one minimum."""
    _unpack_nibbles(blocks["q"], out)
    out *= blocks["d"].astype(np.float32)[:, None]
    out += blocks["m"].astype(np.float32)[:, None]


def _unpack_nibbles(packed: np.ndarray, out: np.ndarray) -> None:
    """Byte i of a block holds number i in its lower half and number 16 + i in its upper one."""
    np.bitwise_and(packed, 15, out=out[:, :16], casting="unsafe", dtype=np.uint8)
    np.right_shift(packed, 4, out=out[:, 16:], casting="unsafe", dtype=np.uint8)


_SCALE, _MINIMUM = ("d", "<f2"), ("m", "<f2")
_DEQUANTIZE: dict[int, tuple[np.dtype, int, Callable[[np.ndarray, np.ndarray], None]]] = {
    0: (np.dtype("<f4"), 1, _fill_plain),
    1: (np.dtype("<f2"), 1, _fill_plain),
    2: (np.dtype([_SCALE, ("q", "u1", 16)]), 32, _fill_q4_0),
    3: (np.dtype([_SCALE, _MINIMUM, ("q", "u1", 16)]), 32, _fill_q4_1),
    8: (np.dtype([_SCALE, ("q", "i1", 32)]), 32, _fill_q8_0),
    30: (np.dtype("<u2"), 1, _fill_bf16),
}
