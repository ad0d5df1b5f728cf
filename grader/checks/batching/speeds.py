"""Lesson 10: the speed of one user and of all of them, against the batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from grader.checks.batching.lesson import LESSON
from grader.judging.compare import Comparison
from grader.judging.exercise import Exercise, Inputs, given
from inferlab.batching import decode_speeds
from inferlab.config import ModelConfig
from inferlab.data import model_preset
from inferlab.kv_cache import kv_cache_bytes
from inferlab.roofline import body_params, forward_flops, step_bound_s

LLAMA = model_preset("llama-3-8b")
H100 = {"bandwidth_bytes_per_s": 3.35e12, "peak_flops_per_s": 9.894e14}


def _draw(rng: np.random.Generator) -> Inputs:
    """Bound by memory or by arithmetic in turn; the cache is of the size of the weights."""
    n_kv_heads = int(rng.choice([2, 4]))
    n_heads, d_head = 5 * n_kv_heads, int(rng.choice([64, 96]))
    config = ModelConfig(int(rng.integers(20, 40)), 1280, n_heads, n_kv_heads, d_head, 5000, 32000)
    compute_bound = bool(rng.integers(2))
    return {
        "config": config,
        "n_cached": int(rng.integers(20, 60)) if compute_bound else int(rng.integers(3000, 9000)),
        "n_sequences": int(rng.integers(200, 400)) if compute_bound else int(rng.integers(8, 40)),
        "bandwidth_bytes_per_s": float(rng.uniform(1e12, 4e12)),
        "peak_flops_per_s": float(rng.uniform(1e14, 2e14)),
        "bytes_per_number": int(rng.choice([1, 4])),
    }


def _speeds(step: Callable[..., float], result: Callable = lambda s, n: (1 / s, n / s), check=True):
    """decode_speeds with another time of a step, or another result."""

    def answer(
        config,
        n_cached,
        n_sequences,
        bandwidth_bytes_per_s,
        peak_flops_per_s,
        bytes_per_number=2,
    ):
        if check and n_sequences < 1:
            raise ValueError("n_sequences must be at least 1")
        args = (config, n_cached, n_sequences, bandwidth_bytes_per_s, peak_flops_per_s)
        return result(step(*args, bytes_per_number), n_sequences)

    return answer


def _step(c, t, n, bandwidth, peak, b):
    return step_bound_s(c, 1, t, bandwidth, peak, b, n)


def _weight_bytes(c, b):
    return (body_params(c) + c.d_model * c.vocab_size) * b


def _written_out(c, t, n, bandwidth, peak, b):
    """The bound from its parts, without step_bound_s."""
    read = (_weight_bytes(c, b) + n * kv_cache_bytes(c, t, 1, b)) / bandwidth
    return max(read, n * forward_flops(c, 1, t) / peak)


def _array(s: float, n: int) -> Any:
    return np.array([1.0, n]) / s


SPEEDS = Exercise(
    id="decode_speeds",
    reference=decode_speeds,
    lesson=LESSON,
    points=2,
    minutes=6,
    difficulty=1,
    hints=(
        "One step gives every user one token. So the step's time alone decides the speed of one "
        "user.",
        "step_bound_s takes the number of sequences as its last argument but one, after "
        "bytes_per_number; n_new is 1, and n_cached comes behind it.",
        "step_s = step_bound_s(config, 1, n_cached, bandwidth_bytes_per_s, peak_flops_per_s, "
        "bytes_per_number, n_sequences); return 1 / step_s, n_sequences / step_s",
    ),
    cases=(
        given("Llama-3-8B, 16 users of 8,192 tokens", config=LLAMA, n_cached=8192, n_sequences=16,
              **H100),
        given("Llama-3-8B, one user", config=LLAMA, n_cached=1000, n_sequences=1, **H100),
        given("Llama-3-8B, 600 users of 50 tokens: arithmetic is the limit", config=LLAMA,
              n_cached=50, n_sequences=600, **H100),
        given("no user at all: ValueError", config=LLAMA, n_cached=50, n_sequences=0, **H100),
    ),
    draw=_draw,
    n_draws=10,
    comparison=Comparison(terms=lambda i: 16, why="a dozen products and quotients"),
    wrong={
        "a batch of one is timed: step_bound_s needs n_sequences too": _speeds(
            lambda c, t, n, bw, f, b: step_bound_s(c, 1, t, bw, f, b)
        ),
        "the caches are left out: each user's keys and values are read in every step": _speeds(
            lambda c, t, n, bw, f, b: max(
                _weight_bytes(c, b) / bw, n * forward_flops(c, 1, t) / f
            )
        ),
        "one cache for all: every user has keys and values of their own": _speeds(
            lambda c, t, n, bw, f, b: max(
                (_weight_bytes(c, b) + kv_cache_bytes(c, t, 1, b)) / bw,
                n * forward_flops(c, 1, t) / f,
            )
        ),
        "the weights are counted for every user: one pass reads them once for all": _speeds(
            lambda c, t, n, bw, f, b: n * step_bound_s(c, 1, t, bw, f, b)
        ),
        "only reading is counted: from some batch on arithmetic takes longer": _speeds(
            lambda c, t, n, bw, f, b: step_bound_s(c, 1, t, bw, float("inf"), b, n)
        ),
        "only arithmetic is counted: decoding mostly waits for memory": _speeds(
            lambda c, t, n, bw, f, b: n * forward_flops(c, 1, t) / f
        ),
        "a prefill of n_cached tokens is timed: a decode step runs 1 new token": _speeds(
            lambda c, t, n, bw, f, b: step_bound_s(c, t, 0, bw, f, b, n)
        ),
        "one sequence with B new tokens: B users have a cache each": _speeds(
            lambda c, t, n, bw, f, b: step_bound_s(c, n, t, bw, f, b)
        ),
        "bytes_per_number is ignored: 2 is only the default": _speeds(
            lambda c, t, n, bw, f, b: _step(c, t, n, bw, f, 2)
        ),
        "the two are swapped: first the speed of one user, then of all": _speeds(
            _step, lambda s, n: (n / s, 1 / s)
        ),
        "one user's speed is divided by the batch: every user gets a token in every step": _speeds(
            _step, lambda s, n: (1 / s / n, 1 / s)
        ),
        "seconds are returned, not tokens a second": _speeds(_step, lambda s, n: (s, s / n)),
        "a batch of 0 is accepted: ValueError, since nobody decodes": _speeds(_step, check=False),
    },
    right={
        "the bound written out from its parts": _speeds(_written_out),
        "an array of the two": _speeds(_step, _array),
        "the speed of all first, then its share": _speeds(
            _step, lambda s, n: [n * (1 / s) / n, n * (1 / s)]
        ),
    },
)  # fmt: skip
