"""Lesson 11: goodput."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from grader.checks.latency_metrics.lesson import LESSON
from grader.checks.latency_metrics.traces import draw_traces, failed, trace
from grader.judging.compare import Comparison
from grader.judging.exercise import Exercise, Inputs, given
from inferlab.latency_metrics import goodput, request_latencies

NAMES = ("ttft_s", "tpot_s", "e2e_s")


def _draw_limits(rng: np.random.Generator) -> Inputs:
    """Limits that differ in whom they let through: all, any and each alone give other counts."""
    while True:
        traces = draw_traces(rng, rng.integers(3, 12, 20), n_failed=3)
        seen = [request_latencies(t) for t in traces if not t.failed]
        limits = {
            name: float(np.quantile([s[name] for s in seen], rng.uniform(0.5, 0.75)))
            for name in NAMES
        }
        met = np.array([[s[name] <= limits[name] for name in NAMES] for s in seen])
        n_all, n_any = int(met.all(1).sum()), int(met.any(1).sum())
        if 2 < n_all < min(met.sum(0)) and max(met.sum(0)) < n_any < len(seen):
            return {"traces": traces, "limits_s": limits, "duration_s": float(rng.uniform(6, 9))}


def _all_met(seen: dict, limits: dict, t: Any) -> bool:
    return all(seen[name] <= limit for name, limit in limits.items())


def _good(
    is_good: Callable[[dict, Any, Any], bool] = _all_met,
    per: Callable[[int, list, float], float] = lambda n_good, traces, duration: n_good / duration,
    with_failed: bool = False,
    known: bool = True,
) -> Callable:
    """goodput with one of its parts replaced."""

    def answer(traces, limits_s, duration_s):
        traces = list(traces)
        if known and not set(limits_s) <= set(NAMES):
            raise ValueError(f"unknown limit in {sorted(limits_s)}")
        n_good = 0
        for t in traces:
            if t.token_times_s and (with_failed or not t.failed):
                seen = request_latencies(t)
                n_good += is_good({n: seen.get(n, 0.0) for n in limits_s}, limits_s, t)
        return per(n_good, traces, duration_s)

    return answer


def _only(name: str) -> Callable:
    return _good(lambda seen, limits, t: seen.get(name, 0.0) <= limits.get(name, 0.0))


def _smallest_count(traces, limits_s, duration_s):
    traces = [t for t in traces if not t.failed]
    counts = [goodput(traces, {name: limits_s[name]}, 1.0) for name in limits_s]
    return min(counts, default=len(traces)) / duration_s


def _if_means_are_good(traces, limits_s, duration_s):
    """All or nothing: the mean latencies against the limits."""
    if not set(limits_s) <= set(NAMES):
        raise ValueError("unknown limit")
    seen = [request_latencies(t) for t in traces if not t.failed]
    good = all(np.mean([s[name] for s in seen]) <= limit for name, limit in limits_s.items())
    return len(seen) * good / duration_s


def _refuses_late(traces, limits_s, duration_s):
    n_good = 0
    for t in traces:
        if not t.failed:
            for name, limit in limits_s.items():
                if name not in NAMES:
                    raise ValueError(name)
                if request_latencies(t)[name] > limit:
                    break
            else:
                n_good += 1
    return n_good / duration_s


def _refuses_strangers_only(traces, limits_s, duration_s):
    known = {name: limits_s[name] for name in NAMES if name in limits_s}
    return goodput(traces, known or limits_s, duration_s)


def _worst_gap(seen, limits, t):
    gaps = request_latencies(t)["itl_s"] or [0.0]
    return all((max(gaps) if n == "tpot_s" else seen[n]) <= limits[n] for n in limits)


def _numpy_goodput(traces, limits_s, duration_s):
    for name in limits_s:
        if name not in ("ttft_s", "tpot_s", "e2e_s"):
            raise ValueError(name)
    seen = [request_latencies(t) for t in traces if not t.failed]
    met = np.ones(len(seen), dtype=bool)
    for name, limit in limits_s.items():
        met &= np.array([s[name] for s in seen]) <= limit
    return met.sum() / duration_s


def _by_hand(traces, limits_s, duration_s):
    """Latencies written out, no limit as an infinite one."""
    limits = {"ttft_s": float("inf"), "tpot_s": float("inf"), "e2e_s": float("inf")}
    for name, limit in limits_s.items():
        if name not in limits:
            raise ValueError(name)
        limits[name] = limit
    good = 0
    for t in traces:
        if t.failed:
            continue
        first, last, n = t.token_times_s[0], t.token_times_s[-1], len(t.token_times_s)
        in_time = first - t.arrival_s <= limits["ttft_s"] and last - t.arrival_s <= limits["e2e_s"]
        steady = n == 1 or (last - first) / (n - 1) <= limits["tpot_s"]
        good += in_time and steady
    return good / duration_s


THREE = [  # (TTFT, TPOT) of (0.4, 0.03), (0.6, 0.02) and (0.3, 0.06)
    trace(0.0, 0.4, 0.43, 0.46),
    trace(1.0, 1.6, 1.62, 1.64),
    trace(2.0, 2.3, 2.36, 2.42),
]
BOTH = {"ttft_s": 0.5, "tpot_s": 0.05}
EXACT = [trace(0.0, 0.5, 0.625, 0.75), trace(4.0, 4.25), failed(8.0, 8.25, 8.375), failed(9.0)]

GOODPUT = Exercise(
    id="goodput",
    reference=goodput,
    lesson=LESSON,
    points=2,
    minutes=8,
    difficulty=2,
    uses=("request_latencies",),
    hints=(
        "Judge each request alone: it is good or it is not. Then count the good ones and divide by "
        "the length of the run.",
        "request_latencies(trace) has the names that limits_s has. Good means that all of "
        "limits_s are met at once; a failed request is not good, and has perhaps no tokens.",
        "all(seen[name] <= limit for name, limit in limits_s.items()) for each trace that has not "
        "failed; the number of those / duration_s. Refuse unknown names first.",
    ),
    cases=(
        given("three requests, two limits", traces=THREE, limits_s=BOTH, duration_s=1.0),
        given("the same, TTFT alone", traces=THREE, limits_s={"ttft_s": 0.5}, duration_s=1.0),
        given(
            "exactly at the limits, one token, and failures",
            traces=EXACT,
            limits_s={"ttft_s": 0.5, "tpot_s": 0.125, "e2e_s": 0.75},
            duration_s=4.0,
        ),
        given("no limits: all but failures", traces=EXACT, limits_s={}, duration_s=4.0),
        given("nobody is good", traces=THREE, limits_s={"e2e_s": 0.1}, duration_s=2.0),
        given(
            "a limit that all break, and an unknown one",
            traces=THREE,
            limits_s={"e2e_s": 0.1, "ttft": 0.5},
            duration_s=2.0,
        ),
        given(
            "an unknown limit, and failures only",
            traces=EXACT[2:],
            limits_s={"ttft": 0.5},
            duration_s=2.0,
        ),
        given("an unknown limit", traces=THREE, limits_s={"itl_s": 0.1}, duration_s=2.0),
    ),
    draw=_draw_limits,
    comparison=Comparison(terms=lambda i: 2, why="a count, divided once"),
    wrong={
        "counts a request that meets any limit: it must meet all at once": _good(
            lambda seen, limits, t: any(seen[n] <= limit for n, limit in limits.items())
        ),
        "only TTFT is looked at": _only("ttft_s"),
        "only TPOT is looked at": _only("tpot_s"),
        "e2e_s is ignored": _good(
            lambda seen, limits, t: all(seen[n] <= limits[n] for n in limits if n != "e2e_s")
        ),
        "the smallest of the three counts: those are not the same requests": _smallest_count,
        "tests the mean latencies: users are good or bad one by one": _if_means_are_good,
        "the sum of the latencies against the sum of the limits: each has its own": _good(
            lambda seen, limits, t: sum(seen.values()) <= sum(limits.values())
        ),
        "the worst gap against the TPOT limit: TPOT is the mean gap": _good(_worst_gap),
        "failed requests count as good where the tokens they had came in time": _good(
            with_failed=True
        ),
        "at the limit is within it: <=, not <": _good(
            lambda seen, limits, t: all(seen[n] < limit for n, limit in limits.items())
        ),
        "a one-token answer is left out: it has no gap, so it meets any TPOT limit": _good(
            lambda seen, limits, t: (
                len(t.token_times_s) > 1 and all(seen[n] <= limit for n, limit in limits.items())
            )
        ),
        "the share of good requests: goodput is a rate, divide by duration_s": _good(
            per=lambda n, traces, duration: n / len(traces)
        ),
        "the number of good requests: divide by duration_s": _good(
            per=lambda n, traces, duration: float(n)
        ),
        "counts the bad ones": _good(
            lambda seen, limits, t: any(seen[n] > limit for n, limit in limits.items())
        ),
        "an unknown limit is seen only if a request gets as far as it: look before the loop": (
            _refuses_late
        ),
        "an unknown limit is let by beside a known one: a typo is a limit that nobody keeps": (
            _refuses_strangers_only
        ),
        "an unknown limit is ignored: a typo would then make every request good": _good(
            known=False
        ),
    },
    right={
        "NumPy masks": _numpy_goodput,
        "written out, no limit as an infinite one": _by_hand,
    },
)
