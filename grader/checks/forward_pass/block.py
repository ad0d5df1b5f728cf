"""Lesson 02: the parts put together: self-attention and the decoder block.

Each is judged with the course's parts in place of what it calls, so that one may be done before
the others, and a mistake is named where it is made.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from grader.checks.forward_pass.drawn import LAYER, N_LAYERS, DrawnLayer, drawn_config
from grader.checks.forward_pass.lesson import LESSON
from grader.compare import Comparison
from grader.exercise import Exercise, Inputs
from inferlab import operators as ops
from inferlab.attention import self_attention
from inferlab.kv_cache import KVCache
from inferlab.transformer import decoder_block
from inferlab.weights import random_weights
from labkit.rewire import REFERENCE, alone


def _draw_layer(rng: np.random.Generator) -> Inputs:
    config = drawn_config(int(rng.choice([2, 3])))
    T = int(rng.integers(5, 8))
    return {
        "x": rng.normal(size=(2, T, config.d_model)),
        "weights": DrawnLayer(**random_weights(config, rng, np.float64).layers[LAYER].arrays()),
        "config": config,
        "angles": ops.rope_angles(np.arange(T), config.d_head, config.rope_theta),
        "visible": ops.causal_mask(T, T),
    }


def _drive_layer(name: str) -> Callable[[Any, Inputs], dict[str, Any]]:
    """A part of a layer: at once; then the first 3 tokens and the others, through a cache."""

    def drive(answer: Any, inputs: Inputs) -> dict[str, Any]:
        run = alone(answer, name)
        seen = {"all tokens, no cache": run(**inputs)}
        x, config = inputs["x"], inputs["config"]
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


def _mix(
    queries: str = "w_q",
    keys: str = "w_k",
    values: str = "w_v",
    turn_q: Callable = ops.rotate,
    turn_k: Callable = ops.rotate,
    turn_v: Callable = lambda v, angles: v,
    store: Callable = lambda cache, layer, k, v: cache.append(layer, k, v),
    turn_all: Callable = lambda k, angles: k,
    merge: Callable = ops.merge_heads,
    back: Callable = lambda mixed, weights: mixed @ weights.w_o,
) -> Callable:
    """self_attention with one step replaced."""

    def mix(x, weights, config, angles, visible, cache=None, layer=0):
        q, k, v = (
            ops.split_heads(x @ getattr(weights, name), config.d_head)
            for name in (queries, keys, values)
        )
        q, k, v = turn_q(q, angles), turn_k(k, angles), turn_v(v, angles)
        if cache is not None:
            k, v = store(cache, layer, k, v)
            k = turn_all(k, angles)
        return back(merge(ops.attention(q, k, v, visible)), weights)

    return mix


def _neighbours(x, angles):
    cos, sin = np.cos(angles), np.sin(angles)
    a, b = x[..., 0::2], x[..., 1::2]
    return np.stack([a * cos - b * sin, a * sin + b * cos], axis=-1).reshape(x.shape)


def _keep_plain_keys(x, weights, config, angles, visible, cache=None, layer=0):
    """Stores the keys before turning them; uses them turned."""
    if cache is None:
        return _mix()(x, weights, config, angles, visible)
    q, k, v = (
        ops.split_heads(x @ w, config.d_head) for w in (weights.w_q, weights.w_k, weights.w_v)
    )
    all_k, all_v = cache.append(layer, k, v)
    n = all_k.shape[2] - k.shape[2]
    turned = np.concatenate([all_k[:, :, :n], ops.rotate(k, angles)], axis=2)
    mixed = ops.attention(ops.rotate(q, angles), turned, all_v, visible)
    return ops.merge_heads(mixed) @ weights.w_o


def _sees_new_only(x, weights, config, angles, visible, cache=None, layer=0):
    T = x.shape[1]
    if cache is not None:
        _mix()(x, weights, config, angles, visible, cache, layer)
    return _mix()(x, weights, config, angles, visible[:, -T:])


def _keys_for_every_head(x, weights, config, angles, visible, cache=None, layer=0):
    shared = config.n_heads // config.n_kv_heads
    spread = _mix(store=lambda cache, layer, k, v: cache.append(layer, *_repeat(shared, k, v)))
    return spread(x, weights, config, angles, visible, cache, layer)


def _repeat(shared: int, *arrays: np.ndarray) -> list[np.ndarray]:
    return [np.repeat(array, shared, axis=1) for array in arrays]


def _mix_joined(x, weights, config, angles, visible, cache=None, layer=0):
    """One product for all three projections; queries and keys turned together."""
    B, T, _ = x.shape
    joined = x @ np.concatenate([weights.w_q, weights.w_k, weights.w_v], axis=1)
    heads = joined.reshape(B, T, -1, config.d_head).transpose(0, 2, 1, 3)
    n, m = config.n_heads, config.n_heads + config.n_kv_heads
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
        return _mix()(x, weights, config, angles, visible, cache, layer)
    return np.concatenate(
        [_mix()(x[b : b + 1], weights, config, angles, visible) for b in range(len(x))]
    )


SELF_ATTENTION = Exercise(
    id="self_attention",
    reference=self_attention,
    lesson=LESSON,
    points=3,
    minutes=12,
    difficulty=3,
    drive=_drive_layer("self_attention"),
    hints=(
        "Six steps: three calls of to_heads, two of rotate, the cache if there is one, attention, "
        "merge_heads, and a projection with weights.w_o.",
        "q = rotate(to_heads(x, weights.w_q, config, weights.b_q, weights.q_gain), angles); k "
        "alike with w_k; v not rotated. if cache is not None: k, v = cache.append(layer, k, v).",
        "return project(merge_heads(attention(q, k, v, visible)), weights.w_o). There is nothing "
        "to do for grouped heads here: attention shares the keys.",
    ),
    draw=_draw_layer,
    comparison=LAYER_COMPARISON,
    wrong={
        "the values are rotated too; only queries and keys are": _mix(turn_v=ops.rotate),
        "the queries are not rotated": _mix(turn_q=lambda q, angles: q),
        "the keys are not rotated": _mix(turn_k=lambda k, angles: k),
        "nothing is rotated: the model no longer knows the order of the tokens": _mix(
            turn_q=lambda q, angles: q, turn_k=lambda k, angles: k
        ),
        "queries are turned in neighbouring pairs, keys half-split: both need one layout": _mix(
            turn_q=_neighbours
        ),
        "both are turned in neighbouring pairs: consistent, and wrong for these weights": _mix(
            turn_q=_neighbours, turn_k=_neighbours
        ),
        "w_k makes the values too; they have a matrix of their own, w_v": _mix(values="w_k"),
        "keys and values are exchanged": _mix(keys="w_v", values="w_k"),
        "the keys are stored before they are rotated: later tokens meet them unrotated": (
            _keep_plain_keys
        ),
        "all keys of the cache are rotated again; they were, when they were stored": _mix(
            turn_all=lambda k, angles: ops.rotate(
                k, np.concatenate([np.zeros((k.shape[2] - len(angles), angles.shape[1])), angles])
            )
        ),
        "the queries see the new tokens only: use what cache.append returns": _sees_new_only,
        "everything is stored in layer 0 of the cache: hand layer on": _mix(
            store=lambda cache, layer, k, v: cache.append(0, k, v)
        ),
        "keys and values are exchanged on the way into the cache": _mix(
            store=lambda cache, layer, k, v: cache.append(layer, v, k)[::-1]
        ),
        "the heads are merged by a plain reshape, which mixes tokens": _mix(
            merge=lambda heads: heads.reshape(len(heads), heads.shape[2], -1)
        ),
        "the heads are not projected back with w_o": _mix(back=lambda mixed, weights: mixed),
    },
    right={
        "projections written out": _mix(),
        "one joined projection, queries and keys turned together": _mix_joined,
        "sequence by sequence": _mix_sequences,
    },
)

# ---- the decoder block --------------------------------------------------------------------------


def _norm(x, gain, config):
    return ops.rms_norm(x, gain, config.norm_eps)


def _block(
    first: Callable = _norm,
    second: Callable = _norm,
    gains: tuple[str, str] = ("attention_gain", "mlp_gain"),
    add: Callable = lambda x, normed, part: x + part,
    add_mlp: Callable | None = None,
    finish: Callable = lambda x, weights, config: x,
    mlp_sees: Callable = lambda x, mixed: mixed,
    hand_on: Callable = lambda cache, layer: (cache, layer),
) -> Callable:
    """decoder_block with one step replaced."""

    def block(x, weights, config, angles, visible, cache=None, layer=0):
        normed = first(x, getattr(weights, gains[0]), config)
        part = REFERENCE["mix_tokens"](
            normed, weights, config, angles, visible, *hand_on(cache, layer)
        )
        mixed = add(x, normed, part)
        normed = second(mlp_sees(x, mixed), getattr(weights, gains[1]), config)
        part = REFERENCE["feed_forward"](normed, weights, config, layer)
        return finish((add_mlp or add)(mixed, normed, part), weights, config)

    return block


def _not_normed(x, gain, config):
    return x


def _block_in_place(x, weights, config, angles, visible, cache=None, layer=0):
    x += REFERENCE["mix_tokens"](
        _norm(x, weights.attention_gain, config), weights, config, angles, visible, cache, layer
    )
    x += REFERENCE["feed_forward"](_norm(x, weights.mlp_gain, config), weights, config, layer)
    return x


def _block_post_norm(x, weights, config, angles, visible, cache=None, layer=0):
    mixed = REFERENCE["mix_tokens"](x, weights, config, angles, visible, cache, layer)
    x = _norm(x + mixed, weights.attention_gain, config)
    return _norm(x + REFERENCE["feed_forward"](x, weights, config, layer), weights.mlp_gain, config)


def _block_parallel(x, weights, config, angles, visible, cache=None, layer=0):
    normed = _norm(x, weights.attention_gain, config)
    mixed = REFERENCE["mix_tokens"](normed, weights, config, angles, visible, cache, layer)
    return x + mixed + REFERENCE["feed_forward"](normed, weights, config, layer)


def _block_mlp_first(x, weights, config, angles, visible, cache=None, layer=0):
    normed = _norm(x, weights.mlp_gain, config)
    x = x + REFERENCE["feed_forward"](normed, weights, config, layer)
    normed = _norm(x, weights.attention_gain, config)
    return x + REFERENCE["mix_tokens"](normed, weights, config, angles, visible, cache, layer)


def _block_direct(x, weights, config, angles, visible, cache=None, layer=0):
    """Without the joints: the parts of a Llama by name."""
    h = self_attention(
        x=ops.rms_norm(x, weights.attention_gain, eps=config.norm_eps),
        weights=weights, config=config, angles=angles, visible=visible, cache=cache, layer=layer,
    ) + x  # fmt: skip
    normed = ops.rms_norm(h, weights.mlp_gain, eps=config.norm_eps)
    return ops.swiglu(normed, weights.w_gate, weights.w_up, weights.w_down) + h


def _block_written_out(x, weights, config, angles, visible, cache=None, layer=0):
    out = x.copy()
    mean = (out**2).mean(-1, keepdims=True)
    out += _mix()(
        out / np.sqrt(mean + config.norm_eps) * weights.attention_gain,
        weights, config, angles, visible, cache, layer,
    )  # fmt: skip
    mean = (out**2).mean(-1, keepdims=True)
    normed = out / np.sqrt(mean + config.norm_eps) * weights.mlp_gain
    gate = normed @ weights.w_gate
    out += (gate / (1 + np.exp(-gate)) * (normed @ weights.w_up)) @ weights.w_down
    return out


DECODER_BLOCK = Exercise(
    id="decoder_block",
    reference=decoder_block,
    lesson=LESSON,
    points=2,
    minutes=8,
    difficulty=2,
    drive=_drive_layer("decoder_block"),
    hints=(
        "Two lines for each half: norm the stream, then add what the part makes of the normed one "
        "to the stream itself (not to the normed one).",
        "normed = rms_norm(x, weights.attention_gain, config.norm_eps); x = x + mix_tokens(normed, "
        "weights, config, angles, visible, cache, layer). Not x += …: that changes the input.",
        "The second half is the same with weights.mlp_gain and feed_forward(normed, weights, "
        "config, layer), on the new x.",
    ),
    draw=_draw_layer,
    comparison=LAYER_COMPARISON,
    wrong={
        "the input is not added to what attention gives": _block(
            add=lambda x, normed, part: part, add_mlp=lambda x, normed, part: x + part
        ),
        "the MLP's result is not added to the stream": _block(add_mlp=lambda x, normed, part: part),
        "the normed x is added; the stream itself goes past the norm": _block(
            add=lambda x, normed, part: normed + part
        ),
        "attention gets x without its norm": _block(first=_not_normed),
        "the MLP gets x without its norm": _block(second=_not_normed),
        "the norms come after the sums (post-norm, as in 2017); here they stand before the parts": (
            _block_post_norm
        ),
        "the two gains are exchanged": _block(gains=("mlp_gain", "attention_gain")),
        "both norms use attention_gain; the second one has mlp_gain": _block(
            gains=("attention_gain", "attention_gain")
        ),
        "eps is left at its default; use config.norm_eps": _block(
            first=lambda x, gain, config: ops.rms_norm(x, gain),
            second=lambda x, gain, config: ops.rms_norm(x, gain),
        ),
        "the MLP works on the block's input; it works on the sum after attention": _block(
            mlp_sees=lambda x, mixed: x
        ),
        "both parts read one norm of x, side by side (as in GPT-J); here they follow each other": (
            _block_parallel
        ),
        "the MLP comes before attention": _block_mlp_first,
        "the cache is not handed on: later tokens find nothing of the earlier ones": _block(
            hand_on=lambda cache, layer: (None, layer)
        ),
        "the number of the layer is not handed on: every layer stores into layer 0": _block(
            hand_on=lambda cache, layer: (cache, 0)
        ),
        "a third norm at the end; the last one belongs after all the blocks": _block(
            finish=lambda x, weights, config: _norm(x, weights.mlp_gain, config)
        ),
        "it changes its input x in place; work on a copy": _block_in_place,
    },
    right={
        "the parts of a Llama by name": _block_direct,
        "norms and MLP written out": _block_written_out,
        "the halves with names of their own": _block(),
    },
)
