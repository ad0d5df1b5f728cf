"""Deployments to judge on: named ones, and drawn ones whose every size is another number."""

from __future__ import annotations

from typing import Any

import numpy as np

from grader.judging.compare import Comparison
from inferlab.capacity import Deployment
from inferlab.config import ModelConfig
from inferlab.data import load_devices, model_preset
from inferlab.sizes import MlaConfig

H100 = load_devices()["h100-sxm"]
LLAMA_8B, LLAMA_70B = model_preset("llama-3-8b"), model_preset("llama-3-70b")
MIXTRAL = model_preset("mixtral-8x7b")
DEEPSEEK = model_preset("deepseek-v2-lite")
WINDOWED = ModelConfig(
    24, 1536, 24, 8, 64, 4096, 32_000, sliding_window=1000, n_window_layers=17
)  # fmt: skip
ALL_WINDOWED = ModelConfig(24, 1536, 24, 8, 64, 4096, 32_000, sliding_window=1000)
SMALL_MLA = ModelConfig(
    12, 1024, 16, 16, 96, 2816, 30_000, mla=MlaConfig(256, 64, 32, 64)
)  # fmt: skip
SMALL_MOE = ModelConfig(
    16, 1024, 16, 4, 64, 2816, 30_000,
    n_experts=12, n_experts_per_token=3, d_expert=700, n_dense_layers=2,
)  # fmt: skip

SEVENTY = Deployment.on(H100, LLAMA_70B, 4, overhead_bytes=7.5e9)
EIGHT = Deployment.on(H100, LLAMA_8B, headroom=0.1)

SUMS = Comparison(terms=lambda inputs: 16, why="a dozen products, sums and divisions")


def draw_config(rng: np.random.Generator) -> ModelConfig:
    """A dense GQA model: d_head is not d_model / n_heads, no two sizes are equal."""
    n_kv_heads = int(rng.choice([2, 4, 6]))
    n_heads = n_kv_heads * int(rng.choice([4, 8]))
    d_head = int(rng.choice([64, 80, 96]))
    d_model = n_heads * d_head * 3 // 4
    return ModelConfig(
        int(rng.integers(20, 60)), d_model, n_heads, n_kv_heads, d_head, 3 * d_model + 64,
        int(rng.integers(20_000, 90_000)), tied_embeddings=bool(rng.integers(2)),
    )  # fmt: skip


def draw_deployment(
    rng: np.random.Generator, config: ModelConfig | None = None, n_devices: int | None = None
) -> Deployment:
    """One whose weights fit, with every field away from its default."""
    config = draw_config(rng) if config is None else config
    if n_devices is None:
        n_devices = 2 * config.n_kv_heads
    bytes_per_weight = float(rng.choice([0.5625, 0.78125]))
    weights = config.n_params * bytes_per_weight / n_devices
    memory = weights * float(rng.uniform(2.5, 4))
    bandwidth = float(rng.uniform(5e11, 4e12))
    return Deployment(
        config,
        n_devices,
        memory,
        bandwidth,
        bandwidth * float(rng.uniform(120, 400)),
        bytes_per_weight,
        int(rng.choice([1, 4])),
        overhead_bytes=memory * float(rng.uniform(0.05, 0.1)),
        headroom=float(rng.uniform(0.05, 0.15)),
        efficiency=float(rng.uniform(0.55, 0.9)),
    )


def weight_bytes(d: Any) -> float:
    """All weights of a deployment, wherever they lie."""
    return d.config.n_params * d.bytes_per_weight
