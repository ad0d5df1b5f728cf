"""Lesson 05: the cache on each of several devices, and the arithmetic done on its bytes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from grader.checks.gqa.lesson import LESSON
from grader.checks.gqa.sizes import (
    EIGHT_B,
    FALCON,
    GPT_OSS,
    QWEN,
    V2_LITE,
    V3,
    draw_both,
    draw_mla,
    drive_each,
)
from grader.judging.exercise import Exercise, Inputs, given
from inferlab.cache_sizes import (
    cache_bytes,
    cache_bytes_per_device,
    decode_attention_intensity,
    layer_cache_numbers,
)
from inferlab.config import ModelConfig
from inferlab.data import model_preset

# ---- cache_bytes_per_device --------------------------------------------------------------------

QWEN_7B = model_preset("qwen2.5-7b")


def _plain(n_heads: int, n_kv_heads: int, **windows: Any) -> ModelConfig:
    return ModelConfig(24, 2048, n_heads, n_kv_heads, 96, 8192, 32_000, **windows)


def _draw_shared(rng: np.random.Generator) -> Inputs:
    """Fewer devices than KV heads, more, and MLA."""
    n_kv_heads = int(rng.choice([2, 3]))
    windows = {"sliding_window": 200, "n_window_layers": 7}
    more = n_kv_heads * int(rng.choice([2, 4]))
    models = {
        "few devices": {"config": _plain(48, int(rng.choice([8, 16]))), "n_devices": 4},
        "many devices": {"config": _plain(48, n_kv_heads, **windows), "n_devices": more},
        "MLA": {"config": draw_mla(rng), "n_devices": int(rng.choice([2, 4]))},
    }
    sizes = {"n_tokens": int(rng.integers(100, 900)), "n_sequences": int(rng.integers(2, 9))}
    return {"models": models, **sizes, "bytes_per_number": int(rng.choice([1, 4]))}


def _shared(
    plain: Callable[[int, int, int], Any] | None = None,
    mla: Callable[[int, ModelConfig, int], Any] | None = None,
    refuse: Callable[[ModelConfig, int], bool] | None = None,
) -> Callable:
    """Another share of the whole cache: plain(whole, n_kv_heads, n_devices), or under MLA."""

    def answer(config, n_tokens, n_devices, n_sequences=1, bytes_per_number=2):
        if (refuse or _uneven)(config, n_devices):
            raise ValueError("cannot be shared evenly")
        whole = cache_bytes(config, n_tokens, n_sequences, bytes_per_number)
        if config.mla is not None:
            return mla(whole, config, n_devices) if mla else whole
        n = config.n_kv_heads
        return plain(whole, n, n_devices) if plain else whole // n * max(1, n // n_devices)

    return answer


def _heads_uneven(config: ModelConfig, n_devices: int) -> bool:
    return config.n_heads % n_devices != 0


def _kv_uneven(config: ModelConfig, n_devices: int) -> bool:
    n = config.n_kv_heads
    return config.mla is None and n % n_devices != 0 and n_devices % n != 0


def _uneven(config: ModelConfig, n_devices: int) -> bool:
    return _heads_uneven(config, n_devices) or _kv_uneven(config, n_devices)


def _dealt_out(config, n_tokens, n_devices, n_sequences=1, bytes_per_number=2):
    """Deal query heads to devices and count the KV heads that device 0 reads."""
    whole = cache_bytes(config, n_tokens, n_sequences, bytes_per_number)
    if _uneven(config, n_devices):
        raise ValueError("cannot be shared evenly")
    if config.mla is not None:
        return whole
    n_sharing = config.n_heads // config.n_kv_heads
    heads_here = {h // n_sharing for h in range(config.n_heads // n_devices)}
    return len(heads_here) * whole // config.n_kv_heads


def _shared_unwindowed(config, n_tokens, n_devices, n_sequences=1, bytes_per_number=2):
    everything = replace(config, sliding_window=None, n_window_layers=None)
    return cache_bytes_per_device(everything, n_tokens, n_devices, n_sequences, bytes_per_number)


def _sequences_dealt_out(config, n_tokens, n_devices, n_sequences=1, bytes_per_number=2):
    sizes = config, n_tokens, n_devices, n_sequences, bytes_per_number
    return cache_bytes_per_device(*sizes) // n_devices


PER_DEVICE = Exercise(
    id="cache_bytes_per_device",
    reference=cache_bytes_per_device,
    lesson=LESSON,
    points=2,
    minutes=10,
    difficulty=2,
    uses=("cache_bytes",),
    hints=(
        "How many KV heads does one device hold? Never less than one, and never a part of one. "
        "MLA has no KV heads to deal out.",
        "Refuse first: n_heads % n_devices, and without MLA also two numbers of which neither "
        "divides the other. Then take cache_bytes of the whole model.",
        "MLA: the whole. Else whole // n_kv_heads is one head's share, and a device holds "
        "max(1, n_kv_heads // n_devices) of them.",
    ),
    cases=(
        given("8B-style on 4 devices", config=EIGHT_B, n_tokens=8192, n_devices=4),
        given("8B-style on 16 devices: 8 KV heads", config=EIGHT_B, n_tokens=8192, n_devices=16),
        given("gpt-oss-20b on 8 devices", config=GPT_OSS, n_tokens=1000, n_devices=8),
        given("DeepSeek-V3 on 8 devices: MLA", config=V3, n_tokens=1000, n_devices=8),
        given("one device", config=QWEN, n_tokens=500, n_devices=1, n_sequences=3),
        given("28 query heads on 8 devices", config=QWEN_7B, n_tokens=1000, n_devices=8),
        given("16 query heads of MLA on 3 devices", config=V2_LITE, n_tokens=1000, n_devices=3),
        given(
            "48 query heads, 8 KV heads on 3 devices",
            config=_plain(48, 8),
            n_tokens=1000,
            n_devices=3,
        ),
        given(
            "48 query heads, 8 KV heads on 12 devices",
            config=_plain(48, 8),
            n_tokens=1000,
            n_devices=12,
        ),
    ),
    draw=_draw_shared,
    drive=drive_each,
    wrong={
        "divided by n_devices, however many: with more devices than KV heads they are copied": (
            _shared(lambda whole, n, k: whole // k)
        ),
        "divided by n_devices under MLA, too: every device holds the whole latent": _shared(
            mla=lambda whole, c, k: whole // k
        ),
        "divided by n_devices everywhere: a KV head cannot be cut, nor a latent shared out": (
            _shared(lambda whole, n, k: whole // k, lambda whole, c, k: whole // k)
        ),
        "nothing where there are more devices than KV heads: each device holds one whole head": (
            _shared(lambda whole, n, k: whole // n * (n // k))
        ),
        "nothing is divided: each device holds only the heads that it reads": _shared(
            lambda whole, n, k: whole
        ),
        "all KV heads on each device once there are more devices: each needs a single one": _shared(
            lambda whole, n, k: whole // k if k <= n else whole
        ),
        "always one KV head a device: with few devices each holds several": _shared(
            lambda whole, n, k: whole // n
        ),
        "the sequences are dealt out as well: a device holds its heads of all of them": (
            _sequences_dealt_out
        ),
        "windows at full length: start from cache_bytes, which knows them": _shared_unwindowed,
        "MLA's latent is divided by n_kv_heads: it has no heads": _shared(
            mla=lambda whole, c, k: whole // c.n_kv_heads
        ),
        "all devices together: the bytes of one are asked": _shared(
            lambda whole, n, k: whole // n * max(1, n // k) * k, lambda whole, c, k: whole * k
        ),
        "query heads that do not divide evenly are accepted: raise ValueError": _shared(
            refuse=_kv_uneven
        ),
        "KV heads that do not divide evenly are accepted: raise ValueError": _shared(
            refuse=_heads_uneven
        ),
        "nothing is refused: heads that do not divide evenly raise": _shared(
            lambda whole, n, k: whole // n * max(1, n // k), refuse=lambda c, k: False
        ),
        "more devices than KV heads are refused: allowed where they are a multiple": _shared(
            refuse=lambda c, k: _heads_uneven(c, k) or (c.mla is None and c.n_kv_heads % k != 0)
        ),
        "a float: // gives whole bytes": _shared(
            lambda whole, n, k: whole / min(n, k), lambda whole, c, k: float(whole)
        ),
    },
    right={
        "query heads dealt out, KV heads counted": _dealt_out,
        "divided by the smaller of both": _shared(lambda whole, n, k: whole // min(n, k)),
        "rounded up": _shared(lambda whole, n, k: whole // n * -(-n // k)),
    },
)

# ---- decode_attention_intensity ----------------------------------------------------------------


def _intensity(
    plain: Callable[[ModelConfig], float] | None = None,
    mla: Callable[[Any, ModelConfig], float] | None = None,
    bytes_of: Callable[[int], float] = lambda b: b,
) -> Callable:
    """Another count of FLOPs for one cached token, or of the bytes of a number."""

    def answer(config, bytes_per_number=2):
        if config.mla is None:
            flops = plain(config) if plain else 4 * config.n_heads * config.d_head
        else:
            w = config.mla
            flops = 2 * config.n_heads * (2 * w.d_latent + w.d_rope)
            flops = mla(w, config) if mla else flops
        return flops / (layer_cache_numbers(config) * bytes_of(bytes_per_number))

    return answer


def _counted(config, bytes_per_number=2):
    """Multiplications and additions of one token in one layer, one by one."""
    flops = 0
    for _ in range(config.n_heads):
        if config.mla is None:
            scored, mixed = config.d_head, config.d_head
        else:
            scored, mixed = config.mla.d_latent + config.mla.d_rope, config.mla.d_latent
        flops += 2 * scored + 2 * mixed
    return flops / bytes_per_number / layer_cache_numbers(config)


def _from_groups(config, bytes_per_number=2):
    if config.mla is not None:
        return _counted(config, bytes_per_number)
    return 2 * (config.n_heads // config.n_kv_heads) / bytes_per_number


INTENSITY = Exercise(
    id="decode_attention_intensity",
    reference=decode_attention_intensity,
    lesson=LESSON,
    points=2,
    minutes=10,
    difficulty=3,
    uses=("layer_cache_numbers",),
    hints=(
        "Take one cached token in one layer. Which query heads work on it, and with how many "
        "multiply-adds each? Then: how many bytes does it occupy?",
        "A query head does 2 * d_head FLOPs for the score and 2 * d_head for its share of the "
        "output. All n_heads of them do, whatever the number of KV heads.",
        "4 * n_heads * d_head, or 2 * n_heads * (2 * d_latent + d_rope) under MLA; divided by "
        "layer_cache_numbers(config) * bytes_per_number.",
    ),
    cases=(
        given("8B-style, bf16", config=EIGHT_B),
        given("Falcon-7B: 71 query heads on one KV head", config=FALCON),
        given("DeepSeek-V3, bf16", config=V3),
        given("DeepSeek-V2-Lite, float32", config=V2_LITE, bytes_per_number=4),
        given("gpt-oss-20b, 8-bit cache", config=GPT_OSS, bytes_per_number=1),
    ),
    draw=lambda rng: {**draw_both(rng), "bytes_per_number": int(rng.choice([4, 8]))},
    drive=drive_each,
    wrong={
        "n_kv_heads do the work: every query head scores and mixes, n_heads of them": _intensity(
            lambda c: 4 * c.n_kv_heads * c.d_head
        ),
        "only the scores are counted: mixing the values is as much again": _intensity(
            lambda c: 2 * c.n_heads * c.d_head,
            lambda w, c: 2 * c.n_heads * (w.d_latent + w.d_rope),
        ),
        "a multiply-add is counted once: it is 2 FLOPs": _intensity(
            lambda c: 2 * c.n_heads * c.d_head,
            lambda w, c: c.n_heads * (2 * w.d_latent + w.d_rope),
        ),
        "bytes_per_number is left out: FLOPs are divided by bytes, not by numbers": _intensity(
            bytes_of=lambda b: 1
        ),
        "always 2 bytes a number: bytes_per_number is ignored": _intensity(bytes_of=lambda b: 2),
        "bits in place of bytes": _intensity(bytes_of=lambda b: 8 * b),
        "bytes divided by FLOPs: turn it over": lambda config, bytes_per_number=2: (
            1 / decode_attention_intensity(config, bytes_per_number)
        ),
        "MLA's keys and values are expanded: in the absorbed form heads work on the latent": (
            _intensity(mla=lambda w, c: 2 * c.n_heads * (w.d_nope + w.d_rope + w.d_value))
        ),
        "MLA is counted with d_head: in the absorbed form heads work on the latent": _intensity(
            mla=lambda w, c: 4 * c.n_heads * c.d_head
        ),
        "MLA's rotated key is mixed, too, or not counted: it only scores, and it is cached": (
            _intensity(mla=lambda w, c: 4 * c.n_heads * (w.d_latent + w.d_rope))
        ),
        "MLA's rotated key is left out of the scores": _intensity(
            mla=lambda w, c: 4 * c.n_heads * w.d_latent
        ),
        "2g/b for MLA as well, with g = 1: all heads share one latent": _intensity(
            mla=lambda w, c: 2 * (w.d_latent + w.d_rope)
        ),
        "2g/b for MLA as well, with g = n_heads: its latent is key and value, so it works twice": (
            _intensity(mla=lambda w, c: 2 * c.n_heads * (w.d_latent + w.d_rope))
        ),
        "the FLOPs of all layers on the bytes of one: count both in one layer": _intensity(
            lambda c: 4 * c.n_layers * c.n_heads * c.d_head,
            lambda w, c: 2 * c.n_layers * c.n_heads * (2 * w.d_latent + w.d_rope),
        ),
        "one head of MLA: all n_heads read the same latent": _intensity(
            mla=lambda w, c: 2 * (2 * w.d_latent + w.d_rope)
        ),
    },
    right={
        "head by head": _counted,
        "2 g / b, the group size over the bytes of a number": _from_groups,
        "in NumPy": lambda config, bytes_per_number=2: (
            np.float64(_counted(config)) * 2 / bytes_per_number
        ),
    },
)
