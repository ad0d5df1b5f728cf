"""Lesson 11: every number in its text is computed, and the reference is right by other means."""

import math
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lesson_text import stated_numbers

from grader.checks.latency_metrics.predictions import frozen_server_s, stall_traces
from grader.judging import registry
from inferlab import latency_metrics as metrics
from inferlab import workload
from inferlab.latency_metrics import RequestTrace
from inferlab.model import load_model
from inferlab.prefill_decode import end_to_end_s
from inferlab.serve.engine import Event, ServingEngine

LESSON = "11_latency_metrics"


def number(value: float) -> str:
    """As a text writes it: 7.675, 105, 0.5."""
    return f"{round(value, 6):.10g}"


def computed() -> set[str]:
    """Every number that the lesson's text states as a result, as it is written there."""
    first = RequestTrace(0.0, (0.42, 0.48, 0.53, 0.6, 0.65, 0.95, 1.0, 1.06), 0.18)
    opening = metrics.request_latencies(first)
    small = metrics.request_latencies(RequestTrace(10.0, (10.5, 10.6, 10.9)))
    even = RequestTrace(0.0, (0.2, 0.225, 0.25, 0.275))
    e2e = end_to_end_s(0.2, 0.025, 300)
    tools = metrics.tpot_by_tool(
        [RequestTrace(0.0, (1.0, 2.0, 3.0, 4.0)), RequestTrace(0.0, (2.0, 6.0))]
    )
    stalled = metrics.tpot_by_tool(stall_traces())
    tail = [1.0] * 98 + [50.0] * 2
    rates = metrics.throughput(
        [RequestTrace(0.0, (0.5, 1.5, 2.5)), RequestTrace(0.0, (1.0,))], 0.0, 2.0
    )
    report = metrics.latency_report(
        [RequestTrace(0.0, (t, t + 1)) for t in (0.1, 0.2, 0.3)] + [RequestTrace(0, (), None, True)]
    )
    burst = workload.bursty_arrivals(1, 1, 3, np.array([0.5, 0.99]))
    assert [report["ttft_s"][p] for p in (50, 95)] == [0.2, math.inf]
    assert workload.highest_rate([1, 2, 4, 8], [1.0, 0.95, 0.7, 0.92], 0.9) == 2
    return {
        f"{1e3 * opening['e2e_s']:,.0f}", f"{1e3 * opening['tpot_s']:.0f}",
        f"{1e3 * max(opening['itl_s']):.0f}",
        *(number(small[name]) for name in ("ttft_s", "tpot_s", "e2e_s")),
        number(1e3 * metrics.request_latencies(even)["tpot_s"]),
        number(1e3 * (0.275 - 0.2) / 4), number(1e3 * 0.275 / 4), number(400 / 499),
        f"{0.4 / 499 * 1e3:.1f}", "499", number(e2e), number(1 / 0.025), f"{300 / e2e:.2f}", "299",
        number(tools["vllm_tpot_s"]), number(tools["vllm_itl_s"]),
        number(1e3 * stalled["vllm_itl_s"]), number(1e3 * stalled["vllm_tpot_s"]),
        number(metrics.percentile(tail, 99)), number(float(np.mean(tail))),
        number(0.9 * 1 + 0.1 * 9), number(metrics.histogram_percentile(
            [1, 2, math.inf], [[4, 2, 0], [2, 2, 0]], 80)),
        number(rates["requests_per_s"]), number(rates["tokens_per_s"]),
        number(12 * 8), number(12 / 8), f"{-math.log(0.5) / 2:.3f}",
        f"{burst[0]:.3f}", f"{burst[1]:.3f}", f"{burst[1] - 3:.3f}",
        number(1 / (10 - 8)), number(1 / 10), f"{-math.log(0.05):.3f}",
        f"{workload.mm1_percentile(8, 10, 95):.3f}", f"{workload.mm1_percentile(8, 10, 99):.3f}",
    }  # fmt: skip


# Times, limits, rates and sizes that the text takes as given.
GIVEN = {
    "03", "08", "10", "11", "12", "16", "20", "25", "32", "48", "64", "80", "90", "95", "98", "99",
    "100", "120", "200", "300", "500", "900", "1,000", "2,000", "3,100", "4,000", "10,000",
    "10.0", "10.5", "10.6", "10.9", "0.02", "0.025", "0.03", "0.05", "0.06", "0.1", "0.2", "0.3",
    "0.4", "0.5", "0.6", "0.7", "0.8", "0.9", "0.92", "0.95", "0.99", "1.0", "1.5", "2.0", "2.1",
    "2.4", "2.5", "50",
}  # fmt: skip


def test_every_number_in_the_text_is_computed():
    assert stated_numbers(LESSON) - computed() - GIVEN == set()


def test_the_sources_of_those_numbers_are_right():
    """Published figures, and arithmetic done by hand."""
    assert end_to_end_s(0.2, 0.025, 300) == pytest.approx(7.675)
    stalled = metrics.tpot_by_tool(stall_traces())
    assert stalled["vllm_itl_s"] == pytest.approx(0.0119)
    assert stalled["vllm_tpot_s"] == pytest.approx(0.105)
    assert stalled["guidellm_tpot_s"] == pytest.approx((1.29 / 100 + 0.5 / 2) / 2)
    assert workload.mm1_percentile(8, 10, 95) == pytest.approx(1.497866, abs=1e-6)
    assert workload.mm1_percentile(8, 10, 99) == pytest.approx(2.302585, abs=1e-6)
    assert workload.replicas_needed(12, 8, 32) == 3
    assert sum(e.minutes for e in registry.exercises(LESSON)) == 121  # "2 h"
    assert len(registry.exercises(LESSON)) == 13


def test_a_fleet_has_one_p99():
    """900 requests of 1 s and 100 of 9 s: 9 s, not the mean of 1 and 9, nor their weighted mean."""
    a, b = [1.0] * 900, [9.0] * 100
    each = metrics.percentile(a, 99), metrics.percentile(b, 99)
    assert (each, sum(each) / 2) == ((1.0, 9.0), 5.0)
    assert metrics.percentile(a + b, 99) == 9.0
    assert (900 * each[0] + 100 * each[1]) / 1000 == pytest.approx(1.8)


def test_predictions_have_the_right_answers():
    answers = {p.id: p.answer() for p in registry.predictions(LESSON)}
    assert answers["lm_tools"] == pytest.approx(0.0119)
    assert answers["lm_load"] == pytest.approx(2)
    assert answers["lm_overload"] == "it about doubles"
    waits = frozen_server_s()
    assert answers["lm_freeze"] == metrics.percentile(waits.tolist(), 99) > 9
    assert metrics.percentile([0.001] * 9_999 + [10.001], 99) == 0.001  # the closed loop's
    assert 1000 <= np.sum(waits > 0.01) <= 1200


def test_overload_grows_with_the_test():
    """12 arrive and 10 are served a second: p95 after two minutes is twice that after one."""
    p95 = [
        metrics.percentile(workload.fifo_times_s(np.arange(n) / 12, [0.1] * n).tolist(), 95)
        for n in (12 * 60, 12 * 120)
    ]
    assert p95[1] / p95[0] == pytest.approx(2, rel=0.02)


# ---- the reference against other means -----------------------------------------------------------

finite = st.floats(0, 1e3, allow_nan=False)


@given(st.lists(finite, min_size=1, max_size=60), st.integers(1, 100))
def test_percentile_is_numpys_nearest_rank(values, p):
    assert metrics.percentile(values, p) == np.percentile(values, p, method="inverted_cdf")
    share = np.mean(np.array(values) <= metrics.percentile(values, p))
    assert share >= p / 100 - 1e-12


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(1, 60), st.integers(0, 2**31))
def test_a_histogram_is_within_its_bucket(n, seed):
    """The true percentile and the histogram's lie in the same bucket; edges by hand."""
    rng = np.random.default_rng(seed)
    values, bounds = rng.exponential(0.5, (3, n)), [0.1, 0.25, 0.5, 1.0, 2.5, math.inf]
    counts = [np.histogram(row, [0, *bounds])[0].tolist() for row in values]
    for p in (50, 90, 99):
        found = metrics.histogram_percentile(bounds, counts, p)
        exact = metrics.percentile(values.ravel().tolist(), p)
        bucket = int(np.searchsorted(bounds, exact))
        lower = bounds[bucket - 1] if bucket else 0.0
        assert lower - 1e-12 <= found <= bounds[bucket] * (1 + 1e-12)
        if bucket == len(bounds) - 1:
            assert found == lower


def test_a_histogram_is_read_as_prometheus_reads_it():
    """The rule of its documentation, on cumulative counts, for one scrape of two replicas."""
    bounds = [0.1, 0.25, 0.5, 1.0, math.inf]
    cumulative = np.array([[700, 870, 897, 900, 900], [10, 30, 60, 98, 100]])
    total = cumulative.sum(axis=0)
    rank = 0.95 * total[-1]
    b = int(np.argmax(total >= rank))
    start, count = bounds[b - 1], total[b] - total[b - 1]
    expected = start + (bounds[b] - start) * (rank - total[b - 1]) / count
    found = metrics.histogram_percentile(bounds, np.diff(cumulative, prepend=0).tolist(), 95)
    assert found == pytest.approx(expected)
    assert found == pytest.approx(0.469, abs=5e-4)


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(1, 12), st.randoms(use_true_random=False))
def test_a_log_may_be_shuffled(n, random):
    traces, lines = {}, []
    for i in range(n):
        kind = random.choice(["whole", "error", "cut", "no arrival"])
        times = sorted(random.uniform(1, 9) for _ in range(random.randint(1, 4)))
        lines += [(t, f"r{i}", "token") for t in times]
        if kind != "no arrival":
            lines += [(0.5, f"r{i}", "arrival"), (0.7, f"r{i}", "start")]
            traces[f"r{i}"] = RequestTrace(0.5, tuple(times), 0.7, kind != "whole")
        if kind in ("whole", "error"):
            lines.append((9.5, f"r{i}", "end" if kind == "whole" else "error"))
    random.shuffle(lines)
    found, unknown = metrics.traces_from_log(lines)
    assert found == traces
    assert sorted([*found, *unknown]) == sorted(f"r{i}" for i in range(n))


def test_a_report_agrees_with_itself():
    rng = np.random.default_rng(1)
    traces = [
        RequestTrace(float(i), tuple(i + 0.1 + np.cumsum(rng.exponential(0.1, 1 + i % 7))))
        for i in range(40)
    ]
    report = metrics.latency_report(traces)
    seen = [metrics.request_latencies(t) for t in traces]
    for trace, one in zip(traces, seen, strict=True):
        n = len(trace.token_times_s)
        assert end_to_end_s(one["ttft_s"], one["tpot_s"], n) == pytest.approx(one["e2e_s"])
    assert report["e2e_s"][95] == sorted(one["e2e_s"] for one in seen)[37]
    within = {"e2e_s": report["e2e_s"][95]}
    assert metrics.goodput(traces, within, 2.0) == 38 / 2


def test_throughput_of_adjacent_windows_adds_up():
    rng = np.random.default_rng(2)
    traces = [RequestTrace(0.0, tuple(np.cumsum(rng.exponential(0.3, 9)))) for _ in range(30)]
    edges = [0.0, 0.7, 1.9, 50.0]
    parts = [metrics.throughput(traces, a, b) for a, b in pairwise(edges)]
    for name, whole in (("requests_per_s", 30), ("tokens_per_s", 270)):
        lengths = np.diff(edges)
        assert sum(p[name] * s for p, s in zip(parts, lengths, strict=True)) == pytest.approx(whole)


# ---- arrivals and queues -------------------------------------------------------------------------


def test_poisson_gaps_follow_the_exponential_law():
    """Kolmogorov's distance of 100,000 gaps; sqrt(n) D above 3.3 has probability below 1e-9."""
    n, rate = 100_000, 4.0
    times = workload.poisson_arrivals(rate, np.random.default_rng(3).random(n))
    gaps = np.sort(np.diff(times, prepend=0.0))
    law = 1 - np.exp(-rate * gaps)
    distance = np.abs(law - (np.arange(n) + 0.5) / n).max() + 0.5 / n
    assert math.sqrt(n) * distance < 3.3
    # The counts in windows of 1 s have mean and variance equal to the rate.
    counts = np.bincount(times.astype(int))[:-1]
    assert counts.mean() == pytest.approx(rate, rel=0.03)
    assert counts.var() == pytest.approx(rate, rel=0.06)


def test_bursts_keep_the_mean_rate_and_the_pauses_empty():
    times = workload.bursty_arrivals(3, 2, 5, np.random.default_rng(4).random(60_000))
    assert len(times) / times[-1] == pytest.approx(3, rel=0.02)
    assert (times % 7 < 2 + 1e-9).all()
    counts = np.bincount(times.astype(int))
    assert counts.var() > 2 * counts.mean()  # a Poisson process has 1
    plain = workload.poisson_arrivals(3, np.full(5, 0.4))
    assert np.allclose(workload.bursty_arrivals(3, 2, 0, np.full(5, 0.4)), plain)


def test_the_formula_is_that_of_the_simulated_queue():
    rng = np.random.default_rng(5)
    arrivals = workload.poisson_arrivals(6, rng.random(200_000))
    times = workload.fifo_times_s(arrivals, rng.exponential(1 / 10, 200_000)).tolist()
    for p in (50, 90, 95):
        expected = workload.mm1_percentile(6, 10, p)
        assert metrics.percentile(times, p) == pytest.approx(expected, rel=0.05)
    # Little's law: the time in the system, summed, is the area under the number in flight.
    ends = np.sort(arrivals + times)
    events = np.concatenate([arrivals, ends])
    order = np.argsort(events, kind="stable")
    in_flight = np.cumsum(np.repeat([1, -1], len(arrivals))[order])
    area = np.sum(in_flight[:-1] * np.diff(events[order]))
    assert area == pytest.approx(sum(times))
    assert area / ends[-1] == pytest.approx(6 * np.mean(times), rel=0.01)


def test_the_highest_rate_of_the_formula():
    """Shares from the law itself: the answer is the last rate below the closed form."""
    rates = np.arange(0.5, 10, 0.5)
    shares = 1 - np.exp(-(10 - rates) * 1.0)
    best = workload.highest_rate(rates, shares, 0.95)
    assert best <= 10 - math.log(20) < best + 0.5
    with pytest.raises(ValueError, match=r"even at 0.5 requests/s fewer than 95% are good"):
        workload.highest_rate(rates, 0.5 * shares, 0.95)


# ---- the client ----------------------------------------------------------------------------------


@dataclass
class PassEngine:
    """Each pass takes 1 s of the fake clock and gives every request one token."""

    now: float = 0.0
    live: dict[str, int] = field(default_factory=dict)
    most: int = 0

    def add(self, request_id, prompt, max_new_tokens):
        self.live[request_id] = max_new_tokens
        self.most = max(self.most, len(self.live))

    def step(self):
        self.now += 1.0
        events = []
        for name in list(self.live):
            self.live[name] -= 1
            events.append(Event(name, 7, "length" if not self.live[name] else ""))
            if not self.live[name]:
                del self.live[name]
        return events

    def sleep(self, seconds):
        assert seconds >= 0
        self.now += seconds


def test_the_client_sends_when_due_and_never_more_than_it_may():
    engine = PassEngine()
    jobs = [workload.Job((1, 2), n) for n in (3, 2, 1)]
    traces = workload.serve_open_loop(
        engine, jobs, [0.5, 0.5, 1.0], 2, clock=lambda: engine.now, sleep=engine.sleep
    )
    assert engine.most == 2
    # Both early ones start at 0.5; the third is due at 1.0 and waits until the second is done.
    assert traces[0] == RequestTrace(0.5, (1.5, 2.5, 3.5), 0.5)
    assert traces[1] == RequestTrace(0.5, (1.5, 2.5), 0.5)
    assert traces[2] == RequestTrace(1.0, (3.5,), 2.5)
    closed = workload.as_closed_loop(traces)
    assert [metrics.request_latencies(t)["ttft_s"] for t in traces] == [1.0, 1.0, 2.5]
    assert [metrics.request_latencies(t)["ttft_s"] for t in closed] == [1.0, 1.0, 1.0]
    assert [t.token_times_s for t in closed] == [t.token_times_s for t in traces]
    with pytest.raises(ValueError, match="3 jobs need as many arrivals"):
        workload.serve_open_loop(engine, jobs, [1.0, 0.5, 2.0], 2)


def test_the_client_drives_the_real_engine():
    """Every token of every request arrives, in order, as the engine alone gives them."""
    model, rng = load_model("tiny-target"), np.random.default_rng(6)
    jobs = workload.draw_jobs(6, model.config.vocab_size, rng, mean_new=4)
    assert [16 <= len(j.prompt) <= 48 and j.n_new >= 2 for j in jobs] == [True] * 6
    engine = ServingEngine(model, n_pages=64, page_size=16, token_budget=64, max_running=3)
    traces = workload.serve_open_loop(engine, jobs, np.linspace(0, 0.05, 6), 3)
    assert engine.is_idle
    for job, trace in zip(jobs, traces, strict=True):
        assert len(trace.token_times_s) == job.n_new
        assert list(trace.token_times_s) == sorted(trace.token_times_s)
        assert trace.arrival_s <= trace.start_s < trace.token_times_s[0]


def test_every_set_of_jobs_has_the_same_work():
    totals = set()
    for seed in range(3):
        jobs = workload.draw_jobs(200, 500, np.random.default_rng(seed), mean_new=12)
        totals.add(sum(job.n_new for job in jobs))
        assert sum(job.n_new for job in jobs) / 200 == pytest.approx(12, rel=0.03)
    assert len(totals) == 1
