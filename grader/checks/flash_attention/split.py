"""Lesson 06: one decode step with the keys cut into splits, through a counted memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from grader.checks.flash_attention.lesson import LESSON
from grader.checks.flash_attention.parts import attention_magnitude, query_inputs
from grader.judging.compare import Comparison, raised
from grader.judging.counting import counts, held
from grader.judging.exercise import Case, Exercise, Inputs
from inferlab.counted_memory import CountedMemory
from inferlab.flash_attention import merge_partials, partial_attention, split_kv_decode

# ---- split_kv_decode ----------------------------------------------------------------------------


def _split_inputs(seed: int, lengths: tuple[int, ...], n_heads: int = 3, d_head: int = 8) -> Inputs:
    """Keys of growing or falling size, so that splits have unequal mass."""
    inputs = query_inputs(np.random.default_rng(seed), n_heads, sum(lengths), d_head)
    slope = np.linspace(0.2, 3.0, sum(lengths))[:, None]
    inputs["k"] = inputs["k"] * (slope if seed % 2 else slope[::-1])
    return {**inputs, "split_lengths": lengths, "watched": False}


def _draw_splits(rng: np.random.Generator) -> Inputs:
    drawn = (int(rng.integers(4, 8)), 0, int(rng.integers(9, 14)), int(rng.integers(2, 4)))
    order = rng.permutation(4)
    d_head = int(rng.integers(5, 9))
    lengths = tuple(drawn[i] for i in order)
    return _split_inputs(int(rng.integers(1 << 30)), lengths, int(rng.integers(2, 5)), d_head)


def _watched() -> Inputs:
    lengths = (60, 75, 70, *(9 * [75]), 40)
    return {**_split_inputs(4, lengths, n_heads=2), "watched": True}


def _wrong_sum(*lengths: int) -> Inputs:
    return {**_split_inputs(5, (4, 4, 2)), "split_lengths": lengths}


class SplitMemory(CountedMemory):
    """Remembers which keys and values each load brought."""

    def __init__(self, **arrays: np.ndarray) -> None:
        super().__init__(**arrays)
        self.asked: list[Any] = []  # as it was said: places would count as memory of the answer

    def load(self, name: str, *index: Any) -> np.ndarray:
        if name in ("k", "v"):
            self.asked.append(index[1] if len(index) > 1 else slice(None))
        return super().load(name, *index)

    def crosses(self, split_lengths: Any) -> bool:
        """Whether a load reached over the end of a split."""
        split_of = np.repeat(np.arange(len(split_lengths)), split_lengths)
        return any(len(np.unique(split_of[where])) > 1 for where in self.asked)


def _split_memory(inputs: Inputs) -> SplitMemory:
    arrays = {name: inputs[name] for name in "qkv"}
    return SplitMemory(**arrays, out=np.full_like(inputs["q"], np.nan))


def split_limit_bytes(inputs: Inputs) -> int:
    """Three times k and v of the longest split, in float64, and 8 KiB for Python's objects."""
    n_heads, _, d_head = inputs["k"].shape
    return 3 * 2 * 8 * n_heads * max(inputs["split_lengths"]) * d_head + 8192


def _drive_split(answer: Any, inputs: Inputs) -> Any:
    memory, lengths = _split_memory(inputs), inputs["split_lengths"]
    try:
        answer(memory, lengths)
    except NotImplementedError:
        raise
    except ValueError as error:
        if sum(lengths) != memory.shape("k")[1]:
            return {"lengths that do not add up to S are refused with": raised(error).kind}
        raise
    if sum(lengths) != memory.shape("k")[1]:
        return {"lengths that do not add up to S are refused with": None}
    seen = dict(counts(memory, "out"))
    seen["a load reaches over the end of a split"] = memory.crosses(lengths)
    if inputs["watched"]:
        memory = _split_memory(inputs)
        with memory.watching():
            answer(memory, lengths)
        seen["held at once"] = held(memory.peak_bytes, split_limit_bytes(inputs))
    return seen


def _split(
    merge: Callable = merge_partials,
    start: Callable = lambda lengths, i: sum(lengths[:i]),
    lengths_of: Callable = lambda lengths, S: lengths,
    refuses: Callable = int.__ne__,
    part: Callable = partial_attention,
    skip: Callable = lambda i: False,
    first_lse: float = -np.inf,
):
    """split_kv_decode with one step replaced."""

    def answer(memory, split_lengths):
        n_heads, S, _ = memory.shape("k")
        if refuses(sum(split_lengths), S):
            raise ValueError(f"the lengths must add up to {S}")
        q = memory.load("q")
        out, lse = np.zeros_like(q), np.full(n_heads, first_lse)
        for i, length in enumerate(lengths_of(split_lengths, S)):
            first = start(split_lengths, i)
            rows = (slice(None), slice(first, first + length))
            k, v = memory.load("k", *rows), memory.load("v", *rows)
            if not skip(i):
                out, lse = merge(out, lse, *part(q, k, v))
        memory.store("out", out)

    return answer


def _average_splits(memory, split_lengths):
    _, S, _ = memory.shape("k")
    if sum(split_lengths) != S:
        raise ValueError(f"the lengths must add up to {S}")
    q, outs, first = memory.load("q"), [], 0
    for length in split_lengths:
        rows = (slice(None), slice(first, first + length))
        out, _ = partial_attention(q, memory.load("k", *rows), memory.load("v", *rows))
        outs += [out] if length else []
        first += length
    memory.store("out", np.mean(outs, axis=0))


def _weighted_by_length(memory, split_lengths):
    _, S, _ = memory.shape("k")
    if sum(split_lengths) != S:
        raise ValueError(f"the lengths must add up to {S}")
    q, first = memory.load("q"), 0
    total = np.zeros_like(q)
    for length in split_lengths:
        rows = (slice(None), slice(first, first + length))
        out, _ = partial_attention(q, memory.load("k", *rows), memory.load("v", *rows))
        total += out * length / S
        first += length
    memory.store("out", total)


def _all_at_once(memory, split_lengths):
    if sum(split_lengths) != memory.shape("k")[1]:
        raise ValueError("the lengths must add up to S")
    out, _ = partial_attention(memory.load("q"), memory.load("k"), memory.load("v"))
    memory.store("out", out)


def _without_last(memory, split_lengths):
    last = max(i for i, length in enumerate(split_lengths) if length)
    _split(skip=lambda i: i == last)(memory, split_lengths)


def _q_every_time(memory, split_lengths):
    split_kv_decode(memory, split_lengths)
    for _ in split_lengths[1:]:
        memory.load("q")


def _stored_every_time(memory, split_lengths):
    _split()(memory, split_lengths)
    for _ in split_lengths[1:]:
        memory.store("out", memory.result("out"))


def _merged_at_the_end(memory, split_lengths):
    """All partial results first, as on a GPU; then one softmax over their lse."""
    if sum(split_lengths) != memory.shape("k")[1]:
        raise ValueError("the lengths must add up to S")
    q, ends = memory.load("q"), np.cumsum(split_lengths)
    outs, lses = [], []
    for first, end in zip(ends - split_lengths, ends, strict=True):
        rows = (slice(None), slice(int(first), int(end)))
        out, lse = partial_attention(q, memory.load("k", *rows), memory.load("v", *rows))
        outs.append(out)
        lses.append(lse)
    shares = np.exp(np.array(lses) - np.logaddexp.reduce(lses))
    memory.store("out", np.einsum("ph,phd->hd", shares, outs))


def _running_softmax(memory, split_lengths):
    """The running maximum and sum of online_update, split by split."""
    n_heads, S, d_head = memory.shape("k")
    if sum(split_lengths) != S:
        raise ValueError(f"{split_lengths} must add up to {S}")
    q = memory.load("q")
    row_max, row_sum, acc = np.full(n_heads, -np.inf), np.zeros(n_heads), np.zeros_like(q)
    first = 0
    for length in split_lengths:
        rows = (slice(None), slice(first, first + length))
        scores = np.einsum("hd,hsd->hs", q, memory.load("k", *rows)) / np.sqrt(d_head)
        new = np.maximum(row_max, scores.max(-1, initial=-np.inf))
        shift = np.where(np.isneginf(new), 0, new)
        weights, factor = np.exp(scores - shift[:, None]), np.exp(row_max - shift)
        row_sum = factor * row_sum + weights.sum(-1)
        acc = factor[:, None] * acc + np.einsum("hs,hsd->hd", weights, memory.load("v", *rows))
        row_max, first = new, first + length
    memory.store("out", acc / row_sum[:, None])


SPLIT = Exercise(
    id="split_kv_decode",
    reference=split_kv_decode,
    lesson=LESSON,
    points=3,
    minutes=12,
    difficulty=3,
    uses=("partial_attention", "merge_partials"),
    hints=(
        "One loop over split_lengths, with the position where the next split starts. Before it: "
        "the sum of the lengths must be S, q is loaded, and there is an empty result.",
        "The empty result is np.zeros_like(q) with np.full(n_heads, -np.inf). In the loop: part = "
        '(slice(None), slice(start, start + length)); k = memory.load("k", *part), v likewise.',
        "out, lse = merge_partials(out, lse, *partial_attention(q, k, v)); start += length. After "
        'the loop memory.store("out", out), once.',
    ),
    cases=(
        Case("three splits, the last shorter", lambda: _split_inputs(1, (4, 4, 2))),
        Case("the largest scores come first", lambda: _split_inputs(2, (4, 4, 2))),
        Case("one split", lambda: _split_inputs(3, (7,))),
        Case("a split without keys, at the start", lambda: _split_inputs(6, (0, 5, 0, 3))),
        Case("lengths that add up to less than S", lambda: _wrong_sum(4, 4)),
        Case("lengths that add up to more than S", lambda: _wrong_sum(4, 4, 4)),
        Case("920 keys in 13 splits, what is held at once is watched", _watched),
    ),
    draw=_draw_splits,
    drive=_drive_split,
    comparison=Comparison(
        terms=lambda i: i["q"].shape[-1] + i["k"].shape[-2],
        magnitude=attention_magnitude,
        why="dot products of d_head numbers, then S weighted values in another order",
    ),
    wrong={
        "a plain average of the splits: merge by log-sum-exp": _average_splits,
        "weighted by the lengths of the splits; what counts is the sum of exp(score), their lse": (
            _weighted_by_length
        ),
        "right result, but all keys and values are held at once: one split at a time": (
            _all_at_once
        ),
        "all splits start at the first key: start must move on": _split(start=lambda lengths, i: 0),
        "all splits are as long as the first one": _split(
            lengths_of=lambda lengths, S: len(lengths) * [lengths[0]],
            start=lambda lengths, i: i * lengths[0],
        ),
        "splits of equal length, S // n: use the lengths that are given": _split(
            lengths_of=lambda lengths, S: len(lengths) * [S // len(lengths)],
            start=lambda lengths, i: i * (sum(lengths) // len(lengths)),
        ),
        "the last split is left out": _without_last,
        "split_lengths is ignored, and blocks of one size are read: the splits are given": _split(
            lengths_of=lambda lengths, S: [min(3, S - start) for start in range(0, S, 3)],
            start=lambda lengths, i: 3 * i,
        ),
        "starts from lse 0: an empty result that has weight; start from -inf": _split(
            first_lse=0.0
        ),
        "lengths that do not add up to S are accepted": _split(refuses=lambda total, S: False),
        "lengths that add up to more than S are accepted": _split(refuses=int.__lt__),
        "lengths that add up to less than S are accepted": _split(refuses=int.__gt__),
        "right result, but q is loaded again for every split": _q_every_time,
        "right result, but out is stored after every split": _stored_every_time,
        "the merged lse is forgotten, so only the last split's counts": _split(
            merge=lambda out, lse, part, part_lse: (
                merge_partials(out, lse, part, part_lse)[0],
                part_lse,
            )
        ),
    },
    right={
        "all parts first, merged at the end": _merged_at_the_end,
        "a running maximum and sum": _running_softmax,
        "the reference's steps, written out": _split(),
    },
)
