"""Lesson 09: what the experts that have room add to the residual stream."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from grader.checks.moe.lesson import LESSON
from grader.judging.compare import Comparison
from grader.judging.exercise import Exercise, Inputs, given
from inferlab.moe import add_served


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


def _place_by_place(stream, normed, experts, weights, served, run_expert):
    for place in range(experts.shape[1]):
        column = (a[:, place : place + 1] for a in (experts, weights, served))
        stream = _add()(stream, normed, *column, run_expert)
    return stream


def _row_by_row(stream, normed, experts, weights, served, run_expert):
    out = stream.copy()
    for token, place in np.argwhere(served):
        answer = run_expert(int(experts[token, place]), normed[[token]])
        out[token] += weights[token, place] * answer[0]
    return out


def _weighs_the_input(stream, normed, experts, weights, served, run_expert):
    out = stream.copy()
    for e in np.unique(experts[served]):
        tokens, places = np.nonzero((experts == e) & served)
        out[tokens] += run_expert(int(e), weights[tokens, places, None] * normed[tokens])
    return out


def _unserved_are_normed(stream, normed, experts, weights, served, run_expert):
    out = _add()(stream, normed, experts, weights, served, run_expert)
    return np.where(served.any(axis=1, keepdims=True), out, normed)


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
        "right numbers, but one call for each row: an expert runs its rows together": (
            _row_by_row
        ),
        "right numbers, but one call for each place: an expert runs its rows together": (
            _place_by_place
        ),
        "the weights are multiplied with what goes in: weigh what comes out": _weighs_the_input,
        "tokens that no expert serves go on as `normed`: it is the stream that goes on": (
            _unserved_are_normed
        ),
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
