"""Lesson 07: 8-bit floating point, the bytes of a quantized matrix, and the error to expect."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np

from grader.checks.quantization.lesson import LESSON, number_type
from grader.judging.compare import Comparison
from grader.judging.exercise import Exercise, Inputs, given
from inferlab.fp8 import FORMATS, FloatFormat, all_values, round_fp8
from inferlab.quantization import expected_error, expected_largest, quantized_bytes

# ---- 8-bit floating point -----------------------------------------------------------------------

SMALL = np.array([0.0, 0.9, 1.0, 1.1, 1.5, 2.5, 3.5, -5.5, 7.5, 8.4, -8.5])  # in smallest steps
AROUND_ONE = np.array([1.0, 1.0625, 1.1875, 1.06, 1.2, 1.99, -1.94, 15.5, 0.9999999, 3.2])
LARGE = np.array([239.0, 248, 431, 432, 433, 448, 460, 464, 465, 479, -500, 900, 1e30])
WIDE = np.array([40_960.0, 53_248, 53_247, 57_344, 61_439, 61_440, -61_441, 65_504, -1e9])


def _draw_fp8(rng: np.random.Generator) -> Inputs:
    """Numbers of all sizes, halves, subnormal and too large ones, for both formats."""
    x = rng.uniform(1, 2, size=(7, 9)) * rng.choice([-1.0, 1.0], size=(7, 9))
    x *= 2.0 ** rng.integers(-19, 18, size=(7, 9))
    for row, (n_mantissa, low, largest) in zip((0, 2), FORMATS.values(), strict=True):
        whole = rng.integers(2**n_mantissa, 2 ** (n_mantissa + 1), size=9)
        x[row] = (whole + 0.5) * 2.0 ** (rng.integers(low, low + 8, size=9) - n_mantissa)
        x[row + 1, :4] = (rng.integers(0, 8, size=4) + 0.4) * 2.0 ** (low - n_mantissa)
        x[row + 1, 4:6] = [largest * 1.5, -largest * 3]
    return {"x": x}


def _drive_fp8(answer: Any, inputs: Inputs) -> dict[str, Any]:
    """In the form that is given, else in both."""
    forms = [inputs["form"]] if "form" in inputs else ["e4m3", "e5m2"]
    seen = {form: answer(x=inputs["x"], form=form) for form in forms}
    if "form" not in inputs:
        seen["with no form named"] = answer(inputs["x"])
    types = {number_type(y, inputs["x"]) for y in seen.values()}
    return {"number type": ", ".join(sorted(types)), **seen}


def _fp8(
    adjust: Callable = lambda form: form,
    whole: Callable = np.round,
    exponent: Callable = lambda x, low: np.maximum(np.frexp(x)[1] - 1, low),
    over: Callable = lambda y, largest: np.clip(y, -largest, largest),
) -> Callable:
    """round_fp8 with one step replaced."""

    def rounded(x, form="e4m3"):
        if form not in FORMATS:
            raise ValueError(form)
        n_mantissa, low, largest = adjust(FORMATS[form])
        step = np.ldexp(1.0, exponent(x, low) - n_mantissa)
        return over(whole(x / step) * step, largest).astype(x.dtype)

    return rounded


def _shifted(mantissa: int = 0, low: int = 0, scale: float = 1.0) -> Callable:
    return lambda f: FloatFormat(f.n_mantissa + mantissa, f.min_exponent + low, f.largest * scale)


def _away_from_zero(v: np.ndarray) -> np.ndarray:
    return np.sign(v) * np.floor(np.abs(v) + 0.5)


def _flushed(x, form="e4m3"):
    y = round_fp8(x, form)
    return np.where(np.abs(y) < 2.0 ** FORMATS[form].min_exponent, 0, y)


def _rounded_down(x, low):
    """The exponent from a rounded logarithm."""
    with np.errstate(divide="ignore", invalid="ignore"):
        log = np.nan_to_num(np.round(np.log2(np.abs(x))), neginf=low, posinf=0)
    return np.maximum(log, low).astype(int)


def _fp8_table(x, form="e4m3"):
    """Look up the nearest of all values; of two equally near ones, the one of even code."""
    values = all_values(form)
    flat, out = np.asarray(x, float).ravel(), []
    for v in flat:
        if np.isnan(v):
            out.append(np.nan)
            continue
        size = min(abs(v), values[-1])
        i = int(np.searchsorted(values, size))
        below, above = values[max(i - 1, 0)], values[i]
        near = above if above - size < size - below else below
        if above - size == size - below:
            near = values[i] if i % 2 == 0 else values[max(i - 1, 0)]
        out.append(math.copysign(near, v))
    return np.array(out).reshape(np.shape(x)).astype(x.dtype)


def _fp8_torch(x, form="e4m3"):
    import torch  # takes a second, and only the tests call this

    kind = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}[form]
    largest = FORMATS[form].largest
    return torch.tensor(np.clip(x, -largest, largest)).to(kind).double().numpy().astype(x.dtype)


def _fp8_ml_dtypes(x, form="e4m3"):
    import ml_dtypes

    kind = {"e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2}[form]
    largest = FORMATS[form].largest
    return np.clip(x, -largest, largest).astype(kind).astype(x.dtype)


def _fp8_by_number(x, form="e4m3"):
    n_mantissa, low, largest = FORMATS[form]

    def one(v: float) -> float:
        if v != v:
            return v
        v = max(-largest, min(largest, v))
        e = low if v == 0 else max(low, math.frexp(abs(v))[1] - 1)
        return round(v * 2.0 ** (n_mantissa - e)) * 2.0 ** (e - n_mantissa)

    return np.vectorize(one)(np.asarray(x, dtype=float)).astype(x.dtype)


FP8 = Exercise(
    id="round_fp8",
    reference=round_fp8,
    lesson=LESSON,
    points=4,
    minutes=18,
    difficulty=4,
    hints=(
        "Within one power of two the numbers of a float are evenly spaced, so rounding is dividing "
        "by a step, rounding, multiplying. Only the step differs from number to number.",
        "exponent = np.maximum(np.frexp(x)[1] - 1, min_exponent); step = np.ldexp(1.0, exponent - "
        "n_mantissa). The maximum is all that subnormal numbers need.",
        "np.clip(np.round(x / step) * step, -largest, largest).astype(x.dtype): clip after "
        "rounding; np.clip leaves nan as it is.",
    ),
    cases=(
        given("the example of the statement", x=np.array([1.06, 20, 21, 500, 0.001])),
        given("around 1, ties included", x=AROUND_ONE),
        given("subnormal e4m3, in steps of 2**-9", x=SMALL * 2.0**-9),
        given("subnormal e5m2, in steps of 2**-16", x=SMALL * 2.0**-16, form="e5m2"),
        given("large e4m3: 448 is the end", x=LARGE),
        given("large e5m2: 57,344 is the end", x=WIDE, form="e5m2"),
        given("infinity and nan", x=np.array([[np.inf, -np.inf, np.nan, 2.0]])),
        given("float32, two axes", x=np.array([[0.3, 0.7], [-17, 300]], np.float32)),
        given("float16", x=np.array([0.3, -17, 465, 1e-3, 6e-5], np.float16)),
        given("no such format", x=np.ones(2), form="e3m4"),
    ),
    draw=_draw_fp8,
    n_draws=3,
    drive=_drive_fp8,
    wrong={
        "the largest e4m3 number is taken as 240, as in another variant: here it is 448": _fp8(
            adjust=lambda f: f._replace(largest=240.0 if f.n_mantissa == 3 else f.largest)
        ),
        "the largest e4m3 number is taken as 480: that code is nan, 448 is the end": _fp8(
            adjust=lambda f: f._replace(largest=480.0 if f.n_mantissa == 3 else f.largest)
        ),
        "what lies beyond the largest number becomes infinity: here it saturates": _fp8(
            over=lambda y, largest: np.where(np.abs(y) > largest, np.sign(y) * np.inf, y)
        ),
        "what lies beyond the largest number becomes nan: here it saturates": _fp8(
            over=lambda y, largest: np.where(np.abs(y) > largest, np.nan, y)
        ),
        "halves are rounded away from 0: they go to the even neighbour": _fp8(
            whole=_away_from_zero
        ),
        "cuts off towards 0 where it should round": _fp8(whole=np.trunc),
        "subnormal numbers are flushed to 0: below min_exponent the step stays the same": _flushed,
        "no subnormal numbers: the step goes on shrinking below min_exponent": _fp8(
            exponent=lambda x, low: np.frexp(x)[1] - 1
        ),
        "one mantissa bit too many: the leading 1 of a number is not stored": _fp8(
            adjust=_shifted(mantissa=1)
        ),
        "one mantissa bit too few": _fp8(adjust=_shifted(mantissa=-1)),
        "np.frexp's exponent is one too large: its mantissa lies between 0.5 and 1": _fp8(
            exponent=lambda x, low: np.maximum(np.frexp(x)[1], low)
        ),
        "the smallest normal exponent is one too low": _fp8(adjust=_shifted(low=-1)),
        "the logarithm is rounded to the nearest: the exponent is its floor": _fp8(
            exponent=_rounded_down
        ),
        "float64 comes out: the result has the number type of x": lambda x, form="e4m3": round_fp8(
            x, form
        ).astype(float),
        "the sign is lost": lambda x, form="e4m3": np.abs(round_fp8(x, form)),
        "always e4m3: form is ignored": lambda x, form="e4m3": (
            round_fp8(x, "e4m3") if form in FORMATS else round_fp8(x, form)
        ),
    },
    right={
        "a table of all values": lambda x, form="e4m3": (
            _fp8_table(x, form) if form in FORMATS else round_fp8(x, form)
        ),
        "torch, clipped first": lambda x, form="e4m3": (
            _fp8_torch(x, form) if form in FORMATS else round_fp8(x, form)
        ),
        "ml_dtypes, clipped first": lambda x, form="e4m3": (
            _fp8_ml_dtypes(x, form) if form in FORMATS else round_fp8(x, form)
        ),
        "number by number": lambda x, form="e4m3": (
            _fp8_by_number(x, form) if form in FORMATS else round_fp8(x, form)
        ),
    },
)

# ---- bytes, with everything that belongs to them ------------------------------------------------


def _draw_bytes(rng: np.random.Generator) -> Inputs:
    return {
        "n_weights": int(rng.integers(10_000, 90_000)) * 2 + 1,
        "bits": int(rng.choice([3, 5, 6])),
        "group": int(rng.choice([24, 48, 100])),
        "scale_bits": int(rng.choice([8, 32])),
        "zero_bits": int(rng.choice([4, 12])),
    }


def _bytes(change: Callable[[int, int, int, int, int], Any]) -> Callable:
    def answer(n_weights, bits, group, scale_bits=16, zero_bits=0):
        return change(n_weights, bits, group, scale_bits, zero_bits)

    return answer


def _up(n: int, d: int) -> int:
    return -(-n // d)


def _by_groups(n, b, g, s, z):
    full, rest = divmod(n, g)
    bits = full * (g * b + s + z) + (rest * b + s + z if rest else 0)
    return math.ceil(Fraction(bits, 8))


BYTES = Exercise(
    id="quantized_bytes",
    reference=quantized_bytes,
    lesson=LESSON,
    points=2,
    minutes=8,
    difficulty=2,
    hints=(
        "Count bits first: those of the codes, and those of one scale and one zero point a group. "
        "Divide by 8 at the very end.",
        "The number of groups is n_weights / group, rounded up: -(-n_weights // group).",
        "total = n_weights * bits + n_groups * (scale_bits + zero_bits); return -(-total // 8)",
    ),
    cases=(
        given("8 billion weights, int4, group 128", n_weights=8 * 10**9, bits=4, group=128),
        given("with 4-bit zero points", n_weights=8 * 10**9, bits=4, group=128, zero_bits=4),
        given("MXFP4: 8-bit scales", n_weights=3200, bits=4, group=32, scale_bits=8),
        given("a last group that is not full", n_weights=129, bits=4, group=128),
        given("a last byte that is not full", n_weights=1, bits=4, group=128, scale_bits=8),
        given("int8, one scale for 4,096", n_weights=4096 * 4096, bits=8, group=4096),
    ),
    draw=_draw_bytes,
    wrong={
        "the scales are forgotten: 4 bits are not half a byte in all": _bytes(
            lambda n, b, g, s, z: _up(n * b, 8)
        ),
        "the zero points are forgotten": _bytes(
            lambda n, b, g, s, z: _up(n * b + _up(n, g) * s, 8)
        ),
        "one scale for every weight, not for every group": _bytes(
            lambda n, b, g, s, z: _up(n * (b + s + z), 8)
        ),
        "the scale's bits counted as bytes": _bytes(
            lambda n, b, g, s, z: _up(n * b, 8) + _up(n, g) * (s + z)
        ),
        "the group that is not full is left out: round the number of groups up": _bytes(
            lambda n, b, g, s, z: _up(n * b + n // g * (s + z), 8)
        ),
        "the last byte is cut off: round up": _bytes(
            lambda n, b, g, s, z: (n * b + _up(n, g) * (s + z)) // 8
        ),
        "a float: bytes are whole": _bytes(lambda n, b, g, s, z: (n * b + _up(n, g) * (s + z)) / 8),
        "the answer is in bits: divide by 8": _bytes(
            lambda n, b, g, s, z: n * b + _up(n, g) * (s + z)
        ),
        "scales of 16 bits always: scale_bits is ignored": _bytes(
            lambda n, b, g, s, z: _up(n * b + _up(n, g) * (16 + z), 8)
        ),
        "weights and groups multiplied: a group has `group` weights, so divide": _bytes(
            lambda n, b, g, s, z: _up(n * b + n * g * (s + z), 8)
        ),
    },
    right={
        "group by group, in fractions": _bytes(_by_groups),
        "divmod": _bytes(
            lambda n, b, g, s, z: sum(divmod(n * b + (n + g - 1) // g * (s + z) + 7, 8)[:1])
        ),
    },
)

# ---- theory -------------------------------------------------------------------------------------


def _theory(
    top: Callable = lambda bits: 2 ** (bits - 1) - 1,
    spread: float = math.sqrt(12),
    largest: Callable = expected_largest,
) -> Callable:
    return lambda bits, group: largest(group) / (top(bits) * spread)


EXPECTED = Exercise(
    id="expected_error",
    reference=expected_error,
    lesson=LESSON,
    points=1,
    minutes=6,
    difficulty=2,
    hints=(
        "Two factors: how long a step is, measured in standard deviations of the weights, and how "
        "far a rounded number is off on average, measured in steps.",
        "The step is expected_largest(group) / top with top = 2**(bits - 1) - 1; the error is the "
        "step divided by the square root of 12.",
        "expected_largest(group) / ((2 ** (bits - 1) - 1) * math.sqrt(12))",
    ),
    cases=(
        given("8 bits, 256 numbers a scale", bits=8, group=256),
        given("4 bits, 128 numbers a scale", bits=4, group=128),
        given("one number a scale", bits=3, group=1),
    ),
    draw=lambda rng: {"bits": int(rng.integers(3, 9)), "group": int(rng.integers(20, 400))},
    wrong={
        "top is 2**(bits - 1): 128 and 8 have no positive code": _theory(
            top=lambda bits: 2 ** (bits - 1)
        ),
        "top counts all 2**bits - 1 steps: the largest magnitude is only half of the range": (
            _theory(top=lambda bits: 2**bits - 1)
        ),
        "divides by 12: that is the mean square of the error, its root is asked": _theory(
            spread=12
        ),
        "divides by 2: that is the largest error, the root mean square is asked": _theory(spread=2),
        "divides by the square root of 3: the error reaches half a step, not a whole one": _theory(
            spread=math.sqrt(3)
        ),
        "the largest magnitude is taken as sqrt(2 ln n): right only for huge groups": _theory(
            largest=lambda n: math.sqrt(2 * math.log(max(n, 2)))
        ),
        "the group is ignored: the largest of three standard deviations is a guess": _theory(
            largest=lambda n: 3.0
        ),
        "the squared error: take the root": lambda bits, group: _theory()(bits, group) ** 2,
    },
    right={
        "from the mean square": lambda bits, group: float(
            np.sqrt((expected_largest(group) / (2 ** (bits - 1) - 1)) ** 2 / 12)
        ),
        "the levels counted": lambda bits, group: (
            expected_largest(group) / len(range(1, 2 ** (bits - 1))) * 12**-0.5
        ),
    },
    comparison=Comparison(terms=lambda i: 4, why="a few roundings"),
)
