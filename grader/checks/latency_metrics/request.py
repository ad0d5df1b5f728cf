"""Lesson 11: the latencies of one request."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np

from grader.checks.latency_metrics.lesson import LESSON
from grader.checks.latency_metrics.traces import CLOCK, draw_trace, failed, trace
from grader.judging.exercise import Exercise, Inputs, given
from inferlab.latency_metrics import RequestTrace, request_latencies

# ---- request_latencies ---------------------------------------------------------------------------


def _draw_request(rng: np.random.Generator) -> Inputs:
    return {"trace": draw_trace(rng, int(rng.integers(4, 9)), float(rng.uniform(100, 200)))}


def _latencies(**changes: Callable[[RequestTrace, dict], Any]) -> Callable:
    """A wrong request_latencies: some of the four entries made by change(trace, right ones)."""

    def answer(trace):
        right = request_latencies(trace)
        return right | {name: change(trace, right) for name, change in changes.items()}

    return answer


def _tpot(of: Callable[[dict, int], float]) -> Callable:
    """A wrong TPOT for two tokens or more; one token gives 0.0 as it should."""

    def change(trace, right):
        n = len(trace.token_times_s)
        return of(right, n) if n > 1 else 0.0

    return _latencies(tpot_s=change)


def _single(value: Callable[[dict], Any]) -> Callable:
    """A wrong TPOT for an answer of one token."""
    return _latencies(
        tpot_s=lambda t, right: right["tpot_s"] if len(t.token_times_s) > 1 else value(right)
    )


def _divides_by_zero(trace):
    times = trace.token_times_s
    if not times:
        raise ValueError("no tokens")
    tpot = (times[-1] - times[0]) / (len(times) - 1)
    return request_latencies(trace) | {"tpot_s": tpot}


def _unguarded(trace):
    times = trace.token_times_s
    first, last = times[0], times[-1]
    return request_latencies(trace) | {"ttft_s": first - trace.arrival_s, "e2e_s": last}


def _empty_is_zero(trace):
    if not trace.token_times_s:
        return {"ttft_s": 0.0, "itl_s": [], "tpot_s": 0.0, "e2e_s": 0.0}
    return request_latencies(trace)


def _refuses_failures(trace):
    if trace.failed:
        raise ValueError("failed")
    return request_latencies(trace)


def _merged(trace):
    """Tokens at the same moment taken as one."""
    return request_latencies(replace(trace, token_times_s=tuple(sorted({*trace.token_times_s}))))


def _in_milliseconds(trace):
    right = request_latencies(trace)
    return {k: [1e3 * g for g in v] if k == "itl_s" else 1e3 * v for k, v in right.items()}


def _numpy_latencies(trace):
    times = np.array(trace.token_times_s)
    if times.size == 0:
        raise ValueError("no tokens")
    gaps = np.diff(times)
    ttft, e2e = times[[0, -1]] - trace.arrival_s
    tpot = gaps.mean() if gaps.size else 0.0
    return {"ttft_s": ttft, "itl_s": gaps, "tpot_s": tpot, "e2e_s": e2e}


def _by_parts(trace):
    """The other way round: e2e from the parts, TPOT from e2e."""
    ttft = min(trace.token_times_s) - trace.arrival_s
    gaps = [b - a for a, b in pairwise(trace.token_times_s)]
    e2e = ttft + sum(gaps)
    tpot = (e2e - ttft) / len(gaps) if gaps else 0
    return {"e2e_s": e2e, "tpot_s": tpot, "itl_s": tuple(gaps), "ttft_s": ttft}


def _exact_latencies(trace):
    times = [Fraction(t) for t in trace.token_times_s]
    if not times:
        raise ValueError(trace)
    asked = Fraction(trace.arrival_s)
    gaps = [times[i + 1] - times[i] for i in range(len(times) - 1)]
    return {
        "ttft_s": float(times[0] - asked),
        "itl_s": list(map(float, gaps)),
        "tpot_s": float(sum(gaps) / max(1, len(gaps))),
        "e2e_s": float(times[-1] - asked),
    }


REQUEST = Exercise(
    id="request_latencies",
    reference=request_latencies,
    lesson=LESSON,
    points=2,
    minutes=8,
    difficulty=1,
    hints=(
        "All four are differences of two times. The user's clock starts at arrival_s, whatever "
        "the engine did after that.",
        "n tokens have n - 1 gaps: itertools.pairwise(times) gives the neighbours. TPOT is the "
        "whole stretch from first to last token, divided by the number of gaps.",
        '{"ttft_s": times[0] - trace.arrival_s, "itl_s": [b - a for a, b in pairwise(times)], '
        '"tpot_s": (times[-1] - times[0]) / (n - 1) if n > 1 else 0.0, '
        '"e2e_s": times[-1] - trace.arrival_s}',
    ),
    cases=(
        given("tokens at 10.5, 10.6, 10.9", trace=trace(10.0, 10.5, 10.6, 10.9)),
        given("four tokens, 25 ms apart", trace=trace(0.0, 0.2, 0.225, 0.25, 0.275, start_s=0.15)),
        given("one token", trace=trace(3.0, 3.5, start_s=3.2)),
        given("two tokens", trace=trace(3.0, 3.5, 3.75)),
        given("three tokens in one burst", trace=trace(1.0, 2.0, 2.0, 2.0, 2.75)),
        given("it failed after two tokens", trace=failed(2.0, 2.5, 2.75)),
        given("no tokens", trace=trace(1.0)),
    ),
    draw=_draw_request,
    comparison=CLOCK,
    wrong={
        "TPOT is divided by n: n tokens have n - 1 gaps": _tpot(
            lambda right, n: (right["e2e_s"] - right["ttft_s"]) / n
        ),
        "TPOT includes the first token's wait: start at the first token, not at arrival_s": _tpot(
            lambda right, n: right["e2e_s"] / (n - 1)
        ),
        "TPOT is e2e / n: that mixes the wait for the first token into the streaming speed": _tpot(
            lambda right, n: right["e2e_s"] / n
        ),
        "TPOT is the median gap; it is their mean, stalls included": _tpot(
            lambda right, n: float(np.median(right["itl_s"]))
        ),
        "TPOT is the largest gap; it is their mean": _tpot(lambda right, n: max(right["itl_s"])),
        "a single token divides by zero: its TPOT is 0.0": _divides_by_zero,
        "the TPOT of a single token is its TTFT; with no gap it is 0.0": _single(
            lambda right: right["ttft_s"]
        ),
        "the TPOT of a single token is nan; with no gap it is 0.0": _single(lambda right: math.nan),
        "the TPOT of a single token is None; with no gap it is 0.0": _single(lambda right: None),
        "TTFT counts from start_s: the wait in the queue is forgotten": _latencies(
            ttft_s=lambda t, right: t.token_times_s[0] - (t.start_s or 0.0)
        ),
        "TTFT is how long the prefill waited: start_s - arrival_s leaves the prefill out": (
            _latencies(ttft_s=lambda t, right: (t.start_s or 0.0) - t.arrival_s)
        ),
        "the first entry of ITL is TTFT: there are n - 1 gaps, between tokens": _latencies(
            itl_s=lambda t, right: [right["ttft_s"], *right["itl_s"]]
        ),
        "ITL holds times since the first token; gaps between neighbours are asked": _latencies(
            itl_s=lambda t, right: [x - t.token_times_s[0] for x in t.token_times_s[1:]]
        ),
        "the ITL of a single token is [0.0]: it has no gap, an empty list is asked": _latencies(
            itl_s=lambda t, right: right["itl_s"] or [0.0]
        ),
        "tokens at the same moment are merged: they are two tokens, with a gap of 0": _merged,
        "ITL is one mean number: that is TPOT. ITL is the list of the gaps": _latencies(
            itl_s=lambda t, right: right["tpot_s"]
        ),
        "ITL is sorted: it is in the order of the tokens, so that a stall can be placed": (
            _latencies(itl_s=lambda t, right: sorted(right["itl_s"], reverse=True))
        ),
        "e2e counts from the first token: the user asked at arrival_s": _latencies(
            e2e_s=lambda t, right: right["e2e_s"] - right["ttft_s"]
        ),
        "e2e counts from start_s: the wait in the queue is forgotten": _latencies(
            e2e_s=lambda t, right: t.token_times_s[-1] - (t.start_s or 0.0)
        ),
        "e2e is the clock time of the last token; subtract arrival_s": _unguarded,
        "milliseconds: seconds are asked": _in_milliseconds,
        "a failed request is refused: the tokens that came have their times": _refuses_failures,
        "a trace without tokens gives zeros; nothing was measured: raise ValueError": (
            _empty_is_zero
        ),
    },
    right={
        "NumPy's diff and mean": _numpy_latencies,
        "e2e as the sum of its parts": _by_parts,
        "in fractions": _exact_latencies,
    },
)
