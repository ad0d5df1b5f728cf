"""`inferlab course DIR`: a folder in which `inferlab grade` and nbgrader find what they need."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

from grader.learner import lab
from inferlab.data import IS_FOR_STUDENTS, ROOT
from labkit.files import write_whole


def main(args: argparse.Namespace) -> int:
    """Lay it out, and say in one line each what was done."""
    if IS_FOR_STUDENTS:
        raise ValueError("this is the edition for students; a course is laid out by the whole one")
    released = lab.released_lessons(ROOT)
    chosen = [lab.find_lesson(said, released) for said in args.lessons or released]
    lay_out(args.folder, chosen)
    return 0


def lay_out(folder: Path, lessons: Sequence[str]) -> None:
    """Write what is missing in the folder; what is there is never changed, and named if it differs.

    Raises ValueError for inferlab's own folder.
    """
    if folder.resolve() == ROOT:
        raise ValueError(f"{folder} is inferlab's own folder; give another for the course")
    n_written = 0
    for name, text in _files(lessons):
        path = folder / name
        if not path.exists():
            write_whole(path, text)
            n_written += 1
        elif path.read_text(encoding="utf-8", errors="replace") != text:
            print(f"left as it is, and other than in this release: {path}")
    what = f"{n_written} files written" if n_written else "nothing was missing"
    print(f"{folder}: a course with {', '.join(lessons)}; {what}")


def _files(lessons: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Name and text of each file of a course."""
    from grader.classroom.settings import FILE

    yield "nbgrader_config.py", FILE
    for lesson in lessons:
        for part in ("solutions", "notebooks"):
            for path in sorted((ROOT / part / lesson).rglob("*")):
                if path.is_file() and ".ipynb_checkpoints" not in path.parts:
                    yield str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")
