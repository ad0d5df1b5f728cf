"""Lesson 04: what to predict before any code, and the knowledge check after it."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from grader.checks.kv_cache.lesson import LESSON
from inferlab.config import ModelConfig
from inferlab.data import model_preset
from inferlab.kv_cache import kv_bytes_per_token, kv_cache_bytes, largest_batch
from inferlab.roofline import step_bound_s
from labkit.interview.questions import Question
from labkit.predictions import Prediction

STEP_TOKENS = 256  # length at which the lesson times one step with a cache and one without


def kv_rows_uncached(n: int) -> int:
    """Rows through w_k and w_v when n tokens are decoded and nothing is remembered."""
    return n * (n + 1)


def kv_rows_cached(n: int) -> int:
    """The same with a cache: one key and one value a token."""
    return 2 * n


def decode_steps(n_output_tokens: int) -> int:
    """Passes after the prefill: the prefill itself gives the first output token."""
    return n_output_tokens - 1


def _times_more_with_mha() -> float:
    config = model_preset("8b-style")
    return config.n_heads / config.n_kv_heads


@lru_cache(maxsize=1)
def step_ratio_bound() -> float:
    """Bound of a step without cache over one with cache, on this machine, for SmolLM2-135M."""
    from labkit.measure.timing import matmul_peak, read_bandwidth

    config, bandwidth, peak = model_preset("smollm2-135m"), read_bandwidth(), matmul_peak()
    without = step_bound_s(config, STEP_TOKENS, 0, bandwidth, peak)
    return without / step_bound_s(config, 1, STEP_TOKENS - 1, bandwidth, peak)


PREDICTIONS = (
    Prediction(
        id="kv_rows_12",
        question="Twelve tokens are decoded one by one with **no** cache: at every step the keys "
        "and values of the whole prefix are projected again. How many rows go through `w_k` and "
        "`w_v` in all?",
        unit="",
        answer=lambda: float(kv_rows_uncached(12)),
        because="The first step projects 1 key and 1 value, the last one 12 and 12: "
        "2(1 + 2 + … + 12) = 12 · 13 = 156. With a cache it is one of each a token: 24.",
    ),
    Prediction(
        id="kv_mha_ratio",
        question="An 8B-style model has 32 query heads and 8 KV heads. 16 sequences of 8,192 "
        "tokens take 17.18 GB of cache. How many times as much would it be if every query head "
        "had keys and values of its own (multi-head attention)?",
        unit="x",
        answer=_times_more_with_mha,
        because="The cache is proportional to n_kv_heads and to nothing else of the heads: "
        "32 / 8 = 4 times, 68.72 GB. With 16 GB of weights that no longer fits on 80 GB.",
    ),
    Prediction(
        id="kv_step_ratio",
        question="A real model of 135 million parameters, on this machine, 256 tokens so far. How "
        "many times as long does the next token take without a cache as with one?",
        unit="x",
        answer=step_ratio_bound,
        because="Without a cache a step runs 256 tokens in place of 1: about 200 times the "
        "arithmetic. It does not take 200 times as long: the cached step is bound by reading every "
        "weight once, and the long pass reads them once as well. The computed number is the ratio "
        "of the two bounds on this machine.",
    ),
    Prediction(
        id="kv_bidirectional",
        question="Suppose attention could look at later tokens too. A new token arrives. In which "
        "layers would the keys of the **past** tokens be wrong?",
        choices=(
            "in no layer: keys never change",
            "in the first layer and in all others",
            "in all layers but the first",
        ),
        answer=lambda: "in all layers but the first",
        because="First-layer keys see only the embeddings, which stay as they are. But the first "
        "layer's outputs at past positions would change, and every later layer makes its keys "
        "from those.",
    ),
)


def _draw_model(rng: np.random.Generator) -> dict[str, Any]:
    n_kv_heads = int(rng.choice([2, 4, 8]))
    return {
        "n_layers": int(rng.choice([24, 28, 32, 36, 48])),
        "n_kv_heads": n_kv_heads,
        "n_heads": n_kv_heads * int(rng.choice([4, 5, 7])),
        "d_head": int(rng.choice([64, 96, 128])),
    }


def _config(p: dict[str, Any]) -> ModelConfig:
    d_model = p["n_heads"] * p["d_head"]
    return ModelConfig(
        p["n_layers"], d_model, p["n_heads"], p["n_kv_heads"], p["d_head"], 4 * d_model, 32_000
    )


def _sizes(p: dict[str, Any]) -> str:
    return (
        f"{p['n_layers']} layers, {p['n_heads']} query heads, {p['n_kv_heads']} KV heads, "
        f"d_head {p['d_head']}"
    )


def _per_token(p: dict[str, Any]) -> int:
    return kv_bytes_per_token(_config(p))


def _draw_fit(rng: np.random.Generator) -> dict[str, Any]:
    """Drawn until rounding and headroom matter: each slip gives another number."""
    while True:
        p = {
            **_draw_model(rng),
            "memory_gb": int(rng.choice([40, 48, 80])),
            "weight_gb": int(rng.choice([8, 14, 16])),
            "n_tokens": int(rng.choice([2048, 4096, 8192])),
        }
        exact = (p["memory_gb"] * 0.9 - p["weight_gb"]) * 1e9 / (_per_token(p) * p["n_tokens"])
        if 3 < exact < 90 and 0.55 < exact % 1 < 0.95:
            return p


def _fits(p: dict[str, Any], headroom: float = 0.1, weights: bool = True) -> int:
    weight_bytes = p["weight_gb"] * 1e9 if weights else 0.0
    return largest_batch(_config(p), p["n_tokens"], p["memory_gb"] * 1e9, weight_bytes, headroom)


def _speed_gain(p: dict[str, Any]) -> float:
    return (p["weight_gb"] + p["kv_gb"]) / (p["weight_gb"] + p["kv_gb"] / 2)


QUESTIONS = (
    Question(
        id="kv_q_token",
        lesson=LESSON,
        points=1,
        draw=_draw_model,
        text=lambda p: (
            f"A model has {_sizes(p)}. How many bytes of keys and values does one token "
            "take in bf16? Write the unit: B, kB or KiB."
        ),
        answer=lambda p: _per_token(p),
        unit="B",
        slips={
            "n_heads in place of n_kv_heads: only KV heads are cached": lambda p: (
                _per_token(p) * p["n_heads"] / p["n_kv_heads"]
            ),
            "the factor 2 is missing: keys and values are both kept": lambda p: _per_token(p) / 2,
            "one layer only: every layer keeps its own": lambda p: _per_token(p) / p["n_layers"],
        },
        why=lambda p: (
            f"2 · {p['n_layers']} · {p['n_kv_heads']} · {p['d_head']} · 2 B = "
            f"{_per_token(p):,} B. The first 2 is for keys and values, the last for bf16."
        ),
    ),
    Question(
        id="kv_q_sequence",
        lesson=LESSON,
        points=1,
        draw=lambda rng: {**_draw_model(rng), "n_tokens": int(rng.choice([8192, 16384, 32768]))},
        text=lambda p: (
            f"The cache of one sequence of {p['n_tokens']:,} tokens, for {_sizes(p)}, "
            "in bf16: how many GiB? (1 GiB = 2³⁰ B; an answer in GB is fine if you write GB.)"
        ),
        answer=lambda p: kv_cache_bytes(_config(p), p["n_tokens"]),
        unit="GiB",
        slips={
            "n_heads in place of n_kv_heads: only KV heads are cached": lambda p: (
                kv_cache_bytes(_config(p), p["n_tokens"]) * p["n_heads"] / p["n_kv_heads"]
            ),
            "8k taken as 8,000: the digits of KiB and of thousands were mixed": lambda p: (
                kv_cache_bytes(_config(p), p["n_tokens"] * 1000 // 1024)
            ),
            "the factor 2 is missing: keys and values are both kept": lambda p: (
                kv_cache_bytes(_config(p), p["n_tokens"]) / 2
            ),
        },
        why=lambda p: (
            f"{_per_token(p):,} B · {p['n_tokens']:,} = "
            f"{kv_cache_bytes(_config(p), p['n_tokens']):,} B. Divide by 2³⁰ for GiB."
        ),
    ),
    Question(
        id="kv_q_fits",
        lesson=LESSON,
        points=1,
        draw=_draw_fit,
        text=lambda p: (
            f"A device has {p['memory_gb']} GB (10⁹ B each), the weights take "
            f"{p['weight_gb']} GB, and 10 % of the device's memory must stay free. The model has "
            f"{_sizes(p)}; the cache is bf16. How many sequences of {p['n_tokens']:,} tokens fit?"
        ),
        answer=lambda p: float(_fits(p)),
        tolerance=1e-6,
        slips={
            "rounded up: what fits by half does not fit": lambda p: float(_fits(p) + 1),
        },
        why=lambda p: (
            f"({p['memory_gb']} · 0.9 − {p['weight_gb']}) · 10⁹ B of room, divided by "
            f"{_per_token(p) * p['n_tokens']:,} B a sequence, rounded down: {_fits(p)}."
        ),
    ),
    Question(
        id="kv_q_rows",
        lesson=LESSON,
        points=1,
        draw=lambda rng: {"n": int(rng.integers(15, 60))},
        text=lambda p: (
            f"{p['n']} tokens are decoded in one attention layer without a cache. How "
            "many rows go through the key and the value projections, both counted?"
        ),
        answer=lambda p: float(kv_rows_uncached(p["n"])),
        tolerance=1e-6,
        slips={
            "that is with a cache: 2n": lambda p: float(kv_rows_cached(p["n"])),
            "keys or values alone: both are projected": lambda p: kv_rows_uncached(p["n"]) / 2,
            "queries were counted too; of those, one a step is needed": lambda p: (
                kv_rows_uncached(p["n"]) * 1.5
            ),
            "the whole sequence at each step: the prefix has only t rows in step t": lambda p: (
                2.0 * p["n"] ** 2
            ),
        },
        why=lambda p: (
            f"2(1 + 2 + … + {p['n']}) = {p['n']} · {p['n'] + 1} = "
            f"{kv_rows_uncached(p['n']):,}; with a cache {kv_rows_cached(p['n'])}."
        ),
    ),
    Question(
        id="kv_q_steps",
        lesson=LESSON,
        points=1,
        draw=lambda rng: {"n": int(rng.integers(120, 900))},
        text=lambda p: (
            f"An answer has {p['n']} tokens. How many decode steps does it take after the prefill?"
        ),
        answer=lambda p: float(decode_steps(p["n"])),
        tolerance=1e-6,
        slips={
            "one too many: the prefill already gives the first token": lambda p: float(p["n"]),
        },
        why=lambda p: (
            f"The prefill's last logits give token 1; {decode_steps(p['n'])} steps give the others."
        ),
    ),
    Question(
        id="kv_q_halve",
        lesson=LESSON,
        points=1,
        draw=lambda rng: {
            "weight_gb": int(rng.choice([14, 16, 26])),
            "kv_gb": int(rng.integers(6, 40)),
        },
        text=lambda p: (
            f"A decode step reads {p['weight_gb']} GB of weights and {p['kv_gb']} GB of "
            "cache, and reading is what bounds it. The cache is stored in 8 bits in place of 16. "
            "How many times as fast can the step become?"
        ),
        answer=_speed_gain,
        unit="x",
        slips={
            "half the cache is not half the step: the weights are read as before": lambda p: 2.0,
            "the gain is a ratio of bytes before to bytes after": lambda p: 1 / _speed_gain(p),
        },
        why=lambda p: (
            f"({p['weight_gb']} + {p['kv_gb']}) / ({p['weight_gb']} + {p['kv_gb'] / 2:g})"
            f" = {_speed_gain(p):.3f}. It is the number of sequences, not the speed, that doubles."
        ),
    ),
    Question(
        id="kv_q_query",
        lesson=LESSON,
        points=1,
        text=lambda p: "Why are keys and values kept, but not queries?",
        choices=(
            "a past query is never used again",
            "queries are far larger than keys",
            "queries would change at each step",
            "queries are the same in every layer",
        ),
        why=lambda p: (
            "A query is asked once, by its own token. Keys and values answer all later queries."
        ),
    ),
    Question(
        id="kv_q_causal",
        lesson=LESSON,
        points=1,
        text=lambda p: "What makes a cached key of layer 5 still right after new tokens arrived?",
        choices=(
            "earlier layers never let the past see later tokens",
            "a key is a projection, and projections are linear",
            "positions are added to the keys after the softmax",
            "rotary positions make each key unique to its token",
        ),
        notes={
            "a key is a projection, and projections are linear": "linear maps of changed inputs "
            "change as well; what matters is that the inputs stay",
        },
        why=lambda p: (
            "With a causal mask the input of layer 5 at a past position depends on that "
            "position and those before it only."
        ),
    ),
    Question(
        id="kv_q_growth",
        lesson=LESSON,
        points=1,
        text=lambda p: "What does leaving out the cache cost, in key and value projections?",
        choices=(
            "O(t) rows in step t, and O(n²) over n steps",
            "O(t²) rows in step t, and O(n³) over n steps",
            "O(1) rows in step t, and O(n) over n steps",
            "O(log t) rows in step t, O(n log n) in all",
        ),
        notes={
            "O(t²) rows in step t, and O(n³) over n steps": "t² is the number of scores when the "
            "whole attention matrix is computed again, not of projected rows",
        },
        why=lambda p: "Step t projects t keys and t values; over the run that is n(n + 1).",
    ),
)
