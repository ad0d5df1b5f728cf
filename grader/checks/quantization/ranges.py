"""Lesson 07: ranges with a zero point, and a scale for every few inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from grader.checks.quantization.lesson import LESSON
from grader.checks.quantization.rounding import (
    absmax_by_slices,
    outlier_matrix,
    parts,
    three_axes,
)
from grader.judging.exercise import Exercise, Inputs, given
from inferlab.quantization import quantize_absmax, quantize_asymmetric, quantize_groups

# ---- a range that is not round zero -------------------------------------------------------------


def _draw_asymmetric(rng: np.random.Generator) -> Inputs:
    d_in, d_out = int(rng.integers(6, 10)), int(rng.integers(11, 15))
    w = rng.normal(size=(d_in, d_out)) + rng.uniform(-1, 1, size=(d_in, d_out))
    w[0] = np.abs(w[0]) + 3  # a row and a column that are far above 0
    w[:, 0] = np.abs(w[:, 0]) + 2
    w[-1, 1:] = -np.abs(w[-1, 1:]) - 1
    return {"w": w, "bits": int(rng.choice([4, 5, 6])), "axis": int(rng.integers(2))}


def _asymmetric(
    low: Callable = lambda w, axis: np.minimum(w.min(axis=axis, keepdims=True), 0),
    high: Callable = lambda w, axis: np.maximum(w.max(axis=axis, keepdims=True), 0),
    top: Callable = lambda bits: 2**bits - 1,
    guard: Callable = lambda scales: np.where(scales == 0, 1, scales),
    zero: Callable = lambda low, scales: np.round(-low / scales),
    code: Callable = lambda w, scales, zeros: np.round(w / scales) + zeros,
    clip: Callable | None = lambda bits: 2**bits - 1,
    kind: Any = None,
) -> Callable:
    """quantize_asymmetric with one step replaced."""

    def quantize(w, bits=8, axis=None):
        with np.errstate(divide="ignore", invalid="ignore"):
            scales = guard((high(w, axis) - low(w, axis)) / top(bits)).astype(kind or w.dtype)
            zeros = zero(low(w, axis), scales)
            codes = np.nan_to_num(code(w, scales, zeros))
            codes = np.clip(codes, 0, clip(bits)) if clip else codes
            return _bytes(codes), scales, _bytes(np.nan_to_num(zeros))

    return quantize


def _bytes(numbers: np.ndarray) -> np.ndarray:
    """To uint8 as a byte would take it: 256 wraps to 0."""
    return numbers.astype(np.int64).astype(np.uint8)


def _asymmetric_by_slices(w, bits=8, axis=None):
    top = 2**bits - 1
    codes = np.empty(w.shape, np.uint8)
    shape = tuple(1 if axis in (None, a) else n for a, n in enumerate(w.shape))
    scales, zeros = np.ones(shape, w.dtype), np.zeros(shape, np.uint8)
    for index in np.ndindex(shape):
        place = tuple(slice(None) if n == 1 else i for i, n in zip(index, shape, strict=True))
        low, high = min(0.0, float(w[place].min())), max(0.0, float(w[place].max()))
        if high > low:
            scales[index] = (high - low) / top
        zeros[index] = round(-low / float(scales[index]))
        codes[place] = np.clip(np.rint(w[place] / scales[index]) + zeros[index], 0, top)
    return codes, scales, zeros


def _asymmetric_clamped_first(w, bits=8, axis=None):
    """Clip before adding the zero, in whole numbers."""
    top = (1 << bits) - 1
    with_zero = np.concatenate([w, np.zeros_like(w)], axis=axis or 0)
    low = with_zero.min(axis=axis, keepdims=True)
    span = np.ptp(with_zero, axis=axis, keepdims=True)
    scales = np.where(span > 0, span / top, 1.0).astype(w.dtype)
    zeros = np.rint(-low / scales).astype(np.int64)
    codes = np.minimum(np.rint(w / scales).astype(np.int64), top - zeros) + zeros
    return np.maximum(codes, 0).astype(np.uint8), scales, zeros.astype(np.uint8)


ASYMMETRIC = Exercise(
    id="quantize_asymmetric",
    reference=quantize_asymmetric,
    lesson=LESSON,
    points=3,
    minutes=12,
    difficulty=3,
    hints=(
        "Find low and high of each slice first, and let the range reach 0: np.minimum(w.min(...), "
        "0) and np.maximum(w.max(...), 0), with keepdims=True.",
        "scales = (high - low) / top, and 1 where high == low. zeros = np.round(-low / scales) is "
        "the code of 0.0.",
        "codes = np.clip(np.round(w / scales) + zeros, 0, top); then codes.astype(np.uint8), "
        "scales, zeros.astype(np.uint8).",
    ),
    cases=(
        given("the example of the statement", w=np.array([[-1.0, 0, 4]])),
        given(
            "as far below 0 as above: two halves round up",
            w=np.array([[-127.5, 3.0, 127.5], [10, -20, 0]]),
        ),
        given("the same in 4 bits", w=np.array([[-7.5, 3.0, 7.5], [1, -2, 0]]), bits=4),
        given("zeros and an outlier, one scale a column", w=outlier_matrix(), axis=0),
        given("a slice far above 0, one scale a row", w=outlier_matrix() ** 2 + 7, axis=1),
        given("4 bits, all below 0", w=-np.abs(outlier_matrix()) - 1, bits=4, axis=0),
        given("halves below 0 and above", w=np.array([[-15, -10.5, 11.5, 240]])),
        given("float32, three axes", w=three_axes(), axis=2),
    ),
    draw=_draw_asymmetric,
    drive=parts("codes", "scales", "zeros"),
    wrong={
        "the range does not reach 0 where all numbers are on one side: 0.0 has no code": (
            _asymmetric(
                low=lambda w, axis: w.min(axis=axis, keepdims=True),
                high=lambda w, axis: w.max(axis=axis, keepdims=True),
            )
        ),
        "where all numbers are above 0 the range starts at the smallest: it must reach 0": (
            _asymmetric(low=lambda w, axis: w.min(axis=axis, keepdims=True))
        ),
        "where all numbers are below 0 the range ends at the largest: it must reach 0": (
            _asymmetric(high=lambda w, axis: w.max(axis=axis, keepdims=True))
        ),
        "divides by 2**bits: from 0 to 2**bits - 1 there are 2**bits - 1 steps": _asymmetric(
            top=lambda bits: 2**bits
        ),
        "no clip: two halves rounded up make top + 1, which wraps to 0": _asymmetric(clip=None),
        "clipped to 255 whatever the bits: the last code is 2**bits - 1": _asymmetric(
            clip=lambda bits: 255
        ),
        "a slice of zeros gets the scale 0, and 0 / 0 is nan: its scale is 1": _asymmetric(
            guard=lambda scales: scales
        ),
        "the zero point has the wrong sign: it is -low / scale": _asymmetric(
            zero=lambda low, scales: np.round(low / scales)
        ),
        "the zero is subtracted: a code is round(w / scale) + zero": _asymmetric(
            code=lambda w, scales, zeros: np.round(w / scales) - zeros
        ),
        "the sum with the zero is rounded: round w / scale first, then add the zero": _asymmetric(
            code=lambda w, scales, zeros: np.round(w / scales + zeros)
        ),
        "halves are rounded away from 0: np.round takes them to the even number": _asymmetric(
            code=lambda w, scales, zeros: np.sign(w) * np.floor(np.abs(w / scales) + 0.5) + zeros
        ),
        "the scales are float64: they have the number type of w": _asymmetric(kind=float),
        "the zero point is cut off, not rounded": _asymmetric(
            zero=lambda low, scales: np.floor(-low / scales)
        ),
        "the codes are cut off, not rounded": _asymmetric(
            code=lambda w, scales, zeros: np.trunc(w / scales) + zeros
        ),
        "a symmetric range round 0: half of the codes stay unused where signs are uneven": (
            _asymmetric(
                low=lambda w, axis: -np.abs(w).max(axis=axis, keepdims=True),
                high=lambda w, axis: np.abs(w).max(axis=axis, keepdims=True),
            )
        ),
        "axis 0 and 1 are swapped: axis 0 reduces over the rows, and leaves one scale a column": (
            lambda w, bits=8, axis=None: quantize_asymmetric(
                w, bits, {None: None, 0: 1, 1: 0, 2: 2}[axis]
            )
        ),
        "bits is ignored: 255 is the top of 8 bits only": _asymmetric(top=lambda bits: 255),
    },
    right={
        "slice by slice": _asymmetric_by_slices,
        "clipped before the zero is added": _asymmetric_clamped_first,
    },
)

# ---- a scale for every few inputs ---------------------------------------------------------------


def _group_matrix() -> np.ndarray:
    """8 x 8, one column and one row much larger: groups along the other axis differ."""
    w = np.random.default_rng(5).normal(size=(8, 8))
    w[:, 3] *= 30
    w[6] *= 9
    w[4:8, 5] = 0
    return w


def _draw_groups(rng: np.random.Generator) -> Inputs:
    group = int(rng.choice([4, 6]))
    n_groups, d_out = int(rng.integers(3, 6)), 12 * int(rng.integers(1, 3)) + 12
    w = rng.normal(size=(group * n_groups, d_out))
    w[:, int(rng.integers(d_out))] *= 25
    w[int(rng.integers(len(w)))] *= 10
    return {"w": w, "group": group, "bits": int(rng.choice([3, 5, 8]))}


def _require_groups(w, group):
    if len(w) % group:
        raise ValueError("no whole groups")


def _groups_along_outputs(w, group, bits=4):
    _require_groups(w, group)
    codes, scales = quantize_absmax(w.reshape(len(w), -1, group), bits, axis=2)
    return codes.reshape(w.shape), scales[:, :, 0]


def _groups_shared(w, group, bits=4):
    _require_groups(w, group)
    codes, scales = quantize_absmax(w.reshape(-1, group * w.shape[1]), bits, axis=1)
    return codes.reshape(w.shape), scales.repeat(w.shape[1], axis=1)


def _groups_strided(w, group, bits=4):
    """Rows i, i + n_groups, ... share a scale."""
    _require_groups(w, group)
    codes, scales = quantize_absmax(w.reshape(group, -1, w.shape[1]), bits, axis=0)
    return codes.reshape(w.shape), scales[0]


def _groups_ragged(w, group, bits=4):
    pad = -len(w) % group
    codes, scales = quantize_groups(np.pad(w, ((0, pad), (0, 0))), group, bits)
    return codes[: len(w)], scales


def _groups_loop(w, group, bits=4):
    if w.shape[0] % group != 0:
        raise ValueError(f"{w.shape[0]} is no multiple of {group}")
    pieces = [absmax_by_slices(w[i : i + group], bits, axis=0) for i in range(0, len(w), group)]
    return np.vstack([codes for codes, _ in pieces]), np.vstack([scales for _, scales in pieces])


def _groups_spread(w, group, bits=4):
    if len(w) % group:
        raise ValueError("uneven")
    top = 2 ** (bits - 1) - 1
    largest = np.maximum.reduceat(np.abs(w), np.arange(0, len(w), group), axis=0)
    scales = (largest / top + (largest == 0)).astype(w.dtype)
    return np.rint(w / np.repeat(scales, group, axis=0)).astype(np.int8), scales


GROUPS = Exercise(
    id="quantize_groups",
    reference=quantize_groups,
    lesson=LESSON,
    points=2,
    minutes=8,
    difficulty=3,
    uses=("quantize_absmax",),
    hints=(
        "A reshape splits the rows into groups: w.reshape(n_groups, group, d_out). Which axis of "
        "that is the one to reduce over?",
        "codes, scales = quantize_absmax(w.reshape(-1, group, d_out), bits, axis=1); the scales "
        "come as (n_groups, 1, d_out).",
        "return codes.reshape(d_in, d_out), scales[:, 0], after raising ValueError if d_in % "
        "group.",
    ),
    cases=(
        given("8 by 8, a large column, a large row, zeros", w=_group_matrix(), group=4),
        given("the example of the statement", w=np.array([[1.0], [2], [10], [20]]), group=2),
        given("one group: the whole column", w=_group_matrix(), group=8, bits=8),
        given("float32", w=_group_matrix().astype(np.float32), group=2, bits=8),
        given("d_in is no multiple of the group", w=np.ones((10, 4)), group=4),
    ),
    draw=_draw_groups,
    drive=parts("codes", "scales"),
    wrong={
        "groups run along the output channels; the inputs are axis 0, down a column": (
            _groups_along_outputs
        ),
        "one scale for a group of rows of all columns: each output channel has its own": (
            _groups_shared
        ),
        "every n-th row is in one group: a group is consecutive rows": _groups_strided,
        "one scale a column: the groups are ignored": lambda w, group, bits=4: (
            _require_groups(w, group),
            (lambda q: (q[0], q[1].repeat(len(w) // group, axis=0)))(quantize_absmax(w, bits, 0)),
        )[1],
        "always 4 bits: bits is ignored": lambda w, group, bits=4: quantize_groups(w, group, 4),
        "a last group that is not full is accepted: raise ValueError": _groups_ragged,
        "the scales are repeated for every row; one a group is asked": (
            lambda w, group, bits=4: (
                quantize_groups(w, group, bits)[0],
                quantize_groups(w, group, bits)[1].repeat(group, axis=0),
            )
        ),
        "codes and scales keep the shape of the groups: give the codes the shape of w": (
            lambda w, group, bits=4: (
                _require_groups(w, group),
                quantize_absmax(w.reshape(-1, group, w.shape[1]), bits, axis=1),
            )[1]
        ),
    },
    right={
        "group by group": _groups_loop,
        "maxima by reduceat, scales repeated": _groups_spread,
    },
)
