"""Lesson 12: how long a context, and how many devices."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from grader.checks.capacity.drawn import (
    ALL_WINDOWED,
    DEEPSEEK,
    EIGHT,
    H100,
    LLAMA_8B,
    LLAMA_70B,
    SEVENTY,
    SMALL_MLA,
    WINDOWED,
    draw_config,
    draw_deployment,
    weight_bytes,
)
from grader.checks.capacity.fits import per_device, usable, whole
from grader.checks.capacity.lesson import LESSON
from grader.judging.exercise import Exercise, Inputs, given
from inferlab.cache_sizes import cache_bytes, cache_bytes_per_device
from inferlab.capacity import (
    Deployment,
    cache_room_bytes,
    devices_needed,
    max_context,
    sequences_that_fit,
    tensor_parallel_sizes,
)
from inferlab.kv_cache import kv_cache_bytes

# ---- max_context -------------------------------------------------------------------------------


def _draw_context(rng: np.random.Generator) -> Inputs:
    config = [WINDOWED, SMALL_MLA, None, None][int(rng.integers(4))]
    n_devices = int(rng.choice([2, 4])) if config is not None else None
    deployment = draw_deployment(rng, config, n_devices)
    if config is None:
        deployment = replace(deployment, n_devices=2 * deployment.config.n_kv_heads)
    n_sequences = int(rng.integers(3, 30))
    return {"deployment": deployment, "n_sequences": n_sequences, "limit": 2_000_000}


def _search(fits: Callable[[int], bool], limit: int) -> int:
    low, high = 0, limit + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _context(change: Callable[[Any, int, int], int]) -> Callable:
    def context(deployment, n_sequences, limit=1_000_000):
        return change(deployment, n_sequences, limit)

    return context


def _divide(d: Any, s: int, limit: int, token: float) -> int:
    return min(limit, int(cache_room_bytes(d) // (s * token)))


def _two_slopes(d: Any, s: int, limit: int) -> int:
    """Closed form: the slope below the windows, and above them."""
    window = d.config.sliding_window or 10**9
    per = lambda n: cache_bytes_per_device(d.config, n, d.n_devices, s, d.bytes_per_number)  # noqa: E731
    room = cache_room_bytes(d)
    if room < per(window):
        return min(limit, int(room // per(1)))
    slope = per(window + 1) - per(window)
    return limit if slope == 0 else min(limit, window + int((room - per(window)) // slope))


def _one_by_bits(d: Any, s: int, limit: int) -> int:
    n, step = 0, 1 << 40
    while step:
        held = cache_bytes_per_device(d.config, n + step, d.n_devices, s, d.bytes_per_number)
        if n + step <= limit and held <= cache_room_bytes(d):
            n += step
        step //= 2
    return n


CONTEXT = Exercise(
    id="max_context",
    reference=max_context,
    lesson=LESSON,
    points=2,
    minutes=10,
    difficulty=3,
    uses=("cache_room_bytes", "cache_bytes_per_device"),
    hints=(
        "Ask of one number of tokens whether it fits. More tokens never take less: so search.",
        "Keep two numbers, low that fits (0 does) and high that does not count (limit + 1). Look "
        "in the middle and move one of them there, until they are neighbours.",
        "while high - low > 1: middle = (low + high) // 2; if the bytes at middle are at most the "
        "room: low = middle, else high = middle. The answer is low.",
    ),
    cases=(
        given("Llama-3-8B, one sequence", deployment=EIGHT, n_sequences=1),
        given("Llama-3-8B, 16 sequences", deployment=EIGHT, n_sequences=16),
        given(
            "16 sequences, FP8 cache",
            deployment=replace(EIGHT, bytes_per_number=1),
            n_sequences=16,
        ),
        given("the weights do not fit", deployment=replace(SEVENTY, n_devices=1), n_sequences=2),
        given(
            "every layer has a window: the limit",
            deployment=Deployment.on(H100, ALL_WINDOWED),
            n_sequences=16,
            limit=300_000,
        ),
        given(
            "more devices than KV heads",
            deployment=Deployment.on(H100, LLAMA_70B, 16),
            n_sequences=100,
        ),
        given(
            "exactly 96 tokens for each of 7",
            deployment=Deployment(
                WINDOWED, 1, 2 * WINDOWED.n_params + cache_bytes(WINDOWED, 96, 7), 1e12, 1e14
            ),
            n_sequences=7,
        ),
        given(
            "one of 17 of 24 layers' windows is full long before",
            deployment=Deployment.on(H100, WINDOWED, 4),
            n_sequences=50,
        ),
        given("MLA on 4 devices", deployment=Deployment.on(H100, DEEPSEEK, 4), n_sequences=40),
    ),
    draw=_draw_context,
    wrong={
        "windows are ignored: a layer with one stops growing": _context(
            lambda d, s, limit: _divide(d, s, limit, per_device(d, 1))
        ),
        "one sequence only: all of them grow together": _context(
            lambda d, s, limit: max_context(d, 1, limit)
        ),
        "the cache is divided by n_devices: a KV head cannot be cut, and MLA's latent is not "
        "split": _context(
            lambda d, s, limit: _search(
                lambda n: s * whole(d, n) / d.n_devices <= cache_room_bytes(d), limit
            )
        ),
        "the whole cache on every device: it is shared out over them": _context(
            lambda d, s, limit: _search(lambda n: s * whole(d, n) <= cache_room_bytes(d), limit)
        ),
        "one token too few: what fills the room exactly fits": _context(
            lambda d, s, limit: _search(lambda n: s * per_device(d, n) < cache_room_bytes(d), limit)
        ),
        "one token too many": _context(lambda d, s, limit: max_context(d, s, limit) + 1),
        "the limit itself is left out": _context(lambda d, s, limit: max_context(d, s, limit - 1)),
        "always 2 bytes a number: bytes_per_number is ignored": _context(
            lambda d, s, limit: max_context(replace(d, bytes_per_number=2), s, limit)
        ),
        "the weights are forgotten: they take memory first": _context(
            lambda d, s, limit: _search(
                lambda n: (
                    s * per_device(d, n) <= d.memory_bytes * (1 - d.headroom) - d.overhead_bytes
                ),
                limit,
            )
        ),
        "the tokens of all sequences together: each one's context is asked": _context(
            lambda d, s, limit: min(limit, s * max_context(d, s, limit))
        ),
        "at least one token: where nothing fits the answer is 0": _context(
            lambda d, s, limit: max(1, max_context(d, s, limit))
        ),
        "limit is ignored": _context(lambda d, s, limit: max_context(d, s, 10**12)),
        "one full-length KV formula: MLA keeps a latent, windows end": _context(
            lambda d, s, limit: _search(
                lambda n: (
                    kv_cache_bytes(d.config, n, s, d.bytes_per_number)
                    / min(d.n_devices, d.config.n_kv_heads)
                    <= cache_room_bytes(d)
                ),
                limit,
            )
        ),
    },
    right={
        "two slopes, in closed form": _context(_two_slopes),
        "bit by bit": _context(_one_by_bits),
        "with the standard library's bisect": _context(
            lambda d, s, limit: (
                bisect_right(
                    range(limit + 1),
                    cache_room_bytes(d),
                    key=lambda n: cache_bytes_per_device(
                        d.config, n, d.n_devices, s, d.bytes_per_number
                    ),
                )
                - 1
            )
        ),
    },
)


# ---- devices_needed ----------------------------------------------------------------------------


def _needed(
    config_bytes: Callable[[Any], float] = weight_bytes,
    cache: Callable[[Any, int, int], float] = lambda d, n, s: cache_bytes(
        d.config, n, s, d.bytes_per_number
    ),
    to: Callable[[float], int] = math.ceil,
    offered: Callable[[Any], float] = usable,
    sizes: Callable[[Any, int], Any] = lambda c, largest: tensor_parallel_sizes(c, largest),
    fits: Callable[[Any, int, int], bool] = lambda d, n, s: sequences_that_fit(d, n, 1) >= s,
    least: Callable[[Any], int] = lambda found: found,
    alone: Callable[[Any], float] = lambda d: d.memory_bytes,
    nothing: Callable[[float], Any] = lambda devices: None,
) -> Callable:
    def needed(deployment, n_tokens, n_sequences, largest=64):
        d = deployment
        weights, kv = config_bytes(d), cache(d, n_tokens, n_sequences)
        beside = (weights + kv) / offered(d)
        found = next(
            (
                n
                for n in sizes(d.config, largest)
                if fits(replace(d, n_devices=n), n_tokens, n_sequences)
            ),
            None,
        )
        return {
            "weights": to(weights / alone(d)),
            "with_cache": to((weights + kv) / d.memory_bytes),
            "with_headroom": to(beside) if beside > 0 else nothing(beside),
            "usable": least(found),
        }

    return needed


def _draw_needed(rng: np.random.Generator) -> Inputs:
    """Weights for 2.1 to 2.4 devices, with the cache 3.3 to 3.4, beside the headroom 4.1 to 4.3:
    so 3, 4 and 5 devices, and 8 that can share the heads."""
    n_heads = 8 * int(rng.choice([2, 4]))
    config = replace(
        draw_config(rng), n_heads=n_heads, n_kv_heads=8, d_model=n_heads * 72, d_head=96
    )
    d = replace(draw_deployment(rng, config, 1), headroom=0.13)
    memory = weight_bytes(d) / float(rng.uniform(2.1, 2.4))
    d = replace(d, memory_bytes=memory, overhead_bytes=memory * 0.07)
    both = float(rng.uniform(4.1, 4.3)) * usable(d)
    n_sequences = int(rng.integers(3, 60))
    one_token = cache_bytes(d.config, 1, n_sequences, d.bytes_per_number)
    n_tokens = int((both - weight_bytes(d)) / one_token)
    return {"deployment": d, "n_tokens": n_tokens, "n_sequences": n_sequences}


FOUR_LONG = Deployment.on(H100, LLAMA_70B, 1, headroom=0.1)

DEVICES = Exercise(
    id="devices_needed",
    reference=devices_needed,
    lesson=LESSON,
    points=2,
    minutes=10,
    difficulty=3,
    uses=("tensor_parallel_sizes", "sequences_that_fit"),
    hints=(
        "The first three are one division each, rounded up. Only the fourth looks at how heads "
        "are shared.",
        "For the fourth go through tensor_parallel_sizes(config, largest), put each number into "
        "the deployment with replace, and ask sequences_that_fit(..., n_tokens, 1).",
        "next((n for n in tensor_parallel_sizes(config, largest) if sequences_that_fit(replace("
        "deployment, n_devices=n), n_tokens, 1) >= n_sequences), None)",
    ),
    cases=(
        given(
            "Llama-3-70B in bf16, 4 sequences of 32,768 tokens, 80 GB, 10 % headroom",
            deployment=FOUR_LONG,
            n_tokens=32_768,
            n_sequences=4,
        ),
        given(
            "the same with FP8 weights",
            deployment=replace(FOUR_LONG, bytes_per_weight=1),
            n_tokens=32_768,
            n_sequences=4,
        ),
        given(
            "the cache of 16 devices is no smaller than that of 8",
            deployment=Deployment.on(H100, LLAMA_8B, 3),
            n_tokens=8192,
            n_sequences=640,
        ),
        given(
            "10 sequences of 17 tokens fill one device exactly",
            deployment=Deployment(
                WINDOWED, 1, 2 * WINDOWED.n_params + cache_bytes(WINDOWED, 17, 10), 1e12, 1e14
            ),
            n_tokens=17,
            n_sequences=10,
        ),
        given(
            "10 sequences of 32 tokens fill one device exactly",
            deployment=Deployment(
                WINDOWED, 1, 2 * WINDOWED.n_params + cache_bytes(WINDOWED, 32, 10), 1e12, 1e14
            ),
            n_tokens=32,
            n_sequences=10,
        ),
        given(
            "30 % headroom and 1 GB of overhead",
            deployment=Deployment.on(H100, LLAMA_8B, 1, headroom=0.3, overhead_bytes=1e9),
            n_tokens=8192,
            n_sequences=40,
        ),
        given(
            "20 % headroom and 10 GB of overhead: weights alone know neither",
            deployment=Deployment.on(H100, LLAMA_70B, 1, headroom=0.2, overhead_bytes=10e9),
            n_tokens=8000,
            n_sequences=9,
        ),
        given(
            "the overhead leaves nothing of a device",
            deployment=replace(FOUR_LONG, overhead_bytes=75e9),
            n_tokens=32_768,
            n_sequences=4,
        ),
        given(
            "no more than 2 to be had",
            deployment=FOUR_LONG,
            n_tokens=32_768,
            n_sequences=4,
            largest=2,
        ),
        given(
            "no number of devices will do",
            deployment=Deployment.on(H100, LLAMA_8B, 2),
            n_tokens=131_072,
            n_sequences=100,
        ),
        given(
            "MLA: more devices do not shrink the cache of one",
            deployment=Deployment.on(H100, DEEPSEEK, 1),
            n_tokens=30_000,
            n_sequences=60,
        ),
    ),
    draw=_draw_needed,
    wrong={
        "from the weights alone: the cache must fit too": _needed(cache=lambda d, n, s: 0.0),
        "a number that the heads do not divide by: three devices cannot share 64 heads": _needed(
            sizes=lambda c, largest: [
                n for n in range(1, largest + 1) if n <= c.n_kv_heads or n % c.n_kv_heads == 0
            ],
            fits=lambda d, n, s: (
                s * cache_bytes(d.config, n, 1, d.bytes_per_number) / d.n_devices
                <= cache_room_bytes(d)
            ),
        ),
        "the cache is divided by any n_devices: beyond n_kv_heads, and for MLA, it is not": _needed(
            fits=lambda d, n, s: (
                s * cache_bytes(d.config, n, 1, d.bytes_per_number) / d.n_devices
                <= cache_room_bytes(d)
            )
        ),
        "pages of 16: here a page has one token": _needed(
            fits=lambda d, n, s: sequences_that_fit(d, n) >= s
        ),
        "rounded down: half a device is a whole one more": _needed(to=math.floor),
        "rounded to the nearest": _needed(to=round),
        "headroom and overhead are ignored": _needed(offered=lambda d: d.memory_bytes),
        "the overhead is forgotten": _needed(offered=lambda d: d.memory_bytes * (1 - d.headroom)),
        "headroom of what the overhead leaves: it is a share of the whole memory": _needed(
            offered=lambda d: (d.memory_bytes - d.overhead_bytes) * (1 - d.headroom)
        ),
        "the weights alone beside the headroom: that reading takes memory_bytes": _needed(
            alone=usable
        ),
        "devices that offer less than nothing, a negative number of them: None": _needed(
            nothing=math.ceil
        ),
        "largest is ignored": _needed(sizes=lambda c, largest: tensor_parallel_sizes(c, 64)),
        "more than n_sequences must fit: exactly as many are enough": _needed(
            fits=lambda d, n, s: sequences_that_fit(d, n, 1) > s
        ),
        "one sequence only": _needed(
            cache=lambda d, n, s: cache_bytes(d.config, n, 1, d.bytes_per_number),
            fits=lambda d, n, s: sequences_that_fit(d, n, 1) >= 1,
        ),
        "always 2 bytes a weight": _needed(config_bytes=lambda d: 2 * d.config.n_params),
        "the number it has is taken, not asked: look for n_devices": _needed(
            sizes=lambda c, largest: [1], least=lambda found: found
        ),
        "-1 or 0 where no number will do: the answer is None": _needed(
            least=lambda found: found or 0
        ),
        "the first three divide by the room beside the weights": _needed(
            offered=lambda d: max(1.0, usable(d) - d.config.n_params * d.bytes_per_weight / 8)
        ),
    },
    right={
        "exact division, rounded up by hand": _needed(to=lambda x: -int(-x // 1)),
        "a loop over all numbers": _needed(
            sizes=lambda c, largest: (
                n
                for n in range(1, largest + 1)
                if not c.n_heads % n and (not c.n_kv_heads % n or not n % c.n_kv_heads)
            )
        ),
        "max_context asked instead": _needed(
            fits=lambda d, n, s: max_context(d, s, 10_000_000) >= n
        ),
    },
)
