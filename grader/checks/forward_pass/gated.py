"""Lesson 02: the gated MLP."""

from __future__ import annotations

import math

import numpy as np

from grader.checks.forward_pass.lesson import LESSON
from grader.checks.forward_pass.small import drive_alone, sigmoid
from grader.judging.compare import Comparison
from grader.judging.exercise import Exercise, Inputs, given
from inferlab.operators import silu, swiglu


def _draw_mlp(rng: np.random.Generator) -> Inputs:
    B, T, d_model = (int(n) for n in rng.integers((2, 3, 4), (4, 6, 8)))
    d_ff = d_model + int(rng.integers(3, 8))
    return {
        "x": rng.normal(size=(B, T, d_model)) * 2,
        "w_gate": rng.normal(size=(d_model, d_ff)),
        "w_up": rng.normal(size=(d_model, d_ff)),
        "w_down": rng.normal(size=(d_ff, d_model)),
    }


def _one_hidden() -> Inputs:
    """One token [1, 2], one number inside: gate 2, up 3, so silu(2) * 3 on the way down."""
    return {
        "x": np.array([[[1.0, 2.0]]]),
        "w_gate": np.array([[0.0], [1.0]]),
        "w_up": np.array([[1.0], [1.0]]),
        "w_down": np.array([[1.0, -1.0]]),
    }


def _loud_gate() -> Inputs:
    """Gates of 1000 and -1000: exp(1000) is infinite, silu(1000) is 1000."""
    return _one_hidden() | {"x": np.array([[[1.0, 1000.0], [1.0, -1000.0]]])}


def _gelu(x: np.ndarray) -> np.ndarray:
    return x * 0.5 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def _swiglu_overflows(x, w_gate, w_up, w_down):
    with np.errstate(all="ignore"):
        gate = x @ w_gate
        return (gate * np.exp(gate) / (1 + np.exp(gate)) * (x @ w_up)) @ w_down


def _swiglu_loop(x, w_gate, w_up, w_down):
    out = np.zeros_like(x)
    for b, t in np.ndindex(x.shape[:2]):
        for j in range(w_gate.shape[1]):
            gate, up = x[b, t] @ w_gate[:, j], x[b, t] @ w_up[:, j]
            out[b, t] += gate / (1 + np.exp(-gate)) * up * w_down[j]
    return out


def _swiglu_torch(x, w_gate, w_up, w_down):
    import torch

    x, w_gate, w_up, w_down = map(torch.from_numpy, (x, w_gate, w_up, w_down))
    return (torch.nn.functional.silu(x @ w_gate) * (x @ w_up)) @ w_down


def _swiglu_joined(x, w_gate, w_up, w_down):
    gate, up = np.split(x @ np.concatenate([w_gate, w_up], axis=1), 2, axis=-1)
    return np.einsum("btf,fd->btd", gate * sigmoid(gate) * up, w_down)


SWIGLU = Exercise(
    id="swiglu",
    reference=swiglu,
    lesson=LESSON,
    points=1,
    minutes=6,
    difficulty=2,
    drive=drive_alone("swiglu"),
    hints=(
        "Three projections. Two go from d_model to d_ff (gate and up), the third goes back (down). "
        "Only the gate goes through silu.",
        "Inside, gate and up have the same shape (B, T, d_ff) and are multiplied number by number "
        "with *.",
        "return project(silu(project(x, w_gate)) * project(x, w_up), w_down)",
    ),
    cases=(
        given("one number inside", **_one_hidden()),
        given("gates of 1000 and -1000", **_loud_gate()),
        given(
            "all zeros",
            x=np.zeros((1, 2, 3)),
            w_gate=np.ones((3, 5)),
            w_up=np.ones((3, 5)),
            w_down=np.ones((5, 3)),
        ),
    ),
    draw=_draw_mlp,
    comparison=Comparison(
        terms=lambda i: sum(i["w_gate"].shape),
        magnitude=lambda i: float(
            np.einsum(
                "btd,df,btD,Df,fe->bte",
                *(np.abs(i[n]) for n in ("x", "w_gate", "x", "w_up", "w_down")),
            ).max()
        ),
        why="sums over d_model and d_ff",
    ),
    wrong={
        "gate and up are exchanged: silu belongs to the gate": lambda x, w_gate, w_up, w_down: (
            swiglu(x, w_up, w_gate, w_down)
        ),
        "silu is applied to the product; it belongs to the gate alone": (
            lambda x, w_gate, w_up, w_down: silu((x @ w_gate) * (x @ w_up)) @ w_down
        ),
        "silu is missing": lambda x, w_gate, w_up, w_down: ((x @ w_gate) * (x @ w_up)) @ w_down,
        "the up projection is missing: that is a plain MLP, without a gate": (
            lambda x, w_gate, w_up, w_down: silu(x @ w_gate) @ w_down
        ),
        "gate and up are added; they are multiplied": lambda x, w_gate, w_up, w_down: (
            (silu(x @ w_gate) + x @ w_up) @ w_down
        ),
        "silu is applied to both; only the gate has it": lambda x, w_gate, w_up, w_down: (
            (silu(x @ w_gate) * silu(x @ w_up)) @ w_down
        ),
        "exp(gate) / (1 + exp(gate)) is inf/inf for a large gate: use your silu": _swiglu_overflows,
        "a sigmoid in place of silu: that is GLU": lambda x, w_gate, w_up, w_down: (
            (sigmoid(x @ w_gate) * (x @ w_up)) @ w_down
        ),
        "a ReLU in place of silu: that is ReGLU": lambda x, w_gate, w_up, w_down: (
            (np.maximum(x @ w_gate, 0) * (x @ w_up)) @ w_down
        ),
        "a GELU in place of silu: that is GEGLU": lambda x, w_gate, w_up, w_down: (
            (_gelu(x @ w_gate) * (x @ w_up)) @ w_down
        ),
        "the input is added; the decoder block does that, not the MLP": (
            lambda x, w_gate, w_up, w_down: x + swiglu(x, w_gate, w_up, w_down)
        ),
        "the down projection is missing": lambda x, w_gate, w_up, w_down: (
            silu(x @ w_gate) * (x @ w_up)
        ),
    },
    right={
        "token by token, number by number": _swiglu_loop,
        "torch": _swiglu_torch,
        "gate and up in one product, einsum": _swiglu_joined,
    },
)
