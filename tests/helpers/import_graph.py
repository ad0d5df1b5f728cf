"""Which module imports which, read from the code itself: nothing is run.

All imports count, at any depth: those within a function, and those for type checking alone.
"""

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path

PACKAGES = ("inferlab", "labkit", "sandbox", "grader", "benchmarks", "tools")
"""From the bottom up: each may use those before it."""

NAMES = re.compile(
    rf"(.*-m )?(?P<module>({'|'.join(PACKAGES[:4])})|({'|'.join(PACKAGES)})(\.\w+)+\.?)(\s.*)?"
)
Graph = Mapping[str, set[str]]


def modules(root: Path) -> dict[str, Path]:
    """Name -> file, for every module of PACKAGES."""
    found = {}
    for package in PACKAGES:
        base = root if (root / package).is_dir() else root / "src"
        for path in (base / package).rglob("*.py"):
            name = ".".join(path.relative_to(base).with_suffix("").parts)
            found[name.removesuffix(".__init__")] = path
    return found


def graph_of(files: Mapping[str, Path]) -> dict[str, set[str]]:
    """Each module -> the modules of ours that it imports."""
    return {name: imports_of(name, files) for name in files}


def imports_of(name: str, files: Mapping[str, Path]) -> set[str]:
    """The modules of ours that one module imports."""
    return set(_imported(name, files)) - {name}


def _imported(name: str, files: Mapping[str, Path]) -> Iterator[str]:
    for node in ast.walk(_tree(files[name])):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in files)
        elif isinstance(node, ast.ImportFrom):
            source = _source(name, node, is_package=files[name].name == "__init__.py")
            for alias in node.names:  # `from package import module`, or a name that it defines
                module = f"{source}.{alias.name}"
                yield from (x for x in (module if module in files else source,) if x in files)


def _source(name: str, node: ast.ImportFrom, is_package: bool) -> str:
    """What stands after `from`, in full: `from ..x import y` counts as well."""
    if not node.level:
        return node.module or ""
    up = node.level - is_package
    home = name.split(".")[: len(name.split(".")) - up]
    return ".".join([*home, *([node.module] if node.module else [])])


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def circles(graph: Graph) -> list[list[str]]:
    """Groups of modules that reach each other: each group sorted, none of a single module."""
    reached = {name: _reached(graph, name) for name in graph}
    groups = {
        tuple(sorted(m for m in reached[name] if name in reached[m]))
        for name in graph
        if name in reached[name]
    }
    return sorted(map(list, groups))


def _reached(graph: Graph, start: str) -> set[str]:
    """All that `start` imports, itself or through others."""
    seen: set[str] = set()
    ahead = list(graph[start])
    while ahead:
        name = ahead.pop()
        if name not in seen:
            seen.add(name)
            ahead += graph[name]
    return seen


def package_of(name: str) -> str:
    return name.split(".")[0]


def upward(graph: Graph) -> list[str]:
    """Imports of a package above: "a imports b"."""
    return [
        f"{name} imports {other}"
        for name, others in sorted(graph.items())
        for other in sorted(others)
        if _is_above(other, name)
    ]


def named_upward(files: Mapping[str, Path]) -> list[str]:
    """Strings that name a package above or a module of it: "a names 'b'".

    A module with its dots, alone or after `-m`; of a word without dots only the four packages that
    are installed: "tools" and "benchmarks" are words of other things too.
    """
    return [
        f"{name} names {text!r}"
        for name, path in sorted(files.items())
        for text in sorted(set(_strings(_tree(path))))
        for match in [NAMES.fullmatch(text)]
        if match and _is_above(match["module"], name)
    ]


def _is_above(other: str, name: str) -> bool:
    return PACKAGES.index(package_of(other)) > PACKAGES.index(package_of(name))


def _strings(tree: ast.AST) -> Iterable[str]:
    return (
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    )
