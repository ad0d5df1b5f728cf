"""Lesson 10: pages that tokens take, and the slots in them that hold nothing."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from grader.checks.batching.lesson import LESSON
from grader.judging.compare import Comparison
from grader.judging.exercise import Exercise, Inputs, given
from inferlab.paging import pages_needed, wasted_share


def _draw_pages(rng: np.random.Generator) -> Inputs:
    page_size = int(rng.choice([8, 16, 32]))
    n_tokens = page_size * int(rng.integers(20, 90)) + int(rng.integers(1, page_size))
    return {"n_tokens": n_tokens, "page_size": page_size}


def _pages(count: Callable[[int, int], object], check: Callable = lambda n, b: n >= 0 and b >= 1):
    def answer(n_tokens, page_size):
        if not check(n_tokens, page_size):
            raise ValueError("n_tokens must be at least 0 and page_size at least 1")
        return count(n_tokens, page_size)

    return answer


def _count_off(n: int, b: int) -> int:
    n_pages = 0
    while n > 0:
        n, n_pages = n - b, n_pages + 1
    return n_pages


PAGES = Exercise(
    id="pages_needed",
    reference=pages_needed,
    lesson=LESSON,
    points=1,
    minutes=4,
    difficulty=1,
    hints=(
        "17 tokens in pages of 16: the second page holds one token, and it is a page all the same.",
        "Divide and round up. In whole numbers: math.ceil of a float goes wrong above 2**53.",
        "-(-n_tokens // page_size), or (n_tokens + page_size - 1) // page_size; before it the "
        "ValueError.",
    ),
    cases=(
        given("17 tokens by 16", n_tokens=17, page_size=16),
        given("16 tokens by 16: exactly full", n_tokens=16, page_size=16),
        given("no token", n_tokens=0, page_size=16),
        given("1,000 tokens by 16", n_tokens=1000, page_size=16),
        given("pages of one token", n_tokens=7, page_size=1),
        given("a negative number of tokens: ValueError", n_tokens=-1, page_size=16),
        given("pages of no token: ValueError", n_tokens=5, page_size=0),
        given("pages of a negative size: ValueError", n_tokens=5, page_size=-4),
    ),
    draw=_draw_pages,
    n_draws=8,
    wrong={
        "rounded down: the tokens of the last, partly filled page have no place": _pages(
            lambda n, b: n // b
        ),
        "one page too many where the last one is exactly full": _pages(lambda n, b: n // b + 1),
        "rounded to the nearest: a page with few tokens is a page too": _pages(
            lambda n, b: round(n / b)
        ),
        "at least one page: no token needs none": _pages(lambda n, b: max(1, -(-n // b))),
        "a float is returned: pages are counted in whole numbers": _pages(
            lambda n, b: float(-(-n // b))
        ),
        "the tokens left over are returned, not the pages": _pages(lambda n, b: n % b),
        "slots are returned, not pages": _pages(lambda n, b: b * -(-n // b)),
        "no token is refused: 0 tokens take 0 pages": _pages(
            lambda n, b: -(-n // b), lambda n, b: n >= 1 and b >= 1
        ),
        "a negative number of tokens is accepted: raise ValueError": _pages(
            lambda n, b: -(-n // b), lambda n, b: b >= 1
        ),
        "a page_size below 1 is accepted: raise ValueError": _pages(
            lambda n, b: -(-n // b) if b else 0, lambda n, b: n >= 0
        ),
    },
    right={
        "math.ceil": _pages(lambda n, b: math.ceil(n / b)),
        "divmod": _pages(lambda n, b: sum((divmod(n, b)[0], divmod(n, b)[1] > 0))),
        "counted off": _pages(_count_off),
        "a NumPy number": _pages(lambda n, b: np.int64(n + b - 1) // b),
    },
)


def _draw_waste(rng: np.random.Generator) -> Inputs:
    n = int(rng.integers(4, 9))
    page_size = int(rng.choice([8, 16, 32]))
    return {"lengths": rng.integers(1, 200, n).tolist(), "page_size": page_size}


def _full(lengths: Sequence[int], b: int) -> list[int]:
    return [b * -(-n // b) for n in lengths]


def _waste(share: Callable[[Sequence[int], int], float], empty: float | None = 0.0):
    def answer(lengths, page_size):
        if empty is not None and sum(lengths) == 0:
            return empty
        return share(lengths, page_size)

    return answer


def _waste_by_page(lengths, b):
    """Page by page: how full is each?"""
    filled = [min(b, n - start) for n in lengths for start in range(0, n, b)]
    return sum(b - n for n in filled) / (b * len(filled))


def _waste_numpy(lengths, b):
    n = np.asarray(lengths)
    slots = np.ceil(n / b) * b
    return (slots - n).sum() / slots.sum()


WASTE = Exercise(
    id="wasted_share",
    reference=wasted_share,
    lesson=LESSON,
    points=2,
    minutes=6,
    difficulty=2,
    uses=("pages_needed",),
    hints=(
        "Two sums over all sequences: the slots of their pages, and the tokens in them.",
        "Slots are page_size times the pages of each sequence; round up for each sequence, then "
        "add. What is not a token is wasted.",
        "n_slots = page_size * sum(pages_needed(n, page_size) for n in lengths); "
        "1 - sum(lengths) / n_slots, and 0.0 where n_slots is 0.",
    ),
    cases=(
        given("17 and 16 tokens by 16", lengths=[17, 16], page_size=16),
        given("a page of 2,048 slots for everyone", lengths=[300, 41, 1100], page_size=2048),
        given("pages of one token: nothing is wasted", lengths=[5, 9], page_size=1),
        given("no sequence", lengths=[], page_size=16),
        given("one of them has no token yet", lengths=[0, 20, 3], page_size=8),
        given("none has a token", lengths=[0, 0], page_size=8),
    ),
    draw=_draw_waste,
    comparison=Comparison(
        terms=lambda i: 8, magnitude=lambda i: 1.0, why="a quotient near 1, taken from 1"
    ),
    wrong={
        "the tokens of all sequences are put together first: no page holds two sequences": _waste(
            lambda ns, b: 1 - sum(ns) / (b * -(-sum(ns) // b))
        ),
        "the mean of each sequence's own share: long ones have more slots": _waste(
            lambda ns, b: float(np.mean([1 - n / (b * -(-n // b)) if n else 0 for n in ns]))
        ),
        "relative to the tokens; the share is of the slots": _waste(
            lambda ns, b: sum(_full(ns, b)) / sum(ns) - 1
        ),
        "the share that is used, not the wasted one": _waste(
            lambda ns, b: sum(ns) / sum(_full(ns, b)), 1.0
        ),
        "a percentage: a share lies between 0 and 1": _waste(
            lambda ns, b: 100 * (1 - sum(ns) / sum(_full(ns, b)))
        ),
        "the share of the last pages only: the slots are those of all pages": _waste(
            lambda ns, b: sum(-n % b for n in ns) / (b * sum(n > 0 for n in ns))
        ),
        "slots, not their share": _waste(lambda ns, b: float(sum(_full(ns, b)) - sum(ns))),
        "rounded down to full pages: the last page is partly filled, and held": _waste(
            lambda ns, b: 1 - sum(ns) / max(1, sum(n // b * b for n in ns))
        ),
        "a page more for each sequence that is exactly full": _waste(
            lambda ns, b: 1 - sum(ns) / sum(b * (n // b + 1) for n in ns)
        ),
        "the expected (page_size - 1) / 2 a sequence: these lengths are given": _waste(
            lambda ns, b: len(ns) * (b - 1) / 2 / sum(_full(ns, b))
        ),
        "pages and slots are mixed: tokens are divided by the number of pages": _waste(
            lambda ns, b: 1 - sum(ns) / sum(-(-n // b) for n in ns)
        ),
        "divides by zero where nothing is held: the answer there is 0.0": _waste(
            lambda ns, b: 1 - sum(ns) / sum(_full(ns, b)), None
        ),
    },
    right={
        "page by page": _waste(_waste_by_page),
        "NumPy, ceil": _waste(_waste_numpy),
        "by what is missing to the next multiple": _waste(
            lambda ns, b: sum(-n % b for n in ns) / sum(n + -n % b for n in ns)
        ),
    },
)
