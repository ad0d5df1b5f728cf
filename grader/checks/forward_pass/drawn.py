"""Lesson 02: the random models that a part of a layer and the whole pass are judged on."""

from __future__ import annotations

import numpy as np

from inferlab.config import ModelConfig
from inferlab.sizes import RopeScaling
from inferlab.weights import LayerWeights, Weights

STRETCHED = RopeScaling(factor=4.0, low_freq_factor=0.5, high_freq_factor=2.0, original_context=16)
EXPERTS = {"n_experts": 5, "n_experts_per_token": 2, "d_expert": 6, "n_dense_layers": 1}
LAYER, N_LAYERS = 1, 3  # the layer that is run alone, and how many the cache has


def drawn_config(rng: np.random.Generator) -> ModelConfig:
    """Sizes that hide nothing: d_head is not d_model / n_heads, eps is large, theta small."""
    n_kv_heads, d_head, vocab_size = (int(rng.choice(n)) for n in ([2, 3], [4, 6], [23, 29]))
    return ModelConfig(
        N_LAYERS, 10, 6, n_kv_heads, d_head, 14, vocab_size, int(rng.integers(30, 40)),
        float(rng.uniform(200, 600)), norm_eps=float(rng.uniform(0.008, 0.02)),
        tied_embeddings=False,
    )  # fmt: skip


class DrawnLayer(LayerWeights):
    """Weights of one layer; a verdict shows them in a few words."""

    def __repr__(self) -> str:
        return "random, one layer's"


class DrawnWeights(Weights):
    """Weights of a model; a verdict shows them in a few words."""

    def __repr__(self) -> str:
        return f"random, {len(self.layers)} layers"
