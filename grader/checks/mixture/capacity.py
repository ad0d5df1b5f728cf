"""Lesson 09: experts with limited room, and the tokens that find no place."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np

from grader.checks.mixture.lesson import LESSON
from grader.compare import Comparison
from grader.exercise import Exercise, Inputs, given
from inferlab.moe import add_served, expert_capacity, within_capacity

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
        "nobody is refused": lambda experts, capacity: np.ones(experts.shape, bool),
    },
    right={
        "cumulated one-hot rows": _cumulative,
        "sorted by expert": _sorted_ranks,
        "lists": _lists,
    },
)  # fmt: skip

# ---- add_served ---------------------------------------------------------------------------------


def _draw_add(rng: np.random.Generator) -> Inputs:
    """Some tokens lose one choice, one loses all of them, the first expert serves nobody."""
    n_tokens, n_experts, d_model = (int(rng.integers(*s)) for s in ((6, 9), (5, 8), (4, 7)))
    experts = np.array([1 + rng.permutation(n_experts - 1)[:3] for _ in range(n_tokens)])
    served = rng.random(experts.shape) < 0.6
    served[1], served[2] = False, True
    return {
        "stream": 3 * rng.normal(size=(n_tokens, d_model)),
        "normed": rng.normal(size=(n_tokens, d_model)),
        "experts": experts,
        "weights": rng.dirichlet(np.ones(3), size=n_tokens),
        "served": served,
        "w_expert": rng.normal(size=(n_experts, d_model, d_model)),
    }


def _one_token(served: bool) -> Inputs:
    return {
        "stream": np.array([[3.0, 4.0]]), "normed": np.array([[1.0, 2.0]]),
        "experts": np.array([[0]]), "weights": np.array([[1.0]]), "served": np.array([[served]]),
        "w_expert": 10 * np.eye(2)[None],
    }  # fmt: skip


def _drive_add(answer: Any, inputs: Inputs) -> dict[str, Any]:
    """run_expert is a bend and a matrix; it notes how many rows it gets."""
    w_expert, calls = inputs["w_expert"], []

    def run_expert(e: int, rows: np.ndarray) -> np.ndarray:
        calls.append((int(e), len(rows)))
        return (rows + 0.1 * rows**3) @ w_expert[e]

    given = {name: value for name, value in inputs.items() if name != "w_expert"}
    out = answer(**given, run_expert=run_expert)
    return {"new stream": out, "(expert, rows) that were run": [list(c) for c in sorted(calls)]}


def _add(
    base: Callable[[Any, Any], Any] = lambda stream, normed: stream.copy(),
    read: Callable[[Any, Any], Any] = lambda stream, normed: normed,
    weigh: Callable[[Any, Any], Any] = lambda weights, served: weights,
    who: Callable[[Any], Any] = lambda served: served,
    place: Callable[[Any], Any] = lambda places: places,
    overwrite: bool = False,
    finish: Callable[[Any, Any], Any] = lambda out, served: out,
) -> Callable:
    """add_served with one step replaced."""

    def answer(stream, normed, experts, weights, served, run_expert):
        out, rows = base(stream, normed), read(stream, normed)
        weights, kept = weigh(weights, served), who(served)
        for e in np.unique(experts[kept]):
            tokens, places = np.nonzero((experts == e) & kept)
            more = weights[tokens, place(places), None] * run_expert(int(e), rows[tokens])
            out[tokens] = stream[tokens] + more if overwrite else out[tokens] + more
        return finish(out, served)

    return answer


def _share_out(weights, served):
    kept = np.where(served, weights, 0)
    total = kept.sum(axis=1, keepdims=True)
    return np.divide(kept, total, out=kept, where=total > 0)


def _dropped_rows_run(stream, normed, experts, weights, served, run_expert):
    """The right stream, but rows that are not served are run and thrown away."""
    kept, out = np.where(served, weights, 0), stream.copy()
    for e in np.unique(experts):
        tokens, places = np.nonzero(experts == e)
        out[tokens] += kept[tokens, places, None] * run_expert(int(e), normed[tokens])
    return out


def _every_expert_called(stream, normed, experts, weights, served, run_expert):
    out = stream.copy()
    for e in range(experts.max() + 1):
        tokens, places = np.nonzero((experts == e) & served)
        out[tokens] += weights[tokens, places, None] * run_expert(e, normed[tokens])
    return out


def _add_lists(stream, normed, experts, weights, served, run_expert):
    out = stream.tolist()
    for e in sorted(set(experts[served].tolist())):
        mine = [(t, p) for t, row in enumerate(experts.tolist()) for p, x in enumerate(row)
                if x == e and served[t, p]]  # fmt: skip
        answers = run_expert(e, normed[[t for t, _ in mine]])
        for (t, p), row in zip(mine, answers, strict=True):
            out[t] = [a + float(weights[t, p]) * b for a, b in zip(out[t], row, strict=True)]
    return out


def _add_in_the_end(stream, normed, experts, weights, served, run_expert):
    """All answers first, in an array with a row for each choice; one sum at the end."""
    answers = np.zeros((*experts.shape, stream.shape[1]))
    for e in dict.fromkeys(experts[served].tolist()):
        mine = (experts == e) & served
        answers[mine] = run_expert(e, normed[np.nonzero(mine)[0]])
    return stream + np.einsum("nk,nkd->nd", weights, answers)


def _add_scattered(stream, normed, experts, weights, served, run_expert):
    out = stream
    for e in np.unique(experts[served]):
        tokens, places = np.nonzero((experts == e) & served)
        rows = np.zeros_like(stream)
        np.add.at(rows, tokens, weights[tokens, places, None] * run_expert(e, normed[tokens]))
        out = out + rows
    return out


ADD = Exercise(
    id="add_served",
    reference=add_served,
    lesson=LESSON,
    points=2,
    minutes=10,
    difficulty=3,
    uses=("within_capacity",),
    hints=(
        "Begin with a copy of the stream. A choice that is not served changes nothing in it, so "
        "you need not do anything for it.",
        "For each expert that stands in experts[served]: tokens, places = "
        "np.nonzero((experts == e) & served).",
        "out[tokens] += weights[tokens, places, None] * run_expert(int(e), normed[tokens])",
    ),
    cases=(
        given("the worked example, served", **_one_token(True)),
        given("the worked example, not served", **_one_token(False)),
    ),
    draw=_draw_add,
    drive=_drive_add,
    comparison=Comparison(
        terms=lambda i: i["stream"].shape[1] + i["experts"].shape[1] + 4,
        magnitude=lambda i: float(
            np.abs(i["stream"]).max()
            + np.abs(i["normed"] + 0.1 * i["normed"] ** 3).max()
            * np.abs(i["w_expert"]).sum(axis=1).max()
        ),
        why="an expert's sum over d_model, then n_chosen answers on top of the stream",
    ),
    wrong={
        "tokens that no expert serves become 0: their stream goes on as it is": _add(
            finish=lambda out, served: np.where(served.any(axis=1, keepdims=True), out, 0)
        ),
        "a token with one full expert gets nothing from the others either": _add(
            who=lambda served: served & served.all(axis=1, keepdims=True)
        ),
        "what is lost is given to the other experts: the weights stay as they are": _add(
            weigh=_share_out
        ),
        "everybody is served: look at `served`": _add(who=lambda served: np.ones_like(served)),
        "the choices that are not served are run": _add(who=lambda served: ~served),
        "right numbers, but rows that are not served are run too": _dropped_rows_run,
        "right numbers, but experts that serve nobody are called": _every_expert_called,
        "the answers alone: they are added to the stream": _add(
            base=lambda stream, normed: np.zeros_like(stream)
        ),
        "added to `normed`: the stream is what goes on": _add(
            base=lambda stream, normed: normed.copy()
        ),
        "the experts read the stream: they read `normed`": _add(read=lambda stream, normed: stream),
        "the answers are added without their weights": _add(
            weigh=lambda weights, served: np.ones_like(weights)
        ),
        "always the weight of the first choice": _add(place=lambda places: 0 * places),
        "a token's second answer overwrites its first": _add(overwrite=True),
        "it changes its input stream in place; work on a copy": _add(
            base=lambda stream, normed: stream
        ),
    },
    right={
        "lists": _add_lists,
        "all answers first, one sum at the end": _add_in_the_end,
        "a scattered array for each expert": _add_scattered,
    },
)  # fmt: skip
