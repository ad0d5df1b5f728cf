"""What grading found of one submission, as it is kept: results with reasons, and what they rest on.

A regrade is a pure function of what the hashes name: the notebook's bytes, the checks (all of the
course's code, and the release), the versions of what runs them, the isolation and the hidden cases.
"""

from __future__ import annotations

import hashlib
import json
import platform
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any

from grader.classroom import private
from grader.judging.hidden import Hidden
from grader.judging.isolated.notebook import Result
from grader.learner import lab
from grader.own_code import FOLDERS
from labkit.files import write_whole

VERSIONS = ("numpy", "torch", "ipython", "nbformat")


@dataclass(frozen=True)
class Record:
    """One student's lesson. rejected: why the whole file was not judged; fault: our own failure.

    problems: what was repaired before judging, in plain words. seconds: what judging took.
    notes: on what was handed in, such as which of several files is graded.
    """

    student: str
    lesson: str
    results: tuple[Result, ...] = ()
    problems: tuple[str, ...] = ()
    rejected: str = ""
    fault: str = ""
    submitted: str = ""  # ISO time, "" where it is not known
    source: str = ""
    isolation: str = ""
    hashes: dict[str, str] | None = None
    scores: dict[str, float | None] = field(default_factory=dict)  # as nbgrader enters them
    untouched: tuple[str, ...] = ()  # answers left as released
    seconds: float = 0.0
    notes: tuple[str, ...] = ()

    @property
    def earned(self) -> int:
        return sum(result.earned for result in self.results)

    @property
    def points(self) -> int:
        return sum(result.points for result in self.results)

    def write(self, path: Path) -> None:
        """Keep it, whole or not at all."""
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(
            path, json.dumps(asdict(self), ensure_ascii=False, indent=1) + "\n", private.FILE
        )


def read_record(path: Path) -> Record | None:
    """A record that was kept; None where there is none that can be read."""
    try:
        facts: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        facts["results"] = tuple(Result(**result) for result in facts["results"])
        for name in ("problems", "untouched", "notes"):
            facts[name] = tuple(facts[name])
        return Record(**facts)
    except (OSError, ValueError, TypeError, KeyError):
        return None


def hashes(data: bytes | None, lesson: str, course: Path, hidden: Hidden) -> dict[str, str]:
    """What a result rests on, each as a hash."""
    return {
        "notebook": hashlib.sha256(data).hexdigest() if data is not None else "",
        "checks": checks_hash(lesson, course),
        "hidden": hashlib.sha256(hidden.text().encode()).hexdigest(),
        "environment": environment_hash(),
    }


@lru_cache(maxsize=32)
def checks_hash(lesson: str, course: Path) -> str:
    """Of all that is the same for a class and decides a result: our code and the release."""
    files = sorted(path for folder in FOLDERS for path in folder.rglob("*.py"))
    files.append(lab.released_path(course, lesson))
    digest = hashlib.sha256()
    for path in files:
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


@lru_cache(maxsize=1)
def environment_hash() -> str:
    """Of the versions that can move a number."""
    versions = [f"{name} {metadata.version(name)}" for name in VERSIONS]
    versions += [platform.python_version(), platform.machine(), platform.system()]
    return hashlib.sha256("\n".join(versions).encode()).hexdigest()
