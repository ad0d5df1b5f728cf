"""Grades and submissions can be read by nobody else, whatever the umask."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from nbgrader_course import LESSON, Course, make_course, succeed

from grader import cli
from grader.classroom.course import Course as Classroom

pytestmark = pytest.mark.filterwarnings("ignore:Passing unrecognized arguments")

WRITTEN = {"submitted", "autograded", "feedback", "grading", "gradebook.db", "grades-csv.csv"}


@pytest.fixture(params=[0, 0o022], ids=["umask 0", "umask 022"])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


@pytest.fixture
def course(tmp_path: Path, umask: int) -> Course:
    """A course that is released, and one notebook from elsewhere, as it was released."""
    made = make_course(tmp_path)
    succeed(made.api.generate_assignment(LESSON))
    (tmp_path / "from elsewhere" / "ada").mkdir(parents=True)
    released = made.root / "notebooks" / LESSON / f"{LESSON}.ipynb"
    (tmp_path / "from elsewhere" / "ada" / released.name).write_bytes(released.read_bytes())
    return made


def open_to_others(course: Course) -> set[str]:
    """What others may read, write or enter, of all that belongs to the class."""
    found = set()
    for name in WRITTEN:
        top = course.root / name
        for path in [top, *top.rglob("*")] if top.exists() else ():
            if stat.S_IMODE(path.stat().st_mode) & 0o077:
                found.add(str(path.relative_to(course.root)))
    return found


def test_what_a_class_wrote_and_earned_is_private_and_closed_again_where_it_stands_open(
    course: Course, capsys: pytest.CaptureFixture[str]
) -> None:
    assert open_to_others(course) == set(), "the gradebook was just made"
    where = ["--course", str(course.root)]
    source = ["--from", str(course.folder / "from elsewhere")]
    assert cli.main(["grade", LESSON, *source, "--jobs", "1", *where]) == 0
    assert cli.main(["report", LESSON, *where]) == 0
    assert cli.main(["export", "--to", "csv", *where]) == 0
    succeed(course.api.generate_feedback(LESSON))
    assert all((course.root / name).exists() for name in WRITTEN)
    assert open_to_others(course) == set()
    assert "made private" not in capsys.readouterr().err

    for name in WRITTEN:
        (course.root / name).chmod(0o755)
    (course.root / "gradebook.db-journal").touch(0o644)
    (course.root / "submitted" / "ada" / LESSON).chmod(0o777)
    with Classroom(course.root).gradebook():
        assert open_to_others(course) == set()
    assert not (course.root / "gradebook.db-journal").stat().st_mode & 0o077
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith("made private, because others on this computer could read it: ")
    assert all(name in said for name in WRITTEN)
