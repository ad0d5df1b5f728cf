"""A Llama-family decoder in NumPy: tokens in, logits out.

`forward` runs the decoder blocks; a block mixes tokens by attention and then works on each alone in
an MLP, each behind an RMSNorm and added to its own input. The formulas are in operators.py,
self-attention in attention.py.

Four small functions are the joints where models differ: feed_forward (MLP or experts, moe.py),
mix_tokens (plain or latent attention, mla.py), position_angles (RoPE, stretched or not) and
visible_keys (all of the past, or a window of it).
"""

import numpy as np

from inferlab.attention import Cache, self_attention
from inferlab.config import ModelConfig
from inferlab.mla import latent_attention
from inferlab.moe import mixture_of_experts
from inferlab.operators import (
    causal_mask,
    project,
    rms_norm,
    stretched_angles,
    swiglu,
    window_mask,
)
from inferlab.weights import LayerWeights, Weights


def decoder_block(
    x: np.ndarray,
    weights: LayerWeights,
    config: ModelConfig,
    angles: np.ndarray,
    visible: np.ndarray,
    cache: Cache | None = None,
    layer: int = 0,
) -> np.ndarray:
    """One layer: x plus attention of the normed x, then plus the MLP of that sum, normed.

    Two halves of one form, x + part(rms_norm(x, gain, config.norm_eps)). The first has
    weights.attention_gain and mix_tokens(normed, weights, config, angles, visible, cache, layer);
    the second has weights.mlp_gain and feed_forward(normed, weights, config, layer), and works on
    what the first gave. angles, visible, cache and layer are only handed on. Leave x itself as it
    is.

    x: (B, T, d_model), angles: (T, d_head // 2), visible: (T, S) -> (B, T, d_model)
    Example: where both parts give zeros, the block returns x.
    """
    normed = rms_norm(x, weights.attention_gain, config.norm_eps)
    x = x + mix_tokens(normed, weights, config, angles, visible, cache, layer)
    normed = rms_norm(x, weights.mlp_gain, config.norm_eps)
    return x + feed_forward(normed, weights, config, layer)


def mix_tokens(
    x: np.ndarray,
    weights: LayerWeights,
    config: ModelConfig,
    angles: np.ndarray,
    visible: np.ndarray,
    cache: Cache | None = None,
    layer: int = 0,
) -> np.ndarray:
    """Attention of the kind that the model has: (B, T, d_model) -> (B, T, d_model)."""
    attend = self_attention if config.mla is None else latent_attention
    return attend(x, weights, config, angles, visible, cache, layer)


def feed_forward(
    x: np.ndarray, weights: LayerWeights, config: ModelConfig, layer: int = 0
) -> np.ndarray:
    """The layer's MLP, or its experts: (B, T, d_model) -> (B, T, d_model)."""
    if config.has_experts(layer):
        return mixture_of_experts(x, weights, config)
    return swiglu(x, weights.w_gate, weights.w_up, weights.w_down)


def forward(
    weights: Weights,
    config: ModelConfig,
    tokens: np.ndarray,
    cache: Cache | None = None,
    last_only: bool = False,
) -> np.ndarray:
    """Logits of the token that follows each given token.

    Call check_tokens(tokens, config, n_cached) first. Look the tokens up in weights.embedding, run
    decoder_block with each of weights.layers in turn, norm with weights.final_gain and
    config.norm_eps, and project with weights.head. All layers share one position_angles(positions,
    config) and one visible_keys(T, S, config).

    With a cache, `tokens` continue the n_cached = cache.n_tokens tokens that it holds: their
    positions go on from there, they see S = n_cached + T keys, and the blocks append to the cache
    (hand it on, with the number of the layer). Without one n_cached is 0. last_only skips the head
    for all but the last token: the head is the largest matrix, and generation needs one row of it.

    tokens: (B, T) whole numbers -> (B, T, vocab_size), or (B, 1, vocab_size) with last_only
    Raises ValueError (from check_tokens) for tokens outside the vocabulary, for no tokens, and for
    more tokens (with those in the cache) than config.max_context.
    """
    n_cached = 0 if cache is None else cache.n_tokens
    tokens = check_tokens(tokens, config, n_cached)
    T = tokens.shape[1]
    S = n_cached + T
    angles = position_angles(np.arange(n_cached, S), config)
    visible = visible_keys(T, S, config)
    x = weights.embedding[tokens]  # (B, T, d_model)
    for layer, layer_weights in enumerate(weights.layers):
        x = decoder_block(x, layer_weights, config, angles, visible, cache, layer)
    if last_only:
        x = x[:, -1:]
    return project(rms_norm(x, weights.final_gain, config.norm_eps), weights.head)


def position_angles(positions: np.ndarray, config: ModelConfig) -> np.ndarray:
    """RoPE's angles at these positions, as the model turns: (T,) -> (T, d_rotated // 2)."""
    return stretched_angles(positions, config.d_rotated, config.rope_theta, config.rope_scaling)


def visible_keys(T: int, S: int, config: ModelConfig) -> np.ndarray:
    """Which of S keys the last T queries see in this model: -> (T, S) bool."""
    if config.sliding_window is not None:
        return window_mask(T, S, config.sliding_window)
    return causal_mask(T, S)


def check_tokens(tokens: np.ndarray, config: ModelConfig, n_cached: int = 0) -> np.ndarray:
    """Return tokens as an integer array (B, T), or raise ValueError saying what is wrong."""
    tokens = np.asarray(tokens)
    if tokens.ndim != 2 or tokens.size == 0:
        raise ValueError(f"tokens must be (B, T) with at least one token; given: {tokens.shape}")
    if tokens.dtype.kind not in "iu":
        raise ValueError(f"tokens must be whole numbers; given dtype: {tokens.dtype}")
    low, high = int(tokens.min()), int(tokens.max())
    if low < 0 or high >= config.vocab_size:
        wrong = low if low < 0 else high
        raise ValueError(f"token id {wrong} must be in 0..{config.vocab_size - 1} (vocab_size - 1)")
    n_total = n_cached + tokens.shape[1]
    if n_total > config.max_context:
        cached = f" ({n_cached} of them cached)" if n_cached else ""
        raise ValueError(f"{n_total} tokens{cached} are more than max_context={config.max_context}")
    return tokens
