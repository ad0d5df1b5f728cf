"""Lesson 11: Little's law and the M/M/1 queue."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np

from grader.checks.latency_metrics.lesson import LESSON
from grader.judging.compare import Comparison
from grader.judging.exercise import Exercise, Inputs, given
from inferlab.workload import mm1_percentile, replicas_needed

# ---- replicas_needed -----------------------------------------------------------------------------


def _draw_fleet(rng: np.random.Generator) -> Inputs:
    """Where rounding up matters: the quotient's fraction is between 0.1 and 0.4."""
    while True:
        inputs = {
            "rate_per_s": float(rng.uniform(8, 40)),
            "mean_e2e_s": float(rng.uniform(6, 20)),
            "max_running": int(rng.choice([12, 24, 32])),
        }
        if 0.1 < inputs["rate_per_s"] * inputs["mean_e2e_s"] / inputs["max_running"] % 1 < 0.4:
            return inputs


def _fleet(of: Callable[[float, float, int], Any]) -> Callable:
    def answer(rate_per_s, mean_e2e_s, max_running):
        if max_running < 1:
            raise ValueError(max_running)
        return of(rate_per_s, mean_e2e_s, max_running)

    return answer


def _one_by_one(rate, e2e, slots):
    n = 1
    while n * slots < rate * e2e:
        n += 1
    return n


REPLICAS = Exercise(
    id="replicas_needed",
    reference=replicas_needed,
    lesson=LESSON,
    points=1,
    minutes=5,
    difficulty=1,
    hints=(
        "First: how many requests are in the building at any time? Then: how many servers seat "
        "them?",
        "Little's law: in flight = arrivals per second times seconds each stays. Half a server "
        "cannot be bought.",
        "Refuse max_running < 1; return max(1, math.ceil(rate_per_s * mean_e2e_s / max_running)).",
    ),
    cases=(
        given("5/s for 4 s, 8 at once", rate_per_s=5.0, mean_e2e_s=4.0, max_running=8),
        given(
            "12/s for 8 s, 32 at once: exactly 3", rate_per_s=12.0, mean_e2e_s=8.0, max_running=32
        ),
        given("8.75 servers' worth", rate_per_s=10.0, mean_e2e_s=7.0, max_running=8),
        given("one at a time: 3/s for 1.5 s", rate_per_s=3.0, mean_e2e_s=1.5, max_running=1),
        given("few but long: 2/s for 200 s", rate_per_s=2.0, mean_e2e_s=200.0, max_running=8),
        given("16.4 in flight at 16 a server", rate_per_s=4.1, mean_e2e_s=4.0, max_running=16),
        given("hardly any load", rate_per_s=0.25, mean_e2e_s=0.5, max_running=16),
        given("nobody: one server stays up", rate_per_s=0.0, mean_e2e_s=8.0, max_running=16),
        given("a server that runs nothing", rate_per_s=1.0, mean_e2e_s=1.0, max_running=0),
        given("max_running = -1", rate_per_s=1.0, mean_e2e_s=1.0, max_running=-1),
    ),
    draw=_draw_fleet,
    wrong={
        "rate divided by the time: Little's law multiplies": _fleet(
            lambda rate, e2e, slots: max(1, math.ceil(rate / e2e / slots))
        ),
        "time divided by the rate: Little's law multiplies": _fleet(
            lambda rate, e2e, slots: max(1, math.ceil(e2e / rate / slots)) if rate else 1
        ),
        "the requests in flight, not the servers": _fleet(
            lambda rate, e2e, slots: max(1, math.ceil(rate * e2e))
        ),
        "rounded down: the rest has no place": _fleet(
            lambda rate, e2e, slots: max(1, int(rate * e2e / slots))
        ),
        "rounded to the nearest: the rest has no place": _fleet(
            lambda rate, e2e, slots: max(1, round(rate * e2e / slots))
        ),
        "one more than needed: an exact fit needs no other server": _fleet(
            lambda rate, e2e, slots: int(rate * e2e / slots) + 1
        ),
        "one more than rounded up: an exact fit needs no other server": _fleet(
            lambda rate, e2e, slots: math.ceil(rate * e2e / slots) + 1
        ),
        "requests are taken as served one after the other": _fleet(
            lambda rate, e2e, slots: max(1, math.ceil(rate * e2e * slots))
        ),
        "the time is forgotten: requests stay for mean_e2e_s": _fleet(
            lambda rate, e2e, slots: max(1, math.ceil(rate / slots))
        ),
        "in-flight requests lose their fraction before they are shared out": _fleet(
            lambda rate, e2e, slots: max(1, math.ceil(int(rate * e2e) / slots))
        ),
        "a fraction of a server: whole ones are asked": _fleet(
            lambda rate, e2e, slots: max(1.0, rate * e2e / slots)
        ),
        "0 servers for nobody: one is the least": _fleet(
            lambda rate, e2e, slots: math.ceil(rate * e2e / slots)
        ),
        "max_running below 1 is not refused: raise ValueError": (
            lambda rate_per_s, mean_e2e_s, max_running: max(
                1, math.ceil(rate_per_s * mean_e2e_s / max(1, max_running))
            )
        ),
    },
    right={
        "counting up": _fleet(_one_by_one),
        "in fractions, with negative floor division": _fleet(
            lambda rate, e2e, slots: max(1, int(-(-Fraction(rate) * Fraction(e2e) // slots)))
        ),
        "NumPy's ceil": _fleet(
            lambda rate, e2e, slots: int(np.ceil(np.float64(rate) * e2e / slots)) or 1
        ),
    },
)

# ---- mm1_percentile ------------------------------------------------------------------------------


def _draw_queue(rng: np.random.Generator) -> Inputs:
    served = float(rng.uniform(5, 20))
    return {
        "arrivals_per_s": float(served * rng.uniform(0.55, 0.85)),
        "served_per_s": served,
        "p": int(rng.choice([75, 90, 95, 98])),
    }


def _queue(of: Callable[[float, float, float], float]) -> Callable:
    """A wrong mm1_percentile: of(arrivals, served, q) with q = p / 100."""

    def answer(arrivals_per_s, served_per_s, p):
        if arrivals_per_s >= served_per_s:
            raise ValueError(arrivals_per_s)
        return of(arrivals_per_s, served_per_s, p / 100)

    return answer


def _full_is_served(arrivals_per_s, served_per_s, p):
    if arrivals_per_s > served_per_s:
        raise ValueError(arrivals_per_s)
    room = served_per_s - arrivals_per_s
    return -math.log(1 - p / 100) / room if room else math.inf


def _negative_allowed(arrivals_per_s, served_per_s, p):
    room = served_per_s - arrivals_per_s
    return -math.log(1 - p / 100) / room if room else math.inf


def _halving(lam, mu, q):
    """Looks for the time at which a share q is done, by halving."""
    low, high = 0.0, 1000.0 / (mu - lam)
    for _ in range(200):
        middle = (low + high) / 2
        if -math.expm1(-(mu - lam) * middle) < q:
            low = middle
        else:
            high = middle
    return high


MM1 = Exercise(
    id="mm1_percentile",
    reference=mm1_percentile,
    lesson=LESSON,
    points=2,
    minutes=8,
    difficulty=2,
    hints=(
        "The share done within t is 1 - exp(-(served - arrivals) t). A percentile asks the other "
        "way round: within which t is a share p / 100 done?",
        "Set 1 - exp(-(served - arrivals) t) = p / 100 and solve for t. It takes one logarithm. At "
        "served = arrivals there is no such t.",
        "if arrivals_per_s >= served_per_s: raise ValueError(...); "
        "return -math.log(1 - p / 100) / (served_per_s - arrivals_per_s)",
    ),
    cases=(
        given("2/s arrive, 3/s served, p50", arrivals_per_s=2.0, served_per_s=3.0, p=50),
        given("8/s arrive, 10/s served, p95", arrivals_per_s=8.0, served_per_s=10.0, p=95),
        given("an idle server, p99", arrivals_per_s=0.0, served_per_s=10.0, p=99),
        given("p0", arrivals_per_s=1.0, served_per_s=2.0, p=0),
        given("exactly full", arrivals_per_s=10.0, served_per_s=10.0, p=50),
        given("overloaded", arrivals_per_s=11.0, served_per_s=10.0, p=50),
    ),
    draw=_draw_queue,
    comparison=Comparison(
        terms=lambda i: 3 + 1 / (1 - i["p"] / 100),
        magnitude=lambda i: (
            (1 - math.log(1 - i["p"] / 100)) / abs(i["served_per_s"] - i["arrivals_per_s"] or 1.0)
        ),
        why="1 - p/100 is rounded, and the logarithm magnifies that by 1 / (1 - p/100)",
    ),
    wrong={
        "1 / served, whatever the load: that is the service alone": _queue(
            lambda lam, mu, q: 1 / mu
        ),
        "the queue is forgotten: the percentile of the service time alone": _queue(
            lambda lam, mu, q: -math.log(1 - q) / mu
        ),
        "the mean 1 / (served - arrivals): a percentile is asked": _queue(
            lambda lam, mu, q: 1 / (mu - lam)
        ),
        "the mean times p: a percentile is no share of the mean": _queue(
            lambda lam, mu, q: q / (mu - lam)
        ),
        "ln p in place of ln(1 - p): that is the other tail": _queue(
            lambda lam, mu, q: -math.log(q) / (mu - lam) if q else math.inf
        ),
        "the sign is missing: the logarithm of a number below 1 is negative": _queue(
            lambda lam, mu, q: math.log(1 - q) / (mu - lam)
        ),
        "p taken as a fraction, where it is a percentage": _queue(
            lambda lam, mu, q: -math.log(1 - q / 100) / (mu - lam)
        ),
        "log10 in place of the natural logarithm": _queue(
            lambda lam, mu, q: -math.log10(1 - q) / (mu - lam)
        ),
        "divided by 1 - load: that is a time in services; divide by served - arrivals": _queue(
            lambda lam, mu, q: -math.log(1 - q) / (1 - lam / mu)
        ),
        "the wait alone: the time of service belongs to it": _queue(
            lambda lam, mu, q: max(0.0, math.log(lam / mu / (1 - q))) / (mu - lam) if lam else 0.0
        ),
        "the percentiles of wait and of service, added: percentiles cannot be added": _queue(
            lambda lam, mu, q: (
                max(0.0, math.log(lam / mu / (1 - q)) if lam else 0.0) / (mu - lam)
                - math.log(1 - q) / mu
            )
        ),
        "times the load: the time in the system is asked, not that in the queue": _queue(
            lambda lam, mu, q: -math.log(1 - q) * lam / mu / (mu - lam)
        ),
        "divided by served + arrivals: what is left over decides": _queue(
            lambda lam, mu, q: -math.log(1 - q) / (mu + lam)
        ),
        "a full server gives infinity: refuse it, with ValueError": _full_is_served,
        "an overloaded server gives a negative time: refuse it, with ValueError": (
            _negative_allowed
        ),
    },
    right={
        "log1p and the mean": _queue(lambda lam, mu, q: 1 / (mu - lam) * -math.log1p(-q)),
        "halving on the distribution function": _queue(_halving),
        "from the load": _queue(
            lambda lam, mu, q: float(np.log(1 / (1 - q)) / mu / (1 - Fraction(lam) / Fraction(mu)))
        ),
    },
)
