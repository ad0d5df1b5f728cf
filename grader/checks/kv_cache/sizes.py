"""Lesson 04: what the cache costs in memory, and what fits."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np

from grader.checks.kv_cache.lesson import LESSON
from grader.judging.exercise import Exercise, Inputs, given
from inferlab.config import ModelConfig
from inferlab.data import model_preset
from inferlab.kv_cache import kv_bytes_per_token, kv_cache_bytes, largest_batch, longest_context


def _config(n_layers: int, n_heads: int, n_kv_heads: int, d_head: int, d_model: int) -> ModelConfig:
    return ModelConfig(n_layers, d_model, n_heads, n_kv_heads, d_head, 4 * d_model, 32_000)


EIGHT_B = model_preset("8b-style")
SEVENTY_B = model_preset("70b-style")
NARROW = _config(28, 16, 8, 128, 1024)  # d_head is not d_model / n_heads, as in Qwen3-0.6B


def _draw_config(rng: np.random.Generator) -> ModelConfig:
    n_kv_heads = int(rng.choice([2, 4, 5, 8]))
    n_heads = n_kv_heads * int(rng.choice([3, 4, 7]))
    d_head = int(rng.choice([64, 80, 96]))
    d_model = n_heads * d_head * 3 // 4  # so that d_model / n_heads is not d_head
    return _config(int(rng.integers(20, 70)), n_heads, n_kv_heads, d_head, d_model)


def _per_token(
    config: Any,
    b: float,
    sides: int = 2,
    heads: Callable = lambda c: c.n_kv_heads,
    width: Callable = lambda c: c.d_head,
    layers: Callable = lambda c: c.n_layers,
) -> Any:
    return sides * layers(config) * heads(config) * width(config) * b


PER_TOKEN = Exercise(
    id="kv_bytes_per_token",
    reference=kv_bytes_per_token,
    lesson=LESSON,
    points=1,
    minutes=5,
    difficulty=1,
    hints=(
        "Count the numbers that one token leaves behind in one layer, then all layers, then turn "
        "numbers into bytes.",
        "In each layer every KV head stores one key and one value of d_head numbers. Query heads "
        "leave nothing behind.",
        "2 * n_layers * n_kv_heads * d_head * bytes_per_number",
    ),
    cases=(
        given("8B-style, bf16", config=EIGHT_B),
        given("d_head is not d_model / n_heads, 8-bit cache", config=NARROW, bytes_per_number=1),
        given("70B-style, float32", config=SEVENTY_B, bytes_per_number=4),
    ),
    draw=lambda rng: {"config": _draw_config(rng), "bytes_per_number": int(rng.choice([4, 8]))},
    wrong={
        "n_heads in place of n_kv_heads: only KV heads are cached": (
            lambda config, bytes_per_number=2: _per_token(
                config, bytes_per_number, heads=lambda c: c.n_heads
            )
        ),
        "the factor 2 is missing: keys and values are both kept": (
            lambda config, bytes_per_number=2: _per_token(config, bytes_per_number, sides=1)
        ),
        "d_model / n_heads in place of d_head: a config may say otherwise": (
            lambda config, bytes_per_number=2: _per_token(
                config, bytes_per_number, width=lambda c: c.d_model // c.n_heads
            )
        ),
        "d_model in place of n_kv_heads * d_head": (
            lambda config, bytes_per_number=2: _per_token(
                config, bytes_per_number, heads=lambda c: 1, width=lambda c: c.d_model
            )
        ),
        "one layer only: every layer keeps its own": (
            lambda config, bytes_per_number=2: _per_token(
                config, bytes_per_number, layers=lambda c: 1
            )
        ),
        "always 2 bytes a number: bytes_per_number is ignored": (
            lambda config, bytes_per_number=2: _per_token(config, 2)
        ),
        "bytes_per_number is forgotten: the 2 stands for keys and values, not for bytes": (
            lambda config, bytes_per_number=2: _per_token(config, 1)
        ),
        "counts bits, not bytes": (
            lambda config, bytes_per_number=2: _per_token(config, 8 * bytes_per_number)
        ),
        "the answer is in KiB: bytes are asked": (
            lambda config, bytes_per_number=2: _per_token(config, bytes_per_number) / 1024
        ),
        "assumes 8 KV heads: read n_kv_heads": (
            lambda config, bytes_per_number=2: _per_token(
                config, bytes_per_number, heads=lambda c: 8
            )
        ),
    },
    right={
        "layer by layer": lambda config, bytes_per_number=2: sum(
            bytes_per_number * config.d_head
            for _ in range(config.n_layers)
            for _ in range(config.n_kv_heads)
            for _ in ("key", "value")
        ),
        "from the group size, in NumPy": lambda config, bytes_per_number=2: (
            np.prod([2, config.n_layers, config.n_heads, config.d_head, bytes_per_number])
            // (config.n_heads // config.n_kv_heads)
        ),
    },
)


def _draw_sizes(rng: np.random.Generator) -> Inputs:
    return {
        "config": _draw_config(rng),
        "n_tokens": int(rng.integers(1001, 9000)),
        "n_sequences": int(rng.integers(3, 40)),
        "bytes_per_number": int(rng.choice([1, 4])),
    }


def _sized(change: Callable[[Any, int, int, int], Any]) -> Callable:
    """A wrong kv_cache_bytes: change(config, n_tokens, n_sequences, bytes_per_number)."""

    def size(config, n_tokens, n_sequences=1, bytes_per_number=2):
        return change(config, n_tokens, n_sequences, bytes_per_number)

    return size


CACHE_BYTES = Exercise(
    id="kv_cache_bytes",
    reference=kv_cache_bytes,
    lesson=LESSON,
    points=1,
    minutes=5,
    difficulty=1,
    uses=("kv_bytes_per_token",),
    hints=(
        "You have the bytes of one token already.",
        "Every token of every sequence has its own keys and values: nothing is shared.",
        "n_sequences * n_tokens * kv_bytes_per_token(config, bytes_per_number)",
    ),
    cases=(
        given(
            "8B-style, 16 sequences of 8,192 tokens", config=EIGHT_B, n_tokens=8192, n_sequences=16
        ),
        given("70B-style, one sequence of 8,192 tokens", config=SEVENTY_B, n_tokens=8192),
        given(
            "odd numbers: no float32 can hold the product",
            config=_config(61, 15, 5, 80, 1200),
            n_tokens=8191,
            n_sequences=37,
            bytes_per_number=1,
        ),
    ),
    draw=_draw_sizes,
    wrong={
        "n_sequences is forgotten: each sequence has its own cache": _sized(
            lambda c, n, s, b: n * _per_token(c, b)
        ),
        "n_tokens is forgotten": _sized(lambda c, n, s, b: s * _per_token(c, b)),
        "tokens and sequences are added, not multiplied": _sized(
            lambda c, n, s, b: (n + s) * _per_token(c, b)
        ),
        "bytes_per_number is ignored: 2 is only the default": _sized(
            lambda c, n, s, b: n * s * _per_token(c, 2)
        ),
        "8k taken as 8,000: 8,192 tokens are 8,192": _sized(
            lambda c, n, s, b: (n // 1000) * 1000 * s * _per_token(c, b)
        ),
        "n_heads in place of n_kv_heads: only KV heads are cached": _sized(
            lambda c, n, s, b: n * s * _per_token(c, b, heads=lambda c: c.n_heads)
        ),
        "bytes a token rounded to whole KB before multiplying": _sized(
            lambda c, n, s, b: n * s * (round(_per_token(c, b) / 1000) * 1000)
        ),
        "the answer is in GB: bytes are asked": _sized(
            lambda c, n, s, b: n * s * _per_token(c, b) / 1e9
        ),
    },
    right={
        "all factors in one line": _sized(
            lambda c, n, s, b: 2 * b * s * n * c.d_head * c.n_kv_heads * c.n_layers
        ),
        "summed over the sequences": _sized(
            lambda c, n, s, b: sum(np.int64(_per_token(c, b)) * n for _ in range(s))
        ),
    },
)

# ---- what fits ----------------------------------------------------------------------------------


def _draw_room(rng: np.random.Generator) -> Inputs:
    memory = float(rng.choice([24e9, 40e9, 80e9, 141e9]))
    return {
        "config": _draw_config(rng),
        "memory_bytes": memory,
        "weight_bytes": float(memory * rng.uniform(0.2, 0.5)),
        "headroom": float(rng.choice([0.05, 0.1, 0.2])),
        "bytes_per_number": int(rng.choice([1, 4])),
    }


def _draw_batch(rng: np.random.Generator) -> Inputs:
    """Where rounding up or down matters: the quotient's fraction is between 0.55 and 0.95."""
    inputs = _draw_room(rng)
    while True:
        inputs["n_tokens"] = int(rng.integers(2000, 30000))
        if 0.55 < _quotient(**inputs, n_sequences=1) % 1 < 0.95:
            return inputs


def _draw_context(rng: np.random.Generator) -> Inputs:
    inputs = _draw_room(rng)
    while True:
        inputs["n_sequences"] = int(rng.integers(2, 30))
        if 0.55 < _quotient(**inputs, n_tokens=1) % 1 < 0.95:
            return inputs


def _quotient(
    config, n_tokens, n_sequences, memory_bytes, weight_bytes, headroom=0.0, bytes_per_number=2
) -> float:
    free = memory_bytes * (1 - headroom) - weight_bytes
    return free / (n_tokens * n_sequences * _per_token(config, bytes_per_number))


def _batch(change: Callable[[Any, int, float, float, float, int], Any]) -> Callable:
    def answer(config, n_tokens, memory_bytes, weight_bytes, headroom=0.0, bytes_per_number=2):
        return change(config, n_tokens, memory_bytes, weight_bytes, headroom, bytes_per_number)

    return answer


def _context(change: Callable[[Any, int, float, float, float, int], Any]) -> Callable:
    def answer(config, n_sequences, memory_bytes, weight_bytes, headroom=0.0, bytes_per_number=2):
        return change(config, n_sequences, memory_bytes, weight_bytes, headroom, bytes_per_number)

    return answer


def _floor(free: float, unit: float) -> int:
    return max(0, int(free // unit))


def _exactly(c, n, m, w, h, b) -> int:
    """In fractions, so that no rounding is involved at all."""
    free = Fraction(m) * (1 - Fraction(str(h))) - Fraction(w)
    return max(0, math.floor(free / (n * _per_token(c, b))))


def _counting_up(c, n, m, w, h, b) -> int:
    """Doubling and halving search for the last count that fits."""
    fits = 0
    step = 1 << 40
    while step:
        if (fits + step) * n * _per_token(c, b) + w <= m - m * h:
            fits += step
        step //= 2
    return fits


ROOM_WRONG: dict[str, Callable[[Any, int, float, float, float, int], Any]] = {
    "rounded to the nearest: what fits by half does not fit": lambda c, n, m, w, h, b: max(
        0, round((m * (1 - h) - w) / (n * _per_token(c, b)))
    ),
    "one too many: rounded up": lambda c, n, m, w, h, b: max(
        0, math.ceil((m * (1 - h) - w) / (n * _per_token(c, b)))
    ),
    "a negative count where the weights alone do not fit: the answer there is 0": (
        lambda c, n, m, w, h, b: int((m * (1 - h) - w) // (n * _per_token(c, b)))
    ),
    "headroom taken from what is left beside the weights; it is a share of the whole memory": (
        lambda c, n, m, w, h, b: _floor((m - w) * (1 - h), n * _per_token(c, b))
    ),
    "headroom is ignored": lambda c, n, m, w, h, b: _floor(m - w, n * _per_token(c, b)),
    "the weights are forgotten: they take memory first": lambda c, n, m, w, h, b: _floor(
        m * (1 - h), n * _per_token(c, b)
    ),
    "n_heads in place of n_kv_heads: only KV heads are cached": lambda c, n, m, w, h, b: _floor(
        m * (1 - h) - w, n * _per_token(c, b, heads=lambda c: c.n_heads)
    ),
    "bytes_per_number is ignored: 2 is only the default": lambda c, n, m, w, h, b: _floor(
        m * (1 - h) - w, n * _per_token(c, 2)
    ),
}

BATCH = Exercise(
    id="largest_batch",
    reference=largest_batch,
    lesson=LESSON,
    points=2,
    minutes=8,
    difficulty=2,
    uses=("kv_cache_bytes",),
    hints=(
        "Three amounts of memory: all of it, less the headroom, less the weights. The rest is for "
        "keys and values.",
        "Divide the rest by the bytes of one sequence, and round down: free // bytes of one.",
        "max(0, int((memory_bytes * (1 - headroom) - weight_bytes) // kv_cache_bytes(config, "
        "n_tokens, 1, bytes_per_number)))",
    ),
    cases=(
        given(
            "8B-style at 8,192 tokens on 80 GB",
            config=EIGHT_B,
            n_tokens=8192,
            memory_bytes=80e9,
            weight_bytes=16e9,
        ),
        given(
            "70B-style in bf16 on 80 GB: the weights do not fit",
            config=SEVENTY_B,
            n_tokens=8192,
            memory_bytes=80e9,
            weight_bytes=140e9,
        ),
        given(
            "8B-style, 10 % headroom",
            config=EIGHT_B,
            n_tokens=8192,
            memory_bytes=80e9,
            weight_bytes=16e9,
            headroom=0.1,
        ),
        given(
            "10 sequences of 8,192 tokens fit exactly",
            config=EIGHT_B,
            n_tokens=8192,
            memory_bytes=16e9 + 10 * 8192 * 131_072,
            weight_bytes=16e9,
        ),
        given(
            "the weights fit, but not beside the headroom",
            config=EIGHT_B,
            n_tokens=8192,
            memory_bytes=80e9,
            weight_bytes=78e9,
            headroom=0.1,
        ),
    ),
    draw=_draw_batch,
    wrong={
        **{name: _batch(change) for name, change in ROOM_WRONG.items()},
        "divides by the bytes of one token, not of one sequence": _batch(
            lambda c, n, m, w, h, b: _floor(m * (1 - h) - w, _per_token(c, b))
        ),
    },
    right={
        "exact fractions": _batch(_exactly),
        "a search for the last batch that fits": _batch(_counting_up),
    },
)

CONTEXT = Exercise(
    id="longest_context",
    reference=longest_context,
    lesson=LESSON,
    points=2,
    minutes=6,
    difficulty=2,
    uses=("kv_bytes_per_token",),
    hints=(
        "The same free memory as in largest_batch; now the number of sequences is given and the "
        "tokens are asked.",
        "When all sequences grow by one token, the cache grows by n_sequences times the bytes of "
        "one token.",
        "max(0, int(free // (n_sequences * kv_bytes_per_token(config, bytes_per_number))))",
    ),
    cases=(
        given(
            "8B-style, 16 sequences, 10 % headroom",
            config=EIGHT_B,
            n_sequences=16,
            memory_bytes=80e9,
            weight_bytes=16e9,
            headroom=0.1,
        ),
        given(
            "8B-style, 3 sequences, 10 % headroom",
            config=EIGHT_B,
            n_sequences=3,
            memory_bytes=80e9,
            weight_bytes=16e9,
            headroom=0.1,
        ),
        given(
            "70B-style in bf16: the weights do not fit",
            config=SEVENTY_B,
            n_sequences=1,
            memory_bytes=80e9,
            weight_bytes=140e9,
            headroom=0.1,
        ),
        given(
            "10 sequences of 8,192 tokens fit exactly",
            config=EIGHT_B,
            n_sequences=10,
            memory_bytes=16e9 + 10 * 8192 * 131_072,
            weight_bytes=16e9,
        ),
        given(
            "the weights fit, but not beside the headroom",
            config=EIGHT_B,
            n_sequences=10,
            memory_bytes=80e9,
            weight_bytes=78e9,
            headroom=0.1,
        ),
    ),
    draw=_draw_context,
    wrong={
        **{name: _context(change) for name, change in ROOM_WRONG.items()},
        "one sequence only: all of them grow together": _context(
            lambda c, n, m, w, h, b: _floor(m * (1 - h) - w, _per_token(c, b))
        ),
    },
    right={
        "exact fractions": _context(_exactly),
        "a search for the last token that fits": _context(_counting_up),
    },
)
