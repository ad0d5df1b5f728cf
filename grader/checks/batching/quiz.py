"""Lesson 10: what to predict before any code, and the knowledge check after it."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from grader.checks.batching.lesson import LESSON
from inferlab.batching import (
    decode_speeds,
    exponential_gain,
    hit_tokens,
    largest_chunk,
    reread_tokens,
)
from inferlab.data import model_preset
from inferlab.paging import pages_needed
from labkit.interview.questions import Question
from labkit.predictions import Prediction

BATCH_TOKENS = 24  # context at which the lesson times the real engine at batch 1, 4 and 16


@lru_cache(maxsize=1)
def batch_gain_bound() -> float:
    """Bound of the total speed at batch 16 over that at batch 1, on this machine, SmolLM2-135M."""
    from labkit.measure.timing import matmul_peak, read_bandwidth

    config = model_preset("smollm2-135m")
    rates = (read_bandwidth(), matmul_peak(), 4)
    one, many = (decode_speeds(config, BATCH_TOKENS, n, *rates)[1] for n in (1, 16))
    return many / one


PREDICTIONS = (
    Prediction(
        id="ba_gain",
        question="A server has 32 seats. Lengths of answers are random (exponentially "
        "distributed: many short, a few very long). In static batching a batch is done "
        "when its **longest** answer is. How many times as many tokens a step does it "
        "give if every seat is filled again at once?",
        unit="x",
        answer=lambda: exponential_gain(32),
        because="The longest of 32 is 1 + 1/2 + … + 1/32 = 4.06 times the mean. With equal lengths "
        "the gain would be 1: it is the spread of the lengths that decides.",
    ),
    Prediction(
        id="ba_batch",
        question="The engine of this course decodes for 16 users in one pass in place of 1, on "
        "this machine, with a model of 135 million parameters. How many times as many tokens "
        "a second, all users together?",
        unit="x",
        answer=batch_gain_bound,
        because="The weights are read once for all 16, so it is 16 times, until arithmetic takes "
        "longer than reading. The computed number is the ratio of the two bounds on this machine.",
    ),
    Prediction(
        id="ba_hit",
        question="A prompt of 1,008 tokens comes a second time, and all of it is in the prefix "
        "cache, in pages of 16. How many of its tokens need not be computed?",
        unit="tok",
        answer=lambda: float(hit_tokens(1008, 1008, 16)),
        because="The last token must be computed, since its logits give the answer's first token; "
        "and pages are shared whole. 1,007 tokens have 62 full pages: 992.",
    ),
    Prediction(
        id="ba_latency",
        question="A server decodes at a batch where arithmetic, not reading, is the limit. Now the "
        "batch is doubled. What do the users see?",
        choices=(
            "each waits half as long for a token",
            "each waits as long for a token as before",
            "each waits twice as long for a token",
        ),
        answer=lambda: "each waits twice as long for a token",
        because="Twice the arithmetic at full speed takes twice the time; throughput stays as it "
        "was. A larger batch never makes anybody's token come sooner.",
    ),
)

# ---- what the questions count -------------------------------------------------------------------


def _step_s(p: dict[str, Any], caches: float | None = None) -> float:
    n = p["B"] if caches is None else caches
    return (p["weight_gb"] + n * p["kv_gb"]) * 1e9 / (p["bandwidth_tb"] * 1e12)


def _draw_batch(rng: np.random.Generator) -> dict[str, Any]:
    return {
        "B": int(rng.integers(6, 40)),
        "weight_gb": int(rng.choice([14, 15, 16, 26])),
        "kv_gb": float(rng.choice([0.25, 0.5, 0.75, 1.0])),
        "bandwidth_tb": float(rng.choice([2.0, 3.0, 3.35, 4.8])),
    }


def _draw_lengths(rng: np.random.Generator) -> dict[str, Any]:
    """Well under half of the seats do work, so that the two shares cannot be confused."""
    while True:
        lengths = [int(x) * 10 for x in rng.integers(2, 20, size=5)]
        lengths.append(int(rng.integers(30, 60)) * 10)
        if static_use(lengths) < 0.45:
            return {"lengths": lengths}


def static_use(lengths: list[int]) -> float:
    """Share of the seats that do work when these answers are one static batch."""
    return sum(lengths) / (len(lengths) * max(lengths))


def _draw_tokens(rng: np.random.Generator) -> dict[str, Any]:
    size = int(rng.choice([8, 16, 32]))
    in_last = int(rng.choice([i for i in range(1, size) if i != size // 2]))
    return {"n": size * int(rng.integers(15, 90)) + in_last, "size": size}


def empty_slots(n_tokens: int, page_size: int) -> int:
    return page_size * pages_needed(n_tokens, page_size) - n_tokens


def _draw_hit(rng: np.random.Generator) -> dict[str, Any]:
    while True:
        size = int(rng.choice([16, 32]))
        n_prompt, n_common = int(rng.integers(900, 2000)), int(rng.integers(300, 880))
        if n_common % size:
            return {"size": size, "n_prompt": n_prompt, "n_common": n_common}


def _draw_whole(rng: np.random.Generator) -> dict[str, Any]:
    size = int(rng.choice([8, 16, 32]))
    return {"size": size, "n": size * int(rng.integers(6, 40))}


def _draw_chunks(rng: np.random.Generator) -> dict[str, Any]:
    chunk = int(rng.choice([256, 512, 1024]))
    return {"chunk": chunk, "n": chunk * int(rng.integers(5, 16))}


def _draw_room(rng: np.random.Generator) -> dict[str, Any]:
    return {
        "ms": int(rng.choice([15, 20, 25, 30])),
        "B": int(rng.integers(16, 64)),
        "params": float(rng.choice([7.0, 8.0, 13.0])),
    }


def _chunk(p: dict[str, Any], beside: bool = True, flops: int = 2) -> float:
    n = largest_chunk(p["ms"] / 1e3, 0, p["params"] * 1e9 * flops / 2, 989.4e12)
    return float(n - p["B"] * beside)


def _draw_ship(rng: np.random.Generator) -> dict[str, Any]:
    return {
        "n": int(rng.choice([2048, 4096, 8192, 16384])),
        "kv": int(rng.choice([57_344, 131_072, 327_680])),
        "gb": int(rng.choice([50, 64, 450])),
    }


QUESTIONS = (
    Question(
        id="ba_q_total",
        lesson=LESSON,
        points=1,
        draw=_draw_batch,
        text=lambda p: (
            f"A decode step reads {p['weight_gb']} GB of weights, and {p['kv_gb']:g} GB of keys "
            f"and values for each of {p['B']} users, at {p['bandwidth_tb']:g} TB/s; reading is the "
            "limit. How many tokens a second at most, all users together?"
        ),
        answer=lambda p: p["B"] / _step_s(p),
        unit="tok/s",
        slips={
            "the caches are left out: they are read in every step, too": lambda p: (
                p["B"] / _step_s(p, 0)
            ),
            "one cache for all: every user has one": lambda p: p["B"] / _step_s(p, 1),
            "that is what one user gets; all of them were asked": lambda p: 1 / _step_s(p),
            "the weights are read once for all, not once a user": lambda p: (
                1 / _step_s({**p, "B": 1})
            ),
        },
        why=lambda p: (
            f"({p['weight_gb']} + {p['B']} · {p['kv_gb']:g}) GB at {p['bandwidth_tb']:g} TB/s take "
            f"{_step_s(p) * 1e3:.2f} ms; {p['B']} tokens in that time are "
            f"{p['B'] / _step_s(p):,.0f} tok/s."
        ),
    ),
    Question(
        id="ba_q_static",
        lesson=LESSON,
        points=1,
        draw=_draw_lengths,
        text=lambda p: (
            f"{len(p['lengths'])} answers of {', '.join(map(str, p['lengths']))} tokens are "
            "decoded as one static batch. What share of its seats does work, in %?"
        ),
        answer=lambda p: 100 * static_use(p["lengths"]),
        unit="%",
        slips={
            "a seat whose answer is done stays empty until the longest is": lambda p: 100.0,
            "that is the share that is lost": lambda p: 100 - 100 * static_use(p["lengths"]),
            "the gain of filling seats at once: its inverse was asked": lambda p: (
                100 / static_use(p["lengths"])
            ),
        },
        why=lambda p: (
            f"{sum(p['lengths'])} tokens on {len(p['lengths'])} · {max(p['lengths'])} seats: "
            f"{static_use(p['lengths']):.1%}."
        ),
    ),
    Question(
        id="ba_q_gain",
        lesson=LESSON,
        points=1,
        draw=lambda rng: {"B": int(rng.integers(3, 13))},
        text=lambda p: (
            f"{p['B']} seats, exponentially distributed lengths, always somebody waiting. How many "
            "times as many tokens a step does continuous batching give as static batching?"
        ),
        answer=lambda p: exponential_gain(p["B"]),
        unit="x",
        slips={
            "that is for uniformly distributed lengths: 2B / (B + 1)": lambda p: (
                2 * p["B"] / (p["B"] + 1)
            ),
            "the number of seats: the longest answer is not the sum of all": lambda p: float(
                p["B"]
            ),
            "with lengths that differ the two are not alike": lambda p: 1.0,
            "the natural logarithm is close only for many seats": lambda p: float(np.log(p["B"])),
        },
        why=lambda p: (
            f"E[max] / E[mean] = 1 + 1/2 + … + 1/{p['B']} = {exponential_gain(p['B']):.3f}."
        ),
    ),
    Question(
        id="ba_q_pages",
        lesson=LESSON,
        points=1,
        draw=_draw_tokens,
        text=lambda p: (
            f"A sequence has {p['n']:,} tokens, in pages of {p['size']}. How many slots of its "
            "pages are empty?"
        ),
        answer=lambda p: float(empty_slots(p["n"], p["size"])),
        tolerance=1e-6,
        slips={
            "those are the tokens in the last page; its other slots are empty": lambda p: float(
                p["n"] % p["size"]
            ),
            "that is the mean over all lengths; this one is known": lambda p: (p["size"] - 1) / 2,
            "pages are counted by rounding up: the last one is partly filled": lambda p: float(
                -(p["n"] % p["size"])
            ),
        },
        why=lambda p: (
            f"{pages_needed(p['n'], p['size'])} pages are "
            f"{p['size'] * pages_needed(p['n'], p['size']):,} slots; "
            f"{empty_slots(p['n'], p['size'])} are empty. On average it is (page size − 1) / 2."
        ),
    ),
    Question(
        id="ba_q_hit",
        lesson=LESSON,
        points=1,
        draw=_draw_hit,
        text=lambda p: (
            f"A prompt of {p['n_prompt']:,} tokens shares its first {p['n_common']} with one that "
            f"was served before. Pages hold {p['size']}. How many of its tokens come from the "
            "prefix cache?"
        ),
        answer=lambda p: float(hit_tokens(p["n_common"], p["n_prompt"], p["size"])),
        tolerance=1e-6,
        slips={
            "only whole pages are shared: round down": lambda p: float(p["n_common"]),
            "the page in which the two differ cannot be shared": lambda p: float(
                p["size"] * pages_needed(p["n_common"], p["size"])
            ),
            "pages were counted; tokens were asked": lambda p: float(p["n_common"] // p["size"]),
        },
        why=lambda p: (
            f"{p['n_common']} // {p['size']} = {p['n_common'] // p['size']} pages, that is "
            f"{hit_tokens(p['n_common'], p['n_prompt'], p['size'])} tokens."
        ),
    ),
    Question(
        id="ba_q_whole",
        lesson=LESSON,
        points=1,
        draw=_draw_whole,
        text=lambda p: (
            f"A prompt of {p['n']} tokens is sent twice, one after the other; pages hold "
            f"{p['size']}. How many tokens of the second one come from the prefix cache?"
        ),
        answer=lambda p: float(hit_tokens(p["n"], p["n"], p["size"])),
        tolerance=1e-6,
        slips={
            "then no token is left to compute, and there are no logits": lambda p: float(p["n"]),
            "one token less is right, but only whole pages are shared": lambda p: float(p["n"] - 1),
        },
        why=lambda p: (
            f"At most {p['n'] - 1} may be taken, in whole pages: "
            f"{hit_tokens(p['n'], p['n'], p['size'])}."
        ),
    ),
    Question(
        id="ba_q_chunks",
        lesson=LESSON,
        points=1,
        draw=_draw_chunks,
        text=lambda p: (
            f"A prompt of {p['n']:,} tokens is computed in chunks of {p['chunk']:,}. Each chunk "
            "reads the keys and values of all chunks before it. How many tokens' keys and values "
            "are read in all?"
        ),
        answer=lambda p: float(reread_tokens(p["n"], p["chunk"])),
        tolerance=1e-6,
        slips={
            "chunks are not free: what came before is read again": lambda p: 0.0,
            "a chunk's own tokens are not read again: n(n − 1)/2, not n(n + 1)/2": lambda p: float(
                reread_tokens(p["n"], p["chunk"]) + p["n"]
            ),
            "each chunk reads all before it, not only the last one": lambda p: float(
                p["n"] - p["chunk"]
            ),
        },
        why=lambda p: (
            f"{p['n'] // p['chunk']} chunks: {p['chunk']:,} · (0 + 1 + … + "
            f"{p['n'] // p['chunk'] - 1}) = {reread_tokens(p['n'], p['chunk']):,}."
        ),
    ),
    Question(
        id="ba_q_budget",
        lesson=LESSON,
        points=1,
        draw=_draw_room,
        text=lambda p: (
            f"A step must not take longer than {p['ms']} ms. {p['B']} users decode in it; the "
            f"model multiplies {p['params']:g} billion weights for each token, the device "
            "does 989.4 TFLOP/s, and arithmetic is the limit. How many prompt tokens "
            "fit beside them?"
        ),
        answer=lambda p: _chunk(p),
        slips={
            "those who decode have a token each in the same pass": lambda p: _chunk(p, False),
            "2 FLOPs a weight: a multiply and an add": lambda p: _chunk(p, True, 1),
        },
        tolerance=0.002,
        why=lambda p: (
            f"{p['ms']} ms · 989.4e12 / (2 · {p['params']:g}e9) = {_chunk(p, False):,.0f} tokens "
            f"in all, less {p['B']}: {_chunk(p):,.0f}."
        ),
    ),
    Question(
        id="ba_q_ship",
        lesson=LESSON,
        points=1,
        draw=_draw_ship,
        text=lambda p: (
            f"One machine does the prefill of {p['n']:,} tokens, another decodes. Keys and values "
            f"take {p['kv']:,} bytes a token; the link carries {p['gb']} GB/s. How long does it "
            "take to send them?"
        ),
        answer=lambda p: p["n"] * p["kv"] / (p["gb"] * 1e9),
        unit="ms",
        slips={
            "keys and values are both in the bytes a token already": lambda p: (
                2 * p["n"] * p["kv"] / (p["gb"] * 1e9)
            ),
            "one token was sent: all of the prompt's are needed": lambda p: (
                p["kv"] / (p["gb"] * 1e9)
            ),
        },
        why=lambda p: (
            f"{p['n'] * p['kv'] / 1e9:.3f} GB at {p['gb']} GB/s: "
            f"{p['n'] * p['kv'] / p['gb'] / 1e6:.2f} ms."
        ),
    ),
    Question(
        id="ba_q_roof",
        lesson=LESSON,
        points=1,
        text=lambda p: "Past the batch at which decoding becomes compute-bound, a larger batch …",
        choices=(
            "adds no throughput, and every token comes later",
            "adds no throughput, and every token comes sooner",
            "adds more throughput, and tokens come as before",
            "adds more throughput, and every token comes sooner",
        ),
        notes={
            "adds more throughput, and tokens come as before": "that is so far below the roof only",
        },
        why=lambda p: "More arithmetic at the same speed. A batch never helps anybody's latency.",
    ),
    Question(
        id="ba_q_suffix",
        lesson=LESSON,
        points=1,
        text=lambda p: (
            "Two long prompts begin differently and end with the same 2,000 tokens. Hit?"
        ),
        choices=(
            "none: keys depend on everything before them",
            "all of it, if both ends fall on whole pages",
            "all of it, since equal tokens have equal keys",
            "all but the first page, where the two differ",
        ),
        notes={
            "all of it, since equal tokens have equal keys": "in the first layer before positions "
            "are turned in, yes; in no other",
        },
        why=lambda p: (
            "Each layer's keys are made from rows that have attended to all tokens before. That is "
            "why a page's name holds the name of the page before it."
        ),
    ),
    Question(
        id="ba_q_phase",
        lesson=LESSON,
        points=1,
        text=lambda p: "What do prefix caching and chunked prefill do?",
        choices=(
            "the first saves prefill, the second spreads it out",
            "the first saves decode steps, the second prefill",
            "both of them make a decode step read fewer bytes",
            "both of them do less arithmetic for every prompt",
        ),
        notes={
            "both of them do less arithmetic for every prompt": "chunks do the same arithmetic, "
            "and read keys, values and weights again",
        },
        why=lambda p: (
            "Known pages are not computed; chunks keep a long prompt from stopping those who "
            "decode, at the price of its own first token. Neither makes decoding itself faster."
        ),
    ),
    Question(
        id="ba_q_victim",
        lesson=LESSON,
        points=1,
        text=lambda p: "No page is free. What does preemption by recompute lose?",
        choices=(
            "keys and values of the newest request, no tokens",
            "tokens of the newest request, written already",
            "keys and values of the oldest request, no tokens",
            "nothing: the pages are moved to the processor",
        ),
        notes={
            "nothing: the pages are moved to the processor": "that is preemption by swapping",
        },
        why=lambda p: (
            "Tokens are a few bytes and are kept; keys and values are computed again from them, in "
            "one pass, and what the prefix cache still has need not be."
        ),
    ),
)
