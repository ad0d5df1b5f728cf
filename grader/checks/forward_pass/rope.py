"""Lesson 02: rotary positions, how far to turn and how."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from grader.checks.forward_pass.lesson import LESSON
from grader.judging.compare import Comparison, as_array
from grader.judging.exercise import Case, Exercise, Inputs, given
from inferlab.operators import rope_angles, rotate

# ---- angles -------------------------------------------------------------------------------------


def _draw_positions(rng: np.random.Generator) -> Inputs:
    return {
        "positions": rng.choice(5000, size=int(rng.integers(3, 6)), replace=False) + 1,
        "d_head": 2 * int(rng.integers(3, 9)),
        "theta": float(rng.choice([500.0, 1e5, 5e5, 1e6])),
    }


def _angles(positions, d_head, theta, exponent=lambda i, d_head: -2.0 * i / d_head):
    if d_head % 2:
        raise ValueError("d_head must be even")
    pair = np.arange(d_head // 2)
    return np.asarray(positions, float)[:, None] * float(theta) ** exponent(pair, d_head)


def _angles_any_width(positions, d_head, theta):
    pair = np.arange(d_head // 2)
    return np.asarray(positions, float)[:, None] * float(theta) ** (-2.0 * pair / d_head)


def _angles_float32(positions, d_head, theta):
    exact = _angles(np.ones(1), d_head, theta)[0].astype(np.float32)
    return np.asarray(positions, np.float32)[:, None] * exact


def _angles_loop(positions, d_head, theta):
    if d_head % 2 == 1:
        raise ValueError(f"odd d_head {d_head}")
    return [
        [int(p) / math.pow(theta, 2 * i / d_head) for i in range(d_head // 2)] for p in positions
    ]


def _angles_torch(positions, d_head, theta):
    import torch

    if d_head % 2:
        raise ValueError("odd")
    pair = torch.arange(0, d_head, 2, dtype=torch.float64)
    return torch.outer(torch.as_tensor(positions).double(), 1.0 / theta ** (pair / d_head))


def _angles_exp(positions, d_head, theta):
    if d_head % 2:
        raise ValueError("odd")
    inverse = np.exp(-np.log(theta) * np.arange(0, d_head, 2) / d_head)
    return np.einsum("t,i->ti", np.array(positions, float), inverse)


ROPE_ANGLES = Exercise(
    id="rope_angles",
    reference=rope_angles,
    lesson=LESSON,
    points=2,
    minutes=9,
    difficulty=2,
    hints=(
        "First how far each pair turns per token, a row of d_head // 2 numbers; then every "
        "position times every one of them.",
        "turn_per_token = theta ** (-2.0 * np.arange(d_head // 2) / d_head). It begins with 1.",
        "np.asarray(positions, dtype=np.float64)[:, None] * turn_per_token spreads (T, 1) over "
        "(d_head // 2,). Before that: if d_head % 2, raise ValueError.",
    ),
    cases=(
        given("positions 0 and 3", positions=np.array([0, 3]), d_head=4, theta=100.0),
        given("position 1,000,003", positions=np.array([1_000_003, 7]), d_head=8, theta=500_000.0),
        given("d_head 5", positions=np.array([0, 1]), d_head=5, theta=100.0),
        given("one pair", positions=np.array([2, 5, 1]), d_head=2, theta=10_000.0),
    ),
    draw=_draw_positions,
    comparison=Comparison(
        terms=lambda i: 2 + i["d_head"] + math.log(i["theta"]),
        why="a power (log theta digits of its exponent are lost) and a product",
    ),
    wrong={
        "the exponent is -i/d_head; it is -2i/d_head": lambda positions, d_head, theta: _angles(
            positions, d_head, theta, lambda i, d: -i / d
        ),
        "the exponent is -4i/d_head: i already counts pairs, not numbers": (
            lambda positions, d_head, theta: _angles(
                positions, d_head, theta, lambda i, d: -4.0 * i / d
            )
        ),
        "the pairs are counted from 1; the first one turns by the position itself": (
            lambda positions, d_head, theta: _angles(
                positions, d_head, theta, lambda i, d: -2.0 * (i + 1) / d
            )
        ),
        "the base 10,000 is hard-coded; use theta (Llama-3: 500,000)": (
            lambda positions, d_head, theta: _angles(positions, d_head, 10_000.0)
        ),
        "the exponents are spread to -1 inclusive; the last one is -2(d_head/2 - 1)/d_head": (
            lambda positions, d_head, theta: _angles(
                positions, d_head, theta, lambda i, d: -np.linspace(0, 1, d // 2)
            )
        ),
        "later pairs turn faster: the exponent must be negative": (
            lambda positions, d_head, theta: _angles(
                positions, d_head, theta, lambda i, d: 2.0 * i / d
            )
        ),
        "the tokens are counted 0, 1, 2 …; the positions given are not used": (
            lambda positions, d_head, theta: _angles(np.arange(len(positions)), d_head, theta)
        ),
        "the positions are counted from 1; the first token stands at 0": (
            lambda positions, d_head, theta: _angles(positions + 1, d_head, theta)
        ),
        "computed in float32, which cannot hold a large position and a small angle: use float64": (
            _angles_float32
        ),
        "the angles are in degrees; radians are asked": lambda positions, d_head, theta: np.degrees(
            _angles(positions, d_head, theta)
        ),
        "one angle for each number; a pair shares one, so there are d_head // 2": (
            lambda positions, d_head, theta: np.concatenate(
                [_angles(positions, d_head, theta)] * 2, axis=-1
            )
        ),
        "whole turns are taken off: the angle itself is asked, however large": (
            lambda positions, d_head, theta: _angles(positions, d_head, theta) % (2 * np.pi)
        ),
        "2i / d_head is rounded down: divide with /, not with //": (
            lambda positions, d_head, theta: _angles(
                positions, d_head, theta, lambda i, d: -(2 * i // d)
            )
        ),
        "the positions are counted from the first one given; use them as they are": (
            lambda positions, d_head, theta: _angles(positions - positions[0], d_head, theta)
        ),
        "pairs and positions are exchanged: the shape is (T, d_head // 2)": (
            lambda positions, d_head, theta: _angles(positions, d_head, theta).T
        ),
        "an odd d_head is accepted: numbers are turned in pairs, so raise ValueError": (
            _angles_any_width
        ),
    },
    right={
        "two loops": _angles_loop,
        "torch.outer": _angles_torch,
        "exp of a logarithm, einsum": _angles_exp,
    },
)

# ---- rotation -----------------------------------------------------------------------------------


def _draw_heads(rng: np.random.Generator) -> Inputs:
    B, n_heads, T, half = (int(n) for n in rng.permuted([2, 3, 4, 5]))
    return {
        "x": rng.normal(size=(B, n_heads, T, 2 * half)),
        "angles": rng.uniform(0.3, 6, size=(T, half)),
    }


def _far_heads() -> Inputs:
    """float32, at a position whose angles float32 cannot hold."""
    return {
        "x": np.random.default_rng(4).normal(size=(1, 2, 2, 8)).astype(np.float32),
        "angles": rope_angles(np.array([1_000_003, 7]), 8, 500.0),
    }


def _drive_rotate(answer: Any, inputs: Inputs) -> dict[str, Any]:
    got = answer(**inputs)
    array = as_array(got)
    return {"turned": got, "number type": "" if array is None else str(array.dtype)}


def _cos_sin(x, angles):
    return np.cos(angles).astype(x.dtype), np.sin(angles).astype(x.dtype)


def _turned(x, angles, sign=1.0):
    a, b = np.split(x, 2, axis=-1)
    cos, sin = _cos_sin(x, angles)
    sin = (sign * sin).astype(x.dtype)
    return a * cos - b * sin, a * sin + b * cos


def _rotate_uncast(x, angles):
    a, b = np.split(x, 2, axis=-1)
    cos, sin = np.cos(angles), np.sin(angles)
    return np.concatenate([a * cos - b * sin, a * sin + b * cos], axis=-1)


def _rotate_neighbours(x, angles):
    cos, sin = _cos_sin(x, angles)
    a, b = x[..., 0::2], x[..., 1::2]
    return np.stack([a * cos - b * sin, a * sin + b * cos], axis=-1).reshape(x.shape)


def _apart(x):
    return np.concatenate([x[..., 0::2], x[..., 1::2]], axis=-1)


def _rotate_one_by_one(x, angles):
    """Turns a in place, then makes b from the turned a."""
    x = x.copy()
    a, b = np.split(x, 2, axis=-1)
    a[:] = a * np.cos(angles) - b * np.sin(angles)
    b[:] = a * np.sin(angles) + b * np.cos(angles)
    return x


def _rotate_mirror(x, angles):
    half = x.shape[-1] // 2
    flipped = np.concatenate([x[..., :half], x[..., half:][..., ::-1]], axis=-1)
    out = np.concatenate(_turned(flipped, angles), axis=-1)
    return np.concatenate([out[..., :half], out[..., half:][..., ::-1]], axis=-1)


def _rotate_complex(x, angles):
    half = x.shape[-1] // 2
    pairs = (x[..., :half] + 1j * x[..., half:]) * np.exp(1j * angles)
    return np.concatenate([pairs.real, pairs.imag], axis=-1).astype(x.dtype)


def _rotate_loop(x, angles):
    half = x.shape[-1] // 2
    out = np.zeros_like(x)
    for t in range(x.shape[2]):
        for i in range(half):
            c, s = math.cos(angles[t, i]), math.sin(angles[t, i])
            turn = np.array([[c, -s], [s, c]])
            out[:, :, t, [i, i + half]] = x[:, :, t, [i, i + half]] @ turn.T
    return out


def _rotate_hf(x, angles):
    """As transformers writes it: angles for all numbers, and half of the numbers swapped."""
    import torch

    x, angles = torch.from_numpy(x), torch.from_numpy(angles)
    cos, sin = torch.cat([angles, angles], -1).cos(), torch.cat([angles, angles], -1).sin()
    a, b = x.chunk(2, dim=-1)
    return (x * cos + torch.cat([-b, a], -1) * sin).to(x.dtype)


ROTATE = Exercise(
    id="rotate",
    reference=rotate,
    lesson=LESSON,
    points=2,
    minutes=10,
    difficulty=3,
    drive=_drive_rotate,
    hints=(
        "Cut the last axis in two halves, a and b: number i of a and number i of b are pair i. "
        "np.split(x, 2, axis=-1) does it.",
        "cos and sin of angles have shape (T, d_head // 2). Against (B, n_heads, T, d_head // 2) "
        "NumPy lines them up from the right: no reshaping is needed.",
        "np.concatenate([a * cos - b * sin, a * sin + b * cos], axis=-1), with cos and sin cast to "
        "x.dtype.",
    ),
    cases=(
        given(
            "a quarter turn of one pair",
            x=np.array([[[[1.0, 2.0, 0.0, 0.0]]]]),
            angles=np.array([[np.pi / 2, 0.0]]),
        ),
        given(
            "no turn",
            x=np.arange(24.0).reshape(1, 2, 2, 6),
            angles=np.zeros((2, 3)),
        ),
        Case("float32, position 1,000,003", _far_heads),
    ),
    draw=_draw_heads,
    comparison=Comparison(
        terms=lambda i: 4,
        magnitude=lambda i: 2 * float(np.abs(i["x"]).max()),
        why="cos and sin, two products and a sum",
    ),
    wrong={
        "pairs neighbours, 2i and 2i + 1 (GPT-J, llama.cpp); here the pair is i and i + d_head/2": (
            _rotate_neighbours
        ),
        "neighbours are turned, but written into the halves: each number keeps its own place": (
            lambda x, angles: _apart(_rotate_neighbours(x, angles))
        ),
        "turns the other way: (a, b) becomes (a cos - b sin, a sin + b cos)": lambda x, angles: (
            np.concatenate(_turned(x, angles, -1.0), axis=-1)
        ),
        "cos and sin are exchanged": lambda x, angles: np.concatenate(
            _turned(x, np.pi / 2 - angles), axis=-1
        ),
        "b is turned with the new a: both halves need the old numbers": _rotate_one_by_one,
        "only the first half is turned; b changes too": lambda x, angles: np.concatenate(
            [_turned(x, angles)[0], np.split(x, 2, axis=-1)[1]], axis=-1
        ),
        "the halves come back in the wrong order": lambda x, angles: np.concatenate(
            _turned(x, angles)[::-1], axis=-1
        ),
        "the turned pairs come back side by side; each number keeps its old place": (
            lambda x, angles: np.stack(_turned(x, angles), axis=-1).reshape(x.shape)
        ),
        "all tokens are turned by the first token's angles": lambda x, angles: np.concatenate(
            _turned(x, angles[:1]), axis=-1
        ),
        "pairs the ends, i and d_head - 1 - i; the pair is i and i + d_head/2": _rotate_mirror,
        "a sign is wrong: both terms of one half are added or subtracted": (
            lambda x, angles: np.concatenate(
                [_turned(x, angles)[0], _turned(x, angles, -1.0)[1]], axis=-1
            )
        ),
        "(a, b) becomes (a cos + b sin, a sin + b cos): the first sign is a minus": (
            lambda x, angles: np.concatenate(
                [_turned(x, angles, -1.0)[0], _turned(x, angles)[1]], axis=-1
            )
        ),
        "the result is float64 for a float32 x, and so is all that follows: cast cos and sin to "
        "x.dtype": _rotate_uncast,
        "the angles themselves are cast to x.dtype, which cannot hold large ones: take cos and sin "
        "first": lambda x, angles: np.concatenate(_turned(x, angles.astype(x.dtype)), axis=-1),
        "the angles are taken as degrees; they are radians": lambda x, angles: np.concatenate(
            _turned(x, np.radians(angles)), axis=-1
        ),
    },
    right={
        "complex numbers": _rotate_complex,
        "a 2 × 2 matrix for each pair": _rotate_loop,
        "as transformers writes it, in torch": _rotate_hf,
    },
)
