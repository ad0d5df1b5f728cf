"""Lesson 06: attention through a counted memory, tile by tile."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from grader.checks.flash_attention.lesson import LESSON
from grader.judging.compare import Comparison
from grader.judging.counting import counts, held
from grader.judging.exercise import Case, Exercise, Inputs
from inferlab.counted_memory import CountedMemory
from inferlab.flash_attention import (
    n_key_blocks,
    on_chip_numbers,
    online_update,
    tiled_attention,
)


def _attention_inputs(
    seed: int,
    heads: tuple[int, int] = (6, 2),
    sizes: tuple[int, int, int] = (13, 29, 8),
    blocks: tuple[int, int] = (5, 4),
    causal: bool = True,
    scale: float = 1.0,
    watched: bool = False,
) -> Inputs:
    """heads: (n_heads, n_kv_heads); sizes: (T, S, d_head); blocks: (block_q, block_k)."""
    rng, (T, S, d_head) = np.random.default_rng(seed), sizes
    return {
        "q": scale * rng.normal(size=(heads[0], T, d_head)),
        "k": rng.normal(size=(heads[1], S, d_head)),
        "v": rng.normal(size=(heads[1], S, d_head)),
        "block_q": blocks[0],
        "block_k": blocks[1],
        "causal": causal,
        "watched": watched,
    }


def _all_negative() -> Inputs:
    """Every key points away from every query: all scores are near -20,000."""
    inputs = _attention_inputs(3, heads=(2, 1), sizes=(5, 11, 8))
    q, k = 100 + 0.01 * inputs["q"], -71 + 0.01 * inputs["k"]
    return {**inputs, "q": q, "k": k}


def _draw_attention(rng: np.random.Generator) -> Inputs:
    """Several query heads to a KV head; blocks divide neither T nor S; scores of all sizes."""
    block_q, block_k = int(rng.integers(4, 7)), int(rng.integers(3, 6))
    T = 2 * block_q + int(rng.integers(1, block_q))
    S = T + 2 * block_k + int(rng.integers(1, block_k))
    S += S % block_k == 0
    return _attention_inputs(
        int(rng.integers(1 << 30)),
        heads=(4, 2),
        sizes=(T, S, int(rng.integers(7, 10))),
        blocks=(block_q, block_k),
        scale=3.0,
    )


def peak_limit_bytes(block_q: int, block_k: int, d_head: int) -> int:
    """Four times the least that must be held, in float64, and 8 KiB for Python's own objects."""
    return 4 * 8 * on_chip_numbers(block_q, block_k, d_head) + 8192


def _memory(inputs: Inputs) -> CountedMemory:
    arrays = {name: inputs[name] for name in "qkv"}
    return CountedMemory(**arrays, out=np.full_like(inputs["q"], np.nan))


def _drive_attention(answer: Any, inputs: Inputs) -> dict[str, Any]:
    """The result and the traffic; where the case is `watched`, the peak of a second run too."""
    settings = {name: inputs[name] for name in ("block_q", "block_k")}
    if not inputs["causal"]:  # True is the default
        settings["causal"] = False
    memory = _memory(inputs)
    answer(memory, **settings)
    seen = dict(counts(memory, "out"))
    if inputs["watched"]:
        memory = _memory(inputs)
        with memory.watching():
            answer(memory, **settings)
        limit = peak_limit_bytes(inputs["block_q"], inputs["block_k"], inputs["q"].shape[2])
        seen["held at once on chip"] = held(memory.peak_bytes, limit)
    return seen


def _tiled(
    positions: Callable = lambda start, end, T, S: S - T + np.arange(start, end),
    hides: Callable = np.greater,
    kv_head: Callable = lambda head, n_heads, n_kv_heads: head // (n_heads // n_kv_heads),
    width: Callable = lambda q: q.shape[-1],
    blocks: Callable = lambda end, T, S, n, causal: (
        n_key_blocks(end, T, S, n) if causal else math.ceil(S / n)
    ),
    masked: float = -np.inf,
    finish: Callable = lambda acc, total: acc / total[:, None],
    masks: Callable = lambda causal: causal,
    pad: bool = False,
    update: Callable = online_update,
    fresh: bool = True,
):
    """tiled_attention with one step replaced."""

    def answer(memory, block_q, block_k, causal=True):
        (n_heads, T, _), (n_kv_heads, S, _) = memory.shape("q"), memory.shape("k")
        state: Any = None
        for head in range(n_heads):
            for start in range(0, T, block_q):
                end = min(start + block_q, T)
                q = memory.load("q", head, slice(start, end))
                if fresh or state is None or len(state[0]) != len(q):
                    state = (np.full(len(q), -np.inf), np.zeros(len(q)), np.zeros_like(q))
                for j in range(blocks(end, T, S, block_k, causal)):
                    keys = slice(j * block_k, (j + 1) * block_k)
                    group = kv_head(head, n_heads, n_kv_heads)
                    k, v = memory.load("k", group, keys), memory.load("v", group, keys)
                    if pad:
                        more = ((0, block_k - len(k)), (0, 0))
                        k, v = np.pad(k, more), np.pad(v, more)
                    scores = q @ k.T / np.sqrt(width(q))
                    place = np.arange(keys.start, keys.start + len(k))
                    if masks(causal):
                        hidden = hides(place, positions(start, end, T, S)[:, None])
                        scores = np.where(hidden, masked, scores)
                    state = update(*state, scores, v)
                memory.store("out", finish(state[2], state[1]), head, slice(start, end))

    return answer


def _tiled_ragged_dropped(memory, block_q, block_k, causal=True):
    """Whole key blocks only, at least one."""
    _tiled(blocks=lambda end, T, S, n, causal: max(1, min(S, S - T + end if causal else S) // n))(
        memory, block_q, block_k, causal
    )


def _plain_rows(memory, block_q, block_k, causal=True):
    """One block of queries against all keys at once."""
    (n_heads, T, d_head), (n_kv_heads, S, _) = memory.shape("q"), memory.shape("k")
    for head in range(n_heads):
        group = head // (n_heads // n_kv_heads)
        for start in range(0, T, block_q):
            end = min(start + block_q, T)
            q = memory.load("q", head, slice(start, end))
            seen = min(S, n_key_blocks(end, T, S, block_k) * block_k) if causal else S
            k, v = memory.load("k", group, slice(0, seen)), memory.load("v", group, slice(0, seen))
            hidden = np.arange(seen) > S - T + np.arange(start, end)[:, None]
            scores = np.where(hidden & causal, -np.inf, q @ k.T / np.sqrt(d_head))
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            out = weights @ v / weights.sum(-1, keepdims=True)
            memory.store("out", out, head, slice(start, end))


def _scores_whole(memory, block_q, block_k, causal=True):
    """The textbook way: all of q, k and v of a head, all scores."""
    (n_heads, T, d_head), (n_kv_heads, S, _) = memory.shape("q"), memory.shape("k")
    for head in range(n_heads):
        group = head // (n_heads // n_kv_heads)
        q, k, v = (memory.load(n, h) for n, h in (("q", head), ("k", group), ("v", group)))
        hidden = np.arange(S) > S - T + np.arange(T)[:, None]
        scores = np.where(hidden & causal, -np.inf, q @ k.T / np.sqrt(d_head))
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        memory.store("out", weights @ v / weights.sum(-1, keepdims=True), head)


def _average_of_blocks(memory, block_q, block_k, causal=True):
    """A softmax in each tile, and the mean of their outputs."""

    def update(row_max, row_sum, acc, scores, v):
        shift = np.where(np.isneginf(scores.max(-1)), 0, scores.max(-1))
        weights = np.exp(scores - shift[:, None])
        total = weights.sum(-1)
        mine = weights @ v / np.where(total == 0, 1, total)[:, None]
        return row_max, row_sum + (total > 0), acc + mine

    _tiled(update=update)(memory, block_q, block_k, causal)


def _own_maximum(row_max, row_sum, acc, scores, v):
    """Nothing is rescaled: each block has its own maximum."""
    mine = scores.max(-1)
    weights = np.exp(scores - np.where(np.isneginf(mine), 0, mine)[:, None])
    return np.maximum(row_max, mine), row_sum + weights.sum(-1), acc + weights @ v


def _divides_each_time(row_max, row_sum, acc, scores, v):
    """Right in the last block alone: what is divided once is rescaled and divided again."""
    row_max, row_sum, acc = online_update(row_max, row_sum, acc, scores, v)
    return row_max, row_sum, acc / np.where(row_sum == 0, 1, row_sum)[:, None]


def _loads_q_again(memory, block_q, block_k, causal=True):
    (n_heads, T, _), _ = memory.shape("q"), memory.shape("k")
    S = memory.shape("k")[1]
    for head in range(n_heads):
        for start in range(0, T, block_q):
            end = min(start + block_q, T)
            n = n_key_blocks(end, T, S, block_k) if causal else math.ceil(S / block_k)
            for _ in range(n - 1):
                memory.load("q", head, slice(start, end))
    tiled_attention(memory, block_q, block_k, causal)


def _keeps_k_and_v(memory, block_q, block_k, causal=True):
    """Every tile that was loaded is kept, and used from there."""
    kept: dict[Any, np.ndarray] = {}

    class Keeping:
        shape, store = memory.shape, memory.store

        def load(self, name, *index):
            key = (name, index[0], index[1].start)
            if name == "q" or key not in kept:
                kept[key] = memory.load(name, *index)
            return kept[key]

    _tiled()(Keeping(), block_q, block_k, causal)


def _stores_at_the_end(memory, block_q, block_k, causal=True):
    out = np.zeros(memory.shape("out"))

    class Late:
        shape, load = memory.shape, memory.load

        def store(self, name, value, head, rows):
            out[head, rows] = value

    _tiled()(Late(), block_q, block_k, causal)
    memory.store("out", out)


def _shares_k_and_v(memory, block_q, block_k, causal=True):
    """Only the first query head of each group pays for k and v."""
    group_size = memory.shape("q")[0] // memory.shape("k")[0]

    class Shared:
        shape, store = memory.shape, memory.store

        def load(self, name, head, rows):
            tile = memory.load(name, head, rows)
            if name == "q":
                self.pays = head % group_size == 0
            elif not self.pays:
                memory.loaded_bytes -= tile.nbytes
            return tile

    _tiled()(Shared(), block_q, block_k, causal)


def _tiled_two_parts(memory, block_q, block_k, causal=True):
    """Normalised partial results, merged by log-sum-exp tile by tile; keys cut by hand."""
    (n_heads, T, d_head), (n_kv_heads, S, _) = memory.shape("q"), memory.shape("k")
    for head in range(n_heads):
        group = head * n_kv_heads // n_heads
        for start in range(0, T, block_q):
            q = memory.load("q", head, slice(start, start + block_q)) * d_head**-0.5
            place = np.arange(S - T + start, S - T + start + len(q))
            out, lse = np.zeros_like(q), np.full(len(q), -np.inf)
            first = 0
            while first < S and not (causal and first > place[-1]):
                k = memory.load("k", group, slice(first, first + block_k))
                v = memory.load("v", group, slice(first, first + block_k))
                scores = np.einsum("td,sd->ts", q, k)
                if causal:
                    scores[np.arange(first, first + len(k))[None] > place[:, None]] = -np.inf
                mine = np.logaddexp.reduce(scores, axis=-1)
                both = np.logaddexp(lse, mine)
                out = np.exp(lse - both)[:, None] * out + np.exp(scores - both[:, None]) @ v
                lse, first = both, first + block_k
            memory.store("out", out, head, slice(start, start + block_q))


def _tiled_torch(memory, block_q, block_k, causal=True):
    import torch

    (n_heads, T, d_head), (n_kv_heads, S, _) = memory.shape("q"), memory.shape("k")
    for head in range(n_heads):
        for start in range(0, T, block_q):
            stop = min(T, start + block_q)
            q = torch.from_numpy(memory.load("q", head, slice(start, stop)))
            row_max = torch.full((len(q), 1), -torch.inf, dtype=q.dtype)
            row_sum, acc = torch.zeros_like(row_max), torch.zeros_like(q)
            last = S - T + stop if causal else S
            for first in range(0, last, block_k):
                group = head // (n_heads // n_kv_heads)
                rows = slice(first, first + block_k)
                k, v = (torch.from_numpy(memory.load(n, group, rows)) for n in "kv")
                scores = q @ k.T / math.sqrt(d_head)
                if causal:
                    ahead = torch.arange(first, first + len(k)) > torch.arange(
                        S - T + start, S - T + stop
                    ).unsqueeze(1)
                    scores = scores.masked_fill(ahead, -torch.inf)
                new = torch.maximum(row_max, scores.amax(-1, keepdim=True))
                weights, factor = torch.exp(scores - new), torch.exp(row_max - new)
                row_sum = factor * row_sum + weights.sum(-1, keepdim=True)
                acc, row_max = factor * acc + weights @ v, new
            memory.store("out", (acc / row_sum).numpy(), head, slice(start, stop))


TILED = Exercise(
    id="tiled_attention",
    reference=tiled_attention,
    lesson=LESSON,
    points=5,
    minutes=30,
    difficulty=4,
    uses=("n_key_blocks", "online_update"),
    hints=(
        "Three loops: head, then blocks of queries, then blocks of keys. The state of "
        "online_update starts anew for every block of queries: row_max -inf, row_sum 0, acc 0, of "
        "len(q) rows. Store once, after the innermost loop.",
        'keys = slice(first, min(first + block_k, S)); k = memory.load("k", head // (n_heads // '
        "n_kv_heads), keys). Key s is hidden from query t of the tile where s > S - T + start + t: "
        "compare np.arange(keys.start, keys.stop) with a column of the queries' positions.",
        "scores = q @ k.T / math.sqrt(d_head); scores[np.arange(keys.start, keys.stop) > S - T + "
        "np.arange(start, end)[:, None]] = -np.inf; row_max, row_sum, acc = online_update(row_max, "
        'row_sum, acc, scores, v). Last: memory.store("out", acc / row_sum[:, None], …).',
    ),
    cases=(
        Case(
            "one head, 8 tokens, tiles of 4 by 4",
            lambda: _attention_inputs(0, (1, 1), (8, 8, 3), (4, 4)),
        ),
        Case("6 heads on 2, 13 queries over 29 keys", lambda: _attention_inputs(1)),
        Case("no mask", lambda: _attention_inputs(2, sizes=(9, 19, 8), causal=False)),
        Case("all scores near -20,000", _all_negative),
        Case("scores in the hundreds", lambda: _attention_inputs(4, scale=300.0)),
        Case(
            "one query, blocks larger than everything",
            lambda: _attention_inputs(5, (2, 1), (1, 9, 8), (16, 16)),
        ),
        Case(
            "1,024 keys, what is held at once is watched",
            lambda: _attention_inputs(6, (2, 1), (32, 1024, 8), (16, 16), watched=True),
        ),
        Case(
            "8 heads of 64 queries, what is held at once is watched",
            lambda: _attention_inputs(7, (8, 4), (64, 64, 8), (8, 8), watched=True),
        ),
    ),
    draw=_draw_attention,
    drive=_drive_attention,
    comparison=Comparison(
        terms=lambda i: i["q"].shape[-1] + i["k"].shape[-2],
        magnitude=lambda i: float(
            np.abs(i["v"]).max() * (1 + np.abs(i["q"]).max() * np.abs(i["k"]).sum(-1).max())
        ),
        why="a dot product of d_head numbers, then S weighted values in another order; "
        "an error in a score counts in proportion to the scores",
    ),
    wrong={
        "divided by row_sum after every block: divide once, when all blocks are in": _tiled(
            update=_divides_each_time, finish=lambda acc, total: acc
        ),
        "wrong corner of the mask: query t sees the keys up to S - T + t, not up to t": (
            _tiled(positions=lambda start, end, T, S: np.arange(start, end))
        ),
        "the mask counts from the start of the tile: add start to the query's number": _tiled(
            positions=lambda start, end, T, S: S - T + np.arange(end - start)
        ),
        "no causal mask inside the tiles: those on the edge need one": _tiled(
            masks=lambda causal: False
        ),
        "the mask is applied although causal is False": _tiled(
            blocks=lambda end, T, S, n, causal: n_key_blocks(end, T, S, n),
            masks=lambda causal: True,
        ),
        "the key blocks are those of the tile's first query; its last one sees more": _tiled(
            blocks=lambda end, T, S, n, causal: (
                n_key_blocks(max(1, end - 4), T, S, n) if causal else math.ceil(S / n)
            )
        ),
        "a query does not see its own key: hide s > S - T + t, not s >= S - T + t": _tiled(
            hides=np.greater_equal,
            finish=lambda acc, total: acc / np.where(total == 0, 1, total)[:, None],
        ),
        "hidden scores are -100 or -10,000, which real scores can reach: use -np.inf": _tiled(
            masked=-100.0
        ),
        "hidden scores are set to 0: exp(0) is 1, so hidden keys get weight": _tiled(masked=0.0),
        "query head h reads KV head h % n_kv_heads; it is h // (n_heads // n_kv_heads)": _tiled(
            kv_head=lambda head, n_heads, n_kv_heads: head % n_kv_heads
        ),
        "every query head reads KV head 0": _tiled(kv_head=lambda head, n_heads, n_kv_heads: 0),
        "the scores are not divided by sqrt(d_head)": _tiled(width=lambda q: 1),
        "divides by d_head, not by its square root": _tiled(width=lambda q: q.shape[-1] ** 2),
        "acc is stored without dividing it by row_sum": _tiled(finish=lambda acc, total: acc),
        "averages the softmax outputs of the blocks: blocks have unequal weight": (
            _average_of_blocks
        ),
        "each block has its own maximum and nothing is rescaled: use online_update": _tiled(
            update=_own_maximum
        ),
        "the shorter last key block is left out": _tiled_ragged_dropped,
        "the shorter last key block is filled up with zeros, and without a mask they count": _tiled(
            pad=True
        ),
        "the running state is carried over to the next block of queries: start it anew": _tiled(
            fresh=False
        ),
        "right result, but key blocks wholly in the future are loaded too: n_key_blocks says how "
        "many are needed": _tiled(blocks=lambda end, T, S, n, causal: math.ceil(S / n)),
        "right result, but a block of queries meets all its keys at once: a row of scores over all "
        "keys, and all of k and v, do not fit on chip": _plain_rows,
        "right result, but the whole score matrix is held: that is what tiles are to avoid": (
            _scores_whole
        ),
        "right result, but q is loaded again for every key block: once is enough": (_loads_q_again),
        "right result, but tiles of k and v are kept for later: all of them do not fit on chip": (
            _keeps_k_and_v
        ),
        "right result, but the output is kept, and stored at the end: store each block's own": (
            _stores_at_the_end
        ),
        "right result, but k and v are loaded once for several query heads: each loads its own": (
            _shares_k_and_v
        ),
    },
    right={
        "normalised results merged by log-sum-exp": _tiled_two_parts,
        "written out, np.where for the mask": _tiled(),
        "in torch": _tiled_torch,
    },
)
