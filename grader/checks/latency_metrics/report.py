"""Lesson 11: from traces to a report."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from grader.checks.latency_metrics.lesson import LESSON
from grader.checks.latency_metrics.traces import CLOCK, draw_traces, failed, trace
from grader.judging.exercise import Exercise, Inputs, given
from inferlab.latency_metrics import RequestTrace, latency_report, percentile, request_latencies


def _drive_report(answer: Any, inputs: Inputs) -> Any:
    """The report, and beside it which percentiles each latency has."""
    report = answer(**inputs)
    if not isinstance(report, Mapping):
        return report
    which = {
        f"percentiles of {name}": list(found)
        for name, found in report.items()
        if isinstance(found, Mapping)
    }
    return {**report, **which}


def _draw_report(rng: np.random.Generator) -> Inputs:
    """So many failures that p95 is infinite and p50 is not."""
    lengths = [1, 1, 2, 3, *rng.integers(3, 9, 20)]
    n_failed = int(rng.integers(3, 6))
    return {"traces": draw_traces(rng, lengths, n_failed), "percentiles": [50, 75, 95]}


def _report(
    failure: Callable[[RequestTrace], dict | None] = lambda t: {
        "ttft_s": math.inf, "itl_s": [], "tpot_s": math.inf, "e2e_s": math.inf
    },
    of: Callable[[list[float], float], float] = percentile,
    tpot_counts: Callable[[RequestTrace, dict], bool] = lambda t, seen: (
        bool(seen["itl_s"]) or (t.failed and seen["tpot_s"] == math.inf)
    ),
    itl: Callable[[dict], list[float]] = lambda seen: seen["itl_s"],
    heads: Callable[[list, dict], dict] = lambda traces, values: {},
    empty: Any = None,
) -> Callable:  # fmt: skip
    """latency_report with one of its parts replaced."""

    def answer(traces, percentiles=(50, 95, 99)):
        values: dict[str, list[float]] = {"ttft_s": [], "itl_s": [], "tpot_s": [], "e2e_s": []}
        for t in traces:
            seen = failure(t) if t.failed else request_latencies(t)
            if seen is None:
                continue
            values["itl_s"] += itl(seen)
            values["ttft_s"].append(seen["ttft_s"])
            values["e2e_s"].append(seen["e2e_s"])
            if tpot_counts(t, seen):
                values["tpot_s"].append(seen["tpot_s"])
        report = {"n_requests": len(traces), "n_failed": sum(t.failed for t in traces)}
        report |= heads(traces, values)
        for name, found in values.items():
            report[name] = {p: of(found, p) if found else empty for p in percentiles
                            if found or empty is not None}  # fmt: skip
        return report

    return answer


def _as_seen(t: RequestTrace) -> dict | None:
    """A failed request judged by the tokens it had."""
    return request_latencies(t) if t.token_times_s else None


def _ttft_as_seen(t: RequestTrace) -> dict:
    ttft = request_latencies(t)["ttft_s"] if t.token_times_s else math.inf
    return {"ttft_s": ttft, "itl_s": [], "tpot_s": math.inf, "e2e_s": math.inf}


def _gaps_as_seen(t: RequestTrace) -> dict:
    gaps = request_latencies(t)["itl_s"] if t.token_times_s else []
    return {"ttft_s": math.inf, "itl_s": gaps, "tpot_s": math.inf, "e2e_s": math.inf}


def _ten_seconds(t: RequestTrace) -> dict:
    return {"ttft_s": 0.0, "itl_s": [], "tpot_s": math.inf, "e2e_s": 0.0}


def _linear(values: list[float], p: float) -> float:
    place = (len(values) - 1) * p / 100
    low, ordered = int(place), sorted(values)
    high = min(low + 1, len(values) - 1)
    if place == low or ordered[low] == ordered[high]:
        return ordered[low]
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


def _means(values: list[float], p: float) -> float:
    return sum(values) / len(values)


def _worded_keys(traces, percentiles=(50, 95, 99)):
    return {
        name: {f"p{p}": value for p, value in found.items()} if isinstance(found, dict) else found
        for name, found in latency_report(traces, percentiles).items()
    }


def _numpy_report(traces, percentiles=(50, 95, 99)):
    """NumPy's own nearest rank, one list at a time."""
    good = [request_latencies(t) for t in traces if not t.failed]
    n_failed = len(traces) - len(good)
    lost = [math.inf] * n_failed
    columns = {
        "ttft_s": [s["ttft_s"] for s in good] + lost,
        "itl_s": [g for s in good for g in s["itl_s"]],
        "tpot_s": [s["tpot_s"] for s in good if len(s["itl_s"])] + lost,
        "e2e_s": [s["e2e_s"] for s in good] + lost,
    }
    report: dict = {
        name: {p: np.percentile(found, p, method="inverted_cdf") for p in percentiles}
        if found
        else {}
        for name, found in columns.items()
    }
    return {"n_failed": n_failed, "n_requests": len(traces), **report}


SOME = [
    trace(0.0, 0.1, 0.2, 0.4), trace(0.0, 0.2, 0.3), trace(0.0, 0.3), failed(0.0, 0.05, 9.0),
]  # fmt: skip

REPORT = Exercise(
    id="latency_report",
    reference=latency_report,
    lesson=LESSON,
    points=3,
    minutes=14,
    difficulty=3,
    uses=("request_latencies", "percentile"),
    hints=(
        "Collect four lists first, then take percentiles of each. What needs thought is what a "
        "failed request and a one-token answer put into which list.",
        "A failed request puts math.inf into ttft_s, tpot_s and e2e_s and nothing into itl_s. A "
        "complete one adds its gaps to itl_s; its tpot_s counts only if it has gaps.",
        "report = {'n_requests': len(traces), 'n_failed': sum(t.failed for t in traces)}; then for "
        "each list: report[name] = {p: percentile(found, p) for p in percentiles if found}.",
    ),
    cases=(
        given("three complete requests and one that failed", traces=SOME),
        given("one-token answers only", traces=[trace(0.0, 0.5), trace(1.0, 1.25)]),
        given("nothing but failures", traces=[failed(0.0), failed(1.0, 2.0, 3.0)]),
        given(
            "a burst, and one that failed after a token",
            traces=[trace(0.0, 0.5, 0.5, 0.5), trace(0.0, 0.1, 0.3), failed(0.0, 0.2)],
            percentiles=(30, 60, 90),
        ),
        given("other percentiles", traces=SOME[:3], percentiles=(10, 90)),
        given("nobody came", traces=[]),
    ),
    draw=_draw_report,
    drive=_drive_report,
    comparison=CLOCK,
    wrong={
        "failed requests are left out: who got no answer waited longest of all": _report(
            failure=lambda t: None
        ),
        "failed requests are left out of everything, n_requests too": _report(
            failure=lambda t: None,
            heads=lambda traces, values: {
                "n_requests": sum(not t.failed for t in traces),
                "n_failed": 0,
            },
        ),
        "failed requests count with the tokens they had: a broken answer is no fast answer": (
            _report(failure=_as_seen)
        ),
        "a failed request keeps its TTFT: it counts as infinite, its answer never came": _report(
            failure=_ttft_as_seen
        ),
        "the gaps of failed requests are in itl_s: leave them out": _report(failure=_gaps_as_seen),
        "failed requests are infinite gaps in itl_s: leave them out there": _report(
            failure=lambda t: {
                "ttft_s": math.inf,
                "itl_s": [math.inf],
                "tpot_s": math.inf,
                "e2e_s": math.inf,
            }
        ),
        "failed requests are missing in tpot_s: they count there too, as infinite": _report(
            failure=lambda t: {"ttft_s": math.inf, "itl_s": [], "tpot_s": 0.0, "e2e_s": math.inf}
        ),
        "a failed request counts as 0 s: that makes failing the fastest way to serve": _report(
            failure=_ten_seconds
        ),
        "one-token answers are in tpot_s with 0: they have no gap, leave them out": _report(
            tpot_counts=lambda t, seen: True
        ),
        "failed requests of one token are left out of tpot_s: only complete ones are": _report(
            tpot_counts=lambda t, seen: len(t.token_times_s) != 1
        ),
        "a TPOT of 0 is left out of tpot_s: a burst has gaps, of 0": _report(
            tpot_counts=lambda t, seen: t.failed or seen["tpot_s"] > 0
        ),
        "gaps of 0 are left out of itl_s: tokens that came together have a gap, of 0": _report(
            itl=lambda seen: [gap for gap in seen["itl_s"] if gap]
        ),
        "itl_s is taken over the requests' mean gaps: take all gaps together": _report(
            itl=lambda seen: [seen["tpot_s"]] if seen["itl_s"] else []
        ),
        "itl_s is taken over the requests' worst gaps: take all gaps together": _report(
            itl=lambda seen: [max(seen["itl_s"])] if seen["itl_s"] else []
        ),
        "percentiles by interpolation: use your percentile": _report(of=_linear),
        "means in place of percentiles": _report(of=_means),
        "p is taken as 100 - p: the tail is at the high end": _report(
            of=lambda values, p: percentile(values, 100 - p)
        ),
        "always 50, 95 and 99: the argument says which percentiles": (
            lambda traces, percentiles=(50, 95, 99): latency_report(traces)
        ),
        "the inner keys are words like p50: they are the numbers in percentiles": _worded_keys,
        "n_requests counts the complete ones only": _report(
            heads=lambda traces, values: {"n_requests": sum(not t.failed for t in traces)}
        ),
        "0.0 where there is no value at all: an empty dict is asked": _report(empty=0.0),
        "nan where there is no value at all: an empty dict is asked": _report(empty=math.nan),
    },
    right={
        "NumPy's nearest rank, list by list": _numpy_report,
        "with functions for its parts": _report(),
        "failed traces replaced by infinitely late ones": lambda traces, percentiles=(50, 95, 99): (
            _report(
                failure=lambda t: (
                    request_latencies(replace(t, token_times_s=(math.inf,))) | {"tpot_s": math.inf}
                )
            )(traces, percentiles)
        ),
    },
)
