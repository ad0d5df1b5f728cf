"""Calls over the wire, both ways: the judge calls the student's functions, these call back.

An object that is no plain data stays where it is; the other side gets a stand-in that sends each
call and each attribute over. Arrays that the judge hands out are shared: before each message,
either side sends the contents of those that it has changed, so that work in place is seen where the
array lives.
"""

from __future__ import annotations

import builtins
import contextlib
import inspect
import itertools
import os
from collections.abc import Callable, Iterator, Mapping
from types import BuiltinFunctionType, FunctionType, MappingProxyType, MethodType
from typing import Any

from sandbox.shared import Shared, SharingReader, SharingWriter
from sandbox.wire import BadMessage, PeerGone, TooLarge, Wire, WireFailure

DUNDERS = frozenset({"__call__", "__iter__", "__next__", "__len__", "__getitem__", "__contains__"})


class StandIn:
    """An object of the other side. Attributes and calls go over; nothing of it is here."""

    __slots__ = ("inferlab_endpoint", "inferlab_number", "inferlab_words")

    def __init__(self, endpoint: Endpoint, number: int, words: str) -> None:
        object.__setattr__(self, "inferlab_endpoint", endpoint)
        object.__setattr__(self, "inferlab_number", number)
        object.__setattr__(self, "inferlab_words", words)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.inferlab_endpoint.call(self.inferlab_number, "__call__", args, kwargs)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        with self._looked_at(AttributeError):
            return self.inferlab_endpoint.ask("get", self.inferlab_number, name)

    @contextlib.contextmanager
    def _looked_at(self, error: type[Exception]) -> Iterator[None]:
        """An object of a student's may answer a look at it with any error: the judge, who asks
        what it is, gets the one that says that it is not.
        """
        try:
            yield
        except Exception as said:
            if self.inferlab_endpoint.is_judge and not isinstance(said, error):
                raise error(f"a look at it raised {type(said).__name__}") from None
            raise

    def __setattr__(self, name: str, value: Any) -> None:
        self.inferlab_endpoint.ask("set", self.inferlab_number, name, value)

    def __iter__(self) -> Any:
        return self.inferlab_endpoint.call(self.inferlab_number, "__iter__", (), {})

    def __next__(self) -> Any:
        return self.inferlab_endpoint.call(self.inferlab_number, "__next__", (), {})

    def __len__(self) -> int:
        with self._looked_at(TypeError):
            return self.inferlab_endpoint.call(self.inferlab_number, "__len__", (), {})

    def __getitem__(self, key: Any) -> Any:
        return self.inferlab_endpoint.call(self.inferlab_number, "__getitem__", (key,), {})

    def __contains__(self, key: Any) -> bool:
        return self.inferlab_endpoint.call(self.inferlab_number, "__contains__", (key,), {})

    def __repr__(self) -> str:
        return f"<{self.inferlab_words}>"


class Disguised:
    """Base of classes whose objects show a stand-in (inferlab_stand_in) as one of another class."""


class Forgotten:
    """Stands for an object that was handed out in an earlier conversation."""


FORGOTTEN = Forgotten()


class Endpoint:
    """One side. is_judge: this side's arrays are shared, and its objects are guarded.

    by_value: classes of plain records (frozen dataclasses) that cross as their fields.
    may_touch: whether the other side may use this object at all (judge's side only).
    may_name: whether it may use this attribute of it.
    may_change: whether it may set attributes of it, and work in place on what they hold.
    errors: classes of errors, besides Python's own, that both sides have.
    """

    def __init__(
        self,
        wire: Wire,
        by_value: Mapping[str, type],
        is_judge: bool,
        errors: Mapping[str, type[Exception]] = MappingProxyType({}),
        may_touch: Callable[[Any], bool] = lambda value: True,
        may_name: Callable[[Any, str], bool] = lambda value, name: not name.startswith("__"),
        may_change: Callable[[Any], bool] = lambda value: True,
        around_call: Callable[[Callable[[], Any]], tuple[Any, dict[str, Any]]] | None = None,
    ) -> None:
        self.wire: Any = wire
        self.by_value, self.is_judge, self.may_touch = by_value, is_judge, may_touch
        self.around_call, self.may_name, self.errors = around_call, may_name, errors
        self.may_change = may_change
        self.on_asides: Callable[[dict[str, Any]], None] = lambda asides: None
        self._objects: dict[int, Any] = {}
        self._numbers: dict[Any, int] = {}  # by identity; _objects keeps what it names alive
        self._next = itertools.count(1)
        self._stand_ins: dict[int, StandIn] = {}  # one for each object, so that `is` holds
        self._known: dict[tuple, Any] = {}  # attributes read since the last other request
        self.shared = Shared()
        self._depth, self._process = 0, os.getpid()

    def forget(self) -> None:
        """From now on the other side can use nothing that it was handed before."""
        for table in (self._objects, self._numbers, self._stand_ins):
            table.clear()
        self.shared.clear()

    # ---- beginning -----------------------------------------------------------------------------

    def say_ready(self) -> None:
        """The student's side stands: no code of theirs has run yet."""
        self._send(["result", "ready", ()])

    def await_ready(self) -> None:
        """Raises an error of the other side, or WireFailure, if it could not be set up."""
        what, said, _ = self._receive()
        if what == "error":
            raise error_from(said, self.errors)
        if said != "ready":
            raise BadMessage("another first word")

    # ---- asking --------------------------------------------------------------------------------

    def call(self, number: int, method: str, args: tuple, kwargs: dict) -> Any:
        """Call an object of the other side, or one of its methods."""
        return self.ask("call", number, method, args, tuple(kwargs.items()))

    def ask(self, *request: Any) -> Any:
        """Send a request; answer what comes back in between; return the result or raise.

        On the student's side an attribute that was just read is not asked for again: nobody but
        this code runs until its next other request.
        """
        if self.is_judge or request[0] != "get":
            self._known.clear()
            return self._ask(*request)
        if request not in self._known:
            value = self._ask(*request)
            if not self._stays(value):
                return value
            self._known[request] = value
        return self._known[request]

    def _stays(self, value: Any) -> bool:
        """Whether reading it again would give the same thing: no copy that can be changed."""
        plain = value is None or type(value) in (bool, int, float, str, StandIn)
        return plain or self.shared.number(value) is not None

    def _ask(self, *request: Any) -> Any:
        if self.is_judge and self._depth == 0 and not goes_on(request[0], request[2:]):
            self.shared.clear()
        self._depth += 1
        try:
            try:
                self._send(list(request))
            except TooLarge as error:  # nothing has been sent
                raise ValueError(str(error)) from None
            while True:
                reply = self._receive()
                if reply[0] == "result":
                    self._hear(reply[2])
                    return reply[1]
                if reply[0] == "error":
                    self._hear(reply[2])
                    raise error_from(reply[1], self.errors)
                self._answer(reply)
        finally:
            self._depth -= 1

    def _hear(self, asides: Any) -> None:
        try:
            self.on_asides(dict(asides))
        except (TypeError, ValueError) as error:
            raise BadMessage(f"asides of another form: {error}") from None

    # ---- answering -----------------------------------------------------------------------------

    def serve(self) -> None:
        """Answer requests until the other side goes (PeerGone)."""
        while True:
            self._answer(self._receive(begins=True))

    def _answer(self, request: list) -> None:
        asides: dict[str, Any] = {}
        self._known.clear()
        try:
            if self.around_call is not None and request[0] == "call":
                value, asides = self.around_call(lambda: self._do(request))
            else:
                value = self._do(request)
        except WireFailure:
            raise
        except BaseException as error:
            asides = getattr(error, "__dict__", {}).get("_asides", asides)
            self._send_back(["error", error_facts(error), tuple(asides.items())], lends=False)
            return
        # What a call returns is new, so there is nothing to work on together.
        lends = request[0] == "get" and self.may_change(self._objects.get(request[1]))
        self._send_back(["result", value, tuple(asides.items())], lends)

    def _send_back(self, reply: list, lends: bool) -> None:
        """Send a reply; what cannot be sent becomes the error that says so."""
        try:
            self._send(reply, lends)
        except (BadMessage, SystemExit, Exception) as error:
            if not self.is_judge:  # what was lent may be what cannot be sent
                self.shared.clear()
            self._send(["error", error_facts(error), ()], lends=False)

    def _do(self, request: list) -> Any:
        what, number, *rest = request
        value = self._object(number)
        if what == "call":
            method, args, kwargs = rest
            if method not in DUNDERS:
                raise BadMessage(f"no call of {method!r:.40}")
            return _CALLS[method](value, *args, **dict(kwargs))
        name = rest[0]
        if not isinstance(name, str) or not self.may_name(value, name):
            raise AttributeError(f"{name!r:.40} is not for others")
        if what == "get":
            return getattr(value, name)
        if what == "set":
            if not self.may_change(value):
                raise AttributeError(f"{name} of {describe(value)} is not for others to set")
            setattr(value, name, rest[1])
            return None
        raise BadMessage(f"unknown request {what!r:.40}")

    def _object(self, number: Any) -> Any:
        if not isinstance(number, int):
            raise BadMessage("a reference to nothing")
        if number not in self._objects:
            raise ReferenceError("this object belonged to an earlier question")
        return self._objects[number]

    # ---- messages ------------------------------------------------------------------------------

    def _send(self, parts: list, lends: bool = True) -> None:
        if os.getpid() != self._process:
            raise PeerGone("a copy of the process does not speak on its line")
        changed = self.shared.changed()
        writer = SharingWriter(self.refer, self.by_value, self.shared, lends and self.is_judge)
        coded = [parts[0], [writer.value(part) for part in parts[1:]], []]
        coded[2] = [[n, writer.content(self.shared.value(n))] for n in changed]
        for number in writer.lent:
            self.shared.seen(number)
        self.wire.send(coded, writer.frames)

    def _receive(self, begins: bool = False) -> list:
        coded, frames = self.wire.receive()
        reader = SharingReader(
            frames, self.resolve, self.by_value, self.shared, borrows=not self.is_judge
        )
        try:
            what, parts, changed = coded
            if begins and not goes_on(what, parts[1:]):
                self.shared.clear()
            values = [reader.value(part) for part in parts]
            contents = [(number, reader.value(content)) for number, content in changed]
        except (TypeError, ValueError, RecursionError) as error:
            raise BadMessage(f"a message of another form: {error}") from None
        for number, content in contents:
            self.shared.put(number, content)
        for number in reader.borrowed:
            self.shared.seen(number)
        return [what, *values]

    # ---- references ----------------------------------------------------------------------------

    def refer(self, value: Any) -> list[Any]:
        """["yours", number] for a stand-in going home, else ["mine", number, description]."""
        if issubclass(type(value), Disguised):  # isinstance asks the object itself
            value = object.__getattribute__(value, "inferlab_stand_in")
        if type(value) is StandIn:
            return ["yours", value.inferlab_number]
        if self.is_judge and not self.may_touch(value):
            raise AttributeError(f"objects of type {type(value).__name__} are not for others")
        # A bound method is made anew at each access; it is the same one as long as its object is.
        bound = type(value) is MethodType
        key = (id(value.__self__), value.__name__) if bound else id(value)
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = next(self._next)
            self._objects[number] = value
        return ["mine", number, describe(value)]

    def resolve(self, reference: list[Any]) -> Any:
        if reference[0] == "yours" and len(reference) == 2:
            return self._objects.get(reference[1], FORGOTTEN)
        if reference[0] == "mine" and len(reference) == 3 and isinstance(reference[1], int):
            return self._stand_ins.setdefault(
                reference[1], StandIn(self, reference[1], str(reference[2])[:80])
            )
        raise BadMessage("a reference of another form")


_CALLS: dict[str, Callable[..., Any]] = {
    "__call__": lambda value, *args, **kwargs: value(*args, **kwargs),
    "__iter__": iter,
    "__next__": next,
    "__len__": len,
    "__getitem__": lambda value, key: value[key],
    "__contains__": lambda value, key: key in value,
}


def goes_on(what: str, rest: Any) -> bool:
    """Whether a request asks for the next piece of something begun, such as a generator.

    What was lent for it is then still shared; any other request begins anew.
    """
    return what == "call" and rest[0] in ("__iter__", "__next__")


def describe(value: Any) -> str:
    """A few words for a stand-in: "function f", "class A", "object of type B".

    Nothing of the object is asked: what it says of itself may be anything.
    """
    kind = type(value)
    if issubclass(kind, type):
        return f"class {_name_of(value)}"
    if kind in (FunctionType, BuiltinFunctionType, MethodType):
        return f"function {value.__name__}"
    return f"object of type {_name_of(kind)}"


def _name_of(kind: type) -> str:
    return str(type.__dict__["__name__"].__get__(kind))


# ---- errors ------------------------------------------------------------------------------------


MAX_ERROR_CHARACTERS = 2000


class StudentError(Exception):
    """An error of a class that only the other side has; kind is the name of that class."""

    kind = "Exception"


class Exited(Exception):
    """The code asked the process to end (SystemExit)."""


def error_facts(error: BaseException) -> dict[str, Any]:
    """What crosses of an error: names of its classes, its text, the line it came from."""
    try:
        text = str(error)[:MAX_ERROR_CHARACTERS]
    except BaseException:
        text = "(its text cannot be had)"
    line = getattr(error, "__dict__", {}).get("_line", "")
    return {
        "kinds": [_name_of(kind) for kind in type(error).__mro__][:-1],
        "text": text,
        "line": line,
    }


def error_from(facts: Any, known_errors: Mapping[str, type[Exception]]) -> BaseException:
    """An error of a class that is known here, or of the nearest builtin one; never one that would
    stop the judge."""
    if not isinstance(facts, dict) or not isinstance(facts.get("kinds"), list):
        raise BadMessage("an error of another form")
    kinds = [str(kind)[:80] for kind in facts["kinds"][:20]]
    text = str(facts.get("text", ""))[:MAX_ERROR_CHARACTERS]
    error: BaseException
    if "SystemExit" in kinds:
        error = Exited(text or "it called exit")
    elif kinds and kinds[0] in known_errors and (own := _made(known_errors[kinds[0]], text)):
        error = own
    else:
        name = kinds[0] if kinds else "Exception"
        known = next(filter(None, map(_builtin_error, kinds)), Exception)
        if name == known.__name__ or known is not Exception:
            error = known(text)
        else:
            error = type(_as_name(name), (StudentError,), {"kind": name})(text)
    error.own_line = str(facts.get("line", ""))[:300]  # type: ignore[attr-defined]
    return error


def _made(kind: type[Exception], text: str) -> Exception | None:
    try:
        return kind(text)
    except Exception:
        return None


def _as_name(text: str) -> str:
    return text if text.isidentifier() else "Exception"


def _builtin_error(name: str) -> type[Exception] | None:
    kind = getattr(builtins, name, None)
    if not inspect.isclass(kind) or not issubclass(kind, Exception) or kind is Exception:
        return None
    if _made(kind, "text") is None:  # UnicodeDecodeError and its like want more
        return ValueError if issubclass(kind, ValueError) else None
    return kind
