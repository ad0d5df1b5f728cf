"""Lesson 11: arrivals from supplied uniforms, one by one and in bursts."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from grader.checks.latency_metrics.lesson import LESSON
from grader.judging.compare import Comparison
from grader.judging.exercise import Exercise, Inputs, given
from inferlab.workload import bursty_arrivals, poisson_arrivals

# ---- poisson_arrivals ----------------------------------------------------------------------------


def _draw_poisson(rng: np.random.Generator) -> Inputs:
    return {
        "rate_per_s": float(rng.uniform(3, 9)),
        "uniforms": rng.random(int(rng.integers(5, 12))),
    }


def _from_gaps(gaps: Callable[[float, np.ndarray], np.ndarray], total: bool = True) -> Callable:
    """A wrong poisson_arrivals with other gaps, or without the running sum."""

    def answer(rate_per_s, uniforms):
        if rate_per_s <= 0:
            raise ValueError(rate_per_s)
        made = gaps(rate_per_s, np.asarray(uniforms, dtype=float))
        return np.cumsum(made) if total else made

    return answer


def _begins_at_zero(rate_per_s, uniforms):
    times = poisson_arrivals(rate_per_s, uniforms)
    return np.concatenate([[0.0], times[:-1]])


def _order_statistics(rate_per_s, uniforms):
    if rate_per_s <= 0:
        raise ValueError(rate_per_s)
    return np.sort(uniforms) * len(uniforms) / rate_per_s


def _unguarded_rate(rate_per_s, uniforms):
    return np.cumsum(-np.log1p(-np.asarray(uniforms)) / max(rate_per_s, 1e-9))


def _poisson_loop(rate_per_s, uniforms):
    if not rate_per_s > 0:
        raise ValueError("no rate")
    now, times = 0.0, []
    for u in uniforms:
        now -= math.log(1 - u) / rate_per_s
        times.append(now)
    return times


def _poisson_torch(rate_per_s, uniforms):
    import torch  # takes a second, and only the tests call this

    if rate_per_s <= 0:
        raise ValueError(rate_per_s)
    return torch.from_numpy(-np.log(1 - np.asarray(uniforms)) / rate_per_s).cumsum(0)


def _poisson_product(rate_per_s, uniforms):
    """The sum of logarithms as the logarithm of a product."""
    if rate_per_s <= 0:
        raise ValueError(rate_per_s)
    return np.log(1 / np.cumprod(1 - np.asarray(uniforms))) / rate_per_s


ARRIVALS = Comparison(
    terms=lambda i: 2 + len(i["uniforms"]),
    magnitude=lambda i: (
        (1 + sum(-math.log(1 - float(u)) for u in i["uniforms"]))
        * max(1.0, 1 / (i["rate_per_s"] or 1.0))
        * (1 + i.get("off_s", 0.0) / (i.get("on_s") or 1.0))
    ),
    why="a running sum of n logarithms, each of a number rounded near 1",
)

POISSON = Exercise(
    id="poisson_arrivals",
    reference=poisson_arrivals,
    lesson=LESSON,
    points=2,
    minutes=8,
    difficulty=2,
    hints=(
        "Each uniform gives one gap; the times are the running sum of the gaps. A higher rate "
        "means shorter gaps.",
        "A share 1 - exp(-rate t) of all gaps is shorter than t. Set that equal to u and solve for "
        "t: that is the gap.",
        "Refuse a rate that is not above 0; then np.cumsum(-np.log(1 - u) / rate_per_s) with u as "
        "an array. np.log1p(-u) is the same logarithm, more exact for small u.",
    ),
    cases=(
        given("2 requests/s, u = 0.5 and 0", rate_per_s=2.0, uniforms=np.array([0.5, 0.0])),
        given(
            "the gap of u = 1 - 1/e is 1 / rate",
            rate_per_s=4.0,
            uniforms=np.full(5, 1 - math.exp(-1)),
        ),
        given("a slow stream", rate_per_s=0.05, uniforms=np.array([0.1, 0.9, 0.999, 0.3])),
        given("nobody", rate_per_s=1.0, uniforms=np.array([])),
        given("no rate", rate_per_s=0.0, uniforms=np.array([0.5])),
        given("a negative rate", rate_per_s=-2.0, uniforms=np.array([0.5])),
    ),
    draw=_draw_poisson,
    comparison=ARRIVALS,
    wrong={
        "ln u in place of ln(1 - u): u may be 0, and the logarithm is then infinite": _from_gaps(
            lambda rate, u: -np.log(np.maximum(u, 5e-324)) / rate
        ),
        "multiplied by the rate: it has requests per second, gaps are seconds": _from_gaps(
            lambda rate, u: -np.log1p(-u) * rate
        ),
        "the sign is missing: the logarithm of a number below 1 is negative": _from_gaps(
            lambda rate, u: np.log1p(-u) / rate
        ),
        "gaps are returned: arrival times are their running sum": _from_gaps(
            lambda rate, u: -np.log1p(-u) / rate, total=False
        ),
        "even gaps of 1 / rate: users do not take turns": _from_gaps(
            lambda rate, u: np.full(len(u), 1 / rate)
        ),
        "uniform gaps up to 2 / rate: the mean is right, the law is not": _from_gaps(
            lambda rate, u: 2 * u / rate
        ),
        "uniform gaps around 1 / rate": _from_gaps(lambda rate, u: (0.5 + u) / rate),
        "log2 in place of the natural logarithm": _from_gaps(
            lambda rate, u: -np.log2(1 - u) / rate
        ),
        "log10 in place of the natural logarithm": _from_gaps(
            lambda rate, u: -np.log10(1 - u) / rate
        ),
        "exp in place of its inverse, the logarithm": _from_gaps(
            lambda rate, u: (1 - np.exp(-u)) / rate
        ),
        "the rate is ignored: gaps of mean 1 s": _from_gaps(lambda rate, u: -np.log1p(-u)),
        "the first request comes at 0: it has a gap before it too": _begins_at_zero,
        "sorted uniforms over the mean length: the number in that time is then no longer random": (
            _order_statistics
        ),
        "only a rate of 0 is refused, not one below: raise ValueError": (
            lambda rate_per_s, uniforms: (
                -poisson_arrivals(-rate_per_s, uniforms)
                if rate_per_s < 0
                else poisson_arrivals(rate_per_s, uniforms)
            )
        ),
        "a rate of 0 gives times: nobody ever comes, raise ValueError": _unguarded_rate,
    },
    right={
        "a loop with math.log": _poisson_loop,
        "torch's cumsum": _poisson_torch,
        "the logarithm of a running product": _poisson_product,
    },
)

# ---- bursty_arrivals -----------------------------------------------------------------------------


def _draw_bursts(rng: np.random.Generator) -> Inputs:
    """Several bursts, more than one request in some, and nobody close to the edge of one."""
    while True:
        inputs = {
            "rate_per_s": float(rng.uniform(1.5, 3)),
            "on_s": float(rng.uniform(0.6, 1.2)),
            "off_s": float(rng.uniform(1.5, 3)),
            "uniforms": rng.random(24),
        }
        if _is_clear(**inputs):
            return inputs


def _is_clear(rate_per_s, on_s, off_s, uniforms) -> bool:
    running = poisson_arrivals(rate_per_s * (on_s + off_s) / on_s, uniforms)
    place = running / on_s % 1
    return bool(running[-1] > 2 * on_s and running[0] < on_s and np.abs(place - 0.5).max() < 0.499)


def _bursts(
    on_rate: Callable[[float, float, float], float] = lambda rate, on, off: rate * (on + off) / on,
    pauses: Callable[[np.ndarray, float, float], np.ndarray] = lambda t, on, off: (
        off * np.floor(t / on)
    ),
    ok: Callable[[float, float], bool] = lambda on, off: on > 0 and off >= 0,
) -> Callable:
    """bursty_arrivals with another rate, or other pauses."""

    def answer(rate_per_s, on_s, off_s, uniforms):
        if not ok(on_s, off_s):
            raise ValueError((on_s, off_s))
        running = poisson_arrivals(on_rate(rate_per_s, on_s, off_s), uniforms)
        return running + pauses(running, on_s, off_s)

    return answer


def _drops_in_pauses(rate_per_s, on_s, off_s, uniforms):
    """Poisson at the mean rate, those in a pause moved to its end."""
    if on_s <= 0 or off_s < 0:
        raise ValueError(on_s)
    times = poisson_arrivals(rate_per_s, uniforms)
    cycle = on_s + off_s
    inside = times % cycle < on_s
    return np.where(inside, times, np.ceil(times / cycle) * cycle)


def _pause_after_each(rate_per_s, on_s, off_s, uniforms):
    if on_s <= 0 or off_s < 0:
        raise ValueError(on_s)
    running = poisson_arrivals(rate_per_s * (on_s + off_s) / on_s, uniforms)
    return running + off_s * np.arange(len(running))


def _burst_loop(rate_per_s, on_s, off_s, uniforms):
    """Carries what is left of the present burst."""
    if on_s <= 0 or off_s < 0:
        raise ValueError("bad phases")
    rate = rate_per_s * (1 + off_s / on_s)
    now, left, times = 0.0, on_s, []
    for gap in np.diff(poisson_arrivals(rate, uniforms), prepend=0.0):
        while gap >= left:
            gap -= left
            now += left + off_s
            left = on_s
        now, left = now + gap, left - gap
        times.append(now)
    return times


def _burst_divmod(rate_per_s, on_s, off_s, uniforms):
    """The number of the burst, and the place in it."""
    if not (on_s > 0 and off_s >= 0):
        raise ValueError("bad phases")
    running = -np.cumsum(np.log(1 - np.asarray(uniforms))) * on_s / (rate_per_s * (on_s + off_s))
    number, place = np.divmod(running, on_s)
    return number * (on_s + off_s) + place


def _squeezed(rate_per_s, on_s, off_s, uniforms):
    """Poisson at the mean rate, each cycle of it squeezed into the burst at its beginning."""
    if on_s <= 0 or off_s < 0:
        raise ValueError("bad phases")
    cycle = on_s + off_s
    number, place = np.divmod(poisson_arrivals(rate_per_s, uniforms), cycle)
    return number * cycle + place * on_s / cycle


BURSTY = Exercise(
    id="bursty_arrivals",
    reference=bursty_arrivals,
    lesson=LESSON,
    points=2,
    minutes=10,
    difficulty=3,
    uses=("poisson_arrivals",),
    hints=(
        "Think of a clock that stands still in the pauses. On that clock traffic is plain Poisson, "
        "only denser, and poisson_arrivals makes it.",
        "The rate on that clock is rate_per_s * (on_s + off_s) / on_s, so that the mean over a "
        "cycle is rate_per_s. t // on_s counts the bursts, and pauses, that are over at time t.",
        "running = poisson_arrivals(rate_per_s * (on_s + off_s) / on_s, uniforms); "
        "return running + off_s * np.floor(running / on_s). Refuse on_s <= 0 and off_s < 0 first.",
    ),
    cases=(
        given(
            "on 1 s, off 3 s", rate_per_s=1.0, on_s=1.0, off_s=3.0, uniforms=np.array([0.5, 0.99])
        ),
        given(
            "no pauses: plain Poisson",
            rate_per_s=2.0,
            on_s=0.7,
            off_s=0.0,
            uniforms=np.array([0.3, 0.8, 0.6, 0.95]),
        ),
        given(
            "a pause that several bursts of nobody precede",
            rate_per_s=0.1,
            on_s=0.5,
            off_s=1.0,
            uniforms=np.array([0.7, 0.2, 0.9]),
        ),
        given(
            "u = 0: the first comes at once",
            rate_per_s=1.0,
            on_s=1.0,
            off_s=3.0,
            uniforms=np.array([0.0, 0.5, 0.99]),
        ),
        given(
            "a burst of negative length",
            rate_per_s=1.0,
            on_s=-1.0,
            off_s=0.5,
            uniforms=np.array([0.5]),
        ),
        given("no traffic at all", rate_per_s=1.0, on_s=0.0, off_s=3.0, uniforms=np.array([0.5])),
        given("a negative pause", rate_per_s=1.0, on_s=1.0, off_s=-0.5, uniforms=np.array([0.5])),
    ),
    draw=_draw_bursts,
    comparison=ARRIVALS,
    wrong={
        "the rate while on is rate_per_s: the mean over a cycle is then too low": _bursts(
            on_rate=lambda rate, on, off: rate
        ),
        "the rate while on is raised by off / on: a cycle is on + off": _bursts(
            on_rate=lambda rate, on, off: rate * off / on if off else rate
        ),
        "the rate while on is raised by (on + off) / off": _bursts(
            on_rate=lambda rate, on, off: rate * (on + off) / off if off else rate
        ),
        "the rate while on is lowered: it must make up for the pauses": _bursts(
            on_rate=lambda rate, on, off: rate * on / (on + off)
        ),
        "the pauses are never put in": _bursts(pauses=lambda t, on, off: 0 * t),
        "one pause too many: the first burst begins at 0": _bursts(
            pauses=lambda t, on, off: off * np.ceil(t / on)
        ),
        "ceil(t / on_s) - 1 is -1 at t = 0, and one too few at a burst's end: use floor": _bursts(
            pauses=lambda t, on, off: off * (np.ceil(t / on) - 1)
        ),
        "pauses are rounded to the nearest: only whole bursts have one after them": _bursts(
            pauses=lambda t, on, off: off * np.round(t / on)
        ),
        "pauses grow with time: they come at the end of each burst, all at once": _bursts(
            pauses=lambda t, on, off: off * t / on
        ),
        "pauses are counted by the whole cycle: the clock that stands still has bursts only": (
            _bursts(pauses=lambda t, on, off: off * np.floor(t / (on + off)))
        ),
        "one pause for everybody after the first burst: there is one after every burst": _bursts(
            pauses=lambda t, on, off: off * (t >= on)
        ),
        "the whole cycle is added for each pause: only off_s is": _bursts(
            pauses=lambda t, on, off: (on + off) * np.floor(t / on)
        ),
        "a pause after every request": _pause_after_each,
        "plain Poisson, and those who came in a pause wait for its end": _drops_in_pauses,
        "on_s of 0 or a negative off_s is not refused: raise ValueError": _bursts(
            on_rate=lambda rate, on, off: rate * (on + off) / (on or 1.0),
            pauses=lambda t, on, off: off * np.floor(t / (on or 1.0)),
            ok=lambda on, off: True,
        ),
    },
    right={
        "a loop over what is left of each burst": _burst_loop,
        "divmod: number of the burst, and place in it": _burst_divmod,
        "each cycle squeezed into its burst": _squeezed,
    },
)
