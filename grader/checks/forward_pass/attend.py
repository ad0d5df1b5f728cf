"""Lesson 02: attention, with a mask and with shared key heads."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from grader.checks.forward_pass.lesson import LESSON
from grader.checks.forward_pass.small import drive_alone
from grader.judging.compare import Comparison
from grader.judging.exercise import Case, Exercise, Inputs
from inferlab.operators import attention, causal_mask, softmax


def _attention_inputs(
    rng: np.random.Generator, T: int = 3, S: int = 7, n_kv_heads: int = 2, shared: int = 3
) -> Inputs:
    B, d_head = 2, 5
    k, v = rng.normal(size=(2, B, n_kv_heads, S, d_head))
    return {
        "q": rng.normal(size=(B, n_kv_heads * shared, T, d_head)) * 2,
        "k": k,
        "v": v,
        "visible": causal_mask(T, S),
    }


def _draw_attention(rng: np.random.Generator) -> Inputs:
    T, n_kv_heads, shared = (
        int(rng.integers(2, 5)),
        int(rng.integers(2, 4)),
        int(rng.integers(2, 4)),
    )
    return _attention_inputs(rng, T, T + int(rng.integers(2, 5)), n_kv_heads, shared)


def _zero_query() -> Inputs:
    return {
        "q": np.zeros((1, 1, 1, 2)),
        "k": np.array([[[[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]]]),
        "v": np.array([[[[3.0, 0.0], [6.0, 9.0], [7.0, 7.0]]]]),
        "visible": np.array([[True, True, False]]),
    }


def _holes() -> Inputs:
    inputs = _attention_inputs(np.random.default_rng(1))
    visible = np.random.default_rng(2).random((3, 7)) < 0.5
    visible[:, 2] = True
    return {**inputs, "visible": visible}


def _loud() -> Inputs:
    """Scores of a few hundred, of both signs."""
    inputs = _attention_inputs(np.random.default_rng(3))
    return {**inputs, "q": inputs["q"] * 200}


def _all_low() -> Inputs:
    """All scores near -33,500: lower than many a number that stands for -inf."""
    inputs = _attention_inputs(np.random.default_rng(8))
    return {**inputs, "q": np.full((2, 6, 3, 5), 3000.0), "k": -5 + 1e-4 * inputs["k"]}


def _hidden_is_loud() -> Inputs:
    """The score of a hidden key is some 900 above those of the visible ones."""
    inputs = _attention_inputs(np.random.default_rng(9))
    k = inputs["k"].copy()
    k[:, :, -1] = 20.0
    return {**inputs, "q": np.full((2, 6, 3, 5), 20.0), "k": k, "visible": np.eye(3, 7) > 0}


def _wide_values() -> Inputs:
    inputs = _attention_inputs(np.random.default_rng(4))
    return {**inputs, "v": np.random.default_rng(5).normal(size=(2, 2, 7, 4))}


def _blind() -> Inputs:
    inputs = _attention_inputs(np.random.default_rng(6))
    inputs["visible"][1] = False
    return inputs


def _uneven() -> Inputs:
    inputs = _attention_inputs(np.random.default_rng(7))
    return {**inputs, "q": inputs["q"][:, :5]}


def _refuse(q, k, visible) -> None:
    if q.shape[1] % k.shape[1]:
        raise ValueError("n_heads is no multiple of n_kv_heads")
    if not np.asarray(visible).any(-1).all():
        raise ValueError("a blind query")


def _attend(
    share: Callable = lambda k, shared: np.repeat(k, shared, axis=1),
    scale: Callable = lambda q, k: np.sqrt(q.shape[-1]),
    hide: Callable = lambda scores, visible: np.where(visible, scores, -np.inf),
    weigh: Callable = softmax,
    after: Callable = lambda weights, visible: weights,
    refuse: Callable = _refuse,
) -> Callable:
    """attention with one step replaced."""

    def attend(q, k, v, visible):
        refuse(q, k, visible)
        shared = q.shape[1] // k.shape[1]
        k, v = share(k, shared), share(v, shared)
        scores = np.einsum("bhtd,bhsd->bhts", q, k) / scale(q, k)
        weights = after(weigh(hide(scores, visible)), visible)
        return np.einsum("bhts,bhsd->bhtd", weights, v)

    return attend


def _refuse_uneven_only(q, k, visible) -> None:
    if q.shape[1] % k.shape[1]:
        raise ValueError("uneven")


def _attend_any_heads(q, k, v, visible):
    if not visible.any(-1).all():
        raise ValueError("a blind query")
    n_heads, n_kv_heads = q.shape[1], k.shape[1]
    heads = np.arange(n_heads) * n_kv_heads // n_heads
    return _attend()(q, k[:, heads], v[:, heads], visible)


def _attend_in_place(q, k, v, visible):
    q /= np.sqrt(q.shape[-1])
    return _attend(scale=lambda q, k: 1)(q, k, v, visible)


def _scaled_up(weights, visible):
    left = weights * visible
    with np.errstate(all="ignore"):
        return left / left.sum(axis=-1, keepdims=True)


def _times_inf(scores, visible):
    with np.errstate(all="ignore"):
        return scores + (1.0 - visible) * -np.inf


def _over_queries(scores):
    with np.errstate(all="ignore"):
        weights = np.exp(scores - scores.max(axis=-2, keepdims=True))
        return np.nan_to_num(weights / weights.sum(axis=-2, keepdims=True))


def _attend_loop(q, k, v, visible):
    _refuse(q, k, visible)
    B, n_heads, T, d_head = q.shape
    out = np.zeros((B, n_heads, T, v.shape[-1]))
    for b, h, t in np.ndindex(B, n_heads, T):
        kv_head = h // (n_heads // k.shape[1])
        seen = np.flatnonzero(visible[t])
        scores = np.array([q[b, h, t] @ k[b, kv_head, s] for s in seen]) / d_head**0.5
        weights = np.exp(scores - scores.max())
        out[b, h, t] = weights / weights.sum() @ v[b, kv_head, seen]
    return out


def _attend_torch(q, k, v, visible):
    import torch

    _refuse(q, k, visible)
    q, k, v = (torch.from_numpy(np.ascontiguousarray(a)) for a in (q, k, v))
    return torch.nn.functional.scaled_dot_product_attention(
        q, k, v, attn_mask=torch.from_numpy(visible), enable_gqa=True
    )


def _attend_grouped(q, k, v, visible):
    """Five axes, nothing repeated, the scores scaled on the queries' side."""
    _refuse(q, k, visible)
    B, n_heads, T, d_head = q.shape
    five = (q * d_head**-0.5).reshape(B, k.shape[1], -1, T, d_head)
    scores = np.einsum("bkgtd,bksd->bkgts", five, k)
    scores[..., ~visible] = -1e300
    weights = softmax(scores)
    return np.einsum("bkgts,bksd->bkgtd", weights, v).reshape(B, n_heads, T, -1)


ATTENTION = Exercise(
    id="attention",
    reference=attention,
    lesson=LESSON,
    points=4,
    minutes=18,
    difficulty=3,
    drive=drive_alone("attention"),
    hints=(
        "Four steps: scores (B, n_heads, T, S); hidden ones to -inf with np.where; softmax over "
        "the last axis; weighted sum of the values. First give every query head its key head.",
        "k = np.repeat(k, n_heads // n_kv_heads, axis=1), and v alike, gives heads 0 0 0 1 1 1. "
        "(np.tile would give 0 1 0 1.) Then scores = q @ k.swapaxes(-1, -2) / np.sqrt(d_head).",
        "weights = softmax(np.where(visible, scores, -np.inf)); return weights @ v. Before all "
        "that: raise ValueError if n_heads % n_kv_heads, or if not visible.any(axis=-1).all().",
    ),
    cases=(
        Case("a query of zeros, two of three keys visible", _zero_query),
        Case("a mask with holes", _holes),
        Case("scores in the hundreds", _loud),
        Case("all scores near -33,500", _all_low),
        Case("a hidden key has by far the largest score", _hidden_is_loud),
        Case("values of another width", _wide_values),
        Case("a query that may look nowhere", _blind),
        Case("5 query heads on 2 KV heads", _uneven),
    ),
    draw=_draw_attention,
    comparison=Comparison(
        terms=lambda i: i["q"].shape[-1] + i["k"].shape[-2],
        magnitude=lambda i: float(
            np.abs(i["v"]).max() * (1 + np.abs(i["q"]).max() * np.abs(i["k"]).sum(-1).max())
        ),
        why="a dot product of d_head numbers, then S weighted values; "
        "an error in a score counts in proportion to the scores",
    ),
    wrong={
        "the scores are not divided by sqrt(d_head)": _attend(scale=lambda q, k: 1),
        "divides by sqrt(n_heads * d_head), the width of all heads: use sqrt(d_head)": _attend(
            scale=lambda q, k: np.sqrt(q.shape[1] * q.shape[-1])
        ),
        "divides by d_head, not by its square root": _attend(scale=lambda q, k: q.shape[-1]),
        "multiplies by sqrt(d_head); the scores are divided by it": _attend(
            scale=lambda q, k: 1 / np.sqrt(q.shape[-1])
        ),
        "divides by sqrt(S), the number of keys: use sqrt(d_head)": _attend(
            scale=lambda q, k: np.sqrt(k.shape[-2])
        ),
        "query head h reads KV head h mod n_kv_heads (np.tile); it is h // (n_heads // n_kv_heads) "
        "(np.repeat)": _attend(share=lambda k, shared: np.tile(k, (1, shared, 1, 1))),
        "every query head reads KV head 0": _attend(
            share=lambda k, shared: np.repeat(k[:, :1], shared * k.shape[1], axis=1)
        ),
        "hidden keys are cut out after the softmax: the weights left no longer sum to 1": _attend(
            hide=lambda scores, visible: scores, after=lambda weights, visible: weights * visible
        ),
        "hidden keys are cut out after the softmax and the rest is scaled up: 0/0 where a hidden "
        "score is far above the visible ones; hide before the softmax": _attend(
            hide=lambda scores, visible: scores, after=_scaled_up
        ),
        "hidden keys get a score such as -100 or -10,000, and a visible one may be lower still: "
        "use -inf": _attend(hide=lambda scores, visible: np.where(visible, scores, -1e4)),
        "-inf times 0 is nan, so the mask spoils visible scores too: use np.where": _attend(
            hide=_times_inf
        ),
        "hidden keys get the score 0: exp(0) is 1, a weight like any other; use -inf": _attend(
            hide=lambda scores, visible: scores * visible
        ),
        "visible is taken the wrong way round: True means that the query may look": _attend(
            hide=lambda scores, visible: np.where(visible, -np.inf, scores),
            weigh=lambda scores: np.nan_to_num(softmax(scores)),
        ),
        "the mask is not used: every query sees every key": _attend(
            hide=lambda scores, visible: scores
        ),
        "the softmax runs over the queries; each query's weights over the keys must sum to 1": (
            _attend(weigh=_over_queries)
        ),
        "a query that may look nowhere is accepted; raise ValueError": _attend(
            refuse=_refuse_uneven_only, weigh=lambda scores: np.nan_to_num(softmax(scores))
        ),
        "heads that cannot be shared evenly are accepted; raise ValueError": _attend_any_heads,
        "it changes its input q in place; work on a copy": _attend_in_place,
    },
    right={
        "a loop over sequences, heads and queries": _attend_loop,
        "torch's scaled_dot_product_attention": _attend_torch,
        "five axes, keys not repeated, -1e300 for hidden": _attend_grouped,
        "repeat and einsum": _attend(),
    },
)
