"""Lesson 11: what tools call TPOT."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from grader.checks.latency_metrics.lesson import LESSON
from grader.checks.latency_metrics.traces import CLOCK, draw_traces, failed, trace
from grader.judging.exercise import Exercise, Inputs, given
from inferlab.latency_metrics import request_latencies, tpot_by_tool


def _draw_mixed(rng: np.random.Generator) -> Inputs:
    lengths = [1, int(rng.integers(2, 4)), 3, int(rng.integers(8, 15)), int(rng.integers(30, 50))]
    return {"traces": draw_traces(rng, lengths, n_failed=2)}


def _tools(**changes: Callable[[list, list[dict]], float]) -> Callable:
    """A wrong tpot_by_tool: some entries made by change(complete traces, their latencies)."""

    def answer(traces):
        right = tpot_by_tool(traces)
        complete = [t for t in traces if not t.failed]
        seen = [request_latencies(t) for t in complete]
        return right | {name: float(change(complete, seen)) for name, change in changes.items()}

    return answer


def _numbers(traces: list) -> np.ndarray:
    return np.array([len(t.token_times_s) for t in traces])


def _tool_failures(traces):
    kept = [t for t in traces if t.token_times_s]
    return tpot_by_tool([trace(t.arrival_s, *t.token_times_s) for t in kept])


def _zero_without_gaps(traces):
    try:
        return tpot_by_tool(traces)
    except ValueError:
        return {"vllm_tpot_s": 0.0, "vllm_itl_s": 0.0, "guidellm_tpot_s": 0.0}


def _sums(traces):
    """Sums and counts, no lists."""
    tpots = gaps = whole = 0.0
    n_tpots = n_gaps = n_all = 0
    for t in traces:
        if t.failed:
            continue
        times, n = t.token_times_s, len(t.token_times_s)
        whole, n_all = whole + (times[-1] - t.arrival_s) / n, n_all + 1
        if n > 1:
            tpots, n_tpots = tpots + (times[-1] - times[0]) / (n - 1), n_tpots + 1
            gaps, n_gaps = gaps + times[-1] - times[0], n_gaps + n - 1
    if not n_gaps:
        raise ValueError("no gaps")
    return {
        "vllm_tpot_s": tpots / n_tpots,
        "vllm_itl_s": gaps / n_gaps,
        "guidellm_tpot_s": whole / n_all,
    }


def _numpy_tools(traces):
    done = [t for t in traces if not t.failed]
    gaps = [np.diff(t.token_times_s) for t in done]
    if sum(map(len, gaps)) == 0:
        raise ValueError("no gaps")
    ends = np.array([t.token_times_s[-1] - t.arrival_s for t in done])
    return {
        "guidellm_tpot_s": np.mean(ends / _numbers(done)),
        "vllm_itl_s": np.concatenate(gaps).mean(),
        "vllm_tpot_s": np.mean([g.mean() for g in gaps if g.size]),
    }


def _times(*gaps_ms: float) -> tuple[float, ...]:
    return tuple(0.3 + np.cumsum([0.0, *gaps_ms]) / 1e3)


STALL = [trace(0.0, *_times(*[10] * 99)), trace(0.0, *_times(200))]

TOOLS = Exercise(
    id="tpot_by_tool",
    reference=tpot_by_tool,
    lesson=LESSON,
    points=2,
    minutes=10,
    difficulty=2,
    uses=("request_latencies",),
    hints=(
        "Two ways to take a mean: first within each request and then over the requests, or over "
        "everything at once. In the second a long answer has more votes.",
        "request_latencies gives tpot_s, itl_s and e2e_s. Leave failed requests out of all three, "
        "and those of one token out of vllm_tpot_s only.",
        'np.mean([s["tpot_s"] for s in seen if s["itl_s"]]); np.mean of all gaps in one list; '
        'np.mean([s["e2e_s"] / n ...]) for n tokens of that request. Refuse where there is no gap.',
    ),
    cases=(
        given("two requests", traces=[trace(0.0, 1.0, 2.0, 3.0, 4.0), trace(0.0, 2.0, 6.0)]),
        given("99 gaps of 10 ms, and one of 200 ms", traces=STALL),
        given(
            "one-token answers and failures",
            traces=[trace(0.0, 0.5), failed(0.0, 9.0, 19.0), trace(1.0, 2.0, 4.0), failed(3.0)],
        ),
        given(
            "one answer came in a burst: its gaps are 0",
            traces=[trace(0.0, 2.0, 2.0, 2.0), trace(1.0, 2.0, 3.0), trace(0.0, 4.0)],
        ),
        given("nobody has a gap", traces=[trace(0.0, 0.5), failed(0.0, 9.0, 19.0)]),
    ),
    draw=_draw_mixed,
    comparison=CLOCK,
    wrong={
        "vLLM's TPOT as the mean over all gaps: it is a mean over requests": _tools(
            vllm_tpot_s=lambda done, seen: np.mean([g for s in seen for g in s["itl_s"]])
        ),
        "vLLM's ITL as the mean over requests: it is a mean over all gaps": _tools(
            vllm_itl_s=lambda done, seen: np.mean([s["tpot_s"] for s in seen if s["itl_s"]])
        ),
        "one-token answers count as a TPOT of 0: they are left out of that mean": _tools(
            vllm_tpot_s=lambda done, seen: np.mean([s["tpot_s"] for s in seen])
        ),
        "vLLM's TPOT divided by n: it has n - 1 below the line": _tools(
            vllm_tpot_s=lambda done, seen: np.mean(
                [sum(s["itl_s"]) / (len(s["itl_s"]) + 1) for s in seen if s["itl_s"]]
            )
        ),
        "guidellm's TPOT without the first token's wait: it counts from arrival_s": _tools(
            guidellm_tpot_s=lambda done, seen: np.mean(
                [(s["e2e_s"] - s["ttft_s"]) / n for s, n in zip(seen, _numbers(done), strict=True)]
            )
        ),
        "guidellm's TPOT divided by n - 1: it has n below the line": _tools(
            guidellm_tpot_s=lambda done, seen: np.mean(
                [s["e2e_s"] / max(1, n - 1) for s, n in zip(seen, _numbers(done), strict=True)]
            )
        ),
        "guidellm's TPOT as all seconds over all tokens: it is a mean over requests": _tools(
            guidellm_tpot_s=lambda done, seen: sum(s["e2e_s"] for s in seen) / _numbers(done).sum()
        ),
        "guidellm's TPOT without the one-token answers: they count there": _tools(
            guidellm_tpot_s=lambda done, seen: np.mean(
                [s["e2e_s"] / n for s, n in zip(seen, _numbers(done), strict=True) if n > 1]
            )
        ),
        "an answer with a TPOT of 0 is left out: only those of one token are": _tools(
            vllm_tpot_s=lambda done, seen: np.mean([s["tpot_s"] for s in seen if s["tpot_s"]])
        ),
        "gaps of 0 are left out: tokens that came together have a gap, of 0": _tools(
            vllm_itl_s=lambda done, seen: np.mean([g for s in seen for g in s["itl_s"] if g])
        ),
        "vLLM's ITL divided by all tokens: n tokens have n - 1 gaps": _tools(
            vllm_itl_s=lambda done, seen: sum(sum(s["itl_s"]) for s in seen) / _numbers(done).sum()
        ),
        "guidellm's TPOT counts from start_s: the user asked at arrival_s": _tools(
            guidellm_tpot_s=lambda done, seen: np.mean(
                [
                    (t.token_times_s[-1] - (t.arrival_s if t.start_s is None else t.start_s)) / n
                    for t, n in zip(done, _numbers(done), strict=True)
                ]
            )
        ),
        "TTFT counts as a gap: gaps are between tokens": _tools(
            vllm_itl_s=lambda done, seen: np.mean(
                [g for s in seen for g in [s["ttft_s"], *s["itl_s"]]]
            )
        ),
        "medians: these tools' headline is the mean": _tools(
            vllm_tpot_s=lambda done, seen: np.median([s["tpot_s"] for s in seen if s["itl_s"]]),
            vllm_itl_s=lambda done, seen: np.median([g for s in seen for g in s["itl_s"]]),
        ),
        "failed requests are counted as well: every tool leaves them out": _tool_failures,
        "milliseconds: seconds are asked": (
            lambda traces: {name: 1e3 * value for name, value in tpot_by_tool(traces).items()}
        ),
        "0.0 where nobody has a gap: nothing was measured, raise ValueError": _zero_without_gaps,
    },
    right={
        "sums and counts in one loop": _sums,
        "NumPy, gap by gap": _numpy_tools,
    },
)
