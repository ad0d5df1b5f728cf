"""What a notebook imports from the grader, where the grader is not: names that judge nothing.

The judge calls the functions itself, so `check` has nothing to do here.
"""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Collection
from functools import lru_cache
from types import CodeType, FunctionType, ModuleType
from typing import Any

from inferlab.moved import keep_old_names

VERBS = (
    *("check", "confront", "drill", "hint", "interview", "my_engine"),
    *("predict", "progress", "reset", "solution"),
)


MOVED = {"grader.counting": "inferlab.counted_memory"}
"""The grader's names of release 0.1, as inferlab.moved keeps them."""


def grader_module() -> ModuleType:
    """A module `grader` with the verbs of a notebook."""
    keep_old_names(MOVED)
    module = ModuleType("grader", __doc__)

    def nothing(*args: Any, **kwargs: Any) -> None:
        """Judging is done elsewhere."""

    for verb in VERBS:
        setattr(module, verb, nothing)
    module.__path__ = []  # a package whose only part is loaded already
    module.ready = lambda *names: False  # type: ignore[attr-defined]
    module.Answers = Answers  # type: ignore[attr-defined]
    return module


class Answers(dict):
    """The learner's name and answers, kept for the judge."""

    def __init__(self, learner: Any = "") -> None:
        super().__init__()
        self.learner = learner

    def ask(self, question: Any) -> None:
        """The question stands in the notebook's text."""

    def check(self, question: Any, **more: Any) -> None:
        """Judged elsewhere."""


@lru_cache(maxsize=1)
def functions_by_code() -> dict[CodeType, list[FunctionType]]:
    """Every function that the engine and labkit hold, by its code: a copy shares it."""
    found: dict[CodeType, list[FunctionType]] = {}
    for thing in gc.get_objects():
        if type(thing) is FunctionType:
            home = str(thing.__globals__.get("__name__")).split(".")[0]
            if home in ("inferlab", "labkit"):
                found.setdefault(thing.__code__, []).append(thing)
    return found


def remove_reference(names: dict[str, str]) -> None:
    """Take the code out of the functions that are under judgement, wherever they are held.

    names: "module.function" or "module.Class.method" -> what to say. The code itself is replaced,
    in copies of the function too, and what is left of it in memory is overwritten.
    Raises ValueError if one of them is no function: it must not stay by mistake.
    """
    copies = functions_by_code()
    for path, text in names.items():
        target = _find(path)
        while hasattr(target, "__wrapped__"):
            getattr(target, "cache_clear", lambda: None)()
            target = target.__wrapped__
        if not isinstance(target, FunctionType):
            raise ValueError(f"{path} cannot be taken out of the reference: it is {target!r:.80}")
        code = target.__code__
        for function in copies.pop(code, [target]):
            _empty(function, text)
        _overwrite(code, copies)
    functions_by_code.cache_clear()


def _overwrite(code: CodeType, alive: Collection[CodeType]) -> None:
    """Nothing runs this code any more; its instructions must not be found in memory either."""
    n_bytes = 2 * sum(1 for _ in code.co_positions())  # an instruction's unit has two
    for constant in code.co_consts:
        if isinstance(constant, CodeType) and constant not in alive:
            _overwrite(constant, alive)
    ctypes.memset(id(code) + CodeType.__basicsize__, 0, n_bytes)


def _find(path: str) -> Any:
    parts = path.split(".")
    for cut in range(len(parts) - 1, 0, -1):
        module = sys.modules.get(".".join(parts[:cut]))
        if module is not None:
            value: Any = module
            for part in parts[cut:]:
                value = (
                    vars(value).get(part) if isinstance(value, type) else getattr(value, part, None)
                )
            return value
    return None


def _empty(function: FunctionType, text: str) -> None:
    namespace: dict[str, Any] = {}
    exec(f"def gone(*args, **kwargs):\n    raise NotImplementedError({text!r})", namespace)
    # Code and closure must fit, so the names that the closure holds stay, unused.
    names = function.__code__.co_freevars
    function.__code__ = namespace["gone"].__code__.replace(co_freevars=names)
    function.__defaults__ = function.__kwdefaults__ = None
    function.__doc__ = None
