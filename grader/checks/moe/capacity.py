"""Lesson 09: experts with limited room, and whose choices are served."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np

from grader.checks.moe.lesson import LESSON
from grader.judging.exercise import Exercise, Inputs, given
from inferlab.moe import expert_capacity, within_capacity

# ---- expert_capacity ----------------------------------------------------------------------------


def _draw_capacity(rng: np.random.Generator) -> Inputs:
    """Drawn until rounding up, down and to the nearest differ."""
    while True:
        inputs = {
            "n_tokens": int(rng.integers(30, 900)),
            "n_experts": int(rng.choice([6, 7, 12, 20])),
            "n_chosen": int(rng.integers(2, 5)),
            "capacity_factor": float(rng.choice([1.25, 1.5, 2.0, 2.5])),
        }
        if 0.05 < _even(**inputs) % 1 < 0.45:
            return inputs


def _even(n_tokens, n_experts, n_chosen, capacity_factor=1.0) -> float:
    return capacity_factor * n_chosen * n_tokens / n_experts


def _capacity(change: Callable[[int, int, int, float], Any]) -> Callable:
    """expert_capacity by change(n_tokens, n_experts, n_chosen, capacity_factor)."""

    def answer(n_tokens, n_experts, n_chosen, capacity_factor=1.0):
        return change(n_tokens, n_experts, n_chosen, capacity_factor)

    return answer


def _counting_up(n: int, E: int, k: int, c: float) -> int:
    room = 0
    while room * E < c * k * n:
        room += 1
    return room


CAPACITY = Exercise(
    id="expert_capacity",
    reference=expert_capacity,
    lesson=LESSON,
    points=1,
    minutes=4,
    difficulty=1,
    hints=(
        "How many choices are there in all? Shared out evenly, how many is that for each expert?",
        "capacity_factor * n_chosen * n_tokens / n_experts, rounded up to a whole number.",
        "math.ceil(...) rounds up and gives an int.",
    ),
    cases=(
        given("10 tokens, 4 experts, 1 chosen, 1.25", n_tokens=10, n_experts=4, n_chosen=1,
              capacity_factor=1.25),
        given("9 tokens, 4 experts, 1 chosen, 1.25", n_tokens=9, n_experts=4, n_chosen=1,
              capacity_factor=1.25),
        given("64 tokens, 8 experts, 2 chosen: exactly 16", n_tokens=64, n_experts=8, n_chosen=2),
        given("one token, 8 experts, 2 chosen", n_tokens=1, n_experts=8, n_chosen=2),
        given("3 tokens, 4 experts, 2 chosen, 4.0: more room than tokens", n_tokens=3, n_experts=4,
              n_chosen=2, capacity_factor=4.0),
        given("90 tokens, 8 experts, 2 chosen, 0.5", n_tokens=90, n_experts=8, n_chosen=2,
              capacity_factor=0.5),
        given("512 tokens, 16 experts, 2 chosen, 1.5", n_tokens=512, n_experts=16, n_chosen=2,
              capacity_factor=1.5),
    ),
    draw=_draw_capacity,
    wrong={
        "rounded down: 3.125 rows need room for 4": _capacity(
            lambda n, E, k, c: math.floor(c * k * n / E)
        ),
        "rounded to the nearest: 3.125 rows need room for 4": _capacity(
            lambda n, E, k, c: round(c * k * n / E)
        ),
        "one too many where it comes out even": _capacity(
            lambda n, E, k, c: math.floor(c * k * n / E) + 1
        ),
        "n_chosen is forgotten: every token makes that many choices": _capacity(
            lambda n, E, k, c: math.ceil(c * n / E)
        ),
        "capacity_factor is ignored": _capacity(lambda n, E, k, c: math.ceil(k * n / E)),
        "rounded before the factor: multiply first, then round up once": _capacity(
            lambda n, E, k, c: math.ceil(c * math.ceil(k * n / E))
        ),
        "rounded down before the factor: multiply first, then round up once": _capacity(
            lambda n, E, k, c: math.ceil(c * (k * n // E))
        ),
        "cut at n_tokens: the room is asked, whether it can be filled or not": _capacity(
            lambda n, E, k, c: min(n, math.ceil(c * k * n / E))
        ),
        "a factor below 1 is taken as 1": _capacity(
            lambda n, E, k, c: math.ceil(max(1, c) * k * n / E)
        ),
        "at least 4 rows, as some libraries give: no least room is asked": _capacity(
            lambda n, E, k, c: max(4, math.ceil(c * k * n / E))
        ),
        "divided by the factor: it multiplies": _capacity(
            lambda n, E, k, c: math.ceil(k * n / E / c)
        ),
        "experts and tokens are swapped": _capacity(lambda n, E, k, c: math.ceil(c * k * E / n)),
        "divided by n_chosen too: it multiplies": _capacity(
            lambda n, E, k, c: math.ceil(c * n / (E * k))
        ),
        "not rounded: a number of rows is whole": _capacity(lambda n, E, k, c: c * k * n / E),
        "the room of all experts together": _capacity(lambda n, E, k, c: math.ceil(c * k * n)),
    },
    right={
        "minus the floor of minus": _capacity(lambda n, E, k, c: int(-((-c * k * n) // E))),
        "fractions": _capacity(lambda n, E, k, c: math.ceil(Fraction(c) * k * n / E)),
        "counted up": _capacity(_counting_up),
    },
)  # fmt: skip

# ---- within_capacity ----------------------------------------------------------------------------


def _draw_served(rng: np.random.Generator) -> Inputs:
    """Some experts are liked by most tokens, and in the second place as well."""
    n_tokens, n_experts = int(rng.integers(9, 13)), int(rng.integers(5, 8))
    liking = rng.normal(size=(n_tokens, n_experts)) + 1.5 * rng.normal(size=n_experts)
    return {"experts": np.argsort(-liking, axis=-1)[:, :3], "capacity": int(rng.integers(2, 5))}


def _places_first(n_tokens: int, n_chosen: int) -> list[tuple[int, int]]:
    return [(token, place) for place in range(n_chosen) for token in range(n_tokens)]


def _serve(
    order: Callable[[int, int], Any] = _places_first,
    full: Callable[[int, int], bool] = lambda used, capacity: used >= capacity,
    key: Callable[[int, int, int], Any] = lambda e, t, p: e,
) -> Callable:
    """within_capacity in another order, with another limit, or another thing that is counted."""

    def answer(experts, capacity):
        served = np.zeros(experts.shape, bool)
        used: dict[Any, int] = {}
        for token, place in order(*experts.shape):
            what = key(int(experts[token, place]), token, place)
            if not full(used.get(what, 0), capacity):
                served[token, place] = True
                used[what] = used.get(what, 0) + 1
        return served

    return answer


def _cumulative(experts, capacity):
    """One-hot rows in the order of service; how many of the same stand up to here?"""
    flat = experts.T.ravel()
    hot = flat[:, None] == np.arange(experts.max() + 1)
    rank = (hot.cumsum(axis=0) * hot).sum(axis=1)
    return (rank <= capacity).reshape(experts.T.shape).T


def _sorted_ranks(experts, capacity):
    """Sorted by expert: the rank within its group says who is served."""
    flat = experts.T.ravel()
    order = np.argsort(flat, kind="stable")
    first = np.searchsorted(flat[order], flat[order])
    served = np.empty(flat.shape, bool)
    served[order] = np.arange(flat.size) - first < capacity
    return served.reshape(experts.T.shape).T


def _lists(experts, capacity):
    rows, used = experts.tolist(), [0] * (int(experts.max()) + 1)
    served = [[False] * len(row) for row in rows]
    for place in range(len(rows[0])):
        for token, row in enumerate(rows):
            used[row[place]] += 1
            served[token][place] = used[row[place]] <= capacity
    return served


def _all_or_nothing(experts, capacity):
    served = _sorted_ranks(experts, capacity)
    return served & served.all(axis=1, keepdims=True)


def _second_only_if_needed(experts, capacity):
    served = _sorted_ranks(experts, capacity)
    return served & (served.cumsum(axis=1) == 1)


def _place_at_once(experts, capacity):
    used, served = np.zeros(int(experts.max()) + 1, int), np.zeros(experts.shape, bool)
    for place, chosen in enumerate(experts.T):
        served[:, place] = used[chosen] < capacity
        np.add.at(used, chosen[served[:, place]], 1)
    return served


def _only_behind_served(experts, capacity):
    used, served = np.zeros(int(experts.max()) + 1, int), np.zeros(experts.shape, bool)
    for token, place in _places_first(*experts.shape):
        e = experts[token, place]
        served[token, place] = served[token, :place].all() and used[e] < capacity
        used[e] += served[token, place]
    return served


def _stops_when_full(experts, capacity):
    used, served = np.zeros(int(experts.max()) + 1, int), np.zeros(experts.shape, bool)
    for place, chosen in enumerate(experts.T):
        for token, e in enumerate(chosen):
            if used[e] >= capacity:
                break
            served[token, place] = True
            used[e] += 1
    return served


SERVED = Exercise(
    id="within_capacity",
    reference=within_capacity,
    lesson=LESSON,
    points=2,
    minutes=10,
    difficulty=3,
    hints=(
        "Keep a count for each expert of how many it has served. Go through the choices in the "
        "order that the statement gives.",
        "The outer loop runs over the places (columns), the inner one over the tokens (rows): all "
        "first choices come before any second one.",
        "served[token, place] = n_served[expert] < capacity; then n_served[expert] += 1 if it is.",
    ),
    cases=(
        given("the worked example", experts=np.array([[0, 1], [0, 2], [2, 0]]), capacity=1),
        given("a second choice waits for all first ones",
              experts=np.array([[1, 0], [0, 1], [0, 1]]), capacity=2),
        given("room for all", experts=np.array([[0, 1], [1, 0]]), capacity=2),
        given("no room at all", experts=np.array([[0, 1], [1, 0]]), capacity=0),
    ),
    draw=_draw_served,
    wrong={
        "token by token: all first choices come before any second choice": _serve(
            order=lambda n, k: ((t, p) for t in range(n) for p in range(k))
        ),
        "the last tokens come first": _serve(
            order=lambda n, k: ((t, p) for p in range(k) for t in reversed(range(n)))
        ),
        "the last choices come first": _serve(
            order=lambda n, k: ((t, p) for p in reversed(range(k)) for t in range(n))
        ),
        "one row too many: served while fewer than capacity were": _serve(
            full=lambda used, capacity: used > capacity
        ),
        "one row too few: an expert takes capacity rows": _serve(
            full=lambda used, capacity: used >= capacity - 1
        ),
        "the room is shared by all experts: each has its own": _serve(key=lambda e, t, p: "all"),
        "each place of the choice has room of its own: an expert's room is one": _serve(
            key=lambda e, t, p: (e, p)
        ),
        "the room is counted for each token: it is the expert's": _serve(key=lambda e, t, p: t),
        "True where there was no room: True means served": lambda experts, capacity: (
            ~_sorted_ranks(experts, capacity)
        ),
        "a token with one full expert loses the others too: each choice stands alone": (
            _all_or_nothing
        ),
        "the second expert only where the first is full: a token takes all that have room": (
            _second_only_if_needed
        ),
        "a whole place at once: a choice counts as soon as it is served": _place_at_once,
        "later choices only where all earlier ones were served: each choice stands alone": (
            _only_behind_served
        ),
        "it ends a place at the first full expert: the others may have room": _stops_when_full,
        "nobody is refused": lambda experts, capacity: np.ones(experts.shape, bool),
    },
    right={
        "cumulated one-hot rows": _cumulative,
        "sorted by expert": _sorted_ranks,
        "lists": _lists,
    },
)  # fmt: skip
