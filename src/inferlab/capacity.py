"""Sizing a deployment: what fits on how many devices, how fast it can be, for how many users.

A deployment is one copy of a model on n_devices equal devices that share every layer (tensor
parallelism). Times are bounds: reading and computing overlap within a pass, and only `efficiency`
of the data sheet's rates is reached.

Source: Pope et al. 2022 (arXiv 2211.05102), section 3; Shoeybi et al. 2019 (arXiv 1909.08053),
section 3; Agrawal et al. 2023 (arXiv 2308.16369), prefill beside decode.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from inferlab.cache_sizes import cache_bytes, cache_bytes_per_device
from inferlab.config import ModelConfig
from inferlab.moe_sizes import touched_experts
from inferlab.roofline import body_params, device_rates, forward_flops


@dataclass(frozen=True)
class Deployment:
    """One copy of a model on n_devices equal devices, which share every layer.

    config: the model's sizes. Of one device: memory_bytes, bandwidth_bytes_per_s and
    peak_flops_per_s; overhead_bytes for activations, buffers and the runtime; headroom, the share
    of memory_bytes that stays free. bytes_per_weight and bytes_per_number (of the cache): 2 for
    bf16, 1 for FP8. efficiency: the share of bandwidth and peak that is reached.
    """

    config: ModelConfig = field(repr=False)
    n_devices: int
    memory_bytes: float
    bandwidth_bytes_per_s: float
    peak_flops_per_s: float
    bytes_per_weight: float = 2
    bytes_per_number: int = 2
    overhead_bytes: float = 0.0
    headroom: float = 0.0
    efficiency: float = 1.0

    def __post_init__(self) -> None:
        if self.n_devices < 1:
            raise ValueError(f"n_devices={self.n_devices} must be at least 1")
        for name in ("memory_bytes", "bandwidth_bytes_per_s", "peak_flops_per_s"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name}={getattr(self, name)!r} must be a positive number")
        if not 0 <= self.headroom < 1 or not 0 < self.efficiency <= 1:
            raise ValueError(
                f"headroom={self.headroom} must be in [0, 1) and "
                f"efficiency={self.efficiency} in (0, 1]"
            )

    @classmethod
    def on(
        cls,
        device: Mapping[str, Any],
        config: ModelConfig,
        n_devices: int = 1,
        precision: str = "bf16",
        **more: Any,
    ) -> Deployment:
        """On n_devices of a record of data/devices.json, computing in `precision`.

        Memory is the record's memory_gb times 1e9. more: the fields from bytes_per_weight on.
        """
        bandwidth, peak = device_rates(device, precision)
        return cls(config, n_devices, device["memory_gb"] * 1e9, bandwidth, peak, **more)


# ---- what fits ---------------------------------------------------------------------------------


def tensor_parallel_sizes(config: ModelConfig, largest: int = 64) -> list[int]:
    """The numbers of devices, 1 to largest, that can share every layer of this model evenly.

    Each device takes n_heads / n_devices whole query heads, so n_devices must divide n_heads. With
    up to n_kv_heads devices each takes whole KV heads: n_devices must divide n_kv_heads. With more,
    every KV head is held by equally many devices: n_devices must be a multiple of n_kv_heads.

    Example: 64 query heads, 8 KV heads, largest 16 -> [1, 2, 4, 8, 16]. Not 3: three devices
    cannot share 64 heads. 28 query heads, 4 KV heads, largest 16 -> [1, 2, 4].
    Source: Shoeybi et al. 2019 (arXiv 1909.08053), section 3.
    """
    return [
        n
        for n in range(1, largest + 1)
        if config.n_heads % n == 0 and (config.n_kv_heads % n == 0 or n % config.n_kv_heads == 0)
    ]


def cache_room_bytes(deployment: Deployment) -> float:
    """Bytes that each device has left for keys and values.

    Of a device's memory_bytes, the share `headroom` stays free, overhead_bytes go to activations
    and buffers, and an equal part of the weights lies there: all config.n_params of them at
    bytes_per_weight, over n_devices. Of a mixture of experts that is every expert, not only those
    that one token takes. Where the weights do not fit, the room is 0.0.

    deployment has config, n_devices, memory_bytes, bytes_per_weight, overhead_bytes, headroom.
    Example: Llama-3-70B (70,553,706,496 weights) in bf16 on 4 devices of 80 GB, 7.5 GB of overhead
    each, no headroom: 80 - 7.5 - 35.28 -> 37.22 GB.
    """
    weights = deployment.config.n_params * deployment.bytes_per_weight / deployment.n_devices
    usable = deployment.memory_bytes * (1 - deployment.headroom) - deployment.overhead_bytes
    return max(0.0, usable - weights)


def sequences_that_fit(deployment: Deployment, n_tokens: int, page_size: int = 16) -> int:
    """How many sequences of n_tokens tokens the devices hold at once.

    Each sequence takes whole pages of page_size tokens: its last page may be partly empty. What a
    sequence takes of one device is cache_bytes_per_device(config, n_tokens, n_devices, 1,
    bytes_per_number): KV heads are split over the devices as far as they go, MLA's latent is not
    split. Divide cache_room_bytes by it. A sequence that fits by half does not fit.

    Example: the deployment of cache_room_bytes, 1,524 tokens: 298 with pages of 1 token, 295 with
    pages of 16 (96 pages, 1,536 tokens).
    """
    held = math.ceil(n_tokens / page_size) * page_size
    one = cache_bytes_per_device(
        deployment.config, held, deployment.n_devices, 1, deployment.bytes_per_number
    )
    return int(cache_room_bytes(deployment) // one)


def max_context(deployment: Deployment, n_sequences: int, limit: int = 1_000_000) -> int:
    """The longest context, in tokens, that n_sequences sequences can have at the same time.

    The largest n_tokens from 0 to limit for which cache_bytes_per_device(config, n_tokens,
    n_devices, n_sequences, bytes_per_number) is at most cache_room_bytes. Layers with a sliding
    window stop growing, so dividing by the bytes of one token is not enough; more tokens never
    take less. No pages here.

    Example: Llama-3-8B (8,030,261,248 weights) in bf16, one 80 GB device, 10 % headroom: 1 sequence
    -> 426,784 tokens, 16 -> 26,674 each. A model whose layers all have a window: the limit.
    """
    room = cache_room_bytes(deployment)

    def fits(n_tokens: int) -> bool:
        held = cache_bytes_per_device(
            deployment.config,
            n_tokens,
            deployment.n_devices,
            n_sequences,
            deployment.bytes_per_number,
        )
        return held <= room

    low, high = 0, limit + 1  # low fits, high does not
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def devices_needed(
    deployment: Deployment, n_tokens: int, n_sequences: int, largest: int = 64
) -> dict[str, int | None]:
    """How many devices n_sequences sequences of n_tokens tokens need, by four readings of "fits".

    deployment.n_devices is not looked at; it is what is asked. Pages have one token.
    - "weights": the fewest whose memory_bytes together hold all weights
    - "with_cache": the weights and cache_bytes(config, n_tokens, n_sequences, bytes_per_number)
    - "with_headroom": the same two, where a device offers memory_bytes * (1 - headroom) -
      overhead_bytes; None where that is nothing
    - "usable": the fewest of tensor_parallel_sizes(config, largest) with which n_sequences fit:
      sequences_that_fit of a deployment with that many; None where no number will do
    dataclasses.replace(deployment, n_devices=n) gives the same deployment on n devices.

    Example: Llama-3-70B in bf16, 4 sequences of 32,768 tokens, 80 GB, 10 % headroom:
    {"weights": 2, "with_cache": 3, "with_headroom": 3, "usable": 4}.
    """
    config, memory = deployment.config, deployment.memory_bytes
    weights = config.n_params * deployment.bytes_per_weight
    both = weights + cache_bytes(config, n_tokens, n_sequences, deployment.bytes_per_number)
    offered = memory * (1 - deployment.headroom) - deployment.overhead_bytes
    fitting = (
        n
        for n in tensor_parallel_sizes(config, largest)
        if sequences_that_fit(replace(deployment, n_devices=n), n_tokens, 1) >= n_sequences
    )
    return {
        "weights": math.ceil(weights / memory),
        "with_cache": math.ceil(both / memory),
        "with_headroom": math.ceil(both / offered) if offered > 0 else None,
        "usable": next(fitting, None),
    }


# ---- how fast ----------------------------------------------------------------------------------


def weights_read(config: ModelConfig, n_tokens: int) -> float:
    """How many weights a pass over n_tokens tokens reads: the layers and the head, each once.

    Of a mixture of experts, those that somebody takes (touched_experts: routing is taken as even
    and independent). The embedding is a look-up.
    """
    taken_by_one = body_params(config) + config.d_model * config.vocab_size
    if not config.n_experts:
        return taken_by_one
    touched = touched_experts(config.n_experts, config.n_experts_per_token, n_tokens)
    n_moe_layers = sum(map(config.has_experts, range(config.n_layers)))
    more = touched - config.n_experts_per_token
    return taken_by_one + n_moe_layers * 3 * config.d_model * config.d_expert * more


def pass_seconds(
    deployment: Deployment, n_new: int, n_cached: int, n_sequences: int = 1
) -> tuple[float, float]:
    """(reading_s, computing_s): the least seconds that each device reads and computes in one pass.

    Each of n_sequences sequences runs n_new tokens on top of its n_cached ones. A decode step has
    n_new 1; the prefill of a prompt has n_cached 0.
    - Reading: an equal part of weights_read(config, n_sequences * n_new) weights at
      bytes_per_weight, and the device's cache, cache_bytes_per_device(config, n_cached, n_devices,
      n_sequences, bytes_per_number), at efficiency * bandwidth_bytes_per_s.
    - Computing: an equal part of forward_flops(config, n_new, n_cached) for each sequence, at
      efficiency * peak_flops_per_s.
    The pass takes the longer of the two. What the devices tell each other comes on top of it.

    Example: Llama-3-70B, bf16, 4 devices of 3.35e12 bytes/s and 9.894e14 FLOP/s, a decode step of
    298 sequences at 1,524 tokens: (0.02148, 0.01077). The prefill of 1,024: (0.01037, 0.03577).
    """
    config, n = deployment.config, deployment.n_devices
    weights = weights_read(config, n_sequences * n_new) * deployment.bytes_per_weight / n
    cache = cache_bytes_per_device(config, n_cached, n, n_sequences, deployment.bytes_per_number)
    flops = n_sequences * forward_flops(config, n_new, n_cached) / n
    return (
        (weights + cache) / (deployment.efficiency * deployment.bandwidth_bytes_per_s),
        flops / (deployment.efficiency * deployment.peak_flops_per_s),
    )


def compute_bound_from(deployment: Deployment, n_tokens: int, largest: int = 10**9) -> int | None:
    """The fewest sequences of n_tokens tokens whose decode step computes as long as it reads.

    None where not even `largest` of them do. It is cost.compute_bound_batch for every model: with
    sliding windows, with latents, and with experts of which more sequences read more.
    """

    def computes(n_sequences: int) -> bool:
        reading_s, computing_s = pass_seconds(deployment, 1, n_tokens, n_sequences)
        return computing_s >= reading_s

    if not computes(largest):
        return None
    # Computing grows evenly with every sequence, reading more and more slowly: they meet once.
    low, high = 0, largest  # low does not compute as long as it reads, high does
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if computes(middle) else (middle, high)
    return high


def all_reduce_seconds(
    deployment: Deployment, n_tokens: int, link_bytes_per_s: float, bytes_per_activation: int = 2
) -> float:
    """The seconds that the devices of a deployment talk in one pass over n_tokens tokens.

    Each layer ends its attention, and again its MLP, with a sum over all devices: an all-reduce of
    n_tokens rows of d_model numbers of bytes_per_activation each. In a ring of N devices, each
    sends 2 * (N - 1) / N of those bytes, at link_bytes_per_s (one direction). One device sends
    nothing. Efficiency is left out.

    Example: Llama-3-70B (80 layers, d_model 8,192), 4 devices, 310 tokens, 450e9 bytes/s: 160
    all-reduces of 5.08 MB, of which each device sends 1.5 times as much -> 0.00271 s.
    Source: Shoeybi et al. 2019 (arXiv 1909.08053), section 3; Pope et al. 2022, section 3.1.
    """
    n = deployment.n_devices
    row_bytes = deployment.config.d_model * bytes_per_activation
    n_sums = 2 * deployment.config.n_layers
    return n_sums * n_tokens * row_bytes * 2 * (n - 1) / n / link_bytes_per_s


def steady_tpot_s(
    deployment: Deployment, n_prompt: int, n_output: int, n_sequences: int, overlap: bool = False
) -> float:
    """Seconds for each output token when n_sequences users are served and new ones keep coming.

    A request takes n_output - 1 decode steps and one prefill of n_prompt tokens. Whoever leaves is
    replaced, so in n_output - 1 steps there are n_sequences prefills: n_sequences / (n_output - 1)
    of them for each step. On average a user has n_prompt + n_output // 2 tokens cached.
    pass_seconds gives (reading, computing) of the step and of the prefill.
    - overlap False: the phases take turns. A step's time (the longer of its two), and its share of
      prefills (each the longer of its two).
    - overlap True: the prompts ride along in chunks, on weights that the steps read anyway. The
      longer of: the step's reading; its computing and its share of the prefills' computing.

    Example: the 298 sequences of pass_seconds, 1,024 in, 500 out: 0.04102; with overlap 0.03208.
    Raises ValueError if n_output is below 2.
    Source: Agrawal et al. 2023 (arXiv 2308.16369), section 4.
    """
    if n_output < 2:
        raise ValueError(f"n_output={n_output} must be at least 2: one token has no decode step")
    step = pass_seconds(deployment, 1, n_prompt + n_output // 2, n_sequences)
    prefill = pass_seconds(deployment, n_prompt, 0)
    prefills_per_step = n_sequences / (n_output - 1)
    if overlap:
        return max(step[0], step[1] + prefills_per_step * prefill[1])
    return max(step) + prefills_per_step * max(prefill)


def users_within(
    deployment: Deployment,
    n_prompt: int,
    n_output: int,
    tpot_limit_s: float,
    overlap: bool = False,
) -> int:
    """The most users at once: they fit into memory, and each gets a token every tpot_limit_s.

    The largest n_sequences for which steady_tpot_s(deployment, n_prompt, n_output, n_sequences,
    overlap) is at most tpot_limit_s, and no more than sequences_that_fit at n_prompt + n_output
    tokens (pages of 16). 0 where not even one user can be served. More users never get their
    tokens sooner.

    Example: Llama-3-70B on 4 H100, 7.5 GB of overhead each, efficiency 0.7, 1,024 in, 500 out,
    0.040 s: 171; with overlap 260; 295 fit.
    """
    fits = sequences_that_fit(deployment, n_prompt + n_output)
    low, high = 0, fits + 1  # low is served, high is not
    while high - low > 1:
        middle = (low + high) // 2
        tpot_s = steady_tpot_s(deployment, n_prompt, n_output, middle, overlap)
        low, high = (middle, high) if tpot_s <= tpot_limit_s else (low, middle)
    return low
