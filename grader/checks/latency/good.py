"""Lesson 11: throughput and goodput."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import Any

import numpy as np

from grader.checks.latency.lesson import LESSON
from grader.checks.latency.traces import draw_traces, failed, latest, trace
from grader.compare import Comparison
from grader.exercise import Exercise, Inputs, given
from inferlab.metrics import goodput, request_latencies, throughput

# ---- throughput ----------------------------------------------------------------------------------


def _draw_window(rng: np.random.Generator) -> Inputs:
    """Requests that begin before the window, end after it, or fail inside it."""
    while True:
        lengths = rng.integers(3, 25, 14)
        inputs = {
            "traces": draw_traces(rng, lengths, n_failed=3),
            "start_s": float(rng.uniform(101.2, 101.8)),
            "end_s": float(rng.uniform(104.2, 104.9)),
        }
        counts = [_counts(inputs, kind) for kind in ("last", "first", "whole")]
        if len({*counts}) == 3 and _counts(inputs, "failed") and counts[0] > 3:
            return inputs


def _counts(inputs: Inputs, kind: str) -> int:
    start, end = inputs["start_s"], inputs["end_s"]
    n = 0
    for one in inputs["traces"]:
        first, last = (start <= one.token_times_s[i] < end for i in (0, -1))
        if kind == "failed":
            n += one.failed and last
        elif not one.failed:
            n += {"last": last, "first": first, "whole": last and one.arrival_s >= start}[kind]
    return n


def _rates(
    requests: Callable[[Any, Callable[[float], bool]], Any] = lambda t, inside: (
        not t.failed and inside(t.token_times_s[-1])
    ),
    tokens: Callable[[Any, Callable[[float], bool]], Any] = lambda t, inside: sum(
        map(inside, t.token_times_s)
    ),
    seconds: Callable[[Any, float, float], float] = lambda traces, start, end: end - start,
    closed: Callable[[float, float, float], bool] = lambda x, start, end: start <= x < end,
) -> Callable:
    """throughput with one of its parts replaced."""

    def answer(traces, start_s, end_s):
        if end_s <= start_s:
            raise ValueError(end_s)
        traces = list(traces)

        def inside(x):
            return closed(x, start_s, end_s)

        length = seconds(traces, start_s, end_s)
        return {
            "requests_per_s": sum(requests(t, inside) for t in traces) / length,
            "tokens_per_s": sum(tokens(t, inside) for t in traces) / length,
        }

    return answer


def _busy_span(traces, start, end):
    times = [t for x in traces for t in x.token_times_s if start <= t < end]
    return max(times) - min(times) if len(times) > 1 else end - start


def _inverse_latency(traces, start_s, end_s):
    right = throughput(traces, start_s, end_s)
    done = [t for t in traces if not t.failed and t.token_times_s]
    mean = float(np.mean([t.token_times_s[-1] - t.arrival_s for t in done])) if done else 1.0
    return right | {"requests_per_s": 1 / mean}


def _numpy_rates(traces, start_s, end_s):
    if not end_s > start_s:
        raise ValueError("empty window")
    tokens = np.array(list(chain.from_iterable(t.token_times_s for t in traces)))
    last = np.array([t.token_times_s[-1] for t in traces if not t.failed])
    n_tokens, n_requests = (
        np.count_nonzero((times >= start_s) & (times < end_s)) for times in (tokens, last)
    )
    return {
        "requests_per_s": n_requests / (end_s - start_s),
        "tokens_per_s": n_tokens / (end_s - start_s),
    }


WINDOW = [
    trace(0.0, 0.5, 1.5, 2.5),
    trace(0.3, 1.0),
    failed(0.2, 0.7, 1.9),
    failed(1.0),
    trace(1.2, 2.0, 2.2),
    trace(-1.0, -0.5, 0.0),
]

THROUGHPUT = Exercise(
    id="throughput",
    reference=throughput,
    lesson=LESSON,
    points=2,
    minutes=8,
    difficulty=2,
    hints=(
        "Both rates have the window's length below the line. What differs is what is counted: "
        "answers that became complete, or single tokens.",
        "A time t is inside if start_s <= t < end_s. An answer is complete at its last token, and "
        "only if it has not failed (a failed one may have no token at all).",
        "n_tokens += sum(inside) for inside = [start_s <= t < end_s for t in "
        "trace.token_times_s]; n_requests += not trace.failed and inside[-1]; divide both by "
        "end_s - start_s.",
    ),
    cases=(
        given("two requests, 0 to 2", traces=WINDOW[:2], start_s=0.0, end_s=2.0),
        given("failures, and times on the edges", traces=WINDOW, start_s=0.0, end_s=2.0),
        given("a window without anything", traces=WINDOW, start_s=5.0, end_s=7.0),
        given("nobody came", traces=[], start_s=0.0, end_s=2.0),
        given("a window of no length", traces=WINDOW, start_s=2.0, end_s=2.0),
    ),
    draw=_draw_window,
    comparison=Comparison(
        terms=lambda i: 4,
        why="counts, divided by a difference of two times",
        magnitude=lambda i: 100 * latest(i),
    ),
    wrong={
        "counts answers by their first token: they are complete at the last": _rates(
            requests=lambda t, inside: not t.failed and inside(t.token_times_s[0])
        ),
        "counts answers by their arrival: that is the load offered, not what was delivered": (
            _rates(requests=lambda t, inside: not t.failed and inside(t.arrival_s))
        ),
        "only answers that began in the window too: the end decides": _rates(
            requests=lambda t, inside: (
                not t.failed and inside(t.token_times_s[-1]) and inside(t.arrival_s)
            )
        ),
        "failed requests are counted as answers": _rates(
            requests=lambda t, inside: bool(t.token_times_s) and inside(t.token_times_s[-1])
        ),
        "every request is counted, inside the window or not": _rates(
            requests=lambda t, inside: not t.failed
        ),
        "all tokens of the answers that end inside: each token has its own time": _rates(
            tokens=lambda t, inside: (
                len(t.token_times_s) if not t.failed and inside(t.token_times_s[-1]) else 0
            )
        ),
        "tokens outside the window are counted": _rates(
            tokens=lambda t, inside: len(t.token_times_s)
        ),
        "the tokens of failed requests are left out: they were delivered": _rates(
            tokens=lambda t, inside: 0 if t.failed else sum(map(inside, t.token_times_s))
        ),
        "the first token of each answer is not counted: it is one of its tokens": _rates(
            tokens=lambda t, inside: sum(map(inside, t.token_times_s[1:]))
        ),
        "divides by the time from first to last token: the window is what was asked": _rates(
            seconds=_busy_span
        ),
        "divides by end_s: the window is end_s - start_s long": _rates(
            seconds=lambda traces, start, end: end
        ),
        "end_s itself is counted: the next window would count it again": _rates(
            closed=lambda x, start, end: start <= x <= end
        ),
        "start_s itself is not counted: it belongs to this window": _rates(
            closed=lambda x, start, end: start < x < end
        ),
        "requests/s as 1 / mean latency: many are served at the same time": _inverse_latency,
        "counts, not rates: divide by the seconds": _rates(seconds=lambda traces, start, end: 1.0),
    },
    right={
        "NumPy, all tokens in one array": _numpy_rates,
        "with functions for the two counts": _rates(),
    },
)

# ---- goodput -------------------------------------------------------------------------------------


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
        "an unknown limit is ignored: a typo would then make every request good": _good(
            known=False
        ),
    },
    right={
        "NumPy masks": _numpy_goodput,
        "written out, no limit as an infinite one": _by_hand,
    },
)
