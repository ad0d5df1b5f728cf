"""Where the work of a forward pass goes: its floating-point operations and bytes, part by part.

The parts: the four projections of attention; its scores and weighted values; the MLP; the output
head. Norms, rotations and the softmax are left out: they are a few operations per number.
"""

from __future__ import annotations

from inferlab.cache_sizes import layer_cache_numbers
from inferlab.config import ModelConfig

COMPONENTS = ("attention projections", "attention scores", "MLP", "output head")


def component_params(config: ModelConfig) -> dict[str, int]:
    """Weights of each part over all layers, gated MLP, no experts. The scores have none.

    The query projection is d_model x (n_heads * d_head), those of keys and values d_model x
    (n_kv_heads * d_head), and the output projection turns the first one round.
    """
    d_query, d_kv = config.n_heads * config.d_head, config.n_kv_heads * config.d_head
    return {
        "attention projections": config.n_layers * config.d_model * (2 * d_query + 2 * d_kv),
        "attention scores": 0,
        "MLP": config.n_layers * 3 * config.d_model * config.d_ff,  # gate, up, down
        "output head": config.d_model * config.vocab_size,
    }


def component_flops(
    config: ModelConfig, n_new: int, n_cached: int = 0, skip_hidden: bool = True
) -> dict[str, int]:
    """FLOPs of each part for n_new tokens on top of n_cached ones, one row of logits.

    A multiply and an add count 2. Each visible key costs a query head 2 * d_head for its score and
    2 * d_head for its value. skip_hidden=False counts the hidden keys as well: an engine that masks
    a full matrix computes them.
    """
    if n_new < 1 or n_cached < 0:
        raise ValueError(f"n_new={n_new} must be at least 1 and n_cached={n_cached} at least 0")
    n_keys = n_new * n_cached + n_new * (n_new + 1) // 2
    if not skip_hidden:
        n_keys = n_new * (n_cached + n_new)
    rows = {"output head": 1}
    flops = {k: 2 * n * rows.get(k, n_new) for k, n in component_params(config).items()}
    flops["attention scores"] = 4 * config.n_layers * config.n_heads * config.d_head * n_keys
    return flops


def component_bytes(
    config: ModelConfig, n_new: int, n_cached: int = 0, bytes_per_number: int = 4
) -> dict[str, int]:
    """Bytes each part must read at least: its weights once; the scores, all keys and values."""
    if n_new < 1 or n_cached < 0:
        raise ValueError(f"n_new={n_new} must be at least 1 and n_cached={n_cached} at least 0")
    read = {name: n * bytes_per_number for name, n in component_params(config).items()}
    per_token = config.n_layers * layer_cache_numbers(config)
    read["attention scores"] = per_token * (n_cached + n_new) * bytes_per_number
    return read


def shares(parts: dict[str, float]) -> dict[str, float]:
    """Each part as a share of the sum, 0 to 1."""
    total = sum(parts.values())
    if total <= 0:
        raise ValueError(f"the parts must add up to more than 0, given {parts}")
    return {name: value / total for name, value in parts.items()}
