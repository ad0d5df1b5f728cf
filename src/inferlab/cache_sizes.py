"""What a model's cache weighs, whatever its attention: MHA, GQA, MQA, MLA, sliding windows.

kv_cache.py has the formula of the plain case, 2 * n_layers * n_kv_heads * d_head. Here is the
general one, the share of it that each of several devices holds, and how much arithmetic a decode
step does on every byte that it reads.

Source: Ainslie et al. 2023 (arXiv 2305.13245); DeepSeek-AI 2024 (arXiv 2405.04434), section 2.1.4;
Jiang et al. 2023 (arXiv 2310.06825), section 2; Gemma Team 2025 (arXiv 2503.19786), section 2.
"""

from __future__ import annotations

from inferlab.config import ModelConfig


def layer_cache_numbers(config: ModelConfig) -> int:
    """How many numbers one token leaves in the cache of one layer.

    MHA, GQA and MQA keep a key and a value, of d_head numbers each, for every KV head. MLA (where
    config.mla is not None) keeps one latent of config.mla.d_latent numbers and one rotated key of
    config.mla.d_rope numbers, for all heads together; there is nothing else.

    Example: 8 KV heads of 128 -> 2,048. DeepSeek-V3, d_latent 512 and d_rope 64 -> 576.
    """
    if config.mla is not None:
        return config.mla.d_latent + config.mla.d_rope
    return 2 * config.n_kv_heads * config.d_head  # 2: K and V


def grow_and_cap_bytes(config: ModelConfig, bytes_per_number: int = 2) -> tuple[int, int]:
    """What the cache of one sequence grows by with every token, and where its windows stop.

    A layer with a sliding window keeps the last config.sliding_window tokens and no more. The
    model has config.n_layers layers; config.n_window_layers of them have the window (None: all of
    them); where config.sliding_window is None, no layer has one. Windows never go with MLA.

    -> (bytes that each further token adds in the layers without a window,
        bytes that all layers with a window hold together, once their windows are full)
    Example: 24 layers, 12 of them with a window of 128 tokens, 8 KV heads of 64 numbers, 2 bytes
    each: a token takes 2,048 bytes a layer -> (24,576, 3,145,728).
    """
    layer_bytes = layer_cache_numbers(config) * bytes_per_number
    if config.sliding_window is None:
        return config.n_layers * layer_bytes, 0
    n_window = config.n_layers if config.n_window_layers is None else config.n_window_layers
    growing_bytes = (config.n_layers - n_window) * layer_bytes
    return growing_bytes, n_window * config.sliding_window * layer_bytes


def cache_bytes(
    config: ModelConfig, n_tokens: int, n_sequences: int = 1, bytes_per_number: int = 2
) -> int:
    """Bytes of the cache of n_sequences sequences of n_tokens tokens each, for any attention.

    Each sequence has its own windows: a layer with one holds min(n_tokens, config.sliding_window)
    tokens of it, every other layer all n_tokens.

    Example: the model of grow_and_cap_bytes at 100 tokens -> 4,915,200; at 1,000 tokens
    -> 27,721,728, of which 3,145,728 are in its full windows.
    """
    growing_bytes, cap_bytes = grow_and_cap_bytes(config, bytes_per_number)
    one = growing_bytes * n_tokens
    if config.sliding_window is not None:
        one += cap_bytes // config.sliding_window * min(n_tokens, config.sliding_window)
    return n_sequences * one


def cache_bytes_per_device(
    config: ModelConfig,
    n_tokens: int,
    n_devices: int,
    n_sequences: int = 1,
    bytes_per_number: int = 2,
) -> int:
    """Bytes of the cache on each of n_devices devices that share the heads (tensor parallelism).

    Query heads are split evenly, neighbours together, and take along the KV heads that they read.
    A KV head cannot be cut: with more devices than KV heads, each device holds one whole head, so
    that some hold the same. MLA's latent is read by every head, so every device holds all of it.

    Example: 8 KV heads on 4 devices: a quarter each; on 16 devices: an eighth each, twice in all.
    Raises ValueError if n_heads is no multiple of n_devices; without MLA also if neither of
    n_kv_heads and n_devices is a multiple of the other.
    """
    if config.n_heads % n_devices:
        raise ValueError(f"n_heads={config.n_heads} must be a multiple of n_devices={n_devices}")
    whole = cache_bytes(config, n_tokens, n_sequences, bytes_per_number)
    if config.mla is not None:
        return whole
    few, many = sorted((config.n_kv_heads, n_devices))
    if many % few:
        raise ValueError(f"{n_devices} devices cannot share n_kv_heads={config.n_kv_heads} evenly")
    return whole // config.n_kv_heads * max(1, config.n_kv_heads // n_devices)


def decode_attention_intensity(config: ModelConfig, bytes_per_number: int = 2) -> float:
    """FLOPs that attention does on each byte of cache it reads, in a decode step.

    Count what one cached token costs in one layer; a multiply and an add are 2 FLOPs. In each
    query head: a score, which is a dot product, and adding the weighted value to the output.
    Without MLA both work on d_head numbers. MLA in the absorbed form scores on d_latent + d_rope
    numbers and mixes d_latent. Divide by the bytes that the token keeps in that layer, each read
    once for all heads. The softmax and the projections are left out.

    Example: 32 query heads, 8 KV heads of 128, bf16 -> 4.0. DeepSeek-V3, bf16 -> 241.8.
    """
    if config.mla is None:
        flops = 4 * config.n_heads * config.d_head
    else:
        flops = 2 * config.n_heads * (2 * config.mla.d_latent + config.mla.d_rope)
    return flops / (layer_cache_numbers(config) * bytes_per_number)
