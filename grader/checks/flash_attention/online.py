"""Lesson 06: the normaliser of a softmax that sees one block at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from grader.checks.flash_attention.lesson import LESSON
from grader.judging.compare import Comparison
from grader.judging.counting import held
from grader.judging.exercise import Case, Exercise, Inputs
from inferlab.counted_memory import traced_peak
from inferlab.flash_attention import online_normalizer

# ---- scores whose rows show every slip ----------------------------------------------------------
# Each row has its own course of block maxima: a slip that one row hides, another shows.


def _rows(rng: np.random.Generator, widths: tuple[int, ...]) -> np.ndarray:
    """(6, sum(widths)): rising, falling, near -900, masked at first, all masked, around 0."""
    scores = rng.normal(size=(6, sum(widths)))
    step = np.repeat(np.arange(len(widths)), widths)
    scores[0] += 2.0 * step
    scores[1] -= 2.0 * step
    scores[2] -= 900.0
    scores[3, : widths[0]] = -np.inf
    scores[4] = -np.inf
    return scores


def one_course(kind: str) -> Inputs:
    """One course alone, in three blocks of four."""
    row = {"rising": 0, "falling": 1, "near -900": 2, "first block masked": 3}[kind]
    scores = _rows(np.random.default_rng(7), (4, 4, 4))[[row, row]]
    scores[1, -1] += 0.5
    return {"scores": scores, "widths": (4, 4, 4)}


def _thousands() -> Inputs:
    return {"scores": np.array([[1000.0, 1001.0, 999.0]]), "widths": (2, 1)}


def draw_rows(rng: np.random.Generator) -> Inputs:
    widths = tuple(int(w) for w in rng.permutation([4, 3, 5]))
    widths = (*widths, 2)  # the last block is shorter
    return {"scores": _rows(rng, widths), "widths": widths}


def cut(array: np.ndarray, widths: tuple[int, ...], axis: int = -1) -> list[np.ndarray]:
    return np.split(array, np.cumsum(widths)[:-1], axis=axis)


def _once(blocks: list[np.ndarray]) -> Iterator[np.ndarray]:
    """Each block once; it is gone (NaN) when the next one is asked for."""
    for block in blocks:
        mine = block.copy()
        yield mine
        mine[:] = np.nan


def _long_rows() -> Inputs:
    """60 blocks of 100: what is held at once is watched."""
    scores = np.random.default_rng(9).normal(size=(2, 6000))
    return {"scores": scores, "widths": 60 * (100,), "watched": True}


def _drive_normalizer(answer: Any, inputs: Inputs) -> Any:
    blocks = cut(inputs["scores"], inputs["widths"])
    seen = by_name(answer(score_blocks=_once(blocks)), ("row_max", "row_sum"))
    if inputs.get("watched") and isinstance(seen, dict):
        with traced_peak() as peak:
            answer(score_blocks=_once(blocks))
        seen["held at once"] = held(peak["bytes"], 10 * blocks[0].nbytes + 8192)
    return seen


def by_name(found: Any, names: tuple[str, ...]) -> Any:
    """A tuple as a dict of the names in the statement; anything else as it is."""
    if isinstance(found, (tuple, list)) and len(found) == len(names):
        return dict(zip(names, found, strict=True))
    return found


def score_magnitude(inputs: Mapping[str, Any]) -> float:
    """An error in a score counts in proportion to the scores: exp(s) is off by eps * |s|."""
    scores = inputs["scores"]
    finite = np.abs(scores[np.isfinite(scores)])
    return 1 + float(finite.max(initial=0.0))


def finite(row_max: Any) -> Any:
    return np.where(np.isneginf(row_max), 0, row_max)


# ---- online_normalizer --------------------------------------------------------------------------


def _normalizer(
    start: float = -np.inf,
    rescale: Callable = lambda old, new: np.exp(old - finite(new)),
    block_max: Callable = lambda s: s.max(-1),
    relative_to: Callable = lambda old, mine, new: new,
    safe: Callable = finite,
    keep: Callable = lambda old, mine: np.maximum(old, mine),
):
    """online_normalizer with one step replaced."""

    def answer(score_blocks):
        row_max: Any = start
        row_sum: Any = 0.0
        for scores in score_blocks:
            mine = block_max(scores)
            new = keep(row_max, mine)
            base = safe(relative_to(row_max, mine, new))
            row_sum = rescale(row_max, new) * row_sum + np.exp(scores - base[..., None]).sum(-1)
            row_max = new
        return row_max, row_sum

    return answer


def _normalizer_last_block_dropped(score_blocks):
    blocks = [b.copy() for b in score_blocks]
    full = [b for b in blocks if b.shape[1] == blocks[0].shape[1]]
    return online_normalizer(full)


def _normalizer_padded(score_blocks):
    blocks = [b.copy() for b in score_blocks]
    width = max(b.shape[1] for b in blocks)
    return online_normalizer([np.pad(b, ((0, 0), (0, width - b.shape[1]))) for b in blocks])


def _normalizer_two_passes(score_blocks):
    row_max = np.max([b.max(-1) for b in score_blocks], axis=0)
    row_sum = np.zeros_like(row_max)
    for scores in score_blocks:
        row_sum += np.exp(scores - finite(row_max)[:, None]).sum(-1)
    return row_max, row_sum


def _normalizer_keeps_blocks(score_blocks):
    scores = np.concatenate(list(score_blocks), axis=-1)
    row_max = scores.max(-1)
    return row_max, np.exp(scores - finite(row_max)[:, None]).sum(-1)


def _normalizer_copies(score_blocks):
    return _normalizer_keeps_blocks([block.copy() for block in score_blocks])


def _normalizer_no_max(score_blocks):
    row_sum: Any = 0.0
    row_max: Any = -np.inf
    for scores in score_blocks:
        row_sum = row_sum + np.exp(scores).sum(-1)
        row_max = np.maximum(row_max, scores.max(-1))
    return row_max, row_sum / np.exp(row_max)


def _normalizer_mean(score_blocks):
    row_max: Any = -np.inf
    row_sum: Any = 0.0
    n_seen = 0
    for scores in score_blocks:
        new = np.maximum(row_max, scores.max(-1))
        terms = np.exp(scores - finite(new)[:, None])
        row_sum = np.exp(row_max - finite(new)) * row_sum + terms.sum(-1)
        row_max, n_seen = new, n_seen + scores.shape[1]
    return row_max, row_sum / n_seen


def _normalizer_by_number(score_blocks):
    """Python floats, one score at a time."""
    rows: list[list[float]] = []
    for block in score_blocks:
        rows = rows or [[-np.inf, 0.0] for _ in block]
        for row, scores in zip(rows, block.tolist(), strict=True):
            for score in scores:
                if score > row[0]:
                    row[:] = score, row[1] * float(np.exp(row[0] - score)) + 1
                elif score > -np.inf:
                    row[1] += float(np.exp(score - row[0]))
    return [row[0] for row in rows], [row[1] for row in rows]


def _normalizer_lse(score_blocks):
    """Keeps the log of the sum."""
    row_max: Any = -np.inf
    lse: Any = -np.inf
    for scores in score_blocks:
        row_max = np.maximum(row_max, scores.max(-1))
        lse = np.logaddexp(lse, np.logaddexp.reduce(scores, axis=-1))
    return row_max, np.exp(lse - finite(row_max))


def _normalizer_torch(score_blocks):
    import torch  # takes a second, and only the tests call this

    row_max: Any = None
    row_sum: Any = None
    for block in score_blocks:
        scores = torch.tensor(block)
        if row_max is None:
            row_max = torch.full((len(scores),), -torch.inf, dtype=scores.dtype)
            row_sum = torch.zeros(len(scores), dtype=scores.dtype)
        new = torch.maximum(row_max, scores.amax(-1))
        base = torch.nan_to_num(new, neginf=0.0)
        row_sum = row_sum * torch.exp(row_max - base) + torch.exp(scores - base[:, None]).sum(-1)
        row_max = new
    return row_max, row_sum


NORMALIZER = Exercise(
    id="online_normalizer",
    reference=online_normalizer,
    lesson=LESSON,
    points=2,
    minutes=12,
    difficulty=3,
    hints=(
        "Keep two arrays of one number a row. For each block: the new maximum first, then what is "
        "left of the old sum, then the block's own terms, relative to the new maximum.",
        "new_max = np.maximum(row_max, scores.max(axis=-1)). The old sum is worth row_sum * "
        "np.exp(row_max - new_max). Start with row_max = -np.inf and row_sum = 0.0.",
        "Where new_max is -inf subtract 0 in its place: shift = np.where(new_max == -np.inf, 0, "
        "new_max); row_sum = np.exp(row_max - shift) * row_sum + np.exp(scores - shift[:, "
        "None]).sum(axis=-1); row_max = new_max.",
    ),
    cases=(
        Case("block maxima rise", lambda: one_course("rising")),
        Case("block maxima fall", lambda: one_course("falling")),
        Case("scores 1000, 1001 and 999", _thousands),
        Case("all scores near -900", lambda: one_course("near -900")),
        Case("the first block is masked", lambda: one_course("first block masked")),
        Case("60 blocks, what is held at once is watched", _long_rows),
    ),
    draw=draw_rows,
    drive=_drive_normalizer,
    comparison=Comparison(
        terms=lambda i: i["scores"].shape[1],
        magnitude=score_magnitude,
        why="a sum over all scores of a row; an error in a score counts in proportion to it",
    ),
    wrong={
        "the old sum is not rescaled when the maximum rises: multiply it by exp(m - m_new)": (
            _normalizer(rescale=lambda old, new: 1.0)
        ),
        "the block's terms are taken relative to the block's own maximum, not to the running one": (
            _normalizer(relative_to=lambda old, mine, new: mine)
        ),
        "the block's terms are taken relative to the old maximum: update it first": (
            _normalizer(relative_to=lambda old, mine, new: np.where(np.isneginf(old), new, old))
        ),
        "the running maximum starts at 0: with scores near -900 every term becomes 0": (
            _normalizer(start=0.0)
        ),
        "the rescaling factor is upside down: exp(m_new - m) in place of exp(m - m_new)": (
            _normalizer(
                rescale=lambda old, new: np.where(np.isneginf(old), 0, np.exp(new - finite(old)))
            )
        ),
        "a masked block gives exp(-inf - (-inf)) = NaN: subtract 0 where the maximum is -inf": (
            _normalizer(rescale=lambda old, new: np.exp(old - new), safe=lambda m: m)
        ),
        "subtracts the largest absolute score: near -900 every term becomes 0": _normalizer(
            block_max=lambda s: np.abs(np.where(np.isneginf(s), 0, s)).max(-1)
        ),
        "np.exp of the raw scores overflows: subtract the running maximum first": (
            _normalizer_no_max
        ),
        "one maximum for all rows: each row has its own": _normalizer(
            block_max=lambda s: np.full(len(s), s.max())
        ),
        "the maximum of the last block only: keep the largest so far": _normalizer(
            keep=lambda old, mine: mine
        ),
        "the shorter last block is left out": _normalizer_last_block_dropped,
        "shorter blocks are filled up with zeros: a score of 0 counts, one that is not there must "
        "not": _normalizer_padded,
        "goes over the blocks twice: they come once, and the second pass finds none": (
            _normalizer_two_passes
        ),
        "collects the blocks and looks at them later: each is gone when the next one comes": (
            _normalizer_keeps_blocks
        ),
        "right numbers, but copies of all blocks are kept: two numbers a row are enough": (
            _normalizer_copies
        ),
        "a mean over the scores seen; what is asked is their sum": _normalizer_mean,
    },
    right={
        "number by number, in Python": _normalizer_by_number,
        "keeping the logarithm of the sum": _normalizer_lse,
        "in torch": _normalizer_torch,
    },
)
