"""Python's own names that a notebook has given another meaning: after `max = 3`, max(...) fails."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from grader.notebooks.merge import Cell, parsed, text

OURS = frozenset(
    name for name, value in vars(builtins).items() if callable(value) and name[0].islower()
)


@dataclass(frozen=True)
class Shadow:
    """One such name. number: of the source that assigns it, from 0; line: what that says."""

    name: str
    number: int
    line: str

    def words(self, cell: str) -> str:
        """What is wrong, in a notebook whose cell of that number is called `cell`."""
        return (
            f"{self.name} is no longer Python's own: {cell} says `{self.line}`, and a function "
            f"calls {self.name}(...); rename that variable"
        )


def shadows(sources: Sequence[str]) -> list[Shadow]:
    """Names of Python's functions that cells, in this order, assign and some function calls."""
    found: dict[str, Shadow] = {}
    called: set[str] = set()
    for number, source in enumerate(sources):
        module = parsed(source)
        for node in module.body if module else ():
            called |= _called(node)
            for name in _deleted(node):
                found.pop(name, None)
            for name, line in _assigned(node).items():
                if name in OURS:
                    found[name] = Shadow(name, number, source.splitlines()[line - 1].strip())
    return [shadow for shadow in found.values() if shadow.name in called]


def in_cells(cells: Sequence[Cell]) -> Iterator[tuple[Shadow, str]]:
    """The shadows of a notebook, each with what is wrong."""
    code = [text(cell) for cell in cells if cell["cell_type"] == "code"]
    for shadow in shadows(code):
        yield shadow, shadow.words(f"code cell {shadow.number + 1}")


def _called(node: ast.stmt) -> set[str]:
    """Names that functions within this statement call and do not bind themselves."""
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return set()
    parts = list(ast.walk(node))
    bound = {p.arg for p in parts if isinstance(p, ast.arg)}
    bound |= {p.id for p in parts if isinstance(p, ast.Name) and not isinstance(p.ctx, ast.Load)}
    calls = (p.func for p in parts if isinstance(p, ast.Call))
    return {f.id for f in calls if isinstance(f, ast.Name)} - bound


def _assigned(node: ast.stmt) -> dict[str, int]:
    """Names that a statement at the top binds to a value, not to another function, by line."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {}
    value = getattr(node, "value", None)
    if isinstance(value, ast.Lambda | ast.Name | ast.Attribute):  # sum = np.sum
        return {}
    parts = list(ast.walk(node))
    within = {p for c in parts if isinstance(c, ast.comprehension) for p in ast.walk(c.target)}
    names = (part for part in parts if isinstance(part, ast.Name) and part not in within)
    return {part.id: part.lineno for part in names if isinstance(part.ctx, ast.Store)}


def _deleted(node: ast.stmt) -> set[str]:
    names = (part for part in ast.walk(node) if isinstance(part, ast.Name))
    return {part.id for part in names if isinstance(part.ctx, ast.Del)}
