"""Fewer bytes a weight: whole numbers with a scale, and products with them.

A quantized matrix is small whole numbers (codes) and a few floating-point numbers (scales), with
scale * code close to the weight. This file holds the ways to choose codes and scales, how two 4-bit
codes share a byte, the products that read them, and what all that costs in bytes and in error.
It is for reading; quant_ops.py holds what the PyTorch engine multiplies with.

Weights are (d_in, d_out): a row belongs to one input channel, a column to one output channel.

Source: Jacob et al. 2018 (arXiv 1712.05877); Nagel et al. 2021 (arXiv 2106.08295).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from inferlab.counted_memory import CountedMemory


def quantize_absmax(
    w: np.ndarray, bits: int = 8, axis: int | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Round w to whole numbers between -top and top, with top = 2**(bits - 1) - 1.

    top is 127 for 8 bits and 7 for 4. The scale is the step between two neighbouring levels: the
    largest magnitude divided by top. A code is w / scale, rounded to the nearest whole number, a
    half to the even one (np.round does that). Where everything is 0, the scale is 1.

    axis says over which axis the largest magnitude is taken: None is all of w together, one scale
    a tensor; 0 runs down the rows, one scale a column; 1 runs along a row, one scale a row. w may
    have more axes.

    w: (d_in, d_out) -> codes, int8, the shape of w; scales, the number type of w, with size 1 on
    every axis that was reduced: (1, 1), (1, d_out) or (d_in, 1)
    Example: [[1, -2], [0.5, 0.25]] with axis 1 -> codes [[64, -127], [127, 64]], scales
    [[2 / 127], [0.5 / 127]]. (The first code is 63.5 rounded to the even 64.)
    """
    top = 2 ** (bits - 1) - 1
    largest = np.abs(w).max(axis=axis, keepdims=True)
    scales = np.where(largest == 0, 1, largest / top).astype(w.dtype)
    # Tiny numbers in float16: the step is rounded to few digits, so that codes must be cut at top.
    scales = np.maximum(scales, np.finfo(w.dtype).smallest_subnormal)
    return np.clip(np.round(w / scales), -top, top).astype(np.int8), scales


def dequantize(codes: np.ndarray, scales: np.ndarray, zeros: np.ndarray | int = 0) -> np.ndarray:
    """The numbers that codes stand for: scale * (code - zero), in the number type of the scales.

    zeros is 0 for symmetric codes. Codes and zeros may be int8 or uint8: compute in floating
    point, since 3 - 200 is 59 among unsigned bytes.

    codes: (d_in, d_out); scales, zeros: any shape that broadcasts with it -> (d_in, d_out)
    Example: codes [3, 200], scale 0.5, zero 128 -> [-62.5, 36].
    """
    return scales * (codes.astype(scales.dtype) - np.asarray(zeros, dtype=scales.dtype))


def relative_error(w: np.ndarray, restored: np.ndarray, axis: int | None = None) -> np.ndarray:
    """How far restored is from w, as a share of the size of w: norm(w - restored) / norm(w).

    The norm is the square root of the sum of squares over `axis`: None is the whole matrix in one
    number; 0 gives one number a column, 1 one a row. Where a slice of w is all 0, the answer is 0
    if restored is 0 there too, else infinity; it is never nan.

    w, restored: (d_in, d_out) -> a number, (d_out,) or (d_in,)
    Example: w [[3, 4], [100, 0]], restored [[0, 4], [100, 0]], axis 1 -> [0.6, 0].
    """
    error = np.sqrt(np.sum((w - restored) ** 2, axis=axis))
    size = np.sqrt(np.sum(w**2, axis=axis))
    of_nothing = np.where(error == 0, 0.0, np.inf)
    return np.where(size == 0, of_nothing, error / np.where(size == 0, 1, size))


def quantize_asymmetric(
    w: np.ndarray, bits: int = 8, axis: int | None = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Round w to codes 0 .. top, top = 2**bits - 1, on a range that need not lie round zero.

    The range is low .. high: smallest and largest number, widened where needed so that it holds 0.
    scale = (high - low) / top, or 1 where both are 0. zero is the code that stands for 0.0:
    -low / scale, rounded. A code is round(w / scale) + zero, clipped to 0 .. top: two halves that
    are both rounded up would otherwise make top + 1, which wraps to 0. All roundings are np.round.

    axis as in quantize_absmax.
    w: (d_in, d_out) -> codes, uint8; scales, the number type of w; zeros, uint8; scales and zeros
    have size 1 on every reduced axis
    Example: [-1, 0, 4] with 8 bits: low -1, high 4, scale 5 / 255, zero 51, codes [0, 51, 255].
    Source: Jacob et al. 2018 (arXiv 1712.05877), section 2.1.
    """
    top = 2**bits - 1
    low = np.minimum(w.min(axis=axis, keepdims=True), 0)
    high = np.maximum(w.max(axis=axis, keepdims=True), 0)
    scales = np.where(high == low, 1, (high - low) / top).astype(w.dtype)
    scales = np.maximum(scales, np.finfo(w.dtype).smallest_subnormal)
    zeros = np.clip(np.round(-low / scales), 0, top)
    codes = np.clip(np.round(w / scales) + zeros, 0, top)
    return codes.astype(np.uint8), scales, zeros.astype(np.uint8)


def quantize_groups(w: np.ndarray, group: int, bits: int = 4) -> tuple[np.ndarray, np.ndarray]:
    """Absmax with one scale for each `group` consecutive inputs of each output channel.

    Weights are (d_in, d_out), so a group is `group` consecutive rows of one column: the numbers
    that meet neighbouring inputs in one sum. Rounding is that of quantize_absmax, which takes
    arrays of three axes too.

    w: (d_in, d_out) -> codes int8 (d_in, d_out), scales (d_in // group, d_out)
    Example: column [1, 2, 10, 20], group 2, 4 bits: scales 2/7 and 20/7, codes [4, 7, 4, 7].
    Raises ValueError if d_in is no multiple of group.
    """
    d_in, d_out = w.shape
    if d_in % group:
        raise ValueError(f"d_in={d_in} must be a multiple of group={group}")
    codes, scales = quantize_absmax(w.reshape(-1, group, d_out), bits, axis=1)
    return codes.reshape(d_in, d_out), scales[:, 0]


def pack_nibbles(codes: np.ndarray) -> np.ndarray:
    """Put two 4-bit codes into each byte: rows 2i and 2i + 1 share byte row i.

    A nibble is half a byte, four bits. Row 2i goes into the low half (bits 0 to 3), row 2i + 1
    into the high half (bits 4 to 7). A negative code is kept in two's complement: -1 is 1111, -8
    is 1000; `code & 15` gives those four bits.

    codes: (d_in, d_out) whole numbers -8 .. 7 -> (d_in // 2, d_out) uint8
    Example: the column [1, -8, 7, -1] -> bytes [0x81, 0xF7], that is [129, 247].
    Raises ValueError for an odd d_in, or a code outside -8 .. 7.
    """
    if len(codes) % 2:
        raise ValueError(f"d_in={len(codes)} must be even: two codes share a byte")
    if codes.min() < -8 or codes.max() > 7:
        raise ValueError(f"codes must be -8 .. 7, given {codes.min()} .. {codes.max()}")
    low, high = codes[0::2] & 15, codes[1::2] & 15
    return (low | high << 4).astype(np.uint8)


def unpack_nibbles(packed: np.ndarray) -> np.ndarray:
    """Undo pack_nibbles: two signed codes out of each byte, in their old order.

    The low half of byte row i is row 2i, the high half is row 2i + 1. A half of 8 or more stands
    for itself minus 16.

    packed: (d_in // 2, d_out) uint8 -> (d_in, d_out) int8, values -8 .. 7
    Example: [129, 247] -> [1, -8, 7, -1].
    """
    halves = np.stack([packed & 15, packed >> 4], axis=1).astype(np.int8)  # (d_in // 2, 2, d_out)
    codes = np.where(halves >= 8, halves - 16, halves).astype(np.int8)
    return codes.reshape(2 * len(packed), *packed.shape[1:])


def matmul_packed(memory: CountedMemory, group: int) -> None:
    """y = x @ w for a packed 4-bit w, dequantized tile by tile: the whole w never exists.

    memory is a slow memory that counts. It holds "x" (T, d_in) float, "packed" (d_in // 2, d_out)
    uint8 in the order of pack_nibbles, "scales" (d_in // group, d_out) float, and "y" (T, d_out),
    to be written. memory.shape(name) tells a shape; memory.load(name, *index) returns a copy of a
    part, as in memory.load("x", slice(None), slice(0, 8)); memory.store("y", value) writes.

    Go through the groups one by one. Load each byte of x, packed and scales exactly once, and
    store y once, at the end. What you hold at any time must stay below half the bytes that all of
    w would take in float32.

    group is even and divides d_in.
    Example: T = 1, group 2, x [[1, 1]], packed [[0x21]] (codes 1 and 2), scales [[0.5]]
    -> y [[0.5 * 1 + 0.5 * 2]] = [[1.5]].
    """
    total = np.zeros(memory.shape("y"))
    for g in range(memory.shape("scales")[0]):
        codes = unpack_nibbles(memory.load("packed", slice(g * group // 2, (g + 1) * group // 2)))
        tile = dequantize(codes, memory.load("scales", g))  # (group, d_out)
        total += memory.load("x", slice(None), slice(g * group, (g + 1) * group)) @ tile
    memory.store("y", total)


def matmul_int8(
    x_codes: np.ndarray, w_codes: np.ndarray, x_scales: np.ndarray, w_scales: np.ndarray
) -> np.ndarray:
    """x @ w computed on codes: whole numbers are multiplied and summed, scaling comes last.

    Each token (row of x) and each output channel (column of w) has one scale. Neither depends on
    the input channel that is summed over, so both stand outside the sum:
    y[t, j] = x_scale[t] * w_scale[j] * sum_i x_codes[t, i] * w_codes[i, j].
    The sum needs 32-bit whole numbers: a product reaches 127 * 127 = 16,129, where int8 ends at
    127, and three of them pass the end of int16 at 32,767.

    x_codes: (T, d_in) int8, w_codes: (d_in, d_out) int8, x_scales: (T, 1), w_scales: (1, d_out)
    -> (T, d_out), the number type of the scales
    Example: x_codes [[127, 127]], w_codes [[127], [127]], scales 0.5 and 2 -> [[32258.0]].
    """
    total = x_codes.astype(np.int32) @ w_codes.astype(np.int32)  # (T, d_out)
    return (total * x_scales * w_scales).astype(x_scales.dtype)


def migrate_outliers(
    x: np.ndarray, w: np.ndarray, alpha: float = 0.5
) -> tuple[np.ndarray, np.ndarray]:
    """Move large activations of some input channels into the weights; x @ w stays the same.

    For each input channel i (a column of x, a row of w) take
    s[i] = (largest |x| of the channel)**alpha / (largest |w| of the channel)**(1 - alpha),
    divide the channel of x by s[i] and multiply the row of w by it. Where either largest magnitude
    is 0, s[i] is 1. alpha 1 moves all of the unevenness into w, alpha 0.5 shares it.

    x: (T, d_in), w: (d_in, d_out) -> x / s, w * s, in the same shapes
    Example: channel maxima 16 in x and 4 in w, alpha 0.5 -> s = 4 / 2 = 2, so 8 and 8.
    Source: Xiao et al. 2023, "SmoothQuant" (arXiv 2211.10438), section 4, equation 4.
    """
    x_largest, w_largest = np.abs(x).max(axis=0), np.abs(w).max(axis=1)  # (d_in,) each
    dead = (x_largest == 0) | (w_largest == 0)
    x_largest, w_largest = np.where(dead, 1, x_largest), np.where(dead, 1, w_largest)
    s = x_largest**alpha / w_largest ** (1 - alpha)
    return x / s, w * s[:, None]


def search_scales(
    x: np.ndarray, w: np.ndarray, group: int, alphas: Sequence[float], bits: int = 4
) -> np.ndarray:
    """Find a scale for each input channel that makes rounding w hurt the outputs least.

    A channel that meets large activations matters more: multiply its row of w by a larger s before
    rounding and divide by s afterwards, and its error shrinks, at the cost of its group's others.
    With size[i] = mean of |x[:, i]|, but at least 1e-6 of the largest size, try s = size**alpha for
    each alpha: round w * s[:, None] with quantize_groups, dequantize (each scale belongs to `group`
    rows: scales.repeat(group, axis=0)), divide by s[:, None], and take the mean squared difference
    between x @ w and x @ that. Return the s with the smallest one, the first of equal ones.
    alpha 0 is s = 1: plain rounding.

    x: (T, d_in) activations seen in calibration, w: (d_in, d_out) -> s: (d_in,)
    Example: x [[2, -1], [6, 1]] has sizes 4 and 1; alphas (0, 0.5) try s = [1, 1] and [2, 1].
    Source: Lin et al. 2024, "AWQ" (arXiv 2306.00978), section 3.2, equation 5.
    """
    size = np.abs(x).mean(axis=0)  # (d_in,)
    size = np.maximum(size, 1e-6 * size.max())
    candidates = [size**alpha for alpha in alphas]
    errors = []
    for s in candidates:
        codes, scales = quantize_groups(w * s[:, None], group, bits)
        restored = dequantize(codes, scales.repeat(group, axis=0)) / s[:, None]
        errors.append(np.mean((x @ (w - restored)) ** 2))
    return candidates[int(np.argmin(errors))]


def quantized_bytes(
    n_weights: int, bits: int, group: int, scale_bits: int = 16, zero_bits: int = 0
) -> int:
    """Bytes of n_weights quantized weights together with their scales and zero points.

    Each group of `group` weights has one scale of scale_bits bits and one zero point of zero_bits
    bits (0: none). A last group that is not full has them too, and a last byte that is not full
    counts whole.

    Example: 8e9 weights of 4 bits, group 128 -> 4,125,000,000 bytes: 4 + 16/128 = 4.125 bits each.
    """
    n_groups = -(-n_weights // group)  # rounded up
    return -(-(n_weights * bits + n_groups * (scale_bits + zero_bits)) // 8)


def expected_largest(n: int) -> float:
    """Mean of the largest magnitude among n independent standard normal numbers.

    It is the integral over t > 0 of 1 - (share of numbers below t)**n; that share is
    erf(t / sqrt 2). Example: n 128 -> 2.828, n 256 -> 3.044.
    """
    t = np.linspace(0, 12, 4801)
    below = np.array([math.erf(value / math.sqrt(2)) for value in t])
    return float(np.trapezoid(1 - below**n, t))


def expected_error(bits: int, group: int) -> float:
    """Relative error to expect of absmax rounding, for normally distributed weights.

    A rounding error is spread evenly over one step, from -step / 2 to step / 2: its root mean
    square is step / sqrt(12). The step is the largest magnitude of the group divided by
    top = 2**(bits - 1) - 1. expected_largest(group) is that magnitude in units of the weights'
    standard deviation, so the error comes out relative to it.

    Example: 8 bits, group 256 -> 0.00692; 4 bits, group 128 -> 0.1166.
    Source: Bennett 1948, Bell System Technical Journal 27; Widrow and Kollar 2008.
    """
    top = 2 ** (bits - 1) - 1
    return expected_largest(group) / (top * math.sqrt(12))


def matrix_with_outliers(d_in: int = 512, d_out: int = 64, n_large: int = 3) -> np.ndarray:
    """Standard normal weights, (d_in, d_out), always the same; the last columns are 40 times as
    large: n_large output channels as trained models have them, made for demonstrations."""
    w = np.random.default_rng(7).standard_normal((d_in, d_out))
    w[:, d_out - n_large :] *= 40
    return w
