"""Lesson 09: parameters that are held, parameters that a token uses, bytes that must be there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from grader.checks.moe.lesson import LESSON
from grader.judging.exercise import Exercise, Inputs, given
from inferlab.config import ModelConfig
from inferlab.data import load_models, model_preset
from inferlab.moe_sizes import (
    moe_layer_params,
    other_params,
    resident_bytes,
    total_and_active_params,
)
from inferlab.params import count_params


def _draw_config(rng: np.random.Generator) -> Inputs:
    """No two widths are alike; shared experts, plain layers and all biases are there."""
    n_experts = int(rng.choice([12, 20, 24, 48]))
    d_model = 8 * int(rng.integers(38, 113))
    config = ModelConfig(
        int(rng.integers(20, 50)), d_model, 12, 4, 64, 3 * d_model + 11, 30_000 + d_model,
        tied_embeddings=False,
        n_experts=n_experts,
        n_experts_per_token=int(rng.integers(4, 7)),
        d_expert=int(rng.integers(101, 250)),
        n_shared_experts=int(rng.integers(2, 4)),
        n_dense_layers=int(rng.integers(2, 5)),
        router_bias=True,
        expert_bias=True,
    )  # fmt: skip
    return {"config": config}


SMALL = ModelConfig(
    5, 10, 2, 1, 4, 13, 50, n_experts=6, n_experts_per_token=2, d_expert=7, n_shared_experts=1,
    n_dense_layers=2,
)  # fmt: skip
MODELS = tuple(name for name, model in load_models().items() if model["moe"])
CASES = tuple(given(name, config=model_preset(name)) for name in MODELS)


def _biases(c: Any) -> int:
    return c.expert_bias * (2 * c.d_expert + c.d_model)


def _expert(c: Any) -> int:
    return 3 * c.d_model * c.d_expert + _biases(c)


def _router(c: Any) -> int:
    return c.n_experts * (c.d_model + c.router_bias)


def _layer(
    expert: Callable[[Any], Any] = _expert,
    router: Callable[[Any], Any] = _router,
    held: Callable[[Any], Any] = lambda c: c.n_experts + c.n_shared_experts,
    used: Callable[[Any], Any] = lambda c: c.n_experts_per_token + c.n_shared_experts,
    used_router: Callable[[Any], Any] | None = None,
) -> Callable:
    """moe_layer_params with one part replaced."""

    def answer(config):
        e, r = expert(config), router(config)
        r_used = used_router(config) if used_router else r
        return held(config) * e + r, used(config) * e + r_used

    return answer


def _layer_arrays(config):
    """Array by array, expert by expert."""
    one = [config.d_model * config.d_expert] * 3
    if config.expert_bias:
        one += [config.d_expert, config.d_expert, config.d_model]
    shared = sum(one) * config.n_shared_experts
    router = config.d_model * config.n_experts + (config.n_experts if config.router_bias else 0)
    routed = [sum(one) for _ in range(config.n_experts)]
    return shared + router + sum(routed), shared + router + sum(
        routed[: config.n_experts_per_token]
    )


def _layer_from_total(config):
    """The used part is the whole less the experts that are left out."""
    total = (config.n_experts + config.n_shared_experts) * _expert(config) + _router(config)
    return total, total - (config.n_experts - config.n_experts_per_token) * _expert(config)


IN_LAYER = Exercise(
    id="moe_layer_params",
    reference=moe_layer_params,
    lesson=LESSON,
    points=2,
    minutes=8,
    difficulty=2,
    hints=(
        "Three kinds of things: routed experts, shared experts, one router. How many of each are "
        "held, how many does a token use?",
        "expert = 3 * d_model * d_expert (and its biases, where expert_bias is on). A token uses "
        "n_experts_per_token routed experts, all shared ones, and the whole router.",
        "always = n_shared_experts * expert + router; return n_experts * expert + always, "
        "n_experts_per_token * expert + always",
    ),
    cases=(given("the worked example", config=SMALL), *CASES),
    draw=_draw_config,
    wrong={
        "d_ff in place of d_expert: the width of a plain MLP says nothing of an expert": _layer(
            expert=lambda c: 3 * c.d_model * c.d_ff + _biases(c)
        ),
        "the shared experts are forgotten": _layer(
            held=lambda c: c.n_experts, used=lambda c: c.n_experts_per_token
        ),
        "shared experts counted among the n_experts: they come on top": _layer(
            held=lambda c: c.n_experts
        ),
        "shared experts counted among those a token chooses: it uses them as well": _layer(
            used=lambda c: c.n_experts_per_token
        ),
        "the router is forgotten": _layer(router=lambda c: 0),
        "the router's bias is forgotten": _layer(router=lambda c: c.n_experts * c.d_model),
        "a share of the router: every token needs the scores of all experts": _layer(
            used_router=lambda c: c.n_experts_per_token * (c.d_model + c.router_bias)
        ),
        "the router does not count as used: every token goes through it": _layer(
            used_router=lambda c: 0
        ),
        "two matrices an expert: gate, up and down are three": _layer(
            expert=lambda c: 2 * c.d_model * c.d_expert + _biases(c)
        ),
        "no biases: with expert_bias there are some": _layer(
            expert=lambda c: 3 * c.d_model * c.d_expert
        ),
        "biases in every model: only with expert_bias": _layer(
            expert=lambda c: 3 * c.d_model * c.d_expert + 2 * c.d_expert + c.d_model
        ),
        "the bias behind down is forgotten": _layer(
            expert=lambda c: 3 * c.d_model * c.d_expert + c.expert_bias * 2 * c.d_expert
        ),
        "the experts' biases: two of d_expert, one of d_model": _layer(
            expert=lambda c: (
                3 * c.d_model * c.d_expert + c.expert_bias * (c.d_expert + 2 * c.d_model)
            )
        ),
        "the router scores the shared experts too: no router is asked about them": _layer(
            router=lambda c: (c.n_experts + c.n_shared_experts) * (c.d_model + c.router_bias)
        ),
        "a router for each expert: one scores them all": _layer(
            expert=lambda c: _expert(c) + _router(c), router=lambda c: 0
        ),
        "every expert counted as used": _layer(used=lambda c: c.n_experts + c.n_shared_experts),
        "all layers: the mixture of one is asked": lambda config: tuple(
            config.n_layers * n for n in _layer()(config)
        ),
        "the other way round: first all, then those that a token uses": lambda config: _layer()(
            config
        )[::-1],
    },
    right={
        "array by array": _layer_arrays,
        "the whole less what is left out": _layer_from_total,
        "in NumPy": lambda config: (
            np.int64(_expert(config)) * np.array([config.n_experts, config.n_experts_per_token])
            + config.n_shared_experts * _expert(config)
            + _router(config)
        ),
    },
)

# ---- the whole model ----------------------------------------------------------------------------


def _n_moe(c: Any) -> int:
    return c.n_layers - c.n_dense_layers


def _whole(
    layers: Callable[[Any], Any] = _n_moe,
    rest: Callable[[Any], Any] = other_params,
    used_rest: Callable[[Any], Any] | None = None,
) -> Callable:
    """total_and_active_params with one part replaced."""

    def answer(config):
        held, used = moe_layer_params(config)
        n, others = layers(config), rest(config)
        return others + n * held, (used_rest(config) if used_rest else others) + n * used

    return answer


def _layer_by_layer(config):
    total = active = other_params(config)
    for layer in range(config.n_layers):
        if config.has_experts(layer):
            held, used = moe_layer_params(config)
            total, active = total + held, active + used
    return [total, active]


TOTAL = Exercise(
    id="total_and_active_params",
    reference=total_and_active_params,
    lesson=LESSON,
    points=2,
    minutes=6,
    difficulty=1,
    uses=("moe_layer_params",),
    hints=(
        "How many layers have a mixture? The rest of the model is the same in both counts.",
        "n_moe_layers = config.n_layers - config.n_dense_layers; held, used = "
        "moe_layer_params(config).",
        "other_params(config) + n_moe_layers * held, other_params(config) + n_moe_layers * used",
    ),
    cases=(given("a small one", config=SMALL), *CASES),
    draw=_draw_config,
    wrong={
        "a mixture in every layer: the first n_dense_layers have a plain MLP": _whole(
            layers=lambda c: c.n_layers
        ),
        "a mixture in the first n_dense_layers: those are the ones without": _whole(
            layers=lambda c: c.n_dense_layers
        ),
        "one layer only": _whole(layers=lambda c: 1),
        "one mixture too few": _whole(layers=lambda c: _n_moe(c) - 1),
        "the mixtures alone: attention, norms and tables count too": _whole(rest=lambda c: 0),
        "the active count lacks all that stands beside the mixtures": _whole(used_rest=lambda c: 0),
        "the rest once for each layer: other_params has all layers in it": _whole(
            rest=lambda c: c.n_layers * other_params(c)
        ),
        "the active count is a share of the total: only the routed experts are shared out": (
            lambda config: (
                _whole()(config)[0],
                _whole()(config)[0] * config.n_experts_per_token // config.n_experts,
            )
        ),
        "the total twice: of the routed experts a token uses n_experts_per_token": (
            lambda config: (_whole()(config)[0],) * 2
        ),
        "the other way round: first the total": lambda config: _whole()(config)[::-1],
        "the embedding left out of the active count: by the convention here it is in": (
            lambda config: (
                _whole()(config)[0],
                _whole()(config)[1] - config.vocab_size * config.d_model,
            )
        ),
        "bytes in bf16, not numbers": lambda config: tuple(2 * n for n in _whole()(config)),
    },
    right={
        "layer by layer": _layer_by_layer,
        "from the engine's count": lambda config: (
            count_params(config),
            count_params(config, config.n_experts_per_token),
        ),
        "the total less what is left out": lambda config: (
            config.n_params,
            config.n_params
            - _n_moe(config) * (config.n_experts - config.n_experts_per_token) * _expert(config),
        ),
    },
)

# ---- bytes --------------------------------------------------------------------------------------

Sized = Callable[[Any, float, Any], Any]  # config, bytes_per_number, bytes_per_expert_weight


def _matrices(c: Any) -> int:
    return _n_moe(c) * c.n_experts * 3 * c.d_model * c.d_expert


def _resident(change: Sized) -> Callable:
    def answer(config, bytes_per_number=2, bytes_per_expert_weight=None):
        return change(config, bytes_per_number, bytes_per_expert_weight)

    return answer


def _mixed(c: Any, b: float, e: float | None, small: Callable[[Any], Any] = _matrices) -> float:
    e = b if e is None else e
    return (c.n_params - small(c)) * b + small(c) * e


def _part_by_part(c: Any, b: float, e: float | None) -> float:
    total = float(other_params(c)) * b
    for _ in range(_n_moe(c)):
        total += (c.n_shared_experts * _expert(c) + _router(c)) * b
        total += c.n_experts * _biases(c) * b
        total += c.n_experts * 3 * c.d_model * c.d_expert * (b if e is None else e)
    return total


def _draw_bytes(rng: np.random.Generator) -> Inputs:
    """n_experts * d_model is a multiple of 32, so whoever gives whole bytes gives all of them."""
    widths = {"bytes_per_number": int(rng.choice([1, 4])) * 1.0}
    widths["bytes_per_expert_weight"] = float(rng.choice([0.5, 0.53125, 0.5625]))
    return {**_draw_config(rng), **widths}


RESIDENT = Exercise(
    id="resident_bytes",
    reference=resident_bytes,
    lesson=LESSON,
    points=2,
    minutes=8,
    difficulty=2,
    uses=("total_and_active_params",),
    hints=(
        "Total or active? Then split the total in two: the matrices of the routed experts, and all "
        "the rest.",
        "matrices = (n_layers - n_dense_layers) * n_experts * 3 * d_model * d_expert. Their biases "
        "are no matrices.",
        "(total - matrices) * bytes_per_number + matrices * per_weight, where per_weight is "
        "bytes_per_number if bytes_per_expert_weight is None.",
    ),
    cases=(
        given("a small one, half a byte an expert weight", config=SMALL,
              bytes_per_expert_weight=0.5),
        given("mixtral-8x7b in bf16", config=model_preset("mixtral-8x7b")),
        given("gpt-oss-20b as published: 4.25 bits an expert weight, bf16 for the rest",
              config=model_preset("gpt-oss-20b"), bytes_per_expert_weight=4.25 / 8),
        given("deepseek-v3 in 8 bits", config=model_preset("deepseek-v3"), bytes_per_number=1),
        given("deepseek-v2-lite in float32, experts in bf16",
              config=model_preset("deepseek-v2-lite"), bytes_per_number=4,
              bytes_per_expert_weight=2),
    ),
    draw=_draw_bytes,
    wrong={
        "the active parameters only: every expert must be in memory": _resident(
            lambda c, b, e: (
                total_and_active_params(c)[1] * b
                + (_matrices(c) * c.n_experts_per_token / c.n_experts)
                * ((b if e is None else e) - b)
            )
        ),
        "bytes_per_expert_weight is ignored": _resident(lambda c, b, e: _mixed(c, b, None)),
        "everything in the experts' bytes: routers, norms, attention and tables keep theirs": (
            _resident(lambda c, b, e: c.n_params * (b if e is None else e))
        ),
        "the two widths are swapped": _resident(
            lambda c, b, e: _mixed(c, b if e is None else e, b)
        ),
        "the experts' biases in the experts' bytes: only their matrices are": _resident(
            lambda c, b, e: _mixed(c, b, e, lambda c: _n_moe(c) * c.n_experts * _expert(c))
        ),
        "the shared experts in the experts' bytes: only routed ones are": _resident(
            lambda c, b, e: _mixed(
                c, b, e,
                lambda c: _matrices(c) * (c.n_experts + c.n_shared_experts) // c.n_experts,
            )
        ),
        "experts in every layer: the first n_dense_layers have none": _resident(
            lambda c, b, e: _mixed(
                c, b, e, lambda c: c.n_layers * c.n_experts * 3 * c.d_model * c.d_expert
            )
        ),
        "always 2 bytes for the rest: bytes_per_number is ignored": _resident(
            lambda c, b, e: _mixed(c, 2, b if e is None else e)
        ),
        "None taken as no bytes: it means bytes_per_number": _resident(
            lambda c, b, e: _mixed(c, b, e or 0)
        ),
        "d_ff in place of d_expert": _resident(
            lambda c, b, e: _mixed(c, b, e, lambda c: _matrices(c) // c.d_expert * c.d_ff)
        ),
        "the experts of one layer: every mixture has its own": _resident(
            lambda c, b, e: _mixed(c, b, e, lambda c: _matrices(c) // _n_moe(c))
        ),
        "the matrices counted twice: take them off the rest": _resident(
            lambda c, b, e: c.n_params * b + _matrices(c) * (b if e is None else e)
        ),
        "None taken as 2 bytes: it means bytes_per_number": _resident(
            lambda c, b, e: _mixed(c, b, 2 if e is None else e)
        ),
        "the rest is forgotten": _resident(
            lambda c, b, e: _matrices(c) * (b if e is None else e)
        ),
        "the answer is in GB: bytes are asked": _resident(lambda c, b, e: _mixed(c, b, e) / 1e9),
    },
    right={
        "part by part": _resident(_part_by_part),
        "what is saved, taken off": _resident(
            lambda c, b, e: c.n_params * b - (_matrices(c) * (b - e) if e is not None else 0)
        ),
        "in whole 32nds of a byte": _resident(
            lambda c, b, e: np.float64(
                (c.n_params - _matrices(c)) * int(b * 32)
                + _matrices(c) * int((b if e is None else e) * 32)
            )
            / 32
        ),
    },
)  # fmt: skip
