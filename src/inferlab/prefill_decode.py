"""What the two phases of a generation cost: operations, bytes read, and the time they bound.

A pass runs n_new tokens on top of n_cached ones: the prefill n_prompt on top of none, a decode
step one on top of all that came before. What it computes grows with n_new; what it reads does not.
Every bound is a lower bound: as if reading and computing overlapped perfectly, the whole bandwidth
and the whole peak were reached, and nothing else took time.

Source: Pope et al. 2022 (arXiv 2211.05102), section 2; Williams et al. 2009 (CACM 52(4)).
"""

from __future__ import annotations

from inferlab.config import ModelConfig
from inferlab.kv_cache import kv_cache_bytes
from inferlab.roofline import body_params, forward_flops


def phase_flops(config: ModelConfig, n_prompt: int, n_output: int) -> tuple[int, int]:
    """FLOPs of the prefill, and FLOPs of all decode steps together, for one request.

    forward_flops(config, n_new, n_cached) counts one pass of n_new tokens on top of n_cached ones.
    The prefill gives the first output token, so n_output tokens take n_output - 1 decode steps.
    Step i (i = 0, 1, …) runs one token on top of n_prompt + i.

    -> (prefill, decode), two whole numbers
    Raises ValueError if n_output is less than 1 (forward_flops does for an empty prompt).
    Example: 8B-style, 1,000 in, 1,001 out: (14,222,100,529,152, 15,796,011,008,000), nearly alike.
    """
    if n_output < 1:
        raise ValueError(f"n_output must be at least 1, given {n_output}")
    decode = sum(forward_flops(config, 1, n_prompt + i) for i in range(n_output - 1))
    return forward_flops(config, n_prompt, 0), decode


def pass_read_bytes(
    config: ModelConfig, n_cached: int = 0, n_sequences: int = 1, bytes_per_number: int = 2
) -> int:
    """Bytes that one pass must read: every weight once, and the keys and values that are kept.

    Weights: body_params(config) for the layers, and d_model * vocab_size for the head. All tokens
    of all sequences use the same ones. The embedding is a look-up of a few rows: leave it out.
    Keys and values: each of n_sequences sequences has its own, of n_cached tokens. One token keeps
    one key and one value of d_head numbers for each KV head and layer (kv_cache_bytes counts them).
    Weights and cache take bytes_per_number each. The number of new tokens is not asked: no matter
    how many the pass runs, it reads the same.

    Example: 8B-style, bf16: 15,009,316,864 bytes on top of nothing; 131,072 more for each token
    kept.
    """
    weights = body_params(config) + config.d_model * config.vocab_size
    cache = kv_cache_bytes(config, n_cached, n_sequences, bytes_per_number)
    return weights * bytes_per_number + cache


def pass_intensity(
    config: ModelConfig,
    n_new: int,
    n_cached: int = 0,
    n_sequences: int = 1,
    bytes_per_number: int = 2,
) -> float:
    """Arithmetic intensity of a pass: FLOPs for each byte that it reads.

    Each of n_sequences sequences runs n_new tokens on top of n_cached ones of its own:
    forward_flops counts the operations of one sequence, pass_read_bytes what all of them read.

    Example: 8B-style, bf16: 1 for a decode step on top of nothing, 1,930 for a prompt of 2,000.
    Source: Williams et al. 2009 (CACM 52(4)), section "The Roofline Model".
    """
    flops = n_sequences * forward_flops(config, n_new, n_cached)
    return flops / pass_read_bytes(config, n_cached, n_sequences, bytes_per_number)


def prefill_knee(
    config: ModelConfig,
    bandwidth_bytes_per_s: float,
    peak_flops_per_s: float,
    bytes_per_number: int = 2,
) -> int:
    """The shortest prompt whose prefill is bound by computing, not by reading the weights.

    Reading takes pass_read_bytes / bandwidth seconds, computing forward_flops / peak seconds. The
    answer is the smallest n_prompt for which computing takes at least as long as reading.

    Example: 8B-style, bf16, 3.35e12 bytes/s, 989.4e12 FLOP/s -> 316 tokens.
    """
    reading_s = pass_read_bytes(config, 0, 1, bytes_per_number) / bandwidth_bytes_per_s
    n_prompt = 1
    while forward_flops(config, n_prompt, 0) / peak_flops_per_s < reading_s:
        n_prompt += 1
    return n_prompt


def ttft_bound_s(
    config: ModelConfig,
    n_prompt: int,
    bandwidth_bytes_per_s: float,
    peak_flops_per_s: float,
    bytes_per_number: int = 2,
    waiting_s: float = 0.0,
) -> float:
    """The least time to the first token: waiting for a turn, then the prefill in one pass.

    The pass reads (pass_read_bytes) and computes (forward_flops) at the same time: it takes the
    longer of the two, not their sum. waiting_s: seconds before it may start.

    Example: 8B-style, bf16, 2,000 tokens, 3.35e12 bytes/s, 989.4e12 FLOP/s -> 0.02928 s.
    """
    reading_s = pass_read_bytes(config, 0, 1, bytes_per_number) / bandwidth_bytes_per_s
    computing_s = forward_flops(config, n_prompt, 0) / peak_flops_per_s
    return waiting_s + max(reading_s, computing_s)


def tpot_bound_s(
    config: ModelConfig,
    n_prompt: int,
    n_output: int,
    bandwidth_bytes_per_s: float,
    peak_flops_per_s: float,
    n_sequences: int = 1,
    bytes_per_number: int = 2,
) -> float | None:
    """The least time per output token: the mean over the n_output - 1 decode steps of a request.

    Step i (i = 0, 1, …) runs one token of each of n_sequences sequences, all equally far, on top of
    n_prompt + i kept tokens each. It takes the longer of reading (pass_read_bytes) and computing
    (n_sequences times forward_flops). Every user gets one token a step, so this is what each sees.

    -> seconds; None for n_output 1, where there is no step
    Raises ValueError if n_output is less than 1.
    Example: 8B-style, bf16, 2,000 in, 300 out, 3.35e12 bytes/s, 989.4e12 FLOP/s -> 0.004564 s.
    """
    if n_output < 1:
        raise ValueError(f"n_output must be at least 1, given {n_output}")
    if n_output == 1:
        return None
    total_s = 0.0
    for n_cached in range(n_prompt, n_prompt + n_output - 1):
        read = pass_read_bytes(config, n_cached, n_sequences, bytes_per_number)
        computed = n_sequences * forward_flops(config, 1, n_cached)
        total_s += max(read / bandwidth_bytes_per_s, computed / peak_flops_per_s)
    return total_s / (n_output - 1)


def end_to_end_s(ttft_s: float, tpot_s: float | None, n_output: int) -> float:
    """Seconds from the request's arrival to its last token.

    The first token comes after ttft_s, each further one tpot_s later. With one token there is no
    further one, whatever tpot_s is (None, where it comes from tpot_bound_s).

    Raises ValueError if n_output is less than 1, or more than 1 while tpot_s is None.
    Example: TTFT 0.2 s, TPOT 0.025 s, 300 tokens: 0.2 + 299 · 0.025 = 7.675 s.
    """
    if n_output == 1:
        return ttft_s
    if n_output < 1 or tpot_s is None:
        raise ValueError(f"n_output={n_output} must be 1, or more with a tpot_s; given {tpot_s}")
    return ttft_s + (n_output - 1) * tpot_s


def prefill_share(
    config: ModelConfig,
    n_prompt: int,
    n_output: int,
    bandwidth_bytes_per_s: float,
    peak_flops_per_s: float,
    bytes_per_number: int = 2,
) -> float:
    """The prefill's share of a request's seconds, 0 to 1: above 0.5 the prefill dominates.

    One user, no waiting. Compare seconds, not tokens: ttft_bound_s is the prefill, and
    end_to_end_s of it and tpot_bound_s is the whole. With one output token the share is 1.

    Example: 8B-style, bf16, 8,000 in, 50 out, 3.35e12 bytes/s, 989.4e12 FLOP/s -> 0.356: most of
    the tokens are read, yet writing takes longer.
    """
    device = (bandwidth_bytes_per_s, peak_flops_per_s)
    ttft_s = ttft_bound_s(config, n_prompt, *device, bytes_per_number)
    tpot_s = tpot_bound_s(config, n_prompt, n_output, *device, 1, bytes_per_number)
    return ttft_s / end_to_end_s(ttft_s, tpot_s, n_output)
