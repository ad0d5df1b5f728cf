"""Lesson 07: what to predict before any code, and the knowledge check after it."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from grader.checks.quantization.lesson import LESSON
from inferlab.data import model_preset
from inferlab.fp8 import round_fp8
from inferlab.kv_cache import kv_cache_bytes
from inferlab.quantization import matrix_with_outliers, quantize_absmax, quantized_bytes
from inferlab.roofline import body_params
from labkit.interview.questions import Question
from labkit.predictions import Prediction

Params = dict[str, Any]
GB = 1e9


def speed_gain(weights: float, fewer: float, cache: float) -> float:
    """How many times as fast a decode step becomes when reading bounds it: bytes before / after."""
    return (weights + cache) / (fewer + cache)


def zero_share() -> float:
    """Percentage of ordinary weights that one int8 scale for the outlier matrix rounds to 0."""
    codes, _ = quantize_absmax(matrix_with_outliers())
    return 100 * float((codes[:, :-3] == 0).mean())


N_TIMED_LAYERS = 10  # of SmolLM2's 30, so that the lesson builds four engines in seconds


def engine_step_bytes(bits: int | None, n_layers: int = N_TIMED_LAYERS) -> int:
    """Weights that a decode step of SmolLM2's first layers reads in the PyTorch engine, with the
    output head; bits None is float32.

    Groups of 32 with a 16-bit scale and a 16-bit zero. An 8-bit matrix is kept as two 4-bit ones,
    and the output head is an 8-bit one in the 4-bit model too.
    """
    config = replace(model_preset("smollm2-135m"), n_layers=n_layers)
    body, head = body_params(config), config.d_model * config.vocab_size
    if bits is None:
        return 4 * (body + head)
    eight = 2 * quantized_bytes(head, 4, 32, 16, 16)
    return (bits // 4) * quantized_bytes(body, 4, 32, 16, 16) + eight


PREDICTIONS = (
    Prediction(
        id="qz_int4_bytes",
        question="8 billion weights in 4 bits, and for every **32** of them one 16-bit scale and "
        "one 16-bit minimum. How many GB (10⁹ B) is that?",
        answer=lambda: float(quantized_bytes(8 * 10**9, 4, 32, 16, 16)),
        because="Each weight takes 4 + 32/32 = 5 bits: 5 GB, not 4. With one scale for 128 weights "
        "and no minimum it is 4.125 GB.",
        unit="GB",
    ),
    Prediction(
        id="qz_zero_share",
        question="A matrix has 61 output channels of ordinary weights and 3 whose weights are 40 "
        "times as large. All of it is rounded to int8 with **one** scale. What share of the "
        "ordinary weights becomes exactly 0?",
        unit="%",
        answer=zero_share,
        because="The scale is set by the 3 large channels: one step is as long as the ordinary "
        "weights' standard deviation, and all that lies within half a step of 0 becomes 0.",
    ),
    Prediction(
        id="qz_batch_speed",
        question="An 8B-style model has 16 GB of weights in bf16; 16 sequences of 8,192 tokens "
        "hold 17.18 GB of cache. Reading bounds a decode step. The weights go to int8: how many "
        "times as fast is a step?",
        unit="x",
        answer=lambda: speed_gain(
            16e9, 8e9, kv_cache_bytes(model_preset("8b-style"), 8192, n_sequences=16)
        ),
        because="The cache is read as before: (16 + 17.18) / (8 + 17.18) = 1.32. Only where the "
        "cache is small do half the bytes mean twice the speed.",
    ),
    Prediction(
        id="qz_decode_speed",
        question="The first 10 layers of SmolLM2-135M and its output head, on this machine, one "
        "sequence: how many times as fast is a decode step with 4-bit layers and an 8-bit head as "
        "with float32?",
        unit="x",
        answer=lambda: engine_step_bytes(None) / engine_step_bytes(4),
        because="The computed number is the ratio of the bytes that a step reads. What is "
        "measured differs by what is not reading: unpacking, norms, attention, Python.",
    ),
)


def _draw_bits(rng: np.random.Generator) -> Params:
    return {
        "bits": int(rng.choice([3, 4, 5, 6])),
        "group": int(rng.choice([16, 32, 64])),
        "scale_bits": int(rng.choice([8, 16])),
        "zero_bits": int(rng.choice([4, 8])),
    }


def _bits(p: Params, scale: bool = True, zero: bool = True) -> float:
    return p["bits"] + (scale * p["scale_bits"] + zero * p["zero_bits"]) / p["group"]


def _draw_parts(rng: np.random.Generator) -> Params:
    return {
        "linear": int(rng.choice([6, 7, 12, 13])),
        "rest": int(rng.choice([1, 2])),
        "group": int(rng.choice([32, 64, 128])),
    }


def _parts(p: Params, rest_bits: float = 16) -> float:
    linear = quantized_bytes(p["linear"] * 10**9, 4, p["group"])
    return linear + p["rest"] * 1e9 * rest_bits / 8


def _draw_speed(rng: np.random.Generator) -> Params:
    weights = int(rng.choice([14, 16, 26]))
    others = [n for n in range(5, 40) if abs(n - weights) > 1]
    return {"weights": weights, "cache": int(rng.choice(others))}


def _speed(p: Params) -> float:
    return speed_gain(p["weights"], p["weights"] / 2, p["cache"])


def _draw_room(rng: np.random.Generator) -> Params:
    return {
        "memory": int(rng.choice([240, 320])),
        "reserved": int(rng.choice([12, 16, 30])),
        "weights": int(rng.choice([58, 62, 66, 80])),
    }


def _room(p: Params) -> float:
    free = p["memory"] - p["reserved"]
    return (free - p["weights"]) / (free - 2 * p["weights"])


def _draw_error(rng: np.random.Generator) -> Params:
    return {
        "bits": int(rng.choice([4, 5, 6])),
        "sigmas": round(float(rng.uniform(2.2, 3.4)), 1),
    }


def _error(p: Params, top: int | None = None, divisor: float = math.sqrt(12)) -> float:
    return 100 * p["sigmas"] / ((top or 2 ** (p["bits"] - 1) - 1) * divisor)


def _draw_fp8(rng: np.random.Generator) -> Params:
    """A number that is rounded up, and that the other format would round down."""
    while True:
        exponent = int(rng.integers(1, 8))
        x = round(float(2**exponent * rng.uniform(1, 2)), 2)
        right = _fp8(x)
        if right != _fp8(x, "e5m2") and right != _cut(x) and right != x:
            return {"x": x}


def _fp8(x: float, form: str = "e4m3") -> float:
    return float(round_fp8(np.array([x]), form)[0])


def _cut(x: float) -> float:
    step = 2.0 ** (math.floor(math.log2(x)) - 3)
    return math.floor(x / step) * step


def _draw_block(rng: np.random.Generator) -> Params:
    """Not a power of two, so that the floor matters."""
    return {"largest": float(rng.choice([6, 7, 12, 20, 28, 50, 90, 100, 1.5, 3]))}


def _shared_scale(p: Params) -> float:
    return 2.0 ** (math.floor(math.log2(p["largest"])) - 2)


QUESTIONS = (
    Question(
        id="qz_q_bits",
        lesson=LESSON,
        points=1,
        draw=_draw_bits,
        text=lambda p: (
            f"Weights are stored in {p['bits']} bits, in groups of {p['group']} that share a scale "
            f"of {p['scale_bits']} bits and a zero point of {p['zero_bits']} bits. How many bits "
            "does a weight take in all?"
        ),
        answer=_bits,
        tolerance=0.002,
        slips={
            "scales and zero points are forgotten": lambda p: float(p["bits"]),
            "the zero point is forgotten": lambda p: _bits(p, zero=False),
            "the scale is forgotten": lambda p: _bits(p, scale=False),
        },
        why=lambda p: (
            f"{p['bits']} + ({p['scale_bits']} + {p['zero_bits']}) / {p['group']} = {_bits(p):g} "
            "bits."
        ),
    ),
    Question(
        id="qz_q_parts",
        lesson=LESSON,
        points=1,
        draw=_draw_parts,
        text=lambda p: (
            f"A model has {p['linear']} billion weights in the matrices of its layers and "
            f"{p['rest']} billion in embedding and output head. As most tools do, only the layers' "
            f"matrices go to int4, with a 16-bit scale for every {p['group']} weights; the rest "
            "stays in bf16. How many GB (10⁹ B) are all weights?"
        ),
        answer=_parts,
        unit="GB",
        slips={
            "embedding and head were quantized too: they stay in 16 bits": lambda p: (
                quantized_bytes((p["linear"] + p["rest"]) * 10**9, 4, p["group"])
            ),
            "the scales are forgotten: 4 bits are not half a byte in all": lambda p: (
                (p["linear"] / 2 + 2 * p["rest"]) * GB
            ),
            "embedding and head are left out": lambda p: _parts(p, rest_bits=0),
        },
        why=lambda p: (
            f"{p['linear']} · (4 + 16/{p['group']}) / 8 + {p['rest']} · 2 = {_parts(p) / GB:.4g} "
            "GB. Norm gains and an expert router are left in 16 bits too; they are small."
        ),
    ),
    Question(
        id="qz_q_speed",
        lesson=LESSON,
        points=1,
        draw=_draw_speed,
        text=lambda p: (
            f"A decode step reads {p['weights']} GB of bf16 weights and {p['cache']} GB of cache, "
            "and reading is what bounds it. The weights go to 8 bits (scales neglected). How many "
            "times as fast can the step become?"
        ),
        answer=_speed,
        unit="x",
        slips={
            "half the weights are not half the step: the cache is read as before": lambda p: 2.0,
            "the gain is bytes before over bytes after": lambda p: 1 / _speed(p),
            "it is the weights that shrink, not the cache": lambda p: (
                (p["weights"] + p["cache"]) / (p["weights"] + p["cache"] / 2)
            ),
        },
        why=lambda p: (
            f"({p['weights']} + {p['cache']}) / ({p['weights'] / 2:g} + {p['cache']}) = "
            f"{_speed(p):.3f}."
        ),
    ),
    Question(
        id="qz_q_room",
        lesson=LESSON,
        points=1,
        draw=_draw_room,
        text=lambda p: (
            f"Devices with {p['memory']} GB in all keep {p['reserved']} GB free for activations. "
            f"A model of {p['weights']} billion weights goes from bf16 to int8 (scales "
            "neglected). How many times as many sequences of equal length fit beside it?"
        ),
        answer=_room,
        unit="x",
        slips={
            "half the weight bytes do not double the room: what grows is what was left": (
                lambda p: 2.0
            ),
            "the reserve was forgotten": lambda p: (
                (p["memory"] - p["weights"]) / (p["memory"] - 2 * p["weights"])
            ),
            "the ratio is room after over room before": lambda p: 1 / _room(p),
        },
        why=lambda p: (
            f"({p['memory']} − {p['reserved']} − {p['weights']}) / ({p['memory']} − "
            f"{p['reserved']} − {2 * p['weights']}) = {_room(p):.3f}."
        ),
    ),
    Question(
        id="qz_q_error",
        lesson=LESSON,
        points=1,
        draw=_draw_error,
        text=lambda p: (
            "The largest magnitude of a group is "
            f"{p['sigmas']:g} standard deviations of its weights, whose mean is 0. It is rounded "
            f"to {p['bits']} bits, symmetric absmax. What relative error (root mean square, in %) "
            "do you expect?"
        ),
        answer=_error,
        unit="%",
        slips={
            "the top code is 2**(bits - 1) - 1": lambda p: _error(p, 2 ** (p["bits"] - 1)),
            "all steps were counted: the largest magnitude is half of the range": lambda p: _error(
                p, 2 ** p["bits"] - 1
            ),
            "divided by 12 where its square root is due": lambda p: _error(p, divisor=12),
            "half a step is the largest error; its root mean square is step / sqrt(12)": lambda p: (
                _error(p, divisor=2)
            ),
        },
        why=lambda p: (
            f"{p['sigmas']:g} / ({2 ** (p['bits'] - 1) - 1} · √12) = {_error(p):.3g} %. Each bit "
            "more about halves it: 6.02 dB."
        ),
    ),
    Question(
        id="qz_q_fp8",
        lesson=LESSON,
        points=1,
        draw=_draw_fp8,
        text=lambda p: (
            f"Round {p['x']:g} to the nearest E4M3 number (3 bits of mantissa). What is stored?"
        ),
        answer=lambda p: _fp8(p["x"]),
        tolerance=1e-6,
        slips={
            "that is E5M2, with 2 bits of mantissa": lambda p: _fp8(p["x"], "e5m2"),
            "cut off where it should be rounded": lambda p: _cut(p["x"]),
        },
        why=lambda p: (
            f"{p['x']:g} lies between {2 ** math.floor(math.log2(p['x']))} and "
            f"{2 ** (math.floor(math.log2(p['x'])) + 1)}, where E4M3 has steps of "
            f"{2.0 ** (math.floor(math.log2(p['x'])) - 3):g}: {_fp8(p['x']):g}."
        ),
    ),
    Question(
        id="qz_q_mx",
        lesson=LESSON,
        points=1,
        draw=_draw_block,
        text=lambda p: (
            "In MXFP4, 32 numbers share a scale that is a power of two, and each is stored as one "
            "of 0, 0.5, 1, 1.5, 2, 3, 4, 6 with a sign. The exponent of the shared scale is the "
            "floor of log2 of the largest magnitude, minus 2 (the exponent of 4, the largest power "
            f"of two in the list). The largest magnitude is {p['largest']:g}: what is the scale?"
        ),
        answer=_shared_scale,
        tolerance=1e-6,
        slips={
            "the 2 was not subtracted: then the codes 2, 3, 4 and 6 are never used": lambda p: (
                4 * _shared_scale(p)
            ),
            "the logarithm was rounded up: its floor is asked": lambda p: 2 * _shared_scale(p),
        },
        why=lambda p: (
            f"floor(log2 {p['largest']:g}) = {math.floor(math.log2(p['largest']))}, minus 2: the "
            f"scale is {_shared_scale(p):g}, the largest stored number "
            f"{p['largest'] / _shared_scale(p):g} before rounding (above 6 it saturates)."
        ),
    ),
    Question(
        id="qz_q_saturate",
        lesson=LESSON,
        points=1,
        text=lambda p: (
            "An engine stores its KV cache in FP8 E4M3 with a scale of 1, as vLLM does without "
            "calibration. A key holds the number 900. What does attention read?"
        ),
        choices=(
            "448, the largest number: it saturates",
            "infinity, and the softmax gives nan",
            "896, since only the mantissa is cut",
            "240, the largest number that E4M3 has",
        ),
        notes={
            "infinity, and the softmax gives nan": "E4M3 has no infinity at all",
            "896, since only the mantissa is cut": "the exponent has an end too, at 448",
            "240, the largest number that E4M3 has": "240 ends another variant, E4M3FNUZ",
        },
        why=lambda p: (
            "All that lies beyond ±448 becomes ±448. A scale of 900 / 448 or more would have kept "
            "it: that is what calibration is for."
        ),
    ),
    Question(
        id="qz_q_axes",
        lesson=LESSON,
        points=1,
        text=lambda p: (
            "y = x @ w is to be computed on int8 codes, with scaling after the sum. Which scales "
            "can stand outside the sum over the input channels?"
        ),
        choices=(
            "one for each token of x and each output channel",
            "one for each token of x and each input channel",
            "one for each input channel of x and one of w",
            "one for each group of 128 inputs of a column",
        ),
        notes={
            "one for each group of 128 inputs of a column": "such a scale stands outside the sum "
            "of its own group only: every group must be rescaled before they are added",
        },
        why=lambda p: (
            "The sum runs over input channels. What depends on them must be inside; what depends "
            "on the token or the output channel only factors out."
        ),
    ),
    Question(
        id="qz_q_hidden",
        lesson=LESSON,
        points=1,
        text=lambda p: (
            "A matrix with a few very large output channels was rounded with one scale. The "
            "relative error of the whole matrix is 3.5 %. What does that tell about the others?"
        ),
        choices=(
            "little: the large channels make up nearly all of the norm",
            "they are off by 3.5 % too: an error is shared out evenly",
            "they are better than that: small numbers have small errors",
            "they are exact: only the largest number decides the scale",
        ),
        notes={
            "they are better than that: small numbers have small errors": "the error is as large "
            "as for the large ones, up to half a step, which may be as large as they are",
        },
        why=lambda p: (
            "All weights have about the same absolute error. Divided by the norm of the large "
            "channels it looks small; divided by that of an ordinary one it is ten times as much."
        ),
    ),
    Question(
        id="qz_q_noise",
        lesson=LESSON,
        points=1,
        text=lambda p: "When does the rule (mean square error) = step² / 12 cease to hold?",
        choices=(
            "when the step is longer than most of the weights",
            "when the step is far shorter than the weights are",
            "when the scale is shared by an odd number of them",
            "when the weights are not normally distributed",
        ),
        notes={
            "when the weights are not normally distributed": "any smooth distribution will do, as "
            "long as it is wide beside a step",
        },
        why=lambda p: (
            "It takes the error to be spread evenly over a step. Where most weights round to 0, "
            "the error is the weight itself."
        ),
    ),
    Question(
        id="qz_q_kivi",
        lesson=LESSON,
        points=1,
        text=lambda p: (
            "KIVI stores a cache in 2 bits, with one scale a *channel* (over tokens) for keys, "
            "and one a *token* for values. Why the difference?"
        ),
        choices=(
            "keys have large numbers in fixed channels, values do not",
            "values have large numbers in fixed channels, keys do not",
            "keys are read once for each token, values only at the end",
            "values are rotated with their position, keys are not",
        ),
        why=lambda p: (
            "A few channels of the keys are large at every token; a scale a channel keeps them "
            "from ruining the others. An attention output averages values over tokens, so that a "
            "bad token costs only its own weight."
        ),
    ),
    Question(
        id="qz_q_phase",
        lesson=LESSON,
        points=1,
        text=lambda p: (
            "Weights go to int4, activations stay in bf16 (weight-only). What becomes faster?"
        ),
        choices=(
            "decoding at small batch; long prefills do not, or slow down",
            "prefills of long prompts; decoding at small batch does not",
            "both alike, since each reads all of the weights in a pass",
            "neither: products are computed in bf16, as they were before",
        ),
        notes={
            "neither: products are computed in bf16, as they were before": "where reading is the "
            "bound, fewer bytes are what counts",
        },
        why=lambda p: (
            "Small-batch decoding is bound by reading weights. A long prefill is bound by "
            "arithmetic, which stays bf16, and dequantizing comes on top. FP8 or int8 for weights "
            "*and* activations speeds both up."
        ),
    ),
)
