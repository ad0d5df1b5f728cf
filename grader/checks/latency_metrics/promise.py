"""Lesson 11: the highest rate that keeps a promise."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

import numpy as np

from grader.checks.latency_metrics.lesson import LESSON
from grader.judging.exercise import Exercise, Inputs, given
from inferlab.workload import highest_rate


def _draw_sweep(rng: np.random.Generator) -> Inputs:
    """Good up to some rate, then a miss, a lucky run above it, and misses again; shuffled."""
    n = int(rng.integers(7, 10))
    rates = np.cumsum(rng.uniform(0.5, 2, n)).tolist()
    target = float(rng.choice([0.95, 0.99]))
    good = int(rng.integers(2, n - 4))
    shares = [float(rng.uniform(target + 0.001, 1.0)) for _ in range(good + 1)]
    shares += [float(rng.uniform(0.91, 0.94)), float(rng.uniform(target + 0.001, 1.0))]
    shares += [float(rng.uniform(0.2, 0.6)) for _ in range(n - len(shares))]
    order = rng.permutation(n)
    return {
        "rates_per_s": [rates[i] for i in order],
        "attainments": [shares[i] for i in order],
        "target": target,
    }


def _sweep(
    of: Callable[[list[tuple[float, float]], float], float | None], in_order: bool = True
) -> Callable:
    """A wrong highest_rate: of(pairs of rate and share, target), None where it refuses."""

    def answer(rates_per_s, attainments, target=0.9):
        pairs = list(zip(rates_per_s, attainments, strict=True))
        best = of(sorted(pairs) if in_order else pairs, target)
        if best is None:
            raise ValueError("no rate keeps the promise")
        return best

    return answer


def _until_miss(pairs, target, met=lambda share, target: share >= target):
    best = None
    for rate, share in pairs:
        if not met(share, target):
            break
        best = rate
    return best


def _until_it_falls(pairs, target):
    falls = (a[0] for a, b in pairwise(pairs) if b[1] < a[1])
    return next(falls, pairs[-1][0]) if pairs[0][1] >= target else None


def _first_miss(pairs, target):
    if pairs[0][1] < target:
        return None
    return next((rate for rate, share in pairs if share < target), pairs[-1][0])


def _interpolates(pairs, target):
    """The rate at which a straight line between two runs crosses the target."""
    best = _until_miss(pairs, target)
    i = [rate for rate, _ in pairs].index(best) if best is not None else -1
    if best is None or i + 1 == len(pairs):
        return best
    (r0, s0), (r1, s1) = pairs[i : i + 2]
    return r0 + (r1 - r0) * (s0 - target) / (s0 - s1)


def _numpy_sweep(rates_per_s, attainments, target=0.9):
    order = np.argsort(rates_per_s)
    met = np.asarray(attainments)[order] >= target
    n_good = len(met) if met.all() else int(np.argmin(met))
    if n_good == 0:
        raise ValueError("even the lowest rate misses")
    return np.asarray(rates_per_s)[order][n_good - 1]


HIGHEST = Exercise(
    id="highest_rate",
    reference=highest_rate,
    lesson=LESSON,
    points=2,
    minutes=8,
    difficulty=2,
    hints=(
        "Go up from the lowest rate and stop at the first that misses the target. The answer is "
        "the one before it.",
        "sorted(zip(rates, shares)) brings the pairs in order of the rate. Keep the last good rate "
        "in a variable that begins as None.",
        "for rate, share in sorted(zip(rates_per_s, attainments)): if share < target: break; "
        "best = rate. If best is still None, raise ValueError; else return it.",
    ),
    cases=(
        given(
            "a lucky run at 8/s",
            rates_per_s=[1, 2, 4, 8],
            attainments=[1.0, 0.95, 0.7, 0.92],
            target=0.9,
        ),
        given("the default target", rates_per_s=[1.0, 2.0, 3.0], attainments=[0.97, 0.92, 0.85]),
        given(
            "in any order, the default target",
            rates_per_s=[6.0, 2.0, 4.0, 8.0],
            attainments=[0.9, 1.0, 0.97, 0.3],
        ),
        given("all rates are good", rates_per_s=[1.0, 3.0], attainments=[1.0, 0.99], target=0.9),
        given(
            "even the lowest rate misses",
            rates_per_s=[5.0, 1.0, 3.0],
            attainments=[0.95, 0.8, 0.99],
            target=0.9,
        ),
    ),
    draw=_draw_sweep,
    wrong={
        "the highest rate that was ever good: a lucky run beyond a miss does not count": _sweep(
            lambda pairs, target: max((r for r, s in pairs if s >= target), default=None)
        ),
        "the lowest rate that is good": _sweep(
            lambda pairs, target: min((r for r, s in pairs if s >= target), default=None)
        ),
        "the first rate that misses: the one before it was good": _sweep(_first_miss),
        "a rate that was never measured, between two runs: nothing is known of it": _sweep(
            _interpolates
        ),
        "the runs in the order given: sort them by rate": _sweep(_until_miss, in_order=False),
        "the rates are sorted and the shares are not: sort the pairs": (
            lambda rates_per_s, attainments, target=0.9: highest_rate(
                sorted(rates_per_s), attainments, target
            )
        ),
        "the last rate before the share first falls: it may fall and still be enough": _sweep(
            _until_it_falls
        ),
        "the default target is 0.9": (
            lambda rates_per_s, attainments, target=0.95: highest_rate(
                rates_per_s, attainments, target
            )
        ),
        "exactly the target is a miss: it is met": _sweep(
            lambda pairs, target: _until_miss(pairs, target, lambda s, t: s > t)
        ),
        "the target is ignored: 0.9 is only the default": _sweep(
            lambda pairs, target: _until_miss(pairs, 0.9)
        ),
        "every request must be good: the target share is enough": _sweep(
            lambda pairs, target: _until_miss(pairs, 1.0)
        ),
        "the rate with the largest share of good requests": _sweep(
            lambda pairs, target: (
                max(pairs, key=lambda pair: pair[1])[0] if pairs[0][1] >= target else None
            )
        ),
        "the rate with the most good requests a second: users of the others were let down": _sweep(
            lambda pairs, target: (
                max(pairs, key=lambda pair: pair[0] * pair[1])[0] if pairs[0][1] >= target else None
            )
        ),
        "rate times share: the highest rate is asked": _sweep(
            lambda pairs, target: (
                max(r * s for r, s in pairs if r == _until_miss(pairs, target))
                if pairs[0][1] >= target
                else None
            )
        ),
        "0 where even the lowest rate misses: refuse it, with ValueError": _sweep(
            lambda pairs, target: _until_miss(pairs, target) or 0.0
        ),
        "the lowest rate where even that misses: refuse it, with ValueError": _sweep(
            lambda pairs, target: _until_miss(pairs, target) or pairs[0][0]
        ),
    },
    right={
        "NumPy's argsort and argmin": _numpy_sweep,
        "below the lowest rate that misses": _sweep(
            lambda pairs, target: max(
                (
                    r
                    for r, _ in pairs
                    if r < min((r for r, s in pairs if s < target), default=math.inf)
                ),
                default=None,
            )
        ),
        "a prefix that is all good": _sweep(
            lambda pairs, target: next(
                (
                    pairs[n - 1][0]
                    for n in range(len(pairs), 0, -1)
                    if all(s >= target for _, s in pairs[:n])
                ),
                None,
            )
        ),
    },
)
