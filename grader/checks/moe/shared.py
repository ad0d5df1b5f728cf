"""Lesson 09: the whole mixture of a layer, with the experts that every token takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from grader.checks.moe.forward import size_of
from grader.checks.moe.lesson import LESSON
from grader.judging.compare import Comparison
from grader.judging.exercise import Case, Exercise, Inputs
from inferlab.config import ModelConfig
from inferlab.moe import dense_mixture, mixture_of_experts, moe_forward
from inferlab.operators import silu, swiglu
from inferlab.weights import LayerWeights


@dataclass(frozen=True, repr=False)
class Layer(LayerWeights):
    def __repr__(self) -> str:
        shared = self.w_shared_gate
        more = "" if shared is None else f" and w_shared_gate {shared.shape}"
        return f"LayerWeights(w_gate {self.w_gate.shape}{more})"


def _layer(rng: np.random.Generator, n_shared: int, n_chosen: int, norm_topk: bool) -> Inputs:
    n_experts, d_model, d_expert = (int(rng.integers(*span)) for span in ((6, 9), (5, 8), (4, 7)))
    none, wide = np.zeros(0), n_shared * d_expert
    shared = {
        "w_shared_gate": rng.normal(size=(d_model, wide)),
        "w_shared_up": rng.normal(size=(d_model, wide)),
        "w_shared_down": rng.normal(size=(wide, d_model)),
    }
    weights = Layer(
        attention_gain=none, w_q=none, w_k=none, w_v=none, w_o=none, mlp_gain=none,
        w_router=rng.normal(size=(d_model, n_experts)),
        w_gate=rng.normal(size=(n_experts, d_model, d_expert)),
        w_up=rng.normal(size=(n_experts, d_model, d_expert)),
        w_down=rng.normal(size=(n_experts, d_expert, d_model)),
        **(shared if n_shared else {}),
    )  # fmt: skip
    config = ModelConfig(
        2, d_model, 2, 1, 4, 3 * d_expert, 50, n_experts=n_experts, n_experts_per_token=n_chosen,
        d_expert=d_expert, norm_topk=norm_topk, n_shared_experts=n_shared,
    )  # fmt: skip
    return {"x": rng.normal(size=(2, 5, d_model)), "weights": weights, "config": config}


def _draw_layer(rng: np.random.Generator) -> Inputs:
    return _layer(rng, int(rng.integers(2, 4)), int(rng.integers(3, 5)), norm_topk=False)


def _layer_case(name: str, seed: int, *sizes: Any) -> Case:
    return Case(name, lambda: _layer(np.random.default_rng(seed), *sizes))


def _drive_layer(answer: Any, inputs: Inputs) -> Any:
    before = {name: a.copy() for name, a in inputs["weights"].arrays().items()}
    out = answer(**inputs)
    now = inputs["weights"].arrays()
    kept = all(np.array_equal(a, now[name]) for name, a in before.items())
    return {"output": out, "weights kept": kept}


def _routed(x: Any, w: Any, c: Any, **other: Any) -> Any:
    given = {"n_chosen": c.n_experts_per_token, "norm_topk": c.norm_topk} | other
    return moe_forward(x, w.w_router, w.w_gate, w.w_up, w.w_down, **given)


def _shared(x: Any, w: Any) -> Any:
    if w.w_shared_gate is None:
        return np.zeros_like(x)
    return swiglu(x, w.w_shared_gate, w.w_shared_up, w.w_shared_down)


def _with_shared(c: Any) -> int:
    return min(c.n_experts, c.n_experts_per_token + c.n_shared_experts)


def _first_shared(x: Any, w: Any, c: Any) -> Any:
    if not c.n_shared_experts:
        return 0
    n = c.d_expert
    return swiglu(x, w.w_shared_gate[:, :n], w.w_shared_up[:, :n], w.w_shared_down[:n])


def _one_by_one(x, weights, config):
    out = dense_mixture(
        x, weights.w_router, weights.w_gate, weights.w_up, weights.w_down,
        config.n_experts_per_token, config.norm_topk,
    )  # fmt: skip
    for s in range(config.n_shared_experts):
        part = slice(s * config.d_expert, (s + 1) * config.d_expert)
        hidden = silu(x @ weights.w_shared_gate[:, part]) * (x @ weights.w_shared_up[:, part])
        out = out + hidden @ weights.w_shared_down[part]
    return out


def _layer_torch(x, weights, config):
    import torch

    routed = torch.from_numpy(_routed(x, weights, config))
    if weights.w_shared_gate is None:
        return routed
    arrays = (weights.w_shared_gate, weights.w_shared_up, weights.w_shared_down)
    gate, up, down = (torch.from_numpy(a) for a in arrays)
    row = torch.from_numpy(x)
    return routed + (torch.nn.functional.silu(row @ gate) * (row @ up)) @ down


def _as_dense(inputs: Mapping[str, Any]) -> Inputs:
    w, c = inputs["weights"], inputs["config"]
    names = ("w_router", "w_gate", "w_up", "w_down")
    return {
        "x": inputs["x"],
        **{n: getattr(w, n) for n in names},
        "n_chosen": c.n_experts_per_token,
    }


def _layer_size(inputs: Mapping[str, Any]) -> float:
    x, w = np.abs(inputs["x"]), inputs["weights"]
    routed = size_of(_as_dense(inputs))
    if w.w_shared_gate is None:
        return routed
    gate, up, down = (np.abs(a) for a in (w.w_shared_gate, w.w_shared_up, w.w_shared_down))
    return routed + float((((x @ gate) * (x @ up)) @ down).max())


MIXTURE = Exercise(
    id="mixture_of_experts",
    reference=mixture_of_experts,
    lesson=LESSON,
    points=2,
    minutes=8,
    difficulty=2,
    uses=("moe_forward",),
    hints=(
        "Two sums: what moe_forward gives, and, if there are shared experts, one swiglu of x.",
        "moe_forward(x, weights.w_router, weights.w_gate, weights.w_up, weights.w_down, "
        "config.n_experts_per_token, config.norm_topk) is the routed part.",
        "Without shared experts (config.n_shared_experts == 0) return that. Else add swiglu(x, "
        "weights.w_shared_gate, weights.w_shared_up, weights.w_shared_down).",
    ),
    cases=(
        _layer_case("no shared experts, weights that sum to 1", 0, 0, 2, True),
        _layer_case("one shared expert", 1, 1, 3, True),
        _layer_case("no shared experts, one chosen", 2, 0, 1, False),
    ),
    draw=_draw_layer,
    drive=_drive_layer,
    comparison=Comparison(
        terms=lambda i: 4 * i["x"].shape[-1] + 8 * i["config"].d_expert,
        magnitude=_layer_size,
        why="projections of d_model and d_expert numbers, then a sum over experts",
    ),
    wrong={
        "the shared experts are forgotten": lambda x, weights, config: _routed(x, weights, config),
        "the shared experts alone: the routed ones are forgotten": lambda x, weights, config: (
            _shared(x, weights) if config.n_shared_experts else _routed(x, weights, config)
        ),
        "shared experts in every model: where n_shared_experts is 0 their arrays are None": (
            lambda x, weights, config: (
                _routed(x, weights, config)
                + swiglu(x, weights.w_shared_gate, weights.w_shared_up, weights.w_shared_down)
            )
        ),
        "the first shared expert only: they lie side by side, take the whole width": (
            lambda x, weights, config: (
                _routed(x, weights, config) + _first_shared(x, weights, config)
            )
        ),
        "one pass for each shared expert: the wide MLP has all of them in it already": (
            lambda x, weights, config: (
                _routed(x, weights, config) + config.n_shared_experts * _shared(x, weights)
            )
        ),
        "the two parts are averaged: they are added": lambda x, weights, config: (
            (_routed(x, weights, config) + _shared(x, weights))
            / (2 if config.n_shared_experts else 1)
        ),
        "the shared experts read what the routed ones gave: all of them read x": (
            lambda x, weights, config: (
                _routed(x, weights, config) + _shared(_routed(x, weights, config), weights)
            )
        ),
        "config.norm_topk is not passed on, and True is the default": lambda x, weights, config: (
            _routed(x, weights, config, norm_topk=True) + _shared(x, weights)
        ),
        "config.norm_topk is not passed on: the weights never sum to 1": (
            lambda x, weights, config: (
                _routed(x, weights, config, norm_topk=False) + _shared(x, weights)
            )
        ),
        "always two experts a token: read n_experts_per_token": lambda x, weights, config: (
            _routed(x, weights, config, n_chosen=2) + _shared(x, weights)
        ),
        "shared experts count among the chosen: they come on top": lambda x, weights, config: (
            _routed(
                x,
                weights,
                config,
                n_chosen=max(1, config.n_experts_per_token - config.n_shared_experts),
            )
            + _shared(x, weights)
        ),
        "the router chooses the shared ones too: they come on top": lambda x, weights, config: (
            _routed(x, weights, config, n_chosen=_with_shared(config)) + _shared(x, weights)
        ),
        "the shared experts are averaged: the wide MLP sums them": lambda x, weights, config: (
            _routed(x, weights, config) + _shared(x, weights) / max(1, config.n_shared_experts)
        ),
        "x is added too: the residual stream is the layer's affair": lambda x, weights, config: (
            x + _routed(x, weights, config) + _shared(x, weights)
        ),
    },
    right={
        "every expert on every token, the shared ones one by one": _one_by_one,
        "the shared part in torch": _layer_torch,
        "the routed part on each sequence alone": lambda x, weights, config: (
            np.concatenate([_routed(row[None], weights, config) for row in x]) + _shared(x, weights)
        ),
    },
)
