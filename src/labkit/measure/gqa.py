"""What lesson 05 measures: attention of a step in PyTorch, and models with pooled KV heads."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

import numpy as np

from inferlab import device as devices
from inferlab.device import Timing, interleaved
from inferlab.model import Model
from inferlab.quantized_model import log_probabilities, perplexity
from inferlab.weights import LayerWeights

Pool = Callable[[np.ndarray, int, int], np.ndarray]
"""(w, n_kv_heads, d_head) -> w with n_kv_heads heads, such as attention.pool_kv_heads."""


def first_heads(w: np.ndarray, n_kv_heads: int, d_head: int) -> np.ndarray:
    """The other simple way to drop heads: keep the first of each group.

    w: (d_model, n_heads * d_head) -> (d_model, n_kv_heads * d_head)
    """
    groups = w.reshape(len(w), n_kv_heads, -1, d_head)
    return groups[:, :, 0].reshape(len(w), -1)


def with_pooled_heads(
    model: Model, pool: Pool, n_kv_heads: int, layers: Collection[int] | None = None
) -> Model:
    """The model with its KV heads pooled to n_kv_heads in the given layers (None: in all).

    A pooled head is copied back to every place of its group, so that all layers keep the same
    shape: attention over such copies is attention over the one head.
    """
    config = model.config
    if config.mla is not None or config.attention_bias or config.qk_norm:
        raise ValueError("pooling is written for plain attention: no MLA, biases or norms of keys")
    chosen = range(config.n_layers) if layers is None else layers
    n_copies = config.n_kv_heads // n_kv_heads

    def shared(w: np.ndarray) -> np.ndarray:
        heads = pool(w, n_kv_heads, config.d_head).reshape(len(w), n_kv_heads, config.d_head)
        return np.repeat(heads, n_copies, axis=1).reshape(len(w), -1)

    def changed(layer: LayerWeights) -> LayerWeights:
        return replace(layer, w_k=shared(layer.w_k), w_v=shared(layer.w_v))

    new = [changed(w) if i in chosen else w for i, w in enumerate(model.weights.layers)]
    return replace(model, weights=replace(model.weights, layers=tuple(new)))


def text_perplexity(model: Model, tokens: Sequence[int]) -> float:
    """exp of the mean surprise, over all tokens but the first: 1 would be a perfect guesser."""
    return perplexity(log_probabilities(model, tokens), tokens)


def head_similarity(w: np.ndarray, d_head: int) -> float:
    """Mean cosine between any two different heads of a projection; 0: no likeness, 1: all alike.

    w: (d_model, n_heads * d_head), with at least 2 heads
    """
    heads = w.reshape(len(w), -1, d_head).swapaxes(0, 1).reshape(w.shape[1] // d_head, -1)
    if len(heads) < 2:
        raise ValueError(f"needs 2 heads or more, given {len(heads)}")
    unit = heads / np.linalg.norm(heads, axis=1, keepdims=True)
    cosines = unit @ unit.T
    return float(cosines[~np.eye(len(heads), dtype=bool)].mean())


def sdpa_step(
    n_heads: int, n_kv_heads: int, n_tokens: int, d_head: int, device: str = "cpu", rounds: int = 5
) -> dict[str, Timing]:
    """Seconds of PyTorch's scaled_dot_product_attention for one new token, in two ways.

    "rows": the queries of a group are given as rows of one head, so that keys and values fit as
    they are; "enable_gqa": the heads are given as they are, and the kernel sees to the sharing.
    float32 on the CPU, float16 elsewhere. Raises ValueError for sizes that do not fit.
    """
    if min(n_heads, n_kv_heads, n_tokens, d_head) < 1 or n_heads % n_kv_heads:
        raise ValueError(
            f"{n_heads=} must be a multiple of {n_kv_heads=}, and {n_tokens=}, {d_head=} at least 1"
        )
    torch = devices.torch_module()
    dtype = torch.float32 if device == "cpu" else torch.float16
    with torch.inference_mode():
        q = torch.ones(1, n_heads, 1, d_head, device=device, dtype=dtype)
        k, v = torch.ones(2, 1, n_kv_heads, n_tokens, d_head, device=device, dtype=dtype)
        rows = q.view(1, n_kv_heads, n_heads // n_kv_heads, d_head)
        sdpa = torch.nn.functional.scaled_dot_product_attention
        ways = {
            "rows": lambda: sdpa(rows, k, v),
            "enable_gqa": lambda: sdpa(q, k, v, enable_gqa=True),
        }
        return interleaved(ways, rounds, device=device, torch=torch)
