"""Lesson 02: who sees whom, and the cutting and joining of heads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from grader.checks.forward_pass.lesson import LESSON
from grader.judging.compare import Comparison
from grader.judging.exercise import Exercise, Inputs, given
from inferlab.operators import causal_mask, merge_heads, split_heads

# ---- causal mask --------------------------------------------------------------------------------


def _draw_mask(rng: np.random.Generator) -> Inputs:
    T = int(rng.integers(2, 6))
    return {"T": T, "S": T + int(rng.integers(1, 5))}


def _mask(T: int, S: int, sees: Callable[[int, int], bool]) -> np.ndarray:
    """sees(position of the query, position of the key)"""
    if T > S:
        raise ValueError("T > S")
    return np.array([[bool(sees(S - T + t, s)) for s in range(S)] for t in range(T)])


def _mask_torch(T, S):
    import torch

    if S < T:
        raise ValueError(f"{T} > {S}")
    return torch.ones(T, S, dtype=torch.bool).tril(diagonal=S - T)


def _mask_tri(T, S):
    if T > S:
        raise ValueError("more queries than keys")
    return np.tri(T, S, S - T, dtype=bool)


def _mask_rows(T, S):
    if T > S:
        raise ValueError("more queries than keys")
    mask = np.zeros((T, S), dtype=bool)
    for t in range(T):
        mask[t, : S - T + t + 1] = True
    return mask


CAUSAL_MASK = Exercise(
    id="causal_mask",
    reference=causal_mask,
    lesson=LESSON,
    points=2,
    minutes=8,
    difficulty=2,
    hints=(
        "Draw it for T = 2 and S = 5: the last query sees all five keys, the one before it four. "
        "The staircase ends in the lower right corner.",
        "Query t stands at position S - T + t, key s at position s. A query sees s <= its "
        "position. Compare a column of positions with a row of positions.",
        "np.arange(S) <= np.arange(S - T, S)[:, None]; before it, raise ValueError if T > S.",
    ),
    cases=(
        given("2 queries, 3 keys", T=2, S=3),
        given("one query, 4 keys", T=1, S=4),
        given("3 queries, 3 keys", T=3, S=3),
        given("3 queries, 2 keys", T=3, S=2),
    ),
    draw=_draw_mask,
    wrong={
        "starts at the upper left: query 0 sees one key only. The T queries are the newest tokens, "
        "so query t stands at S - T + t": lambda T, S: _mask(T, S, lambda q, s: s <= q - (S - T)),
        "the staircase is shifted the wrong way: query 0 sees the keys 0 … S - T": lambda T, S: (
            _mask(T, S, lambda q, s: s <= q - 2 * (S - T))
        ),
        "the earlier keys are hidden: a query sees all keys up to its own, the cached ones too": (
            lambda T, S: _mask(T, S, lambda q, s: S - T <= s <= q)
        ),
        "as many queries as keys are refused: T = S is a pass without a cache": lambda T, S: _mask(
            T, S - (T == S), lambda q, s: s <= q
        ),
        "a token does not see itself: s <= position, not s < position": lambda T, S: _mask(
            T, S, lambda q, s: s < q
        ),
        "one key too many: a query sees the key after its own": lambda T, S: _mask(
            T, S, lambda q, s: s <= q + 1
        ),
        "True and False are exchanged: True means that the query may look": lambda T, S: (
            ~_mask(T, S, lambda q, s: s <= q)
        ),
        "looks into the future: s >= position": lambda T, S: _mask(T, S, lambda q, s: s >= q),
        "keys and queries are exchanged: the shape is (T, S)": lambda T, S: (
            _mask(T, S, lambda q, s: s <= q).T
        ),
        "0 and 1 in place of False and True": lambda T, S: _mask(T, S, lambda q, s: s <= q).astype(
            int
        ),
        "0 and -inf to be added to the scores: here the mask says True or False": (
            lambda T, S: np.where(_mask(T, S, lambda q, s: s <= q), 0.0, -np.inf)
        ),
        "every query sees every key": lambda T, S: _mask(T, S, lambda q, s: True),
        "each query sees its own key only": lambda T, S: _mask(T, S, lambda q, s: s == q),
        "more queries than keys are accepted: then the first ones see nothing; raise ValueError": (
            lambda T, S: np.arange(S) <= np.arange(S - T, S)[:, None]
        ),
    },
    right={
        "row by row": _mask_rows,
        "np.tri": _mask_tri,
        "torch.tril": _mask_torch,
        "nested lists": lambda T, S: _mask(T, S, lambda q, s: s <= q).tolist(),
    },
)

# ---- heads --------------------------------------------------------------------------------------


def _head_sizes(rng: np.random.Generator) -> tuple[int, ...]:
    return tuple(int(n) for n in rng.permuted([2, 3, 4, 5]))


def _draw_split(rng: np.random.Generator) -> Inputs:
    B, T, n_heads, d_head = _head_sizes(rng)
    return {"x": rng.normal(size=(B, T, n_heads * d_head)), "d_head": d_head}


def _draw_merge(rng: np.random.Generator) -> Inputs:
    return {"heads": rng.normal(size=_head_sizes(rng))}


def _split_slices(x, d_head):
    if x.shape[-1] % d_head:
        raise ValueError("does not divide")
    cuts = [x[..., start : start + d_head] for start in range(0, x.shape[-1], d_head)]
    return np.stack(cuts, axis=1)


def _split_loop(x, d_head):
    if x.shape[-1] % d_head != 0:
        raise ValueError("does not divide")
    B, T, width = x.shape
    heads = np.zeros((B, width // d_head, T, d_head))
    for h in range(width // d_head):
        heads[:, h] = x[:, :, h * d_head : (h + 1) * d_head]
    return heads


def _split_torch(x, d_head):
    import torch

    if x.shape[-1] % d_head:
        raise ValueError("does not divide")
    return torch.from_numpy(x).unflatten(-1, (-1, d_head)).transpose(1, 2)


def _split_directly(x, d_head):
    return x.reshape(x.shape[0], x.shape[-1] // d_head, x.shape[1], d_head)


def _split_dropping(x, d_head):
    cuts = [x[..., h * d_head : (h + 1) * d_head] for h in range(x.shape[-1] // d_head)]
    return np.stack(cuts, axis=1)


def _even(split: Callable) -> Callable:
    def checked(x, d_head):
        if x.shape[-1] % d_head:
            raise ValueError("does not divide")
        return split(x, d_head)

    return checked


TWO_TOKENS: dict[str, Any] = {"x": np.arange(1.0, 9).reshape(1, 2, 4), "d_head": 2}

SPLIT_HEADS = Exercise(
    id="split_heads",
    reference=split_heads,
    lesson=LESSON,
    points=1,
    minutes=6,
    difficulty=2,
    hints=(
        "Two steps. Reshape cuts the last axis without moving a number; a swap of two axes then "
        "puts the heads in front of the tokens.",
        "x.reshape(B, T, width // d_head, d_head) has the right numbers together, in the order "
        "(B, T, n_heads, d_head).",
        "Then .swapaxes(1, 2). Reshaping to (B, n_heads, T, d_head) at once gives the right shape "
        "and mixes tokens. Raise ValueError if width % d_head.",
    ),
    cases=(
        given("two tokens, two heads", **TWO_TOKENS),
        given("width 12, d_head 5", x=np.arange(60.0).reshape(1, 5, 12), d_head=5),
        given("one head", x=np.arange(12.0).reshape(2, 2, 3), d_head=3),
    ),
    draw=_draw_split,
    comparison=Comparison(terms=lambda i: 0, why="numbers are moved, not computed"),
    wrong={
        "reshaped to (B, n_heads, T, d_head) at once: the shape is right, but tokens are mixed. "
        "Reshape to (B, T, n_heads, d_head), then swap": _split_directly,
        "the tokens stay in front of the heads: swap axes 1 and 2": _even(
            lambda x, d_head: x.reshape(*x.shape[:2], -1, d_head)
        ),
        "a head gets every n_heads-th number; its numbers lie side by side": _even(
            lambda x, d_head: x.reshape(*x.shape[:2], d_head, -1).transpose(0, 3, 1, 2)
        ),
        "d_head is taken as the number of heads": _even(
            lambda x, d_head: x.reshape(*x.shape[:2], d_head, -1).swapaxes(1, 2)
        ),
        "the last two axes are exchanged: (B, n_heads, T, d_head) is asked": _even(
            lambda x, d_head: x.reshape(*x.shape[:2], -1, d_head).transpose(0, 2, 3, 1)
        ),
        "the heads come in reverse order": _even(lambda x, d_head: split_heads(x, d_head)[:, ::-1]),
        "what does not fill a head is dropped; raise ValueError": _split_dropping,
    },
    right={
        "slices, stacked": _split_slices,
        "head by head into an array": _split_loop,
        "torch.unflatten": _split_torch,
    },
)


def _merge_loop(heads):
    return np.concatenate([heads[:, h] for h in range(heads.shape[1])], axis=-1)


def _merge_einsum(heads):
    B, n_heads, T, d_head = heads.shape
    out = np.zeros((B, T, n_heads * d_head))
    for b, t in np.ndindex(B, T):
        out[b, t] = np.einsum("hd->hd", heads[b, :, t]).flatten()
    return out


def _merge_torch(heads):
    import torch

    return torch.from_numpy(heads).transpose(1, 2).flatten(2)


MERGE_HEADS = Exercise(
    id="merge_heads",
    reference=merge_heads,
    lesson=LESSON,
    points=1,
    minutes=4,
    difficulty=1,
    hints=(
        "split_heads backwards: first put the tokens in front of the heads again, then join the "
        "last two axes.",
        "heads.swapaxes(1, 2) has the shape (B, T, n_heads, d_head).",
        "heads.swapaxes(1, 2).reshape(B, T, n_heads * d_head)",
    ),
    cases=(
        given("two tokens, two heads", heads=split_heads(**TWO_TOKENS)),
        given("one token", heads=np.arange(12.0).reshape(2, 3, 1, 2)),
    ),
    draw=_draw_merge,
    comparison=Comparison(terms=lambda i: 0, why="numbers are moved, not computed"),
    wrong={
        "reshaped at once: tokens are mixed. Swap axes 1 and 2 first": lambda heads: heads.reshape(
            heads.shape[0], heads.shape[2], -1
        ),
        "the numbers of the heads are interleaved; each head's lie side by side": (
            lambda heads: heads.transpose(0, 2, 3, 1).reshape(heads.shape[0], heads.shape[2], -1)
        ),
        "the heads are added up; they are put side by side": lambda heads: heads.sum(axis=1),
        "the heads are averaged; they are put side by side": lambda heads: heads.mean(axis=1),
        "the last two axes are not joined": lambda heads: heads.swapaxes(1, 2),
        "the tokens are joined as well: the shape is (B, T, n_heads * d_head)": (
            lambda heads: heads.swapaxes(1, 2).reshape(heads.shape[0], -1)
        ),
        "the last head comes first": lambda heads: merge_heads(heads[:, ::-1]),
    },
    right={
        "heads joined in a list": _merge_loop,
        "token by token": _merge_einsum,
        "torch": _merge_torch,
    },
)
