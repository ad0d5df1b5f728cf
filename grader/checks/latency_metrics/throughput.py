"""Lesson 11: throughput."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import Any

import numpy as np

from grader.checks.latency_metrics.lesson import LESSON
from grader.checks.latency_metrics.traces import draw_traces, failed, latest, trace
from grader.judging.compare import Comparison
from grader.judging.exercise import Exercise, Inputs, given
from inferlab.latency_metrics import throughput


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


def _only_no_length(traces, start_s, end_s):
    """Refuses what it could not divide by, and nothing else."""
    if end_s >= start_s:
        return throughput(traces, start_s, end_s)
    return {"requests_per_s": -0.0, "tokens_per_s": -0.0}  # nothing inside, by less than 0 s


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
    trace(0.4, 1.75, 1.75, 1.75),
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
        given("a window that ends before it begins", traces=WINDOW, start_s=2.0, end_s=0.0),
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
        "counts answers with any token inside: they are complete at the last": _rates(
            requests=lambda t, inside: not t.failed and any(map(inside, t.token_times_s))
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
        "tokens at the same moment count once: each is a token": _rates(
            tokens=lambda t, inside: sum(map(inside, {*t.token_times_s}))
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
        "a window that ends before it begins gives rates: raise ValueError": _only_no_length,
        "requests/s as 1 / mean latency: many are served at the same time": _inverse_latency,
        "counts, not rates: divide by the seconds": _rates(seconds=lambda traces, start, end: 1.0),
    },
    right={
        "NumPy, all tokens in one array": _numpy_rates,
        "with functions for the two counts": _rates(),
    },
)
