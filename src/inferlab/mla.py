"""Multi-head latent attention (MLA): cache one small latent per token, not all keys and values.

A token is squeezed to a latent of d_latent numbers, from which every head's keys and values are
computed again when they are needed. RoPE would spoil that: a rotated key depends on its position,
and could no longer be had from the latent by one matrix. So the rotated part of the key is kept
apart, d_rope numbers that all heads share. The cache holds the latent and that shared key.

Two forms give the same numbers. Expanded: keys and values of all heads are computed from the
latents, then attention as usual; it costs work for every cached token. Absorbed: the matrices that
would expand keys and values move to the few new queries and outputs, and all heads read the
latents themselves, as if these were one KV head.

Source: DeepSeek-AI 2024, "DeepSeek-V2" (arXiv 2405.04434), section 2.1.
"""

import math

import numpy as np

from inferlab.attention import Cache
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
from inferlab.sizes import MlaConfig
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
    """Self-attention whose keys and values stand in latents, in whichever form takes less work.

    With a cache, the new latents and shared keys (rotated) are appended to it. A decode step over
    a long text takes the absorbed form, a prefill the expanded one.

    x: (B, T, d_model), angles: (T, d_rope // 2), visible: (T, S) -> (B, T, d_model)
    """
    mla = present(config.mla)
    q = queries(x, weights, config, angles)
    w_latent, gain = present(weights.w_latent), present(weights.latent_gain)
    latent, k_rope = compress_to_latent(x, w_latent, gain, angles, LATENT_NORM_EPS)
    if cache is not None:
        latent, k_rope = cache.append(layer, latent, k_rope)  # (B, S, ...)
    if absorbing_pays(mla, *visible.shape):
        mixed = absorbed_attention(q, latent, k_rope, weights.w_k, weights.w_v, visible)
    else:
        k, v = expand_latent(latent, k_rope, weights.w_k, weights.w_v, config.n_heads)
        mixed = attention(q, k, v, visible)
    return project(merge_heads(mixed), weights.w_o)


def absorbing_pays(mla: MlaConfig, T: int, S: int) -> bool:
    """Whether the absorbed form takes fewer multiplications for T queries over S keys.

    Both send some rows through w_k and w_v: the S latents when expanding, the T queries and
    outputs when absorbing. Attention itself works on d_nope + d_rope and d_value numbers a head
    when expanded, on d_latent + d_rope and d_latent when absorbed.
    """
    through_weights = mla.d_latent * (mla.d_nope + mla.d_value)
    expanded = S * through_weights + T * S * (mla.d_nope + mla.d_rope + mla.d_value)
    absorbed = T * through_weights + T * S * (2 * mla.d_latent + mla.d_rope)
    return absorbed < expanded


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


def compress_to_latent(
    x: np.ndarray, w_latent: np.ndarray, gain: np.ndarray, angles: np.ndarray, eps: float = 1e-6
) -> tuple[np.ndarray, np.ndarray]:
    """What MLA caches of each token: its latent, normed, and one rotated key for all heads.

    x @ w_latent gives d_latent + d_rope numbers a token. The first d_latent are the latent: it
    goes through rms_norm(latent, gain, eps). The other d_rope are the key that carries the
    position: rotate turns it by the token's angles, and it is not normed. d_latent is len(gain).
    Given: rms_norm, and rotate(x, angles), whose x and result are (B, n_heads, T, d_rope).

    x: (B, T, d_model), w_latent: (d_model, d_latent + d_rope), gain: (d_latent,),
    angles: (T, d_rope // 2) -> latent (B, T, d_latent), k_rope (B, T, d_rope)
    Example: with d_latent 512 and d_rope 64 a token leaves 576 numbers, however many heads.
    Source: DeepSeek-AI 2024 (arXiv 2405.04434), section 2.1.2 and 2.1.3.
    """
    both = project(x, w_latent)  # (B, T, d_latent + d_rope)
    latent, k_rope = np.split(both, [len(gain)], axis=-1)
    return rms_norm(latent, gain, eps), rotate(k_rope[:, None], angles)[:, 0]


def expand_latent(
    latent: np.ndarray, k_rope: np.ndarray, w_k: np.ndarray, w_v: np.ndarray, n_heads: int
) -> tuple[np.ndarray, np.ndarray]:
    """Keys and values of all heads, computed from what MLA caches: the expanded form.

    latent @ w_k holds d_nope numbers of each head's key, head after head, and latent @ w_v its
    value of d_value numbers. The key of a head is its d_nope numbers, followed by the d_rope
    numbers of k_rope, the same for every head. Given: split_heads(x, d_head), which cuts
    (B, S, n_heads * d_head) into (B, n_heads, S, d_head).

    latent: (B, S, d_latent), k_rope: (B, S, d_rope), w_k: (d_latent, n_heads * d_nope),
    w_v: (d_latent, n_heads * d_value)
    -> keys (B, n_heads, S, d_nope + d_rope), values (B, n_heads, S, d_value)
    Example: w_k of shape (512, 16 * 128) and d_rope 64: keys of 16 heads, 192 numbers each.
    Source: DeepSeek-AI 2024 (arXiv 2405.04434), section 2.1.2 and 2.1.3.
    """
    B, S, d_rope = k_rope.shape
    k_nope = split_heads(project(latent, w_k), w_k.shape[1] // n_heads)
    v = split_heads(project(latent, w_v), w_v.shape[1] // n_heads)
    shared = np.broadcast_to(k_rope[:, None], (B, n_heads, S, d_rope))
    return np.concatenate([k_nope, shared], axis=-1), v


def absorb_query(q_nope: np.ndarray, w_k: np.ndarray) -> np.ndarray:
    """Move each head's key matrix to its query, so that the query can meet latents directly.

    Of head h, w_h is columns h * d_nope … (h + 1) * d_nope - 1 of w_k. Its key at a position is
    latent @ w_h, so its score is q_h . (latent @ w_h) = (w_h @ q_h) . latent. Return w_h @ q_h
    of every head and query: then no key need ever be computed.

    q_nope: (B, n_heads, T, d_nope), w_k: (d_latent, n_heads * d_nope)
    -> (B, n_heads, T, d_latent)
    Example: one head, w_k [[1, 2], [3, 4], [5, 6]], query [1, 10] -> [21, 43, 65].
    Source: DeepSeek-AI 2024 (arXiv 2405.04434), section 2.1.2.
    """
    _, n_heads, _, d_nope = q_nope.shape
    w = w_k.reshape(-1, n_heads, d_nope)  # (d_latent, n_heads, d_nope)
    return q_nope @ w.transpose(1, 2, 0)


def absorbed_attention(
    q: np.ndarray,
    latent: np.ndarray,
    k_rope: np.ndarray,
    w_k: np.ndarray,
    w_v: np.ndarray,
    visible: np.ndarray,
) -> np.ndarray:
    """MLA that never expands the cache: every head reads the latents themselves.

    The same numbers as attention over expand_latent(latent, k_rope, w_k, w_v, n_heads), without
    computing any key or value, or a copy of the latents for each head: what you hold at once is
    measured. The last d_rope numbers of a query are its rotated part. Scores:
    absorb_query of the other part, times the latents, plus the rotated part times k_rope; all
    divided by the root of the whole width of q, and -inf where visible is False. The softmax
    weights mix latents (d_latent numbers a head); only then each head's columns of w_v turn its
    mixed latent into its output. Given: softmax, over the last axis.

    q: (B, n_heads, T, d_nope + d_rope), latent: (B, S, d_latent), k_rope: (B, S, d_rope),
    w_k: (d_latent, n_heads * d_nope), w_v: (d_latent, n_heads * d_value), visible: (T, S) bool
    -> (B, n_heads, T, d_value)
    Example: with S = 1 the weight is 1, so head h gives latent @ (its columns of w_v).
    Source: DeepSeek-AI 2024 (arXiv 2405.04434), section 2.1.2 and appendix C.
    """
    B, n_heads, T, d_head = q.shape
    S, d_latent, d_rope = latent.shape[1], latent.shape[2], k_rope.shape[2]
    q_latent = absorb_query(q[..., :-d_rope], w_k)  # (B, n_heads, T, d_latent)
    # The queries of all heads become rows of one matrix: the latents are read once for all.
    scores = q_latent.reshape(B, -1, d_latent) @ latent.swapaxes(1, 2)
    scores = scores + q[..., -d_rope:].reshape(B, -1, d_rope) @ k_rope.swapaxes(1, 2)
    scores = scores.reshape(B, n_heads, T, S) / math.sqrt(d_head)
    weights = softmax(np.where(visible, scores, -np.inf))
    mixed = weights.reshape(B, -1, S) @ latent  # (B, n_heads * T, d_latent)
    w = w_v.reshape(d_latent, n_heads, -1).swapaxes(0, 1)  # (n_heads, d_latent, d_value)
    return mixed.reshape(B, n_heads, T, d_latent) @ w


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
