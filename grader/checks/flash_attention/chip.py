"""Lesson 06: the largest block of queries that fits on chip."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from grader.checks.flash_attention.lesson import LESSON
from grader.judging.exercise import Exercise, Inputs, given
from inferlab.flash_attention import largest_block_q, on_chip_numbers


def _draw_chip(rng: np.random.Generator) -> Inputs:
    """Drawn until rounding to 16 matters, and so does each part of what is on chip."""
    while True:
        inputs = {
            "on_chip_bytes": 1024 * int(rng.integers(90, 260)),
            "d_head": int(rng.choice([48, 64, 80])),
            "block_k": int(rng.choice([32, 96, 112])),
            "bytes_per_number": int(rng.choice([1, 4])),
        }
        right = largest_block_q(**inputs)
        if all(fits(**inputs) != right for fits in SLIPS_OF_SIZE.values()):
            return inputs


def _largest(
    kept: Callable = lambda d, n: 2 * n * d,
    per_query: Callable = lambda d, n: 2 * d + n + 2,
    room: Callable = lambda m, b: m // b,
    rounded: Callable = lambda x: x // 16 * 16,
    refuse: bool = True,
):
    """largest_block_q with one step replaced."""

    def answer(on_chip_bytes, d_head, block_k, bytes_per_number=2):
        free = room(on_chip_bytes, bytes_per_number) - kept(d_head, block_k)
        block_q = int(rounded(free // per_query(d_head, block_k)))
        if block_q < 16 and refuse:
            raise ValueError("not even 16 queries fit")
        return block_q

    return answer


SLIPS_OF_SIZE = {
    "k and v are forgotten: they are on chip as well": _largest(kept=lambda d, n: 0),
    "k alone: v is on chip as well": _largest(kept=lambda d, n: n * d),
    "acc is forgotten: it has a row of d_head numbers for every query, as q has": _largest(
        per_query=lambda d, n: d + n + 2
    ),
    "the scores are forgotten: block_k numbers for every query": _largest(
        per_query=lambda d, n: 2 * d + 2
    ),
    "the on-chip memory is taken in numbers: divide its bytes by bytes_per_number": _largest(
        room=lambda m, b: m
    ),
    "bytes_per_number is ignored: 2 is only the default": _largest(room=lambda m, b: m // 2),
    "rounded to the nearest 16: what does not fit does not fit": _largest(
        rounded=lambda x: (x + 15) // 16 * 16
    ),
    "row_max and row_sum are forgotten: two numbers for every query": _largest(
        per_query=lambda d, n: 2 * d + n
    ),
    "not rounded down to a multiple of 16": _largest(rounded=lambda x: x),
    "rounded down to a power of two; a multiple of 16 is asked": _largest(
        rounded=lambda x: 1 << (int(x).bit_length() - 1) if x > 0 else 0
    ),
}


def _largest_by_search(on_chip_bytes, d_head, block_k, bytes_per_number=2):
    block_q = 0
    while on_chip_numbers(block_q + 16, block_k, d_head) * bytes_per_number <= on_chip_bytes:
        block_q += 16
    if not block_q:
        raise ValueError("nothing fits")
    return block_q


BLOCK_SIZE = Exercise(
    id="largest_block_q",
    reference=largest_block_q,
    lesson=LESSON,
    points=2,
    minutes=8,
    difficulty=2,
    hints=(
        "Bytes to numbers first. What k and v take does not depend on block_q; the rest grows with "
        "every query.",
        "One query needs 2 * d_head numbers (q, acc), block_k scores, and 2 more (row_max, "
        "row_sum). Divide what k and v leave by that, rounding down.",
        "(on_chip_bytes // bytes_per_number - 2 * block_k * d_head) // (2 * d_head + block_k + 2) "
        "// 16 * 16, and a ValueError where that is below 16.",
    ),
    cases=(
        given("48 KiB, d_head 64, 16 bit", on_chip_bytes=49_152, d_head=64, block_k=64),
        given(
            "as much as fits exactly",
            on_chip_bytes=2 * on_chip_numbers(96, 64, 128),
            d_head=128,
            block_k=64,
        ),
        given(
            "one byte less",
            on_chip_bytes=2 * on_chip_numbers(96, 64, 128) - 1,
            d_head=128,
            block_k=64,
        ),
        given(
            "float32, d_head 128", on_chip_bytes=233_472, d_head=128, block_k=32, bytes_per_number=4
        ),
        given(
            "16 queries fit exactly",
            on_chip_bytes=2 * on_chip_numbers(16, 64, 128),
            d_head=128,
            block_k=64,
        ),
        given("too small for 16 queries", on_chip_bytes=20_000, d_head=128, block_k=32),
        given("too small for k and v alone", on_chip_bytes=10_000, d_head=128, block_k=64),
        given(
            "just too small for the two numbers a row",
            on_chip_bytes=2 * (on_chip_numbers(112, 64, 64) - 8),
            d_head=64,
            block_k=64,
        ),
    ),
    draw=_draw_chip,
    wrong={
        **SLIPS_OF_SIZE,
        "what fits exactly is refused: at most on_chip_bytes, not less": _largest(
            room=lambda m, b: (m - 1) // b
        ),
        "where nothing fits a number comes back: a ValueError is asked": _largest(refuse=False),
    },
    right={
        "a search in steps of 16": _largest_by_search,
        "with NumPy's whole numbers": lambda on_chip_bytes, d_head, block_k, bytes_per_number=2: (
            _largest(rounded=lambda x: np.int64(x) - np.int64(x) % 16)(
                on_chip_bytes, d_head, block_k, bytes_per_number
            )
        ),
    },
)
