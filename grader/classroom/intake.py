"""One hand-in, read and repaired: a notebook that grades as its author meant it, or one reason."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from grader.classroom.reading import NotANotebook, read_bytes
from grader.learner import lab
from grader.notebooks.merge import Notebook
from grader.notebooks.problem import Problem
from grader.notebooks.recognise import most_shared, shared
from grader.notebooks.repair import repair


@dataclass(frozen=True)
class Prepared:
    """A hand-in that is ready to be judged, or why it cannot be.

    notebook: None exactly where reason is "not a notebook" or "missing" (REASONS of
    grader.judging.isolated.notebook); problems: what was mended, in plain words; text: what a
    person reads beside the reason; sha256: of the bytes handed in, "" where there are none.
    """

    notebook: Notebook | None
    problems: tuple[Problem, ...] = ()
    reason: str = ""
    text: str = ""
    sha256: str = ""


def prepare(data: bytes | None, lesson: str, name: str = "", root: Path | None = None) -> Prepared:
    """Read what was handed in for a lesson and repair it against the release.

    data: None where nothing was handed in; name: the file's name, if it is known.
    Raises UnknownLesson for a lesson that is not released; nothing in data raises.
    """
    root = root or lab.course_root()
    release = _release(root, lesson)
    if data is None:
        return Prepared(None, reason="missing", text="no notebook was handed in")
    sha256 = hashlib.sha256(data).hexdigest()
    try:
        mine, mended = read_bytes(data)
    except NotANotebook as trouble:
        return Prepared(None, reason="not a notebook", text=str(trouble), sha256=sha256)
    problems = [*_misnamed(name, lesson), *mended, *_other_lesson(mine, lesson, release, root)]
    book, found = repair(mine, release)
    return Prepared(book, (*problems, *found), sha256=sha256)


def _release(root: Path, lesson: str) -> Notebook:
    path = lab.released_path(root, lesson)
    if not path.is_file():
        known = ", ".join(lab.released_lessons(root)) or "none yet"
        raise lab.UnknownLesson(f'no lesson "{lesson}"; released lessons: {known}')
    return _read_once(path, path.stat().st_mtime_ns)


@lru_cache(maxsize=16)
def _read_once(path: Path, changed: int) -> Notebook:
    """A release, read once for a whole class; nobody writes into it."""
    return lab.read_notebook(path)


def _misnamed(name: str, lesson: str) -> list[Problem]:
    given = Path(name).name
    if not given or given == f"{lesson}.ipynb":
        return []
    what = f"the file is called {given}, and grading looks for {lesson}.ipynb"
    return [Problem("name", "", what, "it is graded under the right name")]


def _other_lesson(mine: Notebook, lesson: str, release: Notebook, root: Path) -> list[Problem]:
    """Said where not one graded cell is of the lesson: most likely another file was meant."""
    if shared(mine, release):
        return []
    other = most_shared(mine, lab.released_lessons(root), root)
    found = f"it looks like lesson {other}" if other else "it looks like no lesson of this course"
    what = f"the notebook has no graded cell of {lesson}; {found}"
    return [Problem("lesson", "", what, "it is graded as it is; ask for the right file")]
