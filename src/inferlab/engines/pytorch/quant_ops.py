"""Weights of 8 and 4 bits, and the products with them: activations stay floating point.

Every 32 inputs of a row share a scale and a zero: w = scale * (code - middle) + zero. A 4-bit code
is 0..15 round 8, an 8-bit code 0..255 round 128; scale and zero are 16-bit floats, so that a weight
takes 5 or 10 bits in all (an 8-bit one is kept as two 4-bit halves, each with its own scale and
zero).

What was left behind, measured on SmolLM2 as mean KL divergence from float32: 8 bits with one scale
a row, the usual int8, is wrong by 0.005, because two columns of two matrices meet activations of
several hundred; groups of 32 by 0.001, as much as bfloat16 without any quantizing. Quantizing the
activations too, on the fly, is faster and broken: 0.85.

PyTorch has a packed CPU kernel for 4 bits, under private names. They are called here and nowhere
else, in _pack and linear. 8-bit weights go through the same kernel, as [high half | low half] times
[x, x]: on one thread that takes 0.85 of the time of PyTorch's own 8-bit kernel. Where the kernel is
missing (another device or release), linear multiplies by dequantized weights: slower, and as right.

The kernel takes each row of x for itself, so with many rows a product in bfloat16 is faster. Of
8-bit weights such a copy is kept: memory is not what they are for on a CPU (26 bits a weight, of
which a decode step reads 10), and 16 sequences run 3 times as fast. 4-bit weights are dequantized
at every call: they stay at 10 bits, of which a step reads 5.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 (PyTorch's own habit)

from inferlab.engines.arena import Arena, arena_bytes
from inferlab.engines.pytorch import dense_ops

GROUP = 32  # inputs that share a scale and a zero
# From so many rows on, by bits, a product with dequantized weights is faster than the packed
# kernel. CPU time on one core (AMD EPYC) in ns a weight: the kernel 0.025 a row for 4 bits and 0.05
# for 8, the dense copy of 8-bit weights 0.13 for 4 rows and 0.25 for 16; dequantizing 4 bits 0.7,
# and a product with the result 0.4 for 16 rows and 0.9 for 64.
MANY_ROWS = {4: 64, 8: 4}


@dataclass(frozen=True)
class Quantized:
    """A matrix (d_out, d_in) of bits-bit codes, in groups of 32 inputs.

    codes: int8, (d_in, d_out) for 8 bits: -128..127. For 4 bits -8..7, (d_in / 2, d_out): input i
    in the low half of a byte, input i + d_in / 2 in the high half. scales, zeros: (d_in / 32,
    d_out). Inputs run over the rows, so that one scale goes with each column of a whole row of
    numbers: dequantizing reads and writes rows of memory, and takes half of the time.

    packed and packed_scales, where PyTorch's kernel is there: the same numbers in its own order.
    dense: the 8-bit matrix in the dtype of the scales beside them, arranged for dense_ops.
    """

    bits: int
    codes: Tensor
    scales: Tensor
    zeros: Tensor
    packed: Tensor | None = None
    packed_scales: Tensor | None = None
    dense: Tensor | None = None

    @property
    def n_bytes(self) -> int:
        """Bytes that one product with few rows reads."""
        if self.packed is not None and self.packed_scales is not None:
            return self.packed.nbytes + self.packed_scales.nbytes
        return self.codes.nbytes + self.scales.nbytes + self.zeros.nbytes


def quantize(w: Tensor, bits: int, dtype: torch.dtype) -> Quantized:
    """Round each group of 32 inputs to 2**bits evenly spaced levels. w: (d_out, d_in) float32.

    dtype: that of scales and zeros, and of the activations to come. 4-bit weights that lie on such
    a grid already (a Q4_1 file holds nothing else) get their own codes back: see fit_groups.

    Raises ValueError where d_in is no multiple of 32, or bits is neither 8 nor 4.
    """
    d_out, d_in = w.shape
    if bits not in (4, 8):
        raise ValueError(f"bits={bits} must be 4 or 8")
    if d_in % GROUP:
        raise ValueError(f"int{bits} needs widths that are multiples of {GROUP}, given {d_in}")
    middle = 1 << bits - 1
    step, low = fit_groups(w.reshape(-1, GROUP), 2**bits - 1)
    # Round scale and zero first: the codes are then the best ones for what is kept.
    scales = step.reshape(d_out, -1).to(dtype)
    zeros = (low + middle * step).reshape(d_out, -1).to(dtype)
    groups = w.reshape(d_out, -1, GROUP) - zeros.float()[..., None]
    codes = torch.round(groups / scales.float()[..., None]) + middle
    codes = codes.clamp_(0, 2**bits - 1).to(torch.uint8).reshape(d_out, d_in)
    packed, packed_scales = _pack(codes, scales, zeros, bits)
    plain = _hold(codes, bits), scales.T.contiguous(), zeros.T.contiguous()
    weight = Quantized(bits, *plain, packed, packed_scales)
    if bits == 4 or packed is None:
        return weight
    return replace(weight, dense=dense_ops.arrange(dequantize(weight)))


def without_codes(weight: Quantized) -> Quantized:
    """The same matrix for products only: the codes go where a dense copy does their work."""
    if weight.dense is None:
        return weight
    nothing = weight.codes.new_empty(0)
    return replace(weight, codes=nothing, zeros=nothing, scales=weight.scales.new_empty(0))


def side_by_side(weights: Sequence[Quantized]) -> list[Quantized]:
    """The same matrices, with what the packed kernel reads in one block of memory, in this order.

    See arena.py. The products of a step of SmolLM2 in int4 took 0.97 of the time of matrices that
    lie apart, on one core and on two.
    """
    parts = [part for w in weights for part in (w.packed, w.packed_scales) if part is not None]
    if not parts:
        return list(weights)
    arena = Arena(arena_bytes([(part.nbytes,) for part in parts], np.uint8))

    def moved(part: Tensor | None) -> Tensor | None:
        if part is None:
            return None
        memory = torch.from_numpy(arena.empty((part.nbytes,), np.uint8))
        return memory.view(part.dtype).view(part.shape).copy_(part)

    return [
        replace(w, packed=moved(w.packed), packed_scales=moved(w.packed_scales)) for w in weights
    ]


def _hold(codes: Tensor, bits: int) -> Tensor:
    """Codes 0..2**bits - 1, (d_out, d_in) uint8, as Quantized keeps them."""
    signed = (codes - (1 << bits - 1)).view(torch.int8).T  # uint8 wraps round: -1 is 255
    if bits == 8:
        return signed.contiguous()
    low, high = signed.chunk(2)
    return (low & 15) | (high << 4)


def fit_groups(groups: Tensor, n_steps: int) -> tuple[Tensor, Tensor]:
    """The grid low + step * 0..n_steps that fits each group's numbers best.

    groups: (n, 32) -> step, low: (n,). First the grid from the smallest number to the largest.
    With 255 steps that is all. With 15, numbers that were stored in 4 bits lie on a grid, but may
    not reach its ends: where the first grid does not meet them, grids of 14 steps, 13, ... 8
    between the same ends are tried. Where none meets them they were never on a grid, and least
    squares, given the codes, moves the levels a little.
    """
    low, high = groups.amin(dim=1), groups.amax(dim=1)
    step = (high - low) / n_steps
    step[step == 0] = 1
    if n_steps > 15:
        return step, low
    error = _grid_error(groups, step, low)
    for fewer in range(14, 7, -1):
        rest = (error > 1e-3 * step).nonzero()[:, 0]  # groups whose grid is not found yet
        if len(rest) == 0:
            return step, low
        wider = (high[rest] - low[rest]) / fewer
        met = _grid_error(groups[rest], wider, low[rest]) <= 1e-3 * wider
        step[rest[met]], error[rest[met]] = wider[met], 0
    rest = (error > 1e-3 * step).nonzero()[:, 0]
    step[rest], low[rest] = _least_squares(groups[rest], step[rest], low[rest])
    return step, low


def _grid_error(groups: Tensor, step: Tensor, low: Tensor) -> Tensor:
    """The largest distance of a group's numbers from the grid: (n, 32) -> (n,)"""
    codes = torch.round((groups - low[:, None]) / step[:, None])
    return (groups - (low[:, None] + codes * step[:, None])).abs().amax(dim=1)


def _least_squares(
    groups: Tensor, step: Tensor, low: Tensor, rounds: int = 3
) -> tuple[Tensor, Tensor]:
    """Fit low + step * codes to the numbers, round again, and so on; only better fits are kept."""

    def off(step: Tensor, low: Tensor) -> tuple[Tensor, Tensor]:
        codes = torch.round((groups - low[:, None]) / step[:, None]).clamp_(0, 15)
        return codes, (groups - low[:, None] - codes * step[:, None]).square().sum(dim=1)

    codes, error = off(step, low)
    for _ in range(rounds):
        spread = codes - codes.mean(dim=1, keepdim=True)
        variance = spread.square().sum(dim=1)
        new_step = torch.where(variance > 0, (spread * groups).sum(dim=1) / variance, step)
        new_step = torch.where(new_step > 0, new_step, step)
        new_low = groups.mean(dim=1) - new_step * codes.mean(dim=1)
        new_codes, new_error = off(new_step, new_low)
        better = new_error < error
        step, low = torch.where(better, new_step, step), torch.where(better, new_low, low)
        error = torch.where(better, new_error, error)
        codes = torch.where(better[:, None], new_codes, codes)
    return step, low


def _pack(
    codes: Tensor, scales: Tensor, zeros: Tensor, bits: int
) -> tuple[Tensor | None, Tensor | None]:
    """The numbers in the order of PyTorch's CPU kernel, or None twice where it cannot take them.

    8-bit codes become two 4-bit matrices side by side, the high halves with 16 times the scale:
    code - 128 = 16 * (high - 8) + (low - 8) + 8. The zero's rounding error goes to the low side.
    """
    convert = getattr(torch, "_convert_weight_to_int4pack_for_cpu", None)
    if convert is None or codes.device.type != "cpu" or len(codes) % 16:  # it wants 16 rows or more
        return None, None
    if bits == 8:
        zero = zeros.float() + 8 * scales.float()
        high_zero = zero.to(zeros.dtype)
        codes = torch.cat([codes >> 4, codes & 15], dim=1)
        zeros = torch.cat([high_zero, (zero - high_zero.float()).to(zeros.dtype)], dim=1)
        scales = torch.cat([16 * scales, scales], dim=1)
    packed = convert(codes.to(torch.int32), 1)
    return packed, torch.stack([scales.T, zeros.T], dim=-1).contiguous()  # (d_in / 32, d_out, 2)


def dequantize(weight: Quantized, rows: Tensor | None = None) -> Tensor:
    """-> (d_out, d_in) in the dtype of the scales; or only some rows, (n, d_in). rows: (n,)"""
    codes, scales, zeros = weight.codes, weight.scales, weight.zeros
    if rows is not None:
        codes, scales, zeros = (x.index_select(1, rows) for x in (codes, scales, zeros))
    if weight.bits == 4:
        codes = torch.cat([(codes << 4) >> 4, codes >> 4])  # a shift to the right keeps the sign
    # zero + code * scale is computed in float32 and rounded once, whatever the dtype.
    numbers = codes.to(scales.dtype).view(len(scales), GROUP, -1)
    torch.addcmul(zeros[:, None], numbers, scales[:, None], out=numbers)
    return numbers.view(codes.shape).T


def linear(x: Tensor, weight: Quantized) -> Tensor:
    """x @ w.T for quantized weights. x: (n, d_in) -> (n, d_out), dtype of x"""
    packed, scales = weight.packed, weight.packed_scales
    many = len(x) >= MANY_ROWS[weight.bits]
    if many and weight.dense is not None and x.dtype == weight.dense.dtype:
        return dense_ops.linear(x, weight.dense)
    if packed is None or scales is None or many or x.dtype != scales.dtype:
        return F.linear(x, dequantize(weight).to(x.dtype))
    both = x if weight.bits == 4 else x.repeat(1, 2)
    return torch._weight_int4pack_mm_for_cpu(both, packed, GROUP, scales)
