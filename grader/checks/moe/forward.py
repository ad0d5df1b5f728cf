"""Lesson 09: rows gathered, sent through their experts and scattered back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from grader.checks.moe.lesson import LESSON
from grader.judging.compare import Comparison
from grader.judging.exercise import Case, Exercise, Inputs
from inferlab.moe import dense_mixture, moe_forward, route, router_weights
from inferlab.operators import silu, swiglu


class Watched(np.ndarray):
    """Weights of experts that count the rows which are multiplied with them."""

    n_rows: list[int]

    def __array_finalize__(self, source: Any) -> None:
        self.n_rows = getattr(source, "n_rows", [0])

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        plain = [np.asarray(i) if isinstance(i, Watched) else i for i in inputs]
        out = getattr(ufunc, method)(*plain, **kwargs)
        if ufunc is np.matmul:
            self.n_rows[0] += out.size // self.shape[-1]
        return out

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        out = super().__array_function__(func, types, args, kwargs)
        if func in (np.einsum, np.dot, np.tensordot):
            self.n_rows[0] += out.size // self.shape[-1]
        return out


def _inputs(
    rng: np.random.Generator, sizes: tuple[int, int, int, int], dtype: Any = np.float64
) -> Inputs:
    B, T, n_experts, n_chosen = sizes
    d_model, d_ff = int(rng.integers(5, 8)), int(rng.integers(9, 12))
    shapes = {
        "x": (B, T, d_model),
        "w_router": (d_model, n_experts),
        "w_gate": (n_experts, d_model, d_ff),
        "w_up": (n_experts, d_model, d_ff),
        "w_down": (n_experts, d_ff, d_model),
    }
    arrays: Inputs = {name: rng.normal(size=shape).astype(dtype) for name, shape in shapes.items()}
    experts, _ = router_weights(arrays["x"].reshape(-1, d_model) @ arrays["w_router"], n_chosen)
    idle = np.setdiff1d(np.arange(n_experts), experts)
    for name in ("w_gate", "w_up", "w_down"):
        arrays[name][idle] = np.nan  # whoever touches an expert without tokens shows it
    return {**arrays, "n_chosen": n_chosen}


def _draw_forward(rng: np.random.Generator) -> Inputs:
    """Several tokens to one expert, none to another one in front of it."""
    while True:
        inputs = _inputs(rng, (2, int(rng.integers(3, 5)), int(rng.integers(7, 10)), 2))
        idle = np.isnan(inputs["w_gate"]).any(axis=(1, 2))
        if idle[:-1].any() and not idle[-1]:
            return inputs


def _case(name: str, seed: int, *sizes: int, dtype: Any = np.float64) -> Case:
    B, T, n_experts, n_chosen = sizes
    make = np.random.default_rng
    return Case(name, lambda: _inputs(make(seed), (B, T, n_experts, n_chosen), dtype))


def _drive_forward(answer: Any, inputs: Inputs) -> dict[str, Any]:
    seen: dict[str, Any] = {}
    needed = inputs["x"][..., 0].size * inputs["n_chosen"]
    ways = {"=True": {"norm_topk": True}, "=False": {"norm_topk": False}, " left out": {}}
    for how, norm in ways.items():
        watched = inputs["w_gate"].copy().view(Watched)
        watched.n_rows = [0]
        out = answer(**{**inputs, "w_gate": watched}, **norm)
        seen[f"output, with norm_topk{how}"] = out
        seen["rows through the experts, all together"] = max(watched.n_rows[0], needed)
    return seen


def size_of(inputs: Mapping[str, Any]) -> float:
    """How large what is summed can be: |gate| times |up| through |down|, and the scores."""
    x = np.abs(inputs["x"]).reshape(-1, inputs["x"].shape[-1])
    gate, up, down = (np.abs(np.nan_to_num(inputs[n])) for n in ("w_gate", "w_up", "w_down"))
    inside = max(float(((x @ g) * (x @ u)).max()) for g, u in zip(gate, up, strict=True))
    return (
        inside * float(down.sum(axis=1).max()) * float(1 + (x @ np.abs(inputs["w_router"])).max())
    )


def _forward(
    scatter: Callable[..., None] | None = None,
    weigh: Callable[[Any, Any, Any], Any] = lambda weights, tokens, places: weights[tokens, places],
    run: Callable[..., Any] = swiglu,
    pairs: Callable[[Any, int], Any] = lambda experts, n: enumerate(route(experts, n)),
    rows_of: Callable[[Any], Any] = lambda x: x.reshape(-1, x.shape[-1]),
    norm: Callable[[bool], bool] = lambda norm_topk: norm_topk,
    finish: Callable[[Any, Any], Any] = lambda mixed, x: mixed.reshape(x.shape),
    chosen: Callable[[int], int] = lambda n: n,
) -> Callable:
    """moe_forward with one step replaced."""

    def answer(x, w_router, w_gate, w_up, w_down, n_chosen, norm_topk=True):
        rows = rows_of(x)
        experts, weights = router_weights(rows @ w_router, chosen(n_chosen), norm(norm_topk))
        mixed = np.zeros_like(rows)
        for e, (tokens, places) in pairs(experts, w_router.shape[-1]):
            if len(tokens) == 0:
                continue
            out = run(rows[tokens], w_gate[e], w_up[e], w_down[e])
            out = weigh(weights, tokens, places)[:, None] * out
            if scatter:
                scatter(mixed, tokens, out)
            else:
                mixed[tokens] += out
        return finish(mixed, x)

    return answer


def _overwrite(mixed, tokens, out):
    mixed[tokens] = out


def _from_the_top(mixed, tokens, out):
    mixed[: len(out)] += out


def _weighs_the_input(x, w_router, w_gate, w_up, w_down, n_chosen, norm_topk=True):
    rows = x.reshape(-1, x.shape[-1])
    experts, weights = router_weights(rows @ w_router, n_chosen, norm_topk)
    mixed = np.zeros_like(rows)
    for e, (tokens, places) in enumerate(route(experts, w_router.shape[-1])):
        scaled = weights[tokens, places, None] * rows[tokens]
        if len(tokens):
            mixed[tokens] += swiglu(scaled, w_gate[e], w_up[e], w_down[e])
    return mixed.reshape(x.shape)


def _first_sequence_routes(x, w_router, w_gate, w_up, w_down, n_chosen, norm_topk=True):
    experts, weights = router_weights(x[0] @ w_router, n_chosen, norm_topk)
    mixed = np.zeros_like(x)
    for e, (tokens, places) in enumerate(route(experts, w_router.shape[-1])):
        if len(tokens):
            out = swiglu(x[:, tokens], w_gate[e], w_up[e], w_down[e])
            mixed[:, tokens] += weights[tokens, places, None] * out
    return mixed


def _masked(x, w_router, w_gate, w_up, w_down, n_chosen, norm_topk=True):
    """The right numbers, but each expert that is used runs every row."""
    rows = x.reshape(-1, x.shape[-1])
    experts, weights = router_weights(rows @ w_router, n_chosen, norm_topk)
    mixed = np.zeros_like(rows)
    for e in np.unique(experts):
        weight = np.where(experts == e, weights, 0).sum(axis=-1, keepdims=True)
        mixed += weight * swiglu(rows, w_gate[e], w_up[e], w_down[e])
    return mixed.reshape(x.shape)


def _tokens_first(x):
    return x.swapaxes(0, 1).reshape(-1, x.shape[-1])


def _token_by_token(x, w_router, w_gate, w_up, w_down, n_chosen, norm_topk=True):
    out = np.zeros_like(x)
    for b, sequence in enumerate(x):
        for t, row in enumerate(sequence):
            experts, weights = router_weights((row @ w_router)[None], n_chosen, norm_topk)
            for e, weight in zip(experts[0], weights[0], strict=True):
                hidden = silu(row @ w_gate[e]) * (row @ w_up[e])
                out[b, t] += weight * (hidden @ w_down[e])
    return out


def _gathers_weights(x, w_router, w_gate, w_up, w_down, n_chosen, norm_topk=True):
    """No loop: the weights of each token's experts are gathered in place of its rows."""
    rows = x.reshape(-1, x.shape[-1])
    experts, weights = router_weights(rows @ w_router, n_chosen, norm_topk)
    gate = np.einsum("nd,nkdf->nkf", rows, w_gate[experts])
    up = np.einsum("nd,nkdf->nkf", rows, w_up[experts])
    out = np.einsum("nk,nkf,nkfd->nd", weights, silu(gate) * up, w_down[experts])
    return out.reshape(x.shape)


def _torch_experts(x, w_router, w_gate, w_up, w_down, n_chosen, norm_topk=True):
    import torch

    arrays = (np.asarray(a) for a in (x, w_router, w_gate, w_up, w_down))
    x, router, gate, up, down = (torch.from_numpy(np.array(a)) for a in arrays)
    rows = x.flatten(0, 1)
    values, experts = (rows @ router).softmax(dim=-1).topk(n_chosen, dim=-1)
    if norm_topk:
        values = values / values.sum(dim=-1, keepdim=True)
    mixed = torch.zeros_like(rows)
    for e in experts.unique().tolist():
        tokens, places = (experts == e).nonzero(as_tuple=True)
        some = rows[tokens]
        out = (torch.nn.functional.silu(some @ gate[e]) * (some @ up[e])) @ down[e]
        mixed.index_add_(0, tokens, out * values[tokens, places, None])
    return mixed.view_as(x)


def _sorted_choices(x, w_router, w_gate, w_up, w_down, n_chosen, norm_topk=True):
    """Every choice is a row of its own, sorted by expert; np.add.at brings them home."""
    rows = x.reshape(-1, x.shape[-1])
    experts, weights = router_weights(rows @ w_router, n_chosen, norm_topk)
    order = np.argsort(experts.ravel(), kind="stable")
    tokens, mixed = order // n_chosen, np.zeros_like(rows)
    for e in np.unique(experts):
        mine = experts.ravel()[order] == e
        out = swiglu(rows[tokens[mine]], w_gate[e], w_up[e], w_down[e])
        np.add.at(mixed, tokens[mine], weights.ravel()[order][mine, None] * out)
    return mixed.reshape(x.shape)


FORWARD = Exercise(
    id="moe_forward",
    reference=moe_forward,
    lesson=LESSON,
    points=3,
    minutes=15,
    difficulty=3,
    uses=("router_weights", "route"),
    hints=(
        "Make rows (B * T, d_model) of x, ask router_weights, then loop over route(...): in each "
        "round one expert with the tokens it gets and the places of their choice.",
        "rows[tokens] gathers. The answers of an expert are multiplied by weights[tokens, places, "
        "None] and added with mixed[tokens] += ... Skip an expert with no tokens.",
        "Begin with mixed = np.zeros_like(rows) and end with mixed.reshape(x.shape). In the round "
        "of expert e: swiglu(rows[tokens], w_gate[e], w_up[e], w_down[e]).",
    ),
    cases=(
        _case("one token, one expert of three", 0, 1, 1, 3, 1),
        _case("every token takes every expert", 1, 2, 3, 3, 3),
        _case("one sequence of 20 tokens, 4 experts", 2, 1, 20, 4, 2),
        _case("float32", 3, 3, 2, 9, 2, dtype=np.float32),
    ),
    draw=_draw_forward,
    drive=_drive_forward,
    comparison=Comparison(
        terms=lambda i: i["x"].shape[-1] + i["w_gate"].shape[-1] + i["n_chosen"],
        magnitude=size_of,
        why="projections of d_model and d_ff numbers, then a sum over n_chosen experts",
    ),
    wrong={
        "the experts' answers are added without their weights": _forward(
            weigh=lambda weights, tokens, places: np.ones(len(tokens))
        ),
        "always the weight of the first choice: use weights[tokens, places]": _forward(
            weigh=lambda weights, tokens, places: weights[tokens, 0]
        ),
        "the weights are multiplied with what goes in: weigh what comes out": _weighs_the_input,
        "a token's second expert overwrites its first: add to mixed[tokens]": _forward(
            scatter=_overwrite
        ),
        "the answers land on the first rows, not on the tokens they belong to": _forward(
            scatter=_from_the_top
        ),
        "the sequences are interleaved: rows must come back in the order they were taken": _forward(
            rows_of=_tokens_first
        ),
        "the first sequence's choices are used for all: every token has its own": (
            _first_sequence_routes
        ),
        "norm_topk is not passed on: the weights always sum to 1": _forward(norm=lambda n: True),
        "norm_topk is not passed on: the weights never sum to 1": _forward(norm=lambda n: False),
        "only the best expert is used: each token has n_chosen": _forward(
            chosen=lambda n: 1, norm=lambda n: False
        ),
        "empty experts are left out and the rest counted anew: the wrong weights are used": (
            _forward(
                pairs=lambda experts, n: enumerate([p for p in route(experts, n) if len(p[0])])
            )
        ),
        "gate and up are swapped: silu belongs to the gate": _forward(
            run=lambda rows, gate, up, down: swiglu(rows, up, gate, down)
        ),
        "the mean of the weighted answers: their sum is asked": _forward(
            weigh=lambda weights, tokens, places: weights[tokens, places] / weights.shape[1]
        ),
        "the weights of the first rows, not of the expert's tokens": _forward(
            weigh=lambda weights, tokens, places: weights[np.arange(len(tokens)), places]
        ),
        "x is added too: the residual stream is the layer's affair": _forward(
            finish=lambda mixed, x: x + mixed.reshape(x.shape)
        ),
        "the result keeps its rows (B * T, d_model): give it the shape of x": _forward(
            finish=lambda mixed, x: mixed
        ),
        "every expert runs every token, those that nobody chose as well": dense_mixture,
        "right numbers, but each expert in use runs all rows: gather those that chose it": _masked,
    },
    right={
        "token by token": _token_by_token,
        "weights gathered, einsum": _gathers_weights,
        "torch and index_add_": _torch_experts,
        "choices sorted by expert": _sorted_choices,
    },
)
