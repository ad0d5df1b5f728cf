"""What a forward pass costs: floating-point operations, bytes moved, and the time they bound.

Source: Pope et al. 2022 (arXiv 2211.05102), section 2; Williams et al. 2009 (CACM 52(4)).
"""

from __future__ import annotations

from inferlab.config import ModelConfig
from inferlab.kv_cache import kv_cache_bytes


def body_params(config: ModelConfig) -> int:
    """Weights that multiply every token: projections and MLP of all layers.

    Left out: the embedding (a look-up), the head (needed for one position only) and the gains.
    """
    attention = 2 * config.d_model * config.d_head * (config.n_heads + config.n_kv_heads)
    mlp = 3 * config.d_model * config.d_ff  # gate, up, down
    return config.n_layers * (attention + mlp)


def forward_flops(config: ModelConfig, n_new: int, n_cached: int = 0) -> int:
    """FLOPs to run n_new tokens on top of n_cached ones, with logits for the last token only.

    A multiply and an add count 2. Token i of the new ones sees n_cached + i + 1 keys, itself
    included; each key costs 2 * d_head for its score and 2 * d_head for its value, in each query
    head of each layer.
    """
    if n_new < 1 or n_cached < 0:
        raise ValueError(f"n_new={n_new} must be at least 1 and n_cached={n_cached} at least 0")
    keys_seen = n_new * n_cached + n_new * (n_new + 1) // 2
    attention = 4 * config.n_layers * config.n_heads * config.d_head * keys_seen
    head = 2 * config.d_model * config.vocab_size
    return 2 * body_params(config) * n_new + head + attention


def step_bound_s(
    config: ModelConfig,
    n_new: int,
    n_cached: int,
    bandwidth_bytes_per_s: float,
    peak_flops_per_s: float,
    bytes_per_number: int = 4,
) -> float:
    """The least time for one pass of one sequence: the larger of reading and computing.

    Reading: every weight of body and head once, and the keys and values in the cache. It is a
    lower bound, as if reading and computing overlapped perfectly and nothing else took time.
    """
    head = config.d_model * config.vocab_size
    weight_bytes = (body_params(config) + head) * bytes_per_number
    cache_bytes = kv_cache_bytes(config, n_cached, 1, bytes_per_number)
    reading = (weight_bytes + cache_bytes) / bandwidth_bytes_per_s
    return max(reading, forward_flops(config, n_new, n_cached) / peak_flops_per_s)
