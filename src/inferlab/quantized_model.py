"""Whole models with rounded numbers: weights, a cache, and what that costs in quality.

The rounded weights are kept as the floating-point numbers that the codes stand for, so the plain
forward pass runs on them: this file is for measuring quality. For speed see engines/pytorch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from inferlab.attention import self_attention
from inferlab.model import Model
from inferlab.operators import causal_mask, project, rms_norm, swiglu
from inferlab.quantization import dequantize, quantize_absmax
from inferlab.transformer import position_angles

if TYPE_CHECKING:
    from inferlab.attention import Cache

# The matrices of a layer that read the same input, side by side: they share their input channels.
SHARED_INPUTS = {
    "attention": ("w_q", "w_k", "w_v"),
    "mixed heads": ("w_o",),
    "mlp": ("w_gate", "w_up"),
    "hidden": ("w_down",),
}
Change = Callable[[np.ndarray, int, str], np.ndarray]


class QuantizedKVCache:
    """Keys and values of every layer in whole numbers, with one scale for each head and token.

    key_codes, value_codes: one int8 array a layer, (B, n_kv_heads, S, d_head); key_scales,
    value_scales: one float array a layer, (B, n_kv_heads, S, 1). All start with S = 0.
    """

    def __init__(
        self, n_layers: int, n_kv_heads: int, d_head: int, n_sequences: int = 1, bits: int = 8
    ) -> None:
        codes = np.zeros((n_sequences, n_kv_heads, 0, d_head), np.int8)
        scales = np.zeros((n_sequences, n_kv_heads, 0, 1), np.float32)
        self.bits = bits
        self.key_codes, self.key_scales = [codes] * n_layers, [scales] * n_layers
        self.value_codes, self.value_scales = [codes] * n_layers, [scales] * n_layers

    @property
    def n_tokens(self) -> int:
        """Tokens that every layer holds."""
        return min(codes.shape[2] for codes in self.key_codes)

    @property
    def n_bytes(self) -> int:
        """Bytes of codes (whole bytes, also for bits=4) and scales, over all layers."""
        parts = (self.key_codes, self.key_scales, self.value_codes, self.value_scales)
        return sum(array.nbytes for part in parts for array in part)

    def append(self, layer: int, k: np.ndarray, v: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Quantize the keys and values of T new tokens of one layer; store them behind the rest.

        Each head of each token is rounded on its own: quantize_absmax(k, self.bits, axis=-1) gives
        codes and scales in the shapes that the lists hold. Join them to self.key_codes[layer] and
        self.key_scales[layer] along the tokens, axis 2; the same for values. What was stored
        before stays as it is: it is never rounded again. Keep no floating-point copy.

        k, v: (B, n_kv_heads, T, d_head)
        -> all keys and all values of this layer, dequantized, (B, n_kv_heads, S, d_head) each:
           the new tokens too come back as they were stored, rounded.
        """
        held = []
        for new, codes, scales in (
            (k, self.key_codes, self.key_scales),
            (v, self.value_codes, self.value_scales),
        ):
            new_codes, new_scales = quantize_absmax(new, self.bits, axis=-1)
            codes[layer] = np.concatenate([codes[layer], new_codes], axis=2)
            scales[layer] = np.concatenate([scales[layer], new_scales], axis=2)
            held.append(dequantize(codes[layer], scales[layer]))
        return held[0], held[1]


def with_changed_weights(model: Model, change: Change) -> Model:
    """The model with its layers' matrices changed: embedding, head and norms stay as they are.

    change(w, layer, input_name) gets the matrices that read one input side by side, (d_in, d_out),
    and the name of that input in SHARED_INPUTS.
    """
    layers = []
    for index, layer in enumerate(model.weights.layers):
        changed: dict[str, np.ndarray] = {}
        for input_name, names in SHARED_INPUTS.items():
            matrices = [getattr(layer, name) for name in names]
            ends = np.cumsum([m.shape[1] for m in matrices])[:-1]
            parts = np.split(change(np.hstack(matrices), index, input_name), ends, axis=1)
            changed |= dict(zip(names, parts, strict=True))
        layers.append(replace(layer, **changed))
    return Model(model.config, replace(model.weights, layers=tuple(layers)), model.tokenizer)


def first_layers(model: Model, n_layers: int) -> Model:
    """The model cut off after its first layers: for measuring speed in less time, not for text."""
    if not 1 <= n_layers <= model.config.n_layers:
        raise ValueError(f"n_layers={n_layers} must be from 1 to {model.config.n_layers}")
    weights = replace(model.weights, layers=model.weights.layers[:n_layers])
    return Model(replace(model.config, n_layers=n_layers), weights, model.tokenizer)


def calibration_inputs(model: Model, tokens: Sequence[int]) -> list[dict[str, np.ndarray]]:
    """What the matrices of each layer read while the model reads a text.

    tokens: one sequence -> for each layer, input name (of SHARED_INPUTS) -> (T, d_in)
    """
    config, weights, T = model.config, model.weights, len(tokens)
    x = weights.embedding[np.asarray(tokens)][None]  # (1, T, d_model)
    angles = position_angles(np.arange(T), config)
    visible = causal_mask(T, T)
    recorded = []
    for layer in weights.layers:
        inputs = {"attention": rms_norm(x, layer.attention_gain, config.norm_eps)}
        # With an identity in place of the last matrix, what comes out is what that matrix reads.
        unmixed = replace(layer, w_o=np.eye(len(layer.w_o), dtype=x.dtype))
        inputs["mixed heads"] = self_attention(
            inputs["attention"], unmixed, config, angles, visible
        )
        x = x + project(inputs["mixed heads"], layer.w_o)
        inputs["mlp"] = rms_norm(x, layer.mlp_gain, config.norm_eps)
        identity = np.eye(len(layer.w_down), dtype=x.dtype)
        inputs["hidden"] = swiglu(inputs["mlp"], layer.w_gate, layer.w_up, identity)
        x = x + project(inputs["hidden"], layer.w_down)
        recorded.append({name: rows[0] for name, rows in inputs.items()})
    return recorded


def log_probabilities(
    model: Model, tokens: Sequence[int], cache: Cache | None = None
) -> np.ndarray:
    """Natural logarithms of the next token's probabilities after each token: (T, vocab_size)."""
    logits = model.forward(np.asarray(tokens)[None], cache)[0].astype(np.float64)
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def perplexity(log_probs: np.ndarray, tokens: Sequence[int]) -> float:
    """e to the mean surprise at each next token: 1 for an oracle, vocab_size for a blind guess.

    log_probs: (T, vocab_size) of log_probabilities, tokens: the T tokens they belong to
    """
    taken = log_probs[np.arange(len(tokens) - 1), np.asarray(tokens)[1:]]
    return float(np.exp(-taken.mean()))


def kl_divergence(exact: np.ndarray, rounded: np.ndarray) -> float:
    """Mean over tokens of sum p_exact * (log p_exact - log p_rounded), in nats; 0 when alike.

    exact, rounded: (T, vocab_size) natural logarithms
    """
    return float((np.exp(exact) * (exact - rounded)).sum(axis=-1).mean())
