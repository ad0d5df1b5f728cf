"""Lesson 06: one step of the online softmax, with the weighted values."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np

from grader.checks.flash_attention.lesson import LESSON
from grader.checks.flash_attention.online import (
    by_name,
    cut,
    draw_rows,
    finite,
    one_course,
    score_magnitude,
)
from grader.judging.compare import Comparison
from grader.judging.exercise import Case, Exercise, Inputs
from inferlab.flash_attention import online_update

GIVEN = ("row_max", "row_sum", "acc", "scores", "v")


def _update_inputs(kind: str) -> Inputs:
    inputs = one_course(kind)
    v = np.random.default_rng(8).normal(size=(inputs["scores"].shape[1], 3))
    return {**inputs, "v": v}


def _draw_update(rng: np.random.Generator) -> Inputs:
    inputs = draw_rows(rng)
    d_head = int(rng.integers(7, 10))  # more than the rows, so that axes cannot be confused
    return {**inputs, "v": rng.normal(size=(inputs["scores"].shape[1], d_head))}


def _drive_update(answer: Any, inputs: Inputs) -> dict[str, Any]:
    """All blocks in turn; every state on the way is seen, and what was given stays as it is."""
    scores, v, widths = inputs["scores"], inputs["v"], inputs["widths"]
    state: Any = (np.full(len(scores), -np.inf), np.zeros(len(scores)))
    state = (*state, np.zeros((len(scores), v.shape[1])))
    seen: dict[str, Any] = {}
    pairs = zip(cut(scores, widths), cut(v, widths, axis=0), strict=True)
    for number, (block, values) in enumerate(pairs, start=1):
        given = (*state, block.copy(), values.copy())
        before = [array.copy() for array in given]
        found = answer(*given)
        changed = [n for n, a, b in zip(GIVEN, given, before, strict=True) if not _equal(a, b)]
        named = by_name(found, GIVEN[:3])
        if not isinstance(named, dict):
            return {**seen, f"after block {number}": named}
        seen |= {f"after block {number}, {k}": copy.deepcopy(x) for k, x in named.items()}
        seen[f"block {number}, arguments changed in place"] = ", ".join(changed) or "none"
        state = tuple(np.asarray(value, dtype=float) for value in named.values())
    return seen


def _equal(a: np.ndarray, b: np.ndarray) -> bool:
    return np.array_equal(a, b, equal_nan=True)


def _updater(
    old_sum: Callable = lambda factor: factor,
    old_acc: Callable = lambda factor: factor[:, None],
    relative_to: Callable = lambda old, mine, new: new,
    safe: Callable = finite,
    block_max: Callable = lambda s: s.max(-1),
    start: float = -np.inf,
    result: Callable = lambda m, total, acc: (m, total, acc),
):
    """online_update with one step replaced."""

    def answer(row_max, row_sum, acc, scores, v):
        row_max = np.maximum(row_max, start)
        mine = block_max(scores)
        new = np.maximum(row_max, mine)
        weights = np.exp(scores - safe(relative_to(row_max, mine, new))[:, None])
        factor = np.exp(row_max - safe(new))
        total = old_sum(factor) * row_sum + weights.sum(-1)
        return result(new, total, old_acc(factor) * acc + weights @ v)

    return answer


def _update_normalises(row_max, row_sum, acc, scores, v):
    new, total, mixed = online_update(row_max, row_sum, acc, scores, v)
    return new, total, mixed / np.where(total == 0, 1, total)[:, None]


def _update_divides_every_time(row_max, row_sum, acc, scores, v):
    """acc is the output so far: multiplied by the old sum before, divided by the new one after."""
    new, total, mixed = online_update(row_max, row_sum, acc * row_sum[:, None], scores, v)
    return new, total, mixed / total[:, None]


def _update_averages_blocks(row_max, row_sum, acc, scores, v):
    """The softmax of the block alone, averaged with what there was."""
    new, total, _ = online_update(row_max, row_sum, acc, scores, v)
    mine = np.exp(scores - finite(scores.max(-1))[:, None])
    share = mine.sum(-1)
    block = mine @ v / np.where(share == 0, 1, share)[:, None]
    return new, total, np.where((row_sum == 0)[:, None], block, (acc + block) / 2)


def _update_block_softmax(row_max, row_sum, acc, scores, v):
    new, _, _ = online_update(row_max, row_sum, acc, scores, v)
    weights = np.exp(scores - finite(new)[:, None])
    total = weights.sum(-1)
    weights = weights / np.where(total == 0, 1, total)[:, None]
    factor = np.exp(row_max - finite(new))
    return new, factor * row_sum + weights.sum(-1), factor[:, None] * acc + weights @ v


def _update_in_place(row_max, row_sum, acc, scores, v):
    new, total, mixed = online_update(row_max, row_sum, acc, scores, v)
    acc[:] = mixed
    return new, total, acc


def _update_by_row(row_max, row_sum, acc, scores, v):
    """Row by row, key by key, in Python."""
    maxima, sums, mixed = row_max.tolist(), row_sum.tolist(), acc.copy()
    for row, line in enumerate(scores):
        for score, value in zip(line, v, strict=True):
            if score > maxima[row]:
                factor = np.exp(maxima[row] - score)
                maxima[row], sums[row] = score, sums[row] * factor + 1
                mixed[row] = mixed[row] * factor + value
            elif score > -np.inf:
                sums[row] += np.exp(score - maxima[row])
                mixed[row] += np.exp(score - maxima[row]) * value
    return maxima, sums, mixed


def _update_two_parts(row_max, row_sum, acc, scores, v):
    """The block alone first, then both parts put together."""
    mine = scores.max(-1)
    weights = np.exp(scores - finite(mine)[:, None])
    new = np.maximum(row_max, mine)
    old_share, my_share = np.exp(row_max - finite(new)), np.exp(mine - finite(new))
    total = old_share * row_sum + my_share * weights.sum(-1)
    return new, total, old_share[:, None] * acc + my_share[:, None] * (weights @ v)


def _update_torch(row_max, row_sum, acc, scores, v):
    import torch

    row_max, row_sum, acc, scores, v = map(torch.tensor, (row_max, row_sum, acc, scores, v))
    new = torch.maximum(row_max, scores.amax(-1))
    base = torch.where(torch.isneginf(new), torch.zeros_like(new), new)
    weights, factor = torch.exp(scores - base[:, None]), torch.exp(row_max - base)
    return new, factor * row_sum + weights.sum(-1), factor[:, None] * acc + weights @ v


UPDATE = Exercise(
    id="online_update",
    reference=online_update,
    lesson=LESSON,
    points=3,
    minutes=12,
    difficulty=3,
    uses=("online_normalizer",),
    hints=(
        "The same step as in online_normalizer, for one block, with a third thing kept: acc. What "
        "rescales the old sum rescales each row of the old acc too.",
        "weights = np.exp(scores - shift[:, None]) is (n_rows, width); its row sums go to the "
        "sum, weights @ v, (n_rows, d_head), goes to acc. shift is new_max, or 0 where it is -inf.",
        "rescale = np.exp(row_max - shift); return new_max, rescale * row_sum + "
        "weights.sum(axis=-1), rescale[:, None] * acc + weights @ v",
    ),
    cases=(
        Case("block maxima rise", lambda: _update_inputs("rising")),
        Case("block maxima fall", lambda: _update_inputs("falling")),
        Case("all scores near -900", lambda: _update_inputs("near -900")),
        Case("the first block is masked", lambda: _update_inputs("first block masked")),
    ),
    draw=_draw_update,
    drive=_drive_update,
    comparison=Comparison(
        terms=lambda i: i["scores"].shape[1],
        magnitude=lambda i: score_magnitude(i) * max(1.0, float(np.abs(i["v"]).max())),
        why="a sum over all keys; an error in a score counts in proportion to it",
    ),
    wrong={
        "acc is not rescaled when the maximum rises: multiply each row by exp(m - m_new)": (
            _updater(old_acc=lambda factor: 1.0)
        ),
        "the old sum is not rescaled when the maximum rises: multiply it by exp(m - m_new)": (
            _updater(old_sum=lambda factor: 1.0)
        ),
        "neither the sum nor acc is rescaled when the maximum rises": _updater(
            old_sum=lambda factor: 1.0, old_acc=lambda factor: 1.0
        ),
        "the block's weights are taken relative to the block's own maximum, not to the new one": (
            _updater(relative_to=lambda old, mine, new: mine)
        ),
        "the block's weights are taken relative to the old maximum: take the new one": _updater(
            relative_to=lambda old, mine, new: np.where(np.isneginf(old), new, old)
        ),
        "the maximum is never below 0: with scores near -900 every weight becomes 0": _updater(
            start=0.0
        ),
        "a masked row gives exp(-inf - (-inf)) = NaN: subtract 0 where the maximum is -inf": (
            _updater(safe=lambda m: m)
        ),
        "one maximum for all rows: each row has its own": _updater(
            block_max=lambda s: np.full(len(s), s.max())
        ),
        "acc is divided by the sum already: that is done once, after the last block": (
            _update_normalises
        ),
        "acc is divided by the sum in every block, as in the paper of 2022; keep it undivided": (
            _update_divides_every_time
        ),
        "averages the softmax of each block: blocks have unequal weight": _update_averages_blocks,
        "the weights are normalised in the block: their sum must go into row_sum as it is": (
            _update_block_softmax
        ),
        "it changes the acc it was given in place; return a new array": _update_in_place,
    },
    right={
        "row by row, key by key": _update_by_row,
        "the block alone, then two parts put together": _update_two_parts,
        "in torch": _update_torch,
    },
)
