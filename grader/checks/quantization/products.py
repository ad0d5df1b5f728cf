"""Lesson 07: products that read codes, through a memory that counts and in whole numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from grader.checks.quantization.lesson import LESSON, number_type
from grader.judging.compare import Comparison
from grader.judging.exercise import Case, Exercise, Inputs, given
from inferlab.counted_memory import CountedMemory
from inferlab.quantization import (
    dequantize,
    matmul_int8,
    matmul_packed,
    pack_nibbles,
    unpack_nibbles,
)

# ---- a product that reads packed codes ----------------------------------------------------------


def _packed_inputs(rng: np.random.Generator, T: int, n_groups: int, group: int, d_out: int):
    codes = rng.integers(-8, 8, size=(n_groups * group, d_out)).astype(np.int8)
    return {
        "x": rng.normal(size=(T, n_groups * group)),
        "packed": pack_nibbles(codes),
        "scales": rng.uniform(0.1, 2, size=(n_groups, d_out)),
        "group": group,
    }


def _draw_packed(rng: np.random.Generator) -> Inputs:
    T, n_groups, d_out = (int(rng.integers(*span)) for span in ((2, 5), (56, 65), (40, 50)))
    return _packed_inputs(rng, T, n_groups, 32, d_out)


def _drive_packed(answer: Any, inputs: Inputs) -> dict[str, Any]:
    arrays = {name: inputs[name] for name in ("x", "packed", "scales")}
    d_in, d_out = 2 * len(inputs["packed"]), inputs["packed"].shape[1]
    memory = CountedMemory(**arrays, y=np.full((len(inputs["x"]), d_out), np.nan))
    with memory.watching():
        answer(memory=memory, group=inputs["group"])
    seen: dict[str, Any] = {
        "y": memory.result("y"),
        "bytes loaded": memory.loaded_bytes,
        "bytes stored": memory.stored_bytes,
    }
    if d_in * d_out > 10_000:  # for a few numbers the interpreter's own memory is larger
        name = "holds half the float32 matrix or more at once"
        seen[name] = memory.peak_bytes >= d_in * d_out * 4 // 2
    return seen


def _group_product(
    unpack: Callable = unpack_nibbles,
    rows: Callable = lambda g, group: slice(g * group // 2, (g + 1) * group // 2),
    scale_row: Callable = lambda g: g,
    load_x: Callable = lambda memory, part: memory.load("x", slice(None), part),
    finish: str = "once",
) -> Callable:
    """matmul_packed with one step replaced."""

    def product(memory, group):
        total = np.zeros(memory.shape("y"))
        for g in range(memory.shape("scales")[0]):
            codes = unpack(memory.load("packed", rows(g, group)))
            tile = codes * memory.load("scales", scale_row(g))
            y = load_x(memory, slice(g * group, (g + 1) * group)) @ tile
            total = y if finish == "last" else total + y
            if finish == "always":
                memory.store("y", total)
        if finish != "always":
            memory.store("y", total)

    return product


def _unsigned(packed: np.ndarray) -> np.ndarray:
    return np.stack([packed & 15, packed >> 4], axis=1).reshape(2 * len(packed), -1)


def _swapped(packed: np.ndarray) -> np.ndarray:
    return (
        unpack_nibbles(packed).reshape(-1, 2, packed.shape[1])[:, ::-1].reshape(2 * len(packed), -1)
    )


def _halves_apart(packed: np.ndarray) -> np.ndarray:
    codes = unpack_nibbles(packed)
    return np.concatenate([codes[0::2], codes[1::2]])


def _product_whole(memory, group):
    codes = unpack_nibbles(memory.load("packed"))
    w = dequantize(codes, memory.load("scales").repeat(group, axis=0))
    memory.store("y", memory.load("x") @ w)


def _product_scale_a_row(memory, group):
    total = np.zeros(memory.shape("y"))
    for pair in range(memory.shape("packed")[0]):
        codes = unpack_nibbles(memory.load("packed", slice(pair, pair + 1)))
        tile = codes * memory.load("scales", 2 * pair // group)
        total += memory.load("x", slice(None), slice(2 * pair, 2 * pair + 2)) @ tile
    memory.store("y", total)


def _product_mean_scale(memory, group):
    total = np.zeros(memory.shape("y"))
    for g in range(memory.shape("scales")[0]):
        codes = unpack_nibbles(memory.load("packed", slice(g * group // 2, (g + 1) * group // 2)))
        total += memory.load("x", slice(None), slice(g * group, (g + 1) * group)) @ codes
    memory.store("y", total * memory.load("scales").mean(axis=0))


def _product_scaled_once(memory, group):
    """All codes are multiplied and summed; the last group's scales stand outside the sum."""
    total, scales = np.zeros(memory.shape("y")), None
    for g in range(memory.shape("scales")[0]):
        codes = unpack_nibbles(memory.load("packed", slice(g * group // 2, (g + 1) * group // 2)))
        scales = memory.load("scales", g)
        total += memory.load("x", slice(None), slice(g * group, (g + 1) * group)) @ codes
    memory.store("y", total * scales)


def _product_rescaled(memory, group):
    """Each group's sum of codes is scaled, not each weight."""
    x = memory.load("x")
    y = np.zeros(memory.shape("y"))
    for g, start in enumerate(range(0, x.shape[1], group)):
        packed = memory.load("packed", slice(start // 2, (start + group) // 2))
        codes = unpack_nibbles(packed).astype(float)
        y += (x[:, start : start + group] @ codes) * memory.load("scales", g)
    memory.store("y", y)


def _product_by_columns(memory, group):
    """One output channel at a time: x is loaded once and kept."""
    x, n_out = memory.load("x"), memory.shape("y")[1]
    y = np.empty(memory.shape("y"))
    for j in range(n_out):
        codes = unpack_nibbles(memory.load("packed", slice(None), slice(j, j + 1)))[:, 0]
        y[:, j] = x @ (codes * np.repeat(memory.load("scales", slice(None), j), group))
    memory.store("y", y)


MATMUL_PACKED = Exercise(
    id="matmul_packed",
    reference=matmul_packed,
    lesson=LESSON,
    points=4,
    minutes=18,
    difficulty=4,
    uses=("unpack_nibbles", "dequantize"),
    hints=(
        "One loop over the groups. Group g has inputs g * group to (g + 1) * group, half as many "
        "rows of packed, and one row of scales.",
        'codes = unpack_nibbles(memory.load("packed", slice(g * group // 2, (g + 1) * group // '
        '2))); tile = dequantize(codes, memory.load("scales", g)).',
        'total = np.zeros(memory.shape("y")) before the loop; in it total += memory.load("x", '
        "slice(None), slice(g * group, (g + 1) * group)) @ tile; after it one memory.store.",
    ),
    cases=(
        Case(
            "the example of the statement",
            lambda: {
                "x": np.ones((1, 2)),
                "packed": np.array([[0x21]], np.uint8),
                "scales": np.array([[0.5]]),
                "group": 2,
            },
        ),
        Case("three groups of 4", lambda: _packed_inputs(np.random.default_rng(0), 2, 3, 4, 5)),
    ),
    draw=_draw_packed,
    n_draws=3,
    drive=_drive_packed,
    comparison=Comparison(
        terms=lambda i: i["x"].shape[1],
        magnitude=lambda i: float(np.abs(i["x"]).max() * 8 * i["scales"].max()),
        why="a sum over d_in products",
    ),
    wrong={
        "right numbers, but the whole matrix is dequantized at once: only one group at a time": (
            _product_whole
        ),
        "the halves of each byte are swapped: the low half is the even row": _group_product(
            unpack=_swapped
        ),
        "no negative codes: unpack_nibbles gives signed ones": _group_product(unpack=_unsigned),
        "the low halves as first rows of the group, the high ones as last: rows alternate": (
            _group_product(unpack=_halves_apart)
        ),
        "all of x is loaded again for every group: load only the columns that the group meets": (
            _group_product(load_x=lambda memory, part: memory.load("x")[:, part])
        ),
        "the scales are loaded again for every pair of rows: once a group is enough": (
            _product_scale_a_row
        ),
        "the first group's scales are used for all groups": _group_product(scale_row=lambda g: 0),
        "y is stored after every group: sum up first, store once": _group_product(finish="always"),
        "only the last group is in y: the groups' products must be added": _group_product(
            finish="last"
        ),
        "the sum over all groups is scaled once, by the last group's scales: scale each group's": (
            _product_scaled_once
        ),
        "the mean of a column's scales at the end: group scales do not stand outside the sum": (
            _product_mean_scale
        ),
    },
    right={
        "sums of codes, scaled group by group": _product_rescaled,
        "one output channel at a time": _product_by_columns,
        "codes times scales": _group_product(),
    },
)

# ---- a product of whole numbers -----------------------------------------------------------------


def _draw_int8(rng: np.random.Generator) -> Inputs:
    """Codes of both signs whose sums pass 24 bits; half of the sums are negative."""
    T, d_in, d_out = (int(rng.integers(*span)) for span in ((3, 6), (1400, 1600), (7, 11)))
    sign = rng.choice([-1, 1], size=d_in)
    turned = np.where(np.arange(d_out) % 2, -1, 1)
    return {
        "x_codes": (sign * rng.integers(100, 128, size=(T, d_in))).astype(np.int8),
        "w_codes": (sign[:, None] * turned * rng.integers(100, 128, size=(d_in, d_out))).astype(
            np.int8
        ),
        "x_scales": rng.uniform(0.01, 1, size=(T, 1)),
        "w_scales": rng.uniform(0.01, 1, size=(1, d_out)),
    }


def _int8_product(
    kind: Any, scale: Callable = lambda total, xs, ws: total * xs * ws, result: Any = None
) -> Callable:
    """matmul_int8, summed up in another kind of number."""

    def product(x_codes, w_codes, x_scales, w_scales):
        with np.errstate(over="ignore"):
            total = x_codes.astype(kind) @ w_codes.astype(kind)
        return scale(total, x_scales, w_scales).astype(result or x_scales.dtype)

    return product


def _int8_einsum(x_codes, w_codes, x_scales, w_scales):
    total = np.einsum("ti,ij->tj", x_codes, w_codes, dtype=np.int64)
    return (np.outer(x_scales, w_scales) * total).astype(x_scales.dtype)


def _int8_loop(x_codes, w_codes, x_scales, w_scales):
    columns = [[int(v) for v in column] for column in w_codes.T]
    return [
        [
            float(xs[0]) * float(ws) * sum(int(a) * b for a, b in zip(row, column, strict=True))
            for column, ws in zip(columns, w_scales[0], strict=True)
        ]
        for row, xs in zip(x_codes, x_scales, strict=True)
    ]


def _int8_torch(x_codes, w_codes, x_scales, w_scales):
    import torch  # takes a second, and only the tests call this

    total = torch.tensor(x_codes).int() @ torch.tensor(w_codes).int()
    return total.to(torch.tensor(x_scales).dtype) * torch.tensor(x_scales) * torch.tensor(w_scales)


def _drive_int8(answer: Any, inputs: Inputs) -> dict[str, Any]:
    y = answer(**inputs)
    return {"number type": number_type(y, inputs["x_scales"]), "y": y}


def _sixteen(n: int = 16, kind: type = np.float64) -> Inputs:
    top = np.full((1, n), 127, np.int8)
    one: np.ndarray = np.ones((1, 1), kind)
    return {"x_codes": top, "w_codes": top.T.copy(), "x_scales": one, "w_scales": one / kind(2)}


MATMUL_INT8 = Exercise(
    id="matmul_int8",
    reference=matmul_int8,
    lesson=LESSON,
    points=2,
    minutes=8,
    difficulty=2,
    hints=(
        "int8 @ int8 is an int8 in NumPy, and wraps without a word. What must happen before @?",
        "x_codes.astype(np.int32) @ w_codes.astype(np.int32) holds every sum that occurs here.",
        "Then multiply by x_scales and by w_scales: (T, 1) and (1, d_out) broadcast. int32 times "
        "float32 is float64 in NumPy: .astype(x_scales.dtype) at the end.",
    ),
    cases=(
        given(
            "the example of the statement",
            x_codes=np.array([[127, 127]], np.int8),
            w_codes=np.array([[127], [127]], np.int8),
            x_scales=np.array([[0.5]]),
            w_scales=np.array([[2.0]]),
        ),
        Case("16 products of 127 * 127", _sixteen),
        Case("2,049 of them: more than 24 bits", lambda: _sixteen(2049)),
        Case("scales in float32", lambda: _sixteen(7, np.float32)),
    ),
    draw=_draw_int8,
    n_draws=3,
    drive=_drive_int8,
    comparison=Comparison(
        terms=lambda i: i["x_codes"].shape[1],
        why="a sum over d_in products, where it is not made of whole numbers",
    ),
    wrong={
        "summed up in int8, where it wraps at 127: turn both into int32 first": _int8_product(
            np.int8
        ),
        "summed up in int16: three products of 127 * 127 are too much for it": _int8_product(
            np.int16
        ),
        "summed up in 16-bit floats: they end at 65,504": _int8_product(np.float16),
        "summed up in float32: above 16,777,216 it cannot hold every whole number": _int8_product(
            np.float32, lambda total, xs, ws: total.astype(float) * xs * ws
        ),
        "float64 comes out: the result has the number type of the scales": _int8_product(
            np.int32, result=float
        ),
        "the activations' scales are forgotten": _int8_product(
            np.int32, lambda total, xs, ws: total * ws
        ),
        "the weights' scales are forgotten": _int8_product(
            np.int32, lambda total, xs, ws: total * xs
        ),
        "the two scales are added: they multiply": _int8_product(
            np.int32, lambda total, xs, ws: total * (xs + ws)
        ),
        "divides by the scales: a code times its scale is the number": _int8_product(
            np.int32, lambda total, xs, ws: total / (xs * ws)
        ),
        "one scale for all tokens: each row of x has its own": _int8_product(
            np.int32, lambda total, xs, ws: total * xs.max() * ws
        ),
        "one scale for all output channels: each column of w has its own": _int8_product(
            np.int32, lambda total, xs, ws: total * xs * ws.max()
        ),
        "the codes are read as unsigned bytes, where -1 is 255": (
            lambda x_codes, w_codes, x_scales, w_scales: (
                (x_codes.view(np.uint8).astype(np.int32) @ w_codes.view(np.uint8).astype(np.int32))
                * x_scales
                * w_scales
            ).astype(x_scales.dtype)
        ),
        "the sum is cut to 127: only the inputs are 8-bit": _int8_product(
            np.int32, lambda total, xs, ws: np.clip(total, -127, 127) * xs * ws
        ),
    },
    right={
        "einsum in 64 bits": _int8_einsum,
        "Python's whole numbers": _int8_loop,
        "torch, 32 bits": _int8_torch,
        "dequantized first, in float64": lambda x_codes, w_codes, x_scales, w_scales: (
            (x_codes * x_scales) @ (w_codes * w_scales)
        ),
    },
)
