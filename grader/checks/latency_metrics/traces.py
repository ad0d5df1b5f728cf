"""Lesson 11: requests to judge on, and how close a difference of two times can be."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from grader.judging.compare import Comparison
from inferlab.latency_metrics import RequestTrace


def trace(arrival_s: float, *token_times_s: float, start_s: float | None = None) -> RequestTrace:
    """A complete request, its tokens at these times."""
    return RequestTrace(arrival_s, token_times_s, start_s)


def failed(arrival_s: float, *token_times_s: float) -> RequestTrace:
    return RequestTrace(arrival_s, token_times_s, None, failed=True)


def draw_trace(rng: np.random.Generator, n_tokens: int, arrival_s: float) -> RequestTrace:
    """A request that waits, is prefilled, and writes n_tokens at uneven gaps."""
    start = arrival_s + rng.uniform(0.2, 0.6)
    gaps = rng.uniform(0.01, 0.2, n_tokens - 1)
    times = start + rng.uniform(0.05, 0.3) + np.concatenate([[0.0], np.cumsum(gaps)])
    return RequestTrace(float(arrival_s), tuple(map(float, times)), float(start))


def draw_traces(
    rng: np.random.Generator, n_tokens: Iterable[int], n_failed: int = 0, start_s: float = 100.0
) -> list[RequestTrace]:
    """Requests of these lengths, shuffled; n_failed more broke off after two or three tokens."""
    lengths = list(n_tokens)
    arrivals = start_s + rng.uniform(0, 5, len(lengths) + n_failed)
    traces = [draw_trace(rng, n, a) for n, a in zip(lengths, arrivals, strict=False)]
    for arrival in arrivals[len(lengths) :]:
        cut = draw_trace(rng, int(rng.integers(2, 4)), arrival)
        traces.append(RequestTrace(cut.arrival_s, cut.token_times_s, cut.start_s, failed=True))
    return [traces[i] for i in rng.permutation(len(traces))]


def latest(inputs: Mapping[str, Any]) -> float:
    """The largest time in the inputs: a difference of times is as exact as the times are."""
    one = inputs.get("trace")
    traces = [one] if one is not None else inputs["traces"]
    return max((t for x in traces for t in (x.arrival_s, *x.token_times_s)), default=1.0)


def most_tokens(inputs: Mapping[str, Any]) -> float:
    one = inputs.get("trace")
    traces = [one] if one is not None else inputs["traces"]
    return 2.0 + sum(len(x.token_times_s) for x in traces)


CLOCK = Comparison(
    terms=most_tokens,
    magnitude=latest,
    why="differences of clock times, as exact as the clock's numbers, and sums of them",
)
