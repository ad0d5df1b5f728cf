"""Lesson 02: the parts put together: self-attention, and what a part of a layer is judged on.

Each is judged with the course's parts in place of what it calls, so that one may be done before
the others, and a mistake is named where it is made.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from grader.checks.forward_pass.drawn import LAYER, N_LAYERS, DrawnLayer, drawn_config
from grader.checks.forward_pass.lesson import LESSON
from grader.judging.compare import Comparison
from grader.judging.exercise import Case, Exercise, Inputs
from inferlab import operators as ops
from inferlab.attention import self_attention
from inferlab.kv_cache import KVCache
from inferlab.weights import LayerWeights, random_weights
from labkit.measure.rewire import REFERENCE, alone

WINDOW = 4  # a token sees itself and the three before it: no plain causal mask


def draw_layer(rng: np.random.Generator, **kind: Any) -> Inputs:
    config = replace(drawn_config(rng), **kind)
    T = int(rng.integers(5, 8))
    return {
        "x": rng.normal(size=(2, T, config.d_model)),
        "weights": DrawnLayer(**random_weights(config, rng, np.float64).layers[LAYER].arrays()),
        "config": config,
        "angles": ops.rope_angles(np.arange(T), config.d_rotated, config.rope_theta),
        "visible": ops.window_mask(T, T, WINDOW),
    }


def drive_layer(name: str) -> Callable[[Any, Inputs], dict[str, Any]]:
    """A part of a layer: at once; then the first 3 tokens and the others, through a cache."""

    def drive(answer: Any, inputs: Inputs) -> dict[str, Any]:
        run = alone(answer, name)
        x, config = inputs["x"], inputs["config"]
        which = {"layer": LAYER} if config.n_experts else {}
        seen = {"all tokens, no cache": run(**inputs, **which)}
        if config.mla is not None:  # it has a cache of another kind
            return seen
        cache = KVCache(N_LAYERS, config.n_kv_heads, config.d_head, len(x), dtype=np.float64)
        rest = {"weights": inputs["weights"], "config": config, "cache": cache, "layer": LAYER}
        for label, start, end in (("first 3", 0, 3), ("other", 3, x.shape[1])):
            seen[f"the {label} tokens, with a cache"] = run(
                x=x[:, start:end].copy(),
                angles=inputs["angles"][start:end],
                visible=inputs["visible"][start:end, :end],
                **rest,
            )
        seen["tokens that each layer of the cache holds"] = list(cache.lengths)
        n = cache.lengths[LAYER]
        seen["keys in the cache"] = cache.keys[LAYER, :, :, :n].copy()
        seen["values in the cache"] = cache.values[LAYER, :, :, :n].copy()
        return seen

    return drive


LAYER_COMPARISON = Comparison(
    terms=lambda i: (
        i["config"].d_model
        + i["config"].n_heads * i["config"].d_head
        + i["config"].d_ff
        + i["x"].shape[1]
    ),
    magnitude=lambda i: 10 * (1 + float(np.abs(i["x"]).max())) ** 2,
    why="sums over d_model, the heads, the keys and d_ff; a product of two activations",
)

# ---- self-attention -----------------------------------------------------------------------------


def _beside(weights: LayerWeights, name: str) -> tuple[Any, Any]:
    """The bias and the gain that go with w_q, w_k or w_v."""
    return getattr(weights, name.replace("w_", "b_")), getattr(weights, f"{name[-1]}_gain", None)


def mix(
    queries: str = "w_q",
    keys: str = "w_k",
    values: str = "w_v",
    turn_q: Callable = ops.rotate,
    turn_k: Callable = ops.rotate,
    turn_v: Callable = lambda v, angles: v,
    beside: Callable = _beside,
    see: Callable = lambda visible, n_keys: visible,
    store: Callable = lambda cache, layer, k, v: cache.append(layer, k, v),
    turn_all: Callable = lambda k, angles: k,
    merge: Callable = ops.merge_heads,
    back: Callable = lambda mixed, weights: mixed @ weights.w_o,
) -> Callable:
    """self_attention with one step replaced."""

    def mixed(x, weights, config, angles, visible, cache=None, layer=0):
        q, k, v = (
            REFERENCE["to_heads"](x, getattr(weights, name), config, *beside(weights, part))
            for name, part in ((queries, "w_q"), (keys, "w_k"), (values, "w_v"))
        )
        q, k, v = turn_q(q, angles), turn_k(k, angles), turn_v(v, angles)
        if cache is not None:
            k, v = store(cache, layer, k, v)
            k = turn_all(k, angles)
        return back(merge(ops.attention(q, k, v, see(visible, k.shape[2]))), weights)

    return mixed


def _neighbours(x, angles):
    cos, sin = np.cos(angles), np.sin(angles)
    a, b = x[..., 0::2], x[..., 1::2]
    return np.stack([a * cos - b * sin, a * sin + b * cos], axis=-1).reshape(x.shape)


def _keep_plain_keys(x, weights, config, angles, visible, cache=None, layer=0):
    """Stores the keys before turning them; uses them turned."""
    if cache is None:
        return mix()(x, weights, config, angles, visible)
    q, k, v = (
        REFERENCE["to_heads"](x, getattr(weights, name), config, *_beside(weights, name))
        for name in ("w_q", "w_k", "w_v")
    )
    all_k, all_v = cache.append(layer, k, v)
    n = all_k.shape[2] - k.shape[2]
    turned = np.concatenate([all_k[:, :, :n], ops.rotate(k, angles)], axis=2)
    mixed = ops.attention(ops.rotate(q, angles), turned, all_v, visible)
    return ops.merge_heads(mixed) @ weights.w_o


def _sees_new_only(x, weights, config, angles, visible, cache=None, layer=0):
    T = x.shape[1]
    if cache is not None:
        mix()(x, weights, config, angles, visible, cache, layer)
    return mix()(x, weights, config, angles, visible[:, -T:])


def _keys_for_every_head(x, weights, config, angles, visible, cache=None, layer=0):
    shared = config.n_heads // config.n_kv_heads
    spread = mix(store=lambda cache, layer, k, v: cache.append(layer, *_repeat(shared, k, v)))
    return spread(x, weights, config, angles, visible, cache, layer)


def _repeat(shared: int, *arrays: np.ndarray) -> list[np.ndarray]:
    return [np.repeat(array, shared, axis=1) for array in arrays]


def _mix_and_add(x, weights, config, angles, visible, cache=None, layer=0):
    return x + mix()(x, weights, config, angles, visible, cache, layer)


def _biased() -> Inputs:
    return draw_layer(np.random.default_rng(11), attention_bias=True, qk_norm=True)


def _mix_joined(x, weights, config, angles, visible, cache=None, layer=0):
    """One product for all three projections; queries and keys turned together."""
    B, T, _ = x.shape
    joined = x @ np.concatenate([weights.w_q, weights.w_k, weights.w_v], axis=1)
    if weights.b_q is not None:
        joined = joined + np.concatenate([weights.b_q, weights.b_k, weights.b_v])
    heads = joined.reshape(B, T, -1, config.d_head).transpose(0, 2, 1, 3)
    n, m = config.n_heads, config.n_heads + config.n_kv_heads
    if weights.q_gain is not None:
        heads[:, :n] = ops.rms_norm(heads[:, :n], weights.q_gain, config.norm_eps)
        heads[:, n:m] = ops.rms_norm(heads[:, n:m], weights.k_gain, config.norm_eps)
    turned = ops.rotate(heads[:, :m], angles)
    q, k, v = turned[:, :n], turned[:, n:], heads[:, m:]
    if cache is not None:
        k, v = cache.append(layer, k, v)
    return np.einsum(
        "bhtd,hde->bte",
        ops.attention(q, k, v, visible),
        weights.w_o.reshape(config.n_heads, config.d_head, -1),
    )


def _mix_sequences(x, weights, config, angles, visible, cache=None, layer=0):
    """Sequence by sequence where there is no cache."""
    if cache is not None:
        return mix()(x, weights, config, angles, visible, cache, layer)
    return np.concatenate(
        [mix()(x[b : b + 1], weights, config, angles, visible) for b in range(len(x))]
    )


SELF_ATTENTION = Exercise(
    id="self_attention",
    reference=self_attention,
    lesson=LESSON,
    points=3,
    minutes=12,
    difficulty=3,
    drive=drive_layer("self_attention"),
    hints=(
        "Six steps: three calls of to_heads, two of rotate, the cache if there is one, attention, "
        "merge_heads, and a projection with weights.w_o.",
        "q = rotate(to_heads(x, weights.w_q, config, weights.b_q, weights.q_gain), angles); k "
        "alike with w_k; v not rotated. if cache is not None: k, v = cache.append(layer, k, v).",
        "return project(merge_heads(attention(q, k, v, visible)), weights.w_o). There is nothing "
        "to do for grouped heads here: attention shares the keys.",
    ),
    cases=(Case("biases, and normed queries and keys", _biased),),
    draw=draw_layer,
    comparison=LAYER_COMPARISON,
    wrong={
        "the biases and gains are not handed to to_heads: a Qwen2 or Qwen3 needs them": mix(
            beside=lambda weights, name: (None, None)
        ),
        "the biases are not handed to to_heads": mix(
            beside=lambda weights, name: (None, _beside(weights, name)[1])
        ),
        "the values get no bias: they have b_v": mix(
            beside=lambda weights, name: (None, None) if name == "w_v" else _beside(weights, name)
        ),
        "the gains of queries and keys are not handed to to_heads": mix(
            beside=lambda weights, name: (_beside(weights, name)[0], None)
        ),
        "a causal mask of its own; use visible: some models see only a window of the past": mix(
            see=lambda visible, n_keys: ops.causal_mask(len(visible), n_keys)
        ),
        "the input is added; the decoder block does that": _mix_and_add,
        "the values are rotated too; only queries and keys are": mix(turn_v=ops.rotate),
        "the queries are not rotated": mix(turn_q=lambda q, angles: q),
        "the keys are not rotated": mix(turn_k=lambda k, angles: k),
        "nothing is rotated: the model no longer knows the order of the tokens": mix(
            turn_q=lambda q, angles: q, turn_k=lambda k, angles: k
        ),
        "queries are turned in neighbouring pairs, keys half-split: both need one layout": mix(
            turn_q=_neighbours
        ),
        "both are turned in neighbouring pairs: consistent, and wrong for these weights": mix(
            turn_q=_neighbours, turn_k=_neighbours
        ),
        "w_k makes the values too; they have a matrix of their own, w_v": mix(values="w_k"),
        "keys and values are exchanged": mix(keys="w_v", values="w_k"),
        "the keys are stored before they are rotated: later tokens meet them unrotated": (
            _keep_plain_keys
        ),
        "all keys of the cache are rotated again; they were, when they were stored": mix(
            turn_all=lambda k, angles: ops.rotate(
                k, np.concatenate([np.zeros((k.shape[2] - len(angles), angles.shape[1])), angles])
            )
        ),
        "the queries see the new tokens only: use what cache.append returns": _sees_new_only,
        "everything is stored in layer 0 of the cache: hand layer on": mix(
            store=lambda cache, layer, k, v: cache.append(0, k, v)
        ),
        "keys and values are repeated for every query head before they are stored: the cache has "
        "room for n_kv_heads, and attention shares them": _keys_for_every_head,
        "keys and values are exchanged on the way into the cache": mix(
            store=lambda cache, layer, k, v: cache.append(layer, v, k)[::-1]
        ),
        "the heads are merged by a plain reshape, which mixes tokens": mix(
            merge=lambda heads: heads.reshape(len(heads), heads.shape[2], -1)
        ),
        "the heads are not projected back with w_o": mix(back=lambda mixed, weights: mixed),
    },
    right={
        "projections written out": mix(),
        "one joined projection, queries and keys turned together": _mix_joined,
        "sequence by sequence": _mix_sequences,
    },
)
