"""Lesson 01: what one matrix product costs."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from numbers import Real
from typing import Any

import numpy as np

from grader.checks.roofline.lesson import LESSON
from grader.judging.compare import Comparison
from grader.judging.exercise import Exercise, Inputs, given
from inferlab.roofline import matmul_bytes, matmul_flops, matmul_intensity


def as_float(answer: Any, inputs: Inputs) -> Any:
    """Observe a number as a float: bytes may be whole or not, as bytes_per_weight is."""
    value = answer(**inputs)
    return float(value) if isinstance(value, Real) and not isinstance(value, bool) else value


QUOTIENT = Comparison(
    terms=lambda inputs: 4, why="products, sums and a quotient of whole numbers, in any order"
)


def _draw_sizes(rng: np.random.Generator) -> Inputs:
    """Three sizes that differ by more than any one of them is from a double of another."""
    n_rows = int(rng.integers(3, 9))
    d_in = int(rng.integers(20, 40))
    return {"n_rows": n_rows, "d_in": d_in, "d_out": 3 * d_in + int(rng.integers(1, 9))}


FLOPS = Exercise(
    id="matmul_flops",
    reference=matmul_flops,
    lesson=LESSON,
    points=1,
    minutes=4,
    difficulty=1,
    hints=(
        "How many numbers does the result have? And what does each of them cost?",
        "The result has n_rows * d_out numbers. Each is a sum of d_in products: d_in multiplies "
        "and, by convention, d_in adds.",
        "2 * n_rows * d_in * d_out",
    ),
    cases=(
        given("(3, 4) @ (4, 5)", n_rows=3, d_in=4, d_out=5),
        given("one row", n_rows=1, d_in=4096, d_out=14336),
        given("a prompt of 2,000 tokens", n_rows=2000, d_in=4096, d_out=14336),
    ),
    draw=_draw_sizes,
    wrong={
        "the 2 is missing: a multiply and an add are two operations": (
            lambda n_rows, d_in, d_out: n_rows * d_in * d_out
        ),
        "n_rows is forgotten: every row is multiplied by every weight": (
            lambda n_rows, d_in, d_out: 2 * d_in * d_out
        ),
        "d_in is forgotten: each result is a sum of d_in products": (
            lambda n_rows, d_in, d_out: 2 * n_rows * d_out
        ),
        "d_out is forgotten: each row of x meets all d_out columns of w": (
            lambda n_rows, d_in, d_out: 2 * n_rows * d_in
        ),
        "counts the numbers of the three matrices, not the operations": (
            lambda n_rows, d_in, d_out: n_rows * d_in + d_in * d_out + n_rows * d_out
        ),
        "takes w as square, d_in by d_in; it has d_out columns": (
            lambda n_rows, d_in, d_out: 2 * n_rows * d_in * d_in
        ),
        "one add too few for each result: the convention is 2 for each product": (
            lambda n_rows, d_in, d_out: n_rows * d_out * (2 * d_in - 1)
        ),
        "three operations for each product: one multiply and one add are two": (
            lambda n_rows, d_in, d_out: 3 * n_rows * d_in * d_out
        ),
        "in TFLOP: FLOPs are asked": lambda n_rows, d_in, d_out: 2 * n_rows * d_in * d_out / 1e12,
    },
    right={
        "result by result": lambda n_rows, d_in, d_out: sum(
            d_out * (d_in + d_in) for _ in range(n_rows)
        ),
        "in NumPy's 64-bit integers": lambda n_rows, d_in, d_out: np.prod(
            [2, n_rows, d_in, d_out], dtype=np.int64
        ),
        "weights first": lambda n_rows, d_in, d_out: (d_in * d_out) * n_rows << 1,
    },
)

# ---- bytes --------------------------------------------------------------------------------------

Parts = Callable[[int, int, int, float, float], Any]


def _moved(change: Parts) -> Callable:
    """An answer from change(n_rows, d_in, d_out, bytes_per_number, bytes_per_weight)."""

    def answer(n_rows, d_in, d_out, bytes_per_number=2, bytes_per_weight=None):
        weight = bytes_per_number if bytes_per_weight is None else bytes_per_weight
        return change(n_rows, d_in, d_out, bytes_per_number, weight)

    return answer


def _draw_moved(rng: np.random.Generator) -> Inputs:
    """The two widths of a number differ, and neither is the default or 1."""
    widths = {"bytes_per_number": 4, "bytes_per_weight": float(rng.choice([0.5, 1.5]))}
    return {**_draw_sizes(rng), **widths}


BYTE_CASES = (
    given("(3, 4) @ (4, 5) in bf16", n_rows=3, d_in=4, d_out=5),
    given("(3, 4) @ (4, 5), 8-bit weights", n_rows=3, d_in=4, d_out=5, bytes_per_weight=1),
    given("one row, float32", n_rows=1, d_in=4096, d_out=14336, bytes_per_number=4),
    given("2,000 rows, 4-bit weights", n_rows=2000, d_in=4096, d_out=4096, bytes_per_weight=0.5),
    given("half a byte is left over", n_rows=1, d_in=1, d_out=3, bytes_per_weight=0.5),
)

BYTES = Exercise(
    id="matmul_bytes",
    reference=matmul_bytes,
    lesson=LESSON,
    points=1,
    minutes=6,
    difficulty=2,
    hints=(
        "Three matrices cross between memory and processor: two are read, one is written. Count "
        "the numbers of each.",
        "x has n_rows * d_in numbers and the result n_rows * d_out, each of bytes_per_number; w "
        "has d_in * d_out, of bytes_per_weight, or of bytes_per_number where that is None.",
        "weight = bytes_per_number if bytes_per_weight is None else bytes_per_weight; then "
        "(n_rows * d_in + n_rows * d_out) * bytes_per_number + d_in * d_out * weight",
    ),
    cases=BYTE_CASES,
    draw=_draw_moved,
    drive=as_float,
    comparison=QUOTIENT,
    wrong={
        "the result is left out: it must be written": _moved(
            lambda n, i, o, b, w: n * i * b + i * o * w
        ),
        "x is left out: it must be read": _moved(lambda n, i, o, b, w: n * o * b + i * o * w),
        "the weights alone: x and the result move too": _moved(lambda n, i, o, b, w: i * o * w),
        "the weights are left out": _moved(lambda n, i, o, b, w: n * (i + o) * b),
        "the weights are read once for every row; they are read once and used n_rows times": (
            _moved(lambda n, i, o, b, w: n * (i + o) * b + n * i * o * w)
        ),
        "the result is counted twice; it is written once": _moved(
            lambda n, i, o, b, w: n * (i + 2 * o) * b + i * o * w
        ),
        "bytes_per_weight is ignored: w may be stored in fewer bytes than x": _moved(
            lambda n, i, o, b, w: (n * (i + o) + i * o) * b
        ),
        "bytes_per_weight is used for x and the result too": _moved(
            lambda n, i, o, b, w: (n * (i + o) + i * o) * w
        ),
        "the result takes bytes_per_weight; it is stored like x": _moved(
            lambda n, i, o, b, w: n * i * b + i * o * w + n * o * w
        ),
        "counts numbers, not bytes": _moved(lambda n, i, o, b, w: n * (i + o) + i * o),
        "cut off to whole bytes: two weights of 4 bits share one, so half a byte is possible": (
            _moved(lambda n, i, o, b, w: int(n * (i + o) * b + i * o * w))
        ),
        "counts bits, not bytes": _moved(lambda n, i, o, b, w: 8 * (n * (i + o) * b + i * o * w)),
        "always 2 bytes for x and the result: 2 is only the default": _moved(
            lambda n, i, o, b, w: n * (i + o) * 2 + i * o * w
        ),
        "2 bytes a weight where bytes_per_weight is None: it means bytes_per_number": (
            lambda n_rows, d_in, d_out, bytes_per_number=2, bytes_per_weight=None: (
                n_rows * (d_in + d_out) * bytes_per_number
                + d_in * d_out * (2 if bytes_per_weight is None else bytes_per_weight)
            )
        ),
    },
    right={
        "matrix by matrix": _moved(
            lambda n, i, o, b, w: sum(
                r * c * size for r, c, size in [(n, i, b), (i, o, w), (n, o, b)]
            )
        ),
        "in exact fractions": _moved(
            lambda n, i, o, b, w: float(Fraction(n * (i + o)) * Fraction(b) + Fraction(w) * i * o)
        ),
        "a dot product in NumPy": _moved(
            lambda n, i, o, b, w: np.dot([n * i, i * o, n * o], [b, w, b])
        ),
    },
)

# ---- intensity ----------------------------------------------------------------------------------


def _all_bytes(n: int, i: int, o: int, b: float, w: float) -> float:
    return n * (i + o) * b + i * o * w


INTENSITY = Exercise(
    id="matmul_intensity",
    reference=matmul_intensity,
    lesson=LESSON,
    points=1,
    minutes=4,
    difficulty=1,
    uses=("matmul_flops", "matmul_bytes"),
    hints=(
        "You have both counts already. Which one stands above the line?",
        "FLOPs for each byte: matmul_flops divided by matmul_bytes. Hand the two widths on.",
        "matmul_flops(n_rows, d_in, d_out) / matmul_bytes(n_rows, d_in, d_out, bytes_per_number, "
        "bytes_per_weight)",
    ),
    cases=(
        *BYTE_CASES,
        given("2,000 rows: not 2,000", n_rows=2000, d_in=4096, d_out=4096),
    ),
    draw=_draw_moved,
    drive=as_float,
    comparison=QUOTIENT,
    wrong={
        "upside down: bytes for each FLOP": _moved(
            lambda n, i, o, b, w: _all_bytes(n, i, o, b, w) / (2 * n * i * o)
        ),
        "n_rows itself: that leaves out that x and the result move too": _moved(
            lambda n, i, o, b, w: n
        ),
        "divided by the bytes of the weights alone: x and the result move too": _moved(
            lambda n, i, o, b, w: 2 * n / w
        ),
        "one operation for each product: a multiply and an add are two": _moved(
            lambda n, i, o, b, w: n * i * o / _all_bytes(n, i, o, b, w)
        ),
        "FLOPs for each number: divide by bytes": _moved(
            lambda n, i, o, b, w: 2 * n * i * o / (n * (i + o) + i * o)
        ),
        "rounded down by //": _moved(
            lambda n, i, o, b, w: 2 * n * i * o // _all_bytes(n, i, o, b, w)
        ),
        "bytes_per_weight is not handed on": _moved(
            lambda n, i, o, b, w: 2 * n * i * o / _all_bytes(n, i, o, b, b)
        ),
        "bytes_per_number is not handed on: 2 is only the default": _moved(
            lambda n, i, o, b, w: 2 * n * i * o / _all_bytes(n, i, o, 2, w)
        ),
        "the result is left out of the bytes": _moved(
            lambda n, i, o, b, w: 2 * n * i * o / (n * i * b + i * o * w)
        ),
    },
    right={
        "one formula": _moved(lambda n, i, o, b, w: 2 / ((1 / i + 1 / o) * b + w / n)),
        "in exact fractions": _moved(
            lambda n, i, o, b, w: float(
                Fraction(2 * n * i * o) / (n * (i + o) * Fraction(b) + i * o * Fraction(w))
            )
        ),
        "in NumPy": _moved(
            lambda n, i, o, b, w: np.float64(2 * n * i * o) / np.dot([n * (i + o), i * o], [b, w])
        ),
    },
)
