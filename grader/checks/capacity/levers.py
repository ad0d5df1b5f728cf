"""Lesson 12: what one change buys, exactly."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from grader.checks.capacity.drawn import EIGHT, LLAMA_8B, SEVENTY, SUMS, draw_deployment
from grader.checks.capacity.lesson import LESSON
from grader.judging.exercise import Exercise, Inputs, given
from inferlab.capacity import cache_room_bytes, pass_seconds, sequences_that_fit
from inferlab.planner import lever_gain, speculation_gain
from inferlab.speculative_sampling import speedup

# ---- lever_gain --------------------------------------------------------------------------------


def _draw_lever(rng: np.random.Generator) -> Inputs:
    before = replace(draw_deployment(rng), bytes_per_weight=2.0, bytes_per_number=2)
    before = replace(before, memory_bytes=before.memory_bytes * 2.5)
    changes: list[dict[str, Any]] = [
        {"bytes_per_weight": 1.0},
        {"bytes_per_weight": 0.5625},
        {"bytes_per_number": 1},
        {"config": replace(before.config, n_kv_heads=2)},
    ]
    return {
        "before": before,
        "after": replace(before, **changes[int(rng.integers(4))]),
        "n_tokens": int(rng.integers(700, 5000)),
        "n_sequences": int(rng.integers(11, 60)),
    }


def _step(d: Any, n_tokens: int, s: int) -> float:
    return max(pass_seconds(d, 1, n_tokens, s))


def _users_ratio(a: Any, b: Any, n: int) -> float:
    return sequences_that_fit(b, n) / sequences_that_fit(a, n)


def _gain(
    users: Callable[[Any, Any, int], float] = _users_ratio,
    speed: Callable[[Any, Any, int, int], float] = lambda a, b, n, s: (
        _step(a, n, s) / _step(b, n, s)
    ),
) -> Callable:
    def gain(before, after, n_tokens, n_sequences):
        if sequences_that_fit(before, n_tokens) == 0:
            raise ValueError("nothing fits before")
        return {
            "users": users(before, after, n_tokens),
            "speed": speed(before, after, n_tokens, n_sequences),
        }

    return gain


def _refuse_none_after(before, after, n_tokens, n_sequences):
    if sequences_that_fit(after, n_tokens) == 0:
        raise ValueError("nothing fits after")
    return lever_gain(before, after, n_tokens, n_sequences)


def _bytes_ratio(a: Any, b: Any) -> float:
    return a.bytes_per_weight * a.bytes_per_number / (b.bytes_per_weight * b.bytes_per_number)


LEVER = Exercise(
    id="lever_gain",
    reference=lever_gain,
    lesson=LESSON,
    points=2,
    minutes=8,
    difficulty=2,
    uses=("sequences_that_fit", "pass_seconds"),
    comparison=SUMS,
    hints=(
        "Nothing new is computed here: the two deployments are sized, and compared.",
        "Users: after over before, more is better. Seconds: before over after, so that faster is "
        "above 1. Refuse before dividing by 0.",
        "{'users': sequences_that_fit(after, n) / sequences_that_fit(before, n), 'speed': "
        "max(pass_seconds(before, 1, n, s)) / max(pass_seconds(after, 1, n, s))}",
    ),
    cases=(
        given(
            "Llama-3-70B on 4 H100: FP8 weights",
            before=SEVENTY,
            after=replace(SEVENTY, bytes_per_weight=1),
            n_tokens=1500,
            n_sequences=310,
        ),
        given(
            "FP8 cache, back to 16 bits",
            before=replace(SEVENTY, bytes_per_number=1),
            after=SEVENTY,
            n_tokens=1500,
            n_sequences=310,
        ),
        given(
            "FP8 cache",
            before=SEVENTY,
            after=replace(SEVENTY, bytes_per_number=1),
            n_tokens=1500,
            n_sequences=310,
        ),
        given(
            "FP8 weights, one user with nothing cached: nearly 2 in speed",
            before=EIGHT,
            after=replace(EIGHT, bytes_per_weight=1),
            n_tokens=1,
            n_sequences=1,
        ),
        given(
            "32 KV heads made 8",
            before=replace(EIGHT, config=replace(LLAMA_8B, n_kv_heads=32)),
            after=EIGHT,
            n_tokens=8192,
            n_sequences=12,
        ),
        given(
            "a batch so large that computing decides: fewer bytes do not speed it up",
            before=EIGHT,
            after=replace(EIGHT, bytes_per_weight=1),
            n_tokens=1,
            n_sequences=900,
        ),
        given(
            "four devices made one: nothing fits after",
            before=SEVENTY,
            after=replace(SEVENTY, n_devices=1),
            n_tokens=1500,
            n_sequences=10,
        ),
        given(
            "nothing fits before",
            before=replace(SEVENTY, n_devices=1),
            after=replace(SEVENTY, n_devices=1, bytes_per_weight=0.5),
            n_tokens=1500,
            n_sequences=1,
        ),
    ),
    draw=_draw_lever,
    n_draws=24,
    wrong={
        "the ratio of the bytes, for both: half the bytes is not twice the gain": _gain(
            users=lambda a, b, n: _bytes_ratio(a, b), speed=lambda a, b, n, s: _bytes_ratio(a, b)
        ),
        "the speed as the ratio of the bytes: what is not changed is read as before": _gain(
            speed=lambda a, b, n, s: _bytes_ratio(a, b)
        ),
        "users from the ratio of the room: bytes of a sequence may change too": _gain(
            users=lambda a, b, n: cache_room_bytes(b) / cache_room_bytes(a)
        ),
        "users the other way round: after over before": _gain(
            users=lambda a, b, n: 1 / _users_ratio(a, b, n)
        ),
        "speed the other way round: seconds before over seconds after": _gain(
            speed=lambda a, b, n, s: _step(b, n, s) / _step(a, n, s)
        ),
        "reading alone: a large batch is bound by computing": _gain(
            speed=lambda a, b, n, s: pass_seconds(a, 1, n, s)[0] / pass_seconds(b, 1, n, s)[0]
        ),
        "one sequence's step: n_sequences is ignored": _gain(
            speed=lambda a, b, n, s: _step(a, n, 1) / _step(b, n, 1)
        ),
        "the step is measured with an empty cache": _gain(
            speed=lambda a, b, n, s: _step(a, 0, s) / _step(b, 0, s)
        ),
        "each at its own largest batch: the same n_sequences is asked": _gain(
            speed=lambda a, b, n, s: (
                _step(a, n, sequences_that_fit(a, n)) / _step(b, n, sequences_that_fit(b, n))
            )
        ),
        "the prefill in place of a decode step": _gain(
            speed=lambda a, b, n, s: max(pass_seconds(a, n, 0, s)) / max(pass_seconds(b, n, 0, s))
        ),
        "the gain in per cent of before: 1.5 times is asked as 1.5": _gain(
            users=lambda a, b, n: _users_ratio(a, b, n) - 1
        ),
        "refused where nothing fits after: that is 0 times as many users": _refuse_none_after,
        "reading and computing of a step are added: the longer of them counts": _gain(
            speed=lambda a, b, n, s: sum(pass_seconds(a, 1, n, s)) / sum(pass_seconds(b, 1, n, s))
        ),
        "pages of one token: the pages have 16": _gain(
            users=lambda a, b, n: sequences_that_fit(b, n, 1) / sequences_that_fit(a, n, 1)
        ),
        "rounded down to whole times": _gain(
            users=lambda a, b, n: float(_users_ratio(a, b, n) // 1)
        ),
        "infinite where nothing fitted before: refuse that": (
            lambda before, after, n_tokens, n_sequences: (
                {"users": float("inf"), "speed": 1.0}
                if sequences_that_fit(before, n_tokens) == 0
                else lever_gain(before, after, n_tokens, n_sequences)
            )
        ),
    },
    right={
        "in tokens a second": _gain(
            speed=lambda a, b, n, s: (s / _step(b, n, s)) / (s / _step(a, n, s))
        ),
        "NumPy numbers": _gain(
            users=lambda a, b, n: np.float64(sequences_that_fit(b, n)) / sequences_that_fit(a, n)
        ),
    },
)

# ---- speculation_gain --------------------------------------------------------------------------


def _draw_speculation(rng: np.random.Generator) -> Inputs:
    """Verifying takes longer than a step here, so that its cost shows."""
    while True:
        inputs: Inputs = {
            "deployment": draw_deployment(rng),
            "n_tokens": int(rng.integers(1, 300)),
            "n_sequences": int(rng.integers(20, 150)),
            "acceptance": float(rng.uniform(0.4, 0.95)),
            "gamma": int(rng.integers(2, 8)),
            "draft_cost": float(rng.uniform(0.03, 0.2)),
        }
        step, verify = (
            pass_seconds(inputs["deployment"], n, inputs["n_tokens"], inputs["n_sequences"])
            for n in (1, inputs["gamma"] + 1)
        )
        if verify[1] > 1.2 * verify[0] and step[0] > 1.2 * step[1]:
            return inputs


def _expected(a: float, gamma: int) -> float:
    return gamma + 1.0 if a == 1 else (1 - a ** (gamma + 1)) / (1 - a)


def _speculation(
    tokens: Callable[[float, int], float] = _expected,
    new: Callable[[int], int] = lambda gamma: gamma + 1,
    cost: Callable[[float, int, float], float] = lambda v, gamma, c: v + gamma * c,
    batch: Callable[[int], int] = lambda s: s,
) -> Callable:
    def gain(deployment, n_tokens, n_sequences, acceptance, gamma, draft_cost):
        step, verify = (
            max(pass_seconds(deployment, n, n_tokens, batch(n_sequences))) for n in (1, new(gamma))
        )
        return tokens(acceptance, gamma) / cost(verify / step, gamma, draft_cost)

    return gain


def _markov(a: float, gamma: int) -> float:
    """The mean over how many draft tokens are accepted, one case after the other."""
    stops = [(1 - a) * a**k * (k + 1) for k in range(gamma)]
    return sum(stops) + a**gamma * (gamma + 1)


def _upside_down(deployment, n_tokens, n_sequences, acceptance, gamma, draft_cost):
    return 1 / speculation_gain(deployment, n_tokens, n_sequences, acceptance, gamma, draft_cost)


_SPEC = {"deployment": replace(EIGHT, headroom=0.0), "n_tokens": 0, "acceptance": 0.8}

SPECULATION = Exercise(
    id="speculation_gain",
    reference=speculation_gain,
    lesson=LESSON,
    points=2,
    minutes=8,
    difficulty=3,
    uses=("pass_seconds",),
    comparison=SUMS,
    hints=(
        "Tokens of a round over the time of a round, with one decode step as the unit of time.",
        "The round verifies gamma + 1 new tokens in one pass: pass_seconds(deployment, gamma + 1, "
        "n_tokens, n_sequences). At a large batch that takes longer than a step.",
        "tokens = sum(acceptance**i for i in range(gamma + 1)); time = verify_s / step_s + gamma "
        "* draft_cost",
    ),
    cases=(
        given("8B on one H100, 1 sequence", **_SPEC, n_sequences=1, gamma=4, draft_cost=0.05),
        given("128 sequences", **_SPEC, n_sequences=128, gamma=4, draft_cost=0.05),
        given(
            "256 sequences: it slows the server down",
            **_SPEC,
            n_sequences=256,
            gamma=4,
            draft_cost=0.05,
        ),
        given(
            "400 draft tokens: even one sequence's pass computes",
            **(_SPEC | {"acceptance": 0.99}),
            n_sequences=2,
            gamma=400,
            draft_cost=0.01,
        ),
        given(
            "every draft token is accepted",
            **(_SPEC | {"acceptance": 1.0}),
            n_sequences=2,
            gamma=4,
            draft_cost=0.05,
        ),
        given("no draft tokens", **_SPEC, n_sequences=9, gamma=0, draft_cost=0.05),
        given(
            "nothing is ever accepted",
            **(_SPEC | {"acceptance": 0.0}),
            n_sequences=2,
            gamma=3,
            draft_cost=0.1,
        ),
    ),
    draw=_draw_speculation,
    wrong={
        "verifying at the price of one step: at a large batch it computes": _speculation(
            new=lambda gamma: 1
        ),
        "gamma tokens are verified: the pass runs gamma + 1": _speculation(
            new=lambda gamma: max(gamma, 1)
        ),
        "the draft is for free": _speculation(cost=lambda v, gamma, c: v),
        "one draft token's cost: there are gamma of them": _speculation(
            cost=lambda v, gamma, c: v + c
        ),
        "gamma + 1 tokens whatever is accepted": _speculation(tokens=lambda a, gamma: gamma + 1),
        "the token that every round gives is forgotten": _speculation(
            tokens=lambda a, gamma: _expected(a, gamma) - 1
        ),
        "gamma * acceptance: a rejected token ends the round": _speculation(
            tokens=lambda a, gamma: 1 + gamma * a
        ),
        "one term too few: with gamma accepted there is a bonus token": _speculation(
            tokens=lambda a, gamma: sum(a**i for i in range(max(gamma, 1)))
        ),
        "0 / 0 where everything is accepted: the answer there is gamma + 1 tokens": _speculation(
            tokens=lambda a, gamma: (1 - a ** (gamma + 1)) / (1 - a)
        ),
        "one sequence's passes: n_sequences is ignored": _speculation(batch=lambda s: 1),
        "verifying in seconds: it is a ratio, to a decode step": (
            lambda deployment, n_tokens, n_sequences, acceptance, gamma, draft_cost: speedup(
                acceptance,
                gamma,
                draft_cost,
                max(pass_seconds(deployment, gamma + 1, n_tokens, n_sequences)),
            )
        ),
        "verifying as gamma + 1 steps: it is one pass": _speculation(
            cost=lambda v, gamma, c: gamma + 1 + gamma * c
        ),
        "never below 1: at a large batch speculation slows the server down": (
            lambda deployment, n_tokens, n_sequences, acceptance, gamma, draft_cost: max(
                1.0,
                speculation_gain(deployment, n_tokens, n_sequences, acceptance, gamma, draft_cost),
            )
        ),
        "a draft token costs a share of verifying: draft_cost is of a decode step": _speculation(
            cost=lambda v, gamma, c: v * (1 + gamma * c)
        ),
        "the draft pays gamma + 1 times": _speculation(
            cost=lambda v, gamma, c: v + (gamma + 1) * c
        ),
        "the time over the tokens: faster is above 1": _upside_down,
    },
    right={
        "closed form": _speculation(),
        "the mean over where a round stops": _speculation(tokens=_markov),
        "in NumPy": _speculation(
            tokens=lambda a, gamma: float(np.power(a, np.arange(gamma + 1)).sum())
        ),
    },
)
