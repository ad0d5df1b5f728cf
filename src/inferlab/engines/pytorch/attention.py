"""Attention of the PyTorch engine: new queries over what the cache holds."""

from __future__ import annotations

import math
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 (PyTorch's own habit)

QUERY_ROWS = 128  # queries whose scores are held at once, in attend_in_blocks


class View(Protocol):
    """What the queries may see, as cache.Places says it."""

    @property
    def mask(self) -> Tensor | None: ...
    @property
    def plain(self) -> bool: ...
    @property
    def causal(self) -> bool: ...


def attend(q: Tensor, k: Tensor, v: Tensor, places: View) -> Tensor:
    """Attention of the new queries over what they may see, merged to rows.

    q: (B, n_heads, T, d_head); k, v: (B, n_kv_heads, S, d_head) -> (B * T, n_heads * d_head)
    in the dtype of q. k and v may come from a cache of float32 numbers beside a q of 16 bits: many
    queries then take rounded ones, whose products are faster; few are worth no copy of the cache.
    """
    B, n_heads, T, d_head = q.shape
    n_kv_heads = k.shape[1]
    if k.dtype != q.dtype:
        if T < QUERY_ROWS:
            return attend(q.to(k.dtype), k, v, places).to(q.dtype)
        k, v = k.to(q.dtype), v.to(q.dtype)
    if T == 1:
        # The queries that share a key head become rows of one matrix: no key is read twice, and
        # the result lies in memory as it should.
        rows = q.reshape(B, n_kv_heads, n_heads // n_kv_heads, d_head)
        mixed = F.scaled_dot_product_attention(rows, k, v, attn_mask=places.mask)
        return mixed.reshape(B, n_heads * d_head)
    if q.is_cpu and places.plain and T >= QUERY_ROWS:
        return attend_in_blocks(q, k, v)
    mixed = F.scaled_dot_product_attention(
        q,
        k,
        v,
        attn_mask=None if places.causal else places.mask,
        is_causal=places.causal,
        enable_gqa=n_heads != n_kv_heads,
    )
    return mixed.transpose(1, 2).reshape(B * T, n_heads * d_head)


def attend_in_blocks(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal attention of the T newest tokens, QUERY_ROWS queries at a time: see attend.

    What F.scaled_dot_product_attention does, as matrix products over all heads at once: the
    queries that share a key head are rows of one matrix, and a block stops at the keys that its
    last query sees. PyTorch's own kernel for the CPU works on blocks of 64 queries of one head. On
    two cores of a server (AMD EPYC), 512 tokens of SmolLM2: 1.3 times as fast in float32, 1.8 times
    in bfloat16, whose scores are rounded to bfloat16 here before the softmax, and not there.
    """
    B, n_heads, T, d_head = q.shape
    n_kv_heads, S = k.shape[1:3]
    grouped = q.reshape(B * n_kv_heads, -1, T, d_head)  # (..., n_shared, T, d_head)
    k, v = k.flatten(0, 1), v.flatten(0, 1)  # (B * n_kv_heads, S, d_head)
    out = q.new_empty(B, T, n_kv_heads, n_heads // n_kv_heads, d_head)
    memory = q.new_empty(B * n_heads * QUERY_ROWS * S)  # for the scores of one block
    for first in range(0, T, QUERY_ROWS):
        block = grouped[:, :, first : first + QUERY_ROWS]
        seen = S - T + first + block.shape[2]
        mixed = _attend_block(block, k[:, :seen], v[:, :seen], memory)
        mixed = mixed.view(B, n_kv_heads, -1, block.shape[2], d_head)
        out[:, first : first + QUERY_ROWS] = mixed.permute(0, 3, 1, 2, 4)
    return out.view(B * T, n_heads * d_head)


def _attend_block(q: Tensor, k: Tensor, v: Tensor, memory: Tensor) -> Tensor:
    """One block: the last of its queries sees all of k, each one before it one key less.

    q: (n, n_shared, T, d_head); k, v: (n, S, d_head) -> (n, n_shared * T, d_head)
    """
    n, n_shared, T, d_head = q.shape
    S = k.shape[1]
    scores = memory[: n * n_shared * T * S].view(n, n_shared * T, S)
    rows, scale = q.reshape(n, n_shared * T, d_head), 1 / math.sqrt(d_head)
    torch.baddbmm(scores, rows, k.transpose(1, 2), beta=0, alpha=scale, out=scores)
    later = q.new_full((T, T), -math.inf).triu_(1)
    scores.view(-1, T, S)[..., S - T :] += later
    return torch.bmm(torch.softmax(scores, -1, out=scores), v)
