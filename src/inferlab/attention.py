"""How a decoder block mixes tokens, and how query heads share keys and values.

The first half is what the engine runs: project to heads, rotate, attend, project back. The second
is grouped-query attention piece by piece: who reads which KV head, what a repeat would cost, the
same without one, and how a model with many KV heads becomes one with few.

Source: Shazeer 2019 (arXiv 1911.02150); Ainslie et al. 2023 (arXiv 2305.13245).
"""

import math
from typing import Any, Protocol

import numpy as np

from inferlab.config import ModelConfig
from inferlab.operators import (
    attention,
    merge_heads,
    project,
    rms_norm,
    rotate,
    softmax,
    split_heads,
)
from inferlab.weights import LayerWeights


class Cache(Protocol):
    """What a forward pass needs of a cache: KVCache and LatentCache both have it."""

    @property
    def n_tokens(self) -> int:
        """Tokens that every layer holds."""

    def append(self, layer: int, k: np.ndarray, v: np.ndarray, /) -> tuple[np.ndarray, np.ndarray]:
        """Store what T new tokens add to one layer; -> all that the layer now holds."""


def self_attention(
    x: np.ndarray,
    weights: LayerWeights,
    config: ModelConfig,
    angles: np.ndarray,
    visible: np.ndarray,
    cache: Cache | None = None,
    layer: int = 0,
) -> np.ndarray:
    """Project x to queries, keys and values, rotate, attend, and project back.

    to_heads(x, w, config, bias, gain) projects and splits into heads, with w_q, b_q, q_gain for the
    queries, w_k, b_k, k_gain for the keys, w_v, b_v for the values (all in weights; a Llama's
    biases and gains are None, a Qwen's are not). Queries and keys are rotated by angles, values are
    not. The merged heads go through weights.w_o.

    With a cache, call cache.append(layer, k, v) once, with the new keys (rotated) and values: it
    stores them and returns all keys and all values of that layer, which the queries attend to.

    x: (B, T, d_model), angles: (T, d_head // 2), visible: (T, S) -> (B, T, d_model)
    S is T without a cache, and the cached tokens plus T with one.
    Example: one token, no cache: its weight is 1, so the result is its value (repeated for the
    query heads that share it) times w_o.
    """
    q = to_heads(x, weights.w_q, config, weights.b_q, weights.q_gain)
    k = to_heads(x, weights.w_k, config, weights.b_k, weights.k_gain)
    v = to_heads(x, weights.w_v, config, weights.b_v)
    q, k = rotate(q, angles), rotate(k, angles)
    if cache is not None:
        k, v = cache.append(layer, k, v)  # (B, n_kv_heads, S, d_head)
    return project(merge_heads(attention(q, k, v, visible)), weights.w_o)


def to_heads(
    x: np.ndarray,
    w: np.ndarray,
    config: ModelConfig,
    bias: np.ndarray | None = None,
    gain: np.ndarray | None = None,
) -> np.ndarray:
    """Project x and cut the result into heads. A Llama stops there.

    Qwen2 adds a bias; Qwen3 norms each head with one gain (d_head,) for all of them, and OLMoE
    norms the heads as one long vector, with a gain (n_heads * d_head,).

    x: (B, T, d_model), w: (d_model, n_heads * d_head) -> (B, n_heads, T, d_head)
    """
    projected = project(x, w)
    if bias is not None:
        projected = projected + bias
    if gain is not None and not config.qk_norm_per_head:
        projected = rms_norm(projected, gain, config.norm_eps)
    heads = split_heads(projected, config.d_head)
    if gain is not None and config.qk_norm_per_head:
        heads = rms_norm(heads, gain, config.norm_eps)
    return heads


# ---- grouped-query attention, piece by piece ---------------------------------------------------


class Memory(Protocol):
    """Slow memory: arrays by name, reached only by load and store."""

    def shape(self, name: str) -> tuple[int, ...]:
        """Of the whole array."""

    def load(self, name: str, *index: Any) -> np.ndarray:
        """One part of it, brought in."""

    def store(self, name: str, value: np.ndarray, *index: Any) -> None:
        """Write one part of it."""


class ArrayMemory:
    """A Memory that counts nothing and copies nothing: load gives a view of the array."""

    def __init__(self, **arrays: np.ndarray) -> None:
        self.arrays = arrays

    def shape(self, name: str) -> tuple[int, ...]:
        return self.arrays[name].shape

    def load(self, name: str, *index: Any) -> np.ndarray:
        return self.arrays[name][index]

    def store(self, name: str, value: np.ndarray, *index: Any) -> None:
        self.arrays[name][index] = value


def kv_head_of(head: int, n_heads: int, n_kv_heads: int) -> int:
    """Number of the KV head that query head number `head` reads, both counted from 0.

    The query heads are cut into n_kv_heads groups of neighbours, all of the same size, and each
    group shares one KV head: the first group reads KV head 0, the next one KV head 1, and so on.

    Example: 8 query heads on 2 KV heads: heads 0, 1, 2, 3 read KV head 0; heads 4, 5, 6, 7 read
    KV head 1.
    Raises ValueError if n_heads is no multiple of n_kv_heads, or head is not in 0 … n_heads - 1.
    Source: Ainslie et al. 2023 (arXiv 2305.13245), section 2.2.
    """
    if n_heads % n_kv_heads:
        raise ValueError(f"n_heads={n_heads} must be a multiple of n_kv_heads={n_kv_heads}")
    if not 0 <= head < n_heads:
        raise ValueError(f"head={head} must be in 0 … {n_heads - 1}")
    return head // (n_heads // n_kv_heads)


def repeat_kv(x: np.ndarray, n_heads: int) -> np.ndarray:
    """Copy keys or values so that every query head gets a KV head of its own.

    Head h of the result is the KV head that query head h reads (see kv_head_of), so each KV head
    comes n_heads / n_kv_heads times in a row before the next one begins.

    x: (B, n_kv_heads, S, d_head) -> (B, n_heads, S, d_head)
    Example: KV heads a, b and n_heads 6 -> a, a, a, b, b, b.
    Raises ValueError if n_heads is no multiple of n_kv_heads.
    """
    n_kv_heads = x.shape[1]
    if n_heads % n_kv_heads:
        raise ValueError(f"n_heads={n_heads} must be a multiple of n_kv_heads={n_kv_heads}")
    return np.repeat(x, n_heads // n_kv_heads, axis=1)


def grouped_attention(memory: Memory, visible: np.ndarray) -> None:
    """Attention whose query heads share KV heads: each KV head is loaded once, and never repeated.

    memory holds q (n_heads, T, d_head), k and v (n_kv_heads, S, d_head), and out, of q's shape,
    which is to be filled. It is reached only like this:
      memory.shape("k")                    (n_kv_heads, S, d_head)
      memory.load("k", 2)                  KV head 2, (S, d_head)
      memory.load("q", slice(6, 9))        query heads 6, 7 and 8, (3, T, d_head)
      memory.store("out", array, slice(6, 9))
    Bytes are counted. Load every number of q, k and v exactly once, store every number of out
    once, and hold the keys and values of no more than one KV head at a time.

    Of each query: its scores are its dot products with the S keys of its KV head, divided by
    sqrt(d_head); where visible is False the score becomes -inf; softmax(scores), which is given,
    turns the last axis into weights; out is the values of the KV head, summed with these weights.

    visible: (T, S) bool, the same for all heads; every row has at least one True.
    Example: 2 query heads, 1 KV head, T = S = 1: both heads of out equal v[0].
    Source: Ainslie et al. 2023 (arXiv 2305.13245), section 2.2.
    """
    n_heads, T, d_head = memory.shape("q")
    n_kv_heads, S, _ = memory.shape("k")
    n_sharing = n_heads // n_kv_heads
    for kv_head in range(n_kv_heads):
        readers = slice(kv_head * n_sharing, (kv_head + 1) * n_sharing)
        k, v = memory.load("k", kv_head), memory.load("v", kv_head)  # (S, d_head)
        # The queries of the whole group are the rows of one matrix, so one product serves all.
        q = memory.load("q", readers).reshape(n_sharing * T, d_head)
        scores = (q @ k.T).reshape(n_sharing, T, S) / math.sqrt(d_head)
        weights = softmax(np.where(visible, scores, -np.inf))
        mixed = weights.reshape(n_sharing * T, S) @ v
        memory.store("out", mixed.reshape(n_sharing, T, d_head), readers)


def pool_kv_heads(w: np.ndarray, n_kv_heads: int, d_head: int) -> np.ndarray:
    """Turn a key or value projection with many heads into one with n_kv_heads, by averaging.

    Head i is columns i * d_head … (i + 1) * d_head - 1 of w. The heads are cut into n_kv_heads
    groups of neighbours, as in kv_head_of; each new head is the mean of its group, number by
    number. This is where uptraining starts: the pooled model is then trained a little further.

    w: (d_model, n_heads * d_head) -> (d_model, n_kv_heads * d_head)
    Example: one row, d_head 2, four heads [1, 2], [3, 4], [5, 6], [7, 8], n_kv_heads 2
    -> [[2, 3, 6, 7]].
    Raises ValueError if the number of heads of w is no multiple of n_kv_heads.
    Source: Ainslie et al. 2023 (arXiv 2305.13245), section 2.1.
    """
    d_model, width = w.shape
    n_heads = width // d_head
    if n_heads % n_kv_heads:
        raise ValueError(f"n_heads={n_heads} must be a multiple of n_kv_heads={n_kv_heads}")
    groups = w.reshape(d_model, n_kv_heads, n_heads // n_kv_heads, d_head)
    return groups.mean(axis=2).reshape(d_model, n_kv_heads * d_head)
