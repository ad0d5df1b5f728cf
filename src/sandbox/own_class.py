"""A notebook's class for an object that the judge has: its methods see an instance of their own.

What is kept in the object is kept by the judge, where what judges it can see it; so attributes are
read and set there. Everything else is the class's, as in the notebook: constants, properties,
static methods, helpers, what super() finds; and isinstance says yes.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from sandbox.endpoint import Disguised, StandIn

MAX_KEPT = 1000


def method(kind: type, name: str) -> Callable:
    """A method of the notebook's class, to be called with the judge's object in place of self.

    Raises AttributeError if the class has none of that name.
    """
    own = getattr(kind, name)
    if isinstance(inspect.getattr_static(kind, name), (staticmethod, classmethod)):
        return lambda this, *args, **kwargs: own(*args, **kwargs)
    return lambda this, *args, **kwargs: own(_as_own(this, kind), *args, **kwargs)


_kept: dict[tuple[StandIn, type], Any] = {}  # one for each object, so that `is` holds


def _as_own(this: Any, kind: type) -> Any:
    if type(this) is not StandIn:
        return this
    if (this, kind) not in _kept:
        if len(_kept) > MAX_KEPT:
            _kept.clear()
        found: Any = object.__new__(_disguise(kind))
        object.__setattr__(found, "inferlab_stand_in", this)
        _kept[this, kind] = found
    return _kept[this, kind]


@lru_cache(maxsize=64)
def _disguise(kind: Any) -> type:
    """A class of the same name whose objects keep nothing themselves."""

    def read(self: Any, name: str) -> Any:
        if name.startswith("__") or name == "inferlab_stand_in":
            return object.__getattribute__(self, name)
        stand_in = object.__getattribute__(self, "inferlab_stand_in")
        try:
            return getattr(stand_in, name)
        except AttributeError:
            if not hasattr(kind, name):
                raise
        return object.__getattribute__(self, name)

    def write(self: Any, name: str, value: Any) -> None:
        if _is_set_by(kind, name):
            object.__setattr__(self, name, value)
        else:
            setattr(object.__getattribute__(self, "inferlab_stand_in"), name, value)

    facts = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
    body = {"__getattribute__": read, "__setattr__": write, **facts}
    return type(kind)(kind.__name__, (kind, Disguised), body)


def _is_set_by(kind: type, name: str) -> bool:
    """Whether the class has a property of that name that can be set."""
    found = inspect.getattr_static(kind, name, None)
    return isinstance(found, property) and found.fset is not None
