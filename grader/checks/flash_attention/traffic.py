"""Lesson 06: bytes of the score matrix, and bytes that both ways move."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from grader.checks.flash_attention.lesson import LESSON
from grader.checks.forward_pass.quiz import n_visible
from grader.judging.exercise import Exercise, Inputs, given
from inferlab.counted_memory import CountedMemory
from inferlab.flash_attention import (
    flash_traffic_bytes,
    n_key_blocks,
    score_matrix_bytes,
    standard_traffic_bytes,
    tiled_attention,
)

# ---- score_matrix_bytes -------------------------------------------------------------------------


def _scores(change: Callable[[int, int, int, int, int], Any]) -> Callable:
    """A wrong score_matrix_bytes: change(T, S, n_heads, n_sequences, bytes_per_number)."""

    def answer(T, S, n_heads=1, n_sequences=1, bytes_per_number=2):
        return change(T, S, n_heads, n_sequences, bytes_per_number)

    return answer


def _draw_scores(rng: np.random.Generator) -> Inputs:
    T = int(rng.integers(1001, 4000))
    return {
        "T": T,
        "S": T + int(rng.integers(501, 5000)),
        "n_heads": int(rng.choice([12, 28, 40])),
        "n_sequences": int(rng.integers(3, 9)),
        "bytes_per_number": int(rng.choice([4, 8])),
    }


SCORE_BYTES = Exercise(
    id="score_matrix_bytes",
    reference=score_matrix_bytes,
    lesson=LESSON,
    points=1,
    minutes=4,
    difficulty=1,
    hints=(
        "How many scores does one head of one sequence have? Then all heads, all sequences, bytes.",
        "Every query has a score for every key: T rows of S numbers. No d_head in it: a score is "
        "one number.",
        "n_sequences * n_heads * T * S * bytes_per_number",
    ),
    cases=(
        given("8,192 tokens, one head, 16 bit", T=8192, S=8192),
        given("8,192 tokens, 32 heads, 16 bit", T=8192, S=8192, n_heads=32),
        given("a chunk of 512 after 7,680, float32", T=512, S=8192, n_heads=32, bytes_per_number=4),
        given("4 sequences", T=1000, S=1000, n_heads=9, n_sequences=4),
    ),
    draw=_draw_scores,
    wrong={
        "one row of scores: every one of the T queries has its own": _scores(
            lambda T, S, h, n, b: n * h * S * b
        ),
        "T squared: T queries meet S keys, and S can be larger": _scores(
            lambda T, S, h, n, b: n * h * T * T * b
        ),
        "S squared: only the T new tokens ask": _scores(lambda T, S, h, n, b: n * h * S * S * b),
        "n_heads is forgotten: each query head has a matrix": _scores(
            lambda T, S, h, n, b: n * T * S * b
        ),
        "n_sequences is forgotten": _scores(lambda T, S, h, n, b: h * T * S * b),
        "bytes_per_number is ignored: 2 is only the default": _scores(
            lambda T, S, h, n, b: n * h * T * S * 2
        ),
        "counts numbers, not bytes": _scores(lambda T, S, h, n, b: n * h * T * S),
        "only what the mask leaves: scores that it will hide are computed and held as well": (
            _scores(lambda T, S, h, n, b: n * h * n_visible(T, S) * b)
        ),
        "half of it: scores that the causal mask will hide are computed and held as well": _scores(
            lambda T, S, h, n, b: n * h * T * S * b // 2
        ),
        "counts bits, not bytes": _scores(lambda T, S, h, n, b: n * h * T * S * b * 8),
        "8k taken as 8,000: 8,192 tokens are 8,192": _scores(
            lambda T, S, h, n, b: n * h * (T // 1000) * 1000 * (S // 1000) * 1000 * b
        ),
        "the answer is in GB: bytes are asked": _scores(
            lambda T, S, h, n, b: n * h * T * S * b / 1e9
        ),
    },
    right={
        "NumPy's product": _scores(lambda T, S, h, n, b: np.prod([T, S, h, n, b], dtype=np.int64)),
        "summed over sequences and heads": _scores(
            lambda T, S, h, n, b: sum(b * T * S for _ in range(n) for _ in range(h))
        ),
    },
)

# ---- standard_traffic_bytes ---------------------------------------------------------------------


def _draw_shape(rng: np.random.Generator) -> Inputs:
    T = int(rng.integers(100, 400))
    return {
        "T": T,
        "S": T + int(rng.integers(51, 300)),
        "d_head": int(rng.choice([48, 80, 96])),
        "n_heads": int(rng.choice([3, 5, 7])),
        "bytes_per_number": int(rng.choice([1, 4])),
    }


def _standard(rows: Callable = lambda T, S, d: 2 * T * d + 2 * S * d, times: int = 4) -> Callable:
    def answer(T, S, d_head, n_heads=1, bytes_per_number=2):
        return n_heads * (rows(T, S, d_head) + times * T * S) * bytes_per_number

    return answer


def _standard_by_steps(T, S, d_head, n_heads=1, bytes_per_number=2):
    """Moves arrays and adds up what moved."""
    q, k, v, out = T * d_head, S * d_head, S * d_head, T * d_head
    steps = [((q, k), T * S), ((T * S,), T * S), ((T * S, v), out)]
    return sum((sum(read) + written) * n_heads * bytes_per_number for read, written in steps)


def _standard_counted(T, S, d_head, n_heads=1, bytes_per_number=2):
    """Runs the three steps on empty arrays and counts."""
    shapes = {"q": (T, d_head), "k": (S, d_head), "v": (S, d_head), "out": (T, d_head)}
    arrays = {name: np.zeros(shape, np.int8) for name, shape in shapes.items()}
    memory = CountedMemory(**arrays, scores=np.zeros((T, S), np.int8))
    for loads, stored in (
        (("q", "k"), "scores"),
        (("scores",), "scores"),
        (("scores", "v"), "out"),
    ):
        for name in loads:
            memory.load(name)
        memory.store(stored, np.zeros(memory.shape(stored), np.int8))
    return (memory.loaded_bytes + memory.stored_bytes) * n_heads * bytes_per_number


STANDARD = Exercise(
    id="standard_traffic_bytes",
    reference=standard_traffic_bytes,
    lesson=LESSON,
    points=1,
    minutes=6,
    difficulty=2,
    hints=(
        "Go through the three steps of the statement and write down each array that crosses, with "
        "its shape.",
        "The scores cross twice (written by step 1, read by step 2), the weights twice (written by "
        "step 2, read by step 3). q, k, v and out cross once each.",
        "n_heads * (2 * T * d_head + 2 * S * d_head + 4 * T * S) * bytes_per_number",
    ),
    cases=(
        given("8,192 tokens, d_head 128", T=8192, S=8192, d_head=128),
        given("2 queries over 5 keys, d_head 3, one byte", T=2, S=5, d_head=3, bytes_per_number=1),
    ),
    draw=_draw_shape,
    wrong={
        "the scores and the weights cross once: each is written and read again": _standard(times=2),
        "three crossings of T x S numbers: scores and weights are each written and read, so four": (
            _standard(times=3)
        ),
        "q, k, v and out are forgotten": _standard(rows=lambda T, S, d: 0),
        "out is forgotten": _standard(rows=lambda T, S, d: T * d + 2 * S * d),
        "v is forgotten": _standard(rows=lambda T, S, d: 2 * T * d + S * d),
        "k and v have S rows, not T": _standard(rows=lambda T, S, d: 4 * T * d),
        "q and out have T rows, not S": _standard(rows=lambda T, S, d: 4 * S * d),
        "q, k, v and out cross twice; once each is enough": _standard(
            rows=lambda T, S, d: 4 * (T + S) * d
        ),
        "T squared scores: T queries meet S keys": _standard(
            rows=lambda T, S, d: 2 * (T + S) * d + 4 * T * (T - S)
        ),
        "only what the mask leaves: hidden scores are written and read as well": _standard(
            rows=lambda T, S, d: 2 * (T + S) * d - 4 * (T * S - n_visible(T, S))
        ),
        "n_heads is forgotten": lambda T, S, d_head, n_heads=1, bytes_per_number=2: (
            standard_traffic_bytes(T, S, d_head, 1, bytes_per_number)
        ),
        "bytes_per_number is ignored: 2 is only the default": (
            lambda T, S, d_head, n_heads=1, bytes_per_number=2: standard_traffic_bytes(
                T, S, d_head, n_heads, 2
            )
        ),
    },
    right={"step by step": _standard_by_steps, "counted": _standard_counted},
)

# ---- flash_traffic_bytes ------------------------------------------------------------------------


def _draw_traffic(rng: np.random.Generator) -> Inputs:
    """Blocks divide neither T nor S, and T is smaller than S."""
    block_q, block_k = int(rng.integers(6, 11)), int(rng.integers(4, 9))
    T = block_q * int(rng.integers(3, 6)) + int(rng.integers(1, block_q))
    S = T + block_k * int(rng.integers(3, 6))
    S += 1 + int(rng.integers(block_k - 1)) - S % block_k  # block_k does not divide it
    return {
        "T": T,
        "S": max(S, T + 7),
        "d_head": int(rng.choice([5, 12, 20])),
        "block_q": block_q,
        "block_k": block_k,
        "n_heads": int(rng.choice([3, 5])),
        "bytes_per_number": int(rng.choice([1, 4])),
        "causal": True,
    }


def _traffic(
    keys: Callable = lambda start, end, T, S, n: min(S, n_key_blocks(end, T, S, n) * n),
    free: Callable = lambda T, S, bq, n: math.ceil(T / bq) * S,
    rows: Callable = lambda T: 2 * T,
    both: int = 2,
    heads: Callable = lambda h: h,
    size: Callable = lambda b: b,
    ends: Callable = lambda T, bq: range(0, T, bq),
):
    """flash_traffic_bytes with one step replaced."""

    def answer(T, S, d_head, block_q, block_k, n_heads=1, bytes_per_number=2, causal=True):
        loaded = free(T, S, block_q, block_k)
        if causal:
            starts = ends(T, block_q)
            loaded = sum(keys(a, min(a + block_q, T), T, S, block_k) for a in starts)
        numbers = (rows(T) + both * loaded) * d_head
        return heads(n_heads) * numbers * size(bytes_per_number)

    return answer


def _traffic_halved(T, S, d_head, block_q, block_k, n_heads=1, bytes_per_number=2, causal=True):
    loaded = 2 * math.ceil(T / block_q) * S // (2 if causal else 1)
    return n_heads * (2 * T + loaded) * d_head * bytes_per_number


def _traffic_counted(T, S, d_head, block_q, block_k, n_heads=1, bytes_per_number=2, causal=True):
    """Runs the loop on numbers of one byte and counts."""
    q, k = np.zeros((n_heads, T, d_head)), np.zeros((n_heads, S, d_head))
    memory = CountedMemory(q=q, k=k, v=k, out=q)
    tiled_attention(memory, block_q, block_k, causal)
    return (memory.loaded_bytes + memory.stored_bytes) * bytes_per_number // 8


def _traffic_by_tile(T, S, d_head, block_q, block_k, n_heads=1, bytes_per_number=2, causal=True):
    numbers = 0
    for start in range(0, T, block_q):
        n_rows = len(range(T)[start : start + block_q])
        numbers += 2 * n_rows * d_head
        for first in range(0, S, block_k):
            if not causal or first <= S - T + start + n_rows - 1:
                numbers += 2 * len(range(S)[first : first + block_k]) * d_head
    return numbers * n_heads * bytes_per_number


TRAFFIC = Exercise(
    id="flash_traffic_bytes",
    reference=flash_traffic_bytes,
    lesson=LESSON,
    points=3,
    minutes=12,
    difficulty=3,
    uses=("n_key_blocks",),
    hints=(
        "Count rows of d_head numbers. q and out: T rows each, once. k and v: for each block of "
        "queries, as many rows as its key blocks have.",
        "Keys loaded for the queries start ... end - 1, causal: n_key_blocks(end, T, S, block_k) * "
        "block_k, but no more than S. Not causal: S. Sum over range(0, T, block_q).",
        "n_heads * (2 * T * d_head + 2 * keys_loaded * d_head) * bytes_per_number; in the sum "
        "end = min(start + block_q, T).",
    ),
    cases=(
        given("8 tokens, blocks of 4", T=8, S=8, d_head=2, block_q=4, block_k=4),
        given(
            "8 tokens, blocks of 4, no mask", T=8, S=8, d_head=2, block_q=4, block_k=4, causal=False
        ),
        given(
            "8,192 tokens, blocks of 128 and 64",
            T=8192,
            S=8192,
            d_head=128,
            block_q=128,
            block_k=64,
        ),
        given(
            "no mask, blocks that divide nothing",
            T=13,
            S=29,
            d_head=3,
            block_q=5,
            block_k=4,
            n_heads=2,
            causal=False,
        ),
        given("one decode step", T=1, S=1000, d_head=64, block_q=16, block_k=64),
    ),
    draw=_draw_traffic,
    wrong={
        "k and v are loaded once in all; every block of queries loads them again": _traffic(
            keys=lambda start, end, T, S, n: S if start == 0 else 0, free=lambda T, S, bq, n: S
        ),
        "every query loads all its keys for itself: one load serves a block of queries": _traffic(
            ends=lambda T, bq: range(T),
            keys=lambda start, end, T, S, n: min(S, n_key_blocks(start + 1, T, S, n) * n),
            free=lambda T, S, bq, n: T * S,
        ),
        "key blocks wholly in the future are counted: they are never loaded": _traffic(
            keys=lambda start, end, T, S, n: S
        ),
        "the last key block is counted whole; it has fewer rows where block_k does not divide S": (
            _traffic(
                keys=lambda start, end, T, S, n: n_key_blocks(end, T, S, n) * n,
                free=lambda T, S, bq, n: math.ceil(T / bq) * math.ceil(S / n) * n,
            )
        ),
        "half of the traffic without a mask: tiles on the edge are loaded whole, so count blocks": (
            _traffic_halved
        ),
        "the key blocks are those of the tile's first query; its last one sees the most": _traffic(
            keys=lambda start, end, T, S, n: min(S, n_key_blocks(start + 1, T, S, n) * n)
        ),
        "counts the keys seen; key blocks are loaded whole, hidden keys and all": _traffic(
            keys=lambda start, end, T, S, n: S - T + end
        ),
        "the last, shorter block of queries is left out": _traffic(
            ends=lambda T, bq: range(0, T - T % bq or T, bq),
            free=lambda T, S, bq, n: max(1, T // bq) * S,
        ),
        "the keys before the queries are forgotten: query t stands at position S - T + t": _traffic(
            keys=lambda start, end, T, S, n: min(S, math.ceil(end / n) * n)
        ),
        "keys or values alone: both are loaded": _traffic(both=1),
        "out is forgotten: it is stored once": _traffic(rows=lambda T: T),
        "q and out are forgotten": _traffic(rows=lambda T: 0),
        "n_heads is forgotten": _traffic(heads=lambda h: 1),
        "bytes_per_number is ignored: 2 is only the default": _traffic(size=lambda b: 2),
        "causal is ignored: without a mask every block of queries loads all keys": (
            lambda T, S, d_head, block_q, block_k, n_heads=1, bytes_per_number=2, causal=True: (
                flash_traffic_bytes(T, S, d_head, block_q, block_k, n_heads, bytes_per_number)
            )
        ),
    },
    right={
        "tiled_attention run and counted": _traffic_counted,
        "tile by tile": _traffic_by_tile,
    },
)
