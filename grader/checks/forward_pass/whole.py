"""Lesson 02: the whole pass, from ids to logits; judged on the course's own parts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from grader.checks.forward_pass.drawn import (
    EXPERTS,
    N_LAYERS,
    STRETCHED,
    DrawnWeights,
    drawn_config,
)
from grader.checks.forward_pass.lesson import LESSON
from grader.judging.compare import Comparison, Raised, raised
from grader.judging.exercise import Case, Exercise, Inputs
from inferlab import operators as ops
from inferlab.kv_cache import KVCache
from inferlab.transformer import decoder_block, forward
from inferlab.weights import random_weights
from labkit.measure.rewire import REFERENCE, alone


def _draw_pass(rng: np.random.Generator, **kind: Any) -> Inputs:
    config = replace(drawn_config(rng), **kind)
    return {
        "weights": DrawnWeights(**vars(random_weights(config, rng, np.float64))),
        "config": config,
        "tokens": rng.integers(config.vocab_size, size=(2, int(rng.integers(5, 8)))),
    }


def _no_cache() -> Inputs:
    return _draw_pass(np.random.default_rng(12)) | {"with_cache": False}


def _of_kind(**kind: Any) -> Inputs:
    """A model with a joint that is not a plain Llama's."""
    return _draw_pass(np.random.default_rng(13), **kind)


def _drive_pass(answer: Any, inputs: Inputs) -> dict[str, Any]:
    run = alone(answer, "forward")
    weights, config, tokens = inputs["weights"], inputs["config"], inputs["tokens"]
    seen = {"all tokens": run(weights, config, tokens)}
    seen["last_only"] = run(weights, config, tokens, last_only=True)
    seen["one token"] = run(weights, config, tokens[:1, :1])
    if not inputs.get("with_cache", True):
        return seen
    cache = KVCache(N_LAYERS, config.n_kv_heads, config.d_head, len(tokens), dtype=np.float64)
    seen["the first 3 tokens, with a cache"] = run(weights, config, tokens[:, :3], cache)
    seen["the others, with it, last_only"] = run(weights, config, tokens[:, 3:], cache, True)
    seen["tokens that each layer of the cache holds"] = list(cache.lengths)
    seen["keys of the last layer"] = cache.keys[-1, :, :, : cache.lengths[-1]].copy()
    refused = {
        f"token id {config.vocab_size}": np.array([[1, config.vocab_size]]),
        "token id -1": np.array([[-1, 2]]),
        f"{config.max_context + 1} tokens": np.ones((1, config.max_context + 1), int),
    }
    for what, bad in refused.items():
        seen[f"{what} is refused with"] = _refusal(partial(run, weights, config, bad))
    full = np.ones((len(tokens), config.max_context - 2), int)
    seen["too many with the cached ones are refused with"] = _refusal(
        lambda: run(weights, config, full, cache)
    )
    return seen


def _refusal(action: Callable[[], Any]) -> str | None:
    try:
        action()
    except Exception as error:
        found: Raised = raised(error)
        return found.kind
    return None


def _pass(
    embed: Callable = lambda weights, config, tokens: weights.embedding[tokens],
    positions: Callable = lambda n_cached, S: np.arange(n_cached, S),
    turn: Callable = REFERENCE["position_angles"],
    see: Callable = REFERENCE["visible_keys"],
    layers: Callable = lambda weights: enumerate(weights.layers),
    hand_on: Callable = lambda cache, layer: (cache, layer),
    norm: Callable = lambda x, weights, config: ops.rms_norm(
        x, weights.final_gain, config.norm_eps
    ),
    head: Callable = lambda x, weights: x @ weights.head,
    last: Callable = lambda x: x[:, -1:],
    check: bool = True,
    counted: Callable = lambda n_cached: n_cached,
) -> Callable:
    """forward with one step replaced."""

    def run(weights, config, tokens, cache=None, last_only=False):
        n_cached = 0 if cache is None else cache.n_tokens
        if check:
            tokens = REFERENCE["check_tokens"](tokens, config, counted(n_cached))
        T = tokens.shape[1]
        S = n_cached + T
        angles = turn(positions(n_cached, S), config)
        x = embed(weights, config, tokens)
        for layer, layer_weights in layers(weights):
            x = decoder_block(
                x, layer_weights, config, angles, see(T, S, config), *hand_on(cache, layer)
            )
        logits = head(norm(x, weights, config), weights)
        return last(logits) if last_only else logits

    return run


def _pass_torch(weights, config, tokens, cache=None, last_only=False):
    """PyTorch's own norm, attention and silu, RoPE by complex numbers: a Llama without a cache."""
    import torch
    from torch.nn import functional

    if cache is not None or config.sliding_window or config.rope_scaling or config.n_experts:
        return _pass()(weights, config, tokens, cache, last_only)
    tokens = REFERENCE["check_tokens"](tokens, config)
    t, half = torch.from_numpy, config.d_head // 2
    turns = [config.rope_theta ** (-2 * i / config.d_head) for i in range(half)]
    angles = torch.outer(
        torch.arange(tokens.shape[1]).double(), torch.tensor(turns, dtype=torch.float64)
    )
    phase = torch.polar(torch.ones_like(angles), angles)

    def norm(x, gain):
        return functional.rms_norm(x, x.shape[-1:], t(gain), config.norm_eps)

    def heads(x, w):
        return (x @ t(w)).unflatten(-1, (-1, config.d_head)).transpose(1, 2)

    def turned(x):
        pairs = torch.complex(x[..., :half].contiguous(), x[..., half:].contiguous()) * phase
        return torch.cat([pairs.real, pairs.imag], -1)

    x = t(weights.embedding)[t(tokens)]
    for w in weights.layers:
        h = norm(x, w.attention_gain)
        q, k, v = turned(heads(h, w.w_q)), turned(heads(h, w.w_k)), heads(h, w.w_v)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + mixed.transpose(1, 2).flatten(2) @ t(w.w_o)
        h = norm(x, w.mlp_gain)
        x = x + (functional.silu(h @ t(w.w_gate)) * (h @ t(w.w_up))) @ t(w.w_down)
    logits = norm(x, weights.final_gain) @ t(weights.head)
    return logits[:, -1:] if last_only else logits


def _pass_norm_first(weights, config, tokens, cache=None, last_only=False):
    """Gathers rows by np.take, and cuts before the norm."""
    tokens = REFERENCE["check_tokens"](
        np.array(tokens), config, cache.n_tokens if cache is not None else 0
    )
    n_new = tokens.shape[-1]
    n_all = n_new + (cache.n_tokens if cache is not None else 0)
    x = np.take(weights.embedding, tokens, axis=0)
    turns = REFERENCE["position_angles"](list(range(n_all - n_new, n_all)), config)
    sees = REFERENCE["visible_keys"](n_new, n_all, config)
    for i in range(len(weights.layers)):
        x = decoder_block(x, weights.layers[i], config, turns, sees, cache=cache, layer=i)
    x = x[:, -1, None] if last_only else x
    return np.matmul(ops.rms_norm(x, weights.final_gain, config.norm_eps), weights.head)


FORWARD = Exercise(
    id="forward",
    reference=forward,
    lesson=LESSON,
    points=3,
    minutes=14,
    difficulty=3,
    drive=_drive_pass,
    hints=(
        "First the numbers: n_cached (0 without a cache), T = tokens.shape[1], S = n_cached + T. "
        "Then angles of positions n_cached … S - 1, and the mask of T queries over S keys.",
        "x = weights.embedding[tokens]; for layer, layer_weights in enumerate(weights.layers): "
        "x = decoder_block(x, layer_weights, config, angles, visible, cache, layer).",
        "if last_only: x = x[:, -1:]. Then project(rms_norm(x, weights.final_gain, "
        "config.norm_eps), weights.head). n_cached = 0 if cache is None else cache.n_tokens.",
    ),
    cases=(
        Case("no cache", _no_cache),
        Case("a window of 4 tokens", lambda: _of_kind(sliding_window=4)),
        Case("stretched RoPE", lambda: _of_kind(rope_scaling=STRETCHED)),
        Case("one plain layer, then experts", lambda: _of_kind(**EXPERTS)),
    ),
    draw=_draw_pass,
    n_draws=3,
    comparison=Comparison(
        terms=lambda i: (
            N_LAYERS
            * (i["config"].d_model + i["config"].n_heads * i["config"].d_head + i["config"].d_ff)
        ),
        magnitude=lambda i: 100.0,
        why="the sums of three layers; activations of this size multiply in the MLP",
    ),
    wrong={
        "the final norm is missing": _pass(norm=lambda x, weights, config: x),
        "the final norm has another eps: use config.norm_eps": _pass(
            norm=lambda x, weights, config: ops.rms_norm(x, weights.final_gain)
        ),
        "the embedding is used as the head; this model has a head of its own": _pass(
            head=lambda x, weights: x @ weights.embedding.T
        ),
        "with a cache the positions start at 0 again; they go on from n_cached": _pass(
            positions=lambda n_cached, S: np.arange(S - n_cached)
        ),
        "the positions are counted from 1; the first token stands at 0": _pass(
            positions=lambda n_cached, S: np.arange(n_cached, S) + 1
        ),
        "a causal mask, whatever the model: visible_keys knows of its window": _pass(
            see=lambda T, S, config: ops.causal_mask(T, S)
        ),
        "rope_angles, whatever the model: position_angles knows of its stretched RoPE": _pass(
            turn=lambda positions, config: ops.rope_angles(
                positions, config.d_head, config.rope_theta
            )
        ),
        "every query sees every key: no causal mask": _pass(
            see=lambda T, S, config: np.ones((T, S), bool)
        ),
        "the mask starts at the upper left: it ignores the cached tokens": _pass(
            see=lambda T, S, config: np.tri(T, S, dtype=bool)
        ),
        "the mask is T × T with a cache too: it has a column for each of S = n_cached + T keys": (
            _pass(see=lambda T, S, config: ops.causal_mask(T, T))
        ),
        "with a cache there are angles for all S positions: only the T new tokens are turned": (
            _pass(positions=lambda n_cached, S: np.arange(S))
        ),
        "all blocks use the weights of layer 0": _pass(
            layers=lambda weights: ((i, weights.layers[0]) for i in range(len(weights.layers)))
        ),
        "the last block is left out": _pass(layers=lambda weights: enumerate(weights.layers[:-1])),
        "the blocks run from the last to the first": _pass(
            layers=lambda weights: list(enumerate(weights.layers))[::-1]
        ),
        "every block is told that it is layer 0: they share one part of the cache": _pass(
            hand_on=lambda cache, layer: (cache, 0)
        ),
        "the cache is not handed to the blocks": _pass(hand_on=lambda cache, layer: (None, layer)),
        "the embeddings are scaled by sqrt(d_model), as in 2017 and in Gemma; here they are not": (
            _pass(
                embed=lambda weights, config, tokens: (
                    weights.embedding[tokens] * np.sqrt(config.d_model)
                )
            )
        ),
        "a softmax is applied: logits are asked, not probabilities": _pass(
            head=lambda x, weights: ops.softmax(x @ weights.head)
        ),
        "last_only is ignored": _pass(last=lambda logits: logits),
        "last_only gives the first token's logits": _pass(last=lambda logits: logits[:, :1]),
        "last_only gives the last sequence; the last token of each is asked": _pass(
            last=lambda logits: logits[-1:]
        ),
        "last_only loses an axis: the shape is (B, 1, vocab_size)": _pass(
            last=lambda logits: logits[:, -1]
        ),
        "check_tokens is not told of the cached tokens: the context may grow too long": _pass(
            counted=lambda n_cached: 0
        ),
        "check_tokens is not called: token -1 silently becomes the last of the vocabulary": _pass(
            check=False
        ),
    },
    right={
        "head first, cut afterwards": _pass(),
        "np.take, cut before the norm": _pass_norm_first,
        "torch, RoPE by complex numbers": _pass_torch,
    },
)
