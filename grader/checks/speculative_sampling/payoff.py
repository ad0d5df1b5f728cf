"""Lesson 08: does it pay? Expected tokens, speed-up, verification at a batch, best gamma."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from grader.checks.speculative_sampling.lesson import LESSON
from grader.judging.compare import Comparison
from grader.judging.exercise import Exercise, Inputs, given
from inferlab.speculative_sampling import best_gamma, expected_tokens, speedup, verify_cost

# ---- expected tokens ----------------------------------------------------------------------------


def _expected(change: Callable[[float, int], float]) -> Callable:
    return lambda acceptance, gamma: change(acceptance, gamma)


def _closed(a: float, gamma: int) -> float:
    return gamma + 1 if a == 1 else (1 - a ** (gamma + 1)) / (1 - a)


def _from_the_law(a: float, gamma: int) -> float:
    """Mean of the number of tokens: k kept and one more, and its probability."""
    total = (gamma + 1) * a**gamma
    return total + sum((k + 1) * a**k * (1 - a) for k in range(gamma))


def _horner(a: float, gamma: int) -> float:
    tokens = 1.0
    for _ in range(gamma):
        tokens = 1 + a * tokens
    return tokens


def _cancellation(inputs: Any) -> float:
    """The closed form subtracts two numbers near 1 and divides by a small one."""
    return inputs["gamma"] + 1 + 2 / max(1 - inputs["acceptance"], 1e-3)


EXPECTED = Exercise(
    id="expected_tokens",
    reference=expected_tokens,
    lesson=LESSON,
    points=2,
    minutes=6,
    difficulty=2,
    hints=(
        "With probability a the second token comes, with a² the third, and so on; the first "
        "always comes. Add up the probabilities.",
        "The closed form divides by 1 - a: for a = 1 it is 0 / 0. A sum of gamma + 1 powers has no "
        "such trouble.",
        "return float(sum(acceptance**i for i in range(gamma + 1)))",
    ),
    cases=(
        given("acceptance 0.8, gamma 4", acceptance=0.8, gamma=4),
        given("everything is accepted", acceptance=1.0, gamma=4),
        given("nothing is accepted", acceptance=0.0, gamma=4),
        given("nothing is drafted", acceptance=0.8, gamma=0),
        given("acceptance 1, an int", acceptance=1, gamma=7),
    ),
    draw=lambda rng: {
        "acceptance": float(rng.uniform(0.3, 0.95)), "gamma": int(rng.integers(2, 11)),
    },
    comparison=Comparison(terms=_cancellation, why="gamma + 1 powers, or a division by 1 - a"),
    wrong={
        "the replacement or bonus token is missing: a round gives one token more than is kept": (
            _expected(lambda a, g: sum(a**i for i in range(1, g + 1)))
        ),
        "counts each draft token alone; a later one only counts if all before it were kept": (
            _expected(lambda a, g: 1 + g * a)
        ),
        "acceptance 1 gives 0 / 0: the answer there is gamma + 1": _expected(
            lambda a, g: float(np.float64(1 - a ** (g + 1)) / np.float64(1 - a))
        ),
        "one power too few: the last term is acceptance ** gamma": _expected(
            lambda a, g: g if a == 1 else (1 - a**g) / (1 - a)
        ),
        "as if the draft never ended: it stops after gamma tokens": _expected(
            lambda a, g: 1 / (1 - a) if a < 1 else g + 1
        ),
        "that is the chance that all are kept, times gamma + 1": _expected(
            lambda a, g: (g + 1) * a**g
        ),
        "for acceptance 1 the answer is gamma; the bonus token is missing there": _expected(
            lambda a, g: g if a == 1 else (1 - a ** (g + 1)) / (1 - a)
        ),
        "that is only the number of kept tokens at most": _expected(lambda a, g: float(g)),
        "each power is multiplied with its number: that is not a probability": _expected(
            lambda a, g: sum((i + 1) * a**i for i in range(g + 1))
        ),
    },
    right={
        "the closed form with its limit": _expected(_closed),
        "the mean over how many are kept": _expected(_from_the_law),
        "one after the other, from the end": _expected(_horner),
    },
)  # fmt: skip

# ---- speed-up -----------------------------------------------------------------------------------


def _speed(change: Callable[[float, int, float, float], float]) -> Callable:
    """speedup from E (the expected tokens), gamma, draft_cost, verify_cost."""

    def answer(acceptance, gamma, draft_cost, verify_cost=1.0):
        return change(expected_tokens(acceptance, gamma), gamma, draft_cost, verify_cost)

    return answer


def _per_token(acceptance, gamma, draft_cost, verify_cost=1.0):
    """One over the time of a token, in steps of the target."""
    return 1 / ((verify_cost + gamma * draft_cost) / _horner(acceptance, gamma))


def _draw_speed(rng: np.random.Generator) -> Inputs:
    return {
        "acceptance": float(rng.uniform(0.4, 0.95)),
        "gamma": int(rng.integers(2, 9)),
        "draft_cost": float(rng.uniform(0.03, 0.3)),
        "verify_cost": float(rng.uniform(1.1, 3.0)),
    }


SPEEDUP = Exercise(
    id="speedup",
    reference=speedup,
    lesson=LESSON,
    points=1,
    minutes=4,
    difficulty=1,
    uses=("expected_tokens",),
    hints=(
        "Tokens of a round, over the time of a round. A plain step gives 1 token in the time 1.",
        "A round runs the draft model gamma times and the target once.",
        "expected_tokens(acceptance, gamma) / (verify_cost + gamma * draft_cost)",
    ),
    cases=(
        given("0.8, 4, 0.05", acceptance=0.8, gamma=4, draft_cost=0.05),
        given("0.5, 4, 0.05", acceptance=0.5, gamma=4, draft_cost=0.05),
        given("nothing drafted", acceptance=0.8, gamma=0, draft_cost=0.05),
        given("a perfect draft for nothing", acceptance=1.0, gamma=5, draft_cost=0.0),
        given("verification takes 4.5 steps", acceptance=0.8, gamma=4, draft_cost=0.05,
              verify_cost=4.5),
    ),
    draw=_draw_speed,
    comparison=Comparison(terms=lambda i: 30, why="a sum of powers and a quotient"),
    wrong={
        "the target's own pass is missing from the time of a round": _speed(
            lambda e, g, c, v: e / (g * c) if g * c else e
        ),
        "one draft step is counted; a round takes gamma of them": _speed(
            lambda e, g, c, v: e / (v + c)
        ),
        "gamma + 1 draft steps are counted; the last token of a round is the target's": _speed(
            lambda e, g, c, v: e / (v + (g + 1) * c)
        ),
        "verify_cost is ignored: the pass over gamma + 1 tokens may take longer than a step": (
            _speed(lambda e, g, c, v: e / (1 + g * c))
        ),
        "verify_cost is added to a whole step; it is the time of that pass": _speed(
            lambda e, g, c, v: e / (1 + v + g * c)
        ),
        "the draft is free: draft_cost is ignored": _speed(lambda e, g, c, v: e / v),
        "time over tokens: that is how many times as slow": _speed(
            lambda e, g, c, v: (v + g * c) / e
        ),
        "gamma + 1 tokens a round, as if every one were accepted": _speed(
            lambda e, g, c, v: (g + 1) / (v + g * c)
        ),
        "verify_cost is taken once for each token; the pass verifies them all together": _speed(
            lambda e, g, c, v: e / ((g + 1) * v + g * c)
        ),
    },
    right={
        "one over the time of a token": _per_token,
        "tokens a second, from rounds of 1,000 steps": _speed(
            lambda e, g, c, v: 1000 * e / (1000 * v + g * 1000 * c)
        ),
        "from the closed form": lambda acceptance, gamma, draft_cost, verify_cost=1.0: (
            _closed(acceptance, gamma) / (gamma * draft_cost + verify_cost)
        ),
    },
)  # fmt: skip

# ---- verification at a batch --------------------------------------------------------------------


def _draw_batch(rng: np.random.Generator) -> Inputs:
    """A batch whose verifying pass is beyond the ridge; its decode step may be too."""
    gamma, ridge = int(rng.integers(2, 8)), float(rng.uniform(150, 400))
    n = int(ridge * rng.uniform(0.5, 0.9) if rng.random() < 0.5 else ridge * rng.uniform(1.2, 2.5))
    return {"gamma": gamma, "n_sequences": n, "ridge_tokens": ridge}


def _cost(change: Callable[[int, int, float], float]) -> Callable:
    return lambda gamma, n_sequences, ridge_tokens: change(gamma, n_sequences, ridge_tokens)


def _cost_in_branches(gamma, n_sequences, ridge_tokens):
    decode, verify = n_sequences, n_sequences * (gamma + 1)
    if verify <= ridge_tokens:
        return 1.0
    if decode <= ridge_tokens:
        return verify / ridge_tokens
    return float(gamma + 1)


VERIFY_COST = Exercise(
    id="verify_cost",
    reference=verify_cost,
    lesson=LESSON,
    points=2,
    minutes=6,
    difficulty=2,
    hints=(
        "Two passes: a decode step runs n_sequences tokens, a verifying pass n_sequences · "
        "(gamma + 1). Write the time of each in units of one reading of the weights.",
        "A pass over n tokens takes max(1, n / ridge_tokens): never less than the reading.",
        "max(1, n_sequences * (gamma + 1) / ridge_tokens) / max(1, n_sequences / ridge_tokens)",
    ),
    cases=(
        given("16 sequences: memory-bound", gamma=4, n_sequences=16, ridge_tokens=300.0),
        given("120 sequences", gamma=4, n_sequences=120, ridge_tokens=300.0),
        given("600 sequences: both are compute-bound", gamma=4, n_sequences=600,
              ridge_tokens=300.0),
        given("a processor with a ridge at 3 tokens", gamma=7, n_sequences=2, ridge_tokens=3.0),
        given("no draft", gamma=0, n_sequences=500, ridge_tokens=300.0),
        given("the ridge far away", gamma=4, n_sequences=64, ridge_tokens=math.inf),
    ),
    draw=_draw_batch,
    comparison=Comparison(terms=lambda i: 6, why="two quotients and their ratio"),
    wrong={
        "always 1: verification is free only while the pass stays memory-bound": _cost(
            lambda g, n, r: 1.0
        ),
        "always gamma + 1: while the pass is memory-bound, more tokens cost nothing": _cost(
            lambda g, n, r: float(g + 1)
        ),
        "the time of the verifying pass alone: a decode step of a large batch takes longer too": (
            _cost(lambda g, n, r: max(1.0, n * (g + 1) / r))
        ),
        "the batch is forgotten: every sequence has gamma + 1 tokens to verify": _cost(
            lambda g, n, r: max(1.0, (g + 1) / r)
        ),
        "gamma tokens a sequence: the last accepted token is run too, so gamma + 1": _cost(
            lambda g, n, r: max(1.0, n * g / r) / max(1.0, n / r)
        ),
        "below the ridge a pass still takes the reading: the time is never less than 1": _cost(
            lambda g, n, r: max(n * (g + 1) / r, 0.0) if math.isfinite(r) else 0.0
        ),
        "the smaller of reading and computing; the slower one decides": _cost(
            lambda g, n, r: min(1.0, n * (g + 1) / r) / min(1.0, n / r) if math.isfinite(r) else 1.0
        ),
        "reading and computing are added; they overlap, so the larger counts": _cost(
            lambda g, n, r: (1 + n * (g + 1) / r) / (1 + n / r)
        ),
    },
    right={
        "three branches": _cost_in_branches,
        "in tokens, not in times": lambda gamma, n_sequences, ridge_tokens: (
            max(ridge_tokens, n_sequences * (gamma + 1)) / max(ridge_tokens, n_sequences)
            if math.isfinite(ridge_tokens)
            else 1
        ),
        "NumPy": lambda gamma, n_sequences, ridge_tokens: np.divide(
            *np.maximum(1, np.array([gamma + 1, 1]) * n_sequences / ridge_tokens)
        ),
    },
)  # fmt: skip

# ---- best gamma ---------------------------------------------------------------------------------


def _speeds(a: float, c: float, n: int, r: float, gammas: Any) -> list[float]:
    return [speedup(a, g, c, verify_cost(g, n, r)) for g in gammas]


def _best(change: Callable[[float, float, int, float, int], Any]) -> Callable:
    def answer(acceptance, draft_cost, n_sequences=1, ridge_tokens=math.inf, largest=64):
        return change(acceptance, draft_cost, n_sequences, ridge_tokens, largest)

    return answer


def _over(gammas: Callable[[int], range], batch: bool = True) -> Callable:
    """The best of some gammas only."""

    def best(a, c, n, r, largest):
        tried = gammas(largest)
        users, ridge = (n, r) if batch else (1, math.inf)
        return tried[int(np.argmax(_speeds(a, c, users, ridge, tried)))]

    return _best(best)


def _climb(a, c, n, r, largest):
    """Go up while it gets better: the speed-up has one peak."""
    gamma = 0
    here = 1.0
    while gamma < largest:
        above = speedup(a, gamma + 1, c, verify_cost(gamma + 1, n, r))
        if above <= here:
            break
        gamma, here = gamma + 1, above
    return gamma


def _keep_best(a, c, n, r, largest):
    best, fastest = 0, 1.0
    for gamma in range(1, largest + 1):
        round_cost = verify_cost(gamma, n, r) + gamma * c
        if _closed(a, gamma) / round_cost > fastest:
            best, fastest = gamma, _closed(a, gamma) / round_cost
    return best


def _last_best(a, c, n, r, largest):
    speeds = _speeds(a, c, n, r, range(largest + 1))
    return max(g for g in range(largest + 1) if speeds[g] == max(speeds))


def _draw_best(rng: np.random.Generator) -> Inputs:
    """Where the best gamma is clear: its neighbours are worse by more than rounding."""
    while True:
        inputs: Inputs = {
            "acceptance": round(float(rng.uniform(0.5, 0.96)), 3),
            "draft_cost": round(float(rng.uniform(0.02, 0.2)), 3),
            "n_sequences": int(rng.integers(20, 120)),
            "ridge_tokens": 300.0,
        }
        free = best_gamma(inputs["acceptance"], inputs["draft_cost"])
        best = best_gamma(**inputs)
        a, c, n = (inputs[name] for name in ("acceptance", "draft_cost", "n_sequences"))
        speeds = sorted(_speeds(a, c, n, 300.0, range(65)))
        if 0 < best < free and speeds[-1] - speeds[-2] > 1e-6:
            return inputs


BEST = Exercise(
    id="best_gamma",
    reference=best_gamma,
    lesson=LESSON,
    points=2,
    minutes=6,
    difficulty=2,
    uses=("speedup", "verify_cost"),
    hints=(
        "Try them all: 0, 1, ..., largest. There are few, and each costs a handful of operations.",
        "The speed-up of each gamma is speedup(acceptance, gamma, draft_cost, verify_cost(gamma, "
        "n_sequences, ridge_tokens)).",
        "int(np.argmax([... for gamma in range(largest + 1)])): the list begins at gamma 0, so the "
        "place is the gamma, and argmax gives the first of equal ones.",
    ),
    cases=(
        given("0.8 at 0.05", acceptance=0.8, draft_cost=0.05),
        given("0.95 at 0.05", acceptance=0.95, draft_cost=0.05),
        given("0.99 at 0.05", acceptance=0.99, draft_cost=0.05),
        given("a draft that costs more than it helps", acceptance=0.04, draft_cost=0.05),
        given("gain and cost are equal: 0 is the smallest", acceptance=0.5, draft_cost=0.5),
        given("a perfect draft for nothing, up to 20", acceptance=1.0, draft_cost=0.0, largest=20),
        given("a perfect draft for nothing, up to the 64 that are tried where nobody says",
              acceptance=1.0, draft_cost=0.0),
        given("one sequence, where nobody says how many, on a ridge of 3 tokens",
              acceptance=0.8, draft_cost=0.05, ridge_tokens=3.0),
        given("256 sequences", acceptance=0.8, draft_cost=0.05, n_sequences=256,
              ridge_tokens=295.0),
        given("300 sequences: switch it off", acceptance=0.8, draft_cost=0.05, n_sequences=300,
              ridge_tokens=295.0),
        given("64 sequences", acceptance=0.8, draft_cost=0.05, n_sequences=64, ridge_tokens=295.0),
    ),
    draw=_draw_best,
    wrong={
        "always the largest: each further token is less likely to be kept, and costs the same": (
            _best(lambda a, c, n, r, largest: largest)
        ),
        "0 is left out: where nothing beats plain decoding, the answer is 0": _over(
            lambda largest: range(1, largest + 1)
        ),
        "stops looking at 15: with a good draft the best gamma is beyond it": _over(
            lambda largest: range(16)
        ),
        "another default of `largest`: it is 64": (
            lambda acceptance, draft_cost, n_sequences=1, ridge_tokens=math.inf, largest=16: (
                best_gamma(acceptance, draft_cost, n_sequences, ridge_tokens, largest)
            )
        ),
        "looks from 1 to 15 only": _over(lambda largest: range(1, 16)),
        "`largest` itself is left out": _over(lambda largest: range(max(largest, 1))),
        "the batch is ignored: with many sequences verification is not free": _over(
            lambda largest: range(largest + 1), batch=False
        ),
        "of equally good ones the largest; the smallest is asked": _best(_last_best),
        "the speed-up is returned; gamma is asked": _best(
            lambda a, c, n, r, largest: max(_speeds(a, c, n, r, range(largest + 1)))
        ),
        "the one with the most tokens a round: their cost counts as well": _best(
            lambda a, c, n, r, largest: int(
                np.argmax([expected_tokens(a, g) - 1e-9 * g for g in range(largest + 1)])
            )
        ),
    },
    right={
        "climbs as long as it gets better": _best(_climb),
        "a loop that keeps the best so far": _best(_keep_best),
        "max with a key": _best(
            lambda a, c, n, r, largest: max(
                range(largest + 1), key=lambda g: speedup(a, g, c, verify_cost(g, n, r))
            )
        ),
    },
)  # fmt: skip
