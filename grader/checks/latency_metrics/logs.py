"""Lesson 11: from a raw event log to traces."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from grader.checks.latency_metrics.lesson import LESSON
from grader.judging.exercise import Exercise, Inputs, given
from inferlab.latency_metrics import RequestTrace, traces_from_log

Event = tuple[float, str, str]


def _drive_log(answer: Any, inputs: Inputs) -> Any:
    """Each trace as a dict, in the order of the ids."""
    result = answer(events=inputs["events"])
    if (
        not isinstance(result, (tuple, list))
        or len(result) != 2
        or not isinstance(result[0], Mapping)
    ):
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
        return f"no RequestTrace but a {type(one).__name__}"
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


def _as_it_comes(events):
    """Opens a request at its arrival; what is logged before that has no place to go."""
    kept, known = [], set()
    for time_s, name, kind in events:
        known |= {name} if kind == "arrival" else set()
        kept += [(time_s, name, kind)] if name in known else []
    return traces_from_log(kept)[0], sorted({name for _, name, _ in events} - known)


def _plain_dicts(events):
    traces, unknown = traces_from_log(events)
    return {name: vars(one) for name, one in traces.items()}, unknown


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

FROM_ZERO: list[Event] = [
    (0.5, "b", "end"), (0.0, "b", "start"), (0.0, "b", "arrival"), (0.5, "b", "token"),
    (1.0, "c", "arrival"), (0.0, "d", "token"),
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
        given("a clock that begins at 0", events=FROM_ZERO),
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
        "an arrival at 0.0 is taken for none: compare with None": _log(
            arrival=lambda s: s.get("arrival", [None])[0] or None
        ),
        "a start at 0.0 is taken for none: compare with None": _log(
            start=lambda s: s.get("start", [None])[0] or None
        ),
        "lines that come before the request's arrival are lost: the log is in no order": (
            _as_it_comes
        ),
        "plain dicts: each is to be a RequestTrace": _plain_dicts,
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
