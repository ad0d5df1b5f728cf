"""Lesson 07: whole numbers with a scale, back to numbers, and the error that is left."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from grader.checks.quantization.lesson import LESSON, number_type
from grader.judging.compare import Comparison
from grader.judging.exercise import Exercise, Inputs, given
from inferlab.quantization import dequantize, quantize_absmax, relative_error


def parts(*names: str) -> Callable[[Any, Inputs], dict[str, Any]]:
    """The drive of an answer that returns several arrays: each by name, with its number type."""

    def drive(answer: Any, inputs: Inputs) -> dict[str, Any]:
        got = answer(**inputs)
        if not isinstance(got, (tuple, list)) or len(got) != len(names):
            raise TypeError(f"it should return {' and '.join(names)}, got {type(got).__name__}")
        seen: dict[str, Any] = {}
        for name, value in zip(names, got, strict=True):
            if name in ("codes", "zeros"):
                kind = getattr(value, "dtype", type(value).__name__)
                seen[f"number type of {name}"] = str(kind).removeprefix("torch.")
            if name == "scales":
                seen["number type of scales"] = number_type(value, inputs["w"])
            seen[name] = value
        return seen

    return drive


def _cast(rounded: np.ndarray) -> np.ndarray:
    """To int8 as a byte would take it: 128 wraps to -128; nan becomes 0."""
    return np.nan_to_num(rounded).astype(np.int64).astype(np.int8)


def outlier_matrix() -> np.ndarray:
    """Columns of ordinary numbers and one 50 times as large; a row and a column of zeros."""
    w = np.random.default_rng(3).normal(size=(9, 6))
    w[:, 2] *= 50
    w[:, 4] = w[5] = 0
    return w


def three_axes() -> np.ndarray:
    w = np.random.default_rng(6).normal(size=(2, 3, 5)).astype(np.float32)
    w[0, 1] *= 40
    return w


def _draw_absmax(rng: np.random.Generator) -> Inputs:
    d_in, d_out = int(rng.integers(6, 10)), int(rng.integers(11, 15))
    w = rng.normal(size=(d_in, d_out))
    w[int(rng.integers(d_in))] *= 20
    w[:, int(rng.integers(d_out))] *= -30
    return {"w": w, "bits": int(rng.choice([4, 5, 6])), "axis": int(rng.integers(2))}


HALVES = np.array([[127.0, 0.5, 1.5], [2.5, -0.5, -127.0], [-3.5, 126.5, 4.5]])


def _absmax(
    top: Callable = lambda bits: 2 ** (bits - 1) - 1,
    largest: Callable = lambda w, axis: np.abs(w).max(axis=axis, keepdims=True),
    guard: Callable = lambda scales: np.where(scales == 0, 1, scales),
    whole: Callable = np.round,
    returned: Callable = lambda scales: scales,
    clip: bool = True,
) -> Callable:
    """quantize_absmax with one step replaced."""

    def quantize(w, bits=8, axis=None):
        with np.errstate(divide="ignore", invalid="ignore"):
            scales = guard(largest(w, axis) / top(bits)).astype(w.dtype)
            codes = whole(w / scales)
            codes = np.clip(codes, -top(bits), top(bits)) if clip else codes
            return _cast(codes), returned(scales)

    return quantize


def absmax_by_slices(w, bits=8, axis=None):
    top = 2 ** (bits - 1) - 1
    codes = np.empty(w.shape, np.int8)
    shape = tuple(1 if axis in (None, a) else n for a, n in enumerate(w.shape))
    scales = np.ones(shape, w.dtype)
    for index in np.ndindex(shape):
        place = tuple(slice(None) if n == 1 else i for i, n in zip(index, shape, strict=True))
        largest = max(abs(float(v)) for v in w[place].ravel())
        if largest:
            scales[index] = largest / top
        rounded = [round(float(v) / float(scales[index])) for v in w[place].ravel()]
        codes[place] = np.reshape([min(top, max(-top, v)) for v in rounded], w[place].shape)
    return codes, scales


def _absmax_torch(w, bits=8, axis=None):
    import torch  # takes a second, and only the tests call this

    t, top = torch.tensor(w), 2 ** (bits - 1) - 1
    size = t.abs()
    every = tuple(range(t.ndim)) if axis is None else axis
    largest = size.amax(dim=every, keepdim=True)
    scales = torch.where(largest > 0, largest / top, torch.ones_like(largest))
    return (t / scales).round().clamp(-top, top).to(torch.int8), scales


def _absmax_rint(w, bits=8, axis=None):
    top = (1 << bits - 1) - 1
    scales = np.linalg.norm(np.atleast_2d(w), ord=np.inf, axis=axis, keepdims=True) / top
    if axis is None:
        scales = np.max(np.abs(w)).reshape(1, 1) / top
    scales[scales == 0] = 1
    return np.minimum(np.maximum(np.rint(w / scales), -top), top).astype("int8"), scales


ABSMAX = Exercise(
    id="quantize_absmax",
    reference=quantize_absmax,
    lesson=LESSON,
    points=3,
    minutes=12,
    difficulty=2,
    hints=(
        "Three steps: the largest magnitude of each slice, the scale, the codes. Keep the reduced "
        "axis at size 1, then everything broadcasts.",
        "largest = np.abs(w).max(axis=axis, keepdims=True). Where it is 0 the scale must be 1, "
        "else largest / top with top = 2**(bits - 1) - 1: np.where chooses.",
        "codes = np.clip(np.round(w / scales), -top, top); return codes.astype(np.int8), "
        "scales.astype(w.dtype)",
    ),
    cases=(
        given("the example of the statement", w=np.array([[1, -2], [0.5, 0.25]]), axis=1),
        given("an outlier and zeros, one scale a column", w=outlier_matrix(), axis=0),
        given("an outlier and zeros, one scale a row", w=outlier_matrix(), axis=1),
        given("all zeros, one scale", w=np.zeros((2, 3))),
        given("the largest is negative, one scale", w=np.array([[0.5, -2], [1, 0.25]])),
        given("halves go to the even number", w=HALVES, axis=None),
        given("4 bits, one scale", w=outlier_matrix(), bits=4),
        given("float32, three axes", w=three_axes(), axis=2),
        given("float16: tiny numbers, of few digits", w=np.array([[1e-5, -4e-6]], np.float16)),
    ),
    draw=_draw_absmax,
    drive=parts("codes", "scales"),
    wrong={
        "a slice of zeros gets the scale 0, and 0 / 0 is nan: its scale is 1": _absmax(
            guard=lambda scales: scales
        ),
        "axis 0 and 1 are swapped: axis 0 reduces over the rows, and leaves one scale a column": (
            lambda w, bits=8, axis=None: quantize_absmax(
                w, bits, {None: None, 0: 1, 1: 0, 2: 2}[axis]
            )
        ),
        "one scale for the whole matrix: axis is ignored": (
            lambda w, bits=8, axis=None: quantize_absmax(w, bits, None)
        ),
        "divides by 128, so the largest number becomes +128 and wraps to -128 in int8": _absmax(
            top=lambda bits: 2 ** (bits - 1)
        ),
        "rounds halves up; np.round takes them to the even number": _absmax(
            whole=lambda v: np.floor(v + 0.5)
        ),
        "cuts off the fraction where it should round": _absmax(whole=np.trunc),
        "takes w.max(), not the largest magnitude: negative extremes overflow": _absmax(
            largest=lambda w, axis: w.max(axis=axis, keepdims=True)
        ),
        "bits is ignored: 127 is the top of 8 bits only": _absmax(top=lambda bits: 127),
        "uses all 2**bits levels as top: half of them are for negative numbers": _absmax(
            top=lambda bits: 2**bits - 1
        ),
        "no clip: in float16 the scale of tiny numbers is rounded, and a code beyond top wraps": (
            _absmax(clip=False)
        ),
        "the scales are float64: they have the number type of w": _absmax(
            returned=lambda scales: scales.astype(float)
        ),
        "axis 2 is taken for axis 1: w may have three axes": lambda w, bits=8, axis=None: (
            quantize_absmax(w, bits, axis and 1)
        ),
        "returns the reciprocal of the scale": _absmax(returned=lambda scales: 1 / scales),
        "a small number added to every scale moves all of them; only a zero needs a guard": (
            _absmax(guard=lambda scales: scales + 1e-8)
        ),
        "the scales lost their reduced axis: keepdims=True keeps it at size 1": _absmax(
            returned=np.squeeze
        ),
    },
    right={
        "slice by slice, number by number": absmax_by_slices,
        "torch, clamped": _absmax_torch,
        "the infinity norm and rint": _absmax_rint,
    },
)

# ---- back to numbers ----------------------------------------------------------------------------


def _draw_dequantize(rng: np.random.Generator) -> Inputs:
    d_in, d_out = int(rng.integers(4, 8)), int(rng.integers(9, 13))
    unsigned = bool(rng.integers(2))
    low, high = (0, 256) if unsigned else (-127, 128)
    kind = np.uint8 if unsigned else np.int8
    codes = rng.integers(low, high, size=(d_in, d_out)).astype(kind)
    zeros = rng.integers(30, 120, size=(1, d_out)).astype(kind)
    codes[0, :3] = low  # far below its zero
    codes[0, 3:5] = 127
    return {"codes": codes, "scales": rng.uniform(0.3, 0.9, size=(1, d_out)), "zeros": zeros}


def _like(numbers: Any, scales: np.ndarray) -> np.ndarray:
    """In the number type of the scales."""
    return np.asarray(numbers, dtype=scales.dtype)


def _drive_dequantize(answer: Any, inputs: Inputs) -> dict[str, Any]:
    restored = answer(**inputs)
    return {"number type": number_type(restored, inputs["scales"]), "restored": restored}


DEQUANTIZE = Exercise(
    id="dequantize",
    reference=dequantize,
    lesson=LESSON,
    points=1,
    minutes=5,
    difficulty=1,
    hints=(
        "One line of arithmetic, and one trap: what type do codes and zeros have when they meet?",
        "Make floating-point numbers first: codes.astype(scales.dtype). A uint8 minus a uint8 is "
        "a uint8.",
        "scales * (codes.astype(scales.dtype) - np.asarray(zeros, dtype=scales.dtype))",
    ),
    cases=(
        given(
            "symmetric codes, one scale a row",
            codes=np.array([[3, -7], [127, 0]], np.int8),
            scales=np.array([[0.5], [0.01]]),
        ),
        given(
            "unsigned codes below their zero",
            codes=np.array([[3, 200]], np.uint8),
            scales=np.array([[0.5]]),
            zeros=np.array([[128]], np.uint8),
        ),
        given(
            "scales in float32",
            codes=np.array([[3, -7], [127, 0]], np.int8),
            scales=np.array([[0.5], [0.01]], np.float32),
        ),
        given(
            "scales in float16, unsigned codes",
            codes=np.array([[3, 200]], np.uint8),
            scales=np.array([[0.25, 0.1]], np.float16),
            zeros=np.array([[128]], np.uint8),
        ),
    ),
    draw=_draw_dequantize,
    drive=_drive_dequantize,
    wrong={
        "subtracts among bytes, where 3 - 200 is 59: turn the codes into floats first": (
            lambda codes, scales, zeros=0: scales * (codes - np.asarray(zeros).astype(codes.dtype))
        ),
        "the zero point is ignored": lambda codes, scales, zeros=0: scales * codes,
        "scales first and subtracts the zero after: the zero is a code, and is scaled too": (
            lambda codes, scales, zeros=0: scales * codes - zeros
        ),
        "the result is float64: it has the number type of the scales": (
            lambda codes, scales, zeros=0: scales * (codes.astype(float) - zeros)
        ),
        "adds the zero: quantizing added it, so this must subtract": (
            lambda codes, scales, zeros=0: scales * (_like(codes, scales) + _like(zeros, scales))
        ),
        "divides by the scale: quantizing divided, so this must multiply": (
            lambda codes, scales, zeros=0: (_like(codes, scales) - _like(zeros, scales)) / scales
        ),
        "the result is rounded to whole numbers": lambda codes, scales, zeros=0: np.round(
            dequantize(codes, scales, zeros)
        ),
        "codes and zeros in 16-bit floats: too few digits for the scale": (
            lambda codes, scales, zeros=0: (
                scales.astype(np.float16) * (codes.astype(np.float16) - np.float16(zeros))
            )
        ),
    },
    right={
        "wide whole numbers first": lambda codes, scales, zeros=0: _like(
            (codes.astype(np.int32) - np.asarray(zeros, np.int32)) * scales, scales
        ),
        "multiplied out, in float64": lambda codes, scales, zeros=0: _like(
            scales * codes.astype(float) - scales * np.asarray(zeros, float), scales
        ),
        "number by number": lambda codes, scales, zeros=0: [
            [float(s) * (int(c) - int(z)) for c, s, z in zip(*row, strict=True)]
            for row in zip(
                codes, *(np.broadcast_to(a, codes.shape) for a in (scales, zeros)), strict=True
            )
        ],
    },
)

# ---- how large is the error? --------------------------------------------------------------------


def _draw_error(rng: np.random.Generator) -> Inputs:
    d_in, d_out = int(rng.integers(5, 9)), int(rng.integers(10, 14))
    w = rng.normal(size=(d_in, d_out)) * rng.uniform(0.2, 5, size=(d_in, 1))
    w[:, 1] *= 40
    restored = w + rng.uniform(-0.5, 0.5, size=w.shape)
    return {"w": w, "restored": restored, "axis": int(rng.integers(2))}


def _zero_slices() -> Inputs:
    w = outlier_matrix()
    restored = np.round(w, 1)
    restored[0, 4] = 0.1  # where w has a column of zeros
    return {"w": w, "restored": restored}


def _norms(w, restored, axis) -> tuple[np.ndarray, np.ndarray]:
    return np.linalg.norm(w - restored, axis=axis), np.linalg.norm(w, axis=axis)


def _error_with(change: Callable) -> Callable:
    def error(w, restored, axis=None):
        with np.errstate(divide="ignore", invalid="ignore"):
            return change(w, restored, axis)

    return error


def _safe_ratio(w, restored, axis):
    error, size = _norms(w, restored, axis)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where((error == 0) & (size == 0), 0.0, error / size)


def _error_loop(w, restored, axis=None):
    def one(a, b):
        size = float(np.sum(a * a)) ** 0.5
        off = float(np.sum((a - b) ** 2)) ** 0.5
        return off / size if size else float("inf") if off else 0.0

    if axis is None:
        return one(w, restored)
    pairs = zip(w, restored, strict=True) if axis == 1 else zip(w.T, restored.T, strict=True)
    return [one(a, b) for a, b in pairs]


def _error_rms(w, restored, axis=None):
    error = np.sqrt(np.mean(np.square(w - restored), axis=axis))
    size = np.sqrt(np.mean(np.square(w), axis=axis))
    out = np.full(np.shape(error), np.inf)
    np.divide(error, size, out=out, where=size > 0)
    return np.where(error == 0, 0.0, out)


ERROR = Exercise(
    id="relative_error",
    reference=relative_error,
    lesson=LESSON,
    points=2,
    minutes=8,
    difficulty=2,
    hints=(
        "Two norms over the same axis, one divided by the other. Only slices of w that are all 0 "
        "need thought.",
        "np.sqrt(np.sum(a**2, axis=axis)) is the norm; with axis None it covers the whole matrix.",
        "np.where(size == 0, np.where(error == 0, 0.0, np.inf), error / np.where(size == 0, 1, "
        "size))",
    ),
    cases=(
        given(
            "the example of the statement",
            w=np.array([[3.0, 4], [100, 0]]),
            restored=np.array([[0.0, 4], [100, 0]]),
            axis=1,
        ),
        given("zeros in w, by columns", **_zero_slices(), axis=0),
        given("zeros in w, by rows", **_zero_slices(), axis=1),
        given("the whole matrix", **_zero_slices()),
    ),
    draw=_draw_error,
    comparison=Comparison(
        terms=lambda i: i["w"].size, why="sums of squares over at most all numbers"
    ),
    wrong={
        "the whole-matrix number for every slice: large columns hide what happened to the others": (
            _error_with(
                lambda w, r, axis: np.full(
                    () if axis is None else w.shape[1 - axis], _safe_ratio(w, r, None)
                )
            )
        ),
        "axis 0 and 1 are swapped: axis 0 sums over the rows, and leaves one number a column": (
            _error_with(lambda w, r, axis: _safe_ratio(w, r, {None: None, 0: 1, 1: 0}[axis]))
        ),
        "0 / 0 gives nan where a slice is all 0 and restored is 0 too: the answer there is 0": (
            _error_with(lambda w, r, axis: np.divide(*_norms(w, r, axis)))
        ),
        "a slice of zeros counts as error 0 although restored is not 0 there": _error_with(
            lambda w, r, axis: np.nan_to_num(_safe_ratio(w, r, axis), posinf=0.0)
        ),
        "the square root is missing: that is the ratio of the squares": _error_with(
            lambda w, r, axis: _safe_ratio(w, r, axis) ** 2
        ),
        "divides by the size of restored, not of w": _error_with(
            lambda w, r, axis: np.where(
                _norms(w, r, axis)[0] == 0,
                0.0,
                _norms(w, r, axis)[0] / np.linalg.norm(r, axis=axis),
            )
        ),
        "the mean of the numbers' own relative errors: tiny numbers dominate it": _error_with(
            lambda w, r, axis: np.nan_to_num(np.abs(w - r) / np.abs(w)).mean(axis=axis)
        ),
        "the norm of the error alone: divide by the norm of w": _error_with(
            lambda w, r, axis: _norms(w, r, axis)[0]
        ),
        "sums the differences before squaring: errors of opposite sign cancel": _error_with(
            lambda w, r, axis: np.where(
                _norms(w, r, axis)[0] == 0,
                0.0,
                np.abs((w - r).sum(axis=axis)) / _norms(w, r, axis)[1],
            )
        ),
    },
    right={
        "slice by slice": _error_loop,
        "root mean squares": _error_rms,
        "np.linalg.norm": _error_with(_safe_ratio),
    },
)
