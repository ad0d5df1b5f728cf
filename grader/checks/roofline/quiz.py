"""Lesson 01: the knowledge check."""

from __future__ import annotations

from typing import Any

import numpy as np

from grader.checks.roofline.lesson import LESSON
from inferlab.config import ModelConfig
from inferlab.params import attention_params
from inferlab.roofline import matmul_flops
from labkit.interview.questions import Question

Params = dict[str, Any]


def _draw_product(rng: np.random.Generator) -> Params:
    return {
        "n_rows": int(rng.choice([48, 96, 200, 384])),
        "d_in": int(rng.choice([2048, 3072, 5120])),
        "d_out": int(rng.choice([8192, 11008, 14336])),
    }


def _flops(p: Params) -> float:
    return float(matmul_flops(p["n_rows"], p["d_in"], p["d_out"]))


def _draw_sheet(rng: np.random.Generator) -> Params:
    return {
        "dense": int(rng.integers(200, 1200)),
        "tb_s": float(rng.choice([1.2, 1.6, 2.4, 3.2, 4.8])),
    }


def _ridge(p: Params) -> float:
    return p["dense"] / p["tb_s"]


def _draw_decode(rng: np.random.Generator) -> Params:
    return {
        "billions": int(rng.choice([3, 7, 13, 32])),
        "tb_s": float(rng.choice([0.9, 1.6, 2.4, 4.8])),
        "tflops": int(rng.choice([200, 360, 720])),
        "bytes": int(rng.choice([1, 2])),
    }


def _rate(p: Params) -> float:
    return p["tb_s"] * 1e12 / (p["billions"] * 1e9 * p["bytes"])


def _draw_users(rng: np.random.Generator) -> Params:
    return {
        "weights_gb": int(rng.choice([14, 16, 26])),
        "cache_gb": float(rng.choice([0.3, 0.5, 0.8, 1.2])),
        "users": int(rng.choice([12, 20, 36, 60])),
        "gb_s": int(rng.choice([1600, 2400, 3200])),
    }


def _aggregate(p: Params) -> float:
    return p["users"] * p["gb_s"] / (p["weights_gb"] + p["users"] * p["cache_gb"])


def _draw_attention(rng: np.random.Generator) -> Params:
    n_kv_heads = int(rng.choice([2, 4, 8]))
    n_heads = n_kv_heads * int(rng.choice([3, 5, 7]))
    d_head = int(rng.choice([64, 128]))
    d_model = n_heads * d_head * int(rng.choice([3, 5])) // 4
    return {"n_heads": n_heads, "n_kv_heads": n_kv_heads, "d_head": d_head, "d_model": d_model}


def _attention(p: Params, **other: int) -> float:
    sizes = p | other
    config = ModelConfig(
        1,
        sizes["d_model"],
        sizes["n_heads"],
        sizes["n_kv_heads"],
        sizes["d_head"],
        sizes["d_model"],
        1000,
    )
    return float(attention_params(config))


def _draw_two_times(rng: np.random.Generator) -> Params:
    reads = float(rng.integers(30, 90)) / 10
    computes = reads * float(rng.choice([0.3, 0.6, 1.8, 3.1]))
    return {"reads": reads, "computes": round(computes, 1)}


def _gain(p: Params) -> float:
    weights, cache = p["weights_gb"], p["users"] * p["cache_gb"]
    return (weights + cache) / (weights / 2 + cache)


QUESTIONS = (
    Question(
        id="rl_q_product",
        lesson=LESSON,
        points=1,
        draw=_draw_product,
        text=lambda p: (
            f"{p['n_rows']} rows of {p['d_in']:,} numbers are multiplied by a matrix of "
            f"{p['d_in']:,} × {p['d_out']:,}. How many GFLOP is that?"
        ),
        answer=_flops,
        unit="GFLOP",
        slips={
            "a multiply and an add are two operations": lambda p: _flops(p) / 2,
            "every row is multiplied by every weight: n_rows counts": lambda p: (
                _flops(p) / p["n_rows"]
            ),
        },
        why=lambda p: f"2 · {p['n_rows']} · {p['d_in']:,} · {p['d_out']:,} = {_flops(p):,.0f}.",
    ),
    Question(
        id="rl_q_ridge",
        lesson=LESSON,
        points=1,
        draw=_draw_sheet,
        text=lambda p: (
            f"A data sheet prints: memory bandwidth {p['tb_s']} TB/s; bf16 {2 * p['dense']:,} "
            "TFLOP/s *with sparsity*, half of that without. Your weights are dense. From which "
            "arithmetic intensity on is the arithmetic the limit?"
        ),
        answer=_ridge,
        unit="FLOP/B",
        slips={
            "the peak with sparsity: only weights that are half zeros reach it": lambda p: (
                2 * _ridge(p)
            ),
            "upside down: that is bytes for each FLOP": lambda p: 1 / _ridge(p),
            "TFLOP/s over GB/s: the prefixes differ by 1,000": lambda p: _ridge(p) / 1000,
        },
        why=lambda p: f"{p['dense']}e12 FLOP/s / {p['tb_s']}e12 B/s = {_ridge(p):.1f} FLOP/B.",
    ),
    Question(
        id="rl_q_decode",
        lesson=LESSON,
        points=1,
        draw=_draw_decode,
        text=lambda p: (
            f"{p['billions']} billion weights of {p['bytes']} byte{'s' * (p['bytes'] > 1)} each, "
            f"on a device of {p['tflops']} TFLOP/s and {p['tb_s']} TB/s. One user, short context. "
            "How many tokens a second at the most?"
        ),
        answer=_rate,
        unit="tok/s",
        slips={
            "peak FLOP/s over 2 FLOPs a weight: that many bytes never arrive": lambda p: (
                p["tflops"] * 1e12 / (2e9 * p["billions"])
            ),
            "bits, not bytes, were divided: a weight's size is given in bytes": lambda p: (
                _rate(p) / 8
            ),
            "BW / W * 1e9 read from left to right: divide by the whole product": lambda p: (
                p["tb_s"] * 1e12 / (p["billions"] * p["bytes"]) * 1e9
            ),
        },
        why=lambda p: (
            f"Each token reads {p['billions'] * p['bytes']} GB: {p['tb_s'] * 1e3:,.0f} GB/s / "
            f"{p['billions'] * p['bytes']} GB = {_rate(p):.1f} a second. The peak is not in it."
        ),
    ),
    Question(
        id="rl_q_aggregate",
        lesson=LESSON,
        points=1,
        draw=_draw_users,
        text=lambda p: (
            f"{p['users']} users share each decode step. The weights take {p['weights_gb']} GB, "
            f"each user's keys and values {p['cache_gb']} GB, the memory gives "
            f"{p['gb_s']:,} GB/s and is the limit. How many tokens a second do all users get "
            "**together**, at the most?"
        ),
        answer=_aggregate,
        unit="tok/s",
        slips={
            "that is what one user gets; all of them get a token in each step": lambda p: (
                _aggregate(p) / p["users"]
            ),
            "the keys and values are left out: they are read at every step": lambda p: (
                p["users"] * p["gb_s"] / p["weights_gb"]
            ),
            "keys and values of one user: each has its own": lambda p: (
                p["users"] * p["gb_s"] / (p["weights_gb"] + p["cache_gb"])
            ),
            "the weights are read once for all users, not once for each": lambda p: (
                p["gb_s"] / (p["weights_gb"] + p["cache_gb"])
            ),
        },
        why=lambda p: (
            f"A step reads {p['weights_gb']} + {p['users']} · {p['cache_gb']} GB = "
            f"{p['weights_gb'] + p['users'] * p['cache_gb']:.1f} GB, and gives {p['users']} tokens."
        ),
    ),
    Question(
        id="rl_q_attention",
        lesson=LESSON,
        points=1,
        draw=_draw_attention,
        text=lambda p: (
            f"hidden_size {p['d_model']:,}, {p['n_heads']} attention heads, {p['n_kv_heads']} "
            f"key-value heads, head_dim {p['d_head']}, no biases. How many weights has the "
            "attention of one layer?"
        ),
        answer=_attention,
        tolerance=1e-6,
        slips={
            "keys and values have n_kv_heads heads, not n_heads": lambda p: _attention(
                p, n_kv_heads=p["n_heads"]
            ),
            "four square matrices of hidden_size: read heads and head_dim": lambda p: (
                4.0 * p["d_model"] ** 2
            ),
            "the output matrix is forgotten": lambda p: (
                _attention(p) - p["d_model"] * p["n_heads"] * p["d_head"]
            ),
        },
        why=lambda p: (
            f"{p['d_model']:,} · {p['d_head']} · (2 · {p['n_heads']} + 2 · {p['n_kv_heads']}) = "
            f"{_attention(p):,.0f}: queries and output, keys and values."
        ),
    ),
    Question(
        id="rl_q_prompt",
        lesson=LESSON,
        points=1,
        draw=lambda rng: {"ridge": int(rng.choice([160, 220, 300, 420])), "bits": 8},
        text=lambda p: (
            f"A device has its ridge at {p['ridge']} FLOP/byte in bf16. A model's weights are "
            "stored in 8 bits and turned into bf16 for the arithmetic. From which number of prompt "
            "tokens on is the prefill compute-bound? Count the reading of the weights alone."
        ),
        answer=lambda p: p["ridge"] / 2,
        unit="tok",
        slips={
            "that holds for 2-byte weights: here a token does 2 FLOPs for each single byte": (
                lambda p: float(p["ridge"])
            ),
            "a multiply and an add are two operations": lambda p: 2.0 * p["ridge"],
        },
        why=lambda p: (
            f"S tokens do 2 S FLOPs for each byte of weights; 2 S = {p['ridge']} gives S = "
            f"{p['ridge'] / 2:g}. Fewer bytes a weight, fewer tokens needed."
        ),
    ),
    Question(
        id="rl_q_bound",
        lesson=LESSON,
        points=1,
        draw=_draw_two_times,
        text=lambda p: (
            f"A step needs {p['reads']:.1f} ms to read its bytes and {p['computes']:.1f} ms to do "
            "its arithmetic. What is the least time it can take?"
        ),
        answer=lambda p: max(p["reads"], p["computes"]) / 1e3,
        unit="ms",
        slips={
            "the sum supposes that reading and computing take turns": lambda p: (
                (p["reads"] + p["computes"]) / 1e3
            ),
            "the smaller of the two: both must be done": lambda p: (
                min(p["reads"], p["computes"]) / 1e3
            ),
        },
        why=lambda p: (
            "At best the two overlap perfectly: the longer one remains. The sum is what no overlap "
            "at all would take, at most twice as much."
        ),
    ),
    Question(
        id="rl_q_halve",
        lesson=LESSON,
        points=1,
        draw=_draw_users,
        text=lambda p: (
            f"A decode step of {p['users']} users reads {p['weights_gb']} GB of weights and "
            f"{p['cache_gb']} GB of keys and values for each user. The weights are stored in half "
            "the bytes. How many times as fast can the step become?"
        ),
        answer=_gain,
        unit="x",
        slips={
            "twice only where nothing but weights is read": lambda p: 2.0,
            "bytes before over bytes after, not the other way round": lambda p: 1 / _gain(p),
            "one user's keys and values: each has its own": lambda p: (
                (p["weights_gb"] + p["cache_gb"]) / (p["weights_gb"] / 2 + p["cache_gb"])
            ),
        },
        why=lambda p: (
            f"({p['weights_gb']} + {p['users'] * p['cache_gb']:.1f}) / ({p['weights_gb'] / 2:g} + "
            f"{p['users'] * p['cache_gb']:.1f}) = {_gain(p):.3f}: the caches stay as they were."
        ),
    ),
    Question(
        id="rl_q_beyond",
        lesson=LESSON,
        points=1,
        text=lambda p: "A decode step is compute-bound already. What does a larger batch do?",
        choices=(
            "each step takes longer, the sum of tokens/s stays",
            "each step takes as long, the sum of tokens/s grows",
            "each step takes less time, each user is faster",
            "each step takes longer, the sum of tokens/s halves",
        ),
        notes={
            "each step takes as long, the sum of tokens/s grows": "that is left of the ridge, "
            "while the same reading serves more users",
            "each step takes less time, each user is faster": "a batch never helps one user's "
            "latency: at best it does not hurt",
        },
        why=lambda p: (
            "Twice the sequences, twice the arithmetic, twice the time: throughput has reached its "
            "roof, and every user waits longer. Latency never gains from a batch."
        ),
    ),
    Question(
        id="rl_q_never",
        lesson=LESSON,
        points=1,
        text=lambda p: (
            "At long contexts, decoding stays memory-bound however many users share a step. Why?"
        ),
        choices=(
            "each user's own keys and values are read as well",
            "the weights are read anew for every single user",
            "attention does more arithmetic than the memory can feed",
            "a larger batch lowers the peak of the arithmetic units",
        ),
        notes={
            "the weights are read anew for every single user": "they are read once for all, which "
            "is what a batch gains",
            "attention does more arithmetic than the memory can feed": "more arithmetic for each "
            "byte would move it towards the compute side",
        },
        why=lambda p: (
            "What a user adds to the reading, the cache, takes longer than what they add to the "
            "computing. More users add more of both, in the same ratio."
        ),
    ),
    Question(
        id="rl_q_thirds",
        lesson=LESSON,
        points=1,
        text=lambda p: (
            "“One third of a layer's weights is attention, two thirds are MLP.” When is it so?"
        ),
        choices=(
            "no grouped heads, a plain MLP of 4 · d_model",
            "8 KV heads, a gated MLP of 3.5 · d_model",
            "in every transformer, of whatever shape",
            "only for models of 7 billion or more",
        ),
        notes={
            "8 KV heads, a gated MLP of 3.5 · d_model": "that is Llama-3-8B: 19 % and 81 %",
        },
        why=lambda p: (
            "4 d² of attention and 2 · 4 d² of MLP. Grouped heads shrink the first, gates and wide "
            "MLPs grow the second: Llama-3-8B has 19 % and 81 %."
        ),
    ),
)
