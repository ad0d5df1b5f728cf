"""Lesson 03: what to predict before any code, and the knowledge check after it."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np

from grader.checks.prefill_decode.lesson import LESSON
from inferlab.data import load_devices, model_preset
from inferlab.prefill_decode import (
    end_to_end_s,
    phase_flops,
    prefill_share,
    tpot_bound_s,
    ttft_bound_s,
)
from labkit.interview.questions import Question
from labkit.predictions import Prediction

MEASURED_TOKENS = 256  # length at which the lesson compares the speed of the two phases
READ_AND_WRITE = (1000, 1001)  # tokens in, tokens out: a thousand each for the two phases
SHORT = (50, 51)  # the same below the knee
RAG = (8000, 50)


def device_of(name: str) -> tuple[float, float]:
    """Bandwidth in bytes/s and dense bf16 peak in FLOP/s of a device in data/devices.json."""
    record = load_devices()[name]
    return record["bandwidth_gb_s"] * 1e9, record["peak_dense_tflops"]["bf16"] * 1e12


def flops_ratio() -> float:
    """Operations of 1,000 decode steps over those of a prefill of 1,000 tokens."""
    prefill, decode = phase_flops(model_preset("8b-style"), *READ_AND_WRITE)
    return decode / prefill


def seconds_ratio(n_prompt: int, n_output: int) -> float:
    """Least seconds of the decode steps over those of the prefill, on an H100."""
    config, device = model_preset("8b-style"), device_of("h100-sxm")
    tpot_s = tpot_bound_s(config, n_prompt, n_output, *device) or 0.0
    return (n_output - 1) * tpot_s / ttft_bound_s(config, n_prompt, *device)


@lru_cache(maxsize=1)
def speed_ratio_bound() -> float:
    """Bounds on this machine, SmolLM2-135M: prefill tokens/s over decode tokens/s."""
    from labkit.measure.timing import matmul_peak, read_bandwidth

    config, device = model_preset("smollm2-135m"), (read_bandwidth(), matmul_peak())
    prefill_s = ttft_bound_s(config, MEASURED_TOKENS, *device, 4)
    step_s = tpot_bound_s(config, MEASURED_TOKENS, 2, *device, 1, 4) or 0.0
    return MEASURED_TOKENS / prefill_s * step_s


def longer_phase() -> str:
    share = prefill_share(model_preset("8b-style"), *RAG, *device_of("h100-sxm"))
    return "the prefill: reading 8,000" if share > 0.5 else "the decode steps: writing 50"


PREDICTIONS = (
    Prediction(
        id="pd_flops_ratio",
        question="An 8B-style model reads a prompt of 1,000 tokens, then runs 1,000 decode steps. "
        "How many times as many **operations** (FLOPs) do the steps take together as the prefill?",
        unit="x",
        answer=flops_ratio,
        because="Every token, read or written, goes through the same weights: about 2 FLOPs for "
        "each. The steps look back at more text and compute the head each time: 1.11 times.",
    ),
    Prediction(
        id="pd_time_ratio",
        question="The same model with a short prompt: 50 tokens in, then 50 decode steps. One "
        "user, an H100 (3.35 TB/s, 989.4 TFLOP/s in bf16), at the very best. How many times as "
        "many **seconds** do the steps take together as the prefill?",
        unit="x",
        answer=lambda: seconds_ratio(*SHORT),
        because="50 tokens are too few to keep the arithmetic busy: the prefill takes the 4.5 ms "
        "of reading the weights, as each of the 50 steps does. With 1,000 and 1,000 computing "
        "bounds the prefill, 14.4 ms, and the steps take 316 times as long.",
    ),
    Prediction(
        id="pd_rag",
        question="A question with 8,000 tokens of documents, an answer of 50 tokens: 160 times as "
        "many tokens in as out. The 8B-style model, one user, the H100 again. Which phase takes "
        "more seconds?",
        choices=(
            "the prefill: reading 8,000",
            "the decode steps: writing 50",
            "both take about the same",
        ),
        answer=longer_phase,
        because="At best 0.130 s against 0.235 s: 49 steps of 4.8 ms each outlast the reading of "
        "8,000 tokens. Compare seconds, not tokens.",
    ),
    Prediction(
        id="pd_speed_ratio",
        question="SmolLM2-135M on this machine, in float32. How many times as many tokens a second "
        "does a prefill of 256 tokens reach as decoding does, one user?",
        unit="x",
        answer=speed_ratio_bound,
        because="A step reads every weight for one token, the prefill reads them once for 256, "
        "until the arithmetic takes longer than the reading. The computed number is the ratio of "
        "the two bounds on this machine.",
    ),
)

DEVICES = {
    "an A100": "a100-80-sxm", "an H100": "h100-sxm", "an L4": "l4", "an MI300X": "mi300x",
}  # fmt: skip


def _passes(p: dict[str, Any]) -> int:
    return math.ceil(p["n_prompt"] / p["chunk"]) + p["n_output"] - 1


def _draw_passes(rng: np.random.Generator) -> dict[str, Any]:
    chunk = int(rng.choice([256, 512, 1024]))
    return {
        "chunk": chunk,
        "n_prompt": chunk * int(rng.integers(3, 8)) + int(rng.integers(20, chunk - 20)),
        "n_output": int(rng.integers(80, 400)),
    }


def _seconds(p: dict[str, Any]) -> float:
    return end_to_end_s(p["ttft_ms"] / 1e3, p["tpot_ms"] / 1e3, p["n"])


def _draw_stamps(rng: np.random.Generator) -> dict[str, Any]:
    n, tpot_ms, first_ms = (int(rng.integers(*span)) for span in ((31, 120), (12, 40), (200, 900)))
    return {"n": n, "first_s": first_ms / 1e3, "last_s": (first_ms + (n - 1) * tpot_ms) / 1e3}


def _draw_knee(rng: np.random.Generator) -> dict[str, Any]:
    name = str(rng.choice(list(DEVICES)))
    bandwidth, peak = device_of(DEVICES[name])
    return {"device": name, "bw": bandwidth, "peak": peak, "bits": int(rng.choice([4, 8]))}


def _knee(p: dict[str, Any]) -> float:
    return p["peak"] / p["bw"] * p["bits"] / 8 / 2


def _draw_step(rng: np.random.Generator) -> dict[str, Any]:
    return {
        "weight_gb": int(rng.choice([14, 16, 28, 66])),
        "kv_mb": int(rng.integers(300, 1200)),
        "B": int(rng.integers(6, 30)),
        "bw_tb": float(rng.choice([2.0, 3.35, 4.8, 5.3])),
    }


def _steps_per_s(p: dict[str, Any], weights: float = 1, caches: float | None = None) -> float:
    n_caches = p["B"] if caches is None else caches
    read = weights * p["weight_gb"] * 1e9 + n_caches * p["kv_mb"] * 1e6
    return p["bw_tb"] * 1e12 / read


def _draw_chunks(rng: np.random.Generator) -> dict[str, Any]:
    chunk = int(rng.choice([256, 512, 1024]))
    return {"chunk": chunk, "n_chunks": int(rng.integers(5, 17))}


def _reread(p: dict[str, Any]) -> int:
    return p["chunk"] * p["n_chunks"] * (p["n_chunks"] - 1) // 2


def _gain(p: dict[str, Any], weights: float, cache: float) -> float:
    before = p["weight_gb"] + p["kv_gb"]
    return before / (weights * p["weight_gb"] + cache * p["kv_gb"])


QUESTIONS = (
    Question(
        id="pd_q_passes",
        lesson=LESSON,
        points=1,
        draw=_draw_passes,
        text=lambda p: (
            f"A prompt of {p['n_prompt']:,} tokens is prefilled in chunks of at most "
            f"{p['chunk']:,}; the answer has {p['n_output']} tokens. How many passes does the "
            "model run in all?"
        ),
        answer=lambda p: float(_passes(p)),
        tolerance=1e-6,
        slips={
            "one decode step too many: the last chunk already gives the first token": lambda p: (
                float(_passes(p) + 1)
            ),
            "the shorter last chunk is a pass too": lambda p: float(_passes(p) - 1),
            "the prompt takes one pass for each chunk, not one in all": lambda p: float(
                p["n_output"]
            ),
        },
        why=lambda p: (
            f"{math.ceil(p['n_prompt'] / p['chunk'])} chunks, then {p['n_output'] - 1} decode "
            f"steps: {_passes(p)}. The last chunk's logits give the first token."
        ),
    ),
    Question(
        id="pd_q_end",
        lesson=LESSON,
        points=1,
        draw=lambda rng: {
            "ttft_ms": int(rng.integers(15, 90)) * 10,
            "tpot_ms": int(rng.integers(12, 45)),
            "n": int(rng.integers(100, 400)),
        },
        text=lambda p: (
            f"TTFT is {p['ttft_ms']} ms, TPOT {p['tpot_ms']} ms, the answer has {p['n']} tokens. "
            "After how many seconds is the last token there?"
        ),
        answer=_seconds,
        unit="s",
        tolerance=5e-4,
        slips={
            "n times TPOT: the first token came with TTFT, n - 1 are left": lambda p: (
                _seconds(p) + p["tpot_ms"] / 1e3
            ),
            "TTFT is missing: the prompt must be read first": lambda p: (
                _seconds(p) - p["ttft_ms"] / 1e3
            ),
        },
        why=lambda p: (
            f"{p['ttft_ms'] / 1e3:g} + {p['n'] - 1} · {p['tpot_ms'] / 1e3:g} = {_seconds(p):.3f} s."
        ),
    ),
    Question(
        id="pd_q_tpot",
        lesson=LESSON,
        points=1,
        draw=_draw_stamps,
        text=lambda p: (
            f"A request arrives at 0 s. Its first token comes at {p['first_s']:g} s, its last one, "
            f"number {p['n']}, at {p['last_s']:g} s. What is its TPOT, in ms?"
        ),
        answer=lambda p: (p["last_s"] - p["first_s"]) / (p["n"] - 1),
        unit="ms",
        tolerance=0.002,
        slips={
            "divided by n: between n tokens there are n - 1 gaps": lambda p: (
                (p["last_s"] - p["first_s"]) / p["n"]
            ),
            "TTFT is counted in: TPOT begins with the first token": lambda p: (
                p["last_s"] / (p["n"] - 1)
            ),
            "the whole time over all tokens mixes both phases": lambda p: p["last_s"] / p["n"],
        },
        why=lambda p: (
            f"({p['last_s']:g} − {p['first_s']:g}) s / {p['n'] - 1} gaps = "
            f"{1e3 * (p['last_s'] - p['first_s']) / (p['n'] - 1):.4g} ms."
        ),
    ),
    Question(
        id="pd_q_knee",
        lesson=LESSON,
        points=1,
        draw=_draw_knee,
        text=lambda p: (
            f"The weights are stored in {p['bits']} bits; the arithmetic is bf16, on {p['device']} "
            f"({p['bw'] / 1e12:g} TB/s, {p['peak'] / 1e12:g} TFLOP/s). By the rule of thumb (2 "
            "FLOPs a token for each weight that is read), from which prompt length on is a prefill "
            "bound by computing?"
        ),
        answer=_knee,
        unit="tok",
        tolerance=0.01,
        slips={
            "that is the ridge: right for weights of two bytes only": lambda p: p["peak"] / p["bw"],
            "each weight gives 2 FLOPs a token, a multiply and an add": lambda p: 2 * _knee(p),
            "bits were taken for bytes": lambda p: 8 * _knee(p),
        },
        why=lambda p: (
            f"Ridge {p['peak'] / p['bw']:.1f} FLOP/byte · {p['bits'] / 8:g} byte a weight / 2 "
            f"FLOPs a token = {_knee(p):.1f} tokens."
        ),
    ),
    Question(
        id="pd_q_step",
        lesson=LESSON,
        points=1,
        draw=_draw_step,
        text=lambda p: (
            f"{p['weight_gb']} GB of weights; {p['B']} users decode together, each with "
            f"{p['kv_mb']} MB of keys and values; {p['bw_tb']:g} TB/s. Reading bounds the step. At "
            "most how many tokens a second does **one user** see?"
        ),
        answer=lambda p: _steps_per_s(p),
        unit="tok/s",
        slips={
            "that is what all users get together": lambda p: p["B"] * _steps_per_s(p),
            "keys and values of one user only: each has their own": lambda p: _steps_per_s(
                p, caches=1
            ),
            "the weights are read once a step for all users": lambda p: _steps_per_s(
                p, weights=p["B"]
            ),
            "keys and values are read in each step too": lambda p: _steps_per_s(p, caches=0),
        },
        why=lambda p: (
            f"A step reads {p['weight_gb']} + {p['B']} · {p['kv_mb'] / 1e3:g} GB and gives every "
            f"user one token: {_steps_per_s(p):.1f} tokens a second for each."
        ),
    ),
    Question(
        id="pd_q_reread",
        lesson=LESSON,
        points=1,
        draw=_draw_chunks,
        text=lambda p: (
            f"A prompt of {p['chunk'] * p['n_chunks']:,} tokens is prefilled in chunks of "
            f"{p['chunk']:,}. Each chunk reads the keys and values that the chunks before it kept. "
            "How many tokens' keys and values are read in all?"
        ),
        answer=lambda p: float(_reread(p)),
        unit="tok",
        tolerance=1e-6,
        slips={
            "the first chunk finds nothing: chunk i reads i - 1 chunks": lambda p: float(
                _reread(p) + p["chunk"] * p["n_chunks"]
            ),
            "not all chunks read the whole prompt: only what is before them": lambda p: float(
                p["chunk"] * p["n_chunks"] ** 2
            ),
            "each kept chunk is read once by every later chunk, not once in all": lambda p: float(
                p["chunk"] * (p["n_chunks"] - 1)
            ),
        },
        why=lambda p: (
            f"{p['chunk']:,} · (0 + 1 + … + {p['n_chunks'] - 1}) = {_reread(p):,}. The weights, "
            f"too, are read {p['n_chunks']} times. The operations stay the same."
        ),
    ),
    Question(
        id="pd_q_halve",
        lesson=LESSON,
        points=1,
        draw=lambda rng: {
            "weight_gb": int(rng.choice([14, 16, 26])),
            "kv_gb": int(rng.integers(6, 40)),
        },
        text=lambda p: (
            f"A decode step reads {p['weight_gb']} GB of weights and {p['kv_gb']} GB of keys and "
            "values. The **weights** are stored in 8 bits in place of 16. How many times as fast "
            "can the step become?"
        ),
        answer=lambda p: _gain(p, 0.5, 1),
        unit="x",
        slips={
            "half the weights is not half the bytes: keys and values stay": lambda p: 2.0,
            "that is half the cache; the weights were to be halved": lambda p: (
                _gain(p, 1, 0.5) if p["weight_gb"] != p["kv_gb"] else 2.0
            ),
            "the gain is bytes before over bytes after": lambda p: 1 / _gain(p, 0.5, 1),
        },
        why=lambda p: (
            f"({p['weight_gb']} + {p['kv_gb']}) / ({p['weight_gb'] / 2:g} + {p['kv_gb']}) = "
            f"{_gain(p, 0.5, 1):.3f}. It comes close to 2 where the cache is small."
        ),
    ),
    Question(
        id="pd_q_stall",
        lesson=LESSON,
        points=1,
        text=lambda p: (
            "A user's text streams smoothly, stops for 400 ms while somebody else's long prompt is "
            "read, and goes on. Which number shows it best?"
        ),
        choices=(
            "the longest gaps between tokens (ITL, its tail)",
            "the mean time per output token (TPOT, mean)",
            "the time to this user's first token (TTFT)",
            "the tokens a second of the whole server",
        ),
        notes={
            "the mean time per output token (TPOT, mean)": "one gap of 400 ms among hundreds of "
            "tokens hardly moves a mean",
        },
        why=lambda p: "Only the list of gaps has the stall in it; its tail shows it.",
    ),
    Question(
        id="pd_q_chip",
        lesson=LESSON,
        points=1,
        text=lambda p: (
            "A new device has twice the FLOP/s of the old one and the same memory bandwidth. What "
            "does a single user of a chat notice?"
        ),
        choices=(
            "long prompts are answered sooner, nothing else",
            "long answers are written faster, nothing else",
            "both phases become faster by the same factor",
            "nothing: a single user is bound by memory",
        ),
        notes={
            "nothing: a single user is bound by memory": "the prefill of a long prompt has many "
            "rows for each weight that is read: it is bound by computing",
        },
        why=lambda p: "The prefill of a long prompt is bound by FLOP/s, a decode step by bytes/s.",
    ),
    Question(
        id="pd_q_chunk",
        lesson=LESSON,
        points=1,
        text=lambda p: "What does a server gain by prefilling a long prompt in chunks?",
        choices=(
            "other users' decode steps run between its chunks",
            "its attention then needs fewer operations in all",
            "its own first token then comes noticeably sooner",
            "its keys and values then take less memory to keep",
        ),
        notes={
            "its attention then needs fewer operations in all": "every token still attends to all "
            "before it; the operations are the same, and more is read",
            "its own first token then comes noticeably sooner": "its own first token comes later: "
            "weights and keys are read again for each chunk, and others run in between",
        },
        why=lambda p: (
            "The operations stay, the reading grows, and its own first token comes no sooner. What "
            "gets better are the gaps of everybody else."
        ),
    ),
)
