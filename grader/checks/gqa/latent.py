"""Lesson 05: what MLA caches of a token, and the keys and values that come back from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from grader.checks.gqa.lesson import LESSON
from grader.judging.compare import Comparison
from grader.judging.exercise import Case, Exercise, Inputs
from inferlab.mla import compress_to_latent, expand_latent
from inferlab.operators import rms_norm, rotate, split_heads

# ---- compress_to_latent ------------------------------------------------------------------------


def _compress_inputs(
    rng: np.random.Generator, B: int, T: int, d_model: int, d_latent: int, d_rope: int
) -> Inputs:
    return {
        "x": rng.normal(size=(B, T, d_model)),
        "w_latent": rng.normal(size=(d_model, d_latent + d_rope)),
        "gain": rng.uniform(0.5, 1.5, d_latent),
        "angles": rng.uniform(0, 6, (T, d_rope // 2)),
    }


def _draw_compress(rng: np.random.Generator) -> Inputs:
    d_latent, d_rope = int(rng.integers(7, 11)), int(rng.choice([4, 6]))
    return _compress_inputs(rng, 2, int(rng.integers(3, 6)), 12, d_latent, d_rope)


def _compressed(latent: Callable | None = None, key: Callable | None = None) -> Callable:
    """compress_to_latent with another latent(raw, gain, eps) or key(raw, angles)."""

    def answer(x, w_latent, gain, angles, eps=1e-6):
        raw, k_rope = np.split(x @ w_latent, [len(gain)], axis=-1)
        new = latent(raw, gain, eps) if latent else rms_norm(raw, gain, eps)
        return new, key(k_rope, angles) if key else rotate(k_rope[:, None], angles)[:, 0]

    return answer


def _key_first(x, w_latent, gain, angles, eps=1e-6):
    k_rope, raw = np.split(x @ w_latent, [w_latent.shape[1] - len(gain)], axis=-1)
    return rms_norm(raw, gain, eps), rotate(k_rope[:, None], angles)[:, 0]


def _norm_of_both(x, w_latent, gain, angles, eps=1e-6):
    d_rope = w_latent.shape[1] - len(gain)
    both = rms_norm(x @ w_latent, np.concatenate([gain, np.ones(d_rope)]), eps)
    latent, k_rope = np.split(both, [len(gain)], axis=-1)
    return latent, rotate(k_rope[:, None], angles)[:, 0]


def _latent_by_both(x, w_latent, gain, angles, eps=1e-6):
    both = x @ w_latent
    raw, k_rope = np.split(both, [len(gain)], axis=-1)
    root = np.sqrt((both**2).mean(-1, keepdims=True) + eps)
    return gain * raw / root, rotate(k_rope[:, None], angles)[:, 0]


def _interleaved(k_rope, angles):
    a, b = k_rope[..., 0::2], k_rope[..., 1::2]
    cos, sin = np.cos(angles), np.sin(angles)
    return np.stack([a * cos - b * sin, a * sin + b * cos], axis=-1).reshape(k_rope.shape)


def _compress_loop(x, w_latent, gain, angles, eps=1e-6):
    d_latent = len(gain)
    latent = np.zeros((*x.shape[:2], d_latent))
    k_rope = np.zeros((*x.shape[:2], w_latent.shape[1] - d_latent))
    half = k_rope.shape[-1] // 2
    for b, t in np.ndindex(x.shape[:2]):
        row = x[b, t] @ w_latent
        latent[b, t] = gain * row[:d_latent] / np.sqrt((row[:d_latent] ** 2).mean() + eps)
        pairs = row[d_latent : d_latent + half] + 1j * row[d_latent + half :]
        turned = pairs * np.exp(1j * angles[t])
        k_rope[b, t] = np.concatenate([turned.real, turned.imag])
    return latent, k_rope


def _compress_torch(x, w_latent, gain, angles, eps=1e-6):
    import torch  # takes a second, and only the tests call this

    x, w_latent, gain, angles = map(torch.from_numpy, (x, w_latent, gain, angles))
    d_latent = len(gain)
    latent = torch.nn.functional.rms_norm(x @ w_latent[:, :d_latent], (d_latent,), gain, eps)
    a, b = (x @ w_latent[:, d_latent:]).chunk(2, dim=-1)
    turned = torch.complex(a, b) * torch.polar(torch.ones_like(angles), angles)
    return [latent, torch.cat([turned.real, turned.imag], dim=-1)]


def _compress_two_products(x, w_latent, gain, angles, eps=1e-6):
    d_latent = len(gain)
    k_rope = rotate(x @ w_latent[:, d_latent:], angles)
    return rms_norm(x @ w_latent[:, :d_latent], gain, eps), k_rope


def _compress_magnitude(inputs: Mapping[str, Any]) -> float:
    """Of the projections; the norm makes small latents, and their errors, larger."""
    raw = np.abs(inputs["x"]) @ np.abs(inputs["w_latent"])
    latent = (inputs["x"] @ inputs["w_latent"])[..., : len(inputs["gain"])]
    smallest = float(np.sqrt((latent**2).mean(-1)).min())
    return float(raw.max()) * max(1.0, 2 * float(inputs["gain"].max()) / max(smallest, 1e-3))


COMPRESS = Exercise(
    id="compress_to_latent",
    reference=compress_to_latent,
    lesson=LESSON,
    points=2,
    minutes=12,
    difficulty=2,
    hints=(
        "One product, then a cut behind column len(gain): the left part is the latent, the right "
        "part the shared key. Each gets exactly one treatment.",
        "np.split(x @ w_latent, [len(gain)], axis=-1) gives the two. rms_norm is for the latent "
        "alone, rotate for the key alone.",
        "rotate wants an axis of heads: rotate(k_rope[:, None], angles)[:, 0]. Return "
        "rms_norm(latent, gain, eps) and that.",
    ),
    cases=(
        Case(
            "one token at position 0: no turn",
            lambda: (
                _compress_inputs(np.random.default_rng(0), 1, 1, 5, 4, 2)
                | {"angles": np.zeros((1, 1))}
            ),
        ),
        Case(
            "eps of 0.5",
            lambda: _compress_inputs(np.random.default_rng(1), 1, 3, 6, 4, 2) | {"eps": 0.5},
        ),
    ),
    draw=_draw_compress,
    comparison=Comparison(
        terms=lambda i: i["x"].shape[-1] + len(i["gain"]),
        magnitude=_compress_magnitude,
        why="projections of d_model numbers, a mean of d_latent squares",
    ),
    wrong={
        "the latent is not normed": _compressed(latent=lambda raw, gain, eps: raw),
        "the gain is left out: rms_norm(latent, gain, eps)": _compressed(
            latent=lambda raw, gain, eps: rms_norm(raw, np.ones_like(gain), eps)
        ),
        "eps is ignored: pass it on to rms_norm": _compressed(
            latent=lambda raw, gain, eps: rms_norm(raw, gain, 1e-6)
        ),
        "the mean is subtracted first, as LayerNorm does: rms_norm subtracts nothing": _compressed(
            latent=lambda raw, gain, eps: rms_norm(raw - raw.mean(-1, keepdims=True), gain, eps)
        ),
        "latent and key are normed together: the norm is over the latent alone": _norm_of_both,
        "the mean square is taken over latent and key: it is over the latent alone": (
            _latent_by_both
        ),
        "the key is normed too: it is only rotated": _compressed(
            key=lambda k, angles: rotate(rms_norm(k, np.ones(k.shape[-1]))[:, None], angles)[:, 0]
        ),
        "the key is not rotated: without it attention would know no positions": _compressed(
            key=lambda k, angles: k
        ),
        "turned the wrong way: rotate(k_rope, angles), not the negative": _compressed(
            key=lambda k, angles: rotate(k[:, None], -angles)[:, 0]
        ),
        "neighbouring numbers are turned as pairs: here pairs are i and i + d_rope/2": _compressed(
            key=_interleaved
        ),
        "every token is turned by the angles of the first": _compressed(
            key=lambda k, angles: rotate(k[:, None], np.broadcast_to(angles[:1], angles.shape))[
                :, 0
            ]
        ),
        "the first columns are taken for the key: the latent comes first": _key_first,
        "divided by the root of the sum of squares: rms_norm takes their mean": _compressed(
            latent=lambda raw, gain, eps: (
                gain * raw / np.sqrt((raw**2).sum(-1, keepdims=True) + eps)
            )
        ),
        "the key is returned first: the order is latent, k_rope": lambda **i: compress_to_latent(
            **i
        )[::-1],
        "the axis of heads that rotate wants is still there: take [:, 0]": _compressed(
            key=lambda k, angles: rotate(k[:, None], angles)
        ),
    },
    right={
        "token by token, complex numbers": _compress_loop,
        "torch": _compress_torch,
        "two products": _compress_two_products,
    },
)

# ---- expand_latent -----------------------------------------------------------------------------


def latent_inputs(
    rng: np.random.Generator,
    n_heads: int,
    S: int,
    widths: tuple[int, int, int, int],
    B: int = 2,
) -> Inputs:
    """What is cached and the two matrices; widths: d_latent, d_nope, d_rope, d_value."""
    d_latent, d_nope, d_rope, d_value = widths
    return {
        "latent": rng.normal(size=(B, S, d_latent)),
        "k_rope": rng.normal(size=(B, S, d_rope)),
        "w_k": rng.normal(size=(d_latent, n_heads * d_nope)),
        "w_v": rng.normal(size=(d_latent, n_heads * d_value)),
    }


def draw_widths(rng: np.random.Generator) -> tuple[int, int, int, int]:
    d_latent, d_nope, d_value = (int(n) for n in rng.choice([5, 6, 7, 8, 9], 3, replace=False))
    return d_latent, d_nope, int(rng.choice([2, 4])), d_value


def _draw_expand(rng: np.random.Generator) -> Inputs:
    n_heads = int(rng.integers(3, 5))
    inputs = latent_inputs(rng, n_heads, int(rng.choice([2, 6, 7])), draw_widths(rng))
    return {**inputs, "n_heads": n_heads}


def _expanded(
    heads: Callable = split_heads, join: Callable | None = None, values: Callable | None = None
) -> Callable:
    """expand_latent with another cut into heads, joining of key parts, or values."""

    def answer(latent, k_rope, w_k, w_v, n_heads):
        k = heads(latent @ w_k, w_k.shape[1] // n_heads)
        v = heads(latent @ w_v, w_v.shape[1] // n_heads)
        shared = np.broadcast_to(k_rope[:, None], (*k.shape[:3], k_rope.shape[-1]))
        whole = join(k, shared) if join else np.concatenate([k, shared], axis=-1)
        return whole, values(latent, v, w_k, w_v, shared) if values else v

    return answer


def _reshaped_only(x, d_head):
    return x.reshape(x.shape[0], -1, x.shape[1], d_head)


def _strided_heads(x, d_head):
    B, S, width = x.shape
    return x.reshape(B, S, d_head, width // d_head).transpose(0, 3, 1, 2)


def _first_head_only(k, shared):
    only = shared.copy()
    only[:, 1:] = 0
    return np.concatenate([k, only], axis=-1)


def _values_of_keys(latent, v, w_k, w_v, shared):
    cut = np.resize(w_k.ravel(), w_v.shape)
    return split_heads(latent @ cut, v.shape[-1])


def _expand_loop(latent, k_rope, w_k, w_v, n_heads):
    keys, values = [], []
    for w_key, w_value in zip(np.hsplit(w_k, n_heads), np.hsplit(w_v, n_heads), strict=True):
        keys.append(np.concatenate([latent @ w_key, k_rope], axis=-1))
        values.append(latent @ w_value)
    return np.stack(keys, axis=1), np.stack(values, axis=1)


def _expand_einsum(latent, k_rope, w_k, w_v, n_heads):
    k = np.einsum("bsl,lhd->bhsd", latent, w_k.reshape(len(w_k), n_heads, -1))
    v = np.einsum("bsl,lhd->bhsd", latent, w_v.reshape(len(w_v), n_heads, -1))
    return [np.concatenate([k, np.repeat(k_rope[:, None], n_heads, axis=1)], axis=-1), v]


def _expand_torch(latent, k_rope, w_k, w_v, n_heads):
    import torch  # takes a second, and only the tests call this

    latent, k_rope, w_k, w_v = map(torch.from_numpy, (latent, k_rope, w_k, w_v))
    k, v = ((latent @ w).unflatten(-1, (n_heads, -1)).transpose(1, 2) for w in (w_k, w_v))
    return torch.cat([k, k_rope[:, None].expand(-1, n_heads, -1, -1)], -1), v


EXPAND = Exercise(
    id="expand_latent",
    reference=expand_latent,
    lesson=LESSON,
    points=2,
    minutes=10,
    difficulty=2,
    hints=(
        "Three pieces: the heads' own key numbers, the heads' values, and the shared key that "
        "every head gets a view of.",
        "split_heads(latent @ w_k, w_k.shape[1] // n_heads) is (B, n_heads, S, d_nope); the values "
        "likewise. np.broadcast_to(k_rope[:, None], (B, n_heads, S, d_rope)) is the shared part.",
        "keys = np.concatenate([k_nope, shared], axis=-1): own numbers first, then the rotated "
        "ones. Return keys, values; nothing shared goes into the values.",
    ),
    cases=(
        Case(
            "one head, one token",
            lambda: {
                **latent_inputs(np.random.default_rng(0), 1, 1, (3, 2, 2, 4), 1),
                "n_heads": 1,
            },
        ),
    ),
    draw=_draw_expand,
    comparison=Comparison(
        terms=lambda i: i["latent"].shape[-1],
        magnitude=lambda i: float(
            np.abs(i["k_rope"]).max()
            + (np.abs(i["latent"]) @ np.abs(i["w_k"])).max()
            + (np.abs(i["latent"]) @ np.abs(i["w_v"])).max()
        ),
        why="projections of d_latent numbers",
    ),
    wrong={
        "the rotated part comes first: a key is its d_nope numbers, then the d_rope ones": (
            _expanded(join=lambda k, shared: np.concatenate([shared, k], axis=-1))
        ),
        "the rotated part is left out: the keys would know no positions": _expanded(
            join=lambda k, shared: k
        ),
        "only head 0 gets the rotated part: all heads share it": _expanded(join=_first_head_only),
        "the rotated part is divided among the heads: each gets it whole": _expanded(
            join=lambda k, shared: np.concatenate([k, shared / k.shape[1]], axis=-1)
        ),
        "the rotated part is added to the key: it stands beside the other numbers": _expanded(
            join=lambda k, shared: (
                np.concatenate(
                    [k[..., : -shared.shape[-1]], k[..., -shared.shape[-1] :] + shared], axis=-1
                )
                if k.shape[-1] >= shared.shape[-1]
                else k
            )
        ),
        "reshaped straight to (B, n_heads, S, ...): tokens and heads are mixed, use split_heads": (
            _expanded(heads=_reshaped_only)
        ),
        "a head's columns are taken n_heads apart: they lie side by side": _expanded(
            heads=_strided_heads
        ),
        "the values come from w_k: they have a matrix of their own, w_v": _expanded(
            values=_values_of_keys
        ),
        "the rotated part is joined to the values as well: only keys carry positions": _expanded(
            values=lambda latent, v, w_k, w_v, shared: np.concatenate([v, shared], axis=-1)
        ),
        "every head has the values of head 0": _expanded(
            values=lambda latent, v, w_k, w_v, shared: np.broadcast_to(v[:, :1], v.shape)
        ),
        "tokens come before heads: the axes are (B, n_heads, S, ...)": _expanded(
            heads=lambda x, d: x.reshape(*x.shape[:2], -1, d),
            join=lambda k, shared: np.concatenate(
                [k, np.resize(shared, (*k.shape[:3], shared.shape[-1]))], axis=-1
            ),
        ),
        "the values are returned first: the order is keys, values": lambda **i: expand_latent(**i)[
            ::-1
        ],
        "only the keys are returned: attention needs the values, too": lambda **i: expand_latent(
            **i
        )[0],
    },
    right={
        "head by head": _expand_loop,
        "einsum": _expand_einsum,
        "torch": _expand_torch,
    },
)
