"""Lesson 03: the seconds of a whole request, and which phase takes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from grader.checks.prefill_decode.costs import EIGHT_B, H100, draw_config, draw_device
from grader.checks.prefill_decode.lesson import LESSON, tried
from grader.judging.compare import Comparison
from grader.judging.exercise import Exercise, Inputs, given
from inferlab.prefill_decode import (
    end_to_end_s,
    phase_flops,
    prefill_share,
    tpot_bound_s,
    ttft_bound_s,
)
from inferlab.roofline import step_bound_s

# ---- the whole request --------------------------------------------------------------------------

END_TO_END = Exercise(
    id="end_to_end_s",
    reference=end_to_end_s,
    lesson=LESSON,
    points=1,
    minutes=4,
    difficulty=1,
    hints=(
        "The first token is there after ttft_s. How many more have to come?",
        "n_output - 1 more, tpot_s each. Look at n_output 1 first: there tpot_s may be None.",
        "return ttft_s if n_output == 1 else ttft_s + (n_output - 1) * tpot_s, after refusing "
        "what cannot be: n_output < 1, or a tpot_s of None with more than one token.",
    ),
    cases=(
        given("0.2 s, 25 ms, 300 tokens", ttft_s=0.2, tpot_s=0.025, n_output=300),
        given("one token, no time per token", ttft_s=0.4, tpot_s=None, n_output=1),
        given("one token, a time per token given", ttft_s=0.4, tpot_s=0.03, n_output=1),
        given("both tokens at once", ttft_s=0.4, tpot_s=0.0, n_output=2),
        given("no token is refused", ttft_s=0.4, tpot_s=0.03, n_output=0),
        given("n_output -2 is refused", ttft_s=0.4, tpot_s=0.03, n_output=-2),
        given("two tokens and no time per token is refused", ttft_s=0.4, tpot_s=None, n_output=2),
    ),
    draw=lambda rng: {
        "ttft_s": float(rng.uniform(0.05, 2)),
        "tpot_s": float(rng.uniform(0.005, 0.08)),
        "n_output": int(rng.integers(2, 600)),
    },
    comparison=Comparison(
        terms=lambda i: max(2, i["n_output"]), why="up to n_output gaps, added one by one"
    ),
    wrong={
        "TTFT + n · TPOT: the first token came with TTFT, n - 1 are left": (
            lambda ttft_s, tpot_s, n_output: _end(ttft_s, tpot_s, n_output, n_output)
        ),
        "TTFT is left out: nothing can be written before the prompt is read": (
            lambda ttft_s, tpot_s, n_output: _end(0.0, tpot_s, n_output, n_output - 1)
        ),
        "TTFT is paid for each token: it comes once": (
            lambda ttft_s, tpot_s, n_output: _end(
                ttft_s * max(n_output - 1, 1), tpot_s, n_output, n_output - 1
            )
        ),
        "one step too few: n - 1 tokens are left after the first": (
            lambda ttft_s, tpot_s, n_output: _end(ttft_s, tpot_s, n_output, max(n_output - 2, 0))
        ),
        "None times 0 fails: look at n_output 1 before multiplying": (
            lambda ttft_s, tpot_s, n_output: _multiplied(ttft_s, tpot_s, n_output)
        ),
        "no token at all is accepted: n_output must be at least 1": (
            lambda ttft_s, tpot_s, n_output: (
                ttft_s
                if tpot_s is None and n_output <= 1
                else _end(ttft_s, tpot_s, max(n_output, 1), n_output - 1)
            )
        ),
        "0 alone is refused: n_output must be at least 1": (
            lambda ttft_s, tpot_s, n_output: (
                _end(ttft_s, tpot_s, n_output, n_output - 1)
                if n_output >= 0
                else ttft_s + (n_output - 1) * tpot_s
            )
        ),
        "a time per token of 0 is refused: None alone is no time": (
            lambda ttft_s, tpot_s, n_output: _end(ttft_s, tpot_s or None, n_output, n_output - 1)
        ),
        "None is taken for 0 with more than one token: their time is not known": (
            lambda ttft_s, tpot_s, n_output: _end(ttft_s, tpot_s or 0.0, n_output, n_output - 1)
        ),
        "tokens a second: the seconds of the whole are asked": (
            lambda ttft_s, tpot_s, n_output: n_output / _end(ttft_s, tpot_s, n_output, n_output - 1)
        ),
    },
    right={
        "a sum of gaps": lambda ttft_s, tpot_s, n_output: _gaps(ttft_s, tpot_s, n_output),
        "NumPy": lambda ttft_s, tpot_s, n_output: (
            np.float64(ttft_s) + (0 if n_output == 1 else _checked(tpot_s, n_output))
        ),
    },
)


def _checked(tpot_s: float | None, n_output: int) -> float:
    if n_output < 1 or (n_output > 1 and tpot_s is None):
        raise ValueError("n_output and tpot_s do not fit")
    return (n_output - 1) * np.float64(tpot_s or 0)


def _end(ttft_s: float, tpot_s: float | None, n_output: int, n_steps: int) -> float:
    _checked(tpot_s, n_output)
    return ttft_s + (n_steps * tpot_s if tpot_s is not None else 0)


def _multiplied(ttft_s, tpot_s, n_output):
    if n_output < 1 or (n_output > 1 and tpot_s is None):
        raise ValueError("n_output and tpot_s do not fit")
    return ttft_s + (n_output - 1) * tpot_s


def _gaps(ttft_s, tpot_s, n_output):
    _checked(tpot_s, n_output)
    return float(sum([ttft_s] + [tpot_s] * (n_output - 1)))


# ---- which phase dominates ----------------------------------------------------------------------


def _draw_share(rng: np.random.Generator) -> Inputs:
    return {
        "config": draw_config(rng),
        "n_prompt": int(rng.integers(2000, 9000)),
        "n_output": int(rng.integers(20, 90)),
        **draw_device(rng),
        "bytes_per_number": int(rng.choice([1, 4])),
    }


def _drive_share(answer: Any, inputs: Inputs) -> dict[str, Any]:
    """The request that is given; one of a short prompt, bound by reading; and one token out."""
    return {
        "share": answer(**inputs),
        "share for a prompt of 3 tokens": answer(**(inputs | {"n_prompt": 3})),
        "share with one output token": tried(lambda: answer(**(inputs | {"n_output": 1}))),
    }


def _share(change: Callable[..., float]):
    """prefill_share from change(prefill_s, decode_s, inputs by name)."""

    def share(
        config, n_prompt, n_output, bandwidth_bytes_per_s, peak_flops_per_s, bytes_per_number=2
    ):
        device = (bandwidth_bytes_per_s, peak_flops_per_s)
        prefill_s = ttft_bound_s(config, n_prompt, *device, bytes_per_number)
        tpot_s = tpot_bound_s(config, n_prompt, n_output, *device, 1, bytes_per_number)
        decode_s = (n_output - 1) * tpot_s if tpot_s else 0.0
        return change(prefill_s, decode_s, c=config, n=n_prompt, k=n_output, device=device)

    return share


def _token_share(p, d, *, n, k, **_):
    return n / (n + k)


def _flops_share(p, d, *, c, n, k, **_):
    prefill, decode = phase_flops(c, n, k)
    return prefill / (prefill + decode)


def _one_too_many(p, d, *, k, **_):
    return p / (p + (d * k / (k - 1) if k > 1 else d))


def _prefill_per_token(p, d, *, n, k, **_):
    decode_a_token = d / (k - 1) if k > 1 else 0.0
    return (p / n) / (p / n + decode_a_token)


def _without_bytes(p, d, *, c, n, k, device):
    return prefill_share(c, n, k, *device)


def _computing_share(p, d, *, c, n, k, device):
    flops = [f / device[1] for f in phase_flops(c, n, k)]
    return p / (p + flops[1])


def _bytes_to_one(prefill: bool, decode: bool):
    """prefill_share where bytes_per_number reaches one of the two bounds only."""

    def share(
        config, n_prompt, n_output, bandwidth_bytes_per_s, peak_flops_per_s, bytes_per_number=2
    ):
        device, b = (bandwidth_bytes_per_s, peak_flops_per_s), bytes_per_number
        ttft_s = ttft_bound_s(config, n_prompt, *device, b if prefill else 2)
        tpot_s = tpot_bound_s(config, n_prompt, n_output, *device, 1, b if decode else 2)
        return ttft_s / end_to_end_s(ttft_s, tpot_s, n_output)

    return share


def _bytes_for_sequences(
    config, n_prompt, n_output, bandwidth_bytes_per_s, peak_flops_per_s, bytes_per_number=2
):
    device = (bandwidth_bytes_per_s, peak_flops_per_s, bytes_per_number)
    ttft_s = ttft_bound_s(config, n_prompt, *device)
    return ttft_s / end_to_end_s(
        ttft_s, tpot_bound_s(config, n_prompt, n_output, *device), n_output
    )


def _share_of_steps(config, n_prompt, n_output, bandwidth_bytes_per_s, peak_flops_per_s,
                    bytes_per_number=2):  # fmt: skip
    device = (bandwidth_bytes_per_s, peak_flops_per_s, bytes_per_number)
    prefill_s = step_bound_s(config, n_prompt, 0, *device)
    decode = [step_bound_s(config, 1, n_prompt + i, *device) for i in range(n_output - 1)]
    return 1 - sum(decode) / (prefill_s + sum(decode))


SHARE = Exercise(
    id="prefill_share",
    reference=prefill_share,
    lesson=LESSON,
    points=2,
    minutes=6,
    difficulty=2,
    uses=("ttft_bound_s", "tpot_bound_s", "end_to_end_s"),
    hints=(
        "Seconds of the prefill, divided by seconds of the whole request. You have a function for "
        "each part.",
        "ttft_s = ttft_bound_s(config, n_prompt, bandwidth, peak, bytes_per_number); tpot_s = "
        "tpot_bound_s(config, n_prompt, n_output, bandwidth, peak, 1, bytes_per_number).",
        "return ttft_s / end_to_end_s(ttft_s, tpot_s, n_output)",
    ),
    cases=(
        given(
            "8B-style on an H100, 8,000 in, 50 out",
            config=EIGHT_B,
            n_prompt=8000,
            n_output=50,
            **H100,
        ),
        given(
            "8B-style on an H100, 200 in, 1,500 out",
            config=EIGHT_B,
            n_prompt=200,
            n_output=1500,
            **H100,
        ),
    ),
    draw=_draw_share,
    drive=_drive_share,
    comparison=Comparison(
        terms=lambda i: i["n_output"] + 6, why="the sum over the steps, and three quotients"
    ),
    wrong={
        "the share of the tokens: compare seconds": _share(_token_share),
        "the share of the FLOPs: decode steps wait for memory, not for arithmetic": _share(
            _flops_share
        ),
        "decoding's share: the prefill's is asked": _share(lambda p, d, **_: d / (p + d)),
        "prefill divided by decode: a share is of the whole": _share(
            lambda p, d, **_: p / d if d else 1.0
        ),
        "one decode step too many: n_output - 1 steps": _share(_one_too_many),
        "seconds of one prompt token against one step: all of them count": _share(
            _prefill_per_token
        ),
        "a single decode step against the prefill: all n_output - 1 count": _share(
            lambda p, d, *, k, **_: p / (p + d / max(k - 1, 1))
        ),
        "per cent: a share between 0 and 1 is asked": _share(lambda p, d, **_: 100 * p / (p + d)),
        "bytes_per_number is not handed on": _share(_without_bytes),
        "bytes_per_number reaches the prefill alone: the decode steps read too": _bytes_to_one(
            prefill=True, decode=False
        ),
        "bytes_per_number reaches the decode steps alone: the prefill reads too": _bytes_to_one(
            prefill=False, decode=True
        ),
        "bytes_per_number stands where tpot_bound_s takes n_sequences": _bytes_for_sequences,
        "decode steps are bound by their FLOPs: they must read the weights": _share(
            _computing_share
        ),
        "1 or 0 for which is longer: the share itself is asked": _share(
            lambda p, d, **_: float(p > d)
        ),
    },
    right={
        "step by step, with lesson 01's step_bound_s": _share_of_steps,
        "from the ratio": _share(lambda p, d, **_: 1 / (1 + d / p)),
    },
)
