"""Lesson 01: how many trained numbers a model has."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from grader.checks.roofline.lesson import LESSON
from grader.judging.exercise import Exercise, given
from inferlab.config import ModelConfig
from inferlab.data import model_preset
from inferlab.params import attention_params, dense_params, mlp_params


def draw_config(rng: np.random.Generator, **switches: Any) -> ModelConfig:
    """A made-up dense model: d_head is not d_model / n_heads, no two widths are alike."""
    n_kv_heads = int(rng.choice([2, 3, 5]))
    n_heads = n_kv_heads * int(rng.choice([3, 4, 7]))
    d_head = int(rng.choice([64, 80, 96]))
    d_model = n_heads * d_head * 3 // 4 + 10
    d_ff = 2 * d_model + int(rng.integers(31, 900))
    vocab_size = int(rng.integers(30_000, 90_000))
    n_layers = int(rng.integers(20, 60))
    return ModelConfig(n_layers, d_model, n_heads, n_kv_heads, d_head, d_ff, vocab_size, **switches)


SMALL = ModelConfig(3, 10, 4, 2, 4, 7, 50)
PUBLISHED = ("gpt2", "llama-2-7b", "llama-3-8b", "qwen2.5-7b", "qwen3-0.6b", "gemma-3-1b")
PRESETS = {name: model_preset(name) for name in PUBLISHED}
CASES = tuple(given(name, config=config) for name, config in PRESETS.items())

# ---- attention ----------------------------------------------------------------------------------


def _matrices(c: Any) -> int:
    return c.d_model * c.d_head * 2 * (c.n_heads + c.n_kv_heads)


def _biases(c: Any) -> int:
    d_query, d_kv = c.n_heads * c.d_head, c.n_kv_heads * c.d_head
    return c.attention_bias * (d_query + 2 * d_kv) + c.output_bias * c.d_model


def _gains(c: Any) -> int:
    if not c.qk_norm:
        return 0
    return 2 * c.d_head if c.qk_norm_per_head else (c.n_heads + c.n_kv_heads) * c.d_head


def _attention(change: Callable[[Any], Any]) -> Callable:
    """An answer that refuses latent attention, and else counts change(config)."""

    def answer(config):
        if config.mla is not None:
            raise ValueError("latent attention is counted elsewhere")
        return change(config)

    return answer


def _whole(c: Any) -> int:
    return _matrices(c) + _biases(c) + _gains(c)


class _Seen:
    """The config as somebody sees it who takes some of its numbers for others."""

    def __init__(self, config: ModelConfig, **taken: int) -> None:
        self._config = config
        vars(self).update(taken)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._config, name)


def _shapes(c: Any) -> int:
    """Array by array."""
    d_query, d_kv = c.n_heads * c.d_head, c.n_kv_heads * c.d_head
    shapes = [(c.d_model, d_query), (c.d_model, d_kv), (c.d_model, d_kv), (d_query, c.d_model)]
    if c.attention_bias:
        shapes += [(1, d_query), (1, d_kv), (1, d_kv)]
    if c.output_bias:
        shapes += [(1, c.d_model)]
    if c.qk_norm:
        shapes += [(1, c.d_head)] * 2 if c.qk_norm_per_head else [(1, d_query), (1, d_kv)]
    return sum(rows * columns for rows, columns in shapes)


def _grouped(c: Any) -> np.int64:
    """From the group size, in NumPy."""
    group = c.n_heads // c.n_kv_heads
    square = np.int64(c.d_model) * c.n_heads * c.d_head
    return 2 * square + 2 * square // group + _biases(c) + _gains(c)


def _heads(c: Any) -> int:
    """Head by head."""
    total = 0
    for head in range(c.n_heads):
        total += 2 * c.d_model * c.d_head + (c.d_head if c.attention_bias else 0)
        if head < c.n_kv_heads:
            total += 2 * (c.d_model + (1 if c.attention_bias else 0)) * c.d_head
    return total + (c.d_model if c.output_bias else 0) + _gains(c)


ATTENTION = Exercise(
    id="attention_params",
    reference=attention_params,
    lesson=LESSON,
    points=3,
    minutes=14,
    difficulty=3,
    hints=(
        "Write down the two widths first: d_query = n_heads * d_head and d_kv = n_kv_heads * "
        "d_head. Then go through matrices, biases and gains one after the other.",
        "Matrices: d_model * (2 * d_query + 2 * d_kv). Biases: d_query + 2 * d_kv where "
        "attention_bias is on, d_model where output_bias is on.",
        "Gains, where qk_norm is on: 2 * d_head if qk_norm_per_head else d_query + d_kv. Before "
        "all that: if config.mla is not None, raise ValueError.",
    ),
    cases=(
        given("the worked example's shape", config=SMALL),
        *CASES,
        given("queries and keys normed over all heads", config=replace(
            PRESETS["llama-3-8b"], qk_norm=True, qk_norm_per_head=False)),
        given("an output bias alone", config=replace(PRESETS["llama-3-8b"], output_bias=True)),
        given("latent attention", config=model_preset("deepseek-v2-lite")),
    ),
    draw=lambda rng: {
        "config": draw_config(rng, attention_bias=True, output_bias=True, qk_norm=True)
    },
    wrong={
        "K and V as wide as the queries: they have n_kv_heads heads only": _attention(
            lambda c: 4 * c.d_model * c.n_heads * c.d_head + _biases(c) + _gains(c)
        ),
        "K and V, their biases and gains too, as wide as the queries: they have n_kv_heads heads": (
            _attention(lambda c: _whole(_Seen(c, n_kv_heads=c.n_heads)))
        ),
        "four matrices of d_model by d_model: read the heads and d_head": _attention(
            lambda c: 4 * c.d_model**2 + _biases(c) + _gains(c)
        ),
        "4 · d_model², as in 2017: read the heads and d_head, and count biases and gains": (
            _attention(lambda c: 4 * c.d_model**2)
        ),
        "d_model / n_heads in place of d_head: a config may say otherwise": _attention(
            lambda c: _whole(_Seen(c, d_head=c.d_model // c.n_heads))
        ),
        "8 query heads for each KV head are assumed: read n_kv_heads": _attention(
            lambda c: (
                2 * c.d_model * c.d_head * (c.n_heads + c.n_heads / 8) + _biases(c) + _gains(c)
            )
        ),
        "the output matrix is forgotten": _attention(
            lambda c: _whole(c) - c.d_model * c.n_heads * c.d_head
        ),
        "keys or values are forgotten: each has a matrix": _attention(
            lambda c: _whole(c) - c.d_model * c.n_kv_heads * c.d_head
        ),
        "no biases: with attention_bias and output_bias there are some": _attention(
            lambda c: _matrices(c) + _gains(c)
        ),
        "the queries alone have a bias: keys and values have one too": _attention(
            lambda c: _whole(c) - c.attention_bias * 2 * c.n_kv_heads * c.d_head
        ),
        "keys or values have no bias: each has one": _attention(
            lambda c: _whole(c) - c.attention_bias * c.n_kv_heads * c.d_head
        ),
        "the output's bias is forgotten: with output_bias d_model numbers more": _attention(
            lambda c: _whole(c) - c.output_bias * c.d_model
        ),
        "output_bias is heeded only beside attention_bias: it stands alone": _attention(
            lambda c: _whole(c) - (c.output_bias and not c.attention_bias) * c.d_model
        ),
        "attention_bias is taken to cover the output too: that is output_bias": _attention(
            lambda c: _whole(c) + (c.attention_bias - c.output_bias) * c.d_model
        ),
        "the output's bias has d_model numbers, not n_heads * d_head": _attention(
            lambda c: _whole(c) + c.output_bias * (c.n_heads * c.d_head - c.d_model)
        ),
        "the gains of qk_norm are forgotten": _attention(lambda c: _matrices(c) + _biases(c)),
        "gains for every head: with qk_norm_per_head all heads share d_head of them": _attention(
            lambda c: (
                _matrices(c) + _biases(c) + c.qk_norm * (c.n_heads + c.n_kv_heads) * c.d_head
            )
        ),
        "qk_norm_per_head is ignored: without it there is a gain for each number": _attention(
            lambda c: _matrices(c) + _biases(c) + c.qk_norm * 2 * c.d_head
        ),
        "gains although qk_norm is off: qk_norm_per_head alone says nothing": _attention(
            lambda c: (
                _matrices(c) + _biases(c) + (2 * c.d_head if c.qk_norm_per_head else _gains(c))
            )
        ),
        "the output matrix is not square: it leads from n_heads * d_head back to d_model": (
            _attention(
                lambda c: _whole(c) + (c.n_heads * c.d_head - c.d_model) * c.n_heads * c.d_head
            )
        ),
        "one vector of gains: queries and keys have one each": _attention(
            lambda c: _matrices(c) + _biases(c) + _gains(c) // 2
        ),
        "all layers: the attention of one is asked": _attention(lambda c: c.n_layers * _whole(c)),
        "latent attention is counted as if it were plain: raise a ValueError": _whole,
    },
    right={
        "array by array": _attention(_shapes),
        "from the group size, in NumPy": _attention(_grouped),
        "head by head": _attention(_heads),
    },
)  # fmt: skip


# ---- MLP ----------------------------------------------------------------------------------------


def _mlp(c: Any, matrices: int | None = None, biases: int | None = None) -> int:
    n = (3 if c.mlp_is_gated else 2) if matrices is None else matrices
    b = c.mlp_bias * ((n - 1) * c.d_ff + c.d_model) if biases is None else biases
    return n * c.d_model * c.d_ff + b


def _mlp_arrays(config):
    into = ("gate", "up") if config.mlp_is_gated else ("up",)
    sizes = [config.d_model * config.d_ff for _ in (*into, "down")]
    if config.mlp_bias:
        sizes += [config.d_ff for _ in into] + [config.d_model]
    return sum(sizes)


def _mlp_with_rows(config):
    """Biases as one more row of each matrix."""
    more = 1 if config.mlp_bias else 0
    n_into = 2 if config.mlp_is_gated else 1
    into = n_into * (config.d_model + more) * config.d_ff
    return np.int64(into + (config.d_ff + more) * config.d_model)


MLP = Exercise(
    id="mlp_params",
    reference=mlp_params,
    lesson=LESSON,
    points=1,
    minutes=6,
    difficulty=2,
    hints=(
        "How many matrices are there, with a gate and without? Each has d_model * d_ff numbers.",
        "A bias belongs to what comes out of a matrix: d_ff numbers behind up and behind the "
        "gate, d_model behind down.",
        "n = 3 if config.mlp_is_gated else 2; n * d_model * d_ff, and with mlp_bias "
        "(n - 1) * d_ff + d_model more.",
    ),
    cases=(
        given("the worked example's shape", config=SMALL),
        *CASES,
        given("gated, with biases", config=replace(PRESETS["llama-3-8b"], mlp_bias=True)),
    ),
    draw=lambda rng: {"config": draw_config(rng, mlp_bias=True)},
    wrong={
        "the gate is forgotten: a gated MLP has three matrices": lambda config: _mlp(config, 2),
        "always three matrices: without a gate there are two": lambda config: _mlp(config, 3),
        "d_ff is taken as 4 * d_model: read it": lambda config: _mlp(
            replace(config, d_ff=4 * config.d_model)
        ),
        "no biases: with mlp_bias there are some": lambda config: _mlp(config, biases=0),
        "biases in every model: only with mlp_bias": lambda config: _mlp(
            replace(config, mlp_bias=True)
        ),
        "the gate's bias is forgotten": lambda config: _mlp(
            config, biases=config.mlp_bias * (config.d_ff + config.d_model)
        ),
        "the bias behind down has d_model numbers, not d_ff": lambda config: _mlp(
            config, biases=config.mlp_bias * (3 if config.mlp_is_gated else 2) * config.d_ff
        ),
        "up or down is d_ff by d_ff: both go between d_model and d_ff": lambda config: (
            _mlp(config) + config.d_ff**2 - config.d_model * config.d_ff
        ),
        "all layers: the MLP of one is asked": lambda config: config.n_layers * _mlp(config),
    },
    right={
        "array by array": _mlp_arrays,
        "biases as one more row": _mlp_with_rows,
        "with an if for each switch": lambda config: (
            2 * config.d_model * config.d_ff
            + (config.d_model * config.d_ff if config.mlp_is_gated else 0)
            + (config.d_ff + config.d_model if config.mlp_bias else 0)
            + (config.d_ff if config.mlp_bias and config.mlp_is_gated else 0)
        ),
    },
)

# ---- the whole ----------------------------------------------------------------------------------


def _norm(c: Any) -> int:
    return c.d_model * (2 if c.layer_norm else 1)


def _tables(c: Any, n: int | None = None) -> int:
    n_tables = (1 if c.tied_embeddings else 2) if n is None else n
    return (n_tables * c.vocab_size + c.n_learned_positions) * c.d_model


def _layers(c: Any) -> int:
    return c.n_layers * (_whole(c) + _mlp(c) + c.norms_per_layer * _norm(c))


def _dense(c: Any) -> int:
    return _tables(c) + _layers(c) + _norm(c)


def _dense_loop(config):
    total = config.vocab_size * config.d_model
    for _ in range(config.n_layers):
        total += attention_params(config) + mlp_params(config)
        for _ in range(config.norms_per_layer):
            total += _norm(config)
    if not config.tied_embeddings:
        total += config.d_model * config.vocab_size
    return total + _norm(config) + config.n_learned_positions * config.d_model


def _dense_tally(config):
    parts = {
        "embedding": config.vocab_size,
        "head": 0 if config.tied_embeddings else config.vocab_size,
        "positions": config.n_learned_positions,
        "norms": (config.norms_per_layer * config.n_layers + 1) * (1 + config.layer_norm),
    }
    rows = np.array(list(parts.values()), dtype=np.int64).sum() * config.d_model
    return rows + config.n_layers * (_shapes(config) + _mlp_arrays(config))


DENSE = Exercise(
    id="dense_params",
    reference=dense_params,
    lesson=LESSON,
    points=2,
    minutes=10,
    difficulty=2,
    uses=("attention_params", "mlp_params"),
    hints=(
        "Three parts: tables before and behind the layers, the layers themselves, one last norm.",
        "Tables: vocab_size * d_model once if config.tied_embeddings, else twice, and the learned "
        "positions. A norm has d_model numbers, or 2 * d_model with layer_norm.",
        "tables + n_layers * (attention_params(config) + mlp_params(config) + norms_per_layer * "
        "norm) + norm",
    ),
    cases=CASES,
    draw=lambda rng: {
        "config": draw_config(
            rng,
            tied_embeddings=False,
            layer_norm=True,
            norms_per_layer=4,
            n_learned_positions=int(rng.integers(500, 2000)),
        )
    },
    wrong={
        "a tied head counted as well: it is the embedding once more": lambda config: (
            _dense(config) + (_tables(config, 2) - _tables(config))
        ),
        "every head taken as tied: without tied_embeddings it is an array of its own": (
            lambda config: _dense(config) + (_tables(config, 1) - _tables(config))
        ),
        "the tables are left out: embedding and head are trained too": lambda config: (
            _layers(config) + _norm(config)
        ),
        "one layer only": lambda config: (
            _tables(config) + _layers(config) // config.n_layers + _norm(config)
        ),
        "the norms are forgotten": lambda config: (
            _tables(config) + config.n_layers * (_whole(config) + _mlp(config))
        ),
        "the norm behind the last layer is forgotten": lambda config: (
            _tables(config) + _layers(config)
        ),
        "two norms in every layer: read norms_per_layer": lambda config: _dense(
            replace(config, norms_per_layer=2)
        ),
        "one norm a layer: read norms_per_layer": lambda config: _dense(
            replace(config, norms_per_layer=1)
        ),
        "with layer_norm a norm has a bias as well": lambda config: _dense(
            replace(config, layer_norm=False)
        ),
        "the learned positions are forgotten": lambda config: _dense(
            replace(config, n_learned_positions=0)
        ),
        "bytes in bf16, not numbers": lambda config: 2 * _dense(config),
    },
    right={
        "a loop over layers and norms": _dense_loop,
        "a tally in NumPy": _dense_tally,
        "from the engine's count": lambda config: config.n_params,
    },
)
