"""Compare what an answer gave with what is right: shape, then kind, then values.

The allowed error of a float is derived, never guessed: each of the `terms` roundings on the way
to one number can be off by eps of the number type, relative to the magnitude of what is summed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

SAFETY = 8  # another order of summation, exp and sqrt may each round a little differently
SMALL = 2e-6  # of the largest number: some roundings in float32, or an eps that was added


@dataclass(frozen=True)
class Raised:
    """The observation "it raised this kind of error"."""

    kind: str
    message: str = ""


def raised(error: BaseException) -> Raised:
    """The observation of an error; a subclass of ValueError counts as one."""
    kind = "ValueError" if isinstance(error, ValueError) else type(error).__name__
    return Raised(kind, str(error))


@dataclass(frozen=True)
class Difference:
    """The first thing that differs. kind: type, shape, dtype, value, nan, raised or length."""

    kind: str
    lines: tuple[str, ...]


@dataclass(frozen=True)
class Comparison:
    """How close an answer must come.

    terms:     roundings that pile up in one number (the length of its sums)
    magnitude: size of what is summed; by default the largest expected number
    why:       the reason for `terms`, printed with the tolerance
    rounds_to: a coarser number type that an answer may compute in, whatever came in: where the
               statement names none, and where this lets no named wrong answer pass
    """

    terms: Callable[[Mapping[str, Any]], float] = lambda inputs: 1
    magnitude: Callable[[Mapping[str, Any]], float] | None = None
    why: str = "one rounding"
    rounds_to: str = ""

    def allowed(self, expected: np.ndarray, inputs: Mapping[str, Any]) -> tuple[float, str]:
        """(allowed absolute error, how it was derived)"""
        precision = np.dtype(self.rounds_to or expected.dtype)
        eps = float(max(np.finfo(precision).eps, np.finfo(expected.dtype).eps))
        terms = float(self.terms(inputs))
        finite = expected[np.isfinite(expected)]
        largest = float(np.abs(finite).max()) if finite.size else 0.0
        size = self.magnitude(inputs) if self.magnitude else largest
        allowed = SAFETY * eps * terms * size
        how = f"{SAFETY} · eps({precision}) · {terms:.0f} terms · magnitude {size:.3g}; {self.why}"
        return allowed, how

    def difference(
        self, expected: Any, got: Any, inputs: Mapping[str, Any], where: str = ""
    ) -> Difference | None:
        """None when `got` is right."""
        if isinstance(expected, Raised) or isinstance(got, Raised):
            return _raised(expected, got, where)
        if isinstance(expected, Mapping):
            return self._mapping(expected, got, inputs, where)
        if isinstance(expected, np.ndarray):
            return self._array(expected, got, inputs, where)
        if isinstance(expected, (list, tuple)):
            return self._sequence(expected, got, inputs, where)
        if isinstance(expected, (bool, np.bool_, int, np.integer, str)) or expected is None:
            return _exact(expected, got, where)
        if isinstance(expected, (float, np.floating)):
            return self._float(float(expected), got, inputs, where)
        raise TypeError(f"a drive must return plain data, not {type(expected).__name__}")

    def _mapping(self, expected: Mapping, got: Any, inputs: Any, where: str) -> Difference | None:
        if not isinstance(got, Mapping):
            return _wrong_type("a dict", got, where)
        for key, value in expected.items():
            if key not in got:
                return Difference("length", (f"{where}{key} is missing",))
            found = self.difference(value, got[key], inputs, f"{where}{key}: ")
            if found:
                return found
        return None

    def _sequence(self, expected: Sequence, got: Any, inputs: Any, where: str) -> Difference | None:
        items = as_list(got)
        if items is None:
            return _wrong_type(f"a sequence of {len(expected)}", got, where)
        if len(items) != len(expected):
            return Difference(
                "length",
                (
                    f"{where}expected {len(expected)} items   got {len(items)}",
                    f"  expected {show(list(expected))}   got {show(items)}",
                ),
            )
        for i, (want, have) in enumerate(zip(expected, items, strict=True)):
            found = self.difference(want, have, inputs, f"{where}[{i}] ")
            if found:
                return found
        return None

    def _float(self, expected: float, got: Any, inputs: Any, where: str) -> Difference | None:
        if type(got) is float and got == expected:  # as most are
            return None
        number = as_number(got)
        if number is None:
            return _wrong_type("a number", got, where)
        try:
            held = float(number)
        except OverflowError:  # a whole number beyond 1.8e308
            held = math.inf if number > 0 else -math.inf
        return self._array(np.asarray(expected), np.asarray(held), inputs, where)

    def _array(self, expected: np.ndarray, got: Any, inputs: Any, where: str) -> Difference | None:
        array = as_array(got)
        if array is None:
            return _wrong_type(f"an array of shape {expected.shape}", got, where)
        if array.shape != expected.shape:
            return Difference(
                "shape", (f"{where}expected shape {expected.shape}   got shape {array.shape}",)
            )
        if expected.dtype.kind != "f":
            return _exact_array(expected, array, where)
        if array.dtype.kind not in "fiu":
            return Difference("dtype", (f"{where}expected real numbers   got {array.dtype}",))
        return self._close(expected, array, inputs, where)

    def _close(
        self, expected: np.ndarray, got: np.ndarray, inputs: Any, where: str
    ) -> Difference | None:
        if np.array_equal(expected, got):  # as most are
            return None
        bad = np.isfinite(expected) != np.isfinite(got)
        if bad.any():
            return _at(np.argwhere(bad)[0], "nan", expected, got, where)
        both = np.isfinite(expected)
        infinite_bad = ~both & ~((expected == got) | (np.isnan(expected) & np.isnan(got)))
        if infinite_bad.any():
            return _at(np.argwhere(infinite_bad)[0], "nan", expected, got, where)
        error = np.abs(np.where(both, got, 0).astype(np.float64) - np.where(both, expected, 0))
        allowed, how = self.allowed(expected, inputs)
        if (error <= allowed).all():
            return None
        first = np.argwhere(error > allowed)[0]
        tail: tuple[str, ...] = (
            f"  largest error {error.max():.3g}, allowed {allowed:.3g} ({how})",
        )
        if got.dtype.kind == "f" and got.dtype.itemsize < expected.dtype.itemsize:
            tail += (f"  your result is {got.dtype}; the inputs are {expected.dtype}",)
        elif error.max() < SMALL * np.abs(expected[both]).max(initial=0.0):
            tail += ("  so small an error: float32 on the way, a rounded or an added number?",)
        n_bad = int((error > allowed).sum())
        if error.size > 1:
            tail += (f"  {n_bad:,} of {error.size:,} numbers are off",)
        return _at(first, "value", expected, got, where, tail)


def as_array(value: Any) -> np.ndarray | None:
    """Arrays, torch tensors, and nested lists of numbers, as an array; None for the rest."""
    try:
        if hasattr(value, "detach"):  # a torch tensor, on whatever device
            value = value.detach().cpu().numpy()
        if not isinstance(value, (list, tuple, np.ndarray, int, float, np.number)):
            return None
        array = np.asarray(value)
    except (ValueError, TypeError, RuntimeError):  # ragged, bfloat16, sparse, a list of tensors
        return None
    else:
        return array if array.dtype.kind in "fiub" else None


def as_number(value: Any) -> float | int | None:
    if hasattr(value, "detach") or isinstance(value, np.ndarray):
        array = as_array(value)
        value = array.item() if array is not None and array.ndim == 0 else None
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, float, np.number)):
        return None
    return value.item() if isinstance(value, np.number) else value


def as_list(value: Any) -> list | None:
    if hasattr(value, "detach"):
        value = value.detach().cpu().numpy()
    if isinstance(value, np.ndarray):
        return value.tolist() if value.ndim == 1 else list(value) if value.ndim else None
    return list(value) if isinstance(value, (list, tuple)) else None


def show(value: Any) -> str:
    """One short readable line for a number, a text or a short list."""
    if isinstance(value, (bool, np.bool_)):
        return str(bool(value))
    if isinstance(value, (int, np.integer)):
        return f"{int(value):,}" if abs(int(value)) < 10**30 else "a number of 30 digits or more"
    if isinstance(value, (float, np.floating)):
        return f"{float(value):.6g}"
    try:
        text = repr(value)
    except Exception:
        text = f"<{type(value).__name__}>"
    return text if len(text) <= 80 else text[:77] + "..."


def _raised(expected: Any, got: Any, where: str) -> Difference | None:
    if isinstance(expected, Raised) and isinstance(got, Raised):
        if expected.kind == got.kind:
            return None
        lines = (f"{where}expected a {expected.kind}   got {got.kind}: {got.message}",)
    elif isinstance(expected, Raised):
        reason = f' ("{expected.message}")' if expected.message else ""
        lines = (f"{where}expected a {expected.kind}{reason}   got {show(got)}",)
    else:
        lines = (f"{where}raised {got.kind}: {got.message}",)
    return Difference("raised", lines)


def _exact(expected: Any, got: Any, where: str) -> Difference | None:
    if isinstance(expected, (bool, np.bool_)):
        same = isinstance(got, (bool, np.bool_)) and bool(got) == bool(expected)
    elif isinstance(expected, (int, np.integer)):
        number = as_number(got)
        if number is None:
            return _wrong_type("a whole number", got, where)
        if isinstance(number, float) and number == expected:
            line = f"{where}expected the int {show(expected)}   got the float {number!r}"
            return Difference(
                "dtype",
                (
                    line,
                    "  // gives whole numbers, / gives floats; a float // stays a float: int(...)",
                ),
            )
        same = number == expected
        got = number
    else:
        same = type(got) is type(expected) and got == expected
    if same:
        return None
    line = f"{where}expected {show(expected)}   got {show(got)}{_ratio(expected, got)}"
    return Difference("value", (line,))


def _exact_array(expected: np.ndarray, got: np.ndarray, where: str) -> Difference | None:
    kinds = {"b": "b", "i": "iu", "u": "iu"}[expected.dtype.kind]
    if got.dtype.kind not in kinds:
        names = {"b": "True/False", "i": "integers", "u": "integers"}
        line = f"{where}expected {names[expected.dtype.kind]}   got {got.dtype}"
        return Difference("dtype", (line,))
    if (expected == got).all():
        return None
    return _at(np.argwhere(expected != got)[0], "value", expected, got, where)


def _at(
    index: np.ndarray,
    kind: str,
    expected: np.ndarray,
    got: np.ndarray,
    where: str,
    tail: tuple[str, ...] = (),
) -> Difference:
    at = tuple(int(i) for i in index)
    place = f"at {list(at)}: " if at else ""
    want, have = expected[at], got[at]
    line = f"{where}{place}expected {show(want)}   got {show(have)}{_ratio(want, have)}"
    return Difference(kind, (line, *tail))


def _ratio(expected: Any, got: Any) -> str:
    numbers = (int, float, np.number)
    if not isinstance(expected, numbers) or not isinstance(got, numbers):
        return ""
    if expected == 0 or (isinstance(got, int) and got.bit_length() > 1000):
        return ""
    if not math.isfinite(got) or not math.isfinite(expected):
        return ""
    ratio = float(got) / float(expected)
    if ratio <= 0 or 0.99 < ratio < 1.01:
        return ""
    return f"   ({ratio:.3g}x the right value)"


def _wrong_type(needed: str, got: Any, where: str) -> Difference:
    what = "None: is there a return?" if got is None else f"{type(got).__name__} {show(got)}"
    return Difference("type", (f"{where}expected {needed}   got {what}",))
