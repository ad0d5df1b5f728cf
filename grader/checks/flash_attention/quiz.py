"""Lesson 06: what to predict before any code, and the knowledge check after it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from grader.checks.flash_attention.lesson import LESSON
from inferlab.flash_attention import (
    count_tiles,
    flash_traffic_bytes,
    largest_block_q,
    on_chip_numbers,
    score_matrix_bytes,
)
from labkit.interview.questions import Question
from labkit.predictions import Prediction

MEASURED_S, BLOCK, D_HEAD = 4096, 128, 64  # the longest context that the lesson measures


def _memory_ratio() -> float:
    """Score matrix over the tiles of one step, float32, at the measured size."""
    whole = score_matrix_bytes(MEASURED_S, MEASURED_S, bytes_per_number=4)
    return whole / (4 * on_chip_numbers(BLOCK, BLOCK, D_HEAD))


def _traffic_growth() -> float:
    """Bytes moved by the tiled loop when the context doubles from 8,192, d_head 128."""
    long, short = (
        flash_traffic_bytes(S, S, 128, block_q=96, block_k=64, causal=False) for S in (16384, 8192)
    )
    return long / short


PREDICTIONS = (
    Prediction(
        id="fa_scores",
        question="Attention over 8,192 tokens, 32 heads, 16-bit numbers. How many bytes do the "
        "scores of **one layer** take, if they are all kept at once?",
        unit="GB",
        answer=lambda: float(score_matrix_bytes(8192, 8192, 32)),
        because="Each head has 8,192 · 8,192 = 67,108,864 scores: 134 MB. Times 32 heads: "
        "4.295 GB, and that is one layer of one sequence.",
    ),
    Prediction(
        id="fa_exact",
        question="A loop computes attention tile by tile and never holds all scores of a row. "
        "Compared with the plain way, in float32, the results are",
        choices=(
            "the same, bit for bit",
            "the same but for rounding",
            "an approximation, about 1 % off",
        ),
        answer=lambda: "the same but for rounding",
        because="The algebra is exact: nothing is dropped. But sums are added up in another order, "
        "and floating-point sums depend on the order. So: equal within a tolerance, never ==.",
    ),
    Prediction(
        id="fa_double",
        question="With tiles of a fixed size, the context doubles from 8,192 to 16,384 tokens. How "
        "many times as many bytes does attention move between chip and memory?",
        unit="x",
        answer=_traffic_growth,
        because="Twice as many blocks of queries, and each of them reads twice as many keys and "
        "values: 4 times (a little less, as q and the output only double). What grows in a line is "
        "the memory that is held, not the traffic.",
    ),
    Prediction(
        id="fa_memory",
        question="One head of width 64, 4,096 tokens, float32, tiles of 128 queries by 128 keys. "
        "How many times as many bytes does the whole score matrix take as all that one step of the "
        "loop must hold (tiles of q, k, v, the output, and one tile of scores)?",
        unit="x",
        answer=_memory_ratio,
        because="The matrix has 16.8 million numbers; the tiles have about 49,000. The peaks "
        "that the lesson measures are larger on both sides: each way makes temporary arrays too.",
    ),
)


# ---- the knowledge check ------------------------------------------------------------------------


def _draw_scores(rng: np.random.Generator) -> dict[str, Any]:
    return {
        "T": int(rng.choice([4096, 8192, 16384, 32768])),
        "n_heads": int(rng.choice([24, 28, 40, 64])),
    }


def _draw_update(rng: np.random.Generator) -> dict[str, Any]:
    old = int(rng.integers(1, 5))
    return {
        "old_max": old,
        "old_sum": float(rng.choice([1.5, 2.0, 2.5, 3.0])),
        "high": old + int(rng.integers(1, 3)),
        "low": old - 1,
    }


def _new_sum(p: dict[str, Any], factor: float | None = None, base: float | None = None) -> float:
    new = p["high"] if base is None else base
    factor = math.exp(p["old_max"] - p["high"]) if factor is None else factor
    return p["old_sum"] * factor + math.exp(p["high"] - new) + math.exp(p["low"] - new)


def _draw_merge(rng: np.random.Generator) -> dict[str, Any]:
    out_a = int(rng.integers(1, 9))
    sum_a = int(rng.integers(2, 9))
    return {
        "out_a": out_a,
        "out_b": out_a + int(rng.integers(4, 12)),
        "sum_a": sum_a,
        "sum_b": sum_a + int(rng.integers(3, 20)),
    }


def _merged(p: dict[str, Any], weight_a: float, weight_b: float) -> float:
    return (weight_a * p["out_a"] + weight_b * p["out_b"]) / (weight_a + weight_b)


def _draw_tiles(rng: np.random.Generator) -> dict[str, Any]:
    return {"block": int(rng.choice([64, 128])), "n": int(rng.integers(7, 40))}


def _skipped(p: dict[str, Any]) -> int:
    size = p["n"] * p["block"]
    return count_tiles(size, size, p["block"], p["block"])[2]


def _draw_chip(rng: np.random.Generator) -> dict[str, Any]:
    """Drawn until each slip gives another number."""
    while True:
        p = {
            "kib": int(rng.integers(12, 52)) * 4,
            "d_head": int(rng.choice([64, 128])),
            "block_k": int(rng.choice([32, 64])),
        }
        if (p["kib"] * 512 - 2 * p["block_k"] * p["d_head"]) < 32 * (2 * p["d_head"] + 66):
            continue
        slips = {_fits(p), _exact(p), _fits(p, acc=False), _fits(p, kept=False)}
        if len(slips) == 4:
            return p


def _exact(p: dict[str, Any]) -> int:
    free = p["kib"] * 512 - 2 * p["block_k"] * p["d_head"]
    return int(free // (2 * p["d_head"] + p["block_k"] + 2))


def _fits(p: dict[str, Any], acc: bool = True, kept: bool = True) -> int:
    if acc and kept:
        return largest_block_q(p["kib"] * 1024, p["d_head"], p["block_k"])
    free = p["kib"] * 512 - (2 * p["block_k"] * p["d_head"] if kept else 0)
    per_query = (2 if acc else 1) * p["d_head"] + p["block_k"] + 2
    return int(free // per_query // 16 * 16)


QUESTIONS = (
    Question(
        id="fa_q_scores",
        lesson=LESSON,
        points=1,
        draw=_draw_scores,
        text=lambda p: (
            f"A prefill of {p['T']:,} tokens, {p['n_heads']} query heads, 16-bit numbers. How many "
            "bytes would the score matrices of one layer take? Write the unit, such as GB."
        ),
        answer=lambda p: score_matrix_bytes(p["T"], p["T"], p["n_heads"]),
        unit="GB",
        slips={
            "one head only: each query head has a matrix": lambda p: score_matrix_bytes(
                p["T"], p["T"]
            ),
            "one number for each token: a score belongs to a query AND a key": lambda p: (
                2 * p["T"] * p["n_heads"]
            ),
            "8k taken as 8,000: the digits of KiB and of thousands were mixed": lambda p: (
                score_matrix_bytes(p["T"] * 1000 // 1024, p["T"] * 1000 // 1024, p["n_heads"])
            ),
            "numbers were counted, not bytes: 16 bits are 2 bytes": lambda p: (
                score_matrix_bytes(p["T"], p["T"], p["n_heads"]) / 2
            ),
        },
        why=lambda p: (
            f"{p['T']:,}² · {p['n_heads']} · 2 B = "
            f"{score_matrix_bytes(p['T'], p['T'], p['n_heads']):,} B."
        ),
    ),
    Question(
        id="fa_q_update",
        lesson=LESSON,
        points=1,
        draw=_draw_update,
        text=lambda p: (
            f"So far a row has the running maximum {p['old_max']} and the running sum "
            f"{p['old_sum']:g}. The next block has the two scores {p['high']} and {p['low']}. What "
            "is the running sum after it? (three digits)"
        ),
        answer=_new_sum,
        slips={
            "the old sum must be rescaled to the new maximum": lambda p: _new_sum(p, factor=1.0),
            "the factor is upside down: exp(old maximum - new maximum) is below 1": lambda p: (
                _new_sum(p, factor=math.exp(p["high"] - p["old_max"]))
            ),
            "the new terms are relative to the new maximum, not to the old one": lambda p: _new_sum(
                p, factor=1.0, base=p["old_max"]
            ),
        },
        why=lambda p: (
            f"The maximum becomes {p['high']}: {p['old_sum']:g} · exp({p['old_max']} - {p['high']})"
            f" + 1 + exp({p['low']} - {p['high']}) = {_new_sum(p):.4g}."
        ),
    ),
    Question(
        id="fa_q_merge",
        lesson=LESSON,
        points=1,
        draw=_draw_merge,
        text=lambda p: (
            f"Two GPUs attend to two halves of the keys. The first returns the output "
            f"{p['out_a']} with log-sum-exp ln {p['sum_a']}, the second {p['out_b']} with "
            f"ln {p['sum_b']}. What is the attention output over all keys?"
        ),
        answer=lambda p: _merged(p, p["sum_a"], p["sum_b"]),
        slips={
            "a plain average: halves of equal length may have unequal weight": lambda p: _merged(
                p, 1, 1
            ),
            "the weights are swapped": lambda p: _merged(p, p["sum_b"], p["sum_a"]),
            "weighted by the log-sum-exp itself; the weights are its exponentials": lambda p: (
                _merged(p, math.log(p["sum_a"]), math.log(p["sum_b"]))
            ),
        },
        why=lambda p: (
            f"({p['sum_a']} · {p['out_a']} + {p['sum_b']} · {p['out_b']}) / "
            f"{p['sum_a'] + p['sum_b']} = {_merged(p, p['sum_a'], p['sum_b']):.4g}."
        ),
    ),
    Question(
        id="fa_q_skipped",
        lesson=LESSON,
        points=1,
        draw=_draw_tiles,
        text=lambda p: (
            f"A causal prefill of {p['n'] * p['block']:,} tokens, tiles of {p['block']} queries by "
            f"{p['block']} keys. How many tiles can be skipped altogether?"
        ),
        answer=lambda p: float(_skipped(p)),
        tolerance=1e-6,
        slips={
            "half of all tiles: those on the diagonal must be computed": lambda p: p["n"] ** 2 / 2,
            "that is the number of tiles that must be computed": lambda p: (
                p["n"] * (p["n"] + 1) / 2
            ),
            "that is all tiles; only those above the diagonal are skipped": lambda p: float(
                p["n"] ** 2
            ),
        },
        why=lambda p: (
            f"{p['n']} blocks each way; above the diagonal lie {p['n']} · {p['n'] - 1} / 2 = "
            f"{_skipped(p):,} tiles."
        ),
    ),
    Question(
        id="fa_q_longer",
        lesson=LESSON,
        points=1,
        draw=lambda rng: {"factor": int(rng.integers(3, 9)), "S": int(rng.choice([4096, 8192]))},
        text=lambda p: (
            f"FlashAttention without a mask: the context grows from {p['S']:,} tokens to "
            f"{p['factor'] * p['S']:,}; the tiles stay as they are. How many times as many bytes "
            "of k and v are loaded?"
        ),
        answer=lambda p: float(p["factor"] ** 2),
        unit="x",
        tolerance=0.05,  # where blocks do not divide the context it is a little less
        slips={
            "linear is the memory that is held, not the traffic": lambda p: float(p["factor"]),
            "the traffic does grow: more blocks of queries, each over more keys": lambda p: 1.0,
            "cubic is too much: blocks of queries times keys": lambda p: float(p["factor"] ** 3),
        },
        why=lambda p: (
            f"{p['factor']} times as many blocks of queries, each reads {p['factor']} times as many"
            f" keys: {p['factor'] ** 2}x."
        ),
    ),
    Question(
        id="fa_q_block",
        lesson=LESSON,
        points=1,
        draw=_draw_chip,
        text=lambda p: (
            f"{p['kib']} KiB on chip, 16-bit numbers, d_head {p['d_head']}, block_k "
            f"{p['block_k']}. On chip at once: q and acc (block_q rows), k and v (block_k rows), "
            "one tile of scores, and two numbers for every query. What is the largest block_q that "
            "is a multiple of 16?"
        ),
        answer=lambda p: float(_fits(p)),
        tolerance=1e-6,
        slips={
            "not rounded down to a multiple of 16": lambda p: float(_exact(p)),
            "acc is forgotten: it is as large as q": lambda p: float(_fits(p, acc=False)),
            "k and v are forgotten: they take memory first": lambda p: float(_fits(p, kept=False)),
        },
        why=lambda p: (
            f"{p['kib'] * 512:,} numbers, less 2 · {p['block_k']} · {p['d_head']} for k and v, "
            f"divided by 2 · {p['d_head']} + {p['block_k']} + 2: {_exact(p)}, so {_fits(p)}."
        ),
    ),
    Question(
        id="fa_q_splits",
        lesson=LESSON,
        points=1,
        draw=lambda rng: {
            "gb": int(rng.integers(11, 40)) / 10,
            "n": int(rng.choice([4, 8, 16])),
        },
        text=lambda p: (
            f"One sequence, one decode step: the cache of all layers is {p['gb']:g} GB. It is "
            f"attended to in {p['n']} splits at once (flash-decoding). How many GB of keys and "
            "values are read in this step?"
        ),
        answer=lambda p: p["gb"] * 1e9,
        unit="GB",
        slips={
            "splitting shares the reading out, it does not make it less": lambda p: (
                p["gb"] * 1e9 / p["n"]
            ),
            "each split reads its own keys only, not all of them": lambda p: p["gb"] * 1e9 * p["n"],
        },
        why=lambda p: (
            f"Every key and value is read once, by one split or another: {p['gb']:g} GB. The gain "
            "is that more of the GPU works at it, not that fewer bytes move."
        ),
    ),
    Question(
        id="fa_q_what",
        lesson=LESSON,
        points=1,
        text=lambda p: "Which of these is true of FlashAttention?",
        choices=(
            "the scores are used on chip and never stored",
            "small scores are dropped to save arithmetic",
            "the KV cache becomes smaller by a constant",
            "attention takes time linear in the context",
        ),
        notes={
            "small scores are dropped to save arithmetic": "nothing is dropped: it is exact",
            "the KV cache becomes smaller by a constant": "the cache stays as it is; fewer KV "
            "heads, fewer bits or a window make it smaller",
            "attention takes time linear in the context": "every query still meets every key it "
            "may see: quadratic",
        },
        why=lambda p: (
            "It is an exact algorithm that moves fewer bytes. Arithmetic, cache and result stay."
        ),
    ),
    Question(
        id="fa_q_linear",
        lesson=LESSON,
        points=1,
        text=lambda p: "S is the context. What does going from plain to tiled attention change?",
        choices=(
            "extra memory from S² to S; traffic stays S²",
            "both extra memory and traffic from S² to S",
            "traffic from S² to S; extra memory stays S²",
            "arithmetic from S² to S; traffic stays S²",
        ),
        notes={
            "both extra memory and traffic from S² to S": "traffic is Θ(S² d² / M): smaller by a "
            "factor of order M / d², still quadratic",
        },
        why=lambda p: (
            "What is held grows with S. Traffic is Θ(S² d² / M) for M numbers on chip, and the "
            "arithmetic is what it was."
        ),
    ),
    Question(
        id="fa_q_equal",
        lesson=LESSON,
        points=1,
        text=lambda p: "How should a test compare tiled attention with plain attention?",
        choices=(
            "within a tolerance: sums differ in order",
            "bit for bit: the algorithm is exact",
            "by eye only: results are random",
            "within 1 %: it is an approximation",
        ),
        notes={
            "bit for bit: the algorithm is exact": "exact in real arithmetic; in floating point "
            "(a + b) + c and a + (b + c) differ in the last bits",
        },
        why=lambda p: (
            "Exact in real arithmetic, not bit-exact: about 1e-7 relative in float32, 4e-3 in bf16."
        ),
    ),
)
