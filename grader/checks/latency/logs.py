"""Lesson 11: from a raw event log to traces, and from traces to a report."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from grader.checks.latency.lesson import LESSON
from grader.checks.latency.traces import CLOCK, draw_traces, failed, trace
from grader.exercise import Exercise, Inputs, given
from inferlab.metrics import (
    RequestTrace,
    latency_report,
    percentile,
    request_latencies,
    traces_from_log,
)

# ---- traces_from_log -----------------------------------------------------------------------------

Event = tuple[float, str, str]


def _drive_log(answer: Any, inputs: Inputs) -> Any:
    """Each trace as a dict, in the order of the ids."""
    result = answer(events=inputs["events"])
    if not isinstance(result, tuple) or len(result) != 2 or not isinstance(result[0], Mapping):
        return result
    traces, unknown = result
    return {
        "ids": sorted(traces),
        "traces": {request_id: _plain(one) for request_id, one in sorted(traces.items())},
        "ids without an arrival": unknown,
    }


def _plain(one: Any) -> Any:
    names = ("arrival_s", "token_times_s", "start_s", "failed")
    if not all(hasattr(one, name) for name in names):
        return one
    return {name: getattr(one, name) for name in names}


def _draw_log(rng: np.random.Generator) -> Inputs:
    """Nine requests whose lines are shuffled; some lines are missing, some answers fail."""
    events: list[Event] = []
    names = [f"r{i}" for i in rng.permutation(9)]
    for i, name in enumerate(names):
        now = 100 + float(rng.uniform(0, 3))
        lines = [(now, "arrival"), (now + float(rng.uniform(0.1, 0.4)), "start")]
        now += 0.5
        for _ in range(int(rng.integers(2, 6))):
            now += float(rng.uniform(0.01, 0.3))
            lines.append((now, "token"))
        lines.append((now + 0.001, "end"))
        kind = ("whole", "whole", "no start", "no arrival", "no arrival", "cut", "error", "late",
                "no tokens")[i]  # fmt: skip
        events += [(time, name, what) for time, what in _damaged(lines, kind)]
    return {"events": [events[i] for i in rng.permutation(len(events))]}


def _damaged(lines: list[tuple[float, str]], kind: str) -> list[tuple[float, str]]:
    missing = {"no start": "start", "no arrival": "arrival", "cut": "end", "no tokens": "token"}
    lines = [line for line in lines if line[1] != missing.get(kind)]
    if kind == "error":  # it broke off in the middle
        lines = [*lines[:-2], (lines[-2][0], "error")]
    if kind == "late":  # all tokens came, and then an error in place of the end
        lines = [*lines, (lines[-1][0] + 0.5, "error")]
    return lines


def _log(
    order: Callable = sorted,
    is_failed: Callable[[dict], bool] = lambda s: "error" in s or "end" not in s or not s["token"],
    tokens: Callable[[dict, bool], tuple] = lambda s, bad: tuple(s["token"]),
    start: Callable[[dict], float | None] = lambda s: s["start"][0] if "start" in s else None,
    arrival: Callable[[dict], float | None] = lambda s: s["arrival"][0] if "arrival" in s else None,
    name_unknown: Callable[[list], list] = sorted,
    keep_failed: bool = True,
) -> Callable:
    """traces_from_log with one of its parts replaced."""

    def answer(events):
        by_id: dict[str, dict[str, list[float]]] = {}
        for time_s, request_id, kind in order(events):
            by_id.setdefault(request_id, {"token": []}).setdefault(kind, []).append(time_s)
        traces, unknown = {}, []
        for request_id, seen in by_id.items():
            when = arrival(seen)
            if when is None:
                unknown.append(request_id)
                continue
            bad = bool(is_failed(seen))
            if keep_failed or not bad:
                traces[request_id] = RequestTrace(when, tokens(seen, bad), start(seen), bad)
        return traces, name_unknown(unknown)

    return answer


def _as_a_set(events):
    return sorted(set(events))


def _last_line_decides(events):
    traces, unknown = traces_from_log(events)
    last = {name: kind for _, name, kind in sorted(events)}
    kept = {
        name: replace(t, failed=last[name] != "end" or not t.token_times_s)
        for name, t in traces.items()
    }
    return kept, unknown


def _raises_on_missing(events):
    traces, unknown = traces_from_log(events)
    if unknown:
        raise ValueError(f"no arrival of {unknown}")
    return traces, unknown


def _one_pass(events):
    """No sorting of the log: each request's tokens are sorted at the end."""
    arrivals, starts, tokens = {}, {}, defaultdict(list)
    ended: set[str] = set()
    broken: set[str] = set()
    ids: set[str] = set()
    for time_s, name, kind in events:
        ids.add(name)
        if kind == "arrival":
            arrivals[name] = time_s
        elif kind == "start":
            starts[name] = time_s
        elif kind == "token":
            tokens[name].append(time_s)
        else:
            (ended if kind == "end" else broken).add(name)
    good = (ended - broken) & set(tokens)
    traces = {
        name: RequestTrace(at, tuple(sorted(tokens[name])), starts.get(name), name not in good)
        for name, at in arrivals.items()
    }
    return traces, sorted(ids - set(arrivals))


def _id_by_id(events):
    """A scan of the log for each request; lists and NumPy in place of tuples."""
    events = list(events)
    traces, unknown = {}, []
    for name in sorted({event[1] for event in events}):
        own = [(t, kind) for t, other, kind in events if other == name]
        times = {kind: np.sort([t for t, k in own if k == kind]) for kind in {k for _, k in own}}
        if "arrival" not in times:
            unknown.append(name)
            continue
        start = times["start"][0] if "start" in times else None
        found = times.get("token", np.array([]))
        bad = "error" in times or "end" not in times or len(found) == 0
        traces[name] = RequestTrace(times["arrival"][0], list(found), start, bad)  # type: ignore[arg-type]
    return traces, unknown


BURST: list[Event] = [
    (2.5, "b", "end"), (2.0, "b", "token"), (2.0, "b", "token"), (2.5, "b", "token"),
    (1.0, "b", "arrival"), (1.5, "b", "start"),
]  # fmt: skip
EXAMPLE: list[Event] = [
    (2.0, "a", "token"), (1.0, "a", "arrival"), (1.5, "a", "token"), (0.9, "b", "token"),
]  # fmt: skip
HALVES: list[Event] = [
    (3.0, "x", "error"), (1.0, "x", "arrival"), (4.0, "y", "arrival"), (5.0, "y", "end"),
    (1.0, "z", "arrival"), (1.2, "z", "start"), (1.3, "z", "token"), (1.4, "z", "end"),
    (0.5, "w", "start"), (0.7, "v", "end"), (9.0, "u", "error"),
]  # fmt: skip

FROM_LOG = Exercise(
    id="traces_from_log",
    reference=traces_from_log,
    lesson=LESSON,
    points=3,
    minutes=14,
    difficulty=3,
    hints=(
        "Sort the events by time, then collect the times of each request and each kind: "
        "by_id[request_id][kind] is a list. Only then decide about each request.",
        "by_id.setdefault(request_id, {}).setdefault(kind, []).append(time_s). Without "
        '"arrival" the id goes to the second list; everything else becomes a RequestTrace.',
        'failed = "error" in seen or "end" not in seen or not tokens, with '
        'tokens = tuple(seen.get("token", ())). start_s = seen.get("start", [None])[0]. '
        "Return (traces, sorted list of ids).",
    ),
    cases=(
        given("a cut answer, and a token from nowhere", events=EXAMPLE),
        given("two tokens at the same moment", events=BURST),
        given("errors, empty answers, lone lines", events=HALVES),
        given("an empty log", events=[]),
    ),
    draw=_draw_log,
    drive=_drive_log,
    wrong={
        "tokens in the order of the log: several processes wrote it, sort by time": _log(
            order=list
        ),
        "a request without an end counts as complete: it was cut off, it has failed": _log(
            is_failed=lambda s: "error" in s or not s["token"]
        ),
        "a request with an error and an end counts as complete: an error decides": _log(
            is_failed=lambda s: "end" not in s or not s["token"]
        ),
        "an answer without any token counts as complete: it has failed": _log(
            is_failed=lambda s: "error" in s or "end" not in s
        ),
        "failed requests are dropped: the report must count them": _log(keep_failed=False),
        "the tokens of failed requests are dropped: they were delivered": _log(
            tokens=lambda s, bad: () if bad else tuple(s["token"])
        ),
        "without an arrival the start is taken: the wait before it is not known": _log(
            arrival=lambda s: s.get("arrival", s.get("start", [None]))[0]
        ),
        "without an arrival the first event is taken: it cannot be timed": _log(
            arrival=lambda s: s.get("arrival", [min(t for times in s.values() for t in times)])[0]
        ),
        "ids without an arrival vanish: they are the second result": _log(
            name_unknown=lambda ids: []
        ),
        "one missing arrival stops everything: keep the others, name that one": (
            _raises_on_missing
        ),
        "without a start, start_s is the arrival: it is not known, None": _log(
            start=lambda s: (s.get("start") or s["arrival"])[0]
        ),
        "the last line decides: an end and the last token may have the same time": (
            _last_line_decides
        ),
        "equal events are merged: two tokens may come at the same moment": _log(order=_as_a_set),
        "the end counts as a token": _log(
            tokens=lambda s, bad: tuple(sorted(s["token"] + s.get("end", [])))
        ),
        "the first token is left out": _log(tokens=lambda s, bad: tuple(s["token"][1:])),
        "ids in the order of the log: the second result is sorted": _log(
            order=list,
            tokens=lambda s, bad: tuple(sorted(s["token"])),
            name_unknown=lambda ids: sorted(ids, reverse=True),
        ),
    },
    right={
        "one pass, tokens sorted at the end": _one_pass,
        "request by request, with NumPy": _id_by_id,
        "with functions for its parts": _log(),
    },
)

# ---- latency_report ------------------------------------------------------------------------------


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
    single: bool = False,
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
            if single or seen["itl_s"] or (t.failed and seen["tpot_s"] == math.inf):
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
            single=True
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
