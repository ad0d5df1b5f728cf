"""8- and 4-bit weights: the packed kernel against dequantized weights, and those against w."""

import pytest
import torch
from torch.nn import functional as F  # noqa: N812 (PyTorch's own habit)

from inferlab.engines.pytorch import quant_ops
from inferlab.engines.pytorch.quant_ops import Quantized, dequantize, fit_groups, linear, quantize


def weights(d_out: int, d_in: int, seed: int = 0) -> torch.Tensor:
    """Normal numbers, with one column a hundred times the others."""
    w = torch.randn(d_out, d_in, generator=torch.Generator().manual_seed(seed))
    w[:, 3] *= 100
    return w


def groups_of(w: torch.Tensor) -> torch.Tensor:
    return w.reshape(len(w), -1, 32)


@pytest.mark.parametrize("bits", [4, 8])
def test_no_weight_is_off_by_more_than_half_a_step(bits):
    w = weights(48, 96)
    error = groups_of((dequantize(quantize(w, bits, torch.float32)) - w).abs()).amax(-1)
    spread = groups_of(w).amax(-1) - groups_of(w).amin(-1)
    # 8 bits: half of a 255th. 4 bits: least squares may clip an end, to lose less on the whole.
    limit = spread / 510 if bits == 8 else 1.5 * spread / 15
    assert (error <= limit * 1.01).all()


def test_least_squares_loses_less_than_the_grid_from_end_to_end():
    groups = weights(256, 64).reshape(-1, 32)
    low, high = groups.amin(1), groups.amax(1)
    step = (high - low) / 15
    plain = torch.round((groups - low[:, None]) / step[:, None]) * step[:, None] + low[:, None]
    fitted, start = fit_groups(groups.clone(), 15)
    codes = torch.round((groups - start[:, None]) / fitted[:, None]).clamp(0, 15)
    refined = codes * fitted[:, None] + start[:, None]
    before = (plain - groups).square().sum(1)
    after = (refined - groups).square().sum(1)
    assert (after <= before * 1.0001).all()
    assert after.sum() < 0.97 * before.sum()


@pytest.mark.parametrize("n_levels", [16, 13, 9])
def test_numbers_that_were_stored_in_4_bits_come_back_exactly(n_levels):
    generator = torch.Generator().manual_seed(n_levels)
    codes = torch.randint(0, n_levels, (40, 2, 32), generator=generator).float()
    codes[..., 0], codes[..., 1] = 0, n_levels - 1  # both ends of the levels are used
    step = torch.rand(40, 2, 1, generator=generator).half().float() + 0.01
    low = torch.randn(40, 2, 1, generator=generator).half().float()
    w = (codes * step + low).reshape(40, 64)
    again = dequantize(quantize(w, 4, torch.float32))
    torch.testing.assert_close(again, w, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("n_rows", [1, 3, 5, max(quant_ops.MANY_ROWS.values())])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("d_out", "d_in"), [(16, 32), (48, 96), (32, 576), (10, 64)])
def test_the_product_is_that_of_the_dequantized_weights(bits, n_rows, dtype, d_out, d_in):
    weight = quantize(weights(d_out, d_in), bits, dtype)
    x = torch.randn(n_rows, d_in, generator=torch.Generator().manual_seed(1)).to(dtype)
    got = linear(x, weight)
    expected = F.linear(x.double(), dequantize(weight).double())
    size = F.linear(x.double().abs(), dequantize(weight).double().abs())  # before anything cancels
    tolerance = 1e-5 if dtype == torch.float32 else 2**-7
    assert got.shape == (n_rows, d_out)
    assert got.dtype == dtype
    assert ((got.double() - expected).abs() <= tolerance * size + 1e-6).all()


@pytest.mark.parametrize("bits", [4, 8])
def test_without_the_kernel_the_answer_is_the_same(monkeypatch, bits):
    w, x = weights(32, 64), torch.randn(3, 64)
    packed = quantize(w, bits, torch.float32)
    monkeypatch.delattr(torch, "_convert_weight_to_int4pack_for_cpu")
    plain = quantize(w, bits, torch.float32)
    assert packed.packed is not None, "this PyTorch has lost its packed kernel"
    assert plain.packed is None
    torch.testing.assert_close(linear(x, plain), linear(x, packed), rtol=1e-4, atol=1e-3)


def test_many_rows_take_the_dense_copy_of_8_bits_and_the_codes_of_4(monkeypatch):
    x = torch.randn(max(quant_ops.MANY_ROWS.values()), 64)
    eight, four = (quantize(weights(32, 64), bits, torch.float32) for bits in (8, 4))
    assert four.dense is None
    torch.testing.assert_close(quant_ops.dense_ops.linear(x, eight.dense), linear(x, eight))
    asked = []
    monkeypatch.setattr(quant_ops, "dequantize", lambda w: asked.append(w.bits) or dequantize(w))
    for weight in (eight, four):
        linear(x, weight)
        linear(x[:1], weight)
    assert asked == [4]


@pytest.mark.parametrize("bits", [4, 8])
def test_without_codes_every_product_is_the_same_and_memory_is_less(bits):
    weight = quantize(weights(32, 64), bits, torch.bfloat16)
    lean = quant_ops.without_codes(weight)
    for n_rows in (1, 3, 4, 80):
        x = torch.randn(n_rows, 64).bfloat16()
        assert torch.equal(linear(x, lean), linear(x, weight))
    assert lean.n_bytes == weight.n_bytes
    assert lean.codes.numel() == (0 if bits == 8 else 32 * 32)


def test_side_by_side_the_matrices_are_the_same_in_one_block_and_in_order():
    plain = [quantize(weights(d_out, 64), bits, torch.bfloat16) for d_out, bits in SIZES]
    moved = quant_ops.side_by_side(plain)
    x = torch.randn(1, 64).bfloat16()
    for before, after in zip(plain, moved, strict=True):
        assert torch.equal(linear(x, after), linear(x, before))
        assert after.n_bytes == before.n_bytes
    assert [w.packed is None for w in moved] == [False, True, False]  # 10 rows are not packed
    places = [
        part.data_ptr()
        for w in moved
        for part in (w.packed, w.packed_scales)
        if w.packed is not None
    ]
    assert places == sorted(places)
    assert places[-1] - places[0] < sum(w.n_bytes for w in moved)
    assert quant_ops.side_by_side(plain[1:2]) == plain[1:2]
    assert quant_ops.side_by_side([]) == []


SIZES = ((32, 4), (10, 4), (48, 8))  # rows and bits


def test_4_bits_are_5_and_8_bits_are_10_bits_a_weight():
    w = weights(64, 128)
    for bits, read in ((4, 5), (8, 10)):
        assert quantize(w, bits, torch.bfloat16).n_bytes == w.numel() * read / 8


@pytest.mark.parametrize("bits", [4, 8])
def test_some_rows_are_rows_of_the_whole(bits):
    weight = quantize(weights(20, 64), bits, torch.bfloat16)
    index = torch.tensor([7, 0, 7])
    assert torch.equal(dequantize(weight, index), dequantize(weight)[index])


@pytest.mark.parametrize("bits", [4, 8])
def test_a_constant_group_stays_what_it_is(bits):
    w = torch.zeros(16, 64)
    w[3] = 0.25
    again = dequantize(quantize(w, bits, torch.float32))
    assert torch.equal(again, w)


def test_what_cannot_be_quantized_is_refused():
    with pytest.raises(ValueError, match="multiples of 32, given 40"):
        quantize(torch.zeros(4, 40), 4, torch.float32)
    with pytest.raises(ValueError, match="bits=3 must be 4 or 8"):
        quantize(torch.zeros(4, 32), 3, torch.float32)


def test_the_bytes_without_a_kernel_are_those_of_the_plain_codes():
    weight = Quantized(4, torch.zeros(8, 16, dtype=torch.uint8), *torch.zeros(2, 8, 1))
    assert weight.n_bytes == 8 * 16 + 2 * 8 * 4
