"""Formulas kept in data files: arithmetic, and calls of functions that are named beside them."""

from __future__ import annotations

import ast
import importlib
import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

PLAIN: dict[str, Callable[..., Any]] = {
    "array": np.array,
    "ceil": math.ceil,
    "exp": math.exp,
    "floor": math.floor,
    "log": math.log,
    "max": max,
    "min": min,
    "round": round,
    "sqrt": math.sqrt,
    "sum": sum,
}
_ALLOWED = (
    ast.Expression,
    *(ast.BinOp, ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.Pow),
    *(ast.UnaryOp, ast.USub, ast.Not, ast.BoolOp, ast.And, ast.Or, ast.IfExp),
    *(ast.Compare, ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE),
    *(ast.Call, ast.keyword, ast.Name, ast.Load, ast.Constant, ast.List, ast.Tuple),
    *(ast.Attribute, ast.Subscript),
)


class Formula:
    """An expression such as "kv_cache_bytes(config, n_tokens) / 2", to be given its values.

    functions: name -> what it calls, besides those in PLAIN. Raises ValueError for anything that
    is not arithmetic on names, numbers and texts, or a call of a function that is known.
    """

    def __init__(self, source: str, functions: Mapping[str, Callable[..., Any]]) -> None:
        self.source = source
        self._functions = {**PLAIN, **functions}
        try:
            tree = ast.parse(source.strip(), mode="eval")
        except SyntaxError as error:
            raise ValueError(f"{source!r} is no formula: {error.msg}") from error
        for node in ast.walk(tree):
            self._check(node)
        self.names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        self._code = compile(tree, "<formula>", "eval")

    def _check(self, node: ast.AST) -> None:
        hidden = isinstance(node, ast.Attribute) and node.attr.startswith("_")
        starred = isinstance(node, ast.keyword) and node.arg is None
        if hidden or starred or not isinstance(node, _ALLOWED):
            raise ValueError(f"{self.source!r}: {type(node).__name__} is not allowed in a formula")
        if isinstance(node, ast.Call) and not (
            isinstance(node.func, ast.Name) and node.func.id in self._functions
        ):
            raise ValueError(
                f"{self.source!r} calls {ast.unparse(node.func)}, which is not named beside it"
            )

    def __call__(self, values: Mapping[str, Any]) -> Any:
        """What it comes to, with these values for its names."""
        scope = {"__builtins__": {}, **self._functions, **values}
        try:
            return eval(self._code, scope)
        except Exception as error:
            raise ValueError(f"{self.source!r} with {dict(values)}: {error}") from error


@lru_cache(maxsize=512)
def function(path: str) -> Callable[..., Any]:
    """The function that "inferlab.kv_cache.kv_cache_bytes" names.

    Raises ValueError unless it is one of the course's own.
    """
    module, _, name = path.rpartition(".")
    if not module.startswith("inferlab."):
        raise ValueError(f"{path!r} must name a function of inferlab, with its module")
    found = getattr(importlib.import_module(module), name, None)
    if not callable(found):
        raise ValueError(f"there is no function {path!r}")
    return found


def functions(paths: Sequence[str]) -> dict[str, Callable[..., Any]]:
    """The functions of these paths, by their last name."""
    return {path.rpartition(".")[2]: function(path) for path in paths}
