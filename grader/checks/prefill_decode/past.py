"""Lesson 03: attention on top of what was kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from grader.checks.prefill_decode.lesson import LESSON
from grader.judging.compare import Comparison
from grader.judging.exercise import Case, Exercise, Inputs
from inferlab.attention import self_attention
from inferlab.config import ModelConfig
from inferlab.generate import OneLayer, attend_with_past
from inferlab.operators import (
    attention,
    causal_mask,
    merge_heads,
    project,
    rope_angles,
    rotate,
    split_heads,
)
from inferlab.weights import random_weights


def _attend_inputs(rng: np.random.Generator, B: int, T: int, n_past: int, **sizes: Any) -> Inputs:
    """A layer of unequal sizes; by default d_head is not d_model / n_heads."""
    shape = {"n_heads": 6, "n_kv_heads": 2, "d_head": 8, "d_model": 30, "rope_theta": 90.0} | sizes
    config = ModelConfig(n_layers=1, d_ff=12, vocab_size=11, **shape)
    k, v = rng.normal(size=(2, B, config.n_kv_heads, n_past, config.d_head))
    return {
        "x": rng.normal(size=(B, T, config.d_model)),
        "weights": random_weights(config, rng, np.float64).layers[0],
        "config": config,
        "k_past": k,
        "v_past": v,
    }


def _draw_attend(rng: np.random.Generator) -> Inputs:
    n_kv_heads = int(rng.integers(2, 4))
    return _attend_inputs(
        rng,
        B=2,
        T=int(rng.integers(2, 5)),
        n_past=int(rng.integers(3, 7)),
        n_kv_heads=n_kv_heads,
        n_heads=n_kv_heads * int(rng.integers(2, 4)),
        d_head=int(rng.choice([6, 10])),
        rope_theta=float(rng.choice([50.0, 700.0])),
    )


def _attend(
    positions: Callable = lambda n, T: np.arange(n, n + T),
    at_0: str = "",
    keys: Callable = lambda past, new: np.concatenate([past, new], axis=2),
    values: Callable = lambda past, new: np.concatenate([past, new], axis=2),
    turn: str = "qk",
    theta: Callable = lambda config: config.rope_theta,
    mask: Callable = causal_mask,
    attended: Callable = lambda k, v, T: (k, v),
    result: Callable = lambda out, k, v, T: (out, k, v),
    merge: Callable = merge_heads,
    last: bool = True,
):
    """attend_with_past with one step replaced."""

    def attend(x, weights, config, k_past, v_past):
        n_past, T = k_past.shape[2], x.shape[1]
        places = {name: np.arange(T) if name in at_0 else positions(n_past, T) for name in turn}
        rows = {
            name: split_heads(project(x, w), config.d_head)
            for name, w in (("q", weights.w_q), ("k", weights.w_k), ("v", weights.w_v))
        }
        for name, place in places.items():
            rows[name] = rotate(rows[name], rope_angles(place, config.d_head, theta(config)))
        k, v = keys(k_past, rows["k"]), values(v_past, rows["v"])
        seen_k, seen_v = attended(k, v, T)
        mixed = merge(attention(rows["q"], seen_k, seen_v, mask(T, seen_k.shape[2])))
        return result(project(mixed, weights.w_o) if last else mixed, k, v, T)

    return attend


def _turned_again(x, weights, config, k_past, v_past):
    """The joined keys, past ones rotated already, all rotated from position 0 on."""
    n_past, T = k_past.shape[2], x.shape[1]
    angles = rope_angles(np.arange(n_past + T), config.d_head, config.rope_theta)
    q, k, v = (
        split_heads(project(x, w), config.d_head) for w in (weights.w_q, weights.w_k, weights.w_v)
    )
    k = rotate(np.concatenate([k_past, k], axis=2), angles)
    v = np.concatenate([v_past, v], axis=2)
    mixed = attention(rotate(q, angles[n_past:]), k, v, causal_mask(T, n_past + T))
    return project(merge_heads(mixed), weights.w_o), k, v


def _turned_when_read(x, weights, config, k_past, v_past):
    """Keys are kept as they were projected, and all of them rotated for each pass."""
    n_past, T = k_past.shape[2], x.shape[1]
    angles = rope_angles(np.arange(n_past + T), config.d_head, config.rope_theta)
    q, k, v = (
        split_heads(project(x, w), config.d_head) for w in (weights.w_q, weights.w_k, weights.w_v)
    )
    k, v = np.concatenate([k_past, k], axis=2), np.concatenate([v_past, v], axis=2)
    turned = rotate(q, angles[n_past:]), rotate(k, angles)
    mixed = attention(*turned, v, causal_mask(T, n_past + T))
    return project(merge_heads(mixed), weights.w_o), k, v


def _see_all_keys(T: int, S: int) -> np.ndarray:
    return np.ones((T, S), dtype=bool)


def _not_itself(T: int, S: int) -> np.ndarray:
    """Strictly the past; the very first token may look at itself, to see anything at all."""
    visible = np.arange(S) < np.arange(S - T, S)[:, None]
    visible[:, 0] |= ~visible.any(axis=1)
    return visible


def _residual_added(x, weights, config, k_past, v_past):
    out, k, v = attend_with_past(x, weights, config, k_past, v_past)
    return x + out, k, v


def _reshape_heads(heads: np.ndarray) -> np.ndarray:
    B, _, T, _ = heads.shape
    return heads.reshape(B, T, -1)


def _in_the_callers_past(x, weights, config, k_past, v_past):
    out, k, v = attend_with_past(x, weights, config, k_past, v_past)
    k_past *= 2  # a caller that goes on from the same past finds other numbers
    return out, k, v


def _engine_attention(x, weights, config, k_past, v_past):
    n_past, T = k_past.shape[2], x.shape[1]
    angles = rope_angles(np.arange(n_past, n_past + T), config.d_head, config.rope_theta)
    kept = OneLayer(k_past, v_past)
    visible = causal_mask(T, n_past + T)
    return self_attention(x, weights, config, angles, visible, kept), kept.k, kept.v


def _token_by_token(x, weights, config, k_past, v_past):
    k, v, out = k_past, v_past, []
    for t in range(x.shape[1]):
        row = x[:, t : t + 1]
        angles = rope_angles(np.array([k.shape[2]]), config.d_head, config.rope_theta)
        new_k, new_v, q = (
            split_heads(project(row, w), config.d_head)
            for w in (weights.w_k, weights.w_v, weights.w_q)
        )
        k = np.concatenate([k, rotate(new_k, angles)], axis=2)
        v = np.concatenate([v, new_v], axis=2)
        mixed = attention(rotate(q, angles), k, v, np.ones((1, k.shape[2]), dtype=bool))
        out.append(project(merge_heads(mixed), weights.w_o))
    return np.concatenate(out, axis=1), k, v


def _attend_torch(x, weights, config, k_past, v_past):
    import torch  # takes a second, and only the tests call this

    x, k_past, v_past = (torch.from_numpy(np.ascontiguousarray(a)) for a in (x, k_past, v_past))
    B, T, _ = x.shape
    n_past, half = k_past.shape[2], config.d_head // 2
    turns = config.rope_theta ** (-torch.arange(half, dtype=torch.float64) / half)
    phase = torch.outer(torch.arange(n_past, n_past + T, dtype=torch.float64), turns)

    def heads(w):
        return (x @ torch.from_numpy(w)).view(B, T, -1, config.d_head).transpose(1, 2)

    def turned(z):
        pairs = torch.complex(z[..., :half], z[..., half:]) * torch.polar(
            torch.ones_like(phase), phase
        )
        return torch.cat([pairs.real, pairs.imag], dim=-1)

    k = torch.cat([k_past, turned(heads(weights.w_k))], dim=2)
    v = torch.cat([v_past, heads(weights.w_v)], dim=2)
    visible = torch.ones(T, n_past + T, dtype=torch.bool).tril(n_past)
    out = torch.nn.functional.scaled_dot_product_attention(
        turned(heads(weights.w_q)), k, v, attn_mask=visible, enable_gqa=True
    )
    return out.transpose(1, 2).reshape(B, T, -1) @ torch.from_numpy(weights.w_o), k, v


def _largest_output(inputs: Mapping[str, Any]) -> float:
    """A bound on keys and values, times what a score's error does to the output."""
    w = inputs["weights"]
    row = float(np.abs(inputs["x"]).max())
    widest = row * max(float(np.abs(m).sum(0).max()) for m in (w.w_q, w.w_k, w.w_v))
    kept = max(float(np.abs(inputs[name]).max(initial=0)) for name in ("k_past", "v_past"))
    largest = max(widest, kept)
    scores = largest * widest * float(np.sqrt(inputs["config"].d_head))
    return largest * max(1.0, float(np.abs(w.w_o).sum(0).max())) * (1 + scores)


ATTEND = Exercise(
    id="attend_with_past",
    reference=attend_with_past,
    lesson=LESSON,
    points=3,
    minutes=20,
    difficulty=4,
    hints=(
        "n_past = k_past.shape[2] and T = x.shape[1] decide everything: positions, mask, what is "
        "joined. The new tokens stand at np.arange(n_past, n_past + T).",
        "angles = rope_angles(those positions, config.d_head, config.rope_theta). Rotate the new "
        "queries and new keys by them, then np.concatenate([past, new], axis=2) for keys and "
        "values. The past keys were rotated when they were new.",
        "mixed = attention(q, k, v, causal_mask(T, n_past + T)); return "
        "project(merge_heads(mixed), weights.w_o), k, v.",
    ),
    cases=(
        Case(
            "nothing kept: a prefill of 4",
            lambda: _attend_inputs(np.random.default_rng(1), 1, 4, 0),
        ),
        Case(
            "one new token on 5: a decode step",
            lambda: _attend_inputs(np.random.default_rng(2), 1, 1, 5),
        ),
    ),
    draw=_draw_attend,
    comparison=Comparison(
        terms=lambda i: (
            i["config"].d_model
            + i["config"].d_head
            + i["k_past"].shape[2]
            + i["x"].shape[1]
            + i["config"].n_heads * i["config"].d_head
        ),
        magnitude=_largest_output,
        why="projections of d_model numbers, scores of d_head, S weighted values, the output "
        "projection; an error in a score counts in proportion to the scores",
    ),
    wrong={
        "the new tokens start again at position 0: they continue behind the past": _attend(
            positions=lambda n, T: np.arange(T)
        ),
        "the new queries start again at position 0: they continue behind the past, as the keys": (
            _attend(at_0="q")
        ),
        "the new keys start again at position 0: they continue behind the past, as the queries": (
            _attend(at_0="k")
        ),
        "all new tokens stand at one position: each is one further than the last": _attend(
            positions=lambda n, T: np.full(T, n)
        ),
        "the new tokens start one position too late: the first one stands at S - T": _attend(
            positions=lambda n, T: np.arange(n + 1, n + T + 1)
        ),
        "new keys are kept without their rotation: rotate them once, before they are kept": (
            _turned_when_read
        ),
        "past keys are rotated a second time: they were kept rotated": _turned_again,
        "the values are rotated too: only queries and keys are": _attend(turn="qkv"),
        "the keys are not rotated: queries and keys both are": _attend(turn="q"),
        "the base of the rotation is taken as 10,000: read config.rope_theta": _attend(
            theta=lambda config: 10_000.0
        ),
        "the mask is anchored top left: query t may see the whole past and t + 1 new keys": _attend(
            mask=lambda T, S: np.tril(np.ones((T, S), dtype=bool))
        ),
        "no mask: a new token must not see those after it": _attend(mask=_see_all_keys),
        "a token does not see itself: its own key belongs to what it may see": _attend(
            mask=_not_itself
        ),
        "the new tokens attend to each other only: the past is kept but not seen": _attend(
            attended=lambda k, v, T: (k[:, :, -T:], v[:, :, -T:])
        ),
        "new keys and values are put before the past: the order is that of the text": _attend(
            keys=lambda past, new: np.concatenate([new, past], axis=2),
            values=lambda past, new: np.concatenate([new, past], axis=2),
        ),
        "only the new keys and values come back: the past must be kept as well": _attend(
            result=lambda out, k, v, T: (out, k[:, :, -T:], v[:, :, -T:])
        ),
        "the past comes back as it was: the new keys and values must join it": _attend(
            result=lambda out, k, v, T: (out, k[:, :, :-T], v[:, :, :-T])
        ),
        "keys and values come back in the wrong order": _attend(
            result=lambda out, k, v, T: (out, v, k)
        ),
        "heads are reshaped without merge_heads: tokens and heads are mixed up": _attend(
            merge=_reshape_heads
        ),
        "x is added to the output: the block does that, not its attention": _residual_added,
        "the last projection is missing: the merged heads go through w_o": _attend(last=False),
        "it changes its input k_past in place; work on a copy": _in_the_callers_past,
    },
    right={
        "token by token": _token_by_token,
        "torch, rotations as complex numbers": _attend_torch,
        "the engine's self_attention with a list for a cache": _engine_attention,
    },
)
