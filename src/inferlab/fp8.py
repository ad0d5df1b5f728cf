"""Numbers of 8 bits with a floating point: a sign, some bits of exponent, two or three of mantissa.

Source: Micikevicius et al. 2022, "FP8 Formats for Deep Learning" (arXiv 2209.05433), section 3.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class FloatFormat(NamedTuple):
    """What decides which numbers a small floating-point format has.

    Between 2**e and 2**(e + 1) its numbers are 2**(e - n_mantissa) apart, for every e from
    min_exponent up to that of largest. Below 2**min_exponent they keep the spacing that they have
    just above it, down to zero: these are the subnormal numbers.
    """

    n_mantissa: int
    min_exponent: int
    largest: float


FORMATS = {
    "e4m3": FloatFormat(n_mantissa=3, min_exponent=-6, largest=448.0),
    "e5m2": FloatFormat(n_mantissa=2, min_exponent=-14, largest=57_344.0),
}


def round_fp8(x: np.ndarray, form: str = "e4m3") -> np.ndarray:
    """The nearest number of an 8-bit floating-point format, in the number type of x.

    FORMATS[form] has n_mantissa, min_exponent and largest. Let e be the exponent of a number, the
    whole number with 2**e <= |x| < 2**(e + 1), but at least min_exponent. The step there is
    2**(e - n_mantissa): divide by it, round (a half to the even whole number, as np.round does),
    multiply by it again. Then saturate: what lies beyond largest, infinity included, becomes
    largest with its sign. nan stays nan.

    np.frexp(x) gives (m, p) with x = m * 2**p and 0.5 <= |m| < 1, so e = p - 1: exact, where a
    rounded np.log2 is not. np.ldexp(1.0, n) is 2**n.

    x: any shape -> the same shape
    Example: e4m3: 1.06 -> 1.0 (step 0.125), 20 -> 20, 21 -> 20 (step 2, 10.5 to the even 10),
    500 -> 448, 0.001 -> 2**-9 (step 2**-9).
    Raises ValueError for a form that is not in FORMATS.
    Source: arXiv 2209.05433, section 3; overflow there may saturate or not: here it does.
    """
    if form not in FORMATS:
        raise ValueError(f"form must be one of {', '.join(FORMATS)}, given {form!r}")
    n_mantissa, min_exponent, largest = FORMATS[form]
    exponent = np.maximum(np.frexp(x)[1] - 1, min_exponent)
    step = np.ldexp(1.0, exponent - n_mantissa)
    return np.clip(np.round(x / step) * step, -largest, largest).astype(x.dtype)


def all_values(form: str) -> np.ndarray:
    """Every finite number of a format that is not negative, ascending from 0."""
    n_mantissa, min_exponent, largest = FORMATS[form]
    top_exponent = int(np.frexp(largest)[1]) - 1
    fractions = np.arange(2**n_mantissa) / 2**n_mantissa
    subnormal = fractions * 2.0**min_exponent
    normal = [(1 + fractions) * 2.0**e for e in range(min_exponent, top_exponent + 1)]
    values = np.concatenate([subnormal, *normal])
    return values[values <= largest]
