"""Lesson 02: the functions that work on one row alone: softmax, RMSNorm, SiLU."""

from __future__ import annotations

from typing import Any

import numpy as np

from grader.checks.forward_pass.lesson import LESSON
from grader.judging.compare import Comparison
from grader.judging.exercise import Exercise, Inputs, given
from inferlab.operators import rms_norm, silu, softmax
from labkit.measure.rewire import alone


def drive_alone(name: str) -> Any:
    """Call the answer with the course's parts in place of what its notebook has of them."""
    return lambda answer, inputs: alone(answer, name)(**inputs)


# ---- softmax ------------------------------------------------------------------------------------


def _draw_scores(rng: np.random.Generator) -> Inputs:
    B, T, S = int(rng.integers(2, 4)), int(rng.integers(3, 5)), int(rng.integers(5, 9))
    scores = rng.normal(size=(B, T, S)) * 2
    # exp(800) overflows float64, exp(-800) is 0 there: so each row needs a maximum of its own
    scores += rng.permuted(np.linspace(-4000, 4000, B * T)).reshape(B, T, 1)
    scores[-1, -1, 1:3] = -np.inf  # hidden keys
    return {"scores": scores}


def _soft(scores: np.ndarray, axis: Any = -1, base: Any = np.exp) -> np.ndarray:
    weights = base(scores - scores.max(axis=axis, keepdims=True))
    return weights / weights.sum(axis=axis, keepdims=True)


def _shifted(scores: np.ndarray, shift: np.ndarray, extra: float = 0.0) -> np.ndarray:
    weights = np.exp(scores - shift)
    return weights / (weights.sum(axis=-1, keepdims=True) + extra)


def _softmax_in_place(scores):
    scores -= scores.max(axis=-1, keepdims=True)
    np.exp(scores, out=scores)
    scores /= scores.sum(axis=-1, keepdims=True)
    return scores


def _softmax_abs_max(scores):
    finite = np.where(np.isfinite(scores), scores, 0)
    weights = np.exp(scores - np.abs(finite).max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


def _softmax_floor(scores):
    return _soft(np.maximum(scores, scores.max(axis=-1, keepdims=True) - 10))


def _softmax_rows(scores):
    rows = scores.reshape(-1, scores.shape[-1])
    out = []
    for row in rows:
        weights = [float(np.exp(score - max(row))) for score in row]
        out.append([weight / sum(weights) for weight in weights])
    return np.array(out).reshape(scores.shape)


def _softmax_torch(scores):
    import torch

    return torch.softmax(torch.from_numpy(scores), dim=-1)


def _softmax_logs(scores):
    return np.exp(scores - np.logaddexp.reduce(scores, axis=-1, keepdims=True))


def _largest_finite(scores: np.ndarray) -> float:
    return float(np.abs(scores[np.isfinite(scores)]).max())


SOFTMAX = Exercise(
    id="softmax",
    reference=softmax,
    lesson=LESSON,
    points=2,
    minutes=7,
    difficulty=1,
    hints=(
        "Three steps on the last axis: subtract the largest score, np.exp, divide by the sum. "
        "Subtracting one number from a whole row changes no ratio between its exponentials.",
        "scores.max(axis=-1) loses the axis and no longer lines up with scores. With "
        "keepdims=True it has shape (..., 1), and NumPy spreads it over the row.",
        "weights = np.exp(scores - scores.max(axis=-1, keepdims=True)); then divide weights by "
        "weights.sum(axis=-1, keepdims=True).",
    ),
    cases=(
        given("0 and log 3: ¼ and ¾", scores=np.array([0.0, np.log(3.0)])),
        given("two equal scores of 1000", scores=np.array([[1000.0, 1000.0]])),
        given("-1000 and -1001", scores=np.array([-1000.0, -1001.0, -np.inf])),
        given("float32, scores near 90", scores=np.array([[89.0, 90.0, 88.0]], np.float32)),
    ),
    draw=_draw_scores,
    comparison=Comparison(
        terms=lambda i: i["scores"].shape[-1],
        magnitude=lambda i: 1 + _largest_finite(i["scores"]),
        why="a sum of S weights; an error in a score counts in proportion to the scores",
    ),
    wrong={
        "np.exp of the raw scores overflows to inf, and inf/inf is nan: subtract the row's "
        "largest score first": lambda scores: (
            np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
        ),
        "subtracts the largest absolute score: with negative scores every weight becomes 0": (
            _softmax_abs_max
        ),
        "subtracts the row's mean or smallest score: beside one very low score the others still "
        "overflow, and a hidden key makes it -inf; subtract the largest": lambda scores: (
            np.exp(scores - scores.mean(-1, keepdims=True))
            / np.exp(scores - scores.mean(-1, keepdims=True)).sum(-1, keepdims=True)
        ),
        "one largest score for the whole array: rows far below it get weights of 0 only": (
            lambda scores: (
                np.exp(scores - scores.max()) / np.exp(scores - scores.max()).sum(-1, keepdims=True)
            )
        ),
        "one largest score for all rows of a sequence; each row has its own": lambda scores: (
            _shifted(scores, scores.max(axis=(-2, -1)[-scores.ndim :], keepdims=True))
        ),
        "the largest score is taken over the first axis; take it over the last": lambda scores: (
            _shifted(scores, scores.max(axis=0, keepdims=True))
        ),
        "something is added to the sum of the exponentials: it is at least 1, so nothing is "
        "divided by 0": lambda scores: _shifted(scores, scores.max(-1, keepdims=True), 1e-9),
        "the sum runs over the first axis; each row along the last axis must sum to 1": (
            lambda scores: _soft(scores, axis=0)
        ),
        "all numbers together sum to 1; each row must": lambda scores: _soft(scores, axis=None),
        "the weights are not divided by their sum": lambda scores: np.exp(
            scores - scores.max(-1, keepdims=True)
        ),
        "powers of 2 in place of powers of e": lambda scores: _soft(scores, base=np.exp2),
        "gives the logarithms of the weights; take np.exp of them": lambda scores: (
            scores - np.logaddexp.reduce(scores, axis=-1, keepdims=True)
        ),
        "the signs are turned round: the largest score must get the largest weight": (
            lambda scores: _soft(np.where(np.isfinite(scores), -scores, scores))
        ),
        "a hidden key (-inf) keeps a weight: its score must not be replaced by a finite one": (
            _softmax_floor
        ),
        "it changes its input scores in place; work on a copy": _softmax_in_place,
    },
    right={
        "rows and numbers one by one": _softmax_rows,
        "torch.softmax": _softmax_torch,
        "log-sum-exp": _softmax_logs,
    },
)

# ---- RMSNorm ------------------------------------------------------------------------------------


def _draw_rows(rng: np.random.Generator) -> Inputs:
    B, T, d_model = (int(n) for n in rng.integers((2, 3, 6), (4, 5, 12)))
    return {
        "x": rng.normal(size=(B, T, d_model)) * rng.choice([0.05, 1.0, 30.0], size=(B, T, 1)) + 0.4,
        "gain": rng.uniform(0.5, 2, d_model),
        "eps": float(rng.choice([1e-2, 1e-3, 1e-5])),
    }


def _normed(x, gain, eps=1e-6, mean=lambda square: np.mean(square, -1, keepdims=True)):
    return gain * x / np.sqrt(mean(x * x) + eps)


def _rms_in_place(x, gain, eps=1e-6):
    x /= np.sqrt(np.mean(x * x, -1, keepdims=True) + eps)
    x *= gain
    return x


def _rms_loop(x, gain, eps=1e-6):
    out = np.empty_like(x)
    for index in np.ndindex(x.shape[:-1]):
        mean_square = sum(float(number) ** 2 for number in x[index]) / x.shape[-1]
        out[index] = [
            g * n / (mean_square + eps) ** 0.5 for g, n in zip(gain, x[index], strict=True)
        ]
    return out


def _rms_torch(x, gain, eps=1e-6):
    import torch

    return torch.nn.functional.rms_norm(
        torch.from_numpy(x), (x.shape[-1],), torch.from_numpy(gain), eps
    )


def _rms_length(x, gain, eps=1e-6):
    d_model = x.shape[-1]
    length = np.linalg.norm(x, axis=-1, keepdims=True)
    return x * np.sqrt(d_model) / np.sqrt(length**2 + d_model * eps) * gain


RMS_NORM = Exercise(
    id="rms_norm",
    reference=rms_norm,
    lesson=LESSON,
    points=1,
    minutes=6,
    difficulty=1,
    hints=(
        "Read the name backwards: Square the numbers, take their Mean, take the Root. Each row "
        "(last axis) on its own.",
        "mean_square = np.mean(x * x, axis=-1, keepdims=True) has shape (..., 1); eps is added to "
        "it before np.sqrt.",
        "return gain * x / np.sqrt(mean_square + eps)",
    ),
    cases=(
        given("3 and 4", x=np.array([3.0, 4.0]), gain=np.array([1.0, 2.0]), eps=0.0),
        given(
            "eps not given, a row of zeros",
            x=np.array([[[0.0, 0.0, 0.0], [1e-3, 2e-3, 0.0]]]),
            gain=np.array([1.0, 1.0, 3.0]),
        ),
    ),
    draw=_draw_rows,
    comparison=Comparison(
        terms=lambda i: i["x"].shape[-1],
        why="a mean of d_model squares, a root and a division",
        rounds_to="float32",  # as most libraries compute it
    ),
    wrong={
        "divides by the mean square, not by its root": lambda x, gain, eps=1e-6: (
            gain * x / (np.mean(x * x, -1, keepdims=True) + eps)
        ),
        "subtracts the mean first; that is LayerNorm, RMSNorm does not": lambda x, gain, eps=1e-6: (
            _normed(x - x.mean(-1, keepdims=True), gain, eps)
        ),
        "divides by the standard deviation, which is measured from the mean": (
            lambda x, gain, eps=1e-6: gain * x / np.sqrt(np.var(x, -1, keepdims=True) + eps)
        ),
        "the mean runs over the tokens (axis -2); it must run over the last axis": (
            lambda x, gain, eps=1e-6: _normed(
                x, gain, eps, lambda square: square.mean(axis=max(0, x.ndim - 2), keepdims=True)
            )
        ),
        "one mean for all rows; each row has its own": lambda x, gain, eps=1e-6: _normed(
            x, gain, eps, np.mean
        ),
        "the squares are added up, not averaged": lambda x, gain, eps=1e-6: _normed(
            x, gain, eps, lambda square: np.sum(square, -1, keepdims=True)
        ),
        "eps is added after the root; it belongs under it": lambda x, gain, eps=1e-6: (
            gain * x / (np.sqrt(np.mean(x * x, -1, keepdims=True)) + eps)
        ),
        "eps is left out": lambda x, gain, eps=1e-6: _normed(x, gain, 0.0),
        "eps is fixed at 1e-6; use the argument": lambda x, gain, eps=1e-6: _normed(x, gain, 1e-6),
        "the larger of eps and the mean square is taken; eps is added": lambda x, gain, eps=1e-6: (
            gain * x / np.sqrt(np.maximum(np.mean(x * x, -1, keepdims=True), eps))
        ),
        "divides by d_model - 1; a mean divides by d_model": lambda x, gain, eps=1e-6: _normed(
            x, gain, eps, lambda square: square.sum(-1, keepdims=True) / (x.shape[-1] - 1)
        ),
        "the gain is left out": lambda x, gain, eps=1e-6: _normed(x, 1.0, eps),
        "multiplies by 1 + gain; that is Gemma's convention, here it is gain": (
            lambda x, gain, eps=1e-6: _normed(x, 1 + gain, eps)
        ),
        "it changes its input x in place; work on a copy": _rms_in_place,
    },
    right={
        "row by row, number by number": _rms_loop,
        "torch's rms_norm": _rms_torch,
        "from the length of the row": _rms_length,
    },
)

# ---- SiLU ---------------------------------------------------------------------------------------


def _draw_numbers(rng: np.random.Generator) -> Inputs:
    x = rng.normal(size=(2, int(rng.integers(3, 6)), 4)) * 5
    x[0, 0, :2] = [1000, -1000]
    return {"x": x}


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 0.5 * (1 + np.tanh(x / 2))


def _silu_torch(x):
    import torch

    return torch.nn.functional.silu(torch.from_numpy(x))


def _silu_cases(x):
    small = np.exp(-np.abs(x))  # never overflows
    return np.where(x >= 0, x / (1 + small), x * small / (1 + small))


SILU = Exercise(
    id="silu",
    reference=silu,
    lesson=LESSON,
    points=1,
    minutes=4,
    difficulty=1,
    hints=(
        "sigmoid(x) = 1 / (1 + exp(-x)). Multiply it by x.",
        "x / (1 + np.exp(-x)) is the whole formula. For x = -1000 np.exp warns of an overflow to "
        "inf, and x / inf is a harmless -0.0.",
        "To keep NumPy quiet, cut the exponent off where the result is 0 anyway: "
        "x / (1 + np.exp(-np.maximum(x, -80))).",
    ),
    cases=(
        given("0, 10 and -10", x=np.array([0.0, 10.0, -10.0])),
        given("1000 and -1000", x=np.array([[1000.0, -1000.0]])),
        given("float32, 100 and -100", x=np.array([100.0, -100.0], np.float32)),
    ),
    draw=_draw_numbers,
    comparison=Comparison(
        terms=lambda i: 4,
        magnitude=lambda i: float(np.abs(i["x"]).max()),
        why="exp, a sum, a division and a product; 1 + tanh loses digits in proportion to x",
    ),
    wrong={
        "that is the sigmoid; multiply it by x": lambda x: sigmoid(x),
        "exp(x) / (1 + exp(x)) is inf/inf for a large x: use 1 / (1 + exp(-x))": lambda x: (
            x * np.exp(x) / (1 + np.exp(x))
        ),
        "that is ReLU: negative numbers are damped, not cut off": lambda x: np.maximum(x, 0),
        "the sign of the exponent is turned round: sigmoid(x) is 1 / (1 + exp(-x))": lambda x: (
            x * sigmoid(-x)
        ),
        "that is GELU, which other models use": lambda x: x * sigmoid(1.702 * x),
        "x itself is cut off: only the exponent may be, silu(1000) is 1000": lambda x: (
            np.clip(x, -80, 80) * sigmoid(np.clip(x, -80, 80))
        ),
        "the sign of x is dropped in the exponent: negative numbers are not damped": lambda x: (
            x * sigmoid(np.abs(x))
        ),
        "x is squared: sigmoid(x) times x, once": lambda x: x * x * sigmoid(x),
        "that is tanh": lambda x: np.tanh(x),
    },
    right={
        "by way of tanh": lambda x: x * 0.5 * (1 + np.tanh(x / 2)),
        "torch's silu": _silu_torch,
        "two formulas, by the sign of x": _silu_cases,
        "the formula as it stands": lambda x: x / (1 + np.exp(-x)),
    },
)
