"""Lesson 12: what stops a plan."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from grader.checks.capacity.drawn import EIGHT, SEVENTY, draw_deployment
from grader.checks.capacity.lesson import LESSON
from grader.judging.exercise import Exercise, Inputs, given
from inferlab.cache_sizes import cache_bytes, cache_bytes_per_device
from inferlab.capacity import cache_room_bytes, pass_seconds, sequences_that_fit, steady_tpot_s
from inferlab.planner import first_obstacle


def _draw_obstacle(rng: np.random.Generator) -> Inputs:
    """One of the four outcomes, drawn; limits lie clearly on one side."""
    d = draw_deployment(rng)
    p, o = int(rng.integers(300, 3000)), int(rng.integers(400, 900))
    ttft, tpot = max(pass_seconds(d, p, 0)), max(pass_seconds(d, 1, p + o // 2))
    kind = int(rng.integers(4))
    share = float(rng.uniform(0.4, 0.9))
    empty = max(pass_seconds(d, 1, 0))  # a step with nothing cached
    barely = tpot - float(rng.uniform(0.2, 0.8)) * (tpot - empty)
    if kind == 0:  # the prompt fits, prompt and answer do not
        one = cache_bytes_per_device(d.config, p + o, d.n_devices, 1, d.bytes_per_number)
        room = one * float(rng.uniform(p / (p + o) + 0.06, 0.97))
        taken = d.overhead_bytes + d.config.n_params * d.bytes_per_weight / d.n_devices
        d = replace(d, memory_bytes=(room + taken) / (1 - d.headroom))
    return {
        "deployment": d,
        "n_prompt": p,
        "n_output": o,
        "ttft_limit_s": ttft * float(rng.uniform(0.4, 0.9) if kind in (0, 1) else 1.5),
        "tpot_limit_s": {1: tpot * share, 2: barely}.get(kind, 1.5 * tpot),
    }


def _obstacle(
    fits: Callable[[Any, int, int], bool] = lambda d, p, o: sequences_that_fit(d, p + o) >= 1,
    ttft: Callable[[Any, int, int], float] = lambda d, p, o: max(pass_seconds(d, p, 0)),
    tpot: Callable[[Any, int, int], float] = lambda d, p, o: max(pass_seconds(d, 1, p + o // 2)),
    order: tuple[str, ...] = ("memory", "ttft", "tpot"),
    over: Callable[[float, float], bool] = lambda t, limit: t > limit,
    none: Any = None,
) -> Callable:
    def obstacle(deployment, n_prompt, n_output, ttft_limit_s, tpot_limit_s):
        d, p, o = deployment, n_prompt, n_output
        fails = {
            "memory": not fits(d, p, o),
            "ttft": over(ttft(d, p, o), ttft_limit_s),
            "tpot": over(tpot(d, p, o), tpot_limit_s),
        }
        return next((name for name in order if fails[name]), none)

    return obstacle


_ASK = {"deployment": SEVENTY, "n_prompt": 1024, "n_output": 500}
_BARELY = replace(EIGHT, memory_bytes=EIGHT.config.n_params * 2 / 0.9 + 2e8)  # 180 MB of room
_EIGHTY_PAGES = replace(  # room for one sequence of 1,280 tokens, and for half a page more
    EIGHT,
    headroom=0.0,
    memory_bytes=2 * EIGHT.config.n_params + cache_bytes(EIGHT.config, 1288),
)
_SLUGGISH = replace(EIGHT, peak_flops_per_s=1e12)

OBSTACLE = Exercise(
    id="first_obstacle",
    reference=first_obstacle,
    lesson=LESSON,
    points=1,
    minutes=7,
    difficulty=2,
    uses=("sequences_that_fit", "pass_seconds"),
    hints=(
        "Three questions in a fixed order; the first that fails is the answer.",
        "sequences_that_fit for the memory; pass_seconds(deployment, n_prompt, 0) for the first "
        "token; pass_seconds(deployment, 1, n_prompt + n_output // 2) for the others.",
        'if sequences_that_fit(deployment, n_prompt + n_output) < 1: return "memory"; if '
        'max(pass_seconds(deployment, n_prompt, 0)) > ttft_limit_s: return "ttft"; …',
    ),
    cases=(
        given(
            "Llama-3-70B on one H100",
            deployment=replace(SEVENTY, n_devices=1),
            n_prompt=1024,
            n_output=500,
            ttft_limit_s=0.5,
            tpot_limit_s=0.04,
        ),
        given("on four", **_ASK, ttft_limit_s=0.5, tpot_limit_s=0.04),
        given("30 ms to the first token", **_ASK, ttft_limit_s=0.03, tpot_limit_s=0.04),
        given("10 ms a token", **_ASK, ttft_limit_s=0.5, tpot_limit_s=0.01),
        given(
            "both are too slow: the first token first",
            **_ASK,
            ttft_limit_s=0.01,
            tpot_limit_s=0.001,
        ),
        given(
            "the prompt fits, prompt and answer do not",
            deployment=_BARELY,
            n_prompt=1000,
            n_output=600,
            ttft_limit_s=9.0,
            tpot_limit_s=9.0,
        ),
        given(
            "the weights fit, but not even the prompt",
            deployment=_BARELY,
            n_prompt=5000,
            n_output=2,
            ttft_limit_s=9.0,
            tpot_limit_s=9.0,
        ),
        given(
            "1,370 tokens fit, their 86 pages do not",
            deployment=_BARELY,
            n_prompt=1000,
            n_output=370,
            ttft_limit_s=9.0,
            tpot_limit_s=9.0,
        ),
        given(
            "prompt and answer pass the last full page by one token",
            deployment=_EIGHTY_PAGES,
            n_prompt=1000,
            n_output=281,
            ttft_limit_s=9.0,
            tpot_limit_s=9.0,
        ),
        given(
            "prompt and answer fill the last page",
            deployment=_EIGHTY_PAGES,
            n_prompt=1000,
            n_output=280,
            ttft_limit_s=9.0,
            tpot_limit_s=9.0,
        ),
        given(
            "slow arithmetic: a step computes for longer than it reads",
            deployment=_SLUGGISH,
            n_prompt=1000,
            n_output=300,
            ttft_limit_s=99.0,
            tpot_limit_s=0.01,
        ),
        given(
            "slow arithmetic, and time for one step",
            deployment=_SLUGGISH,
            n_prompt=1000,
            n_output=300,
            ttft_limit_s=99.0,
            tpot_limit_s=1.5 * max(pass_seconds(_SLUGGISH, 1, 1150)),
        ),
        given(
            "a hair above the prefill's time",
            **_ASK,
            ttft_limit_s=1.01 * max(pass_seconds(SEVENTY, 1024, 0)),
            tpot_limit_s=0.04,
        ),
        given(
            "exactly the limits are allowed",
            **_ASK,
            ttft_limit_s=max(pass_seconds(SEVENTY, 1024, 0)),
            tpot_limit_s=max(pass_seconds(SEVENTY, 1, 1274)),
        ),
        given(
            "a hair above a lone user's step",
            **_ASK,
            ttft_limit_s=0.5,
            tpot_limit_s=max(pass_seconds(SEVENTY, 1, 1274)) + 30e-6,
        ),
        given(
            "a hair below a lone user's step",
            **_ASK,
            ttft_limit_s=0.5,
            tpot_limit_s=max(pass_seconds(SEVENTY, 1, 1274)) - 1e-6,
        ),
        given(
            "a prompt of 20 tokens reads the weights all the same",
            deployment=EIGHT,
            n_prompt=20,
            n_output=10,
            ttft_limit_s=0.002,
            tpot_limit_s=0.1,
        ),
    ),
    draw=_draw_obstacle,
    n_draws=16,
    wrong={
        "memory is looked at last: nothing runs that does not fit": _obstacle(
            order=("ttft", "tpot", "memory")
        ),
        "tpot before ttft": _obstacle(order=("memory", "tpot", "ttft")),
        "the weights alone must fit: one whole sequence must too": _obstacle(
            fits=lambda d, p, o: cache_room_bytes(d) > 0
        ),
        "the prompt alone must fit: its answer is kept as well": _obstacle(
            fits=lambda d, p, o: sequences_that_fit(d, p) >= 1
        ),
        "ttft from a decode step, or from reading: a long prefill computes": _obstacle(
            ttft=lambda d, p, o: max(pass_seconds(d, 1, p))
        ),
        "the last token of the answer is left out: prompt and answer must fit, all of them": (
            _obstacle(fits=lambda d, p, o: sequences_that_fit(d, p + o - 1) >= 1)
        ),
        "pages of one token: the pages have 16": _obstacle(
            fits=lambda d, p, o: sequences_that_fit(d, p + o, 1) >= 1
        ),
        "ttft with a decode step: the prefill itself gives the first token": _obstacle(
            ttft=lambda d, p, o: max(pass_seconds(d, p, 0)) + max(pass_seconds(d, 1, p))
        ),
        "reading and computing of a pass are added: the longer of them counts": _obstacle(
            ttft=lambda d, p, o: sum(pass_seconds(d, p, 0)),
            tpot=lambda d, p, o: sum(pass_seconds(d, 1, p + o // 2)),
        ),
        "tpot from reading alone: slow arithmetic may take longer": _obstacle(
            tpot=lambda d, p, o: pass_seconds(d, 1, p + o // 2)[0]
        ),
        "tpot with overlapped prefills: a lone user waits for none": _obstacle(
            tpot=lambda d, p, o: steady_tpot_s(d, p, o, 1, overlap=True)
        ),
        "ttft from computing alone: a short prompt reads the weights too": _obstacle(
            ttft=lambda d, p, o: pass_seconds(d, p, 0)[1]
        ),
        "tpot with others' prefills: a lone user waits for none": _obstacle(
            tpot=lambda d, p, o: steady_tpot_s(d, p, o, 1)
        ),
        "tpot at the end of the answer: the mean context is asked": _obstacle(
            tpot=lambda d, p, o: max(pass_seconds(d, 1, p + o))
        ),
        "tpot with nothing cached: a step reads the context too": _obstacle(
            tpot=lambda d, p, o: max(pass_seconds(d, 1, 0))
        ),
        "exactly the limit is refused: it is allowed": _obstacle(over=lambda t, limit: t >= limit),
        "limits in milliseconds: they are in seconds": _obstacle(
            over=lambda t, limit: 1e3 * t > limit
        ),
        'the text "none" where nothing stops it: return None': _obstacle(none="none"),
        "memory is not looked at": _obstacle(order=("ttft", "tpot")),
        "the first token's limit is not looked at": _obstacle(order=("memory", "tpot")),
    },
    right={
        "all three, then the first": _obstacle(),
        "nested": lambda deployment, n_prompt, n_output, ttft_limit_s, tpot_limit_s: (
            (
                (
                    None
                    if max(pass_seconds(deployment, 1, n_prompt + n_output // 2)) <= tpot_limit_s
                    else "tpot"
                )
                if max(pass_seconds(deployment, n_prompt, 0)) <= ttft_limit_s
                else "ttft"
            )
            if sequences_that_fit(deployment, n_prompt + n_output)
            else "memory"
        ),
    },
)
