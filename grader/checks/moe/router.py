"""Lesson 09: whom the router chooses with which weight, and who gets whom."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from grader.checks.moe.lesson import LESSON
from grader.judging.compare import Comparison
from grader.judging.exercise import Exercise, Inputs, given
from inferlab.moe import route, router_weights
from inferlab.operators import softmax

# ---- router_weights -----------------------------------------------------------------------------


def _draw_scores(rng: np.random.Generator) -> Inputs:
    n_tokens, n_experts = int(rng.integers(5, 9)), int(rng.integers(9, 13))
    scores = 1.5 * rng.normal(size=(n_tokens, n_experts))
    return {"scores": scores, "n_chosen": int(rng.integers(3, 6))}


def as_pair(found: Any) -> tuple[Any, Any]:
    """What an answer returned, as experts and weights; None where there is no second."""
    if isinstance(found, (tuple, list)) and len(found) == 2:
        return found[0], found[1]
    return found, None


def _drive_weights(answer: Any, inputs: Inputs) -> dict[str, Any]:
    seen = {}
    for norm_topk in (True, False):
        experts, weights = as_pair(answer(**inputs, norm_topk=norm_topk))
        seen[f"experts, with norm_topk={norm_topk}"] = experts
        seen[f"weights, with norm_topk={norm_topk}"] = weights
    seen["weights, with norm_topk left out"] = as_pair(answer(**inputs))[1]
    return seen


def _best(scores: np.ndarray, n_chosen: int) -> np.ndarray:
    return np.argsort(-scores, axis=-1, kind="stable")[:, :n_chosen]


def _take(values: np.ndarray, experts: np.ndarray) -> np.ndarray:
    return np.take_along_axis(values, experts, axis=-1)


def _normed(weights: np.ndarray, norm_topk: bool) -> np.ndarray:
    return weights / weights.sum(axis=-1, keepdims=True) if norm_topk else weights


def _router(
    choose: Callable[[Any, int], Any] = _best,
    probabilities: Callable[[Any], Any] = softmax,
    norm: Callable[[Any, bool], Any] = _normed,
    check: bool = True,
) -> Callable:
    """router_weights with one step replaced."""

    def answer(scores, n_chosen, norm_topk=True):
        if check and not 1 <= n_chosen <= scores.shape[-1]:
            raise ValueError("out of range")
        experts = choose(scores, n_chosen)
        return experts, norm(_take(probabilities(scores), experts), norm_topk)

    return answer


def _zeros_for_the_rest(scores, n_chosen, norm_topk=True):
    if not 1 <= n_chosen <= scores.shape[-1]:
        raise ValueError("out of range")
    experts, masked = _best(scores, n_chosen), np.zeros_like(scores)
    np.put_along_axis(masked, experts, _take(scores, experts), axis=-1)
    return experts, _normed(_take(softmax(masked), experts), norm_topk)


def _no_max(scores):
    return np.exp(scores) / np.exp(scores).sum(axis=-1, keepdims=True)


def _router_loop(scores, n_chosen, norm_topk=True):
    if n_chosen not in range(1, len(scores[0]) + 1):
        raise ValueError(f"n_chosen={n_chosen} is out of range")
    experts, weights = [], []
    for row in scores.tolist():
        order = sorted(range(len(row)), key=lambda e: (-row[e], e))[:n_chosen]
        powers = [math.exp(s - max(row)) for s in row]
        total = sum(powers[e] for e in order) if norm_topk else sum(powers)
        experts.append(order)
        weights.append([powers[e] / total for e in order])
    return experts, weights


def _router_torch(scores, n_chosen, norm_topk=True):
    import torch  # takes a second, and only the tests call this

    if n_chosen < 1 or n_chosen > scores.shape[1]:
        raise ValueError("n_chosen is out of range")
    values, experts = torch.from_numpy(scores).sort(dim=-1, descending=True, stable=True)
    values, experts = values[:, :n_chosen], experts[:, :n_chosen]
    if norm_topk:
        return experts, values.softmax(dim=-1)
    whole = torch.from_numpy(scores).logsumexp(dim=-1, keepdim=True)
    return experts, (values - whole).exp()


def _router_one_by_one(scores, n_chosen, norm_topk=True):
    """The best, struck out; then the best of the rest. A softmax of the chosen scores."""
    if n_chosen < 1 or scores.shape[1] < n_chosen:
        raise ValueError("n_chosen is out of range")
    left, experts = scores.astype(np.float64), []
    for _ in range(n_chosen):
        experts.append(left.argmax(axis=-1))
        left[np.arange(len(left)), experts[-1]] = -np.inf
    chosen = np.stack(experts, axis=-1)
    return chosen, softmax(_take(scores, chosen)) if norm_topk else _take(softmax(scores), chosen)


WEIGHTS = Exercise(
    id="router_weights",
    reference=router_weights,
    lesson=LESSON,
    points=3,
    minutes=12,
    difficulty=2,
    hints=(
        "Two questions, one after the other: which experts (an order of the scores), and with "
        "which weight (a softmax of all scores, of which you pick some).",
        'np.argsort(-scores, axis=-1, kind="stable")[:, :n_chosen] gives the best first, and of '
        "equals the lower number. np.take_along_axis(values, experts, axis=-1) picks.",
        "weights = np.take_along_axis(softmax(scores), experts, axis=-1); with norm_topk divide by "
        "weights.sum(axis=-1, keepdims=True). Before all that: the ValueError.",
    ),
    cases=(
        given("the worked example", scores=np.log([[1.0, 2.0, 5.0]]), n_chosen=2),
        given("scores 2, 1, 0, -1", scores=np.array([[2.0, 1.0, 0.0, -1.0]]), n_chosen=2),
        given("all scores alike", scores=np.zeros((2, 5)), n_chosen=3),
        given(
            "64 experts with one score for every four",
            n_chosen=6,
            scores=np.stack([np.arange(64.0) % 16, -(np.arange(64.0) % 16)]),
        ),
        given("one chosen", scores=np.array([[0.5, 2, 1], [1, 0, -3]]), n_chosen=1),
        given(
            "scores in the thousands, of either sign",
            n_chosen=3,
            scores=np.array([[3000.0, 2999, 0, 2998], [-3000, -2999, -6000, -2998]]),
        ),
        given(
            "scores so far apart that two probabilities are 0",
            scores=np.array([[0.0, 3000, 1000, 2999]]),
            n_chosen=4,
        ),
        given("every expert is chosen", scores=np.array([[0.0, 2, 1], [1, 0, 3]]), n_chosen=3),
        given("none chosen", scores=np.zeros((2, 4)), n_chosen=0),
        given("more than there are", scores=np.zeros((2, 4)), n_chosen=5),
        given("float32", scores=np.array([[0.5, -1, 2, 0.25]], np.float32), n_chosen=2),
    ),
    draw=_draw_scores,
    drive=_drive_weights,
    comparison=Comparison(
        terms=lambda i: i["scores"].shape[-1] + 2,
        magnitude=lambda i: max(1.0, float(np.abs(i["scores"]).max())),
        why="a softmax over n_experts scores; an error in a score counts in proportion to it",
    ),
    wrong={
        "always divided by the sum of the chosen: without norm_topk they stay as they are": _router(
            norm=lambda w, norm_topk: _normed(w, True)
        ),
        "never divided by the sum of the chosen: with norm_topk they must sum to 1": _router(
            norm=lambda w, norm_topk: w
        ),
        "norm_topk is taken the wrong way round": _router(
            norm=lambda w, norm_topk: _normed(w, not norm_topk)
        ),
        "divided by the sum over all tokens: each token's weights sum to 1": _router(
            norm=lambda w, norm_topk: w / w.sum() if norm_topk else w
        ),
        "the softmax runs over the tokens; it must run over the experts of each token": _router(
            probabilities=lambda s: softmax(s.T).T
        ),
        "the softmax is taken twice": _router(probabilities=lambda s: softmax(softmax(s))),
        "weights in proportion to the scores: exponentials are missing": _router(
            probabilities=lambda s: s / s.sum(axis=-1, keepdims=True)
        ),
        "the experts with the lowest scores are chosen": _router(
            choose=lambda s, n: np.argsort(s, axis=-1, kind="stable")[:, :n]
        ),
        "the best expert comes last: argsort is ascending": _router(
            choose=lambda s, n: _best(s, n)[:, ::-1]
        ),
        "an order that is not stable: of equal scores the lower number comes first": _router(
            choose=lambda s, n: np.argsort(-s, axis=-1)[:, :n]
        ),
        "chosen by probability: where two of them are 0 only the scores tell them apart": _router(
            choose=lambda s, n: _best(softmax(s), n)
        ),
        "the largest of all scores is subtracted: each token's own, or its row becomes 0": _router(
            probabilities=lambda s: _no_max(s - s.max())
        ),
        "a softmax of the chosen probabilities: they are divided by their sum": _router(
            norm=lambda w, norm_topk: softmax(w) if norm_topk else w
        ),
        "the other way round: first the experts, then their weights": (
            lambda scores, n_chosen, norm_topk=True: _router()(scores, n_chosen, norm_topk)[::-1]
        ),
        "the chosen experts are sorted by their numbers: the best comes first": _router(
            choose=lambda s, n: np.sort(_best(s, n), axis=-1)
        ),
        "of equal scores the higher number is chosen: a reversed argsort turns ties round": _router(
            choose=lambda s, n: np.argsort(s, axis=-1, kind="stable")[:, ::-1][:, :n]
        ),
        "all chosen experts get the same weight": _router(
            probabilities=lambda s: np.ones_like(s) / s.shape[-1]
        ),
        "np.exp of the raw scores overflows: subtract the largest first, as softmax does": _router(
            probabilities=_no_max
        ),
        "a score of 0 for the others still counts in the softmax: exp(0) is 1": _zeros_for_the_rest,
        "an impossible n_chosen is accepted": _router(check=False),
    },
    right={
        "lists and math.exp, token by token": _router_loop,
        "torch, a softmax of the chosen scores": _router_torch,
        "the best, struck out, then the best of the rest": _router_one_by_one,
    },
)

# ---- route --------------------------------------------------------------------------------------


def _draw_experts(rng: np.random.Generator) -> Inputs:
    """Choices of the first experts only: one in the middle and the last ones get nobody."""
    n_tokens, n_used = int(rng.integers(6, 10)), int(rng.integers(5, 8))
    lonely = int(rng.integers(1, n_used - 1))
    free = [e for e in range(n_used) if e != lonely]
    rows = [rng.permutation(free)[:3] for _ in range(n_tokens)]
    return {"experts": np.array(rows), "n_experts": n_used + int(rng.integers(1, 3))}


def _drive_route(answer: Any, inputs: Inputs) -> Any:
    """As it was returned, but an empty list counts as an array of no whole numbers."""
    found = answer(**inputs)
    if not isinstance(found, (list, tuple)):
        return found
    return [tuple(_whole(part) for part in as_pair(_rows(pair))) for pair in found]


def _rows(pair: Any) -> Any:
    """An array of two rows is a pair of them."""
    return list(pair) if getattr(pair, "ndim", 0) == 2 and len(pair) == 2 else pair


def _whole(part: Any) -> Any:
    empty = hasattr(part, "__len__") and len(part) == 0
    return np.zeros(0, dtype=int) if empty else part


def _route_loop(experts, n_experts):
    out: list[tuple[list[int], list[int]]] = [([], []) for _ in range(n_experts)]
    for token, row in enumerate(experts.tolist()):
        for place, expert in enumerate(row):
            out[expert][0].append(token)
            out[expert][1].append(place)
    return out


def _route_sorted(experts, n_experts):
    """All choices sorted by expert, then cut at the places where the expert changes."""
    flat = experts.ravel()
    order = np.argsort(flat, kind="stable")
    cuts = np.searchsorted(flat[order], np.arange(1, n_experts))
    return [np.divmod(part, experts.shape[1]) for part in np.split(order, cuts)]


def _route_torch(experts, n_experts):
    import torch

    chosen = torch.from_numpy(experts)
    return [(chosen == e).nonzero(as_tuple=True) for e in range(n_experts)]


ROUTE = Exercise(
    id="route",
    reference=route,
    lesson=LESSON,
    points=1,
    minutes=6,
    difficulty=2,
    hints=(
        "For one expert: at which positions of the array `experts` does its number stand? A "
        "position is a row (the token) and a column (the place).",
        "experts == e is an array of True and False; np.nonzero of it gives the rows and the "
        "columns of the True ones.",
        "[np.nonzero(experts == e) for e in range(n_experts)]",
    ),
    cases=(
        given("the worked example", experts=np.array([[2, 0], [0, 1]]), n_experts=4),
        given("one token, one choice", experts=np.array([[1]]), n_experts=2),
        given("everybody chooses the same", experts=np.array([[1], [1], [1]]), n_experts=3),
    ),
    draw=_draw_experts,
    drive=_drive_route,
    wrong={
        "tokens and places are swapped": lambda experts, n_experts: [
            np.nonzero(experts == e)[::-1] for e in range(n_experts)
        ],
        "experts without tokens are left out: the list has a pair for every expert": (
            lambda experts, n_experts: [np.nonzero(experts == e) for e in np.unique(experts)]
        ),
        "the last experts are missing where nobody chose them: go up to n_experts": (
            lambda experts, n_experts: [
                np.nonzero(experts == e) for e in range(int(experts.max()) + 1)
            ]
        ),
        "only each token's first choice is routed": lambda experts, n_experts: [
            np.nonzero(experts[:, :1] == e) for e in range(n_experts)
        ],
        "positions in the flattened array: a token's number is its row": (
            lambda experts, n_experts: [
                (np.flatnonzero(experts == e), np.nonzero(experts == e)[1])
                for e in range(n_experts)
            ]
        ),
        "pairs (token, place), as np.argwhere gives them: two arrays are asked": (
            lambda experts, n_experts: [np.argwhere(experts == e) for e in range(n_experts)]
        ),
        "the tokens alone: the places are missing": lambda experts, n_experts: [
            np.nonzero(experts == e)[0] for e in range(n_experts)
        ],
        "the rank among the expert's tokens: the place is that in the token's choice": (
            lambda experts, n_experts: [
                (np.nonzero(experts == e)[0], np.arange((experts == e).sum()))
                for e in range(n_experts)
            ]
        ),
        "the places are counted from 1": lambda experts, n_experts: [
            (np.nonzero(experts == e)[0], np.nonzero(experts == e)[1] + 1) for e in range(n_experts)
        ],
        "every place is 0: a token may take this expert as its second choice": (
            lambda experts, n_experts: [
                (np.nonzero(experts == e)[0], 0 * np.nonzero(experts == e)[1])
                for e in range(n_experts)
            ]
        ),
        "first all first choices, then the second ones: tokens must be in ascending order": (
            lambda experts, n_experts: [np.nonzero(e == experts.T)[::-1] for e in range(n_experts)]
        ),
        "what each token takes, not which tokens each expert gets": lambda experts, n_experts: [
            (row, np.arange(len(row))) for row in experts
        ],
    },
    right={
        "a loop over tokens, lists": _route_loop,
        "sorted by expert and cut": _route_sorted,
        "torch": _route_torch,
        "an array of two rows for each expert": lambda experts, n_experts: [
            np.array(np.nonzero(experts == e)) for e in range(n_experts)
        ],
    },
)
