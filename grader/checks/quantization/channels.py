"""Lesson 07: outliers moved into the weights, and scales that heed the activations."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from grader.checks.quantization.lesson import LESSON
from grader.judging.compare import Comparison
from grader.judging.exercise import Case, Exercise, Inputs
from inferlab.model import load_model
from inferlab.quantization import (
    dequantize,
    migrate_outliers,
    quantize_absmax,
    quantize_groups,
    relative_error,
    search_scales,
)
from inferlab.quantized_model import calibration_inputs

# ---- outliers moved into the weights ------------------------------------------------------------


def outlier_activations(rng: np.random.Generator, T: int, d_in: int, d_out: int) -> Inputs:
    """Two channels of x are 60 times as large; one channel of x and one row of w are 0."""
    x, w = rng.normal(size=(T, d_in)), rng.normal(size=(d_in, d_out))
    large = rng.choice(np.arange(2, d_in), size=2, replace=False)
    x[:, large] *= 60
    x[:, 0] = w[1] = 0
    w *= rng.uniform(0.2, 3, size=(d_in, 1))
    return {"x": x, "w": w}


def _draw_migrate(rng: np.random.Generator) -> Inputs:
    sizes = (int(rng.integers(*span)) for span in ((12, 20), (7, 11), (13, 17)))
    return {**outlier_activations(rng, *sizes), "alpha": float(rng.choice([0.4, 0.6, 0.7]))}


def int8_error(x: np.ndarray, w: np.ndarray, x_used: np.ndarray, w_used: np.ndarray) -> float:
    """Relative error of x @ w with int8 factors: a scale for each token and output channel."""
    rounded = dequantize(*quantize_absmax(x_used, 8, 1)) @ dequantize(
        *quantize_absmax(w_used, 8, 0)
    )
    return float(relative_error(x @ w, rounded))


def _drive_migrate(answer: Any, inputs: Inputs) -> dict[str, Any]:
    x, w = inputs["x"], inputs["w"]
    moved_x, moved_w = answer(**inputs)
    seen: dict[str, Any] = {"x / s": moved_x, "w * s": moved_w}
    moved_x, moved_w = np.asarray(moved_x, float), np.asarray(moved_w, float)
    if moved_x.shape == x.shape and moved_w.shape == w.shape:
        allowed = 1e-12 * np.abs(x).max() * np.abs(w).max() * x.shape[1]
        seen["the product is unchanged"] = bool(np.abs(moved_x @ moved_w - x @ w).max() <= allowed)
        if 0 < inputs.get("alpha", 0.5) < 1:
            better = int8_error(x, w, moved_x, moved_w) < int8_error(x, w, x, w)
            seen["the int8 product is closer than before"] = better
    return seen


def _migrate(
    factor: Callable = lambda xm, wm, alpha: xm**alpha / wm ** (1 - alpha),
    x_max: Callable = lambda x: np.abs(x).max(axis=0),
    w_max: Callable = lambda w: np.abs(w).max(axis=1),
    apply: Callable = lambda x, w, s: (x / s, w * s[:, None]),
    guard: bool = True,
) -> Callable:
    """migrate_outliers with one step replaced."""

    def migrate(x, w, alpha=0.5):
        xm, wm = x_max(x), w_max(w)
        if guard:
            dead = (xm == 0) | (wm == 0)
            xm, wm = np.where(dead, 1, xm), np.where(dead, 1, wm)
        with np.errstate(divide="ignore", invalid="ignore"):
            return apply(x, w, factor(xm, wm, alpha))

    return migrate


def _migrate_loop(x, w, alpha=0.5):
    x, w = x.copy(), w.copy()
    for i in range(x.shape[1]):
        a, b = max(map(abs, x[:, i])), max(map(abs, w[i]))
        if a and b:
            s = a**alpha * b ** (alpha - 1)
            x[:, i] /= s
            w[i] *= s
    return x, w


def _migrate_logs(x, w, alpha=0.5):
    a, b = np.max(np.abs(x), axis=0), np.linalg.norm(w, np.inf, axis=1)
    alive = (a > 0) & (b > 0)
    logs = alpha * np.log(a, where=alive, out=np.zeros_like(a))
    logs -= (1 - alpha) * np.log(b, where=alive, out=np.zeros_like(b))
    return x * np.exp(-logs), np.diag(np.exp(logs)) @ w


MIGRATE = Exercise(
    id="migrate_outliers",
    reference=migrate_outliers,
    lesson=LESSON,
    points=2,
    minutes=10,
    difficulty=3,
    hints=(
        "One number s for each input channel. Columns of x and rows of w belong to input channels.",
        "x_largest = np.abs(x).max(axis=0); w_largest = np.abs(w).max(axis=1). Where one of the "
        "two is 0, set both to 1 with np.where, and s comes out as 1.",
        "s = x_largest**alpha / w_largest**(1 - alpha); return x / s, w * s[:, None]",
    ),
    cases=(
        Case(
            "the example of the statement",
            lambda: {"x": np.array([[16.0], [-3]]), "w": np.array([[-4.0, 1]])},
        ),
        Case(
            "outliers, a channel of zeros, a row of zeros",
            lambda: outlier_activations(np.random.default_rng(8), 16, 9, 14),
        ),
        Case(
            "alpha 1: all of it goes into w",
            lambda: {
                **outlier_activations(np.random.default_rng(9), 16, 9, 14),
                "alpha": 1.0,
            },
        ),
    ),
    draw=_draw_migrate,
    drive=_drive_migrate,
    comparison=Comparison(terms=lambda i: 8, why="two powers and two divisions"),
    wrong={
        "x is multiplied and w divided: the outliers grow": _migrate(
            apply=lambda x, w, s: (x * s, w / s[:, None])
        ),
        "only x is divided: the product changes unless w is multiplied": _migrate(
            apply=lambda x, w, s: (x / s, w)
        ),
        "the largest of each token, not of each input channel": _migrate(
            x_max=lambda x: np.resize(np.abs(x).max(axis=1), x.shape[1])
        ),
        "the largest of each column of w: an input channel is a row of w": _migrate(
            w_max=lambda w: np.abs(w).max(axis=0)[: len(w)]
        ),
        "the signed maximum: take the magnitude": _migrate(x_max=lambda x: np.abs(x.max(axis=0))),
        "alpha and 1 - alpha are swapped": _migrate(
            factor=lambda xm, wm, alpha: xm ** (1 - alpha) / wm**alpha
        ),
        "the weights' factor is multiplied in: it belongs below the line": _migrate(
            factor=lambda xm, wm, alpha: xm**alpha * wm ** (1 - alpha)
        ),
        "the weights are left out of s": _migrate(factor=lambda xm, wm, alpha: xm**alpha),
        "alpha is ignored: 0.5 is only the default": _migrate(
            factor=lambda xm, wm, alpha: (xm / wm) ** 0.5
        ),
        "a channel of zeros gives s = 0 or infinity, and nan: there s is 1": _migrate(guard=False),
        "the mean magnitude in place of the largest: rounding feels the largest": _migrate(
            x_max=lambda x: np.abs(x).mean(axis=0)
        ),
    },
    right={
        "channel by channel": _migrate_loop,
        "logarithms and a diagonal matrix": _migrate_logs,
    },
)

# ---- scales that heed the activations -----------------------------------------------------------

ALPHAS = (0.0, 0.15, 0.3, 0.45, 0.6, 0.75, 0.9, 1.0)
PROMPT = (
    "First Witch:\nWhen shall we three meet again\nIn thunder, lightning, or in rain?\n\n"
    "Second Witch:\nWhen the hurlyburly's done,\nWhen the battle's lost and won.\n"
)


@lru_cache(maxsize=1)
def _real_layers() -> tuple[tuple[np.ndarray, np.ndarray], ...]:
    """Inputs and weights of every layer's last matrix, from the trained model of the course."""
    model = load_model("tiny-target")
    assert model.tokenizer is not None
    inputs = calibration_inputs(model, model.tokenizer.encode(PROMPT))
    return tuple(
        (seen["hidden"].astype(float), layer.w_down.astype(float))
        for seen, layer in zip(inputs, model.weights.layers, strict=True)
    )


def _real_activations(layer: int, n_channels: int = 256, n_outputs: int = 40) -> Inputs:
    x, w = _real_layers()[layer]
    return {
        "x": x[:, :n_channels].copy(),
        "w": w[:n_channels, :n_outputs].copy(),
        "group": 32,
        "alphas": ALPHAS,
    }


def _draw_search(rng: np.random.Generator) -> Inputs:
    """Activations whose channels differ by an order of magnitude."""
    T, n_groups, d_out = int(rng.integers(40, 50)), int(rng.integers(3, 6)), int(rng.integers(7, 9))
    group = int(rng.choice([16, 20]))
    spread = np.exp(rng.normal(size=group * n_groups) * 1.2)
    return {
        "x": rng.normal(size=(T, group * n_groups)) * spread + 0.3 * spread,
        "w": rng.normal(size=(group * n_groups, d_out)),
        "group": group,
        "alphas": ALPHAS[int(rng.integers(2)) :],
        "bits": 2,
    }


def _output_error(inputs: Inputs, s: np.ndarray) -> float:
    x, w, group, bits = inputs["x"], inputs["w"], inputs["group"], inputs.get("bits", 4)
    codes, scales = quantize_groups(w * s[:, None], group, bits)
    restored = dequantize(codes, scales.repeat(group, axis=0)) / s[:, None]
    return float(np.mean((x @ (w - restored)) ** 2))


def _drive_search(answer: Any, inputs: Inputs) -> dict[str, Any]:
    """The scales; and whether they help where they belong, and not on channels drawn at random."""
    s = answer(**inputs)
    seen: dict[str, Any] = {"s": s}
    s = np.asarray(s, float)
    n_channels = inputs["x"].shape[1]
    if n_channels > 100 and s.shape == (n_channels,) and np.all(s > 0):  # real activations
        plain = _output_error(inputs, np.ones_like(s))
        seen["closer outputs than plain rounding"] = _output_error(inputs, s) < plain
        shuffled = [np.random.default_rng(i).permutation(s) for i in range(3)]
        helped = min(_output_error(inputs, other) for other in shuffled) < plain
        seen["the same scales on random channels help too"] = helped
    return seen


def _search(
    size: Callable = lambda x, w: np.abs(x).mean(axis=0),
    error: Callable = lambda x, w, restored: np.mean((x @ (w - restored)) ** 2),
    choose: Callable = np.argmin,
    undo: bool = True,
    result: Callable = lambda s, restored: s,
    floor: float = 1e-6,
) -> Callable:
    """search_scales with one step replaced."""

    def search(x, w, group, alphas, bits=4):
        found = []
        channel_size = size(x, w)
        channel_size = np.maximum(channel_size, floor * channel_size.max())
        for alpha in alphas:
            s = channel_size**alpha
            codes, scales = quantize_groups(w * s[:, None], group, bits)
            restored = dequantize(codes, scales.repeat(group, axis=0))
            restored = restored / s[:, None] if undo else restored
            found.append((error(x, w, restored), s, restored))
        return result(*found[int(choose([e for e, _, _ in found]))][1:])

    return search


def _search_running_best(x, w, group, alphas, bits=4):
    best, kept = np.inf, None
    exact = x @ w
    mean = np.mean(np.abs(x), axis=0)
    for alpha in alphas:
        s = np.clip(mean, 1e-6 * mean.max(), None) ** alpha
        scaled = (w.T * s).T
        codes, scales = quantize_groups(scaled, group, bits)
        restored = codes.reshape(len(scales), group, -1) * scales[:, None]
        error = np.square((x / s) @ restored.reshape(w.shape) - exact).sum()
        if error < best:
            best, kept = error, s
    return kept


def _search_gram(x, w, group, alphas, bits=4):
    """The error by way of x.T @ x."""
    gram, size = x.T @ x, np.abs(x).sum(axis=0) / len(x)
    size[size < 1e-6 * size.max()] = 1e-6 * size.max()
    errors = []
    for alpha in alphas:
        s = size**alpha
        codes, scales = quantize_groups(np.diag(s) @ w, group, bits)
        off = w - dequantize(codes, np.repeat(scales, group, axis=0)) / s[:, None]
        errors.append(np.einsum("ij,ik,kj->", off, gram, off, optimize=True))
    return size ** alphas[int(np.argmin(errors))]


SEARCH = Exercise(
    id="search_scales",
    reference=search_scales,
    lesson=LESSON,
    points=4,
    minutes=20,
    difficulty=4,
    uses=("quantize_groups", "dequantize"),
    hints=(
        "First size, one number an input channel: np.abs(x).mean(axis=0), then np.maximum(size, "
        "1e-6 * size.max()). Then a loop over alphas that keeps a list of errors.",
        "In the loop: s = size**alpha; codes, scales = quantize_groups(w * s[:, None], group, "
        "bits); restored = dequantize(codes, scales.repeat(group, axis=0)) / s[:, None].",
        "The error is np.mean((x @ (w - restored))**2). Return the s at np.argmin(errors): the "
        "first of equal ones.",
    ),
    cases=(
        Case(
            "the example of the statement",
            lambda: {
                "x": np.array([[2.0, -1], [6, 1]]),
                "w": np.array([[0.9, -0.3, 0.5], [1.0, 1.1, -0.7]]),
                "group": 2,
                "alphas": (0.0, 0.5),
            },
        ),
        Case("activations of a trained model, layer 3", lambda: _real_activations(3)),
        Case("activations of a trained model, layer 5", lambda: _real_activations(5)),
        Case("a channel that never fires", lambda: _silent_channel()),
        Case("2 bits", lambda: _draw_search(np.random.default_rng(4))),
        Case("all channels alike: every alpha errs as much", lambda: _channels_alike()),
        Case("alphas without 0", lambda: {**_silent_channel(), "alphas": (1.5, 3.0)}),
    ),
    draw=_draw_search,
    n_draws=3,
    drive=_drive_search,
    comparison=Comparison(terms=lambda i: len(i["x"]), why="a mean over the tokens, a power"),
    wrong={
        "the sizes are those of the weights: it is the activations that tell what matters": _search(
            size=lambda x, w: np.abs(w).mean(axis=1)
        ),
        "channels drawn at random are protected: protect those with large activations": _search(
            size=lambda x, w: np.random.default_rng(0).permutation(np.abs(x).mean(axis=0))
        ),
        "small activations are protected: s grows with the size, it is not 1 / size**alpha": (
            _search(result=lambda s, restored: 1 / s)
        ),
        "keeps the s with the largest error": _search(choose=np.argmax),
        "the last of equal ones: a later s must have a smaller error": _search(
            choose=lambda errors: len(errors) - 1 - np.argmin(errors[::-1])
        ),
        "plain rounding is tried too where alphas has no 0: try each of alphas": (
            lambda x, w, group, alphas, bits=4: search_scales(x, w, group, (0.0, *alphas), bits)
        ),
        "the last alpha is taken without looking at its error": _search(choose=lambda e: -1),
        "alpha 0 always wins: compare the outputs, not the weights, and divide by s again": (
            _search(undo=False)
        ),
        "the mean without magnitudes: signs cancel": _search(
            size=lambda x, w: np.abs(x.mean(axis=0))
        ),
        "the largest activation in place of the mean": _search(
            size=lambda x, w: np.abs(x).max(axis=0)
        ),
        "the mean over channels, one number a token": _search(
            size=lambda x, w: np.resize(np.abs(x).mean(axis=1), x.shape[1])
        ),
        "always 4 bits: bits is ignored": lambda x, w, group, alphas, bits=4: search_scales(
            x, w, group, alphas
        ),
        "s has a common factor taken out: that changes no rounding, but s = size**alpha is asked": (
            _search(result=lambda s, restored: s / np.sqrt(s.max() * s.min()))
        ),
        "returns the restored weights: the scales are asked": _search(
            result=lambda s, restored: restored
        ),
        "a channel that never fires gets s = 0 and divides by it: keep 1e-6 of the largest": (
            _search(floor=0.0)
        ),
    },
    right={
        "the best so far, x divided in place of w": _search_running_best,
        "by way of x.T @ x": _search_gram,
    },
)


def _channels_alike() -> Inputs:
    """Every size is 4: s is 1, 2 or 4 in all channels, which changes no rounding and no error."""
    rng = np.random.default_rng(12)
    x = rng.choice([-4.0, 4.0], size=(10, 8))
    return {"x": x, "w": rng.normal(size=(8, 6)), "group": 4, "alphas": (0.0, 0.5, 1.0)}


def _silent_channel() -> Inputs:
    rng = np.random.default_rng(11)
    x = rng.normal(size=(20, 8)) * np.array([9, 1, 1, 0, 1, 5, 1, 1.0])
    return {"x": x, "w": rng.normal(size=(8, 6)), "group": 4, "alphas": (0.0, 0.3, 0.6)}
