"""Lesson 09: what keeps experts evenly used, a loss in training or a bias of the choice."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

from grader.checks.moe.lesson import LESSON
from grader.checks.moe.router import as_pair
from grader.judging.compare import Comparison
from grader.judging.exercise import Exercise, Inputs, given
from inferlab.moe import biased_router_weights, load_balance_loss
from inferlab.operators import softmax

# ---- load_balance_loss --------------------------------------------------------------------------


def _draw_loss(rng: np.random.Generator) -> Inputs:
    """The last expert is chosen by nobody, and some are liked far more than others."""
    n_tokens, n_experts = int(rng.integers(7, 12)), int(rng.integers(6, 9))
    probabilities = softmax(
        rng.normal(size=(n_tokens, n_experts)) + 1.5 * rng.normal(size=n_experts)
    )
    experts = np.argsort(-probabilities[:, :-1], axis=-1)[:, :3]
    return {
        "probabilities": probabilities,
        "experts": experts,
        "alpha": float(rng.choice([0.01, 0.5, 3.0])),
    }


def _f(probabilities: np.ndarray, experts: np.ndarray) -> np.ndarray:
    return np.bincount(experts.ravel(), minlength=probabilities.shape[1]) / experts.size


def _loss(change: Callable[[Any, Any, Any, int], Any]) -> Callable:
    """load_balance_loss, where change(f, P, probabilities, n_experts) stands before alpha."""

    def answer(probabilities, experts, alpha=1.0):
        f, mean = _f(probabilities, experts), probabilities.mean(axis=0)
        return alpha * change(f, mean, probabilities, probabilities.shape[1])

    return answer


def _loss_loop(probabilities, experts, alpha=1.0):
    n_tokens, n_experts = probabilities.shape
    counts = Counter(experts.ravel().tolist())
    total = 0.0
    for e in range(n_experts):
        mean = sum(row[e] for row in probabilities.tolist()) / n_tokens
        total += counts[e] / experts.size * mean
    return alpha * n_experts * total


def _loss_torch(probabilities, experts, alpha=1.0):
    import torch

    p = torch.from_numpy(probabilities)
    chosen = torch.nn.functional.one_hot(torch.from_numpy(experts), p.shape[1]).double()
    return alpha * p.shape[1] * (chosen.mean(dim=(0, 1)) @ p.mean(dim=0))


def _loss_by_choices(probabilities, experts, alpha=1.0):
    """Each choice pays the mean probability of its expert."""
    return alpha * probabilities.shape[1] * probabilities.mean(axis=0)[experts].mean()


def _chosen_only(probabilities, experts, alpha=1.0):
    kept = np.zeros_like(probabilities)
    np.put_along_axis(kept, experts, np.take_along_axis(probabilities, experts, -1), -1)
    kept /= kept.sum(axis=-1, keepdims=True)
    f = _f(probabilities, experts)
    return alpha * probabilities.shape[1] * float(f @ kept.mean(axis=0))


def _chosen_as_they_are(probabilities, experts, alpha=1.0):
    kept = np.zeros_like(probabilities)
    np.put_along_axis(kept, experts, np.take_along_axis(probabilities, experts, -1), -1)
    return alpha * probabilities.shape[1] * float(_f(probabilities, experts) @ kept.mean(axis=0))


def _counted(probabilities, experts, alpha=1.0):
    n_seen = int(experts.max()) + 1
    return _loss_loop(probabilities, experts, alpha) * n_seen / probabilities.shape[1]


def _first_choice(probabilities, experts, alpha=1.0):
    f = _f(probabilities, experts[:, :1])
    return alpha * probabilities.shape[1] * float(f @ probabilities.mean(axis=0))


def _no_minlength(probabilities, experts, alpha=1.0):
    f = np.bincount(experts.ravel()) / experts.size
    return float(alpha * probabilities.shape[1] * np.sum(f * probabilities.mean(axis=0)))


EVEN = np.full((4, 4), 0.25)

LOSS = Exercise(
    id="load_balance_loss",
    reference=load_balance_loss,
    lesson=LESSON,
    points=2,
    minutes=10,
    difficulty=3,
    hints=(
        "f has n_experts numbers: count how often each expert stands in `experts`, divide by how "
        "many entries there are. P has as many: probabilities.mean(axis=0).",
        "np.bincount(experts.ravel(), minlength=n_experts) counts; without minlength the last "
        "experts are missing where nobody chose them.",
        "alpha * n_experts * np.sum(f * P), with n_experts = probabilities.shape[-1]",
    ),
    cases=(
        given("the worked example", probabilities=np.array([[0.7, 0.3], [0.6, 0.4]]),
              experts=np.array([[0], [0]])),
        given("evenly used: the loss is alpha", probabilities=EVEN,
              experts=np.array([[0, 1], [1, 2], [2, 3], [3, 0]]), alpha=0.01),
        given("one expert takes all", probabilities=np.array([[1.0, 0, 0]] * 3),
              experts=np.array([[0]] * 3)),
    ),
    draw=_draw_loss,
    comparison=Comparison(
        terms=lambda i: i["probabilities"].size,
        magnitude=lambda i: float(i.get("alpha", 1)) * i["probabilities"].shape[1],
        why="means over the tokens, then a sum over the experts",
    ),
    wrong={
        "the factor n_experts is missing: even use would then cost less with more experts": _loss(
            lambda f, P, p, n: np.sum(f * P)
        ),
        "f squared: a count has no gradient, so nothing could be learned from it": _loss(
            lambda f, P, p, n: n * np.sum(f * f)
        ),
        "P squared: the choices that were made are not in it": _loss(
            lambda f, P, p, n: n * np.sum(P * P)
        ),
        "the probabilities are added up over the tokens: P is their mean": _loss(
            lambda f, P, p, n: n * np.sum(f * p.sum(axis=0))
        ),
        "only each token's first choice is counted in f": _first_choice,
        "P over the chosen experts alone: it is the softmax over all of them": _chosen_only,
        "the probabilities go through a softmax again": _loss(
            lambda f, P, p, n: n * np.sum(f * softmax(p).mean(axis=0))
        ),
        "alpha is ignored": lambda probabilities, experts, alpha=1.0: _loss_loop(
            probabilities, experts
        ),
        "divided by the number of tokens, not of choices: f must sum to 1": (
            lambda probabilities, experts, alpha=1.0: (
                experts.shape[1] * _loss_loop(probabilities, experts, alpha)
            )
        ),
        "counts in place of shares: f must sum to 1": (
            lambda probabilities, experts, alpha=1.0: (
                experts.size * _loss_loop(probabilities, experts, alpha)
            )
        ),
        "the least possible value is taken off: even use gives alpha here, not 0": _loss(
            lambda f, P, p, n: n * np.sum(f * P) - 1
        ),
        "the mean over the experts: n_experts times the sum": _loss(
            lambda f, P, p, n: np.mean(f * P)
        ),
        "n_experts counted from the choices: the probabilities have a column for each": _counted,
        "the probabilities of the chosen experts alone": _chosen_as_they_are,
        "one number for each expert: their sum is asked": _loss(lambda f, P, p, n: n * f * P),
        "experts that nobody chose are missing in the count: np.bincount needs minlength": (
            _no_minlength
        ),
    },
    right={
        "a loop over the experts": _loss_loop,
        "torch, one-hot": _loss_torch,
        "the mean over the choices": _loss_by_choices,
    },
)  # fmt: skip

# ---- biased_router_weights ----------------------------------------------------------------------


def _draw_biased(rng: np.random.Generator) -> Inputs:
    """Biases as large as the differences between affinities, so that many choices turn."""
    n_tokens, n_experts = int(rng.integers(8, 12)), int(rng.integers(7, 11))
    return {
        "scores": 1.5 * rng.normal(size=(n_tokens, n_experts)),
        "choice_bias": 0.4 * rng.normal(size=n_experts),
        "n_chosen": int(rng.integers(3, 5)),
        "scale": float(rng.choice([2.5, 0.5])),
    }


def _drive_biased(answer: Any, inputs: Inputs) -> dict[str, Any]:
    experts, weights = as_pair(answer(**inputs))
    return {"experts": experts, "weights": weights}


def _sigmoid(scores: np.ndarray) -> np.ndarray:
    return np.exp(-np.logaddexp(0, -scores))


def _scaled(weights: Any, affinities: Any, scale: float) -> Any:
    return scale * weights / weights.sum(axis=-1, keepdims=True)


def _biased(
    affinity: Callable[[Any], Any] = _sigmoid,
    order_by: Callable[[Any, Any, Any], Any] = lambda a, bias, scores: a + bias,
    weigh_by: Callable[[Any, Any], Any] = lambda a, bias: a,
    norm: Callable[[Any, Any, float], Any] = _scaled,
    finish: Callable[[Any, Any], Any] = lambda experts, a: experts,
    sort: Callable[[Any], Any] = lambda order: np.argsort(-order, axis=-1, kind="stable"),
    check: bool = True,
) -> Callable:
    """biased_router_weights with one step replaced."""

    def answer(scores, choice_bias, n_chosen, scale=1.0):
        if check and not 1 <= n_chosen <= scores.shape[-1]:
            raise ValueError("out of range")
        a = affinity(scores)
        order = order_by(a, choice_bias, scores)
        experts = finish(sort(order)[:, :n_chosen], a)
        chosen = np.take_along_axis(weigh_by(a, choice_bias), experts, axis=-1)
        return experts, norm(chosen, a, scale)

    return answer


def _best_affinity_first(experts, a):
    by_affinity = np.argsort(-np.take_along_axis(a, experts, -1), axis=-1, kind="stable")
    return np.take_along_axis(experts, by_affinity, -1)


def _biased_loop(scores, choice_bias, n_chosen, scale=1.0):
    if not 0 < n_chosen <= len(choice_bias):
        raise ValueError("n_chosen is out of range")
    experts, weights = [], []
    for row in scores.tolist():
        a = [1 / (1 + math.exp(-s)) if s > 0 else math.exp(s) / (1 + math.exp(s)) for s in row]
        sums = [x + b for x, b in zip(a, choice_bias.tolist(), strict=True)]
        order = [e for _, e in sorted((-total, e) for e, total in enumerate(sums))][:n_chosen]
        experts.append(order)
        weights.append([a[e] * scale / sum(a[i] for i in order) for e in order])
    return experts, weights


def _biased_torch(scores, choice_bias, n_chosen, scale=1.0):
    import torch

    if n_chosen < 1 or n_chosen > scores.shape[1]:
        raise ValueError("n_chosen is out of range")
    a = torch.from_numpy(scores).sigmoid()
    sums = a + torch.from_numpy(choice_bias)
    experts = sums.sort(dim=-1, descending=True, stable=True).indices[:, :n_chosen]
    chosen = a.gather(-1, experts)
    return experts, chosen / chosen.sum(dim=-1, keepdim=True) * scale


def _biased_tanh(scores, choice_bias, n_chosen, scale=1.0):
    if n_chosen not in range(1, scores.shape[1] + 1):
        raise ValueError("n_chosen is out of range")
    return _biased(affinity=lambda s: 0.5 * (1 + np.tanh(s / 2)))(
        scores, choice_bias, n_chosen, scale
    )


def _overflowing(scores):
    return np.exp(scores) / (1 + np.exp(scores))


BIASED = Exercise(
    id="biased_router_weights",
    reference=biased_router_weights,
    lesson=LESSON,
    points=2,
    minutes=10,
    difficulty=2,
    uses=("router_weights",),
    hints=(
        "As in router_weights, but two arrays: affinities, and affinities with the bias. "
        "The second one is sorted, the first one is picked from.",
        "affinities = 1 / (1 + np.exp(-scores)); experts = np.argsort(-(affinities + choice_bias), "
        'axis=-1, kind="stable")[:, :n_chosen].',
        "weights = np.take_along_axis(affinities, experts, axis=-1); return experts, scale * "
        "weights / weights.sum(axis=-1, keepdims=True)",
    ),
    cases=(
        given("the worked example", scores=np.array([[0.0, 0.0, np.log(3.0)]]),
              choice_bias=np.array([0.1, 0.5, 0.0]), n_chosen=2),
        given("no bias, equal scores", scores=np.zeros((2, 4)), choice_bias=np.zeros(4),
              n_chosen=2),
        given("64 experts with one score for every four", scores=np.arange(64.0)[None] % 16,
              choice_bias=np.zeros(64), n_chosen=6),
        given("one chosen", scores=np.array([[0.0, 1, 2]]), choice_bias=np.array([0.9, 0, 0]),
              n_chosen=1, scale=2.5),
        given("scores of a thousand", scores=np.array([[1000.0, -1000, 1, 2]]),
              choice_bias=np.array([0.0, 0, 0.1, 0]), n_chosen=2, scale=2.5),
        given("every expert is chosen", scores=np.array([[0.0, 2, 1]]), choice_bias=np.zeros(3),
              n_chosen=3),
        given("none chosen", scores=np.zeros((1, 3)), choice_bias=np.zeros(3), n_chosen=0),
        given("more than there are", scores=np.zeros((1, 3)), choice_bias=np.zeros(3), n_chosen=4),
    ),
    draw=_draw_biased,
    drive=_drive_biased,
    comparison=Comparison(
        terms=lambda i: i["n_chosen"] + 6,
        magnitude=lambda i: float(i.get("scale", 1) * max(1.0, np.abs(i["scores"]).max())),
        why="a sigmoid, then a sum of n_chosen of them",
    ),
    wrong={
        "the bias is in the weights too: it belongs to the choice alone": _biased(
            weigh_by=lambda a, bias: a + bias
        ),
        "the bias has no say in the choice": _biased(order_by=lambda a, bias, s: a),
        "the bias is taken off: it is added": _biased(order_by=lambda a, bias, s: a - bias),
        "the bias is added to the score, before the sigmoid": _biased(
            order_by=lambda a, bias, s: _sigmoid(s + bias)
        ),
        "a softmax in place of the sigmoid": _biased(affinity=softmax),
        "the raw scores in place of their sigmoids": _biased(affinity=lambda s: s),
        "the weights are not divided by their sum": _biased(norm=lambda w, a, scale: scale * w),
        "divided by the sum over all experts: over the chosen ones": _biased(
            norm=lambda w, a, scale: scale * w / a.sum(axis=-1, keepdims=True)
        ),
        "divided by the sum over all tokens: each token's weights sum to scale": _biased(
            norm=lambda w, a, scale: scale * w / w.sum()
        ),
        "scale is forgotten, or lost when the weights are divided by their sum": _biased(
            norm=lambda w, a, scale: w / w.sum(axis=-1, keepdims=True)
        ),
        "the chosen are sorted by affinity: the largest sum comes first": _biased(
            finish=_best_affinity_first
        ),
        "exp(score) / (1 + exp(score)) is inf / inf for large scores": _biased(
            affinity=_overflowing
        ),
        "an order that is not stable: of equal sums the lower number comes first": _biased(
            sort=lambda order: np.argsort(-order, axis=-1)
        ),
        "of equal sums the higher number is chosen: a reversed argsort turns ties round": _biased(
            sort=lambda order: np.argsort(order, axis=-1, kind="stable")[:, ::-1]
        ),
        "the lowest sums are chosen": _biased(
            sort=lambda order: np.argsort(order, axis=-1, kind="stable")
        ),
        "the largest sum comes last": _biased(finish=lambda experts, a: experts[:, ::-1]),
        "the chosen are sorted by their numbers: the largest sum comes first": _biased(
            finish=lambda experts, a: np.sort(experts, axis=-1)
        ),
        "a softmax of the chosen affinities: they are divided by their sum": _biased(
            norm=lambda w, a, scale: scale * softmax(w)
        ),
        "a single chosen expert is not divided: its weight is scale": _biased(
            norm=lambda w, a, scale: _scaled(w, a, scale) if w.shape[1] > 1 else scale * w
        ),
        "divided by scale: it multiplies": _biased(norm=lambda w, a, s: _scaled(w, a, 1 / s)),
        "an impossible n_chosen is accepted": _biased(check=False),
    },
    right={
        "lists and math.exp, token by token": _biased_loop,
        "torch": _biased_torch,
        "the sigmoid as a tanh": _biased_tanh,
    },
)  # fmt: skip
