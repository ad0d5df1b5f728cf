"""Lesson 12: how fast a deployment can be, and for how many users."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from grader.checks.capacity.drawn import (
    EIGHT,
    SEVENTY,
    SUMS,
    draw_deployment,
)
from grader.checks.capacity.lesson import LESSON
from grader.judging.exercise import Exercise, Inputs, given
from inferlab.capacity import (
    pass_seconds,
    sequences_that_fit,
    steady_tpot_s,
    users_within,
)

# ---- steady_tpot_s -----------------------------------------------------------------------------


def _draw_steady(rng: np.random.Generator) -> Inputs:
    """A deployment for which reading and the prefills both count, with and without overlap."""
    while True:
        deployment = draw_deployment(rng)
        inputs: Inputs = {
            "deployment": deployment,
            "n_prompt": int(rng.integers(300, 3000)),
            "n_output": int(rng.integers(30, 900)),
            "n_sequences": int(rng.integers(5, 90)),
            "overlap": bool(rng.integers(2)),
        }
        p, o, s = (inputs[k] for k in ("n_prompt", "n_output", "n_sequences"))
        step = pass_seconds(deployment, 1, p + o // 2, s)
        prefill = s / (o - 1) * max(pass_seconds(deployment, p, 0))
        if step[0] > 1.1 * step[1] and prefill > 0.05 * step[0]:
            return inputs


def _steady(change: Callable[[Any, int, int, int, bool], float]) -> Callable:
    def tpot(deployment, n_prompt, n_output, n_sequences, overlap=False):
        if n_output < 2:
            raise ValueError(f"n_output={n_output}")
        return change(deployment, n_prompt, n_output, n_sequences, overlap)

    return tpot


def _tpot(
    cached: Callable[[int, int], int] = lambda p, o: p + o // 2,
    rate: Callable[[int, int], float] = lambda o, s: s / (o - 1),
    serial: Callable[..., float] = lambda step, prefill, r: max(step) + r * max(prefill),
    mixed: Callable[..., float] = lambda step, prefill, r: max(step[0], step[1] + r * prefill[1]),
) -> Callable:
    def change(d, p, o, s, overlap):
        step, prefill = pass_seconds(d, 1, cached(p, o), s), pass_seconds(d, p, 0)
        return (mixed if overlap else serial)(step, prefill, rate(o, s))

    return _steady(change)


def _over_a_request(d: Any, p: int, o: int, s: int, overlap: bool) -> float:
    """Seconds of a whole generation of all users, shared out over its steps."""
    step, prefill = pass_seconds(d, 1, p + o // 2, s), pass_seconds(d, p, 0)
    if overlap:
        return max((o - 1) * step[0], (o - 1) * step[1] + s * prefill[1]) / (o - 1)
    total = 0.0
    for _ in range(o - 1):
        total += max(step)
    for _ in range(s):
        total += max(prefill)
    return total / (o - 1)


STEADY = Exercise(
    id="steady_tpot_s",
    reference=steady_tpot_s,
    lesson=LESSON,
    points=2,
    minutes=12,
    difficulty=4,
    uses=("pass_seconds",),
    comparison=SUMS,
    hints=(
        "Over n_output - 1 steps every one of n_sequences users is replaced once. So how many "
        "prefills fall on one step?",
        "step = pass_seconds(deployment, 1, n_prompt + n_output // 2, n_sequences), prefill = "
        "pass_seconds(deployment, n_prompt, 0); each is (reading, computing).",
        "share = n_sequences / (n_output - 1). Taking turns: max(step) + share * max(prefill). "
        "Overlapped: max(step[0], step[1] + share * prefill[1])",
    ),
    cases=(
        given(
            "Llama-3-70B on 4 H100, 298 users, 1,024 in, 500 out",
            deployment=SEVENTY,
            n_prompt=1024,
            n_output=500,
            n_sequences=298,
        ),
        given(
            "the same, overlapped",
            deployment=SEVENTY,
            n_prompt=1024,
            n_output=500,
            n_sequences=298,
            overlap=True,
        ),
        given(
            "168 users at 70 % of the rates",
            deployment=replace(SEVENTY, efficiency=0.7),
            n_prompt=1024,
            n_output=500,
            n_sequences=168,
        ),
        given(
            "a short prompt: its prefill is bound by reading",
            deployment=EIGHT,
            n_prompt=30,
            n_output=41,
            n_sequences=9,
        ),
        given(
            "short prompts, short answers, overlapped: prompts cost their computing alone",
            deployment=EIGHT,
            n_prompt=30,
            n_output=3,
            n_sequences=9,
            overlap=True,
        ),
        given(
            "one user, overlapped",
            deployment=EIGHT,
            n_prompt=700,
            n_output=2,
            n_sequences=1,
            overlap=True,
        ),
        given(
            "one token: there is no step", deployment=EIGHT, n_prompt=9, n_output=1, n_sequences=1
        ),
    ),
    draw=_draw_steady,
    wrong={
        "the prefills are forgotten: whoever leaves is replaced by a new prompt": _tpot(
            serial=lambda step, prefill, r: max(step), mixed=lambda step, prefill, r: max(step)
        ),
        "one prefill a step: it is n_sequences / (n_output - 1) of them": _tpot(
            rate=lambda o, s: 1.0
        ),
        "one user's prefill: all n_sequences are replaced": _tpot(rate=lambda o, s: 1 / (o - 1)),
        "divided by n_output: there are n_output - 1 steps": _tpot(rate=lambda o, s: s / o),
        "the other way round: (n_output - 1) / n_sequences prefills a step": _tpot(
            rate=lambda o, s: (o - 1) / s
        ),
        "contexts at their longest: on average half the answer is there": _tpot(
            cached=lambda p, o: p + o
        ),
        "contexts at their shortest: half the answer is there on average": _tpot(
            cached=lambda p, o: p
        ),
        "half of prompt and answer: the prompt is whole from the start": _tpot(
            cached=lambda p, o: (p + o) // 2
        ),
        "reading and computing of a pass are added: the longer of them counts": _tpot(
            serial=lambda step, prefill, r: sum(step) + r * sum(prefill)
        ),
        "overlap is ignored": _tpot(mixed=lambda step, prefill, r: max(step) + r * max(prefill)),
        "always overlapped": _tpot(
            serial=lambda step, prefill, r: max(step[0], step[1] + r * prefill[1])
        ),
        "with overlap the prompts still read the weights: they ride on a step's reading": _tpot(
            mixed=lambda step, prefill, r: max(step[0] + r * prefill[0], step[1] + r * prefill[1])
        ),
        "with overlap the prefills hide wholly: their computing does not vanish": _tpot(
            mixed=lambda step, prefill, r: max(*step, r * prefill[1])
        ),
        "with overlap the longer of the step and the prefills: their computing is added up": _tpot(
            mixed=lambda step, prefill, r: max(max(step), r * max(prefill))
        ),
        "with overlap the longer of a prefill's two: only its computing is paid for": _tpot(
            mixed=lambda step, prefill, r: max(step[0], step[1] + r * max(prefill))
        ),
        "in turns, the sums of reading and of computing: each pass takes its own longer": _tpot(
            serial=lambda step, prefill, r: max(step[0] + r * prefill[0], step[1] + r * prefill[1])
        ),
        "whole prefills a step: on average it is a fraction": _tpot(rate=lambda o, s: s // (o - 1)),
        "the leaver is not counted: n_sequences prefills, not one fewer": _tpot(
            rate=lambda o, s: (s - 1) / (o - 1)
        ),
        "n_output 1 is not refused: one token has no decode step": (
            lambda deployment, n_prompt, n_output, n_sequences, overlap=False: (
                0.0
                if n_output < 2
                else steady_tpot_s(deployment, n_prompt, n_output, n_sequences, overlap)
            )
        ),
    },
    right={
        "over a whole request": _steady(_over_a_request),
        "from requests a second": _steady(
            lambda d, p, o, s, overlap: (
                s * (_over_a_request(d, p, o, s, overlap) * (o - 1) / s) / (o - 1)
            )
        ),
    },
)

# ---- users_within ------------------------------------------------------------------------------


def _draw_users(rng: np.random.Generator) -> Inputs:
    """The limit decides, not memory; it lies between two numbers of users."""
    while True:
        deployment = draw_deployment(rng)
        p, o, overlap = (
            int(rng.integers(300, 3000)),
            int(rng.integers(40, 500)),
            bool(rng.integers(2)),
        )
        fits = sequences_that_fit(deployment, p + o)
        if not 20 <= fits <= 5000:
            continue
        about = int(fits * rng.uniform(0.3, 0.8))
        limit = sum(steady_tpot_s(deployment, p, o, about + i, overlap) for i in (0, 1)) / 2
        return {
            "deployment": deployment,
            "n_prompt": p,
            "n_output": o,
            "tpot_limit_s": limit,
            "overlap": overlap,
        }


def _largest(ok: Callable[[int], bool], most: int) -> int:
    low, high = 0, most + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if ok(middle) else (low, middle)
    return low


def _users(
    fits: Callable[[Any, int, int], int] = lambda d, p, o: sequences_that_fit(d, p + o),
    tpot: Callable[[Any, int, int, int, bool], float] = steady_tpot_s,
    out: Callable[[int], int] = lambda n: n,
) -> Callable:
    def users(deployment, n_prompt, n_output, tpot_limit_s, overlap=False):
        d, p, o = deployment, n_prompt, n_output
        return out(_largest(lambda n: tpot(d, p, o, n, overlap) <= tpot_limit_s, fits(d, p, o)))

    return users


def _one_more_each_time(deployment, n_prompt, n_output, tpot_limit_s, overlap=False):
    n, fits = 0, sequences_that_fit(deployment, n_prompt + n_output)
    step = 1 << 14
    while step:  # in shrinking strides, so that thousands do not take thousands of calls
        if n + step <= fits and (
            steady_tpot_s(deployment, n_prompt, n_output, n + step, overlap) <= tpot_limit_s
        ):
            n += step
        else:
            step //= 2
    return n


SLOW = replace(SEVENTY, efficiency=0.7)

USERS = Exercise(
    id="users_within",
    reference=users_within,
    lesson=LESSON,
    points=2,
    minutes=8,
    difficulty=3,
    uses=("steady_tpot_s", "sequences_that_fit"),
    hints=(
        "Two limits: memory gives a most, the time per token another. The smaller one counts.",
        "steady_tpot_s only grows with n_sequences. So search between 0 and sequences_that_fit, as "
        "in max_context, or count up.",
        "low, high = 0, fits + 1; while high - low > 1: middle = (low + high) // 2; low = middle "
        "if steady_tpot_s(…, middle, overlap) <= tpot_limit_s, else high = middle",
    ),
    cases=(
        given(
            "Llama-3-70B on 4 H100 at 70 %, 40 ms",
            deployment=SLOW,
            n_prompt=1024,
            n_output=500,
            tpot_limit_s=0.04,
        ),
        given(
            "the same, overlapped",
            deployment=SLOW,
            n_prompt=1024,
            n_output=500,
            tpot_limit_s=0.04,
            overlap=True,
        ),
        given(
            "at the data sheet's rates, overlapped: memory decides",
            deployment=SEVENTY,
            n_prompt=1024,
            n_output=500,
            tpot_limit_s=0.04,
            overlap=True,
        ),
        given(
            "5 ms: not even one", deployment=SLOW, n_prompt=1024, n_output=500, tpot_limit_s=0.005
        ),
        given(
            "the weights do not fit",
            deployment=replace(SLOW, n_devices=1),
            n_prompt=1024,
            n_output=500,
            tpot_limit_s=9.0,
        ),
        given(
            "exactly the limit is allowed",
            deployment=SLOW,
            n_prompt=1024,
            n_output=500,
            tpot_limit_s=steady_tpot_s(SLOW, 1024, 500, 100),
        ),
        given(
            "a token more than 95 full pages each, and memory decides",
            deployment=SEVENTY,
            n_prompt=1024,
            n_output=497,
            tpot_limit_s=9.0,
        ),
    ),
    draw=_draw_users,
    n_draws=8,
    wrong={
        "from memory alone: the time per token has a limit too": _users(
            tpot=lambda d, p, o, n, overlap: 0.0
        ),
        "from the time alone: memory has a limit too": _users(fits=lambda d, p, o: 10**6),
        "the prefills are forgotten: a decode step alone is not what users feel": _users(
            tpot=lambda d, p, o, n, overlap: max(pass_seconds(d, 1, p + o // 2, n))
        ),
        "one too many: the first that is over the limit": _users(out=lambda n: n + 1),
        "one too few: exactly the limit is allowed": _users(out=lambda n: max(0, n - 1)),
        "always overlapped": _users(
            tpot=lambda d, p, o, n, overlap: steady_tpot_s(d, p, o, n, True)
        ),
        "proportional to one user: the weights are read once for all": _users(
            tpot=lambda d, p, o, n, overlap: n * steady_tpot_s(d, p, o, 1, overlap)
        ),
        "overlap is ignored": _users(tpot=lambda d, p, o, n, overlap: steady_tpot_s(d, p, o, n)),
        "the prompt alone must fit: its answer is kept as well": _users(
            fits=lambda d, p, o: sequences_that_fit(d, p)
        ),
        "half of the answer must fit: in the end all of it is kept": _users(
            fits=lambda d, p, o: sequences_that_fit(d, p + o // 2)
        ),
        "the last token of each answer is left out: prompt and answer must fit, all of them": (
            _users(fits=lambda d, p, o: sequences_that_fit(d, p + o - 1))
        ),
        "pages of one token: the pages have 16": _users(
            fits=lambda d, p, o: sequences_that_fit(d, p + o, 1)
        ),
        "at least 1: where nobody can be served the answer is 0": _users(out=lambda n: max(1, n)),
        "users of each device: one copy on all of them is asked": (
            lambda deployment, n_prompt, n_output, tpot_limit_s, overlap=False: (
                users_within(deployment, n_prompt, n_output, tpot_limit_s, overlap)
                // deployment.n_devices
            )
        ),
    },
    right={
        "in strides": _one_more_each_time,
        "bisect of the standard library": (
            lambda deployment, n_prompt, n_output, tpot_limit_s, overlap=False: bisect_right(
                range(1, sequences_that_fit(deployment, n_prompt + n_output) + 1),
                tpot_limit_s,
                key=lambda n: steady_tpot_s(deployment, n_prompt, n_output, n, overlap),
            )
        ),
    },
)
