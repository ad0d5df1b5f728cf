"""Multi-head latent attention (MLA): cache one small latent per token, not all keys and values.

A token is squeezed to a latent of d_latent numbers, from which every head's keys and values are
computed again when they are needed. RoPE would spoil that: a rotated key depends on its position,
and could no longer be had from the latent by one matrix. So the rotated part of the key is kept
apart, d_rope numbers that all heads share. The cache holds the latent and that shared key.

Source: DeepSeek-AI 2024, "DeepSeek-V2" (arXiv 2405.04434), section 2.1.
"""

import numpy as np

from inferlab.attention import Cache
from inferlab.config import MlaConfig, ModelConfig
from inferlab.operators import attention, merge_heads, project, rms_norm, rotate, split_heads
from inferlab.weights import LayerWeights, present

LATENT_NORM_EPS = 1e-6
"""Of the norms behind the two latents: fixed in the original code, whatever norm_eps is."""


def latent_attention(
    x: np.ndarray,
    weights: LayerWeights,
    config: ModelConfig,
    angles: np.ndarray,
    visible: np.ndarray,
    cache: Cache | None = None,
    layer: int = 0,
) -> np.ndarray:
    """Self-attention whose keys and values are computed from latents, in the expanded form.

    Expanded: the keys and values of all S tokens are computed from their latents at every call.
    With a cache, the new latents and shared keys (rotated) are appended to it.

    x: (B, T, d_model), angles: (T, d_rope // 2), visible: (T, S) -> (B, T, d_model)
    """
    mla = present(config.mla)
    q = queries(x, weights, config, angles)
    latent, k_rope = compress(x, weights, mla, angles)
    if cache is not None:
        latent, k_rope = cache.append(layer, latent, k_rope)  # (B, S, ...)
    k, v = expand(latent, k_rope, weights, mla)
    return project(merge_heads(attention(q, k, v, visible)), weights.w_o)


def queries(
    x: np.ndarray, weights: LayerWeights, config: ModelConfig, angles: np.ndarray
) -> np.ndarray:
    """Queries of all heads: d_nope numbers as they are, then d_rope rotated ones.

    x: (B, T, d_model), angles: (T, d_rope // 2) -> (B, n_heads, T, d_nope + d_rope)
    """
    if weights.w_q_latent is not None:
        gain = present(weights.q_latent_gain)
        x = rms_norm(project(x, weights.w_q_latent), gain, LATENT_NORM_EPS)
    q = split_heads(project(x, weights.w_q), config.d_head)
    q_nope, q_rope = np.split(q, [present(config.mla).d_nope], axis=-1)
    return np.concatenate([q_nope, rotate(q_rope, angles)], axis=-1)


def compress(
    x: np.ndarray, weights: LayerWeights, mla: MlaConfig, angles: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """What is cached of each token: its latent, normed, and its shared key, rotated.

    x: (B, T, d_model), angles: (T, d_rope // 2) -> (B, T, d_latent), (B, T, d_rope)
    """
    both = project(x, present(weights.w_latent))  # (B, T, d_latent + d_rope)
    latent, k_rope = np.split(both, [mla.d_latent], axis=-1)
    latent = rms_norm(latent, present(weights.latent_gain), LATENT_NORM_EPS)
    return latent, rotate(k_rope[:, None], angles)[:, 0]


def expand(
    latent: np.ndarray, k_rope: np.ndarray, weights: LayerWeights, mla: MlaConfig
) -> tuple[np.ndarray, np.ndarray]:
    """Keys and values of all heads from what is cached; every head gets the same rotated part.

    latent: (B, S, d_latent), k_rope: (B, S, d_rope)
    -> keys (B, n_heads, S, d_nope + d_rope), values (B, n_heads, S, d_value)
    """
    k_nope = split_heads(project(latent, weights.w_k), mla.d_nope)
    v = split_heads(project(latent, weights.w_v), mla.d_value)
    B, n_heads, S, _ = k_nope.shape
    shared = np.broadcast_to(k_rope[:, None], (B, n_heads, S, mla.d_rope))
    return np.concatenate([k_nope, shared], axis=-1), v


class LatentCache:
    """Latents and shared rotated keys of every layer, in two preallocated arrays.

    latents: (n_layers, B, capacity, d_latent), keys: (n_layers, B, capacity, d_rope). Layer i has
    used the first lengths[i] slots of the capacity axis.
    """

    def __init__(
        self,
        n_layers: int,
        mla: MlaConfig,
        n_sequences: int = 1,
        capacity: int = 16,
        dtype: type = np.float32,
    ) -> None:
        shape = (n_layers, n_sequences, capacity)
        if min(shape) < 1:
            raise ValueError(f"n_layers, n_sequences, capacity must be at least 1, given {shape}")
        self.latents: np.ndarray = np.zeros((*shape, mla.d_latent), dtype)
        self.keys: np.ndarray = np.zeros((*shape, mla.d_rope), dtype)
        self.lengths = [0] * n_layers

    @property
    def capacity(self) -> int:
        """Tokens that fit without growing."""
        return self.latents.shape[2]

    @property
    def n_tokens(self) -> int:
        """Tokens that every layer holds."""
        return min(self.lengths)

    @property
    def n_bytes(self) -> int:
        """Bytes in use, over all layers and sequences."""
        n_layers, n_sequences, _, d_latent = self.latents.shape
        numbers_per_token = n_layers * n_sequences * (d_latent + self.keys.shape[-1])
        return self.n_tokens * numbers_per_token * self.latents.itemsize

    def append(
        self, layer: int, latent: np.ndarray, k_rope: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Store the latents and shared keys of T new tokens of one layer; -> all of the layer.

        latent: (B, T, d_latent), k_rope: (B, T, d_rope) -> (B, S, d_latent), (B, S, d_rope)
        Raises ValueError for other shapes.
        """
        self._require_fit(latent, k_rope)
        start = self.lengths[layer]
        end = start + latent.shape[1]
        self._reserve(end)
        self.latents[layer, :, start:end] = latent
        self.keys[layer, :, start:end] = k_rope
        self.lengths[layer] = end
        return self.latents[layer, :, :end], self.keys[layer, :, :end]

    def truncate(self, n_tokens: int) -> None:
        """Keep the first n_tokens tokens of every layer and forget the rest.

        Raises ValueError if n_tokens is negative or larger than self.n_tokens.
        """
        if not 0 <= n_tokens <= self.n_tokens:
            raise ValueError(f"n_tokens must be between 0 and {self.n_tokens}, given {n_tokens}")
        self.lengths = [n_tokens] * len(self.lengths)

    def _require_fit(self, latent: np.ndarray, k_rope: np.ndarray) -> None:
        _, n_sequences, _, d_latent = self.latents.shape
        T = latent.shape[1] if latent.ndim == 3 else "T"
        needed = (n_sequences, T, d_latent), (n_sequences, T, self.keys.shape[-1])
        if (latent.shape, k_rope.shape) != needed:
            raise ValueError(
                f"latent and k_rope must be {needed[0]} and {needed[1]}, "
                f"given {latent.shape} and {k_rope.shape}"
            )

    def _reserve(self, n_tokens: int) -> None:
        """Double the capacity until n_tokens tokens a layer fit."""
        capacity = self.capacity
        while capacity < n_tokens:
            capacity *= 2
        more = [(0, 0), (0, 0), (0, capacity - self.capacity), (0, 0)]
        if capacity > self.capacity:
            self.latents, self.keys = np.pad(self.latents, more), np.pad(self.keys, more)
