"""A Llama-family decoder in NumPy: tokens in, logits out.

Read from the bottom: `forward` runs the decoder blocks; a block mixes tokens by attention and then
works on each alone in an MLP, each behind an RMSNorm and added to its own input. The formulas are
in operators.py, self-attention in attention.py. Some models put multi-head latent attention in
its place (mla.py), or experts in place of the MLP (moe.py).
"""

import numpy as np

from inferlab.attention import Cache, self_attention
from inferlab.config import ModelConfig
from inferlab.mla import latent_attention
from inferlab.moe import mixture_of_experts
from inferlab.operators import causal_mask, project, rms_norm, rope_angles, swiglu, window_mask
from inferlab.weights import LayerWeights, Weights


def mlp(x: np.ndarray, weights: LayerWeights, config: ModelConfig) -> np.ndarray:
    """The gated MLP of a Llama: every token goes through the same three matrices.

    x: (B, T, d_model) -> (B, T, d_model)
    """
    return swiglu(x, weights.w_gate, weights.w_up, weights.w_down)


def decoder_block(
    x: np.ndarray,
    weights: LayerWeights,
    config: ModelConfig,
    angles: np.ndarray,
    visible: np.ndarray,
    cache: Cache | None = None,
    layer: int = 0,
) -> np.ndarray:
    """One layer: x plus attention of the normed x, then plus the MLP of that, normed.

    x: (B, T, d_model), angles: (T, d_head // 2), visible: (T, S) -> (B, T, d_model)
    """
    attend = self_attention if config.mla is None else latent_attention
    feed_forward = mixture_of_experts if config.has_experts(layer) else mlp
    normed = rms_norm(x, weights.attention_gain, config.norm_eps)
    x = x + attend(normed, weights, config, angles, visible, cache, layer)
    normed = rms_norm(x, weights.mlp_gain, config.norm_eps)
    return x + feed_forward(normed, weights, config)


def forward(
    weights: Weights,
    config: ModelConfig,
    tokens: np.ndarray,
    cache: Cache | None = None,
    last_only: bool = False,
) -> np.ndarray:
    """Logits of the token that follows each given token.

    With a cache, `tokens` continue what the cache holds (their positions go on from there), and
    their keys and values are appended to it. last_only skips the head for all but the last token:
    the head is the largest matrix, and generation needs one row of it.

    tokens: (B, T) whole numbers -> (B, T, vocab_size), or (B, 1, vocab_size) with last_only
    Raises ValueError for tokens outside the vocabulary, for no tokens, and for more tokens (with
    those in the cache) than config.max_context.
    """
    n_cached = 0 if cache is None else cache.n_tokens
    tokens = check_tokens(tokens, config, n_cached)
    T = tokens.shape[1]
    S = n_cached + T
    positions = np.arange(n_cached, S)
    angles = rope_angles(positions, config.d_rotated, config.rope_theta, config.rope_scaling)
    visible = causal_mask(T, S)
    if config.sliding_window is not None:
        visible = window_mask(T, S, config.sliding_window)
    x = weights.embedding[tokens]  # (B, T, d_model)
    for layer, layer_weights in enumerate(weights.layers):
        x = decoder_block(x, layer_weights, config, angles, visible, cache, layer)
    if last_only:
        x = x[:, -1:]
    return project(rms_norm(x, weights.final_gain, config.norm_eps), weights.head)


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
