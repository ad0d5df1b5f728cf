"""Lesson 11: percentiles, of values and of histograms."""

from __future__ import annotations

import math
import operator
import statistics
from bisect import bisect_left
from collections.abc import Callable
from fractions import Fraction
from itertools import accumulate
from typing import Any

import numpy as np

from grader.checks.latency_metrics.lesson import LESSON
from grader.judging.compare import Comparison
from grader.judging.exercise import Exercise, Inputs, given
from inferlab.latency_metrics import histogram_percentile, percentile

# ---- percentile ----------------------------------------------------------------------------------


def _draw_values(rng: np.random.Generator) -> Inputs:
    """Where rounding matters: the rank's fraction is between 0.1 and 0.4."""
    while True:
        n, p = int(rng.integers(15, 70)), int(rng.choice([37, 50, 75, 90, 95]))
        if 0.1 < p * n / 100 % 1 < 0.4 and math.ceil(p * n / 100) < n:
            return {"values": rng.lognormal(0, 1, n).tolist(), "p": p}


def _ranked(index: Callable[[int, float], float]) -> Callable:
    """A wrong percentile: another place, counted from 0, in the sorted values."""

    def answer(values, p):
        if len(values) == 0 or not 0 < p <= 100:
            raise ValueError(p)
        n = len(values)
        return float(sorted(values)[max(0, min(n - 1, int(index(n, p))))])

    return answer


def _changed(change: Callable[[Any, float], Any]) -> Callable:
    def answer(values, p):
        if len(values) == 0 or not 0 < p <= 100:
            raise ValueError(p)
        return change(values, p)

    return answer


def _by_numpy(method: Any) -> Callable:
    return _changed(lambda values, p: float(np.percentile(np.asarray(values), p, method=method)))


def _in_place(values, p):
    values.sort()
    return percentile(values, p)


def _by_counting(values, p):
    """The words of the definition: the smallest value with enough at or below it."""
    if not len(values) or p <= 0 or p > 100:
        raise ValueError(p)
    enough = [v for v in values if 100 * sum(w <= v for w in values) >= p * len(values)]
    return min(enough)


PERCENTILE = Exercise(
    id="percentile",
    reference=percentile,
    lesson=LESSON,
    points=2,
    minutes=8,
    difficulty=2,
    hints=(
        "Sort a copy, find the rank, take that value. Nothing is averaged and nothing lies "
        "between two values.",
        "The rank is math.ceil(p * n / 100), counted from 1; Python counts from 0. p is a "
        "percentage: 95, not 0.95.",
        "if len(values) == 0 or not 0 < p <= 100: raise ValueError(...); "
        "return sorted(values)[math.ceil(p * len(values) / 100) - 1]",
    ),
    cases=(
        given("four values, p50", values=[40.0, 10.0, 30.0, 20.0], p=50),
        given("four values, p51", values=[40.0, 10.0, 30.0, 20.0], p=51),
        given("seven values, p40", values=[7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0], p=40),
        given("seven values, p95", values=[7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0], p=95),
        given("98 ones, two fifties, p99", values=[1.0] * 49 + [50.0] * 2 + [1.0] * 49, p=99),
        given("99 ones, one fifty, p99", values=[50.0] + [1.0] * 99, p=99),
        given("two of ten have failed, p80", values=[0.2, math.inf] * 2 + [0.1] * 6, p=80),
        given("two of ten have failed, p90", values=[0.2, math.inf] * 2 + [0.1] * 6, p=90),
        given("all of them, p100", values=[3.0, 1.0, 2.0], p=100),
        given("a single value, p1", values=[7.0], p=1),
        given("a tiny percentage of many", values=[5.0, 4.0, 3.0, 2.0, 1.0] * 4, p=0.5),
        given("1 to 100, p55: the 55th", values=[float(v) for v in range(100, 0, -1)], p=55),
        given("1 to 1,000, p99.9", values=[float(v) for v in range(1, 1001)], p=99.9),
        given("no values", values=[], p=50),
        given("p = 0", values=[1.0, 2.0], p=0),
        given("p = -5", values=[1.0, 2.0], p=-5),
        given("p = 101", values=[1.0, 2.0], p=101),
    ),
    draw=_draw_values,
    wrong={
        "interpolates between two values: nearest rank always gives a value that was measured": (
            _by_numpy("linear")
        ),
        "the next value above a place among n - 1 steps: the rank is ceil(p n / 100)": (
            _by_numpy("higher")
        ),
        "the nearest value to a place among n - 1 steps: the rank is ceil(p n / 100)": (
            _by_numpy("nearest")
        ),
        "a mean of two values where the rank is a whole number: it is one of the values": (
            _by_numpy("averaged_inverted_cdf")
        ),
        "p / 100 * n is rounded up: 0.55 · 100 is a hair above 55 in floats; multiply first, as in "
        "p * n / 100": _ranked(lambda n, p: math.ceil(p / 100 * n) - 1),
        "p is cut to a whole number: p99.9 is not p99": _ranked(
            lambda n, p: math.ceil(int(p) * n / 100) - 1
        ),
        "ranks of n + 1 values: the share is of all n": _ranked(
            lambda n, p: math.ceil(p * (n + 1) / 100) - 1
        ),
        "the index is the rank, counted from 1, but Python counts from 0": _ranked(
            lambda n, p: math.ceil(p * n / 100)
        ),
        "int(p n / 100) as index: where it is a whole number that is one too far": _ranked(
            lambda n, p: p * n / 100
        ),
        "the rank is rounded to the nearest; it is rounded up": _ranked(
            lambda n, p: round(p * n / 100) - 1
        ),
        "the rank is rounded down; it is rounded up": _ranked(
            lambda n, p: math.floor(p * n / 100) - 1
        ),
        "ranks of n - 1 values: the share is of all n": _ranked(lambda n, p: p * (n - 1) / 100),
        "the values are not sorted": _changed(
            lambda values, p: values[math.ceil(p * len(values) / 100) - 1]
        ),
        "sorted from the largest down: p95 is then p5": _changed(
            lambda values, p: sorted(values, reverse=True)[math.ceil(p * len(values) / 100) - 1]
        ),
        "p taken as a fraction: 95 means 95 %": _ranked(lambda n, p: math.ceil(p * n) - 1),
        "the mean: it says nothing of the tail": _changed(
            lambda values, p: float(np.mean(np.asarray(values)))
        ),
        "the maximum: p99 leaves out the worst 1 %": _changed(lambda values, p: max(values)),
        "infinite values are dropped: a failed request is the worst there is, and it counts": (
            _changed(lambda values, p: percentile([v for v in values if math.isfinite(v)], p))
        ),
        "repeated values count once: every request counts": _changed(
            lambda values, p: percentile(list(set(map(float, values))), p)
        ),
        "it changes its input values in place; work on a copy": _in_place,
        "no values and p outside (0, 100] are not refused: raise ValueError": (
            lambda values, p: (
                sorted(values)[max(0, min(len(values), math.ceil(p * len(values) / 100)) - 1)]
                if len(values)
                else 0.0
            )
        ),
    },
    right={
        "sorted and rounded up by NumPy": _changed(
            lambda values, p: np.sort(values)[int(np.ceil(np.multiply(p, len(values)) / 100)) - 1]
        ),
        "counting, as the definition says": _by_counting,
        "negative floor division for rounding up, in fractions": _changed(
            lambda values, p: sorted(values)[int(-(Fraction(str(p)) * len(values) // -100)) - 1]
        ),
    },
)

# ---- histogram_percentile ------------------------------------------------------------------------

BOUNDS = [0.1, 0.25, 0.5, 1.0, 2.5, math.inf]


def _draw_histograms(rng: np.random.Generator) -> Inputs:
    """Unequal servers, one of them slow; the rank is no whole number and in no edge bucket."""
    while True:
        fast = rng.multinomial(int(rng.integers(300, 900)), [0.5, 0.3, 0.15, 0.03, 0.01, 0.01])
        slow = rng.multinomial(int(rng.integers(60, 120)), [0.02, 0.08, 0.2, 0.3, 0.3, 0.1])
        counts = np.array([fast, slow, rng.permutation(fast) // 3])
        p, total = int(rng.choice([90, 95])), counts.sum()
        bucket = int(np.searchsorted(counts.sum(0).cumsum(), p * total / 100))
        room = counts.sum(0)[bucket] / total
        if 0.1 < p * total / 100 % 1 < 0.9 and 2 <= bucket <= 4 and room > 0.04:
            return {"bounds_s": list(BOUNDS), "counts": counts.tolist(), "p": p}


def _within(
    place: Callable[[float, float, float, float, float], float],
    reaches: Callable[[float, float], bool] = operator.ge,
) -> Callable:
    """A wrong histogram_percentile: place(lower, upper, rank, before, number) in a finite bucket"""

    def answer(bounds_s, counts, p):
        fleet = [sum(c) for c in zip(*counts, strict=True)]
        if sum(fleet) == 0:
            raise ValueError("empty")
        rank, before, lower = p * sum(fleet) / 100, 0, 0.0
        for upper, number in zip(bounds_s, fleet, strict=True):
            if number and reaches(before + number, rank):
                break
            before, lower = before + number, upper
        return lower if math.isinf(upper) else place(lower, upper, rank, before, number)

    return answer


def _each_server(join: Callable[[list[float], list[int]], float]) -> Callable:
    def answer(bounds_s, counts, p):
        used = [row for row in counts if sum(row)]
        if not used:
            raise ValueError("empty")
        found = [histogram_percentile(bounds_s, [row], p) for row in used]
        return join(found, [sum(row) for row in used])

    return answer


def _mean_of_midpoints(bounds_s, counts, p):
    if not sum(map(sum, counts)):
        raise ValueError("empty")
    tops = [b if math.isfinite(b) else 2 * bounds_s[-2] for b in bounds_s]
    middles = [(a + b) / 2 for a, b in zip([0.0, *tops], tops, strict=False)]
    fleet = [sum(c) for c in zip(*counts, strict=True)]
    return sum(m * n for m, n in zip(middles, fleet, strict=True)) / sum(fleet)


def _cumulative_again(bounds_s, counts, p):
    """Reads the counts as running totals."""
    fleet = [sum(c) for c in zip(*counts, strict=True)]
    own = [max(0, b - a) for a, b in zip([0, *fleet], fleet, strict=False)]
    return histogram_percentile(bounds_s, [own], p)


def _without_the_last(bounds_s, counts, p):
    return histogram_percentile(bounds_s, [[*row[:-1], 0] for row in counts], p)


def _fraction(bounds_s, counts, p):
    return histogram_percentile(bounds_s, counts, p / 100)


def _infinite(bounds_s, counts, p):
    value = histogram_percentile(bounds_s, counts, p)
    return math.inf if value == bounds_s[-2] else value


def _unguarded_empty(bounds_s, counts, p):
    return histogram_percentile(bounds_s, counts, p) if sum(map(sum, counts)) else 0.0


def _numpy_histogram(bounds_s, counts, p):
    fleet = np.array(counts).sum(axis=0)
    if not fleet.any():
        raise ValueError("empty")
    totals = np.cumsum(fleet)
    rank = totals[-1] * (p / 100)
    i = int(np.argmax(totals >= rank))
    lower = bounds_s[i - 1] if i else 0.0
    if i == len(fleet) - 1:
        return lower
    return lower + (bounds_s[i] - lower) * (rank - (totals[i] - fleet[i])) / fleet[i]


def _bisected(bounds_s, counts, p):
    """Running totals and a binary search among the buckets that hold anything."""
    edges = [0.0, *bounds_s]
    columns = [sum(row[i] for row in counts) for i in range(len(bounds_s))]
    held = [i for i, number in enumerate(columns) if number]
    if not held:
        raise ValueError("empty")
    totals = list(accumulate(columns[i] for i in held))
    at = bisect_left(totals, p / 100 * totals[-1])
    i, share = held[at], 1 - (totals[at] - p / 100 * totals[-1]) / columns[held[at]]
    return edges[i] if math.isinf(edges[i + 1]) else (1 - share) * edges[i] + share * edges[i + 1]


def _unit_by_unit(bounds_s, counts, p):
    """Walks through the buckets with what is left of the rank."""
    n = sum(sum(row) for row in counts)
    if n == 0:
        raise ValueError("empty")
    left, lower = n * p / 100, 0.0
    for i, upper in enumerate(bounds_s[:-1]):
        number = sum(row[i] for row in counts)
        if number > 0 and left <= number:
            return lower + (upper - lower) * left / number
        left, lower = left - number, upper
    return lower


HISTOGRAM = Exercise(
    id="histogram_percentile",
    reference=histogram_percentile,
    lesson=LESSON,
    points=2,
    minutes=12,
    difficulty=3,
    hints=(
        "Counts may be added over servers, percentiles may not. First make one histogram of the "
        "fleet: zip(*counts) gives its columns.",
        "Walk through the buckets with a running total. The first that is not empty and reaches "
        "the rank p n / 100 holds it. Keep the total before it and its lower bound.",
        "lower + (upper - lower) * (rank - before) / number; where upper is inf: lower. Begin with "
        "before = 0 and lower = 0.0, and refuse a fleet without requests.",
    ),
    cases=(
        given(
            "two servers, p80",
            bounds_s=[1.0, 2.0, math.inf],
            counts=[[4, 2, 0], [2, 2, 0]],
            p=80,
        ),
        given(
            "a busy server and a slow one, p95",
            bounds_s=list(BOUNDS),
            counts=[[500, 300, 130, 50, 13, 2], [1, 2, 4, 9, 4, 3]],
            p=95,
        ),
        given(
            "an idle server, and an empty bucket",
            bounds_s=[0.1, 0.2, 0.4, 0.8, math.inf],
            counts=[[5, 0, 0, 6, 0], [0, 0, 0, 0, 0]],
            p=75,
        ),
        given(
            "the rank is a bucket's last, and the next is empty",
            bounds_s=[1.0, 2.0, 4.0, math.inf],
            counts=[[3, 0, 2, 0], [1, 0, 2, 0]],
            p=50,
        ),
        given("all of them, p100", bounds_s=[0.5, 1.0, math.inf], counts=[[7, 1, 0]] * 2, p=100),
        given("in the first bucket", bounds_s=[0.5, 1.0, math.inf], counts=[[7, 1, 0]] * 2, p=50),
        given("past the last bound", bounds_s=[0.5, 1.0, math.inf], counts=[[7, 1, 3]] * 2, p=99),
        given("nothing counted", bounds_s=[0.5, 1.0, math.inf], counts=[[0, 0, 0]] * 2, p=99),
    ),
    draw=_draw_histograms,
    comparison=Comparison(
        terms=lambda i: 4 + sum(map(sum, i["counts"])),
        magnitude=lambda i: i["bounds_s"][-2],
        why="a rank of n is rounded in proportion to n, and moves the place in the bucket",
    ),
    wrong={
        "each server's percentile, averaged: percentiles cannot be averaged, counts can be added": (
            _each_server(lambda found, sizes: float(np.mean(found)))
        ),
        "each server's percentile, weighted by its requests: still no percentile of the fleet": (
            _each_server(lambda found, sizes: float(np.average(found, weights=sizes)))
        ),
        "the worst server's percentile: most requests went to the others": _each_server(
            lambda found, sizes: max(found)
        ),
        "the median of the servers' percentiles": _each_server(
            lambda found, sizes: statistics.median(found)
        ),
        "the bucket's upper bound: inside it the requests are taken as evenly spread": _within(
            lambda lower, upper, rank, before, number: upper
        ),
        "the bucket's lower bound: inside it the requests are taken as evenly spread": _within(
            lambda lower, upper, rank, before, number: lower
        ),
        "the middle of the bucket, wherever the rank lies in it": _within(
            lambda lower, upper, rank, before, number: (lower + upper) / 2
        ),
        "the first bucket that goes beyond the rank: to reach it is enough": _within(
            lambda lower, upper, rank, before, number: (
                lower + (upper - lower) * (rank - before) / number
            ),
            operator.gt,
        ),
        "the requests past the last bound are left out of n: they count": _without_the_last,
        "the rank is rounded up first: it is used as it is": _within(
            lambda lower, upper, rank, before, number: (
                lower + (upper - lower) * (math.ceil(rank) - before) / number
            )
        ),
        "the total before the bucket is not subtracted": _within(
            lambda lower, upper, rank, before, number: lower + (upper - lower) * rank / number
        ),
        "the bucket is taken to begin at 0: it begins at the bound before": _within(
            lambda lower, upper, rank, before, number: upper * (rank - before) / number
        ),
        "measured from the bucket's upper end": _within(
            lambda lower, upper, rank, before, number: (
                upper - (upper - lower) * (rank - before) / number
            )
        ),
        "the counts are taken as running totals; each is of its bucket alone": _cumulative_again,
        "p taken as a fraction: 95 means 95 %": _fraction,
        "infinite past the last bound: there the last finite bound is all that is known": _infinite,
        "the mean of the histogram": _mean_of_midpoints,
        "a fleet without requests gives 0.0: raise ValueError": _unguarded_empty,
    },
    right={
        "NumPy's cumulative sum": _numpy_histogram,
        "what is left of the rank": _unit_by_unit,
        "a binary search over the running totals": _bisected,
    },
)
