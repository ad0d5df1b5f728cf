"""Lesson 05: MLA without expanding the cache."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from grader.checks.gqa.grouped import draw_mask
from grader.checks.gqa.latent import draw_widths, latent_inputs
from grader.checks.gqa.lesson import LESSON
from grader.judging.compare import Comparison
from grader.judging.exercise import Case, Exercise, Inputs
from inferlab.counted_memory import traced_peak
from inferlab.mla import absorb_query, absorbed_attention, expand_latent
from inferlab.operators import attention, causal_mask, softmax

# ---- absorb_query ------------------------------------------------------------------------------


def _absorb_inputs(
    rng: np.random.Generator, n_heads: int, T: int, d_nope: int, d_latent: int, B: int = 2
) -> Inputs:
    q_nope = rng.normal(size=(B, n_heads, T, d_nope))
    return {"q_nope": q_nope, "w_k": rng.normal(size=(d_latent, n_heads * d_nope))}


def _draw_absorb(rng: np.random.Generator) -> Inputs:
    d_latent, d_nope, _, _ = draw_widths(rng)
    return _absorb_inputs(rng, int(rng.integers(3, 5)), int(rng.choice([2, 10])), d_nope, d_latent)


def _absorbing(heads: Callable[[np.ndarray, int], np.ndarray], after: Callable | None = None):
    """absorb_query with another cut of w_k: heads(w_k, n_heads) -> (n_heads, d_latent, d_nope)."""

    def answer(q_nope, w_k):
        moved = np.einsum("bhtd,hld->bhtl", q_nope, heads(w_k, q_nope.shape[1]))
        return after(moved, q_nope, w_k) if after else moved

    return answer


def _by_columns(w_k: np.ndarray, n_heads: int) -> np.ndarray:
    return w_k.reshape(len(w_k), n_heads, -1).swapaxes(0, 1)


def _only_head_zero(w_k: np.ndarray, n_heads: int) -> np.ndarray:
    heads = _by_columns(w_k, n_heads)
    return np.broadcast_to(heads[:1], heads.shape)


def _mean_head(w_k: np.ndarray, n_heads: int) -> np.ndarray:
    heads = _by_columns(w_k, n_heads)
    return np.broadcast_to(heads.mean(axis=0), heads.shape)


def _rows_reshaped(w_k: np.ndarray, n_heads: int) -> np.ndarray:
    return w_k.reshape(n_heads, len(w_k), -1)


def _absorb_loop(q_nope, w_k):
    heads = np.hsplit(w_k, q_nope.shape[1])
    return np.stack([q_nope[:, h] @ w.T for h, w in enumerate(heads)], axis=1)


def _absorb_torch(q_nope, w_k):
    import torch  # takes a second, and only the tests call this

    q, w = torch.from_numpy(q_nope), torch.from_numpy(w_k)
    return q @ w.unflatten(1, (q.shape[1], -1)).permute(1, 2, 0)


def _absorb_block(q_nope, w_k):
    """One product with a block-diagonal matrix."""
    B, n_heads, T, d_nope = q_nope.shape
    heads = w_k.reshape(len(w_k), n_heads, d_nope)
    wide = np.zeros((n_heads * d_nope, n_heads * len(w_k)))
    for h in range(n_heads):
        rows, columns = (slice(h * n, (h + 1) * n) for n in (d_nope, len(w_k)))
        wide[rows, columns] = heads[:, h].T
    rows = q_nope.swapaxes(1, 2).reshape(B, T, -1) @ wide
    return rows.reshape(B, T, n_heads, -1).swapaxes(1, 2)


ABSORB_QUERY = Exercise(
    id="absorb_query",
    reference=absorb_query,
    lesson=LESSON,
    points=2,
    minutes=10,
    difficulty=3,
    hints=(
        "Each head has a matrix of its own: d_nope neighbouring columns of w_k. Give the heads an "
        "axis: w_k.reshape(d_latent, n_heads, d_nope).",
        "Sum over d_nope, for each head alone, so that d_latent is what remains: in the letters of "
        'np.einsum "bhtd" meets "lhd" and gives "bhtl".',
        'np.einsum("bhtd,lhd->bhtl", q_nope, w_k.reshape(-1, n_heads, d_nope)), or '
        "q_nope @ w.transpose(1, 2, 0).",
    ),
    cases=(
        Case(
            "one head, a query of two numbers",
            lambda: {
                "q_nope": np.array([[[[1.0, 10.0]]]]),
                "w_k": np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]),
            },
        ),
        Case("square heads", lambda: _absorb_inputs(np.random.default_rng(0), 3, 2, 4, 4)),
    ),
    draw=_draw_absorb,
    comparison=Comparison(
        terms=lambda i: i["q_nope"].shape[-1],
        magnitude=lambda i: float(
            np.abs(i["q_nope"]).max() * i["q_nope"].shape[-1] * np.abs(i["w_k"]).max()
        ),
        why="dot products of d_nope numbers",
    ),
    wrong={
        "every head uses the matrix of head 0: each has d_nope columns of its own": _absorbing(
            _only_head_zero
        ),
        "a head's columns are taken n_heads apart: they lie side by side": _absorbing(
            lambda w, n: w.reshape(len(w), -1, n).transpose(2, 0, 1)
        ),
        "w_k is reshaped to (n_heads, d_latent, d_nope) directly, which mixes rows and heads": (
            _absorbing(_rows_reshaped)
        ),
        "the heads are averaged into one matrix": _absorbing(_mean_head),
        "summed over the heads: each head keeps its own query": _absorbing(
            _by_columns, lambda moved, q, w: moved.sum(axis=1)
        ),
        "divided by sqrt(d_nope) here: the scale comes later, and over the whole width": _absorbing(
            _by_columns, lambda moved, q, w: moved / math.sqrt(q.shape[-1])
        ),
        "divided by sqrt(d_latent): the scores are the same as before, so nothing changes": (
            _absorbing(_by_columns, lambda moved, q, w: moved / math.sqrt(len(w)))
        ),
        "the heads come in reverse order": _absorbing(lambda w, n: _by_columns(w, n)[::-1]),
        "tokens come before heads: the axes are (B, n_heads, T, d_latent)": _absorbing(
            _by_columns, lambda moved, q, w: moved.swapaxes(1, 2)
        ),
        "the queries come back as they were": lambda q_nope, w_k: q_nope,
    },
    right={
        "head by head": _absorb_loop,
        "torch": _absorb_torch,
        "a block-diagonal matrix": _absorb_block,
    },
)

# ---- absorbed_attention ------------------------------------------------------------------------


def _inputs(
    rng: np.random.Generator,
    n_heads: int,
    T: int,
    S: int,
    widths: tuple[int, int, int, int],
    B: int = 2,
    **more: Any,
) -> Inputs:
    q = rng.normal(size=(B, n_heads, T, widths[1] + widths[2]))
    cached = latent_inputs(rng, n_heads, S, widths, B)
    return {"q": q, **cached, "visible": causal_mask(T, S), **more}


def _draw_absorbed(rng: np.random.Generator) -> Inputs:
    T, S = int(rng.integers(2, 4)), int(rng.integers(6, 10))
    return _inputs(
        rng, int(rng.integers(3, 5)), T, S, draw_widths(rng), visible=draw_mask(rng, T, S)
    )


def _large_scores() -> Inputs:
    inputs = _inputs(np.random.default_rng(1), 3, 2, 6, (5, 4, 2, 3))
    return inputs | {"q": 300 * inputs["q"]}


def _worst_keys_only() -> Inputs:
    """The only visible keys have scores far below -10,000."""
    inputs = _inputs(np.random.default_rng(5), 1, 2, 9, (5, 4, 2, 3), B=1)
    cached = {name: inputs[name] for name in ("latent", "k_rope", "w_k", "w_v")}
    k, _ = expand_latent(**cached, n_heads=1)
    worst = np.argsort(inputs["q"][0, 0] @ k[0, 0].T, axis=-1)[:, :2]
    visible = np.zeros((2, 9), bool)
    np.put_along_axis(visible, worst, True, axis=-1)
    return inputs | {"q": 1e6 * inputs["q"], "visible": visible}


def _long() -> Inputs:
    """One head's keys or values alone, if they were expanded, would be more than is cached."""
    return _inputs(np.random.default_rng(2), 6, 1, 2000, (32, 240, 8, 256), B=1)


def _bound_bytes(inputs: Inputs) -> int:
    """What is cached twice over, and room for scores and matrices; no keys, no values."""
    cached = inputs["latent"].nbytes + inputs["k_rope"].nbytes
    matrices = inputs["w_k"].nbytes + inputs["w_v"].nbytes  # an answer may cut them into heads
    B, n_heads, T, _ = inputs["q"].shape
    scores = B * n_heads * T * inputs["latent"].shape[1] * 8
    return 2 * cached + matrices + 6 * scores + 65_536


def _drive(answer: Callable, inputs: Inputs) -> dict[str, Any]:
    with traced_peak() as peak:
        out = answer(**inputs)
    bound = _bound_bytes(inputs)
    levels = {bound: "within", 8 * bound: "above", math.inf: "far above"}
    level = next(word for limit, word in levels.items() if peak["bytes"] <= limit)
    room = f"{bound:,} (twice the cache, w_k, w_v and scores)"
    return {"out": out, "most bytes held at once": f"{level} {room}"}


def _absorbed(
    width: Callable | None = None,
    scores: Callable | None = None,
    weights: Callable | None = None,
    values: Callable | None = None,
) -> Callable:
    """absorbed_attention with one step replaced.

    width(sizes) is what the root is taken of; scores(nope, rope) joins the two parts;
    weights(scores, visible); values(w_v, n_heads) -> (n_heads, d_latent, d_value).
    """

    def answer(q, latent, k_rope, w_k, w_v, visible):
        d_rope, n_heads = k_rope.shape[-1], q.shape[1]
        nope = absorb_query(q[..., :-d_rope], w_k) @ latent[:, None].swapaxes(2, 3)
        rope = q[..., -d_rope:] @ k_rope[:, None].swapaxes(2, 3)
        sizes = {"d_head": q.shape[-1], "d_rope": d_rope, "d_latent": latent.shape[-1]}
        both = scores(nope, rope) if scores else nope + rope
        both = both / math.sqrt(width(sizes) if width else q.shape[-1])
        mix = weights(both, visible) if weights else _masked(both, visible)
        heads = values(w_v, n_heads) if values else _by_columns(w_v, n_heads)
        return mix @ latent[:, None] @ heads

    return answer


def _masked(scores: np.ndarray, visible: np.ndarray, hidden: float = -np.inf) -> np.ndarray:
    return softmax(np.where(visible, scores, hidden))


def _expands(q, latent, k_rope, w_k, w_v, visible):
    return attention(q, *expand_latent(latent, k_rope, w_k, w_v, q.shape[1]), visible)


def _expands_by_head(q, latent, k_rope, w_k, w_v, visible):
    heads = []
    for q_h, w_key, w_value in zip(
        q.swapaxes(0, 1), *(np.hsplit(w, q.shape[1]) for w in (w_k, w_v)), strict=True
    ):
        k = np.concatenate([latent @ w_key, k_rope], axis=-1)
        weights = _masked(q_h @ k.swapaxes(1, 2) / math.sqrt(q.shape[-1]), visible)
        heads.append(weights @ (latent @ w_value))
    return np.stack(heads, axis=1)


def _scaled_apart(q, latent, k_rope, w_k, w_v, visible):
    d_rope = k_rope.shape[-1]
    nope = absorb_query(q[..., :-d_rope], w_k) @ latent[:, None].swapaxes(2, 3)
    rope = q[..., -d_rope:] @ k_rope[:, None].swapaxes(2, 3)
    scores = nope / math.sqrt(q.shape[-1] - d_rope) + rope / math.sqrt(d_rope)
    return _masked(scores, visible) @ latent[:, None] @ _by_columns(w_v, q.shape[1])


def _one_part_scaled(unscaled: Callable[[np.ndarray, int], np.ndarray]) -> Callable:
    """absorbed_attention without the root in one part of the scores."""

    def answer(q, latent, k_rope, w_k, w_v, visible):
        q = q.copy()
        unscaled(q, k_rope.shape[-1])[...] *= math.sqrt(q.shape[-1])
        return absorbed_attention(q, latent, k_rope, w_k, w_v, visible)

    return answer


def _rope_first(q, latent, k_rope, w_k, w_v, visible):
    d_rope = k_rope.shape[-1]
    turned = np.concatenate([q[..., d_rope:], q[..., :d_rope]], axis=-1)
    return absorbed_attention(turned, latent, k_rope, w_k, w_v, visible)


def _two_softmaxes(q, latent, k_rope, w_k, w_v, visible):
    d_rope = k_rope.shape[-1]
    root = math.sqrt(q.shape[-1])
    nope = absorb_query(q[..., :-d_rope], w_k) @ latent[:, None].swapaxes(2, 3) / root
    rope = q[..., -d_rope:] @ k_rope[:, None].swapaxes(2, 3) / root
    mix = (_masked(nope, visible) + _masked(rope, visible)) / 2
    return mix @ latent[:, None] @ _by_columns(w_v, q.shape[1])


def _heads_summed(q, latent, k_rope, w_k, w_v, visible):
    out = absorbed_attention(q, latent, k_rope, w_k, w_v, visible)
    return np.broadcast_to(out.mean(axis=1, keepdims=True), out.shape)


def _absorbed_loop(q, latent, k_rope, w_k, w_v, visible):
    B, n_heads, T, d_head = q.shape
    out = np.zeros((B, n_heads, T, w_v.shape[1] // n_heads))
    keys, values = np.hsplit(w_k, n_heads), np.hsplit(w_v, n_heads)
    for b, h, t in np.ndindex(B, n_heads, T):
        query = keys[h] @ q[b, h, t, : keys[h].shape[1]]
        scores = latent[b] @ query + k_rope[b] @ q[b, h, t, keys[h].shape[1] :]
        seen = np.where(visible[t], scores / d_head**0.5, -np.inf)
        weights = np.exp(seen - seen.max())
        out[b, h, t] = weights / weights.sum() @ latent[b] @ values[h]
    return out


def _absorbed_joined(q, latent, k_rope, w_k, w_v, visible):
    """One long key for all heads: the latent beside the rotated key."""
    d_rope, n_heads, d_head = k_rope.shape[-1], q.shape[1], q.shape[3]
    query = np.concatenate([absorb_query(q[..., :-d_rope], w_k), q[..., -d_rope:]], axis=-1)
    key = np.concatenate([latent, k_rope], axis=-1)
    scores = np.einsum("bhtd,bsd->bhts", query, key) / math.sqrt(d_head)
    mixed = np.einsum("bhts,bsl->bhtl", _masked(scores, visible), latent)
    return np.einsum("bhtl,lhd->bhtd", mixed, w_v.reshape(len(w_v), n_heads, -1))


def _absorbed_heads_cut(q, latent, k_rope, w_k, w_v, visible):
    """Both matrices cut into heads, as arrays of their own, before anything else."""
    d_rope, n_heads = k_rope.shape[-1], q.shape[1]
    keys, values = (np.stack(np.hsplit(w, n_heads)) for w in (w_k, w_v))
    scores = q[..., :-d_rope] @ keys.swapaxes(1, 2) @ latent[:, None].swapaxes(2, 3)
    scores += q[..., -d_rope:] @ k_rope[:, None].swapaxes(2, 3)
    return _masked(scores / math.sqrt(q.shape[-1]), visible) @ latent[:, None] @ values


def _absorbed_torch(q, latent, k_rope, w_k, w_v, visible):
    """Multi-query attention with one wide KV head and a scale of its own."""
    import torch  # takes a second, and only the tests call this

    n_heads, d_rope = q.shape[1], k_rope.shape[-1]
    query = np.concatenate([absorb_query(q[..., :-d_rope], w_k), q[..., -d_rope:]], axis=-1)
    key = np.concatenate([latent, k_rope], axis=-1)
    k, v = (torch.from_numpy(a)[:, None].expand(-1, n_heads, -1, -1) for a in (key, latent))
    q_long, may_look = torch.from_numpy(query), torch.from_numpy(visible)
    sdpa = torch.nn.functional.scaled_dot_product_attention
    mixed = sdpa(q_long, k, v, may_look, scale=q.shape[-1] ** -0.5)
    return mixed @ torch.from_numpy(_by_columns(w_v, n_heads).copy())


def _magnitude(inputs: Mapping[str, Any]) -> float:
    n_heads = inputs["q"].shape[1]
    keys = np.abs(inputs["latent"]) @ np.abs(inputs["w_k"])
    d_nope = inputs["w_k"].shape[1] // n_heads
    largest_key = d_nope * float(keys.max()) + float(np.abs(inputs["k_rope"]).sum(-1).max())
    largest_value = float((np.abs(inputs["latent"]) @ np.abs(inputs["w_v"])).max())
    return largest_value * (1 + float(np.abs(inputs["q"]).max()) * largest_key)


ABSORBED = Exercise(
    id="absorbed_attention",
    reference=absorbed_attention,
    lesson=LESSON,
    points=3,
    minutes=20,
    difficulty=4,
    uses=("absorb_query",),
    hints=(
        "It is multi-query attention: one key and one value for all heads, both the latent. "
        "Only the scores have a second part, from the rotated numbers.",
        "scores (B, n_heads, T, S) = absorb_query(q[..., :-d_rope], w_k) @ latents transposed, "
        "plus q[..., -d_rope:] @ k_rope transposed; latent[:, None] gives it an axis of heads.",
        "Divide by math.sqrt(q.shape[-1]), mask, softmax. weights @ latent[:, None] is "
        "(B, n_heads, T, d_latent); multiply by w_v.reshape(d_latent, n_heads, -1).swapaxes(0, 1).",
    ),
    cases=(
        Case(
            "one token, one key",
            lambda: _inputs(np.random.default_rng(0), 2, 1, 1, (5, 3, 2, 4), B=1),
        ),
        Case(
            "a decode step: T = 1, S = 9",
            lambda: _inputs(np.random.default_rng(3), 3, 1, 9, (6, 4, 2, 5)),
        ),
        Case("scores in the hundreds", _large_scores),
        Case("only keys with very low scores are visible", _worst_keys_only),
        Case("6 heads, 2,000 keys: what is held shows", _long),
    ),
    draw=_draw_absorbed,
    n_draws=3,
    drive=_drive,
    comparison=Comparison(
        terms=lambda i: sum(i[name].shape[-1] for name in ("q", "latent")) + i["latent"].shape[1],
        magnitude=_magnitude,
        why="sums over d_nope, d_latent and d_rope, then S weighted latents; "
        "an error in a score counts in proportion to the scores",
    ),
    wrong={
        "keys or values of all heads are expanded: that is what absorbing avoids": _expands,
        "a head's keys or values are computed, or latents copied for it: all heads read the same": (
            _expands_by_head
        ),
        "each part of a score has a root of its own: divide the sum by sqrt(d_nope + d_rope)": (
            _scaled_apart
        ),
        "the rotated part is not divided by the root: divide the sum of both parts": (
            _one_part_scaled(lambda q, d_rope: q[..., -d_rope:])
        ),
        "only the rotated part is divided by the root: divide the sum of both parts": (
            _one_part_scaled(lambda q, d_rope: q[..., :-d_rope])
        ),
        "divides by sqrt(d_latent + d_rope); the scale stays sqrt(d_nope + d_rope)": (
            _absorbed(width=lambda s: s["d_latent"] + s["d_rope"])
        ),
        "divides by sqrt(d_latent); the scale stays sqrt(d_nope + d_rope)": _absorbed(
            width=lambda s: s["d_latent"]
        ),
        "divides by sqrt(d_nope): the rotated part belongs to the width, too": _absorbed(
            width=lambda s: s["d_head"] - s["d_rope"]
        ),
        "the scores are not scaled": _absorbed(width=lambda s: 1.0),
        "the rotated part is left out of the scores": _absorbed(scores=lambda nope, rope: nope),
        "only the rotated part is scored": _absorbed(scores=lambda nope, rope: rope),
        "the two parts of a score are multiplied: a dot product adds them": _absorbed(
            scores=lambda nope, rope: nope * rope
        ),
        "the first d_rope numbers of a query are taken as rotated: they are the last": _rope_first,
        "two softmaxes, one for each part: add the scores first": _two_softmaxes,
        "visible is not used": _absorbed(weights=lambda s, visible: softmax(s)),
        "a causal mask of its own making in place of visible": _absorbed(
            weights=lambda s, visible: _masked(s, causal_mask(*visible.shape))
        ),
        "a triangle from the top left in place of visible": _absorbed(
            weights=lambda s, visible: _masked(s, np.tril(np.ones_like(visible)))
        ),
        "weights are zeroed after the softmax: they no longer sum to 1. Set scores to -inf": (
            _absorbed(weights=lambda s, visible: softmax(s) * visible)
        ),
        "hidden scores are set to -100 or -10,000, which a low score undercuts: -inf": _absorbed(
            weights=lambda s, visible: _masked(s, visible, -1e4)
        ),
        "every head uses the value columns of head 0": _absorbed(values=_only_head_zero),
        "a head's value columns are taken n_heads apart: they lie side by side": _absorbed(
            values=lambda w, n: w.reshape(len(w), -1, n).transpose(2, 0, 1)
        ),
        "w_v is reshaped to (n_heads, d_latent, d_value) directly, which mixes rows and heads": (
            _absorbed(values=_rows_reshaped)
        ),
        "the outputs of the heads are averaged": _heads_summed,
    },
    right={
        "loops over heads and tokens": _absorbed_loop,
        "one long key, einsum": _absorbed_joined,
        "matrices cut into heads first": _absorbed_heads_cut,
        "torch, as multi-query attention": _absorbed_torch,
    },
)
