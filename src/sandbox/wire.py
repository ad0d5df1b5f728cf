"""The messages between judge and student: plain data and arrays, nothing that could be code.

A message is a JSON text and a number of raw frames (the contents of arrays and bytes). Whatever is
none of the kinds below crosses as a numbered reference to an object that stays where it is. The
reader trusts nothing: sizes, depth and number types are checked before anything is built.
"""

from __future__ import annotations

import json
import math
import select
import struct
import sys
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from itertools import accumulate
from typing import Any

import numpy as np

MAX_MESSAGE_BYTES = 256 * 2**20
MAX_TEXT_BYTES = 16 * 2**20  # of the JSON: as Python objects it takes some twenty times as much
MAX_FRAMES = 2**16
SMALL = 2**18  # bytes that are sent and received in one piece
MAX_RANGE = 10**6  # longer ones are references
MAX_INT_BITS = 14_000  # larger numbers are references: Python would not print them
MAX_DEPTH = 60  # lists in lists; what a notebook computes has four or five
MAX_ALIKE = 1000  # keys of one hash: adding n of them takes n² steps
NUMBER_KINDS = "biuf"  # of arrays: booleans, whole numbers, floats

Refer = Callable[[Any], list[Any]]  # an object that stays here -> the reference that crosses
Resolve = Callable[[list[Any]], Any]  # a reference -> the object, or a stand-in for it


class WireFailure(BaseException):
    """The conversation cannot go on. No Exception: a handler in between must not swallow it."""


class BadMessage(WireFailure):
    """The other side sent something that is not a message."""


class TooLarge(BadMessage):
    """A message, or all of them together, of more bytes than there is room for."""


class PeerGone(WireFailure):
    """The other side has closed the connection or died."""


class TooLate(WireFailure):
    """The time for an answer is over."""


# ---- values ------------------------------------------------------------------------------------


class Writer:
    """Turns values into what JSON can hold, and collects the frames."""

    def __init__(self, refer: Refer, by_value: Mapping[str, type]) -> None:
        self.refer = refer
        self.frames: list[memoryview] = []
        self.by_value = {kind: name for name, kind in by_value.items()}

    def value(self, value: Any) -> Any:
        """None, bool, int, float and str as they are; everything else as [tag, ...]."""
        kind = type(value)
        if value is None or kind in (bool, str, float):
            return value
        if kind is int:
            if value.bit_length() > MAX_INT_BITS:
                return ["ref", self.refer(value)]
            return value if abs(value) < 2**63 else ["int", hex(value)]
        if kind is type and value in _NUMBER_TYPES:
            return ["kind", _NUMBER_TYPES[value]]
        plain = _CONTAINERS.get(kind)
        if plain is not None:
            return plain(self, value)
        if kind in self.by_value:
            return ["record", self.by_value[kind], [self.value(v) for v in _field_values(value)]]
        # issubclass, for isinstance asks the object itself what it is
        if issubclass(kind, np.ndarray) and value.dtype.kind in NUMBER_KINDS:
            return self.array(value)
        if issubclass(kind, np.generic) and value.dtype.kind in NUMBER_KINDS:
            return ["scalar", value.dtype.str, value.tobytes().hex()]
        if issubclass(kind, np.random.Generator):
            return ["rng", json.dumps(rng_state(value))]
        if _is_tensor(kind) and (array := _tensor_array(value)).dtype.kind in NUMBER_KINDS:
            return ["tensor", self.array(array)]
        for base, plain_of in _PLAIN.items():
            if issubclass(kind, base):  # isinstance asks the object itself
                return self.value(plain_of(value))
        return ["ref", self.refer(value)]

    def array(self, value: np.ndarray) -> list[Any]:
        """An array's number type, shape and contents; subclasses become plain."""
        array = np.ascontiguousarray(np.asarray(value))
        content = array.reshape(-1).view(np.uint8).data if array.size else memoryview(b"")
        return ["array", array.dtype.str, list(np.shape(value)), self.frame(content)]

    def frame(self, data: memoryview) -> Any:
        self.frames.append(data)  # no copy: it is sent from where it lies
        return len(self.frames) - 1

    def items(self, tag: str, values: Any) -> list[Any]:
        return [tag, [self.value(v) for v in values]]

    def pairs(self, tag: str, value: dict) -> list[Any]:
        return [tag, [[self.value(k), self.value(v)] for k, v in value.items()]]


_CONTAINERS: dict[type, Callable[[Writer, Any], list[Any]]] = {
    list: lambda w, v: w.items("list", v),
    tuple: lambda w, v: w.items("tuple", v),
    set: lambda w, v: w.items("set", v),
    frozenset: lambda w, v: w.items("set", v),
    range: lambda w, v: (
        ["range", [v.start, v.stop, v.step]]
        if len(v[: MAX_RANGE + 1]) <= MAX_RANGE
        else ["ref", w.refer(v)]
    ),
    slice: lambda w, v: w.items("slice", (v.start, v.stop, v.step)),
    deque: lambda w, v: w.items("deque", v),
    dict: lambda w, v: w.pairs("dict", v),
    OrderedDict: lambda w, v: w.pairs("ordered", v),
    bytes: lambda w, v: ["bytes", w.frame(memoryview(v))],
    type(...): lambda w, v: ["ellipsis"],
}


_NUMBER_TYPES = {np.dtype(code).type: np.dtype(code).str for code in "?bhilqBHILQefdg"}
_PLAIN: dict[type, Callable[[Any], Any]] = {  # a subclass crosses as what it is underneath
    int: int.__int__,
    float: float.__float__,
    str: lambda v: str.__add__(v, ""),
    tuple: lambda v: tuple(tuple.__iter__(v)),
    list: lambda v: list(list.__iter__(v)),
    dict: lambda v: dict(dict.items(v)),
}


class Reader:
    """Builds values from a message. Raises BadMessage for anything it does not know."""

    def __init__(
        self, frames: list[memoryview], resolve: Resolve, by_value: Mapping[str, type]
    ) -> None:
        self.frames, self.resolve, self.by_value = frames, resolve, by_value
        self._depth = 0

    def value(self, coded: Any) -> Any:
        if not isinstance(coded, list):
            if isinstance(coded, dict):
                raise BadMessage("a bare mapping")
            return _writable(coded) if isinstance(coded, str) else coded
        if not coded or not isinstance(coded[0], str):
            raise BadMessage("a list without a tag")
        build = getattr(self, f"_{coded[0]}", None)
        if build is None or coded[0] not in _TAGS:
            raise BadMessage(f"unknown tag {coded[0]!r:.40}")
        self._depth += 1
        try:
            if self._depth > MAX_DEPTH:
                raise BadMessage(f"nested more than {MAX_DEPTH} deep")
            return build(*coded[1:])
        except MemoryError:
            raise TooLarge(f"no room for a {coded[0]}") from None
        except Exception as error:
            raise BadMessage(f"malformed {coded[0]}: {error}") from None
        finally:
            self._depth -= 1

    def _values(self, coded: Any) -> list[Any]:
        if not isinstance(coded, list):
            raise BadMessage("expected a list")
        return [self.value(v) for v in coded]

    def _int(self, text: str) -> int:
        if len(text) > MAX_INT_BITS // 4 + 8:
            raise BadMessage("a number of too many digits")
        return int(text, 16)

    def _list(self, coded: Any) -> list[Any]:
        return self._values(coded)

    def _tuple(self, coded: Any) -> tuple[Any, ...]:
        return tuple(self._values(coded))

    def _set(self, coded: Any) -> set[Any]:
        return set(_various(self._values(coded)))

    def _range(self, coded: Any) -> range:
        found = range(*(int(n) for n in coded))
        if len(found[: MAX_RANGE + 1]) > MAX_RANGE:
            raise BadMessage("a range that is too long")
        return found

    def _slice(self, coded: Any) -> slice:
        start, stop, step = self._values(coded)
        return slice(start, stop, step)

    def _deque(self, coded: Any) -> deque[Any]:
        return deque(self._values(coded))

    def _dict(self, coded: Any) -> dict[Any, Any]:
        return dict(self._pairs(coded))

    def _ordered(self, coded: Any) -> OrderedDict[Any, Any]:
        return OrderedDict(self._pairs(coded))

    def _pairs(self, coded: Any) -> list[tuple[Any, Any]]:
        pairs = [(self.value(k), self.value(v)) for k, v in coded]
        _various([key for key, _ in pairs])
        return pairs

    def _bytes(self, frame: int) -> bytes:
        return bytes(self._frame(frame))

    def _ellipsis(self) -> Any:
        return ...

    def _array(self, dtype: str, shape: Any, frame: int) -> np.ndarray:
        kind, data = _number_type(dtype), self._frame(frame)
        if not isinstance(shape, list) or len(shape) > 32:
            raise BadMessage("an array without a shape")
        sizes = [_size(n) for n in shape]
        if math.prod(sizes) * kind.itemsize != len(data):
            raise BadMessage(f"an array of {sizes} {kind} in {len(data)} bytes")
        return np.frombuffer(data, kind).reshape(sizes).copy()

    def _scalar(self, dtype: str, digits: str) -> Any:
        kind, data = _number_type(dtype), bytes.fromhex(digits)
        if kind.itemsize != len(data):
            raise BadMessage("a scalar of the wrong size")
        return np.frombuffer(data, kind)[0]

    def _kind(self, dtype: str) -> type:
        return _number_type(dtype).type

    def _tensor(self, coded: Any) -> Any:
        array = self.value(coded)
        if not isinstance(array, np.ndarray):
            raise BadMessage("a tensor without an array")
        torch = sys.modules.get("torch")
        return array if torch is None else torch.from_numpy(array)

    def _rng(self, coded: Any) -> np.random.Generator:
        bits = np.random.PCG64()
        bits.state = json.loads(coded)
        return np.random.Generator(bits)

    def _record(self, name: str, coded: Any) -> Any:
        kind = self.by_value[name]
        return kind(*self._values(coded))

    def _ref(self, reference: Any) -> Any:
        if not isinstance(reference, list):
            raise BadMessage("a reference without a number")
        return self.resolve(reference)

    def _frame(self, index: int) -> memoryview:
        if not isinstance(index, int) or isinstance(index, bool) or index < 0:
            raise BadMessage("a frame without a number")
        return self.frames[index]


_TAGS = frozenset(
    name.removeprefix("_")
    for name in vars(Reader)
    if name.startswith("_")
    and not name.startswith("__")
    and name not in ("_frame", "_values", "_pairs")
)


def _various(keys: list[Any]) -> list[Any]:
    """The keys, if not too many of them have one hash: Python would look through them all.

    No alarm interrupts that: it is one call of Python's own.
    """
    if len(keys) > MAX_ALIKE and max(Counter(map(hash, keys)).values()) > MAX_ALIKE:
        raise TooLarge(f"more than {MAX_ALIKE:,} keys of one hash")
    return keys


def _writable(text: str) -> str:
    """Text that can be written to a file: half of a surrogate pair, alone, cannot."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def _field_values(value: Any) -> list[Any]:
    if is_dataclass(value):
        return [getattr(value, f.name) for f in fields(value) if f.init]
    raise TypeError(f"{type(value).__name__} is no dataclass")


def rng_state(generator: np.random.Generator) -> Any:
    """Where a random generator stands, as plain numbers."""
    return _plain(generator.bit_generator.state)


def _plain(state: Any) -> Any:
    if isinstance(state, dict):
        return {k: _plain(v) for k, v in state.items()}
    return int(state) if isinstance(state, np.integer) else state


def _is_tensor(kind: type) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and issubclass(kind, torch.Tensor)


def _tensor_array(value: Any) -> np.ndarray:
    """By torch's own functions, whatever a subclass or the object itself has in their place."""
    torch = sys.modules["torch"]
    with torch._C.DisableTorchFunctionSubclass():
        tensor = torch.Tensor.cpu(torch.Tensor.detach(value))
        if tensor.dtype.is_floating_point and tensor.dtype.itemsize < 4:
            tensor = torch.Tensor.float(tensor)  # bfloat16 has no NumPy type; half loses nothing
        return torch.Tensor.numpy(tensor)


def _number_type(text: str) -> np.dtype:
    if not isinstance(text, str) or len(text) > 4:
        raise BadMessage("an array without a number type")
    kind = np.dtype(text)
    if kind.kind not in NUMBER_KINDS or kind.hasobject:
        raise BadMessage(f"arrays of {kind} do not cross")
    return kind


def _size(n: Any) -> int:
    if not isinstance(n, int) or isinstance(n, bool) or not 0 <= n < 2**40:
        raise BadMessage("a size that is no whole number")
    return n


# ---- messages ----------------------------------------------------------------------------------


_to_json = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode


class Wire:
    """One end of the connection: messages of JSON and frames over a stream socket.

    What is received lies in one buffer that is used again for the next message.
    """

    def __init__(self, sock: Any, max_bytes: int = MAX_MESSAGE_BYTES) -> None:
        self.sock, self.max_bytes = sock, max_bytes
        self._buffer = bytearray(SMALL)
        self._from = self._to = 0  # what has been received and not been read yet

    def send(self, coded: Any, frames: list[memoryview]) -> None:
        text = _to_json(coded).encode()
        sizes = [len(text), *map(len, frames)]
        self._check(sizes)
        head = struct.pack(f"!I{len(sizes)}Q", len(sizes), *sizes)
        parts: list[Any] = [head, text, *frames]
        if sum(sizes) < SMALL:
            parts = [b"".join(parts)]
        try:
            for part in parts:
                if len(part):
                    self.sock.sendall(part)
        except TimeoutError:
            raise
        except OSError as error:  # closed, or half of it
            raise PeerGone(str(error)) from None

    def receive(self) -> tuple[Any, list[memoryview]]:
        """The next message; its frames are good until the one after it.

        Raises PeerGone, BadMessage, or what the socket raises when time is up.
        """
        (n_sizes,) = struct.unpack("!I", self._fill(4))
        if not 1 <= n_sizes <= MAX_FRAMES:
            raise BadMessage(f"{n_sizes:,} parts are no message")
        sizes = struct.unpack(f"!{n_sizes}Q", self._fill(8 * n_sizes))
        self._check(sizes)
        try:
            whole = self._fill(sum(sizes))
        except MemoryError:
            raise TooLarge(f"no room for a message of {sum(sizes):,} bytes") from None
        ends = list(accumulate(sizes))
        frames = [whole[end - size : end] for size, end in zip(sizes[1:], ends[1:], strict=True)]
        try:
            return json.loads(bytes(whole[: sizes[0]])), frames
        except MemoryError:
            raise TooLarge(f"no room for a text of {sizes[0]:,} bytes") from None
        except (ValueError, RecursionError) as error:
            raise BadMessage(f"no JSON: {error}") from None

    def is_quiet(self) -> bool:
        """Whether nothing has come that nobody waits for."""
        waiting, _, _ = select.select([self.sock], [], [], 0)
        return self._from == self._to and not waiting

    def _check(self, sizes: Sequence[int]) -> None:
        """Raises TooLarge."""
        if sizes[0] > MAX_TEXT_BYTES or sum(sizes) > self.max_bytes or len(sizes) > MAX_FRAMES:
            raise TooLarge(
                f"a message of {sum(sizes):,} bytes in {len(sizes):,} parts, {sizes[0]:,} bytes of "
                f"text; at most {self.max_bytes:,}, {MAX_FRAMES:,} and {MAX_TEXT_BYTES:,} can cross"
            )

    def _fill(self, n: int) -> memoryview:
        """The next n bytes, in the buffer."""
        self._make_room(n)
        view = memoryview(self._buffer)
        while self._to - self._from < n:
            try:
                got = self.sock.recv_into(view[self._to :])
            except TimeoutError:
                raise
            except OSError as error:
                raise PeerGone(str(error)) from None
            if not got:
                raise PeerGone("the connection is closed")
            self._to += got
        self._from += n
        return view[self._from - n : self._from]

    def _make_room(self, n: int) -> None:
        if self._from == self._to:
            self._from = self._to = 0
        if self._from + n <= len(self._buffer):
            return
        left = bytes(memoryview(self._buffer)[self._from : self._to])
        if n > len(self._buffer):
            self._buffer = bytearray(n)
        self._buffer[: len(left)] = left
        self._from, self._to = 0, len(left)
