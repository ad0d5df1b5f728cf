"""Lesson 02: the random models that a part of a layer and the whole pass are judged on."""

from __future__ import annotations

from inferlab.config import ModelConfig
from inferlab.weights import LayerWeights, Weights

LAYER, N_LAYERS = 1, 3  # the layer that is run alone, and how many the cache has


def drawn_config(n_kv_heads: int) -> ModelConfig:
    """Sizes that hide nothing: d_head is not d_model / n_heads, eps is large, theta small."""
    return ModelConfig(
        N_LAYERS, 10, 6, n_kv_heads, 4, 14, 23, 32, 500.0, norm_eps=0.01, tied_embeddings=False
    )


class DrawnLayer(LayerWeights):
    """Weights of one layer; a verdict shows them in a few words."""

    def __repr__(self) -> str:
        return "random, one layer's"


class DrawnWeights(Weights):
    """Weights of a model; a verdict shows them in a few words."""

    def __repr__(self) -> str:
        return f"random, {len(self.layers)} layers"
