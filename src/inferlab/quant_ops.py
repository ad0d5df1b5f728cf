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
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 (PyTorch's own habit)

GROUP = 32  # inputs that share a scale and a zero
# From so many rows on, by bits, dequantizing the matrix first and multiplying in floating point is
# faster than the packed kernel, which was made for few rows. Dequantizing takes 0.6 ns a weight on
# one core, so a pass over a long prompt costs 60 ms more than in bfloat16 for 100 M weights.
MANY_ROWS = {4: 48, 8: 12}


@dataclass(frozen=True)
class Quantized:
    """A matrix (d_out, d_in) of bits-bit codes, in groups of 32 inputs.

    codes: uint8, (d_out, d_in) for 8 bits; (d_out, d_in / 2) for 4: input i in the low half of a
    byte, input i + d_in / 2 in the high half. scales, zeros: (d_out, d_in / 32).

    packed and packed_scales, where PyTorch's kernel is there: the same numbers in its own order.
    The plain codes stay beside them, for long prompts and look-ups, so 4-bit weights take 10 bits
    of memory in all, of which a decode step reads 5; 8-bit ones take 19 and it reads 10.
    """

    bits: int
    codes: Tensor
    scales: Tensor
    zeros: Tensor
    packed: Tensor | None = None
    packed_scales: Tensor | None = None

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
    held = codes if bits == 8 else codes[:, : d_in // 2] | codes[:, d_in // 2 :] << 4
    return Quantized(bits, held, scales, zeros, packed, packed_scales)


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
        codes, scales, zeros = codes[rows], scales[rows], zeros[rows]
    if weight.bits == 4:
        codes = torch.cat([codes & 15, codes >> 4], dim=1)
    # In float32: one rounding at the end, and faster than the same steps in bfloat16.
    scales, low = scales.float(), zeros.float() - (1 << weight.bits - 1) * scales.float()
    groups = codes.float().view(len(codes), -1, GROUP)
    numbers = groups.mul_(scales[..., None]).add_(low[..., None])
    return numbers.view(codes.shape).to(weight.scales.dtype)


def linear(x: Tensor, weight: Quantized) -> Tensor:
    """x @ w.T for quantized weights. x: (n, d_in) -> (n, d_out), dtype of x"""
    packed, scales = weight.packed, weight.packed_scales
    many = len(x) >= MANY_ROWS[weight.bits]
    if packed is None or scales is None or many or x.dtype != scales.dtype:
        return F.linear(x, dequantize(weight).to(x.dtype))
    both = x if weight.bits == 4 else x.repeat(1, 2)
    return torch._weight_int4pack_mm_for_cpu(both, packed, GROUP, scales)
