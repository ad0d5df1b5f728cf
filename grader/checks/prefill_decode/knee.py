"""Lesson 03: from which prompt length on a prefill is bound by computing."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import count
from typing import Any

import numpy as np

from grader.checks.prefill_decode.costs import (
    EIGHT_B,
    H100,
    SMOL,
    draw_config,
    draw_device,
    head_flops,
)
from grader.checks.prefill_decode.lesson import LESSON
from grader.judging.exercise import Exercise, Inputs, given
from inferlab.prefill_decode import pass_read_bytes, prefill_knee
from inferlab.roofline import body_params, forward_flops


def _draw_knee(rng: np.random.Generator) -> Inputs:
    return {
        "config": draw_config(rng),
        **draw_device(rng),
        "bytes_per_number": int(rng.choice([1, 4])),
    }


def _knee(change: Callable[[Any, float, float, int], Any]):
    """prefill_knee from change(config, bandwidth, peak, bytes_per_number)."""

    def knee(config, bandwidth_bytes_per_s, peak_flops_per_s, bytes_per_number=2):
        return change(config, bandwidth_bytes_per_s, peak_flops_per_s, bytes_per_number)

    return knee


def _first_length(flops: Callable[[int], float], read: float, bw: float, peak: float) -> int:
    n = 1
    while flops(n) / peak < read / bw:
        n += 1
    return n


def _knee_quadratic(config, bandwidth_bytes_per_s, peak_flops_per_s, bytes_per_number=2):
    """forward_flops(n) = a n² + b n + head, solved for the FLOPs that fit into the reading time."""
    a = 2 * config.n_layers * config.n_heads * config.d_head
    b = a + 2 * body_params(config)
    fits = pass_read_bytes(config, 0, 1, bytes_per_number) / bandwidth_bytes_per_s
    c = head_flops(config) - fits * peak_flops_per_s
    return max(1, math.ceil((-b + math.sqrt(b * b - 4 * a * c)) / (2 * a)))


def _knee_bisect(config, bandwidth_bytes_per_s, peak_flops_per_s, bytes_per_number=2):
    read_s = pass_read_bytes(config, 0, 1, bytes_per_number) / bandwidth_bytes_per_s
    low, high = 0, 1 << 22  # reading takes longer at low (or low is 0), not at high
    while high - low > 1:
        middle = (low + high) // 2
        enough = forward_flops(config, middle) / peak_flops_per_s >= read_s
        low, high = (low, middle) if enough else (middle, high)
    return high


KNEE = Exercise(
    id="prefill_knee",
    reference=prefill_knee,
    lesson=LESSON,
    points=2,
    minutes=10,
    difficulty=3,
    uses=("pass_read_bytes",),
    hints=(
        "Reading takes the same time whatever the length: compute it once. Computing grows with "
        "the prompt. Look for the first length that is not too short.",
        "A loop suffices: n_prompt = 1, and while forward_flops(config, n_prompt) / peak is less "
        "than the reading time, add 1.",
        "reading_s = pass_read_bytes(config, 0, 1, bytes_per_number) / bandwidth_bytes_per_s; the "
        "loop's condition is forward_flops(config, n_prompt, 0) / peak_flops_per_s < reading_s.",
    ),
    cases=(
        given("8B-style on an H100", config=EIGHT_B, **H100),
        given(
            "8B-style on an H100, weights of one byte", config=EIGHT_B, **H100, bytes_per_number=1
        ),
        given(
            "SmolLM2 in float32 on a laptop",
            config=SMOL,
            bandwidth_bytes_per_s=40e9,
            peak_flops_per_s=250e9,
            bytes_per_number=4,
        ),
        given(
            "computing is slower from the first token on",
            config=SMOL,
            bandwidth_bytes_per_s=1e12,
            peak_flops_per_s=1e9,
        ),
        given(
            "7 tokens compute exactly as long as reading takes, 1 s",
            config=SMOL,
            bandwidth_bytes_per_s=float(pass_read_bytes(SMOL)),
            peak_flops_per_s=float(forward_flops(SMOL, 7)),
        ),
    ),
    draw=_draw_knee,
    wrong={
        "the ridge, whatever the bytes: each number read is used in 2 FLOPs a token": _knee(
            lambda c, bw, peak, b: math.ceil(peak / bw)
        ),
        "the ridge upside down: FLOP/s over bytes/s": _knee(
            lambda c, bw, peak, b: max(1, math.ceil(bw / peak * b / 2))
        ),
        "ridge times bytes / 2 is the rule of thumb: here the head counts once, attention too": (
            _knee(lambda c, bw, peak, b: math.ceil(peak / bw * b / 2))
        ),
        "the rule of thumb, rounded down: it is not this count, and the next length is asked": (
            _knee(lambda c, bw, peak, b: int(peak / bw * b / 2))
        ),
        "the rule of thumb as it is: a whole number of tokens is asked, counted exactly": _knee(
            lambda c, bw, peak, b: peak / bw * b / 2
        ),
        "one too many where both take equally long: at least as long is enough": _knee(
            lambda c, bw, peak, b: next(
                n for n in count(1) if forward_flops(c, n) / peak > pass_read_bytes(c, 0, 1, b) / bw
            )
        ),
        "the prompt's own keys and values are read: the pass makes them": _knee(
            lambda c, bw, peak, b: next(
                n
                for n in count(1)
                if forward_flops(c, n) / peak >= pass_read_bytes(c, n, 1, b) / bw
            )
        ),
        "one too few: that is the longest prompt still bound by reading": _knee(
            lambda c, bw, peak, b: prefill_knee(c, bw, peak, b) - 1
        ),
        "one too many: the loop counts on once more after the first that is long enough": _knee(
            lambda c, bw, peak, b: prefill_knee(c, bw, peak, b) + 1
        ),
        "the head is computed for every token: only the last one's logits are needed": _knee(
            lambda c, bw, peak, b: _first_length(
                lambda n: forward_flops(c, n) + (n - 1) * head_flops(c),
                pass_read_bytes(c, 0, 1, b),
                bw,
                peak,
            )
        ),
        "the head's weights are left out of what is read": _knee(
            lambda c, bw, peak, b: _first_length(
                lambda n: forward_flops(c, n), b * body_params(c), bw, peak
            )
        ),
        "bytes_per_number is ignored: fewer bytes are read sooner": _knee(
            lambda c, bw, peak, b: prefill_knee(c, bw, peak)
        ),
        "attention is left out of the FLOPs: use forward_flops": _knee(
            lambda c, bw, peak, b: _first_length(
                lambda n: 2 * body_params(c) * n + head_flops(c),
                pass_read_bytes(c, 0, 1, b),
                bw,
                peak,
            )
        ),
        "a whole number of tokens is asked: the first that is long enough": _knee(
            lambda c, bw, peak, b: float(prefill_knee(c, bw, peak, b)) - 0.5
        ),
    },
    right={
        "the quadratic equation": _knee_quadratic,
        "bisection": _knee_bisect,
    },
)
