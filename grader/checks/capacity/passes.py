"""Lesson 12: the seconds of one pass: reading, computing, talking."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np

from grader.checks.capacity.drawn import (
    DEEPSEEK,
    EIGHT,
    H100,
    LLAMA_70B,
    MIXTRAL,
    SEVENTY,
    SUMS,
    draw_deployment,
)
from grader.checks.capacity.lesson import LESSON
from grader.judging.exercise import Exercise, Inputs, given
from inferlab.cache_sizes import cache_bytes, cache_bytes_per_device
from inferlab.capacity import (
    Deployment,
    all_reduce_seconds,
    pass_seconds,
    weights_read,
)
from inferlab.roofline import forward_flops

# ---- pass_seconds ------------------------------------------------------------------------------


def _draw_pass(rng: np.random.Generator) -> Inputs:
    return {
        "deployment": draw_deployment(rng),
        "n_new": int(rng.integers(2, 9)),
        "n_cached": int(rng.integers(1000, 9000)),
        "n_sequences": int(rng.integers(5, 30)),
    }


def _weights(d: Any, new: int, s: int) -> float:
    return weights_read(d.config, s * new) * d.bytes_per_weight / d.n_devices


def _cache(d: Any, cached: int, s: int) -> float:
    return cache_bytes_per_device(d.config, cached, d.n_devices, s, d.bytes_per_number)


def _flops(d: Any, new: int, cached: int, s: int) -> float:
    return s * forward_flops(d.config, new, cached) / d.n_devices


def _pass(
    weights: Callable[[Any, int, int], float] = _weights,
    cache: Callable[[Any, int, int], float] = _cache,
    flops: Callable[[Any, int, int, int], float] = _flops,
    bandwidth: Callable[[Any], float] = lambda d: d.efficiency * d.bandwidth_bytes_per_s,
    peak: Callable[[Any], float] = lambda d: d.efficiency * d.peak_flops_per_s,
    out: Callable[[float, float], Any] = lambda reading, computing: (reading, computing),
) -> Callable:
    def seconds(deployment, n_new, n_cached, n_sequences=1):
        d = deployment
        reading = weights(d, n_new, n_sequences) + cache(d, n_cached, n_sequences)
        return out(reading / bandwidth(d), flops(d, n_new, n_cached, n_sequences) / peak(d))

    return seconds


def _in_fractions(deployment, n_new, n_cached, n_sequences=1):
    d = deployment
    read = (
        Fraction(weights_read(d.config, n_sequences * n_new))
        * Fraction(d.bytes_per_weight)
        / d.n_devices
    ) + cache_bytes_per_device(d.config, n_cached, d.n_devices, n_sequences, d.bytes_per_number)
    done = Fraction(n_sequences * forward_flops(d.config, n_new, n_cached), d.n_devices)
    share = Fraction(d.efficiency)
    return (
        float(read / share / Fraction(d.bandwidth_bytes_per_s)),
        float(done / share / Fraction(d.peak_flops_per_s)),
    )


PASS = Exercise(
    id="pass_seconds",
    reference=pass_seconds,
    lesson=LESSON,
    points=2,
    minutes=10,
    difficulty=3,
    uses=("cache_bytes_per_device", "forward_flops"),
    comparison=SUMS,
    hints=(
        "Two numbers: bytes of one device over its bandwidth, FLOPs of one device over its peak.",
        "Weights and FLOPs are shared out evenly over n_devices; the cache is what "
        "cache_bytes_per_device says, and belongs to n_sequences already.",
        "reading = weights_read(config, n_sequences * n_new) * bytes_per_weight / n_devices + "
        "cache_bytes_per_device(...); computing = n_sequences * forward_flops(config, n_new, "
        "n_cached) / n_devices; each over efficiency * its rate",
    ),
    cases=(
        given(
            "Llama-3-70B on 4 H100: a decode step of 298 at 1,524 tokens",
            deployment=SEVENTY,
            n_new=1,
            n_cached=1524,
            n_sequences=298,
        ),
        given("the prefill of 1,024 tokens", deployment=SEVENTY, n_new=1024, n_cached=0),
        given(
            "70 % of the rates, FP8 weights and cache",
            deployment=replace(SEVENTY, efficiency=0.7, bytes_per_weight=1, bytes_per_number=1),
            n_new=1,
            n_cached=3001,
            n_sequences=37,
        ),
        given(
            "16 devices, 8 KV heads",
            deployment=Deployment.on(H100, LLAMA_70B, 16),
            n_new=1,
            n_cached=8192,
            n_sequences=50,
        ),
        given(
            "Mixtral: two prompts of 2 tokens touch more experts than one of them",
            deployment=Deployment.on(H100, MIXTRAL, 2),
            n_new=2,
            n_cached=0,
            n_sequences=2,
        ),
        given(
            "Mixtral: 3 tokens touch more experts than one",
            deployment=Deployment.on(H100, MIXTRAL, 2),
            n_new=1,
            n_cached=700,
            n_sequences=3,
        ),
        given(
            "MLA on 8 devices",
            deployment=Deployment.on(H100, DEEPSEEK, 8),
            n_new=1,
            n_cached=5000,
            n_sequences=9,
        ),
    ),
    draw=_draw_pass,
    wrong={
        "the cache is left out: every kept key and value is read": _pass(cache=lambda d, t, s: 0),
        "one sequence's cache: each sequence has its own": _pass(
            cache=lambda d, t, s: _cache(d, t, 1)
        ),
        "weights times sequences: they are read once for all": _pass(
            weights=lambda d, new, s: s * _weights(d, new, s)
        ),
        "the cache is divided by n_devices: a KV head cannot be cut, and MLA's latent is not "
        "split": _pass(
            cache=lambda d, t, s: cache_bytes(d.config, t, s, d.bytes_per_number) / d.n_devices
        ),
        "the whole cache is read by every device": _pass(
            cache=lambda d, t, s: cache_bytes(d.config, t, s, d.bytes_per_number)
        ),
        "the weights are not shared out over n_devices": _pass(
            weights=lambda d, new, s: _weights(d, new, s) * d.n_devices
        ),
        "the FLOPs are not shared out over n_devices": _pass(
            flops=lambda d, new, t, s: s * forward_flops(d.config, new, t)
        ),
        "the FLOPs of one sequence": _pass(flops=lambda d, new, t, s: _flops(d, new, t, 1)),
        "one long sequence in place of n_sequences: each sees only its own tokens": _pass(
            flops=lambda d, new, t, s: forward_flops(d.config, s * new, t) / d.n_devices
        ),
        "the cache with the new tokens: only what was kept before is read": _pass(
            cache=lambda d, t, s: _cache(d, t + 1, s)
        ),
        "the new tokens see nothing that is kept": _pass(
            flops=lambda d, new, t, s: _flops(d, new, 0, s)
        ),
        "efficiency is ignored": _pass(
            bandwidth=lambda d: d.bandwidth_bytes_per_s, peak=lambda d: d.peak_flops_per_s
        ),
        "efficiency makes it slower, not faster: divide by it": _pass(
            bandwidth=lambda d: d.bandwidth_bytes_per_s / d.efficiency,
            peak=lambda d: d.peak_flops_per_s / d.efficiency,
        ),
        "all resident weights are read: the embedding is a look-up, untouched experts rest": _pass(
            weights=lambda d, new, s: d.config.n_params * d.bytes_per_weight / d.n_devices
        ),
        "the experts of one token: many tokens touch more of them": _pass(
            weights=lambda d, new, s: _weights(d, 1, 1)
        ),
        "the experts that one sequence's tokens take: n_sequences * n_new tokens run": _pass(
            weights=lambda d, new, s: _weights(d, new, 1)
        ),
        "the experts of one token a sequence: n_sequences * n_new tokens run": _pass(
            weights=lambda d, new, s: _weights(d, 1, s)
        ),
        "efficiency of the bandwidth alone: it is one of the peak too": _pass(
            peak=lambda d: d.peak_flops_per_s
        ),
        "efficiency of the peak alone: it is one of the bandwidth too": _pass(
            bandwidth=lambda d: d.bandwidth_bytes_per_s
        ),
        "logits of every new token: forward_flops(config, n_new, n_cached) has the last's": _pass(
            flops=lambda d, new, t, s: sum(_flops(d, 1, t + i, s) for i in range(new))
        ),
        "the longer of the two: both are asked": _pass(out=max),
        "the cache at bytes_per_weight": _pass(
            cache=lambda d, t, s: _cache(d, t, s) / d.bytes_per_number * d.bytes_per_weight
        ),
        "the other way round: (reading, computing) is asked": _pass(
            out=lambda reading, computing: (computing, reading)
        ),
    },
    right={
        "in fractions": _in_fractions,
        "a list in place of a tuple": _pass(out=lambda reading, computing: [reading, computing]),
        "all devices together, then shared out": _pass(
            flops=lambda d, new, t, s: sum(forward_flops(d.config, new, t) for _ in range(s)),
            peak=lambda d: d.n_devices * d.peak_flops_per_s * d.efficiency,
        ),
        "as a NumPy array": _pass(out=lambda reading, computing: np.array([reading, computing])),
    },
)

# ---- all_reduce_seconds ------------------------------------------------------------------------


def _draw_talk(rng: np.random.Generator) -> Inputs:
    return {
        "deployment": draw_deployment(rng),
        "n_tokens": int(rng.integers(3, 900)),
        "link_bytes_per_s": float(rng.uniform(3e10, 9e11)),
        "bytes_per_activation": int(rng.choice([1, 4])),
    }


def _talk(change: Callable[[Any, int, float, int], float]) -> Callable:
    def seconds(deployment, n_tokens, link_bytes_per_s, bytes_per_activation=2):
        return change(deployment, n_tokens, link_bytes_per_s, bytes_per_activation)

    return seconds


def _sums_bytes(d: Any, n: int, b: int) -> float:
    return 2 * d.config.n_layers * n * d.config.d_model * b


def _ring_by_hand(d: Any, n_tokens: int, link: float, b: int) -> float:
    """Every part goes round the ring twice: once to be added up, once to be handed out."""
    n, sent = d.n_devices, 0.0
    part = n_tokens * d.config.d_model * b / n
    for _ in range(d.config.n_layers):
        for _ in ("attention", "mlp"):
            sent += (n - 1) * part + (n - 1) * part
    return sent / link


ALL_REDUCE = Exercise(
    id="all_reduce_seconds",
    reference=all_reduce_seconds,
    lesson=LESSON,
    points=1,
    minutes=7,
    difficulty=2,
    comparison=SUMS,
    hints=(
        "How many sums are there in a pass? How many bytes has each? How many of them does one "
        "device send?",
        "2 sums a layer, each of n_tokens * d_model * bytes_per_activation bytes, of which a "
        "device sends 2 (N - 1) / N times as many.",
        "2 * n_layers * n_tokens * d_model * bytes_per_activation * 2 * (n - 1) / n / "
        "link_bytes_per_s",
    ),
    cases=(
        given(
            "Llama-3-70B on 4 H100: 310 tokens over 450 GB/s",
            deployment=SEVENTY,
            n_tokens=310,
            link_bytes_per_s=450e9,
        ),
        given("one device sends nothing", deployment=EIGHT, n_tokens=99, link_bytes_per_s=64e9),
        given(
            "two devices, 4 bytes",
            deployment=replace(EIGHT, n_devices=2),
            n_tokens=7,
            link_bytes_per_s=32e9,
            bytes_per_activation=4,
        ),
    ),
    draw=_draw_talk,
    wrong={
        "half of it: each layer has two sums, and a ring sends 2 (N - 1) / N of each": _talk(
            lambda d, n, link, b: all_reduce_seconds(d, n, link, b) / 2
        ),
        "one sum in all: every layer has two": _talk(
            lambda d, n, link, b: all_reduce_seconds(d, n, link, b) / (2 * d.config.n_layers)
        ),
        "each device sends everything to all others: a ring sends 2 (N - 1) / N": _talk(
            lambda d, n, link, b: _sums_bytes(d, n, b) * (d.n_devices - 1) / link
        ),
        "everything crosses once, also on one device": _talk(
            lambda d, n, link, b: _sums_bytes(d, n, b) / link
        ),
        "twice the bytes, whatever N: the factor is 2 (N - 1) / N": _talk(
            lambda d, n, link, b: 2 * _sums_bytes(d, n, b) / link
        ),
        "one row only: every token has its own": _talk(
            lambda d, n, link, b: all_reduce_seconds(d, 1, link, b)
        ),
        "bytes_per_activation is ignored": _talk(
            lambda d, n, link, b: all_reduce_seconds(d, n, link, 2)
        ),
        "n_heads * d_head numbers: the rows that are summed have d_model": _talk(
            lambda d, n, link, b: (
                all_reduce_seconds(d, n, link, b)
                * d.config.n_heads
                * d.config.d_head
                / d.config.d_model
            )
        ),
        "the weights' bytes: activations are sent, the weights stay": _talk(
            lambda d, n, link, b: d.config.n_params * d.bytes_per_weight / link
        ),
        "N times too much: a device sends 2 (N - 1) / N of each sum, over a link of its own": _talk(
            lambda d, n, link, b: all_reduce_seconds(d, n, link, b) * d.n_devices
        ),
    },
    right={
        "round the ring, part by part": _talk(_ring_by_hand),
        "reduce-scatter and all-gather": _talk(
            lambda d, n, link, b: (
                2 * (_sums_bytes(d, n, b) - _sums_bytes(d, n, b) / d.n_devices) / link
            )
        ),
    },
)
