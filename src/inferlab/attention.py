"""How a decoder block mixes tokens: project to heads, rotate, attend, project back."""

from typing import Protocol

import numpy as np

from inferlab.config import ModelConfig
from inferlab.operators import attention, merge_heads, project, rms_norm, rotate, split_heads
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
    biases and gains are None). Queries and keys are rotated by angles, values are not. The merged
    heads go through weights.w_o.

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
