"""Lesson 08: one token by speculation, judged by the law of what comes out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from grader.checks.speculative_sampling.lesson import DRAFT, LESSON, TARGET, draw_law
from grader.judging.exercise import Case, Exercise, Inputs, many
from grader.judging.law import Law
from inferlab.sampling import draw_token
from inferlab.speculative_sampling import (
    acceptance_probability,
    acceptance_rate,
    residual_law,
    speculative_token,
)

N_DRAWS = 4000


def _drive_token(answer: Any, inputs: Inputs) -> dict[str, Any]:
    """How often each token came out, how often the proposed one was kept, and both together."""
    target, draft = inputs["target"], inputs["draft"]
    rng = np.random.default_rng(inputs["seed"])
    pairs = many(answer, N_DRAWS, target, draft, rng)
    if not all(isinstance(pair, (tuple, list)) and len(pair) == 2 for pair in pairs):
        raise TypeError("return a pair: the token, and whether the proposed one was kept")
    tokens = [int(token) for token, _ in pairs]
    kept = [int(bool(was_kept)) for _, was_kept in pairs]
    return {
        "tokens": np.bincount(tokens, minlength=len(target)),
        "replaced, kept": np.bincount(kept, minlength=2),
        "tokens that replace one, then tokens that are kept": np.bincount(
            np.array(tokens) + len(target) * np.array(kept), minlength=2 * len(target)
        ),
    }


def _expected_token(inputs: Inputs) -> dict[str, Any]:
    target, draft = inputs["target"], inputs["draft"]
    kept, replaced = np.minimum(target, draft), np.maximum(target - draft, 0)
    return {
        "tokens": target,
        "replaced, kept": np.array([1 - kept.sum(), kept.sum()]),
        "tokens that replace one, then tokens that are kept": np.concatenate([replaced, kept]),
    }


def _pair_laws(target: np.ndarray, draft: np.ndarray) -> list[np.ndarray]:
    """The laws that the usual mistakes give; a pair for the test must tell them all apart."""
    overlap = np.minimum(target, draft)
    rate = overlap.sum()
    upside = draft * np.minimum(1, draft / target)
    swapped = np.maximum(draft - target, 0) / (1 - rate)
    return [
        draft,
        overlap / rate,
        overlap + (1 - rate) * target,
        overlap + (1 - rate) * swapped,
        upside + (1 - upside.sum()) * residual_law(target, draft),
        rate * draft + (1 - rate) * residual_law(target, draft),
        _reused_law(target, draft),
        _without_law(target, draft),
    ]


def _without(law: np.ndarray, token: int) -> np.ndarray:
    """The law with the rejected token struck out, and renormalised."""
    left = np.where(np.arange(len(law)) == token, 0, law)
    return left / left.sum()


def _without_law(target: np.ndarray, draft: np.ndarray) -> np.ndarray:
    """What comes out where the replacement is drawn from the target without the rejected token."""
    rejected = np.maximum(draft - target, 0)
    replaced = [p * _without(target, x) for x, p in enumerate(rejected)]
    return np.minimum(target, draft) + np.sum(replaced, axis=0)


def _reused_law(target: np.ndarray, draft: np.ndarray) -> np.ndarray:
    """What comes out where the uniform that failed the test draws the replacement as well."""
    law, grid = np.minimum(target, draft), (np.arange(200) + 0.5) / 200
    ends = np.cumsum(residual_law(target, draft))
    replacement = np.minimum(np.searchsorted(ends, grid, side="right"), len(target) - 1)
    for p, accept in zip(draft, np.minimum(1, target / draft), strict=True):
        failed = replacement[grid >= accept]
        law = law + p * np.bincount(failed, minlength=len(target)) / len(grid)
    return law


def _draw_token_case(rng: np.random.Generator) -> Inputs:
    while True:
        target, draft = draw_law(rng, 4), draw_law(rng, 4)
        rate = np.minimum(target, draft).sum()
        apart = min(np.abs(law - target).max() for law in _pair_laws(target, draft))
        if apart > 0.08 and 0.4 < rate < 0.75:
            return {"target": target, "draft": draft, "seed": int(rng.integers(1000))}


def _one_token(
    accept: Callable = acceptance_probability,
    residual: Callable = residual_law,
    kept: bool = True,
) -> Callable:
    """speculative_token with another rule."""

    def token(target, draft, rng):
        proposed = draw_token(draft, rng.random())
        if rng.random() < accept(target, draft, proposed):
            return proposed, kept
        return draw_token(residual(target, draft), rng.random()), not kept

    return token


def _one_uniform(target, draft, rng):
    u = rng.random()
    proposed = draw_token(draft, u)
    if u < acceptance_probability(target, draft, proposed):
        return proposed, True
    return draw_token(residual_law(target, draft), rng.random()), False


def _reused_for_residual(target, draft, rng):
    proposed, u = draw_token(draft, rng.random()), rng.random()
    if u < acceptance_probability(target, draft, proposed):
        return proposed, True
    return draw_token(residual_law(target, draft), u), False


def _target_without(target, draft, rng):
    proposed = draw_token(draft, rng.random())
    if rng.random() < acceptance_probability(target, draft, proposed):
        return proposed, True
    return draw_token(_without(target, proposed), rng.random()), False


def _always_true(target, draft, rng):
    return speculative_token(target, draft, rng)[0], True


def _until_accepted(target, draft, rng):
    kept = True
    while True:
        proposed = draw_token(draft, rng.random())
        if rng.random() < acceptance_probability(target, draft, proposed):
            return proposed, kept
        kept = False


def _mean_rate(target, draft, rng):
    proposed = draw_token(draft, rng.random())
    if rng.random() < acceptance_rate(target, draft):
        return proposed, True
    return draw_token(residual_law(target, draft), rng.random()), False


def _target_draws(target, draft, rng):
    token = draw_token(target, rng.random())
    return token, token == draw_token(draft, rng.random())


def _separate_coin(target, draft, rng):
    return draw_token(target, rng.random()), rng.random() < acceptance_rate(target, draft)


def _greedy_draft(target, draft, rng):
    proposed = int(np.argmax(draft))
    if rng.random() < acceptance_probability(target, draft, proposed):
        return proposed, True
    return draw_token(residual_law(target, draft), rng.random()), False


def _token_by_choice(target, draft, rng):
    ids = np.arange(len(draft))
    proposed = rng.choice(ids, p=draft)
    if rng.uniform() * draft[proposed] < target[proposed]:
        return proposed, True
    return rng.choice(ids, p=residual_law(target, draft)), False


def _token_three_uniforms(target, draft, rng):
    """Draws all three numbers first, needed or not."""
    u, v, w = rng.random(3)
    proposed = draw_token(draft, u)
    if v < acceptance_probability(target, draft, proposed):
        return proposed, True
    return draw_token(residual_law(target, draft), w), False


def _token_rejection(target, draft, rng):
    """The replacement by rejection sampling: as many random numbers as it takes."""
    proposed = draw_token(draft, rng.random())
    if rng.random() < min(1.0, target[proposed] / draft[proposed]):
        return [proposed, True]
    while True:
        other = int(rng.integers(len(target)))
        if rng.random() < max(target[other] - draft[other], 0):
            return [other, False]


ONE_TOKEN = Exercise(
    id="speculative_token",
    reference=speculative_token,
    lesson=LESSON,
    points=3,
    minutes=8,
    difficulty=3,
    uses=("draw_token", "acceptance_probability", "residual_law"),
    hints=(
        "Three steps: propose from the draft, test, and only if the test fails, replace. "
        "rng.random() gives a fresh uniform each time.",
        "A thing happens with probability a when rng.random() < a. Here a is "
        "acceptance_probability(target, draft, token).",
        "If kept: return token, True. Else: return draw_token(residual_law(target, draft), "
        "rng.random()), False.",
    ),
    cases=(
        Case("the example", lambda: {"target": TARGET.copy(), "draft": DRAFT.copy(), "seed": 1}),
    ),
    draw=_draw_token_case,
    n_draws=2,
    drive=_drive_token,
    expected=_expected_token,
    comparison=Law(false_alarm=3e-7),  # three laws: 1e-6 together
    wrong={
        "on rejection it draws from the target, not from the residual": _one_token(
            residual=lambda target, draft: target
        ),
        "the rejected token is only struck out of the target: tokens that the draft offers too "
        "often then still come too often; draw from the residual": _target_without,
        "kept where the random number is above the probability; keep below it": _one_token(
            accept=lambda target, draft, x: 1 - acceptance_probability(target, draft, x)
        ),
        "the acceptance ratio is upside down: it is target / draft": _one_token(
            accept=lambda target, draft, x: min(1.0, draft[x] / target[x])
        ),
        "the residual is upside down: it is max(target - draft, 0)": _one_token(
            residual=lambda target, draft: residual_law(draft, target)
        ),
        "one random number for the proposal and for the test: each decision needs its own": (
            _one_uniform
        ),
        "the number that failed the test draws the replacement too: it is not uniform any more": (
            _reused_for_residual
        ),
        "everything is accepted: that is the law of the draft": _one_token(
            accept=lambda target, draft, x: 1.0
        ),
        "proposes again until something is accepted: that is the law of the overlap": (
            _until_accepted
        ),
        "the token is drawn from the target and the draft's only compared: two samples agree far "
        "less often than the rule accepts": _target_draws,
        "the token is drawn from the target, and a coin of its own says whether it was kept: kept "
        "is the token that the draft proposed": _separate_coin,
        "accepts with the mean rate whatever was proposed; each token has its own probability": (
            _mean_rate
        ),
        "the draft proposes its most probable token; it must be drawn from the draft's law": (
            _greedy_draft
        ),
        "always True; a replaced token was not kept": _always_true,
        "True and False are swapped: True means that the proposed token was kept": _one_token(
            kept=False
        ),
    },
    right={
        "rng.choice, no division": _token_by_choice,
        "three numbers at once": _token_three_uniforms,
        "a replacement by rejection": _token_rejection,
    },
)
