"""Small models of random weights, a few thousand numbers each, that several test files run."""

import numpy as np

from inferlab.config import ModelConfig
from inferlab.model import Model
from inferlab.weights import random_weights

TINY = {
    "gqa": ModelConfig(2, 32, 4, 2, 8, 48, 67, 64, 1e4, 1e-5, True, 1, (2,)),
    "mha, untied": ModelConfig(3, 24, 3, 3, 8, 40, 50, 64, 5e5, 1e-6, False, 1, (2,)),
    "mqa, d_head != d_model / n_heads": ModelConfig(2, 20, 6, 1, 10, 33, 41, 64, 1e5),
}


def tiny_model(kind: str = "gqa", dtype: type = np.float64, seed: int = 0) -> Model:
    """A random model of a few thousand numbers."""
    config = TINY[kind]
    return Model(config, random_weights(config, np.random.default_rng(seed), dtype))
