"""One pass of the model over tokens of several requests at once, keys and values in pages.

The tokens of all requests are the rows of one matrix, so every weight is read once for all of them:
that is what a batch is for. Only attention looks at each request alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from inferlab.attention import to_heads
from inferlab.config import ModelConfig
from inferlab.operators import (
    merge_heads,
    project,
    rms_norm,
    rotate,
)
from inferlab.paging import PagePool, paged_attention, token_slots
from inferlab.transformer import feed_forward, position_angles, visible_keys
from inferlab.weights import LayerWeights, Weights


@dataclass(frozen=True)
class Chunk:
    """New tokens of one request: they stand at positions start, start + 1, … of it."""

    tokens: Sequence[int]
    start: int
    page_table: Sequence[int]

    @property
    def end(self) -> int:
        return self.start + len(self.tokens)


def rows_of(chunks: Sequence[Chunk], page_size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(tokens, positions, slots) of all chunks, one behind the other: (N,) each.

    Raises ValueError for no chunks, an empty one, or a page table that is too short.
    """
    if not chunks or not all(len(chunk.tokens) for chunk in chunks):
        raise ValueError("a pass needs at least one chunk, and each at least one token")
    slots = [token_slots(c.page_table, c.start, len(c.tokens), page_size) for c in chunks]
    return (
        np.concatenate([np.asarray(chunk.tokens) for chunk in chunks]),
        np.concatenate([np.arange(chunk.start, chunk.end) for chunk in chunks]),
        np.concatenate(slots),
    )


def paged_forward(
    weights: Weights, config: ModelConfig, pool: PagePool, chunks: Sequence[Chunk]
) -> np.ndarray:
    """Logits after the last token of each chunk; keys and values of all tokens go into the pages.

    The page tables must have room for the new tokens, in pages that no other request holds.

    -> (n_chunks, vocab_size)
    Raises ValueError as rows_of does.
    """
    tokens, positions, slots = rows_of(chunks, pool.page_size)
    angles = position_angles(positions, config)
    x = weights.embedding[tokens][None]  # (1, N, d_model): all rows of one matrix
    for layer, block in enumerate(weights.layers):
        normed = rms_norm(x, block.attention_gain, config.norm_eps)
        x = x + _attend(normed, block, config, angles, slots, chunks, pool, layer)
        normed = rms_norm(x, block.mlp_gain, config.norm_eps)
        x = x + feed_forward(normed, block, config, layer)
    last = np.cumsum([len(chunk.tokens) for chunk in chunks]) - 1
    x = rms_norm(x[:, last], weights.final_gain, config.norm_eps)
    return project(x, weights.head)[0]


def _attend(
    x: np.ndarray,
    weights: LayerWeights,
    config: ModelConfig,
    angles: np.ndarray,
    slots: np.ndarray,
    chunks: Sequence[Chunk],
    pool: PagePool,
    layer: int,
) -> np.ndarray:
    """Self-attention of each chunk over its own request. x: (1, N, d_model) -> the same"""
    q = rotate(to_heads(x, weights.w_q, config, weights.b_q, weights.q_gain), angles)
    k = rotate(to_heads(x, weights.w_k, config, weights.b_k, weights.k_gain), angles)
    v = to_heads(x, weights.w_v, config, weights.b_v)
    pool.write(layer, slots, k[0], v[0])
    mixed, row = [], 0
    for chunk in chunks:
        T = len(chunk.tokens)
        visible = visible_keys(T, chunk.end, config)
        pages = pool.keys[layer], pool.values[layer], chunk.page_table
        mixed.append(paged_attention(q[0, :, row : row + T], *pages, visible))
        row += T
    return project(merge_heads(np.concatenate(mixed, axis=1)[None]), weights.w_o)
