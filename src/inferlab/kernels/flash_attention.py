"""An extra: tiled_attention as one GPU kernel, in Triton. Nothing else in the course needs it.

`pip install "inferlab[triton]"` (Linux). On an NVIDIA or AMD GPU it is compiled; without one set
TRITON_INTERPRET=1 before this module is imported, and Triton runs it in Python on the CPU: good for
checking the numbers, and its speed says nothing.

What the loops of flash.tiled_attention become: the loops over heads and blocks of queries are the
grid (one program each, many at once), the loop over blocks of keys stays. tl.load and tl.store move
tiles between the GPU's memory and the chip; everything between them stays on the chip.

Source: Dao 2023 (arXiv 2307.08691), algorithm 1; Tillet, Kung and Cox 2019 (Triton).
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl


@triton.jit
def _forward(
    q_at, k_at, v_at, out_at, scale, T, S, n_shared,
    causal: tl.constexpr, block_q: tl.constexpr, block_k: tl.constexpr, d_head: tl.constexpr,
):  # fmt: skip
    """One block of queries of one head. *_at point at contiguous (heads, tokens, d_head) arrays."""
    start, head = tl.program_id(0) * block_q, tl.program_id(1)
    query, width = start + tl.arange(0, block_q), tl.arange(0, d_head)
    q_places = (head * T + query[:, None]) * d_head + width[None, :]
    q = tl.load(q_at + q_places, mask=query[:, None] < T, other=0.0) * scale
    row_max = tl.full([block_q], float("-inf"), tl.float32)
    row_sum = tl.zeros([block_q], tl.float32)
    acc = tl.zeros([block_q, d_head], tl.float32)
    keys_needed = S
    if causal:
        keys_needed = S - T + tl.minimum(start + block_q, T)
    for first in range(0, keys_needed, block_k):
        key = first + tl.arange(0, block_k)
        kv_places = ((head // n_shared) * S + key[:, None]) * d_head + width[None, :]
        k = tl.load(k_at + kv_places, mask=key[:, None] < S, other=0.0)
        v = tl.load(v_at + kv_places, mask=key[:, None] < S, other=0.0)
        scores = tl.dot(q.to(k.dtype), tl.trans(k), input_precision="ieee")
        hidden = key[None, :] >= S
        if causal:
            hidden = hidden | (key[None, :] > S - T + query[:, None])
        scores = tl.where(hidden, float("-inf"), scores)
        # The first block holds key 0, which every query sees: from there on new_max is finite.
        new_max = tl.maximum(row_max, tl.max(scores, 1))
        weights = tl.exp(scores - new_max[:, None])
        rescale = tl.exp(row_max - new_max)
        row_sum = rescale * row_sum + tl.sum(weights, 1)
        acc = rescale[:, None] * acc + tl.dot(weights.to(v.dtype), v, input_precision="ieee")
        row_max = new_max
    out = acc / row_sum[:, None]
    tl.store(out_at + q_places, out.to(out_at.dtype.element_ty), mask=query[:, None] < T)


def flash_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    causal: bool = True,
    block_q: int = 64,
    block_k: int = 64,
) -> torch.Tensor:
    """Exact attention in one kernel; the scores never reach the GPU's memory.

    q: (n_heads, T, d_head); k, v: (n_kv_heads, S, d_head) -> (n_heads, T, d_head)
    The T queries are the newest of S tokens. d_head and the blocks: powers of 2, at least 16.
    Raises ValueError for other sizes, and for n_heads that is no multiple of n_kv_heads.
    """
    (n_heads, T, d_head), (n_kv_heads, S, _) = q.shape, k.shape
    for name, size in (("d_head", d_head), ("block_q", block_q), ("block_k", block_k)):
        if size < 16 or size & (size - 1):
            raise ValueError(f"{name}={size} must be a power of 2, at least 16")
    if n_heads % n_kv_heads:
        raise ValueError(f"n_heads={n_heads} must be a multiple of n_kv_heads={n_kv_heads}")
    q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
    out = torch.empty_like(q)
    grid = (triton.cdiv(T, block_q), n_heads)
    _forward[grid](
        q, k, v, out, 1 / math.sqrt(d_head), T, S, n_heads // n_kv_heads,
        causal, block_q, block_k, d_head,
    )  # fmt: skip
    return out
