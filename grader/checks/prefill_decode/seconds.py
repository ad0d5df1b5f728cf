"""Lesson 03: the least time to the first token, and per output token."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from grader.checks.prefill_decode.costs import (
    EIGHT_B,
    H100,
    SMOL,
    draw_config,
    draw_device,
    head_flops,
    require_output,
)
from grader.checks.prefill_decode.lesson import LESSON, tried
from grader.judging.compare import Comparison
from grader.judging.exercise import Exercise, Inputs, given
from inferlab.kv_cache import kv_cache_bytes
from inferlab.prefill_decode import pass_read_bytes, tpot_bound_s, ttft_bound_s
from inferlab.roofline import body_params, forward_flops, step_bound_s

# ---- time to first token ------------------------------------------------------------------------


def _draw_ttft(rng: np.random.Generator) -> Inputs:
    return {
        "config": draw_config(rng),
        "n_prompt": int(rng.integers(900, 3000)),
        **draw_device(rng),
        "bytes_per_number": int(rng.choice([1, 4])),
        "waiting_s": float(rng.integers(5, 300)) / 1e3,
    }


def _drive_ttft(answer: Any, inputs: Inputs) -> dict[str, Any]:
    """The prompt that is given, bound by computing; and one of 3 tokens, bound by reading."""
    return {
        "seconds": answer(**inputs),
        "seconds for a prompt of 3 tokens": answer(**(inputs | {"n_prompt": 3})),
    }


def _ttft(
    read: Callable = lambda c, n, b: pass_read_bytes(c, 0, 1, b),
    flops: Callable = forward_flops,
    join: Callable = max,
    wait: Callable = lambda seconds, waiting: waiting + seconds,
):
    """ttft_bound_s with one part replaced."""

    def bound(
        config, n_prompt, bandwidth_bytes_per_s, peak_flops_per_s, bytes_per_number=2, waiting_s=0.0
    ):
        reading = read(config, n_prompt, bytes_per_number) / bandwidth_bytes_per_s
        return wait(join(reading, flops(config, n_prompt) / peak_flops_per_s), waiting_s)

    return bound


def _waiting_for_memory(
    config, n_prompt, bandwidth_bytes_per_s, peak_flops_per_s, bytes_per_number=2, waiting_s=0.0
):
    reading_s = pass_read_bytes(config, 0, 1, bytes_per_number) / bandwidth_bytes_per_s
    return max(waiting_s + reading_s, forward_flops(config, n_prompt) / peak_flops_per_s)


def _waiting_to_compute(
    config, n_prompt, bandwidth_bytes_per_s, peak_flops_per_s, bytes_per_number=2, waiting_s=0.0
):
    reading_s = pass_read_bytes(config, 0, 1, bytes_per_number) / bandwidth_bytes_per_s
    return max(reading_s, waiting_s + forward_flops(config, n_prompt) / peak_flops_per_s)


def _by_the_ridge(
    config, n_prompt, bandwidth_bytes_per_s, peak_flops_per_s, bytes_per_number=2, waiting_s=0.0
):
    reading_s = pass_read_bytes(config, 0, 1, bytes_per_number) / bandwidth_bytes_per_s
    computing_s = forward_flops(config, n_prompt) / peak_flops_per_s
    long_enough = n_prompt > peak_flops_per_s / bandwidth_bytes_per_s
    return waiting_s + (computing_s if long_enough else reading_s)


def _and_a_step(
    config, n_prompt, bandwidth_bytes_per_s, peak_flops_per_s, bytes_per_number=2, waiting_s=0.0
):
    device = (bandwidth_bytes_per_s, peak_flops_per_s, bytes_per_number)
    return ttft_bound_s(config, n_prompt, *device, waiting_s) + step_bound_s(
        config, 1, n_prompt, *device
    )


def _prompt_token_by_token(
    config, n_prompt, bandwidth_bytes_per_s, peak_flops_per_s, bytes_per_number=2, waiting_s=0.0
):
    device = (bandwidth_bytes_per_s, peak_flops_per_s, bytes_per_number)
    return waiting_s + sum(step_bound_s(config, 1, i, *device) for i in range(n_prompt))


def _ttft_step_bound(
    config, n_prompt, bandwidth_bytes_per_s, peak_flops_per_s, bytes_per_number=2, waiting_s=0.0
):
    device = (bandwidth_bytes_per_s, peak_flops_per_s)
    return step_bound_s(config, n_prompt, 0, *device, bytes_per_number) + waiting_s


def _ttft_if(
    config, n_prompt, bandwidth_bytes_per_s, peak_flops_per_s, bytes_per_number=2, waiting_s=0.0
):
    flops, read = forward_flops(config, n_prompt), pass_read_bytes(config, 0, 1, bytes_per_number)
    if flops / read > peak_flops_per_s / bandwidth_bytes_per_s:
        return np.float64(flops) / peak_flops_per_s + waiting_s
    return np.float64(read) / bandwidth_bytes_per_s + waiting_s


TTFT = Exercise(
    id="ttft_bound_s",
    reference=ttft_bound_s,
    lesson=LESSON,
    points=2,
    minutes=7,
    difficulty=2,
    uses=("pass_read_bytes",),
    hints=(
        "Two times for the pass: what it reads over the bandwidth, what it computes over the peak. "
        "They overlap.",
        "pass_read_bytes(config, 0, 1, bytes_per_number) / bandwidth_bytes_per_s, and "
        "forward_flops(config, n_prompt, 0) / peak_flops_per_s: take the larger.",
        "return waiting_s + max(reading_s, computing_s)",
    ),
    cases=(
        given("8B-style, 2,000 tokens on an H100", config=EIGHT_B, n_prompt=2000, **H100),
        given("the same after a wait", config=EIGHT_B, n_prompt=2000, **H100, waiting_s=0.25),
        given("8B-style, 50 tokens: reading bounds it", config=EIGHT_B, n_prompt=50, **H100),
        given(
            "8B-style, 305: past the ridge, below the knee", config=EIGHT_B, n_prompt=305, **H100
        ),
    ),
    draw=_draw_ttft,
    drive=_drive_ttft,
    comparison=Comparison(terms=lambda i: 3, why="a quotient of exact integers, and a sum"),
    wrong={
        "the sum of reading and computing: they overlap, the longer one bounds": _ttft(
            join=lambda reading, computing: reading + computing
        ),
        "the shorter of the two: the pass waits for the longer one": _ttft(join=min),
        "computing alone: a short prompt is bound by reading the weights": _ttft(
            join=lambda reading, computing: computing
        ),
        "reading alone: a long prompt is bound by computing": _ttft(
            join=lambda reading, computing: reading
        ),
        "waiting is left out: the user's clock starts with the request": _ttft(
            wait=lambda seconds, waiting: seconds
        ),
        "waiting overlaps with the pass: it comes before it": _ttft(
            wait=lambda seconds, waiting: max(seconds, waiting)
        ),
        "waiting is added to reading alone: computing has to wait as well": _waiting_for_memory,
        "waiting is added to computing alone: reading has to wait as well": _waiting_to_compute,
        "the ridge decides which one bounds: compare the two times": _by_the_ridge,
        "a decode step is added: the prefill gives the first token": _and_a_step,
        "the prompt runs token by token: one pass takes all of it": _prompt_token_by_token,
        "the head is computed for every token of the prompt: once is enough": _ttft(
            flops=lambda c, n: forward_flops(c, n) + (n - 1) * head_flops(c)
        ),
        "attention is left out of the FLOPs: it grows with the square of the prompt": _ttft(
            flops=lambda c, n: 2 * body_params(c) * n + head_flops(c)
        ),
        "the weights are read anew for each prompt token: one reading serves all": _ttft(
            read=lambda c, n, b: n * pass_read_bytes(c, 0, 1, b)
        ),
        "the prompt's own keys and values are read: the pass makes them": _ttft(
            read=lambda c, n, b: pass_read_bytes(c, n, 1, b)
        ),
        "bytes_per_number is ignored": _ttft(read=lambda c, n, b: pass_read_bytes(c)),
        "milliseconds: seconds are asked": _ttft(
            wait=lambda seconds, waiting: 1e3 * (seconds + waiting)
        ),
    },
    right={
        "lesson 01's step_bound_s": _ttft_step_bound,
        "by the intensity, in NumPy": _ttft_if,
    },
)

# ---- time per output token ----------------------------------------------------------------------


def _draw_tpot(rng: np.random.Generator) -> Inputs:
    return {
        "config": draw_config(rng),
        "n_prompt": int(rng.integers(300, 2000)),
        "n_output": int(rng.integers(5, 40)),
        **draw_device(rng),
        "n_sequences": int(rng.integers(2, 9)),
        "bytes_per_number": int(rng.choice([1, 4])),
    }


def _drive_tpot(answer: Any, inputs: Inputs) -> dict[str, Any]:
    """As given, bound by reading; twice bound by computing; one token."""
    crowd = {"n_prompt": 1, "n_output": 3, "n_sequences": 3000}
    slow = {"n_output": 4, "peak_flops_per_s": inputs["peak_flops_per_s"] / 1e4}
    return {
        "seconds a token": answer(**inputs),
        "seconds a token for 3,000 users, prompts of 1, 3 tokens out": answer(**(inputs | crowd)),
        "seconds a token, 4 tokens, where computing is 10,000 times as slow": answer(
            **(inputs | slow)
        ),
        "one output token": tried(lambda: answer(**(inputs | {"n_output": 1}))),
    }


def _tpot(
    step: Callable = lambda c, n, B, b: (pass_read_bytes(c, n, B, b), B * forward_flops(c, 1, n)),
    steps: Callable = lambda n, k: range(n, n + k - 1),
    join: Callable = max,
    share: Callable = lambda total, k, B: total / (k - 1),
    single: Callable = lambda: None,
    first: Callable = lambda c, n, bw, peak, b: 0.0,
    check: bool = True,
):
    """tpot_bound_s with one part replaced. step gives (bytes read, FLOPs) of one step."""

    def bound(
        config, n_prompt, n_output, bandwidth_bytes_per_s, peak_flops_per_s, n_sequences=1,
        bytes_per_number=2,
    ):  # fmt: skip
        if check:
            require_output(n_output)
        bw, peak, B, b = bandwidth_bytes_per_s, peak_flops_per_s, n_sequences, bytes_per_number
        if n_output == 1:
            return single()
        total = first(config, n_prompt, bw, peak, b)
        for n_cached in steps(n_prompt, n_output):
            read, flops = step(config, n_cached, B, b)
            total += join(read / bw, flops / peak)
        return share(total, n_output, B)

    return bound


def _none_below_two(config, n_prompt, n_output, *device, **sizes):
    return tpot_bound_s(config, n_prompt, max(n_output, 1), *device, **sizes)


def _zero_alone_is_refused(config, n_prompt, n_output, *device, **sizes):
    if n_output == 0:
        raise ValueError("n_output must not be 0")
    return _tpot(check=False)(config, n_prompt, n_output, *device, **sizes)


def _tpot_of_sums(
    config, n_prompt, n_output, bandwidth_bytes_per_s, peak_flops_per_s, n_sequences=1,
    bytes_per_number=2,
):  # fmt: skip
    sizes = n_sequences, bytes_per_number
    one_bound = (
        _tpot(join=join)(
            config, n_prompt, n_output, bandwidth_bytes_per_s, peak_flops_per_s, *sizes
        )
        for join in (lambda reading, computing: reading, lambda reading, computing: computing)
    )
    return max(one_bound) if n_output != 1 else None


def _tpot_numpy(
    config, n_prompt, n_output, bandwidth_bytes_per_s, peak_flops_per_s, n_sequences=1,
    bytes_per_number=2,
):  # fmt: skip
    if n_output < 2:
        require_output(n_output)
        return None
    n = n_prompt + np.arange(n_output - 1)
    per_token = 2 * config.n_layers * config.n_kv_heads * config.d_head * bytes_per_number
    read = pass_read_bytes(config, 0, 1, bytes_per_number) + n_sequences * n * per_token
    per_key = 4 * config.n_layers * config.n_heads * config.d_head
    flops = n_sequences * (2 * body_params(config) + head_flops(config) + per_key * (n + 1.0))
    return np.maximum(read / bandwidth_bytes_per_s, flops / peak_flops_per_s).mean()


def _tpot_list(
    config, n_prompt, n_output, bandwidth_bytes_per_s, peak_flops_per_s, n_sequences=1,
    bytes_per_number=2,
):  # fmt: skip
    require_output(n_output)
    users, gaps = n_sequences, list[float]()
    while len(gaps) + 1 < n_output:
        n = n_prompt + len(gaps)
        reading = (
            _read_weights(config, bytes_per_number)
            + kv_cache_bytes(config, n, users, bytes_per_number)
        ) / bandwidth_bytes_per_s
        computing = users * forward_flops(config, 1, n) / peak_flops_per_s
        gaps.append(reading if reading > computing else computing)
    return sum(gaps) / len(gaps) if gaps else None


def _read_weights(config: Any, b: int) -> int:
    return b * (body_params(config) + config.d_model * config.vocab_size)


TPOT = Exercise(
    id="tpot_bound_s",
    reference=tpot_bound_s,
    lesson=LESSON,
    points=3,
    minutes=12,
    difficulty=3,
    uses=("pass_read_bytes",),
    hints=(
        "Add up the time of every step, then divide by how many there were. Both numbers are "
        "n_output - 1, not n_output.",
        "for n_cached in range(n_prompt, n_prompt + n_output - 1): the step reads "
        "pass_read_bytes(config, n_cached, n_sequences, bytes_per_number) and computes "
        "n_sequences * forward_flops(config, 1, n_cached).",
        "total_s += max(read / bandwidth_bytes_per_s, computed / peak_flops_per_s); return "
        "total_s / (n_output - 1), and None before all that if n_output == 1.",
    ),
    cases=(
        given(
            "8B-style, 2,000 in, 300 out, on an H100",
            config=EIGHT_B,
            n_prompt=2000,
            n_output=300,
            **H100,
        ),
        given(
            "SmolLM2, 16 users",
            config=SMOL,
            n_prompt=128,
            n_output=64,
            **H100,
            n_sequences=16,
        ),
        given(
            "400 users: first computing takes longer, then reading",
            config=EIGHT_B,
            n_prompt=50,
            n_output=101,
            **H100,
            n_sequences=400,
        ),
        given("no output token is refused", config=SMOL, n_prompt=5, n_output=0, **H100),
        given("n_output -2 is refused", config=SMOL, n_prompt=5, n_output=-2, **H100),
    ),
    draw=_draw_tpot,
    drive=_drive_tpot,
    comparison=Comparison(
        terms=lambda i: i["n_output"] + 3, why="n_output - 1 quotients, their sum, one more"
    ),
    wrong={
        "divided by n_output: there are n_output - 1 steps": _tpot(
            share=lambda total, k, B: total / k
        ),
        "n_output steps: the prefill gives the first token": _tpot(
            steps=lambda n, k: range(n, n + k), share=lambda total, k, B: total / k
        ),
        "every step is taken to find n_prompt tokens: the text grows": _tpot(
            steps=lambda n, k: [n] * (k - 1)
        ),
        "step i runs on top of n_prompt + i + 1: its own token is not kept yet": _tpot(
            steps=lambda n, k: range(n + 1, n + k)
        ),
        "keys and values are left out: each step reads all that are kept": _tpot(
            step=lambda c, n, B, b: (pass_read_bytes(c, 0, B, b), B * forward_flops(c, 1, n))
        ),
        "keys and values of one sequence only: every user has their own": _tpot(
            step=lambda c, n, B, b: (pass_read_bytes(c, n, 1, b), B * forward_flops(c, 1, n))
        ),
        "the weights are read once for each user: one reading serves all": _tpot(
            step=lambda c, n, B, b: (B * pass_read_bytes(c, n, 1, b), B * forward_flops(c, 1, n))
        ),
        "computing alone: decoding is bound by reading unless many decode at once": _tpot(
            join=lambda reading, computing: computing
        ),
        "reading alone: with very many users computing takes longer": _tpot(
            join=lambda reading, computing: reading
        ),
        "the sum of reading and computing: they overlap": _tpot(
            join=lambda reading, computing: reading + computing
        ),
        "the longer of two sums: the bound may change on the way, so ask it of each step": (
            _tpot_of_sums
        ),
        "the operations of one user only: all of them compute in a step": _tpot(
            step=lambda c, n, B, b: (pass_read_bytes(c, n, B, b), forward_flops(c, 1, n))
        ),
        "the users are taken for one long text: each attends to its own tokens": _tpot(
            step=lambda c, n, B, b: (pass_read_bytes(c, n, B, b), forward_flops(c, B, n))
        ),
        "divided among the users: a step gives every user a token, so each waits all of it": _tpot(
            share=lambda total, k, B: total / (k - 1) / B
        ),
        "the prefill is counted in: it belongs to the time to first token": _tpot(
            first=lambda c, n, bw, peak, b: ttft_bound_s(c, n, bw, peak, b)
        ),
        "0 for a single token: there is no step, so there is no time of one; give None": _tpot(
            single=lambda: 0.0
        ),
        "an answer of no tokens is accepted: n_output must be at least 1": _tpot(check=False),
        "None for no tokens: that is for one; n_output below 1 is refused": _none_below_two,
        "0 alone is refused: n_output must be at least 1": _zero_alone_is_refused,
        "bytes_per_number is ignored": _tpot(
            step=lambda c, n, B, b: (pass_read_bytes(c, n, B), B * forward_flops(c, 1, n))
        ),
        "the sum of all steps: the time of one token is asked, their mean": _tpot(
            share=lambda total, k, B: total
        ),
        "the last step stands for all of them: the mean is asked": _tpot(
            steps=lambda n, k: [n + k - 2] * (k - 1)
        ),
        "tokens a second: seconds a token are asked": _tpot(
            share=lambda total, k, B: (k - 1) / total
        ),
    },
    right={
        "all steps at once, in NumPy": _tpot_numpy,
        "a list of gaps": _tpot_list,
    },
)
