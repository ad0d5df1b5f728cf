"""Who may import whom, and where each thing stands: read from the code's own imports."""

import ast
import re
import shutil
from pathlib import Path

import pytest
from import_graph import (
    PACKAGES,
    Graph,
    circles,
    graph_of,
    imports_of,
    modules,
    named_upward,
    upward,
)
from places import ROOT

FILES = modules(ROOT)
STAND_IN = {f"sandbox.{name} names 'grader'" for name in ("stand_ins", "zygote")}
"""Where a notebook imports the grader, the sandbox puts an empty module of that name."""

OLD_NAME = {"sandbox.stand_ins names 'grader.counting'"}
"""In release 0.1 the grader had that module. It is the engine's now; the old name leads there."""


@pytest.fixture(scope="module")
def graph() -> Graph:
    return graph_of(FILES)


def test_the_imports_are_read(graph):
    """A graph without edges would have no circle either."""
    assert set(map(str, PACKAGES)) <= set(FILES)
    assert "inferlab.kv_cache" in graph["inferlab.model"]
    assert "inferlab.weights" in graph["inferlab.transformer"], "an import for type checking"
    assert "inferlab.serve.run" in graph["grader.cli"], "an import within a function"
    assert "grader.checks.moe.router" in graph["grader.checks.moe"], "a package and its part"
    assert "tools" in graph["tools.book.run"], "a name that a package defines"


def test_each_package_imports_only_those_below_it(graph):
    assert upward(graph) == []


def test_no_package_names_one_above_it_in_a_string():
    """`python -m grader.cli` started from below would be an import in disguise."""
    assert set(named_upward(FILES)) == STAND_IN | OLD_NAME
    assert "grader.counting" not in FILES


def test_no_modules_import_each_other_in_a_circle(graph):
    assert circles(graph) == []


# ---- the wings ---------------------------------------------------------------------------------


def layers() -> dict[str, int]:
    """The rows of docs/architecture.md, from the bottom up: a file or folder -> its layer."""
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    _, section = text.split("## Inside inferlab\n")
    rows = re.findall(r"^\| (\d+) \|([^|]*)\|", section.split("\n## ")[0], re.MULTILINE)
    assert [int(number) for number, _ in rows] == list(range(1, len(rows) + 1))
    return {
        place.strip("`").removeprefix("src/inferlab/"): int(number)
        for number, places in rows
        for place in re.findall("`[^`]+`|every other file", places)
    }


def layer_of(module: str, found: dict[str, int]) -> int:
    """A file's own row, or that of its folder; all other files of the top are concepts."""
    inner = FILES[module].relative_to(ROOT / "src" / "inferlab").parts
    place = f"{inner[0]}/" if len(inner) > 1 else inner[0]
    assert place in found or len(inner) == 1, f"docs/architecture.md has no row for {place}"
    return found.get(place, found["every other file"])


def too_high(graph: Graph) -> list[str]:
    """Imports within inferlab of a layer above one's own."""
    found = layers()
    inside = {name: layer_of(name, found) for name in FILES if name.split(".")[0] == "inferlab"}
    return [
        f"{name} imports {other}"
        for name in sorted(inside)
        for other in sorted(graph[name])
        if other != "inferlab" and inside[other] > inside[name]
    ]


def test_the_layers_of_the_engine_are_those_of_the_documentation(graph):
    places = set(layers()) - {"every other file"}
    assert [p for p in places if not (ROOT / "src" / "inferlab" / p).exists()] == []
    assert too_high(graph) == []


def wing(module: str) -> str:
    """labkit.figures for all that lies in that folder; a file of the top is a wing of its own."""
    parts = module.split(".")
    return ".".join(parts[:2])


def test_no_wings_of_labkit_use_each_other_in_a_circle(graph):
    """`from labkit import store` names no package but its file."""
    wings: dict[str, set[str]] = {}
    for name in (n for n in graph if n.startswith("labkit.")):
        others = {wing(other) for other in graph[name] if other.startswith("labkit.")}
        wings.setdefault(wing(name), set()).update(others - {wing(name)})
    assert "labkit.measure" in wings["labkit.figures"]
    assert circles(wings) == []


# ---- the test can fail -------------------------------------------------------------------------

PLANTED = {
    "a circle": ("inferlab.sizes", "from inferlab.config import ModelConfig"),
    "a circle through a package": (
        "labkit.explorer.state",
        "def late():\n    from labkit import explorer\n    return explorer",
    ),
    "a circle for type checking": (
        "inferlab.kv_cache",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from inferlab.model import Model",
    ),
    "upward": ("labkit.units", "import grader.judging.judge"),
    "upward, from a package": ("sandbox.wire", "from grader import cli"),
    "upward, from a program": ("grader.judging.law", "from benchmarks.plan import FULL"),
    "in a string": ("inferlab.serve.process", 'X = ["-m", "grader.cli", "serve"]'),
    "in a shell's line": ("inferlab.fp8", 'X = "python -m tools.mutants --all"'),
    "in a built string": ("labkit.store", 'X = f"grader.checks.{PLANTED}"'),
    "a wing above": ("inferlab.workload", "from inferlab.serve.engine import ServingEngine"),
    "a wing above, relative": ("inferlab.engines.arena", "from ..commands import bench"),
}


@pytest.fixture(scope="module")
def planted(tmp_path_factory) -> dict[str, Path]:
    """A copy of the tree with every import of PLANTED in it."""
    root = tmp_path_factory.mktemp("planted") / "a tree"
    only_code = shutil.ignore_patterns("__pycache__", "*.html", "*.json")
    for package in PACKAGES:
        source = FILES[package].parent
        shutil.copytree(source, root / source.relative_to(ROOT), ignore=only_code)
    files = modules(root)
    for name, text in PLANTED.values():
        with files[name].open("a", encoding="utf-8") as file:
            file.write(f"\n{text}\n")
    return files


def test_what_is_planted_is_found(planted, graph):
    changed = {name for name, _ in PLANTED.values()}
    there = {**graph, **{name: imports_of(name, planted) for name in changed}}
    in_circles = {name for circle in circles(there) for name in circle}
    assert {"inferlab.sizes", "inferlab.kv_cache", "labkit.explorer.state"} <= in_circles
    assert upward(there) == [
        "grader.judging.law imports benchmarks.plan",
        "labkit.units imports grader.judging.judge",
        "sandbox.wire imports grader.cli",
    ]
    assert set(named_upward({name: planted[name] for name in changed})) - STAND_IN == {
        "inferlab.serve.process names 'grader.cli'",
        "inferlab.fp8 names 'python -m tools.mutants --all'",
        "labkit.store names 'grader.checks.'",
    }
    found = too_high(there)
    assert "inferlab.workload imports inferlab.serve.engine" in found
    assert "inferlab.engines.arena imports inferlab.commands.bench" in found
    assert "inferlab.sizes imports inferlab.config" in found


# ---- each folder says what it is ---------------------------------------------------------------


def folders_with_code() -> list[Path]:
    """Every folder of PACKAGES that holds a Python file."""
    return sorted({path.parent for path in FILES.values()})


@pytest.mark.parametrize("folder", folders_with_code(), ids=lambda f: str(f.relative_to(ROOT)))
def test_a_package_says_what_lives_there_and_how_to_use_it(folder: Path):
    """At least a sentence for the whole, and one more: its parts, or what to call."""
    init = folder / "__init__.py"
    assert init.is_file(), f"{folder.relative_to(ROOT)} has no __init__.py"
    doc = ast.get_docstring(ast.parse(init.read_text(encoding="utf-8"))) or ""
    first, _, rest = doc.partition("\n\n")
    assert first.endswith((".", ":")), doc
    assert len(rest.split()) >= 5, f"{init.relative_to(ROOT)} says too little: {doc!r}"


# ---- one name a lesson -------------------------------------------------------------------------

LESSONS = sorted(path.stem for path in (ROOT / "src" / "lessons").glob("[0-9]*.py"))
EVERY_LESSON_HAS = (
    "grader/checks/{x}/__init__.py",
    "src/labkit/figures/{x}.py",
    "tests/lessons/test_{x}.py",
    "data/interview/{nn}_{x}.json",
)


def places_of(lesson: str) -> dict[str, Path]:
    number, name = lesson.split("_", 1)
    return {p: ROOT / p.format(x=name, nn=number) for p in EVERY_LESSON_HAS}


@pytest.mark.parametrize("lesson", LESSONS)
def test_a_lesson_bears_one_name_everywhere(lesson: str):
    assert [str(path) for path in places_of(lesson).values() if not path.is_file()] == []


def test_no_checks_or_questions_lie_under_another_name():
    names = {lesson.split("_", 1)[1] for lesson in LESSONS}
    assert len(names) >= 12
    assert {p.parent.name for p in (ROOT / "grader" / "checks").glob("*/__init__.py")} == names
    assert {p.stem for p in (ROOT / "data" / "interview").glob("[0-9]*.json")} == set(LESSONS)


def test_what_a_test_is_named_for_exists():
    """tests/labkit/figures/test_x.py tests figures/x.py; tests/lessons/test_x.py a lesson."""
    for folder in ("figures", "measure"):
        for test in (ROOT / "tests" / "labkit" / folder).glob("test_*.py"):
            module = ROOT / "src" / "labkit" / folder / test.name.removeprefix("test_")
            assert module.is_file(), f"{test.relative_to(ROOT)} is named for no file"


def test_the_tests_mirror_the_packages():
    """Each folder below tests/PACKAGE is a folder of that package."""
    for package in ("inferlab", "labkit", "sandbox", "grader"):
        home = FILES[package].parent
        for folder in (ROOT / "tests" / package).rglob("*/"):
            if folder.name != "__pycache__":
                inner = folder.relative_to(ROOT / "tests" / package)
                assert (home / inner).is_dir(), f"{folder.relative_to(ROOT)} mirrors nothing"
