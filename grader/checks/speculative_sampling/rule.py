"""Lesson 08: the rule for one token: accept, or replace from the residual; and how often."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from grader.checks.speculative_sampling.lesson import DRAFT, LAW, LESSON, TARGET, draw_law
from grader.judging.exercise import Exercise, Inputs, given
from inferlab.speculative_sampling import (
    acceptance_probability,
    acceptance_rate,
    residual_law,
)

# ---- accept? ------------------------------------------------------------------------------------


def _draw_pair(rng: np.random.Generator) -> Inputs:
    """Two laws that disagree, with a token that only the draft and one that only the target has."""
    n = int(rng.integers(6, 9))
    target, draft = draw_law(rng, n), draw_law(rng, n)
    only_draft, only_target = rng.permutation(n)[:2]
    target[only_draft] = draft[only_target] = 0
    return {"target": target / target.sum(), "draft": draft / draft.sum()}


def _drive_accept(answer: Any, inputs: Inputs) -> list[Any]:
    """The acceptance probability of every token that the draft can propose."""
    target, draft = inputs["target"], inputs["draft"]
    tokens = inputs.get("tokens") or np.flatnonzero(draft).tolist()
    return [answer(target, draft, token) for token in tokens]


def _accept(value: Callable[[float, float], float], check: bool = True) -> Callable:
    """acceptance_probability from the two probabilities of the token."""

    def probability(target, draft, token):
        if check and draft[token] == 0:
            raise ValueError("cannot have been proposed")
        return float(value(float(target[token]), float(draft[token])))

    return probability


def _accept_by_difference(target, draft, token):
    """1 minus the share of its draft probability that is too much."""
    if not draft[token]:
        raise ValueError("cannot have been proposed")
    return 1 - max(draft[token] - target[token], 0) / draft[token]


def _accept_refusing_small(target, draft, token):
    if draft[token] < 1e-12:
        raise ValueError("cannot have been proposed")
    return min(1.0, float(target[token] / draft[token]))


def _accept_by_branch(target, draft, token):
    if draft[token] <= 0:
        raise ValueError("cannot have been proposed")
    return 1.0 if target[token] >= draft[token] else target[token] / draft[token]


ACCEPT = Exercise(
    id="acceptance_probability",
    reference=acceptance_probability,
    lesson=LESSON,
    points=1,
    minutes=4,
    difficulty=1,
    hints=(
        "Only the two probabilities of this one token count. Which one goes on top: the one of "
        "the model that judges.",
        "The ratio target[token] / draft[token] can be above 1; a probability cannot.",
        "if draft[token] == 0: raise ValueError(...); return min(1.0, target[token] / "
        "draft[token])",
    ),
    cases=(
        given("the example, all three tokens", target=TARGET, draft=DRAFT),
        given("equal laws", target=TARGET, draft=TARGET.copy()),
        given("a token that the draft never proposes", target=np.array([0.4, 0.6, 0.0]),
              draft=np.array([0.0, 0.5, 0.5]), tokens=[0]),
        given("a token that is hardly ever proposed", target=np.array([1 - 1e-15, 1e-15]),
              draft=np.array([1 - 4e-15, 4e-15]), tokens=[1]),
    ),
    draw=_draw_pair,
    drive=_drive_accept,
    comparison=LAW,
    wrong={
        "the ratio is upside down: it is target / draft": _accept(
            lambda t, d: min(1.0, d / t) if t else 1.0
        ),
        "the ratio is not capped: a probability is at most 1": _accept(lambda t, d: t / d),
        "the larger of 1 and the ratio; take the smaller": _accept(lambda t, d: max(1.0, t / d)),
        "the target's probability alone: a good draft would be rejected most of the time": _accept(
            lambda t, d: t
        ),
        "the overlap min(target, draft) is not divided by draft[token]": _accept(min),
        "all or nothing: below the draft's probability it is target / draft, not 0": _accept(
            lambda t, d: float(t >= d)
        ),
        "1 minus the difference; it is the ratio that counts": _accept(
            lambda t, d: 1 - max(d - t, 0.0)
        ),
        "a small draft probability is taken for 0; only exactly 0 cannot be proposed": (
            _accept_refusing_small
        ),
        "a token that the draft cannot propose is accepted: that must raise ValueError": _accept(
            lambda t, d: min(1.0, t / d) if d else 1.0, check=False
        ),
    },
    right={
        "two branches": _accept_by_branch,
        "one minus what is too much": _accept_by_difference,
        "NumPy's minimum of both, divided": _accept(lambda t, d: np.minimum(t, d) / d),
    },
)  # fmt: skip

# ---- and if not? --------------------------------------------------------------------------------


def _residual_unguarded(target: np.ndarray, draft: np.ndarray) -> np.ndarray:
    left = np.maximum(target - draft, 0)
    with np.errstate(invalid="ignore"):
        return left / left.sum()


def _residual(weights: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> Callable:
    """residual_law from other weights, renormalised where they have a sum."""

    def law(target, draft):
        left = weights(target, draft)
        return left / left.sum() if left.sum() > 0 else target.copy()

    return law


def _residual_close(target: np.ndarray, draft: np.ndarray) -> np.ndarray:
    return target.copy() if np.allclose(target, draft) else residual_law(target, draft)


def _residual_uniform(target: np.ndarray, draft: np.ndarray) -> np.ndarray:
    left = np.maximum(target - draft, 0)
    return left / left.sum() if left.sum() > 0 else np.full(len(target), 1 / len(target))


def _residual_plain(target: np.ndarray, draft: np.ndarray) -> np.ndarray:
    left = np.maximum(target - draft, 0)
    return left if left.sum() > 0 else target.copy()


def _residual_loop(target, draft):
    left = [max(float(t) - float(d), 0.0) for t, d in zip(target, draft, strict=True)]
    return [x / sum(left) for x in left] if any(left) else list(target)


def _residual_torch(target, draft):
    import torch

    left = (torch.from_numpy(target) - torch.from_numpy(draft)).clamp(min=0)
    return left / left.sum() if left.sum() > 0 else torch.from_numpy(target)


RESIDUAL = Exercise(
    id="residual_law",
    reference=residual_law,
    lesson=LESSON,
    points=2,
    minutes=5,
    difficulty=2,
    hints=(
        "Where the draft offered more than the target wants, nothing is left to make good. Where "
        "it offered less, the difference is.",
        "left = np.maximum(target - draft, 0) does not sum to 1: divide by its sum.",
        "Where left.sum() is 0 the laws are equal: return target.copy() then, else left / "
        "left.sum().",
    ),
    cases=(
        given("the example", target=TARGET, draft=DRAFT),
        given("equal laws", target=TARGET, draft=TARGET.copy()),
        given("no token in common", target=np.array([0.0, 0.4, 0.6]),
              draft=np.array([1.0, 0.0, 0.0])),
        given("laws that hardly differ", draft=np.array([0.25, 0.25, 0.5]),
              target=np.array([0.25 + 2**-19, 0.25 + 2**-20, 0.5 - 3 * 2**-20])),
    ),
    draw=_draw_pair,
    comparison=LAW,
    wrong={
        "laws that are only close count as equal (np.allclose?); only equal ones leave nothing": (
            _residual_close
        ),
        "draft - target in place of target - draft: that is what the draft has too much of": (
            _residual(lambda t, d: np.maximum(d - t, 0))
        ),
        "the rest is not renormalised: a law sums to 1": _residual_plain,
        "the target itself: tokens the draft offers often would come too often": (
            lambda target, draft: target.copy()
        ),
        "the absolute difference counts tokens that the draft had too much of": _residual(
            lambda t, d: np.abs(t - d)
        ),
        "the negative differences stay: they sum to 0 with the positive ones": _residual(
            lambda t, d: t - d
        ),
        "equal laws give 0 / 0: return the target there": _residual_unguarded,
        "equal laws give the uniform law; the target is asked there": _residual_uniform,
        "keeps all of the target where it is above the draft, not the difference": _residual(
            lambda t, d: np.where(t > d, t, 0)
        ),
        "the overlap of the two laws: that part has been accepted already": _residual(np.minimum),
    },
    right={
        "a loop": _residual_loop,
        "torch's clamp": _residual_torch,
        "target less the overlap": _residual(lambda t, d: t - np.minimum(t, d)),
    },
)  # fmt: skip

# ---- how often ----------------------------------------------------------------------------------


def _rate_unguarded(target: np.ndarray, draft: np.ndarray) -> float:
    with np.errstate(divide="ignore", invalid="ignore"):
        return float((draft * np.minimum(1, target / draft)).sum())


def _rate_loop(target, draft):
    total = 0.0
    for t, d in zip(target, draft, strict=True):
        if d > 0:
            total += d * min(1.0, t / d)
    return total


RATE = Exercise(
    id="acceptance_rate",
    reference=acceptance_rate,
    lesson=LESSON,
    points=1,
    minutes=4,
    difficulty=1,
    hints=(
        "The mean of the acceptance probability, weighted by how often the draft proposes each "
        "token. What is draft[i] · min(1, target[i] / draft[i])?",
        "It is min(draft[i], target[i]): the part of the two laws that lies over each other.",
        "float(np.minimum(target, draft).sum())",
    ),
    cases=(
        given("the example", target=TARGET, draft=DRAFT),
        given("equal laws", target=TARGET, draft=TARGET.copy()),
        given("no token in common", target=np.array([0.0, 0.4, 0.6]),
              draft=np.array([1.0, 0.0, 0.0])),
        given("after top-k 2: a token that neither law has", target=np.array([0.5, 0.5, 0, 0]),
              draft=np.array([0, 0.4, 0.6, 0])),
    ),
    draw=_draw_pair,
    comparison=LAW,
    wrong={
        "that is how often two independent samples agree; the rule accepts more often": (
            lambda target, draft: float((target * draft).sum())
        ),
        "that is how often a token is rejected": (
            lambda target, draft: 1 - float(np.minimum(target, draft).sum())
        ),
        "the absolute differences count every moved bit of mass twice: take half of them": (
            lambda target, draft: 1 - float(np.abs(target - draft).sum())
        ),
        "divided by the mass of the union; the overlap alone is asked": (
            lambda target, draft: float(
                np.minimum(target, draft).sum() / np.maximum(target, draft).sum()
            )
        ),
        "the mean over the tokens, not weighted by how often each is proposed": (
            lambda target, draft: float(
                np.mean(np.minimum(target, draft)[draft > 0] / draft[draft > 0])
            )
        ),
        "0 / 0 at a token that neither law has: it is never proposed and adds 0": _rate_unguarded,
        "weighted by the target; it is the draft that proposes": (
            lambda target, draft: float(
                (target * np.minimum(1, target / np.where(draft > 0, draft, 1)) * (draft > 0)).sum()
            )
        ),
        "the larger of the two in place of the smaller": (
            lambda target, draft: float(np.maximum(target, draft).sum())
        ),
        "the share of tokens that the target likes at least as much": (
            lambda target, draft: float(np.mean(target >= draft))
        ),
    },
    right={
        "half the absolute differences": (
            lambda target, draft: 1 - np.abs(target - draft).sum() / 2
        ),
        "a loop over what is proposed": _rate_loop,
        "the draft less what is too much": (
            lambda target, draft: 1 - sum(max(d - t, 0) for t, d in zip(target, draft, strict=True))
        ),
    },
)  # fmt: skip
