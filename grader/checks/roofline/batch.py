"""Lesson 01: the batch from which a decode step is compute-bound."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np

from grader.checks.roofline.bounds import H100, exact_cache, multiplied
from grader.checks.roofline.lesson import LESSON
from grader.checks.roofline.passes import LLAMA, QWEN, per_key
from grader.checks.roofline.sizes import draw_config
from grader.judging.exercise import Exercise, Inputs, given
from inferlab.data import model_preset
from inferlab.kv_cache import kv_cache_bytes
from inferlab.roofline import compute_bound_batch, forward_flops

LLAMA_2 = model_preset("llama-2-7b")


def _draw_batch(rng: np.random.Generator) -> Inputs:
    """Where a batch is large enough, and rounding up or down matters."""
    while True:
        inputs = {
            "config": draw_config(rng),
            "n_cached": int(rng.integers(50, 900)),
            "bandwidth_bytes_per_s": float(rng.integers(500, 5000)) * 1e9,
            "peak_flops_per_s": float(rng.integers(50, 500)) * 1e12,
            "bytes_per_number": int(rng.choice([1, 2])),
            "bytes_per_weight": float(rng.choice([0.5, 1.5])),
        }
        weights, reads, computes = _terms(**inputs)
        if computes < 1.3 * reads or reads < 0.1 * computes:
            continue
        exact = weights / (computes - reads)
        if exact > 8 and 0.1 < exact % 1 < 0.4:
            return inputs


def _terms(
    config, n_cached, bandwidth_bytes_per_s, peak_flops_per_s, bytes_per_number,
    bytes_per_weight=None,
):  # fmt: skip
    """Seconds: reading the weights, reading one more cache, computing one more token."""
    weight = bytes_per_number if bytes_per_weight is None else bytes_per_weight
    cache = kv_cache_bytes(config, n_cached, 1, bytes_per_number)
    computes = forward_flops(config, 1, n_cached) / peak_flops_per_s
    return (
        multiplied(config) * weight / bandwidth_bytes_per_s,
        cache / bandwidth_bytes_per_s,
        computes,
    )


def _batch(change: Callable[[Any, float, float, float], Any]) -> Callable:
    """An answer from change(inputs, seconds of weights, of one cache, of one token)."""

    def answer(
        config, n_cached, bandwidth_bytes_per_s, peak_flops_per_s, bytes_per_number,
        bytes_per_weight=None,
    ):  # fmt: skip
        given_ = {
            "config": config, "n_cached": n_cached, "bandwidth_bytes_per_s": bandwidth_bytes_per_s,
            "peak_flops_per_s": peak_flops_per_s, "bytes_per_number": bytes_per_number,
            "bytes_per_weight": bytes_per_weight,
        }  # fmt: skip
        return change(given_, *_terms(**given_))

    return answer


def _or_none(count: Callable[[Any, float, float, float], Any]) -> Callable:
    return _batch(lambda g, w, r, c: None if r >= c else count(g, w, r, c))


def _own_key_forgotten(g: Any, w: float, r: float, c: float) -> int | None:
    c -= per_key(g["config"]) / g["peak_flops_per_s"]
    return None if r >= c else math.ceil(w / (c - r))


def _never_is(value: Any) -> Callable:
    return _batch(lambda g, w, r, c: value if r >= c else math.ceil(w / (c - r)))


def _search(g: Any, w: float, r: float, c: float) -> int:
    """Doubling, then halving, for the first batch that computes as long as it reads."""
    high = 1
    while high * c < w + high * r:
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if middle * c < w + middle * r else (low, middle)
    return high


def _batch_fractions(g: Any, w: float, r: float, c: float) -> int | None:
    config, bandwidth = g["config"], Fraction(g["bandwidth_bytes_per_s"])
    b = g["bytes_per_number"]
    weight = b if g["bytes_per_weight"] is None else g["bytes_per_weight"]
    flops = 2 * multiplied(config) + per_key(config) * (g["n_cached"] + 1)
    gained = flops * bandwidth / Fraction(g["peak_flops_per_s"])
    gained -= exact_cache(config, g["n_cached"], b)
    return None if gained <= 0 else math.ceil(multiplied(config) * Fraction(weight) / gained)


def _ridge_of(g: Any) -> float:
    return g["peak_flops_per_s"] / g["bandwidth_bytes_per_s"]


def _weight_of(g: Any) -> float:
    return g["bytes_per_number"] if g["bytes_per_weight"] is None else g["bytes_per_weight"]


def _exactly(n: int) -> dict[str, float]:
    """Rates at which one token computes for 1 s, and the weights in bf16 are read in n seconds."""
    weights, flops = 2.0 * multiplied(LLAMA), float(forward_flops(LLAMA, 1, 0))
    return {"bandwidth_bytes_per_s": weights / n, "peak_flops_per_s": flops}


def _balanced(n_cached: int) -> dict[str, float]:
    """Rates at which a cache of so many tokens is read, and one more token computed, in 1 s."""
    cache, flops = kv_cache_bytes(LLAMA, n_cached), forward_flops(LLAMA, 1, n_cached)
    return {"bandwidth_bytes_per_s": float(cache), "peak_flops_per_s": float(flops)}


BATCH = Exercise(
    id="compute_bound_batch",
    reference=compute_bound_batch,
    lesson=LESSON,
    points=3,
    minutes=15,
    difficulty=4,
    uses=("step_bytes", "forward_flops"),
    hints=(
        "Write both times for n sequences: reading = weights + n * one cache, computing = n * one "
        "token. From which n on is the second at least the first?",
        "n * (one_computes_s - one_reads_s) >= weights_s. If the bracket is 0 or negative, no n "
        "will do: None. Else divide and round up with math.ceil.",
        "weights_s: step_bytes(config, 0, 1, …) / bandwidth. one_reads_s: kv_cache_bytes(config, "
        "n_cached, 1, bytes_per_number) / bandwidth. one_computes_s: forward_flops(config, 1, "
        "n_cached) / peak. math.ceil(weights_s / (one_computes_s - one_reads_s))",
    ),
    cases=(
        given("Llama-3-8B on an H100, no context", config=LLAMA, n_cached=0, bytes_per_number=2,
              **H100),
        given("the same, 200 tokens", config=LLAMA, n_cached=200, bytes_per_number=2, **H100),
        given("the same, 8,192 tokens: never", config=LLAMA, n_cached=8192, bytes_per_number=2,
              **H100),
        given("8-bit weights alone", config=LLAMA, n_cached=0, bytes_per_number=2,
              bytes_per_weight=1, **H100),
        given("4-bit weights, 100 tokens", config=LLAMA, n_cached=100, bytes_per_number=2,
              bytes_per_weight=0.5, **H100),
        given("Llama-2-7B, 86 tokens: never", config=LLAMA_2, n_cached=86, bytes_per_number=2,
              **H100),
        given("Llama-3-8B, 392 tokens: nearly balanced", config=LLAMA, n_cached=392,
              bytes_per_number=2, **H100),
        given("one sequence is enough", config=QWEN, n_cached=10, bytes_per_number=2,
              bandwidth_bytes_per_s=1e12, peak_flops_per_s=0.9e12),
        given("float32", config=LLAMA, n_cached=0, bytes_per_number=4, **H100),
        given("exactly 8 sequences", config=LLAMA, n_cached=0, bytes_per_number=2, **_exactly(8)),
        given("each sequence adds as much reading as computing: never", config=LLAMA,
              n_cached=100, bytes_per_number=2, **_balanced(100)),
    ),
    draw=_draw_batch,
    drive=lambda answer, inputs: answer(**inputs),
    wrong={
        "the ridge point, whatever the weights take and the caches add": _batch(
            lambda g, w, r, c: math.ceil(_ridge_of(g))
        ),
        "bytes_per_weight / 2 times the ridge: the caches are left out": _batch(
            lambda g, w, r, c: math.ceil(_ridge_of(g) * _weight_of(g) / 2)
        ),
        "the caches are left out: each sequence adds reading too": _batch(
            lambda g, w, r, c: math.ceil(w / c)
        ),
        "the caches are added on the wrong side: they make the batch larger": _batch(
            lambda g, w, r, c: math.ceil(w / (c + r))
        ),
        "one cache for the whole batch: each sequence has its own": _batch(
            lambda g, w, r, c: math.ceil((w + r) / c)
        ),
        "the new token's own key is forgotten: it sees n_cached + 1": _batch(_own_key_forgotten),
        "rounded down: that batch still reads for longer": _or_none(
            lambda g, w, r, c: math.floor(w / (c - r))
        ),
        "not rounded: sequences are whole": _or_none(lambda g, w, r, c: w / (c - r)),
        "one too many: rounded up, and one more": _or_none(
            lambda g, w, r, c: math.ceil(w / (c - r)) + 1
        ),
        "int(…) + 1: where the quotient is whole, that is one sequence too many": _or_none(
            lambda g, w, r, c: int(w / (c - r)) + 1
        ),
        "None only where reading takes longer: where it takes as long, no batch is enough": _batch(
            lambda g, w, r, c: (
                None if r > c else math.ceil(w / (c - r)) if r < c else 10**9
            )
        ),
        "always 2 bytes a number: bytes_per_number is ignored": (
            lambda config, n_cached, bandwidth_bytes_per_s, peak_flops_per_s, bytes_per_number,
            bytes_per_weight=None: compute_bound_batch(
                config, n_cached, bandwidth_bytes_per_s, peak_flops_per_s, 2, bytes_per_weight
            )
        ),
        "a negative batch where none is large enough: the answer is None": _batch(
            lambda g, w, r, c: math.ceil(w / (c - r))
        ),
        "0 where no batch is large enough: the answer is None": _never_is(0),
        "infinity where no batch is large enough: the answer is None": _never_is(math.inf),
        "None for a batch that is large but finite: a count that gives up too early": _or_none(
            lambda g, w, r, c: None if w > 5000 * (c - r) else math.ceil(w / (c - r))
        ),
        "bytes_per_weight is ignored": _or_none(
            lambda g, w, r, c: math.ceil(w * g["bytes_per_number"] / _weight_of(g) / (c - r))
        ),
    },
    right={
        "a search for the first batch": _or_none(_search),
        "in exact fractions": _batch(_batch_fractions),
        "upside down, with //": _or_none(lambda g, w, r, c: -int(-w // (c - r))),
    },
)  # fmt: skip
