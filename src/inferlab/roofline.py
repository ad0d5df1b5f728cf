"""What a forward pass costs: floating-point operations, bytes moved, and the time they bound.

From one matrix product to a whole model: a multiply and an add count 2 FLOPs; a matrix in memory
is read once; a device does neither faster than its data sheet says.

Source: Williams et al. 2009 (CACM 52(4)), the roofline; Pope et al. 2022 (arXiv 2211.05102),
section 2, the forward pass.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from inferlab.config import ModelConfig
from inferlab.kv_cache import kv_cache_bytes
from inferlab.params import latent_attention_params

# ---- one matrix product ------------------------------------------------------------------------


def matmul_flops(n_rows: int, d_in: int, d_out: int) -> int:
    """FLOPs of the product x @ w, for x (n_rows, d_in) and w (d_in, d_out).

    Each of the n_rows * d_out results is a sum of d_in products. Count one multiply and one add
    for each of them, so 2 FLOPs.

    Example: (3, 4) @ (4, 5) has 15 results of 4 products each -> 120 FLOPs.
    """
    return 2 * n_rows * d_in * d_out


def matmul_bytes(
    n_rows: int,
    d_in: int,
    d_out: int,
    bytes_per_number: float = 2,
    bytes_per_weight: float | None = None,
) -> float:
    """Bytes that x @ w moves between memory and the processor, at the least.

    Everything crosses once: x (n_rows, d_in) and the weights w (d_in, d_out) are read, the result
    (n_rows, d_out) is written. bytes_per_number holds for x and for the result; bytes_per_weight
    for w, where None means bytes_per_number. Weights of 4 bits take 0.5 bytes each.

    Example: (3, 4) @ (4, 5), 2 bytes each: 12 + 20 + 15 numbers -> 94 bytes.
    With bytes_per_weight 1: 2 * 12 + 1 * 20 + 2 * 15 -> 74 bytes.
    """
    weight = bytes_per_number if bytes_per_weight is None else bytes_per_weight
    activations = n_rows * d_in + n_rows * d_out
    return activations * bytes_per_number + d_in * d_out * weight


def matmul_intensity(
    n_rows: int,
    d_in: int,
    d_out: int,
    bytes_per_number: float = 2,
    bytes_per_weight: float | None = None,
) -> float:
    """Arithmetic intensity of x @ w: FLOPs done for each byte moved.

    The arguments are those of matmul_bytes.

    Example: (3, 4) @ (4, 5), 2 bytes each: 120 FLOPs / 94 bytes -> 1.2766 FLOP/byte.
    Source: Williams et al. 2009 (CACM 52(4)), where it is called operational intensity.
    """
    moved = matmul_bytes(n_rows, d_in, d_out, bytes_per_number, bytes_per_weight)
    return matmul_flops(n_rows, d_in, d_out) / moved


# ---- a device ----------------------------------------------------------------------------------


def device_rates(device: Mapping[str, Any], precision: str) -> tuple[float, float]:
    """Memory bandwidth in bytes/s and peak arithmetic in FLOP/s, from a device's data sheet.

    device is a record of data/devices.json: device["bandwidth_gb_s"] is in GB/s (1e9 bytes/s),
    device["peak_dense_tflops"] maps a precision ("bf16", "fp16", "fp8", "int8_tops", "fp4") to
    the dense peak in TFLOP/s (1e12 FLOP/s), or to None where the device has no such units.

    -> (bandwidth_bytes_per_s, peak_flops_per_s)
    Example: 3350 GB/s and 989.4 TFLOP/s in bf16 -> (3.35e12, 9.894e14).
    Raises ValueError where the precision is not in the record, or None there.
    """
    peak = device["peak_dense_tflops"].get(precision)
    if peak is None:
        raise ValueError(
            f"{device['name']} has no peak for {precision!r}: choose another precision"
        )
    return device["bandwidth_gb_s"] * 1e9, peak * 1e12


def ridge_point(device: Mapping[str, Any], precision: str) -> float:
    """The arithmetic intensity, in FLOP/byte, at which a device's two limits meet.

    With less, waiting for memory takes longer than computing; with more, computing does.
    device and precision as in device_rates; the same ValueError where there is no such peak.

    Example: 3350 GB/s and 989.4 TFLOP/s -> 295.34 FLOP/byte.
    Source: Williams et al. 2009 (CACM 52(4)).
    """
    bandwidth_bytes_per_s, peak_flops_per_s = device_rates(device, precision)
    return peak_flops_per_s / bandwidth_bytes_per_s


def attainable_flops_per_s(
    intensity: float, bandwidth_bytes_per_s: float, peak_flops_per_s: float
) -> float:
    """The roofline: the most FLOP/s that work of this arithmetic intensity can reach.

    Memory brings bandwidth_bytes_per_s bytes a second, and each allows `intensity` FLOPs; no
    work runs faster than the arithmetic units.

    Example: at 1 FLOP/byte on 3e12 bytes/s and 1e15 FLOP/s -> 3e12 FLOP/s, 0.3 % of the peak.
    Source: Williams et al. 2009 (CACM 52(4)).
    """
    return min(peak_flops_per_s, intensity * bandwidth_bytes_per_s)


# ---- a forward pass ----------------------------------------------------------------------------


def body_params(config: ModelConfig) -> int:
    """Weights that multiply every token: projections and MLP of all layers.

    Left out: the embedding (a look-up), the head (needed for one position only), gains and biases.
    Of experts, those that one token takes are counted, and the router that chooses them.
    """
    if config.mla is None:
        attention = 2 * config.d_model * config.d_head * (config.n_heads + config.n_kv_heads)
    else:
        gains = config.mla.d_latent + (config.mla.d_query_latent or 0)
        attention = latent_attention_params(config, config.mla) - gains
    mlp = (3 if config.mlp_is_gated else 2) * config.d_model * config.d_ff  # gate, up, down
    taken = config.n_experts_per_token + config.n_shared_experts
    experts = 3 * config.d_model * config.d_expert * taken + config.d_model * config.n_experts
    n_moe_layers = sum(config.has_experts(layer) for layer in range(config.n_layers))
    return (
        config.n_layers * attention
        + (config.n_layers - n_moe_layers) * mlp
        + n_moe_layers * experts
    )


def token_flops(config: ModelConfig, n_keys: int) -> int:
    """FLOPs to run one token through the model, with its logits, when it sees n_keys keys.

    - Every weight of the body multiplies the token once: 2 FLOPs for each of body_params(config).
    - So does the head, a matrix of d_model * vocab_size weights. (The embedding is a look-up.)
    - In each layer and each query head, a key costs 2 * d_head FLOPs for its score, and its value
      2 * d_head more for the weighted sum.

    n_keys counts the token's own key. What else a layer does (lesson 02) is too small to count.

    Example: Llama-3-8B (32 layers, 32 query heads of 128), 1 key: 15,009,316,864 + 524,288.
    Raises ValueError if n_keys is below 1.
    Source: Kaplan et al. 2020 (arXiv 2001.08361), section 2.1, there without the last part.
    """
    if n_keys < 1:
        raise ValueError(f"n_keys={n_keys} must be at least 1: a token sees itself")
    weights = body_params(config) + config.d_model * config.vocab_size
    attention = 4 * config.n_layers * config.n_heads * config.d_head * n_keys
    return 2 * weights + attention


def forward_flops(config: ModelConfig, n_new: int, n_cached: int = 0) -> int:
    """FLOPs to run n_new tokens on top of n_cached ones, with logits for the last token only.

    The first new token sees n_cached + 1 keys (those kept, and its own), the next one more, the
    last n_cached + n_new. Each costs what token_flops says, but all except the last do without
    the head, 2 * d_model * vocab_size FLOPs: nobody needs the logits of a prompt's earlier tokens.

    Example: n_new 2, n_cached 5: tokens that see 6 and 7 keys, less the head once.
    Raises ValueError if n_new is below 1 or n_cached below 0.
    """
    if n_new < 1 or n_cached < 0:
        raise ValueError(f"n_new={n_new} must be at least 1 and n_cached={n_cached} at least 0")
    first, last = token_flops(config, n_cached + 1), token_flops(config, n_cached + n_new)
    head = 2 * config.d_model * config.vocab_size
    return n_new * (first + last) // 2 - (n_new - 1) * head  # token_flops grows by equal steps


def step_bytes(
    config: ModelConfig,
    n_cached: int,
    n_sequences: int,
    bytes_per_number: int,
    bytes_per_weight: float | None = None,
) -> float:
    """Bytes that one pass reads from memory, for n_sequences sequences of n_cached tokens each.

    - The weights once, however many sequences there are: the body (body_params) and the head
      (d_model * vocab_size), at bytes_per_weight each; None means bytes_per_number.
    - The keys and values that are kept of every sequence, at bytes_per_number each:
      kv_cache_bytes(config, n_tokens, n_sequences, bytes_per_number) counts them.

    A prefill has n_cached = 0 and reads the weights alone. What is written is left out.

    Example: Llama-3-8B in bf16, 2 sequences of 1,000 tokens: 15,009,316,864 bytes of weights and
    262,144,000 of keys and values -> 15,271,460,864.
    """
    per_weight = bytes_per_number if bytes_per_weight is None else bytes_per_weight
    weights = body_params(config) + config.d_model * config.vocab_size
    cache = kv_cache_bytes(config, n_cached, n_sequences, bytes_per_number)
    return weights * per_weight + cache


def step_bound_s(
    config: ModelConfig,
    n_new: int,
    n_cached: int,
    bandwidth_bytes_per_s: float,
    peak_flops_per_s: float,
    bytes_per_number: int = 4,
    n_sequences: int = 1,
    bytes_per_weight: float | None = None,
) -> float:
    """The least seconds for one pass: the larger of reading and computing.

    Each of n_sequences sequences runs n_new tokens on top of its n_cached ones: a prefill has
    n_cached 0, a decode step n_new 1. Reading is step_bytes at the given bandwidth; computing is
    forward_flops, once for each sequence, at the given peak. It is a lower bound, as if the two
    overlapped perfectly and nothing else took time.

    Example: Llama-3-8B in bf16 on 3.35e12 bytes/s and 9.894e14 FLOP/s, one decode step on 1,000
    tokens: reading 4.519 ms, computing 0.016 ms -> 0.004519 s.
    """
    read_bytes = step_bytes(config, n_cached, n_sequences, bytes_per_number, bytes_per_weight)
    flops = n_sequences * forward_flops(config, n_new, n_cached)
    return max(read_bytes / bandwidth_bytes_per_s, flops / peak_flops_per_s)


def compute_bound_batch(
    config: ModelConfig,
    n_cached: int,
    bandwidth_bytes_per_s: float,
    peak_flops_per_s: float,
    bytes_per_number: int,
    bytes_per_weight: float | None = None,
) -> int | None:
    """The fewest sequences for which a decode step computes at least as long as it reads.

    The weights are read once. Each sequence of n_cached tokens adds the computing of one token,
    forward_flops(config, 1, n_cached), and the reading of its own cache. Where the reading that
    it adds takes as long as the computing, or longer, no batch is large enough: the answer is None.

    Example: Llama-3-8B in bf16 on 3.35e12 bytes/s and 9.894e14 FLOP/s: 296 sequences at 0 tokens,
    602 at 200, and None from 394 tokens on.
    """
    one_computes_s = forward_flops(config, 1, n_cached) / peak_flops_per_s
    weights = step_bytes(config, 0, 1, bytes_per_number, bytes_per_weight)
    with_one = step_bytes(config, n_cached, 1, bytes_per_number, bytes_per_weight)
    one_reads_s = (with_one - weights) / bandwidth_bytes_per_s
    if one_reads_s >= one_computes_s:
        return None
    return math.ceil(weights / bandwidth_bytes_per_s / (one_computes_s - one_reads_s))
