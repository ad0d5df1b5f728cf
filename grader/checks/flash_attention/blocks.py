"""Lesson 06: how many blocks of keys are needed, and what the causal mask makes of each tile."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from grader.checks.flash_attention.lesson import LESSON
from grader.judging.exercise import Exercise, Inputs, given
from inferlab.flash_attention import count_tiles, n_key_blocks
from inferlab.operators import causal_mask

# ---- n_key_blocks -------------------------------------------------------------------------------


def _draw_sizes(rng: np.random.Generator) -> Inputs:
    """T smaller than S; the last block that the tile sees is seen by less than half."""
    while True:
        block_k, T = int(rng.integers(6, 12)), int(rng.integers(40, 70))
        S = T + int(rng.integers(25, 60))
        query_end = int(rng.integers(8, T - 2 * block_k))
        twice = math.ceil((S - T) / block_k) + math.ceil(query_end / block_k)
        if twice == n_key_blocks(query_end, T, S, block_k):
            continue
        if S % block_k and 1 < (S - T + query_end) % block_k < block_k / 2:
            return {"query_end": query_end, "T": T, "S": S, "block_k": block_k}


def _seen(query_end: int, T: int, S: int) -> int:
    return S - T + query_end


KEY_BLOCKS = Exercise(
    id="n_key_blocks",
    reference=n_key_blocks,
    lesson=LESSON,
    points=1,
    minutes=6,
    difficulty=2,
    hints=(
        "First count keys, then blocks. How many keys does the last query of the tile see?",
        "It stands at position S - T + query_end - 1 and sees that one as well: S - T + query_end "
        "keys.",
        "math.ceil((S - T + query_end) / block_k), or -(-(S - T + query_end) // block_k)",
    ),
    cases=(
        given("8 tokens, the first tile", query_end=4, T=8, S=8, block_k=4),
        given("8 tokens, the last tile", query_end=8, T=8, S=8, block_k=4),
        given("2 queries over 7 keys, the first query", query_end=1, T=2, S=7, block_k=3),
        given("the last query, a shorter last block", query_end=9, T=9, S=14, block_k=4),
        given("one decode step over 1,000 keys", query_end=1, T=1, S=1000, block_k=64),
        given("one key of the last block is seen", query_end=4, T=9, S=14, block_k=4),
        given("the tile ends where a block ends", query_end=4, T=9, S=17, block_k=6),
    ),
    draw=_draw_sizes,
    wrong={
        "rounded down: a block counts as soon as one key of it is seen": (
            lambda query_end, T, S, block_k: _seen(query_end, T, S) // block_k
        ),
        "the keys before the queries are forgotten: query t stands at position S - T + t": (
            lambda query_end, T, S, block_k: math.ceil(query_end / block_k)
        ),
        "all blocks: those wholly in the future are not needed": (
            lambda query_end, T, S, block_k: math.ceil(S / block_k)
        ),
        "one block too many where the last query's keys just fill their block": (
            lambda query_end, T, S, block_k: _seen(query_end, T, S) // block_k + 1
        ),
        "the tile's last query sees its own key too: S - T + query_end keys in all": (
            lambda query_end, T, S, block_k: math.ceil((_seen(query_end, T, S) - 1) / block_k)
        ),
        "rounded up twice, before the queries and among them: round up once, at the end": (
            lambda query_end, T, S, block_k: (
                math.ceil((S - T) / block_k) + math.ceil(query_end / block_k)
            )
        ),
        "counts keys, not blocks of keys": (
            lambda query_end, T, S, block_k: _seen(query_end, T, S)
        ),
        "the mask hangs from the wrong corner: the offset is S - T, not T - S": (
            lambda query_end, T, S, block_k: max(1, math.ceil((T - S + query_end) / block_k))
        ),
        "rounded to the nearest block; round up": (
            lambda query_end, T, S, block_k: round(_seen(query_end, T, S) / block_k)
        ),
    },
    right={
        "read off the mask": lambda query_end, T, S, block_k: int(
            np.flatnonzero(causal_mask(T, S)[query_end - 1])[-1] // block_k + 1
        ),
        "whole numbers only": lambda query_end, T, S, block_k: -(-(S - T + query_end) // block_k),
        "counted block by block": lambda query_end, T, S, block_k: sum(
            first <= S - T + query_end - 1 for first in range(0, S, block_k)
        ),
    },
)

# ---- count_tiles --------------------------------------------------------------------------------


def _draw_tiles(rng: np.random.Generator) -> Inputs:
    block_q, block_k = int(rng.integers(4, 9)), int(rng.integers(3, 6))
    T = block_q * int(rng.integers(3, 6)) + 1  # the last query is a block of its own
    S = T + block_k * int(rng.integers(2, 4)) + int(rng.integers(1, block_k))
    S += S % block_k == 0  # and the last block of keys is shorter
    return {"T": T, "S": S, "block_q": block_q, "block_k": block_k}


def _tiles_by_mask(
    T: int, S: int, block_q: int, block_k: int, mask: Callable = causal_mask
) -> tuple[int, int, int]:
    """Cuts the mask itself into tiles."""
    visible = mask(T, S)
    whole = partly = skipped = 0
    for i in range(0, T, block_q):
        for j in range(0, S, block_k):
            tile = visible[i : i + block_q, j : j + block_k]
            whole += bool(tile.all())
            skipped += not tile.any()
            partly += bool(tile.any() and not tile.all())
    return whole, partly, skipped


def _tiles_by_corners(T, S, block_q, block_k):
    """The lower left corner of a tile is seen if anything is, the upper right one last."""
    found = [0, 0, 0]
    for first in range(0, T, block_q):
        for left in range(0, S, block_k):
            last, right = min(first + block_q, T) - 1, min(left + block_k, S) - 1
            anything, everything = left <= S - T + last, right <= S - T + first
            found[0 if everything else 1 if anything else 2] += 1
    return found


def _regrouped(change: Callable[[int, int, int], tuple[int, int, int]]) -> Callable:
    """The right counts, sorted wrongly: change(whole, masked in part, skipped)."""

    def answer(T, S, block_q, block_k):
        return change(*_tiles_by_mask(T, S, block_q, block_k))

    return answer


def _tiler(
    whole: Callable = lambda start, end, T, S, n: S - T + start + 1,
    needed: Callable = lambda start, end, T, S: S - T + end,
    n_rows: Callable = math.ceil,
    short_is_whole: bool = True,
):
    """count_tiles with another idea of which keys are seen by all, or by one, of a tile."""

    def answer(T, S, block_q, block_k):
        n_blocks = math.ceil(S / block_k)
        n_whole = n_needed = n_tiles = 0
        for i in range(n_rows(T / block_q)):
            start, end = i * block_q, min((i + 1) * block_q, T)
            seen = whole(start, end, T, S, block_k)
            n_whole += n_blocks if seen >= S and short_is_whole else min(seen, S) // block_k
            n_needed += min(n_blocks, math.ceil(max(1, needed(start, end, T, S)) / block_k))
            n_tiles += n_blocks
        return n_whole, n_needed - n_whole, n_tiles - n_needed

    return answer


COUNT_TILES = Exercise(
    id="count_tiles",
    reference=count_tiles,
    lesson=LESSON,
    points=2,
    minutes=10,
    difficulty=3,
    uses=("n_key_blocks",),
    hints=(
        "One loop over the blocks of queries: range(0, T, block_q). For each, three numbers of key "
        "blocks: all there are, those needed, and those without a mask.",
        "needed is n_key_blocks(min(start + block_q, T), T, S, block_k). The first query of the "
        "tile sees S - T + start + 1 keys: the blocks that lie wholly among them are whole.",
        "whole += (S - T + start + 1) // block_k, but all blocks where that query sees all S keys "
        "(the last block may be short). Return whole, needed - whole, n_tiles - needed.",
    ),
    cases=(
        given("8 tokens, tiles of 4 by 4", T=8, S=8, block_q=4, block_k=4),
        given("10 tokens, tiles of 4 by 3", T=10, S=10, block_q=4, block_k=3),
        given("7 queries over 20 keys", T=7, S=20, block_q=3, block_k=6),
        given("one query, a shorter last block", T=1, S=10, block_q=4, block_k=4),
        given("blocks larger than everything", T=3, S=5, block_q=16, block_k=16),
    ),
    draw=_draw_tiles,
    wrong={
        "counts the tiles of the mask in which something is hidden as skipped": _regrouped(
            lambda w, m, s: (w, 0, m + s)
        ),
        "wrong corner of the mask: query t sees the keys up to S - T + t, not up to t": (
            lambda T, S, block_q, block_k: _tiles_by_mask(
                T, S, block_q, block_k, lambda T, S: np.tri(T, S, dtype=bool)
            )
        ),
        "a query does not see its own key here: query t sees the keys up to S - T + t": (
            lambda T, S, block_q, block_k: _tiles_by_mask(
                T, S, block_q, block_k, lambda T, S: np.tri(T, S, S - T - 1, dtype=bool)
            )
        ),
        "a tile is called whole by its last query; its first sees the fewest keys": _tiler(
            whole=lambda start, end, T, S, n: S - T + end
        ),
        "the tile's first query sees its own key too: S - T + start + 1 keys": _tiler(
            whole=lambda start, end, T, S, n: S - T + start
        ),
        "in the wrong order: whole, masked in part, skipped": _regrouped(lambda w, m, s: (s, m, w)),
        "a tile is called skipped by its first query; its last sees the most keys": _tiler(
            needed=lambda start, end, T, S: S - T + start + 1
        ),
        "the shorter last block of queries is left out": _tiler(n_rows=math.floor),
        "nothing is skipped: tiles that no query of the block sees need not be computed": (
            _regrouped(lambda w, m, s: (w, m + s, 0))
        ),
        "whole and masked tiles are taken together; the edge of the mask needs its own count": (
            _regrouped(lambda w, m, s: (w + m, 0, s))
        ),
        "a shorter last block is never called whole; it is where the first query sees all S keys": (
            _tiler(short_is_whole=False)
        ),
        "block_q and block_k are swapped: block_q cuts the queries, block_k the keys": (
            lambda T, S, block_q, block_k: _tiles_by_mask(T, S, block_k, block_q)
        ),
    },
    right={
        "cutting up the mask itself": _tiles_by_mask,
        "from the corners of each tile": _tiles_by_corners,
    },
)
