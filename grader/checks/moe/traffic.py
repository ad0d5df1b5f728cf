"""Lesson 09: how many experts a batch takes, and the bytes of a decode step."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from grader.checks.moe.lesson import LESSON
from grader.judging.compare import Comparison
from grader.judging.exercise import Exercise, Inputs, given
from inferlab.moe_sizes import moe_step_bytes, touched_by_enumeration, touched_experts

# ---- touched_experts ----------------------------------------------------------------------------


def _draw_touched(rng: np.random.Generator) -> Inputs:
    n_experts = int(rng.integers(12, 90))
    return {
        "n_experts": n_experts,
        "n_chosen": int(rng.integers(3, 7)),
        "n_tokens": int(rng.integers(3, 16)),
    }


def _touched(E: int, k: int, n: int) -> float:
    return E * (1 - (1 - k / E) ** n)


def _count(change: Callable[[int, int, int], Any], check: bool = True) -> Callable:
    """touched_experts by change(n_experts, n_chosen, n_tokens)."""

    def answer(n_experts, n_chosen, n_tokens):
        if check and (not 1 <= n_chosen <= n_experts or n_tokens < 0):
            raise ValueError("out of range")
        return change(n_experts, n_chosen, n_tokens)

    return answer


def _one_token_more(E: int, k: int, n: int) -> float:
    """Each token finds the share k / E of the experts that were missed so far."""
    seen = 0.0
    for _ in range(n):
        seen += (E - seen) * k / E
    return seen


def _by_the_law(E: int, k: int, n: int) -> float:
    """The whole distribution: how likely each number of different experts is."""
    law = {0: 1.0}
    for _ in range(n):
        after: dict[int, float] = {}
        for seen, chance in law.items():
            for new in range(max(0, k - seen), min(k, E - seen) + 1):
                ways = math.comb(E - seen, new) * math.comb(seen, k - new) / math.comb(E, k)
                after[seen + new] = after.get(seen + new, 0.0) + chance * ways
        law = after
    return sum(seen * chance for seen, chance in law.items())


def _tried_out(E: int, k: int, n: int) -> float:
    """Everything tried where that is quick; the law of it else."""
    small = math.comb(E, k) ** n <= 5000
    return touched_by_enumeration(E, k, n) if small else _by_the_law(E, k, n)


TOUCHED = Exercise(
    id="touched_experts",
    reference=touched_experts,
    lesson=LESSON,
    points=2,
    minutes=8,
    difficulty=2,
    hints=(
        "Look at one expert. How likely is it that nobody takes it? The mean number of experts "
        "taken is n_experts times the probability that one of them is.",
        "One token misses it with probability 1 - n_chosen / n_experts, all of them with that to "
        "the power of n_tokens (not n_chosen * n_tokens: a token's choices are all different).",
        "n_experts * (1 - (1 - n_chosen / n_experts) ** n_tokens), after the ValueError",
    ),
    cases=(
        given("16 experts, 2 chosen, 16 tokens", n_experts=16, n_chosen=2, n_tokens=16),
        given("one token", n_experts=16, n_chosen=2, n_tokens=1),
        given("one chosen", n_experts=4, n_chosen=1, n_tokens=3),
        given("no token", n_experts=16, n_chosen=2, n_tokens=0),
        given("4 experts, 2 chosen, 3 tokens: 3.5, by trying all", n_experts=4, n_chosen=2,
              n_tokens=3),
        given("every expert is chosen", n_experts=6, n_chosen=6, n_tokens=2),
        given("128 experts, 8 chosen, 16 tokens", n_experts=128, n_chosen=8, n_tokens=16),
        given("none chosen", n_experts=8, n_chosen=0, n_tokens=3),
        given("more chosen than there are", n_experts=8, n_chosen=9, n_tokens=3),
        given("tokens below 0", n_experts=8, n_chosen=2, n_tokens=-1),
    ),
    draw=_draw_touched,
    comparison=Comparison(
        terms=lambda i: 4 * i["n_tokens"] + 4,
        magnitude=lambda i: float(i["n_experts"]),
        why="a power of n_tokens factors, or as many sums",
    ),
    wrong={
        "as if no two tokens took the same expert: min(n_experts, n_chosen * n_tokens)": _count(
            lambda E, k, n: float(min(E, k * n))
        ),
        "n_chosen * n_tokens choices: many of them name the same expert": _count(
            lambda E, k, n: float(k * n)
        ),
        "all experts, however few tokens there are": _count(lambda E, k, n: float(E)),
        "the chosen ones of a single token, however many tokens there are": _count(
            lambda E, k, n: float(k)
        ),
        "n_chosen * n_tokens draws of one expert each: a token's choices are all different": (
            _count(lambda E, k, n: E * (1 - (1 - 1 / E) ** (k * n)))
        ),
        "n_chosen counted twice, in the probability and in the power": _count(
            lambda E, k, n: E * (1 - (1 - k / E) ** (k * n))
        ),
        "one choice a token: the probability is n_chosen / n_experts": _count(
            lambda E, k, n: E * (1 - (1 - 1 / E) ** n)
        ),
        "the experts that are missed, not those taken": _count(
            lambda E, k, n: E * (1 - k / E) ** n
        ),
        "the probability of one expert: times n_experts is the number": _count(
            lambda E, k, n: 1 - (1 - k / E) ** n
        ),
        "the probability that all tokens take it: it is taken unless all miss it": _count(
            lambda E, k, n: E * (1 - (k / E) ** n)
        ),
        "a limit, 1 - exp(-k n / E): the power itself is asked": _count(
            lambda E, k, n: E * (1 - math.exp(-k * n / E))
        ),
        "one token too few in the power": _count(
            lambda E, k, n: _touched(E, k, max(n - 1, 0))
        ),
        "rounded to whole experts: a mean may lie between": _count(
            lambda E, k, n: float(round(_touched(E, k, n)))
        ),
        "numbers out of range are accepted": _count(_touched, check=False),
    },
    right={
        "token by token": _count(_one_token_more),
        "the whole distribution": _count(_by_the_law),
        "everything tried, where that is quick": _count(_tried_out),
    },
)  # fmt: skip

# ---- moe_step_bytes -----------------------------------------------------------------------------


def _draw_step(rng: np.random.Generator) -> Inputs:
    return {
        "n_always": float(rng.integers(1, 9)) * 1e9,
        "n_per_expert": float(rng.integers(1, 30)) * 1e8,
        "n_experts": int(rng.integers(20, 90)),
        "n_chosen": int(rng.integers(3, 7)),
        "batch": int(rng.integers(3, 16)),
        "bytes_per_weight": float(rng.choice([0.5, 1.0, 4.0])),
    }


def _step(change: Callable[..., Any]) -> Callable:
    """moe_step_bytes by change(n_always, n_per_expert, n_experts, n_chosen, batch, width)."""

    def answer(n_always, n_per_expert, n_experts, n_chosen, batch, bytes_per_weight=2):
        return change(n_always, n_per_expert, n_experts, n_chosen, batch, bytes_per_weight)

    return answer


def _expert_by_expert(a, e, E, k, B, b):
    """Each expert is read with the probability that somebody takes it."""
    total = b * a
    for _ in range(E):
        total += b * e * (1 - (1 - k / E) ** B)
    return total


EXAMPLE = {"n_always": 4e9, "n_per_expert": 2e9, "n_experts": 16, "n_chosen": 2}

STEP_BYTES = Exercise(
    id="moe_step_bytes",
    reference=moe_step_bytes,
    lesson=LESSON,
    points=1,
    minutes=5,
    difficulty=1,
    uses=("touched_experts",),
    hints=(
        "Two parts: what every token uses is read once for the whole batch; of the experts, those "
        "that at least one token takes.",
        "touched_experts(n_experts, n_chosen, batch) says how many that is on average.",
        "bytes_per_weight * (n_always + touched * n_per_expert)",
    ),
    cases=(
        given("4B for all, 16 experts of 2B, one sequence", **EXAMPLE, batch=1),
        given("the same, 16 sequences", **EXAMPLE, batch=16),
        given("the same in 8 bits, 4 sequences", **EXAMPLE, batch=4, bytes_per_weight=1),
    ),
    draw=_draw_step,
    comparison=Comparison(
        terms=lambda i: 4 * i["batch"] + i["n_experts"] + 8,
        why="a power of `batch` factors, then a sum over the experts",
    ),
    wrong={
        "the active weights at any batch: other tokens take other experts": _step(
            lambda a, e, E, k, B, b: b * (a + k * e)
        ),
        "every sequence reads all it uses: what is read serves the whole batch": _step(
            lambda a, e, E, k, B, b: B * b * (a + k * e)
        ),
        "the shared weights once for each sequence: they are read once": _step(
            lambda a, e, E, k, B, b: b * (B * a + _touched(E, k, B) * e)
        ),
        "all experts, however small the batch": _step(lambda a, e, E, k, B, b: b * (a + E * e)),
        "as if no two sequences took the same expert": _step(
            lambda a, e, E, k, B, b: b * (a + min(E, k * B) * e)
        ),
        "n_chosen * batch draws of one expert each: a token's choices are all different": _step(
            lambda a, e, E, k, B, b: b * (a + E * (1 - (1 - 1 / E) ** (k * B)) * e)
        ),
        "touched experts times n_chosen: touched_experts has the choices in it": _step(
            lambda a, e, E, k, B, b: b * (a + k * _touched(E, k, B) * e)
        ),
        "the weights that every token uses are forgotten": _step(
            lambda a, e, E, k, B, b: b * _touched(E, k, B) * e
        ),
        "bytes_per_weight is ignored: 2 is only the default": _step(
            lambda a, e, E, k, B, b: 2 * (a + _touched(E, k, B) * e)
        ),
        "bytes_per_weight for the experts alone": _step(
            lambda a, e, E, k, B, b: a + b * _touched(E, k, B) * e
        ),
        "the share of one user: the bytes of the whole step are asked": _step(
            lambda a, e, E, k, B, b: b * (a + _touched(E, k, B) * e) / B
        ),
        "the experts of one token for each sequence: some are the same, and read once": _step(
            lambda a, e, E, k, B, b: b * (a + k * B * e)
        ),
        "rounded to whole experts: on average it may lie between": _step(
            lambda a, e, E, k, B, b: b * (a + round(_touched(E, k, B)) * e)
        ),
        "touched experts as a share: n_per_expert is one expert, not all of them": _step(
            lambda a, e, E, k, B, b: b * (a + _touched(E, k, B) / E * e)
        ),
        "the answer is in GB: bytes are asked": _step(
            lambda a, e, E, k, B, b: b * (a + _touched(E, k, B) * e) / 1e9
        ),
        "weights, not bytes": _step(lambda a, e, E, k, B, b: a + _touched(E, k, B) * e),
    },
    right={
        "expert by expert": _step(_expert_by_expert),
        "what a token more finds new": _step(
            lambda a, e, E, k, B, b: b * a + b * e * _one_token_more(E, k, B)
        ),
        "all of them less those missed": _step(
            lambda a, e, E, k, B, b: np.float64(b) * (a + E * e - E * e * np.power(1 - k / E, B))
        ),
    },
)
