"""Lesson 07: two codes of 4 bits in one byte."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from grader.checks.quantization.lesson import LESSON
from grader.judging.exercise import Exercise, Inputs, given
from inferlab.quantization import pack_nibbles, unpack_nibbles


def _typed(answer: Any, inputs: Inputs) -> dict[str, Any]:
    got = answer(**inputs)
    kind = str(getattr(got, "dtype", type(got).__name__)).removeprefix("torch.")
    return {"values": got, "number type": kind}


def _codes(rng: np.random.Generator) -> np.ndarray:
    d_in, d_out = 2 * int(rng.integers(3, 6)), int(rng.integers(5, 9))
    return rng.integers(-8, 8, size=(d_in, d_out)).astype(np.int8)


ALL_CODES = np.array([[1, 0], [-8, -1], [7, 3], [-1, -5], [-8, 7], [-8, 0]], np.int8)


def _check_codes(codes: np.ndarray) -> None:
    if len(codes) % 2 or codes.min() < -8 or codes.max() > 7:
        raise ValueError("cannot be packed")


def _pack(
    pairs: Callable = lambda c: (c[0::2], c[1::2]),
    bits: Callable = lambda c: c & 15,
    join: Callable = lambda low, high: low | high << 4,
    check: Callable = _check_codes,
    kind: type = np.uint8,
) -> Callable:
    """pack_nibbles with one step replaced."""

    def pack(codes):
        check(codes)
        low, high = (bits(half.astype(np.int64)) for half in pairs(codes))
        return (join(low, high) & 255).astype(kind)

    return pack


def _check_range_only(codes: np.ndarray) -> None:
    if codes.min() < -8 or codes.max() > 7:
        raise ValueError("codes out of range")


def _padded_pairs(codes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    codes = np.pad(codes, ((0, len(codes) % 2), (0, 0)))
    return codes[0::2], codes[1::2]


def _check_even_only(codes: np.ndarray) -> None:
    if len(codes) % 2:
        raise ValueError("odd")


def _pack_reshape(codes):
    if codes.shape[0] % 2 or np.any(codes > 7) or np.any(codes < -8):
        raise ValueError("no pairs of nibbles")
    pairs = np.where(codes < 0, codes + 16, codes).reshape(-1, 2, codes.shape[1])
    return (pairs[:, 0] + 16 * pairs[:, 1].astype(np.int32)).astype(np.uint8)


def _pack_loop(codes):
    _check_codes(codes)
    rows = [
        [int(low) % 16 + 16 * (int(high) % 16) for low, high in zip(a, b, strict=True)]
        for a, b in zip(codes[::2], codes[1::2], strict=True)
    ]
    return np.array(rows, dtype=np.uint8)


def _pack_bytes(codes):
    _check_codes(codes)
    unsigned = codes.astype(np.int8).view(np.uint8)
    return np.bitwise_or(np.bitwise_and(unsigned[::2], 0x0F), np.left_shift(unsigned[1::2], 4))


PACK = Exercise(
    id="pack_nibbles",
    reference=pack_nibbles,
    lesson=LESSON,
    points=2,
    minutes=8,
    difficulty=3,
    hints=(
        "codes[0::2] are the rows for the low halves, codes[1::2] those for the high halves.",
        "x & 15 keeps the four lowest bits; for -1 that is 15. x << 4 moves four bits up; low | "
        "high joins what does not overlap.",
        "((codes[0::2] & 15) | (codes[1::2] & 15) << 4).astype(np.uint8), after raising "
        "ValueError for an odd number of rows or codes outside -8 .. 7.",
    ),
    cases=(
        given("the example of the statement", codes=np.array([[1], [-8], [7], [-1]], np.int8)),
        given("extremes beside each other", codes=ALL_CODES),
        given("three rows: no pairs", codes=np.zeros((3, 2), np.int8)),
        given("8 does not fit", codes=np.array([[8], [0]], np.int8)),
        given("-9 does not fit", codes=np.array([[0], [-9]], np.int8)),
    ),
    draw=lambda rng: {"codes": _codes(rng)},
    drive=_typed,
    wrong={
        "the halves are swapped: row 2i belongs in the low half": _pack(
            join=lambda low, high: high | low << 4
        ),
        "the low halves hold the first half of the rows, as in GGUF; here neighbours pair up": (
            _pack(pairs=lambda c: (c[: len(c) // 2], c[len(c) // 2 :]))
        ),
        "pairs along the output channels: two rows share a byte, not two columns": (
            lambda codes: _pack(pairs=lambda c: (c[:, 0 : c.shape[1] // 2 * 2 : 2], c[:, 1::2]))(
                codes
            )
        ),
        "a negative low code keeps its upper bits, which overwrite the high half: use & 15": _pack(
            bits=lambda c: c
        ),
        "8 is added to every code: that is another code, here it is two's complement": _pack(
            bits=lambda c: c + 8
        ),
        "sign and magnitude: -1 would be 1001, in two's complement it is 1111": _pack(
            bits=lambda c: np.where(c < 0, 8 | np.minimum(-c, 7), c)
        ),
        "an odd number of rows is accepted: raise ValueError": _pack(
            pairs=_padded_pairs, check=_check_range_only
        ),
        "codes outside -8 .. 7 are accepted: raise ValueError": _pack(check=_check_even_only),
        "one code a byte: nothing is packed": _pack(
            pairs=lambda c: (c, np.zeros_like(c)),
        ),
        "not bytes: the result must be uint8, or nothing is saved": _pack(kind=np.int64),
        "signed bytes: 0x81 is 129 in a uint8, and -127 in an int8": _pack(kind=np.int8),
        "shifts by 3: a half is four bits": _pack(join=lambda low, high: low | high << 3),
    },
    right={
        "plus 16 where negative, times 16": _pack_reshape,
        "remainders, in a loop": _pack_loop,
        "views of bytes": _pack_bytes,
    },
)


def _unpack(
    order: Callable = lambda low, high: np.stack([low, high], axis=1),
    sign: Callable = lambda half: np.where(half >= 8, half - 16, half),
    kind: type = np.int8,
) -> Callable:
    def unpack(packed):
        wide = packed.astype(np.int64)
        codes = sign(order(wide & 15, wide >> 4))
        return codes.reshape(2 * len(packed), -1).astype(kind)

    return unpack


def _unpack_shift(packed):
    """Push the half against the sign bit of an int8, and shift it back: the sign comes along."""
    out = np.empty((2 * packed.shape[0], packed.shape[1]), np.int8)
    out[0::2] = (packed << 4).view(np.int8) >> 4
    out[1::2] = packed.view(np.int8) >> 4
    return out


def _unpack_table(packed):
    table = np.array([0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1], np.int8)
    halves = np.concatenate([table[packed % 16][:, None], table[packed // 16][:, None]], axis=1)
    return halves.reshape(-1, packed.shape[1])


UNPACK = Exercise(
    id="unpack_nibbles",
    reference=unpack_nibbles,
    lesson=LESSON,
    points=2,
    minutes=8,
    difficulty=3,
    hints=(
        "packed & 15 gives all low halves, packed >> 4 all high halves. Their rows must alternate.",
        "Either out[0::2], out[1::2] = low, high; or np.stack([low, high], axis=1).reshape(...).",
        "A half of 8 or more is negative: np.where(half >= 8, half - 16, half), computed as int8 "
        "(halves.astype(np.int8)), since uint8 has no negative numbers.",
    ),
    cases=(
        given("the example of the statement", packed=np.array([[129], [247]], np.uint8)),
        given("extremes beside each other", packed=pack_nibbles(ALL_CODES)),
        given("every byte there is", packed=np.arange(256, dtype=np.uint8).reshape(64, 4)),
    ),
    draw=lambda rng: {"packed": pack_nibbles(_codes(rng))},
    drive=_typed,
    wrong={
        "the halves are swapped: the low half is row 2i": _unpack(
            order=lambda low, high: np.stack([high, low], axis=1)
        ),
        "no negative codes: a half of 8 or more stands for itself minus 16": _unpack(
            sign=lambda half: half
        ),
        "subtracts 8 from every half: that is another code": _unpack(sign=lambda half: half - 8),
        "all low halves first, then all high ones, as GGUF does: here the rows alternate": _unpack(
            order=lambda low, high: np.concatenate([low, high])
        ),
        "the halves alternate along the columns; rows 2i and 2i + 1 share a byte": (
            lambda packed: unpack_nibbles(packed.T.copy()).T.reshape(2 * len(packed), -1)
        ),
        "7 is taken as negative: only 8 to 15 are": _unpack(
            sign=lambda half: np.where(half >= 7, half - 16, half)
        ),
        "sign and magnitude: 1111 is -1, not -7": _unpack(
            sign=lambda half: np.where(half >= 8, -(half & 7), half)
        ),
        "one's complement: subtracts 15 where 16 is due": _unpack(
            sign=lambda half: np.where(half >= 8, half - 15, half)
        ),
        "subtracts 16 among unsigned bytes: -1 becomes 255": _unpack(
            sign=lambda half: np.where(half >= 8, half + 240, half), kind=np.uint8
        ),
        "only the low halves: a byte holds two codes": (
            lambda packed: unpack_nibbles(packed)[0::2]
        ),
    },
    right={
        "shifts that carry the sign": _unpack_shift,
        "a table of sixteen codes": _unpack_table,
    },
)
