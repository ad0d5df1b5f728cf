"""Arrays, lists, dicts and random generators that both sides work on.

They belong to the judge. Each crosses whole the first time and by its number after that; before
each message, either side sends the contents of those that have changed since they last crossed.
"""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict, deque
from collections.abc import Mapping
from typing import Any

import numpy as np

from sandbox.wire import NUMBER_KINDS, BadMessage, Reader, Refer, Resolve, Writer, rng_state

LISTS, DICTS = (list, deque), (dict, OrderedDict)


def can_share(value: Any) -> bool:
    """Whether this is one of the kinds that are worked on in place."""
    kind = type(value)
    if kind is np.ndarray:
        return value.dtype.kind in NUMBER_KINDS
    return kind in (*LISTS, *DICTS) or issubclass(kind, np.random.Generator)


class Shared:
    """What is shared at the moment, by number. It is emptied when another conversation begins."""

    def __init__(self) -> None:
        self._values: dict[int, Any] = {}
        self._numbers: dict[int, int] = {}  # id(value) -> number; _values keeps it alive
        self._states: dict[int, bytes] = {}
        self._last = 0

    def clear(self) -> None:
        for table in (self._values, self._numbers, self._states):
            table.clear()

    def number(self, value: Any) -> int | None:
        return self._numbers.get(id(value))

    def add(self, value: Any, number: int | None = None) -> int:
        self._last = number = self._last + 1 if number is None else number
        self._values[number], self._numbers[id(value)] = value, number
        return number

    def seen(self, number: int) -> None:
        """Both sides now have the same contents."""
        self._states[number] = self._state(self._values[number])

    def value(self, number: Any) -> Any:
        if not isinstance(number, int) or number not in self._values:
            raise BadMessage("something shared that is not")
        return self._values[number]

    def changed(self) -> list[int]:
        """Numbers of those whose contents are not what the other side has."""
        found = []
        for number, value in list(self._values.items()):
            state = self._state(value)
            if state != self._states.get(number):
                self._states[number] = state
                found.append(number)
        return found

    def put(self, number: Any, content: Any) -> None:
        """The other side has changed it. A read-only array stays as it is."""
        target = self.value(number)
        if _holds(content, target):
            raise BadMessage("something shared that is put into itself")
        if isinstance(target, np.ndarray):
            if not isinstance(content, np.ndarray) or content.shape != target.shape:
                raise BadMessage("contents of another shape")
            if target.flags.writeable:
                target[...] = content
        elif type(target) in LISTS and type(content) is type(target):
            target.clear()
            target.extend(content)
        elif type(target) in DICTS and type(content) is type(target):
            target.clear()
            target.update(content)
        elif isinstance(target, np.random.Generator) and isinstance(content, np.random.Generator):
            target.bit_generator.state = content.bit_generator.state
        else:
            raise BadMessage("contents of another kind")
        self.seen(number)

    def _state(self, value: Any) -> bytes:
        """A summary of the contents, in which shared parts stand as their numbers."""
        if isinstance(value, np.ndarray):
            return value.tobytes()
        if isinstance(value, np.random.Generator):
            return json.dumps(rng_state(value)).encode()
        probe = _Probe(self)
        if isinstance(value, dict):
            coded = [[probe.inner(k), probe.inner(v)] for k, v in value.items()]
        else:
            coded = [probe.inner(part) for part in value]
        return json.dumps(coded).encode()


def _holds(outer: Any, inner: Any) -> bool:
    """Whether inner is among what outer holds, at any depth; outer itself holds no such circle."""
    todo, seen = [outer], set()
    while todo:
        value = todo.pop()
        if type(value) in DICTS:
            parts = [*value.keys(), *value.values()]
        elif type(value) in (*LISTS, tuple):
            parts = list(value)
        else:
            continue
        if id(value) in seen:
            continue
        seen.add(id(value))
        if any(part is inner for part in parts):
            return True
        todo += parts
    return False


class _Probe(Writer):
    """Codes contents for comparison only: nothing is sent, nothing is registered."""

    def __init__(self, shared: Shared) -> None:
        super().__init__(lambda value: [id(value)], {})
        self.shared = shared

    def inner(self, value: Any) -> Any:
        number = self.shared.number(value)
        return ["shared", number] if number is not None else self.value(value)

    def frame(self, data: memoryview) -> Any:
        return hashlib.blake2b(data, digest_size=16).hexdigest()


class SharingWriter(Writer):
    """Shared things cross once whole ("lent"), after that by number ("shared")."""

    def __init__(
        self, refer: Refer, by_value: Mapping[str, type], shared: Shared, lends: bool
    ) -> None:
        super().__init__(refer, by_value)
        self.shared, self.lends = shared, lends
        self.lent: list[int] = []

    def value(self, value: Any) -> Any:
        if not can_share(value):
            return super().value(value)
        number = self.shared.number(value)
        if number is not None:
            return ["shared", number]
        if not self.lends:
            return super().value(value)
        number = self.shared.add(value)
        self.lent.append(number)
        return ["lent", number, super().value(value)]

    def content(self, value: Any) -> Any:
        """A shared thing's own contents, coded."""
        return super().value(value)


class SharingReader(Reader):
    """The other end of SharingWriter. borrows: whether "lent" things may come at all."""

    def __init__(
        self, frames: list[memoryview], resolve: Resolve, by_value: Mapping[str, type],
        shared: Shared, borrows: bool,
    ) -> None:  # fmt: skip
        super().__init__(frames, resolve, by_value)
        self.shared, self.borrows = shared, borrows
        self.borrowed: list[int] = []

    def value(self, coded: Any) -> Any:
        tag = coded[0] if isinstance(coded, list) and coded else None
        if tag == "shared" and len(coded) == 2:
            return self.shared.value(coded[1])
        if tag == "lent" and len(coded) == 3:
            if not self.borrows or not isinstance(coded[1], int):
                raise BadMessage("something lent to its owner")
            value = super().value(coded[2])
            self.shared.add(value, coded[1])
            self.borrowed.append(coded[1])
            return value
        return super().value(coded)
