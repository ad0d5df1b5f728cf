"""Let the parts of a forward pass call other parts than those of their own file or notebook.

A function looks a name up in the globals it was born with. Here it is copied with other globals,
so that a learner's `decoder_block` can run on the course's `rotate`, or every call be recorded.
Nothing that exists is changed; `lent` alone changes a namespace, and puts it back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from inspect import getattr_static
from types import FunctionType
from typing import Any

from inferlab import attention, operators, transformer

Part = Callable[..., Any]

IN_OPERATORS = (
    "softmax", "rms_norm", "rope_angles", "stretched_angles", "rotate", "causal_mask",
    "window_mask", "attention", "split_heads", "merge_heads", "project", "silu", "swiglu",
)  # fmt: skip
IN_TRANSFORMER = (
    "decoder_block", "mix_tokens", "feed_forward", "position_angles", "visible_keys",
    "check_tokens", "forward",
)  # fmt: skip

REFERENCE: dict[str, Part] = {
    **{name: getattr(operators, name) for name in IN_OPERATORS},
    "to_heads": attention.to_heads,
    "self_attention": attention.self_attention,
    **{name: getattr(transformer, name) for name in IN_TRANSFORMER},
}
"""The course's own parts of a forward pass, by name."""


def as_it_is(name: str, part: Part) -> Part:
    return part


def wired(parts: Mapping[str, Part], wrap: Callable[[str, Part], Part] = as_it_is) -> dict:
    """Copies of `parts` that call each other, each as wrap(its name, its copy).

    What a part reads besides them (modules, constants) it finds as before. A part that is no plain
    Python function is taken as it is.
    """
    copies: dict[str, Part] = {}
    homes = []
    for name, part in parts.items():
        if isinstance(part, FunctionType):
            homes.append(dict(part.__globals__))
            part = _at_home(part, homes[-1])
        copies[name] = wrap(name, part)
    for home in homes:
        home.update(copies)
    return copies


def written_here(namespace: Mapping[str, Any]) -> dict[str, Part]:
    """The functions of a notebook's namespace that were written in it, helpers too."""
    return {name: value for name, value in namespace.items() if _is_from_notebook(value)}


def parts_of(namespace: Mapping[str, Any]) -> dict[str, Part]:
    """The parts of a forward pass in a namespace; the course's for those it lacks."""
    found = {name: namespace.get(name, part) for name, part in REFERENCE.items()}
    return written_here(namespace) | found


def alone(answer: Any, name: str) -> Any:
    """A learner's part, with the course's in place of every other part that it calls.

    So one part can be judged while others are not written, or wrong. Only what was written in a
    notebook is rewired; a function of a library stays what it is.
    """
    others = {other: part for other, part in REFERENCE.items() if other != name}
    elsewhere = getattr(answer, "alone_with", None)  # it runs in a student's own process
    return elsewhere(name, others) if elsewhere else alone_with(answer, name, others)


def alone_with(answer: Any, name: str, others: Mapping[str, Part]) -> Any:
    """A function written in a notebook, with these parts in place of all that it calls."""
    if not _is_from_notebook(answer):
        return answer
    copies = wired(written_here(answer.__globals__) | {name: answer})
    for copy in copies.values():
        copy.__globals__.update({**others, name: copies[name]})
    return copies[name]


@contextmanager
def lent(namespace: dict[str, Any], parts: Mapping[str, Any]) -> Iterator[None]:
    """A notebook's namespace with these parts in it, and as it was afterwards.

    So whatever calls a part by its name finds the lent one: functions, methods, what a closure or
    a cache holds. Results that caches of the notebook keep are forgotten before and after.
    """
    before = {name: namespace[name] for name in parts if name in namespace}
    _forget_results(namespace)
    namespace.update(parts)
    try:
        yield
    finally:
        for name in parts:
            namespace.pop(name, None)
        namespace.update(before)
        _forget_results(namespace)


def _forget_results(namespace: Mapping[str, Any]) -> None:
    for value in list(namespace.values()):
        inner = getattr_static(value, "__wrapped__", None)
        if getattr(inner, "__globals__", None) is namespace and hasattr(value, "cache_clear"):
            value.cache_clear()


def _is_from_notebook(value: Any) -> bool:
    return isinstance(value, FunctionType) and value.__globals__.get("__name__") == "__main__"


def _at_home(part: FunctionType, home: dict[str, Any]) -> FunctionType:
    copy = FunctionType(part.__code__, home, part.__name__, part.__defaults__, part.__closure__)
    copy.__kwdefaults__ = part.__kwdefaults__
    return copy
