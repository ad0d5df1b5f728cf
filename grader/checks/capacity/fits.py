"""Lesson 12: what fits, on how many devices."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np

from grader.checks.capacity.drawn import (
    DEEPSEEK,
    EIGHT,
    H100,
    LLAMA_8B,
    LLAMA_70B,
    MIXTRAL,
    SEVENTY,
    WINDOWED,
    draw_deployment,
    weight_bytes,
)
from grader.checks.capacity.lesson import LESSON
from grader.judging.compare import Comparison
from grader.judging.exercise import Exercise, Inputs, given
from inferlab.cache_sizes import cache_bytes, cache_bytes_per_device
from inferlab.capacity import (
    Deployment,
    cache_room_bytes,
    sequences_that_fit,
    tensor_parallel_sizes,
)
from inferlab.config import ModelConfig
from inferlab.data import model_preset

# ---- tensor_parallel_sizes ---------------------------------------------------------------------


def _draw_heads(rng: np.random.Generator) -> Inputs:
    n_kv_heads = int(rng.choice([4, 6, 12]))
    n_heads = n_kv_heads * int(rng.choice([5, 7, 6]))
    config = ModelConfig(30, n_heads * 48, n_heads, n_kv_heads, 64, 4096, 32_000)
    return {"config": config, "largest": int(rng.integers(2 * n_kv_heads + 1, n_heads + 9))}


def _where(holds: Callable[[Any, int], bool]) -> Callable:
    def sizes(config, largest=64):
        return [n for n in range(1, largest + 1) if holds(config, n)]

    return sizes


def _both(c: Any, n: int) -> bool:
    return c.n_heads % n == 0 and (c.n_kv_heads % n == 0 or n % c.n_kv_heads == 0)


def _by_cutting(config, largest=64):
    """Every device count for which the heads can really be dealt out."""
    found = []
    group = config.n_heads // config.n_kv_heads
    for n in range(1, min(largest, config.n_heads) + 1):
        hands = np.array_split(np.arange(config.n_heads), n)
        kv = [sorted({int(h) // group for h in hand}) for hand in hands]
        held = np.bincount([h for hand in kv for h in hand], minlength=config.n_kv_heads)
        even = len({len(hand) for hand in hands}) == 1 and len({len(hand) for hand in kv}) == 1
        whole = all(len(hand) == 1 or n <= config.n_kv_heads for hand in kv)
        if even and whole and len(set(held.tolist())) == 1:
            found.append(n)
    return found


SIZES = Exercise(
    id="tensor_parallel_sizes",
    reference=tensor_parallel_sizes,
    lesson=LESSON,
    points=1,
    minutes=6,
    difficulty=2,
    hints=(
        "Go through 1, 2, 3, … up to largest and keep the numbers that pass two tests.",
        "The first: n divides n_heads. The second has two cases: n divides n_kv_heads, or "
        "n_kv_heads divides n.",
        "n_heads % n == 0 and (n_kv_heads % n == 0 or n % n_kv_heads == 0)",
    ),
    cases=(
        given("Llama-3-70B: 64 query heads, 8 KV heads", config=LLAMA_70B),
        given(
            "28 query heads, 4 KV heads, up to 32", config=model_preset("qwen2.5-7b"), largest=32
        ),
        given("one KV head, 71 query heads", config=model_preset("falcon-7b"), largest=80),
        given("up to one device", config=LLAMA_8B, largest=1),
    ),
    draw=_draw_heads,
    wrong={
        "every number: three devices cannot share 64 heads": _where(lambda c, n: True),
        "stops at n_kv_heads: with more devices, several hold the same KV head": _where(
            lambda c, n: c.n_heads % n == 0 and c.n_kv_heads % n == 0
        ),
        "n_kv_heads is not looked at: whole KV heads must go round evenly": _where(
            lambda c, n: c.n_heads % n == 0
        ),
        "n_heads is not looked at: query heads are whole too": _where(
            lambda c, n: c.n_kv_heads % n == 0 or n % c.n_kv_heads == 0
        ),
        "powers of two only: 64 heads go well with them, 28 also with 7 or 28": _where(
            lambda c, n: _both(c, n) and n & (n - 1) == 0
        ),
        "layers are counted: tensor parallelism splits each layer, not the stack": _where(
            lambda c, n: c.n_layers % n == 0
        ),
        "largest itself is left out": lambda config, largest=64: [
            n for n in range(1, largest) if _both(config, n)
        ],
        "one device is left out: it is a size too": lambda config, largest=64: [
            n for n in range(2, largest + 1) if _both(config, n)
        ],
        "multiples of n, not divisors: n must divide the heads": _where(
            lambda c, n: n % c.n_heads == 0 or n == 1
        ),
    },
    right={
        "by greatest common divisors": _where(
            lambda c, n: (
                math.gcd(c.n_heads, n) == n and math.gcd(c.n_kv_heads, n) in (n, c.n_kv_heads)
            )
        ),
        "the heads dealt out and counted": _by_cutting,
        "in NumPy": lambda config, largest=64: (
            lambda n: n[
                (config.n_heads % n == 0)
                & ((config.n_kv_heads % n == 0) | (n % config.n_kv_heads == 0))
            ]
        )(np.arange(1, largest + 1)),
    },
)

# ---- cache_room_bytes --------------------------------------------------------------------------


def _room(change: Callable[[Any], float]) -> Callable:
    return lambda deployment: change(deployment)


def usable(d: Any) -> float:
    return d.memory_bytes * (1 - d.headroom) - d.overhead_bytes


def _active_bytes(d: Any) -> float:
    from inferlab.params import count_params

    return count_params(d.config, d.config.n_experts_per_token) * d.bytes_per_weight


ROOM = Exercise(
    id="cache_room_bytes",
    reference=cache_room_bytes,
    lesson=LESSON,
    points=1,
    minutes=6,
    difficulty=2,
    comparison=Comparison(
        terms=lambda inputs: 4,
        magnitude=lambda inputs: inputs["deployment"].memory_bytes,
        why="a few differences of numbers as large as the memory",
    ),
    hints=(
        "Start with one device's memory. Three things take their part of it before the cache does.",
        "The headroom is a share of the whole memory; the overhead is in bytes already; the "
        "weights are shared out evenly over n_devices.",
        "max(0.0, memory_bytes * (1 - headroom) - overhead_bytes - config.n_params * "
        "bytes_per_weight / n_devices)",
    ),
    cases=(
        given("Llama-3-70B in bf16 on 4 H100, 7.5 GB of overhead each", deployment=SEVENTY),
        given(
            "Llama-3-70B in bf16 on one H100: it does not fit",
            deployment=replace(SEVENTY, n_devices=1),
        ),
        given("Llama-3-8B in FP8, 10 % headroom", deployment=replace(EIGHT, bytes_per_weight=1)),
        given(
            "Mixtral 8x7B on 2 H100: all experts are resident",
            deployment=Deployment.on(H100, MIXTRAL, 2, headroom=0.05),
        ),
    ),
    draw=lambda rng: {"deployment": draw_deployment(rng)},
    wrong={
        "negative where the weights do not fit: there is no room then, 0": _room(
            lambda d: usable(d) - weight_bytes(d) / d.n_devices
        ),
        "all weights on every device: they are shared out over n_devices": _room(
            lambda d: max(0.0, usable(d) - weight_bytes(d))
        ),
        "the room of all devices together: one device is asked": _room(
            lambda d: max(0.0, d.n_devices * usable(d) - weight_bytes(d))
        ),
        "headroom is ignored": _room(
            lambda d: max(0.0, d.memory_bytes - d.overhead_bytes - weight_bytes(d) / d.n_devices)
        ),
        "headroom taken from what is left; it is a share of the whole memory": _room(
            lambda d: max(
                0.0,
                (d.memory_bytes - d.overhead_bytes - weight_bytes(d) / d.n_devices)
                * (1 - d.headroom),
            )
        ),
        "the overhead is forgotten": _room(
            lambda d: max(0.0, d.memory_bytes * (1 - d.headroom) - weight_bytes(d) / d.n_devices)
        ),
        "the overhead is shared out: each device has its own": _room(
            lambda d: max(
                0.0,
                d.memory_bytes * (1 - d.headroom)
                - (d.overhead_bytes + weight_bytes(d)) / d.n_devices,
            )
        ),
        "always 2 bytes a weight: bytes_per_weight is ignored": _room(
            lambda d: max(0.0, usable(d) - 2 * d.config.n_params / d.n_devices)
        ),
        "bytes_per_number is that of the cache, not of the weights": _room(
            lambda d: max(0.0, usable(d) - d.config.n_params * d.bytes_per_number / d.n_devices)
        ),
        "active experts only: every expert must be resident": _room(
            lambda d: max(0.0, usable(d) - _active_bytes(d) / d.n_devices)
        ),
        "memory less headroom alone: the weights are forgotten": _room(
            lambda d: max(0.0, usable(d))
        ),
    },
    right={
        "in fractions": _room(
            lambda d: float(
                max(
                    Fraction(0),
                    Fraction(d.memory_bytes) * (1 - Fraction(d.headroom))
                    - Fraction(d.overhead_bytes)
                    - Fraction(d.config.n_params) * Fraction(d.bytes_per_weight) / d.n_devices,
                )
            )
        ),
        "for all devices, then divided": _room(
            lambda d: max(0.0, d.n_devices * usable(d) - weight_bytes(d)) / d.n_devices
        ),
        "step by step in NumPy": _room(
            lambda d: np.maximum(
                0,
                np.float64(d.memory_bytes)
                - d.headroom * d.memory_bytes
                - d.overhead_bytes
                - weight_bytes(d) / d.n_devices,
            )
        ),
    },
)

# ---- sequences_that_fit ------------------------------------------------------------------------


def _draw_fit(rng: np.random.Generator) -> Inputs:
    """Where rounding matters: the quotient's fraction is between 0.55 and 0.95, and a page more or
    less is another count."""
    deployment = draw_deployment(rng)
    deployment = replace(deployment, memory_bytes=6 * deployment.memory_bytes)
    room = cache_room_bytes(deployment)
    while True:
        page = int(rng.choice([100, 144, 256]))
        tokens = page * int(rng.integers(4, 9)) + int(rng.integers(5, page // 2))
        quotients = [
            room / per_device(deployment, held)
            for held in (tokens // page * page, tokens, -(-tokens // page) * page)
        ]
        if 0.55 < quotients[2] % 1 < 0.95 and len({int(q) for q in quotients}) == 3:
            return {"deployment": deployment, "n_tokens": tokens, "page_size": page}


def _fit(
    one: Callable[[Any, int], float], held: Callable[[int, int], int] | None = None, to=math.floor
):
    """A wrong sequences_that_fit: bytes of one sequence, tokens held, rounding."""
    pages = held or (lambda n, p: -(-n // p) * p)

    def fit(deployment, n_tokens, page_size=16):
        return to(cache_room_bytes(deployment) / one(deployment, pages(n_tokens, page_size)))

    return fit


def per_device(d: Any, n: int) -> int:
    return cache_bytes_per_device(d.config, n, d.n_devices, 1, d.bytes_per_number)


def whole(d: Any, n: int) -> int:
    return cache_bytes(d.config, n, 1, d.bytes_per_number)


def _split_as_far_as_heads(d: Any, n: int) -> float:
    return whole(d, n) / min(d.n_devices, d.config.n_kv_heads)


FIT = Exercise(
    id="sequences_that_fit",
    reference=sequences_that_fit,
    lesson=LESSON,
    points=2,
    minutes=9,
    difficulty=3,
    uses=("cache_room_bytes", "cache_bytes_per_device"),
    hints=(
        "First the tokens that a sequence really holds: whole pages. Then the bytes of one "
        "sequence on one device.",
        "Pages are rounded up, sequences are rounded down. cache_bytes_per_device knows how KV "
        "heads are shared.",
        "held = math.ceil(n_tokens / page_size) * page_size; then int(cache_room_bytes(deployment) "
        "// cache_bytes_per_device(config, held, n_devices, 1, bytes_per_number))",
    ),
    cases=(
        given(
            "Llama-3-70B on 4 H100, 1,524 tokens, no pages",
            deployment=SEVENTY,
            n_tokens=1524,
            page_size=1,
        ),
        given("the same in pages of 16", deployment=SEVENTY, n_tokens=1524),
        given(
            "17 tokens in pages of 16 are two pages", deployment=EIGHT, n_tokens=17, page_size=16
        ),
        given(
            "16 devices, 8 KV heads: every head is held twice",
            deployment=Deployment.on(H100, LLAMA_70B, 16, bytes_per_number=1),
            n_tokens=3001,
        ),
        given(
            "MLA on 4 devices: each holds the whole latent",
            deployment=Deployment.on(H100, DEEPSEEK, 4),
            n_tokens=5003,
        ),
        given(
            "17 of 24 layers have a window of 1,000 tokens",
            deployment=Deployment.on(H100, WINDOWED, 2),
            n_tokens=7001,
        ),
        given("the weights do not fit", deployment=replace(SEVENTY, n_devices=1), n_tokens=1524),
        given(
            "exactly 10 sequences of 4 pages",
            deployment=Deployment(
                WINDOWED, 1, 2 * WINDOWED.n_params + 10 * cache_bytes(WINDOWED, 64), 1e12, 1e14
            ),
            n_tokens=64,
        ),
    ),
    draw=_draw_fit,
    wrong={
        "the cache is divided by n_devices: a KV head cannot be cut, and MLA's latent is not "
        "split": _fit(lambda d, n: whole(d, n) / d.n_devices),
        "MLA's latent is split like KV heads: every device reads all of it": _fit(
            _split_as_far_as_heads
        ),
        "the last page is left out: it holds the last tokens": _fit(
            per_device, lambda n, p: max(n // p, 1) * p
        ),
        "pages are ignored: the last one is held whole": _fit(per_device, lambda n, p: n),
        "always one page more: a full last page is enough": _fit(
            per_device, lambda n, p: (n // p + 1) * p
        ),
        "rounded to the nearest: what fits by half does not fit": _fit(per_device, to=round),
        "one too many: rounded up": _fit(per_device, to=math.ceil),
        "the whole cache on every device: it is shared out over them": _fit(whole),
        "the room of all devices over the cache of one": _fit(
            lambda d, n: per_device(d, n) / d.n_devices
        ),
        "always 2 bytes a number: bytes_per_number is ignored": _fit(
            lambda d, n: cache_bytes_per_device(d.config, n, d.n_devices)
        ),
        "windows are ignored: such a layer keeps no more than its window": _fit(
            lambda d, n: cache_bytes_per_device(
                replace(d.config, sliding_window=None, n_window_layers=None),
                n,
                d.n_devices,
                1,
                d.bytes_per_number,
            )
        ),
        "page_size is ignored: not every page has 16 tokens": _fit(
            per_device, lambda n, p: -(-n // 16) * 16
        ),
        "the bytes of one token, not of one sequence": _fit(lambda d, n: per_device(d, 1)),
    },
    right={
        "page by page": _fit(
            lambda d, n: sum(
                cache_bytes_per_device(d.config, min(end, n), d.n_devices, 1, d.bytes_per_number)
                - cache_bytes_per_device(d.config, end - 100, d.n_devices, 1, d.bytes_per_number)
                for end in range(100, n + 100, 100)
            )
        ),
        "a search": lambda deployment, n_tokens, page_size=16: next(
            n
            for n in range(10**7)
            if cache_bytes_per_device(
                deployment.config,
                -(-n_tokens // page_size) * page_size,
                deployment.n_devices,
                n + 1,
                deployment.bytes_per_number,
            )
            > cache_room_bytes(deployment)
        ),
        "NumPy's floor": _fit(per_device, to=lambda x: np.floor(x).astype(np.int64)),
    },
)
