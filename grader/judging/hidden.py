"""The hidden cases of a course: the seed that draws them, and a file that may hold more.

Both are the instructor's own: a seed that is published is no secret. `nbgrader_config.py` names
them (c.Judge.hidden_seed, c.Judge.extra_cases), or INFERLAB_HIDDEN_SEED and INFERLAB_HIDDEN_CASES.
"""

from __future__ import annotations

import os
import runpy
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from grader.judging import registry
from grader.judging.exercise import Case, Exercise

DEFAULT_SEED = 20_170_612
SEED, FILE = "INFERLAB_HIDDEN_SEED", "INFERLAB_HIDDEN_CASES"


@dataclass(frozen=True)
class Hidden:
    """What only grading knows. file: a Python file with CASES (see extra_cases), "" for none."""

    seed: int = DEFAULT_SEED
    file: str = ""

    def cases(self, exercise: Exercise) -> tuple[Case, ...]:
        """The hidden cases of an exercise: its own, those drawn, and those of the file."""
        return exercise.hidden_cases(self.seed) + self._extra().get(exercise.id, ())

    def _extra(self) -> Mapping[str, tuple[Case, ...]]:
        return extra_cases(self.file, _changed(Path(self.file))) if self.file else {}

    def environment(self) -> dict[str, str]:
        """The same, for another process."""
        return {SEED: str(self.seed), FILE: self.file}

    def text(self) -> str:
        """Everything that it decides a result by."""
        return f"seed {self.seed}" + (Path(self.file).read_text("utf-8") if self.file else "")


def chosen(seed: int | None, file: str, course: Path) -> Hidden:
    """What a course's settings say; where they say nothing, what the environment says."""
    usual = from_environment()
    path = str(course / Path(file).expanduser()) if file else usual.file
    return Hidden(usual.seed if seed is None else seed, path)


def from_environment() -> Hidden:
    """What the environment says, else a seed that everybody knows and no file."""
    said = os.environ.get(SEED, "").strip() or str(DEFAULT_SEED)
    if not said.isdecimal():
        raise ValueError(f"{SEED}={said!r} must be a whole number, 0 or more")
    return Hidden(int(said), os.environ.get(FILE, ""))


def _changed(path: Path) -> int:
    if not path.is_file():
        raise ValueError(f"there is no file {path} with extra hidden cases")
    return path.stat().st_mtime_ns


@lru_cache(maxsize=4)
def extra_cases(file: str, changed: int) -> Mapping[str, tuple[Case, ...]]:
    """The hidden cases of a Python file: CASES = {"kv_cache_bytes": (given("…", …), …), …}.

    changed: when it was written, so that a file is read again after a change.
    Raises ValueError, naming the file, for anything else and for what the file itself raises.
    """
    try:
        found: Any = runpy.run_path(file).get("CASES")
    except Exception as error:
        raise ValueError(f"{file} cannot be run: {type(error).__name__}: {error}") from error
    if not isinstance(found, Mapping):
        raise ValueError(f'{file} must define CASES = {{"exercise": (given(…), …)}}')
    known = {exercise.id for exercise in registry.exercises()}
    for name, cases in found.items():
        if name not in known:
            raise ValueError(f"{file}: no exercise is called {name!r}")
        if not isinstance(cases, tuple | list) or not all(isinstance(c, Case) for c in cases):
            raise ValueError(f"{file}: CASES[{name!r}] must be a tuple of cases, given {cases!r}")
    return {name: tuple(replace(c, hidden=True) for c in cases) for name, cases in found.items()}
