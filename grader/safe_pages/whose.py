"""Whether a folder that nbgrader works in holds this course, whatever settings nbgrader has read.

What the instructor put there says so, and the gradebook; never what a student handed in.
"""

from __future__ import annotations

import os
import pkgutil
import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path

import grader.checks

MARK = "from grader import"  # in every lesson's notebook
SETTINGS_MARK = "grader.classroom"  # in the nbgrader_config.py of every course
DEPTH = 2  # folders down, where courses are looked for


@lru_cache(maxsize=1)
def _concepts() -> frozenset[str]:
    return frozenset(module.name for module in pkgutil.iter_modules(grader.checks.__path__))


def is_lesson(name: str) -> bool:
    """Whether an assignment has the name of a lesson: a number and a concept, 04_kv_cache."""
    found = re.fullmatch(r"\d\d_(\w+)", name)
    return found is not None and found[1] in _concepts()


def is_ours(root: Path, assignment: str) -> bool:
    """Whether an assignment of the course in root is a lesson, if need be under another name."""
    return is_lesson(assignment) or any(_is_marked(p) for p in _given(root, assignment))


def holds_course(root: Path, in_gradebook: Iterable[str] = ()) -> bool:
    """Whether root is a folder of this course: by its settings, its lessons or its gradebook."""
    if has_settings(root) or any(map(is_lesson, in_gradebook)):
        return True
    names = {path.name for step in _folders(root) for path in _folders(step)}
    return any(map(is_lesson, names)) or any(is_ours(root, name) for name in names)


def has_settings(root: Path) -> bool:
    """Whether the nbgrader_config.py in root is one of this course's."""
    path = root / "nbgrader_config.py"
    return path.is_file() and SETTINGS_MARK in path.read_text(encoding="utf-8", errors="replace")


def courses_below(root: Path, depth: int = DEPTH) -> list[Path]:
    """Folders of this course in root, not deeper than that many folders."""
    found: list[Path] = []
    for folder in _folders(root) if depth else ():
        found += [folder] if has_settings(folder) else courses_below(folder, depth - 1)
    return found


def _given(root: Path, assignment: str) -> Iterator[Path]:
    """The notebooks of an assignment as the instructor has it: its source, its release."""
    for step in _folders(root):
        if assignment and (step / assignment).is_dir():
            yield from (step / assignment).glob("*.ipynb")


def _is_marked(notebook: Path) -> bool:
    try:
        facts = notebook.stat()
        return _text_is_marked(notebook, facts.st_mtime_ns, facts.st_size)
    except OSError:
        return False


@lru_cache(maxsize=1024)
def _text_is_marked(notebook: Path, mtime_ns: int, n_bytes: int) -> bool:
    return MARK in notebook.read_text(encoding="utf-8", errors="replace")


def _folders(path: Path) -> list[Path]:
    """Folders in a folder, without links and what is hidden; none where it cannot be read."""
    try:
        with os.scandir(path) as found:
            kept = [e.path for e in found if e.is_dir(follow_symlinks=False)]
    except OSError:
        return []
    return [Path(p) for p in sorted(kept) if not Path(p).name.startswith(".")]
