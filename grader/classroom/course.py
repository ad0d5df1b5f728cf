"""An instructor's course folder: where its files are, its settings and its gradebook.

nbgrader is imported where it is first needed: judging starts before that.
"""

from __future__ import annotations

import csv
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from traitlets.config import Config, PyFileConfigLoader

from grader.classroom import private
from grader.classroom.names import file_name
from grader.judging import hidden
from labkit.files import write_whole
from labkit.shown import shown

SECRET, MAX_SECRET = "submission_secret.txt", 1_000  # characters; nbgrader writes 128

if TYPE_CHECKING:
    from nbgrader.api import Gradebook
    from nbgrader.coursedir import CourseDirectory


class Course:
    """The folder that holds nbgrader_config.py, with solutions/, submitted/, gradebook.db …"""

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        if not (self.root / "nbgrader_config.py").is_file():
            raise ValueError(f"{self.root} is no course: there is no nbgrader_config.py in it")
        self.records = self.root / "grading"

    @cached_property
    def config(self) -> Config:
        """nbgrader's settings for this course."""
        config = PyFileConfigLoader("nbgrader_config.py", path=str(self.root)).load_config()
        config.CourseDirectory.root = str(self.root)
        return config

    @cached_property
    def directory(self) -> CourseDirectory:
        from nbgrader.coursedir import CourseDirectory

        return CourseDirectory(config=self.config)

    @cached_property
    def hidden(self) -> hidden.Hidden:
        """What Judge's settings say of hidden cases, as nbgrader's own grading reads them too."""
        judge = self.config.get("Judge", {})
        return hidden.chosen(judge.get("hidden_seed"), judge.get("extra_cases", ""), self.root)

    def record_path(self, lesson: str, student: str) -> Path:
        return self.records / lesson / f"{file_name(student)}.json"

    def folder(self, step: str, lesson: str, student: str) -> Path:
        """Where nbgrader keeps a student's lesson at a step: "submitted", "autograded" …

        Raises ValueError for a name that would lead out of that step's own folder.
        """
        name = getattr(self.directory, f"{step}_directory")
        found = Path(self.directory.format_path(name, student, lesson))
        if Path(student).parts != (student,) or student == "..":
            raise ValueError(f"the name {shown(student)[:60]!r} leads outside of {name}")
        return found

    def graded_path(self, lesson: str, student: str) -> Path:
        return self.folder("autograded", lesson, student) / f"{lesson}.ipynb"

    def kept_private(self, *steps: str) -> AbstractContextManager[None]:
        """Around whatever writes these folders of the course: private before and after."""
        return private.kept(self.directory, lambda words: print(words, file=sys.stderr), *steps)

    @contextmanager
    def gradebook(self) -> Iterator[Gradebook]:
        """The gradebook, made if there is none yet."""
        from nbgrader import api

        with warnings.catch_warnings(), self.kept_private("autograded", "grading"):
            # nbgrader's own way of adding a submission; its tests show the same.
            warnings.filterwarnings("ignore", "Object of type .* not in session")
            with api.Gradebook(self.directory.db_url, self.directory.course_id) as gradebook:
                gradebook.db().expire_on_commit = False  # one writer: what it holds stays true
                yield gradebook


def write_graded(
    course: Course, lesson: str, student: str, notebook: str, submitted: datetime | None
) -> None:
    """Put a judged notebook where formgrader and feedback look for it."""
    folder = course.folder("autograded", lesson, student)
    write_whole(folder / f"{lesson}.ipynb", notebook, private.FILE)
    if submitted is not None:
        write_whole(folder / "timestamp.txt", timestamp(submitted), private.FILE)


def pass_on_secrets(course: Course, lesson: str, students: Iterable[str]) -> None:
    """Put each submission's secret beside its judged notebook: feedback is released under it.

    Only what came through nbgrader's exchange has one.
    """
    for student in students:
        secret = course.folder("submitted", lesson, student) / SECRET
        graded = course.graded_path(lesson, student)
        if graded.is_file() and secret.is_file() and not secret.is_symlink():
            words = secret.read_text(encoding="ascii", errors="replace")[:MAX_SECRET]
            write_whole(graded.with_name(SECRET), words, private.FILE)


def timestamp(when: datetime) -> str:
    """A moment as nbgrader writes it."""
    return f"{when.astimezone(UTC):%Y-%m-%d %H:%M:%S.%f} UTC\n"


def read_list(path: Path) -> Sequence[str]:
    """Student ids from a file: one a line, or the first column of a CSV with a header `id`."""
    with path.open(encoding="utf-8-sig", newline="") as file:
        rows = [row for row in csv.reader(file) if row and row[0].strip()]
    if rows and rows[0][0].strip().lower() in ("id", "student", "student_id", "username"):
        rows = rows[1:]
    return list(dict.fromkeys(row[0].strip() for row in rows))
