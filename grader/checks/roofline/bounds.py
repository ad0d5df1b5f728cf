"""Lesson 01: bytes of a pass, and the time that they and its FLOPs bound."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np

from grader.checks.roofline.lesson import LESSON
from grader.checks.roofline.matmul import QUOTIENT, as_float
from grader.checks.roofline.passes import EXPERTS, LLAMA, QWEN, head, per_key
from grader.checks.roofline.sizes import draw_config
from grader.judging.exercise import Exercise, Inputs, given
from inferlab.config import ModelConfig
from inferlab.roofline import (
    body_params,
    forward_flops,
    step_bound_s,
    step_bytes,
)

H100 = {"bandwidth_bytes_per_s": 3.35e12, "peak_flops_per_s": 989.4e12}
CPU = {"bandwidth_bytes_per_s": 2.1e10, "peak_flops_per_s": 1.9e11}


def multiplied(c: Any) -> int:
    """Weights that a pass reads: body and head."""
    return body_params(c) + head(c)


# ---- bytes of a pass ----------------------------------------------------------------------------


def _draw_bytes(rng: np.random.Generator) -> Inputs:
    return {
        "config": draw_config(rng, tied_embeddings=True),
        "n_cached": int(rng.integers(2000, 9000)),
        "n_sequences": int(rng.integers(5, 40)),
        "bytes_per_number": 4,
        "bytes_per_weight": float(rng.choice([0.5, 1.5])),
    }


def _read(change: Callable[[Any, int, int, float, float], Any]) -> Callable:
    """An answer from change(config, n_cached, n_sequences, bytes_per_number, bytes_per_weight)."""

    def answer(config, n_cached, n_sequences, bytes_per_number, bytes_per_weight=None):
        weight = bytes_per_number if bytes_per_weight is None else bytes_per_weight
        return change(config, n_cached, n_sequences, bytes_per_number, weight)

    return answer


def _cache(c: Any, n: int, s: int, b: float, heads: str = "n_kv_heads") -> float:
    return 2 * c.n_layers * getattr(c, heads) * c.d_head * n * s * b


ODD = ModelConfig(1, 3, 1, 1, 2, 3, 4)  # 63 weights: in 4 bits they take half a byte

STEP_BYTES = Exercise(
    id="step_bytes",
    reference=step_bytes,
    lesson=LESSON,
    points=2,
    minutes=8,
    difficulty=2,
    hints=(
        "Two amounts: the weights, which all sequences share, and the caches, which they do not.",
        "Weights: (body_params(config) + d_model * vocab_size) at bytes_per_weight, or at "
        "bytes_per_number where that is None. Caches: kv_cache_bytes.",
        "weights * per_weight + kv_cache_bytes(config, n_cached, n_sequences, bytes_per_number)",
    ),
    cases=(
        given("the worked example", config=LLAMA, n_cached=1000, n_sequences=2, bytes_per_number=2),
        given("a prefill", config=LLAMA, n_cached=0, n_sequences=1, bytes_per_number=2),
        given(
            "4-bit weights, 16-bit cache",
            config=QWEN,
            n_cached=4096,
            n_sequences=16,
            bytes_per_number=2,
            bytes_per_weight=0.5,
        ),
        given("float32", config=QWEN, n_cached=100, n_sequences=3, bytes_per_number=4),
        given("experts", config=EXPERTS, n_cached=100, n_sequences=3, bytes_per_number=2),
        given(
            "half a byte in all that is read: one weight of 4 bits is too many for a whole number",
            config=ODD, n_cached=0, n_sequences=1, bytes_per_number=2, bytes_per_weight=0.5,
        ),
    ),
    draw=_draw_bytes,
    drive=as_float,
    comparison=QUOTIENT,
    wrong={
        "the caches are left out: they are read at every step": _read(
            lambda c, n, s, b, w: multiplied(c) * w
        ),
        "the cache of one sequence: each has its own": _read(
            lambda c, n, s, b, w: multiplied(c) * w + _cache(c, n, 1, b)
        ),
        "the weights are counted for every sequence: a step reads them once for all": _read(
            lambda c, n, s, b, w: multiplied(c) * w * s + _cache(c, n, s, b)
        ),
        "the weights are left out": _read(lambda c, n, s, b, w: _cache(c, n, s, b)),
        "all trained numbers: of the embedding only a row is read": _read(
            lambda c, n, s, b, w: (multiplied(c) + head(c)) * w + _cache(c, n, s, b)
        ),
        "config.n_params, gains and embedding too: what is multiplied is body and head": _read(
            lambda c, n, s, b, w: c.n_params * w + _cache(c, n, s, b)
        ),
        "the new token's own key and value too: what was kept before is read": _read(
            lambda c, n, s, b, w: multiplied(c) * w + _cache(c, n + 1, s, b)
        ),
        "the cache always takes 2 bytes a number: use bytes_per_number": _read(
            lambda c, n, s, b, w: multiplied(c) * w + _cache(c, n, s, 2)
        ),
        "the head is left out": _read(
            lambda c, n, s, b, w: body_params(c) * w + _cache(c, n, s, b)
        ),
        "a tied head is left out: it is read like any other": _read(
            lambda c, n, s, b, w: (
                (body_params(c) + (not c.tied_embeddings) * head(c)) * w + _cache(c, n, s, b)
            )
        ),
        "bytes_per_weight is ignored": _read(
            lambda c, n, s, b, w: multiplied(c) * b + _cache(c, n, s, b)
        ),
        "2 bytes a weight where bytes_per_weight is None: it means bytes_per_number": (
            lambda config, n_cached, n_sequences, bytes_per_number, bytes_per_weight=None: (
                multiplied(config) * (2 if bytes_per_weight is None else bytes_per_weight)
                + _cache(config, n_cached, n_sequences, bytes_per_number)
            )
        ),
        "cut off to whole bytes: two weights of 4 bits share one, so half a byte is possible": (
            _read(lambda c, n, s, b, w: int(multiplied(c) * w + _cache(c, n, s, b)))
        ),
        "the cache takes bytes_per_weight: it is stored in bytes_per_number": _read(
            lambda c, n, s, b, w: multiplied(c) * w + _cache(c, n, s, w)
        ),
        "one token's cache: all n_cached are read": _read(
            lambda c, n, s, b, w: multiplied(c) * w + _cache(c, 1, s, b)
        ),
        "query heads in place of KV heads: only KV heads are kept": _read(
            lambda c, n, s, b, w: multiplied(c) * w + _cache(c, n, s, b, "n_heads")
        ),
        "numbers, not bytes": _read(lambda c, n, s, b, w: multiplied(c) + _cache(c, n, s, 1)),
    },
    right={
        "sequence by sequence": _read(
            lambda c, n, s, b, w: (
                multiplied(c) * w + sum([_cache(c, n, 1, b) for _ in range(s)])
            )
        ),
        "written out": _read(lambda c, n, s, b, w: _cache(c, n, s, b) + w * multiplied(c)),
        "in NumPy": _read(
            lambda c, n, s, b, w: np.dot(
                np.array([multiplied(c), _cache(c, n, s, 1)], dtype=np.float64), [w, b]
            )
        ),
    },
)  # fmt: skip

# ---- the time of a pass -------------------------------------------------------------------------


def _draw_bound(rng: np.random.Generator) -> Inputs:
    """Bounded by reading or by computing, in turn, by a factor of 1.5 to 6; neither is small."""
    while True:
        n_new = int(rng.choice([1, 1, int(rng.integers(20, 400))]))
        inputs = {
            "config": draw_config(rng),
            "n_new": n_new,
            "n_cached": int(rng.integers(1000, 9000)),
            "bandwidth_bytes_per_s": float(rng.integers(100, 5000)) * 1e9,
            "peak_flops_per_s": float(rng.integers(20, 1000)) * 1e12,
            "bytes_per_number": 2,
            "n_sequences": int(rng.integers(3, 60)),
            "bytes_per_weight": 1.5,
        }
        reads, computes = _two_times(**inputs)
        if 1.5 < max(reads, computes) / min(reads, computes) < 6:
            return inputs


def _two_times(
    config, n_new, n_cached, bandwidth_bytes_per_s, peak_flops_per_s, bytes_per_number=4,
    n_sequences=1, bytes_per_weight=None,
):  # fmt: skip
    """Seconds of reading, seconds of computing."""
    moved = step_bytes(config, n_cached, n_sequences, bytes_per_number, bytes_per_weight)
    flops = n_sequences * forward_flops(config, n_new, n_cached)
    return moved / bandwidth_bytes_per_s, flops / peak_flops_per_s


def _bound(change: Callable[..., Any]) -> Callable:
    """An answer from change(inputs as keywords, seconds of reading, seconds of computing)."""

    def answer(
        config, n_new, n_cached, bandwidth_bytes_per_s, peak_flops_per_s, bytes_per_number=4,
        n_sequences=1, bytes_per_weight=None,
    ):  # fmt: skip
        given_ = {
            "config": config, "n_new": n_new, "n_cached": n_cached,
            "bandwidth_bytes_per_s": bandwidth_bytes_per_s, "peak_flops_per_s": peak_flops_per_s,
            "bytes_per_number": bytes_per_number, "n_sequences": n_sequences,
            "bytes_per_weight": bytes_per_weight,
        }  # fmt: skip
        return change(given_, *_two_times(**given_))

    return answer


def _with(**other: Any) -> Callable:
    """The right answer to another question: some inputs replaced."""
    return _bound(lambda g, reads, computes: max(_two_times(**{**g, **other})))


def _without_cache(g: Any, reads: float, computes: float) -> float:
    return max(_two_times(**{**g, "n_cached": 0})[0], computes)


def _one_cache(g: Any, reads: float, computes: float) -> float:
    return max(_two_times(**{**g, "n_sequences": 1})[0], computes)


def _weights_each(g: Any, reads: float, computes: float) -> float:
    alone = {**g, "n_sequences": 1}
    return max(_two_times(**alone)[0] * g["n_sequences"], computes)


def _one_computes(g: Any, reads: float, computes: float) -> float:
    return max(reads, computes / g["n_sequences"])


def _bound_exact(g: Any, reads: float, computes: float) -> float:
    c = g["config"]
    weight = g["bytes_per_number"] if g["bytes_per_weight"] is None else g["bytes_per_weight"]
    moved = multiplied(c) * Fraction(weight)
    moved += exact_cache(c, g["n_cached"] * g["n_sequences"], g["bytes_per_number"])
    pairs = g["n_new"] * g["n_cached"] + g["n_new"] * (g["n_new"] + 1) // 2
    flops = 2 * body_params(c) * g["n_new"] + 2 * head(c) + per_key(c) * pairs
    bandwidth, peak = Fraction(g["bandwidth_bytes_per_s"]), Fraction(g["peak_flops_per_s"])
    return float(max(moved / bandwidth, flops * g["n_sequences"] / peak))


def exact_cache(c: Any, n_tokens: int, b: float) -> Fraction:
    return Fraction(2 * c.n_layers * c.n_kv_heads * c.d_head * n_tokens) * Fraction(b)


def _bound_if(g: Any, reads: float, computes: float) -> float:
    intensity = computes * g["peak_flops_per_s"] / (reads * g["bandwidth_bytes_per_s"])
    ridge = g["peak_flops_per_s"] / g["bandwidth_bytes_per_s"]
    return computes if intensity > ridge else reads


BOUND = Exercise(
    id="step_bound_s",
    reference=step_bound_s,
    lesson=LESSON,
    points=3,
    minutes=10,
    difficulty=3,
    uses=("step_bytes", "forward_flops"),
    hints=(
        "Two times, in seconds: bytes over bytes/s, FLOPs over FLOP/s. Which of the two is the "
        "least that the pass can take?",
        "Reading: step_bytes(config, n_cached, n_sequences, …) / bandwidth. Computing: "
        "n_sequences * forward_flops(config, n_new, n_cached) / peak.",
        "max(read_bytes / bandwidth_bytes_per_s, n_sequences * flops / peak_flops_per_s)",
    ),
    cases=(
        given("a decode step, 1 sequence of 1,000 tokens", config=LLAMA, n_new=1, n_cached=1000,
              bytes_per_number=2, **H100),
        given("a prefill of 2,000 tokens", config=LLAMA, n_new=2000, n_cached=0,
              bytes_per_number=2, **H100),
        given("a prefill of 50 tokens: reading is longer", config=LLAMA, n_new=50, n_cached=0,
              bytes_per_number=2, **H100),
        given("32 sequences of 8,192 tokens", config=LLAMA, n_new=1, n_cached=8192,
              bytes_per_number=2, n_sequences=32, **H100),
        given("512 sequences of 100 tokens: computing is longer", config=LLAMA, n_new=1,
              n_cached=100, bytes_per_number=2, n_sequences=512, **H100),
        given("a laptop in float32, the default", config=QWEN, n_new=1, n_cached=500, **CPU),
    ),
    draw=_draw_bound,
    n_draws=6,
    drive=as_float,
    comparison=QUOTIENT,
    wrong={
        "the sum of the two: as a lower bound they overlap": _bound(lambda g, r, c: r + c),
        "the smaller of the two: both must be done": _bound(lambda g, r, c: min(r, c)),
        "reading alone: many tokens in one pass compute for longer": _bound(lambda g, r, c: r),
        "computing alone: decode speed does not follow FLOPs": _bound(lambda g, r, c: c),
        "the caches are left out of the reading": _bound(_without_cache),
        "the cache of one sequence is read: each has its own": _bound(_one_cache),
        "the weights are read for every sequence: once is enough": _bound(_weights_each),
        "the computing of one sequence: every one computes": _bound(_one_computes),
        "one token runs: a prefill runs n_new": _with(n_new=1),
        "bytes_per_weight is not handed on": _with(bytes_per_weight=None),
        "bytes_per_number is not handed on: 4 is only the default": _with(bytes_per_number=4),
        "in milliseconds: seconds are asked": _bound(lambda g, r, c: 1e3 * max(r, c)),
        "steps a second: seconds are asked": _bound(lambda g, r, c: 1 / max(r, c)),
        "seconds for each sequence: all of them run in the same step": _bound(
            lambda g, r, c: max(r, c) / g["n_sequences"]
        ),
    },
    right={
        "in exact fractions": _bound(_bound_exact),
        "from the intensity and the ridge": _bound(_bound_if),
        "np.maximum": _bound(lambda g, r, c: np.maximum(np.float64(r), c)),
    },
)  # fmt: skip
