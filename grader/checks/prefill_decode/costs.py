"""Lesson 03: operations, bytes read and arithmetic intensity of each phase."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from grader.checks.prefill_decode.lesson import LESSON
from grader.checks.roofline.passes import EXPERTS
from grader.judging.compare import Comparison
from grader.judging.exercise import Exercise, Inputs, given
from inferlab.config import ModelConfig
from inferlab.data import model_preset
from inferlab.kv_cache import kv_cache_bytes
from inferlab.prefill_decode import pass_intensity, pass_read_bytes, phase_flops
from inferlab.roofline import body_params, forward_flops

EIGHT_B, SEVENTY_B = model_preset("8b-style"), model_preset("70b-style")
SMOL = model_preset("smollm2-135m")
H100 = {"bandwidth_bytes_per_s": 3.35e12, "peak_flops_per_s": 989.4e12}


def draw_config(rng: np.random.Generator) -> ModelConfig:
    """Sizes of which no two agree by chance: d_head is not d_model / n_heads, the head is large."""
    n_kv_heads = int(rng.choice([2, 4, 5]))
    n_heads = n_kv_heads * int(rng.choice([3, 4, 6]))
    d_head = int(rng.choice([48, 80, 112]))
    return ModelConfig(
        n_layers=int(rng.integers(11, 40)),
        d_model=n_heads * d_head * 3 // 4,
        n_heads=n_heads,
        n_kv_heads=n_kv_heads,
        d_head=d_head,
        d_ff=int(rng.integers(9, 20)) * 96,
        vocab_size=int(rng.integers(20_000, 60_000)),
        tied_embeddings=False,
    )


def draw_device(rng: np.random.Generator) -> dict[str, float]:
    return {
        "bandwidth_bytes_per_s": float(rng.integers(20, 60)) * 1e9,
        "peak_flops_per_s": float(rng.integers(3, 9)) * 1e12,
    }


def require_output(n_output: int) -> None:
    if n_output < 1:
        raise ValueError("n_output must be at least 1")


def head_flops(config: ModelConfig) -> int:
    return 2 * config.d_model * config.vocab_size


# ---- operations of each phase -------------------------------------------------------------------


def _draw_phases(rng: np.random.Generator) -> Inputs:
    return {
        "config": draw_config(rng),
        "n_prompt": int(rng.integers(40, 900)),
        "n_output": int(rng.integers(20, 90)),
    }


def _phases(
    first: Callable = lambda c, n: forward_flops(c, n, 0),
    step: Callable = lambda c, n, i: forward_flops(c, 1, n + i),
    steps: Callable = lambda n_output: n_output - 1,
    result: Callable = lambda prefill, decode: (prefill, decode),
    check: bool = True,
):
    """phase_flops with one part replaced."""

    def flops(config, n_prompt, n_output):
        if check:
            require_output(n_output)
        decode = sum(step(config, n_prompt, i) for i in range(steps(n_output)))
        return result(first(config, n_prompt), decode)

    return flops


def _zero_alone_is_refused(config, n_prompt, n_output):
    if n_output == 0:
        raise ValueError("n_output must not be 0")
    return phase_flops(config, n_prompt, max(n_output, 1))


def _decode_in_one_pass(config, n_prompt, n_output):
    require_output(n_output)
    decode = forward_flops(config, n_output - 1, n_prompt) if n_output > 1 else 0
    return forward_flops(config, n_prompt), decode


def _two_for_each_parameter(config, n_prompt, n_output):
    require_output(n_output)
    return 2 * config.n_params * n_prompt, 2 * config.n_params * (n_output - 1)


def _whole_text_less_prompt(config, n_prompt, n_output):
    require_output(n_output)
    prefill = forward_flops(config, n_prompt)
    return prefill, forward_flops(config, n_prompt + n_output - 1) - prefill


def _phases_closed_form(config, n_prompt, n_output):
    require_output(n_output)
    per_key = 4 * config.n_layers * config.n_heads * config.d_head
    body, head = 2 * body_params(config), head_flops(config)
    steps = n_output - 1
    keys = steps * n_prompt + steps * (steps + 1) // 2
    prefill = n_prompt * body + head + per_key * n_prompt * (n_prompt + 1) // 2
    return prefill, steps * (body + head) + per_key * keys


def _phases_in_a_list(config, n_prompt, n_output):
    if not n_output >= 1:
        raise ValueError("an answer has a token")
    passes = [forward_flops(config, n_prompt)]
    while len(passes) < n_output:
        passes.append(forward_flops(config, 1, n_prompt + len(passes) - 1))
    return [passes[0], sum(passes[1:])]


FLOPS = Exercise(
    id="phase_flops",
    reference=phase_flops,
    lesson=LESSON,
    points=2,
    minutes=8,
    difficulty=2,
    hints=(
        "The prefill is one call of forward_flops: n_prompt new tokens on top of none. The decode "
        "steps are a sum over one call for each.",
        "How many steps? The prefill gives the first output token, so n_output - 1. Step 0 runs "
        "the first output token on top of n_prompt; each step finds one more.",
        "sum(forward_flops(config, 1, n_prompt + i) for i in range(n_output - 1))",
    ),
    cases=(
        given("8B-style, 1,000 in, 1,001 out", config=EIGHT_B, n_prompt=1000, n_output=1001),
        given("one output token: no step", config=SMOL, n_prompt=17, n_output=1),
        given("experts", config=EXPERTS, n_prompt=7, n_output=4),
        given("a prompt of one token, two out", config=SMOL, n_prompt=1, n_output=2),
        given("no output token is refused", config=SMOL, n_prompt=5, n_output=0),
        given("n_output -2 is refused", config=SMOL, n_prompt=5, n_output=-2),
    ),
    draw=_draw_phases,
    wrong={
        "one step too many: the prefill already gives the first output token": _phases(
            steps=lambda n_output: n_output
        ),
        "every step sees the prompt alone: the text grows by one token a step": _phases(
            step=lambda c, n, i: forward_flops(c, 1, n)
        ),
        "the steps see nothing of the text: what is kept must be attended to": _phases(
            step=lambda c, n, i: forward_flops(c, 1, i)
        ),
        "step i runs on top of n_prompt + i + 1: its own token is not kept yet": _phases(
            step=lambda c, n, i: forward_flops(c, 1, n + i + 1)
        ),
        "step i runs on top of n_prompt + i - 1: step 0 finds the whole prompt": _phases(
            step=lambda c, n, i: forward_flops(c, 1, n + i - 1)
        ),
        "every step runs the whole text again: what is kept is not run": _phases(
            step=lambda c, n, i: forward_flops(c, n + i + 1)
        ),
        "all steps are counted as one pass: each of them needs the head": _decode_in_one_pass,
        "a prefill of the whole text, less that of the prompt: each step needs the head": (
            _whole_text_less_prompt
        ),
        "the head is counted for each prompt token: one row of logits is needed": _phases(
            first=lambda c, n: forward_flops(c, n) + (n - 1) * head_flops(c)
        ),
        "the prefill is n_prompt times a first token: later tokens see more keys": _phases(
            first=lambda c, n: n * forward_flops(c, 1)
        ),
        "2 FLOPs for each parameter is a rule of thumb: it has the embedding, and no attention": (
            _two_for_each_parameter
        ),
        "prompt tokens are taken to see the whole prompt: token i sees i + 1 keys": _phases(
            first=lambda c, n: (
                forward_flops(c, n) + 2 * c.n_layers * c.n_heads * c.d_head * n * (n - 1)
            )
        ),
        "one sum comes back: prefill and decode are asked one by one": _phases(
            result=lambda prefill, decode: prefill + decode
        ),
        "the prefill is in the second number too: it is that of the decode steps alone": _phases(
            result=lambda prefill, decode: (prefill, prefill + decode)
        ),
        "an answer of no tokens is accepted: n_output must be at least 1": _phases(check=False),
        "0 alone is refused: n_output must be at least 1": _zero_alone_is_refused,
        "decode comes first: the prefill comes first": _phases(
            result=lambda prefill, decode: (decode, prefill)
        ),
    },
    right={
        "closed form": _phases_closed_form,
        "a list of passes": _phases_in_a_list,
    },
)

# ---- bytes that a pass reads --------------------------------------------------------------------


def _draw_read(rng: np.random.Generator) -> Inputs:
    return {
        "config": draw_config(rng),
        "n_cached": int(rng.integers(101, 3000)),
        "n_sequences": int(rng.integers(3, 30)),
        "bytes_per_number": int(rng.choice([1, 4])),
    }


def _numbers_of_weights(config: ModelConfig) -> int:
    return body_params(config) + config.d_model * config.vocab_size


def _read(
    weights: Callable = lambda c, b, B: b * _numbers_of_weights(c),
    cache: Callable = lambda c, n, b, B: kv_cache_bytes(c, n, B, b),
):
    """pass_read_bytes with one part replaced: weights(config, b, B), cache(config, n, b, B)."""

    def read(config, n_cached=0, n_sequences=1, bytes_per_number=2):
        b, B = bytes_per_number, n_sequences
        return weights(config, b, B) + cache(config, n_cached, b, B)

    return read


def _read_part_by_part(config, n_cached=0, n_sequences=1, bytes_per_number=2):
    total = config.d_model * config.vocab_size
    for _ in range(config.n_layers):
        for n_heads in (config.n_heads, config.n_kv_heads, config.n_kv_heads, config.n_heads):
            total += config.d_model * n_heads * config.d_head
        total += 3 * config.d_model * config.d_ff
        total += 2 * n_sequences * n_cached * config.n_kv_heads * config.d_head
    return total * bytes_per_number


READ = Exercise(
    id="pass_read_bytes",
    reference=pass_read_bytes,
    lesson=LESSON,
    points=2,
    minutes=8,
    difficulty=2,
    hints=(
        "Two sums: the weights, which everybody shares, and the keys and values, of which each "
        "sequence has its own.",
        "Numbers of weights: body_params(config) + config.d_model * config.vocab_size. Multiply by "
        "bytes_per_number, not by n_sequences.",
        "Add kv_cache_bytes(config, n_cached, n_sequences, bytes_per_number), which is "
        "2 * n_layers * n_kv_heads * d_head * n_cached * n_sequences * bytes_per_number.",
    ),
    cases=(
        given("8B-style, on top of nothing", config=EIGHT_B),
        given("8B-style, 16 users of 8,192 tokens", config=EIGHT_B, n_cached=8192, n_sequences=16),
        given("SmolLM2 in float32", config=SMOL, n_cached=100, bytes_per_number=4),
        given("experts", config=EXPERTS, n_cached=100, n_sequences=3),
    ),
    draw=_draw_read,
    wrong={
        "weights times n_sequences: they are read once for all of them": _read(
            weights=lambda c, b, B: B * b * _numbers_of_weights(c)
        ),
        "keys and values of one sequence only: each has its own": _read(
            cache=lambda c, n, b, B: kv_cache_bytes(c, n, 1, b)
        ),
        "keys and values are left out: every one kept is read in each pass": _read(
            cache=lambda c, n, b, B: 0
        ),
        "the head is left out: d_model * vocab_size weights": _read(
            weights=lambda c, b, B: b * body_params(c)
        ),
        "a tied head is left out: the same numbers as the embedding, and all are read": _read(
            weights=lambda c, b, B: (
                b * (body_params(c) if c.tied_embeddings else _numbers_of_weights(c))
            )
        ),
        "the embedding is counted as well: only a few rows of it are looked up": _read(
            weights=lambda c, b, B: b * (_numbers_of_weights(c) + c.d_model * c.vocab_size)
        ),
        "config.n_params counts the embedding and the norms too: body_params and the head": _read(
            weights=lambda c, b, B: b * c.n_params
        ),
        "n_heads in place of n_kv_heads: only KV heads are kept": _read(
            cache=lambda c, n, b, B: kv_cache_bytes(c, n, B, b) * c.n_heads // c.n_kv_heads
        ),
        "d_model in place of n_kv_heads * d_head: a key has d_head numbers for each KV head": _read(
            cache=lambda c, n, b, B: 2 * c.n_layers * c.d_model * n * B * b
        ),
        "bytes_per_number counts twice for the cache: kv_cache_bytes gives bytes already": _read(
            cache=lambda c, n, b, B: b * kv_cache_bytes(c, n, B, b)
        ),
        "the factor 2 is missing: keys and values are both read": _read(
            cache=lambda c, n, b, B: kv_cache_bytes(c, n, B, b) // 2
        ),
        "one layer's keys and values only: every layer reads its own": _read(
            cache=lambda c, n, b, B: kv_cache_bytes(c, n, B, b) // c.n_layers
        ),
        "the weights always take 2 bytes: use bytes_per_number": _read(
            weights=lambda c, b, B: 2 * _numbers_of_weights(c)
        ),
        "the cache always takes 2 bytes a number: use bytes_per_number": _read(
            cache=lambda c, n, b, B: kv_cache_bytes(c, n, B, 2)
        ),
        "counts numbers, not bytes: multiply by bytes_per_number": _read(
            weights=lambda c, b, B: _numbers_of_weights(c),
            cache=lambda c, n, b, B: kv_cache_bytes(c, n, B, 1),
        ),
        "a dense model's matrices written out: body_params counts the experts that a token takes": (
            _read_part_by_part
        ),
    },
    right={
        "sequence by sequence": lambda config, n_cached=0, n_sequences=1, bytes_per_number=2: (
            _numbers_of_weights(config) * bytes_per_number
            + sum(
                2 * config.n_layers * config.n_kv_heads * config.d_head * n_cached
                for _ in range(n_sequences)
            )
            * bytes_per_number
        ),
        "in NumPy integers": lambda config, n_cached=0, n_sequences=1, bytes_per_number=2: (
            np.int64(bytes_per_number)
            * (
                _numbers_of_weights(config)
                + np.prod(
                    [2, config.n_layers, config.n_kv_heads, config.d_head, n_cached, n_sequences],
                    dtype=np.int64,
                )
            )
        ),
    },
)

# ---- arithmetic intensity -----------------------------------------------------------------------


def _intensity(change: Callable[[Any, int, int, int, int], float]):
    """pass_intensity from change(config, n_new, n_cached, n_sequences, bytes_per_number)."""

    def intensity(config, n_new, n_cached=0, n_sequences=1, bytes_per_number=2):
        return change(config, n_new, n_cached, n_sequences, bytes_per_number)

    return intensity


INTENSITY = Exercise(
    id="pass_intensity",
    reference=pass_intensity,
    lesson=LESSON,
    points=1,
    minutes=5,
    difficulty=1,
    uses=("pass_read_bytes",),
    hints=(
        "FLOPs divided by bytes read. Both have a function.",
        "forward_flops(config, n_new, n_cached) is one sequence; there are n_sequences of them. "
        "The bytes already know how many there are.",
        "n_sequences * forward_flops(config, n_new, n_cached) / pass_read_bytes(config, n_cached, "
        "n_sequences, bytes_per_number)",
    ),
    cases=(
        given("8B-style, one token on nothing", config=EIGHT_B, n_new=1),
        given("8B-style, a prompt of 2,000", config=EIGHT_B, n_new=2000),
        given(
            "70B-style, a step of 32 users",
            config=SEVENTY_B,
            n_new=1,
            n_cached=4096,
            n_sequences=32,
        ),
    ),
    draw=lambda rng: {**_draw_read(rng), "n_new": int(rng.integers(5, 300))},
    comparison=Comparison(terms=lambda i: 3, why="a product and a quotient of exact integers"),
    wrong={
        "the number of new tokens is taken for the intensity: a rule of thumb for bf16": _intensity(
            lambda c, n, m, B, b: float(n * B)
        ),
        "bytes per FLOP: turn the quotient round": _intensity(
            lambda c, n, m, B, b: 1 / pass_intensity(c, n, m, B, b)
        ),
        "the FLOPs of one sequence only: all of them compute": _intensity(
            lambda c, n, m, B, b: forward_flops(c, n, m) / pass_read_bytes(c, m, B, b)
        ),
        "n_sequences is ignored: they share one reading of the weights": _intensity(
            lambda c, n, m, B, b: pass_intensity(c, n, m, 1, b)
        ),
        "the batch is taken for one long text: each sequence attends to its own tokens": _intensity(
            lambda c, n, m, B, b: forward_flops(c, n * B, m) / pass_read_bytes(c, m, B, b)
        ),
        "the bytes of one sequence only: each reads its own keys and values": _intensity(
            lambda c, n, m, B, b: B * forward_flops(c, n, m) / pass_read_bytes(c, m, 1, b)
        ),
        "the weights are read anew for each token: one reading serves all of them": _intensity(
            lambda c, n, m, B, b: B * forward_flops(c, n, m) / (n * pass_read_bytes(c, m, B, b))
        ),
        "the new tokens count as kept ones: they are computed, not read": _intensity(
            lambda c, n, m, B, b: B * forward_flops(c, n, m) / pass_read_bytes(c, m + n, B, b)
        ),
        "the past is forgotten in the FLOPs: the new tokens attend to it": _intensity(
            lambda c, n, m, B, b: B * forward_flops(c, n) / pass_read_bytes(c, m, B, b)
        ),
        "the past is forgotten in the bytes: its keys and values are read": _intensity(
            lambda c, n, m, B, b: B * forward_flops(c, n, m) / pass_read_bytes(c, 0, B, b)
        ),
        "bytes_per_number is ignored: fewer bytes a number raise the intensity": _intensity(
            lambda c, n, m, B, b: B * forward_flops(c, n, m) / pass_read_bytes(c, m, B)
        ),
        "a multiply and an add count 2 FLOPs, not 1": _intensity(
            lambda c, n, m, B, b: pass_intensity(c, n, m, B, b) / 2
        ),
    },
    right={
        "reciprocal, in NumPy": _intensity(
            lambda c, n, m, B, b: (
                np.float64(pass_read_bytes(c, m, B, b) / forward_flops(c, n, m) / B) ** -1
            )
        ),
        "sequence by sequence": _intensity(
            lambda c, n, m, B, b: sum(
                forward_flops(c, n, m) / _read_part_by_part(c, m, B, b) for _ in range(B)
            )
        ),
    },
)
