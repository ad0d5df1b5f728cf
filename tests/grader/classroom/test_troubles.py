"""Two graders at once, a locked, damaged or full place for grades, killed programs, odd names."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
import pytest

from grader import cli
from grader.classroom import book, judging, pool
from grader.classroom import course as courses
from grader.classroom.alone import WAITS, alone
from grader.classroom.course import Course
from grader.classroom.judging import Judged, Task
from grader.classroom.record import read_record
from grader.judging.hidden import from_environment
from grader.judging.isolated.notebook import Result
from grader.notebooks import build
from labkit.shown import acts

LESSON = "04_kv_cache"
STUDENTS = ("ann", "bob", "eve")


class AtOnce:
    """A pool that judges without running anything: three points for everybody."""

    def __enter__(self) -> AtOnce:
        return self

    def __exit__(self, *_: object) -> None: ...

    def run(self, tasks: Any) -> Iterator[Judged]:
        return (self._judged(task) for task in list(tasks))

    def _judged(self, task: Task) -> Judged:
        if task.data is None:
            return Judged(task.student, rejected="nothing")
        results = (Result("check_attend_one", 3, 3),)
        text = json.dumps({"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5})
        scores = {"check_attend_one": 3.0}
        return Judged(task.student, results, notebook=text, scores=scores)


@pytest.fixture
def course(tmp_path, monkeypatch) -> Course:
    """Three students with nothing graded; whoever waits for the gradebook gives up at once."""
    monkeypatch.setattr(pool, "open_pool", lambda *_: AtOnce())
    root = tmp_path / "a course"
    for part in ("solutions", "notebooks"):
        shutil.copytree(build.ROOT / part / LESSON, root / part / LESSON)
    settings = (build.ROOT / "nbgrader_config.py").read_text()
    url = f"sqlite:///{root / 'gradebook.db'}?timeout=0.1"
    (root / "nbgrader_config.py").write_text(f"{settings}\nc.CourseDirectory.db_url = {url!r}\n")
    for student in STUDENTS:
        hand_in(root, student, b"{}")
    return Course(root)


def hand_in(root: Path, student: str, data: bytes) -> None:
    folder = root / "submitted" / student / LESSON
    folder.mkdir(parents=True)
    (folder / f"{LESSON}.ipynb").write_bytes(data)


def grade(course: Course, *options: str) -> int:
    return cli.main(["grade", LESSON, "--course", str(course.root), "--jobs", "1", *options])


def all_graded(course: Course) -> bool:
    with course.gradebook() as gradebook:
        found = {s.student.id: s.score for s in gradebook.assignment_submissions(LESSON)}
    records = [read_record(course.record_path(LESSON, s)) for s in STUDENTS]
    return found == dict.fromkeys(STUDENTS, 3.0) and all(r and r.earned == 3 for r in records)


def one_sentence(capsys: pytest.CaptureFixture) -> str:
    said = capsys.readouterr().err.strip()
    last = said.splitlines()[-1]
    assert last.startswith("inferlab: ")
    assert "Traceback" not in said
    return last


def test_a_locked_gradebook_is_said_and_the_next_run_grades_everybody(course, capsys) -> None:
    with course.gradebook():
        pass
    with closing(sqlite3.connect(course.root / "gradebook.db")) as other:
        other.execute("BEGIN EXCLUSIVE")
        assert grade(course) != 0
        assert "locked" in (said := one_sentence(capsys))
        assert "run the same command again" in said
    assert grade(course) == 0
    assert all_graded(course)


@pytest.mark.parametrize(
    "damage", [b"no database at all, " * 300, b"SQLite format 3\0" + b"x" * 5000]
)
def test_a_damaged_gradebook_is_said_and_a_new_one_is_filled(course, capsys, damage) -> None:
    path = course.root / "gradebook.db"
    path.write_bytes(damage)
    assert grade(course) != 0
    said = one_sentence(capsys)
    assert "damaged" in said
    assert str(path) in said
    path.unlink()
    assert grade(course) == 0
    assert all_graded(course)


def no_room(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def full(*_: object, **__: object) -> None:
    raise sqlite3.OperationalError("database or disk is full")


FULL = {  # where the disk is full: what is written there, and how that ends
    "a graded notebook": (courses, "write_graded", no_room),
    "the gradebook": (book, "save", full),
    "a student's entry": (book, "ensure_students", full),
    "a record": ("record", "", no_room),
}


@pytest.mark.parametrize(("where", "name", "ends"), FULL.values(), ids=FULL)
@pytest.mark.parametrize("n_fine", [0, 1])
def test_a_disk_that_fills_up_is_said_and_the_next_run_grades_everybody(
    course, capsys, monkeypatch, where, name, ends, n_fine
) -> None:
    if where == "record":
        from grader.classroom.record import Record

        where, name = Record, "write"
    fine, calls = getattr(where, name), []

    def sometimes(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        return fine(*args, **kwargs) if len(calls) <= n_fine else ends()

    monkeypatch.setattr(where, name, sometimes)
    status = grade(course)
    if len(calls) > n_fine:
        assert status != 0
        one_sentence(capsys)
    monkeypatch.undo()
    monkeypatch.setattr(pool, "open_pool", lambda *_: AtOnce())
    assert grade(course) == 0
    assert all_graded(course)


def test_who_comes_second_says_so_and_waits(tmp_path, capsys) -> None:
    done, order = threading.Event(), []

    def second() -> None:
        with alone(tmp_path / "grading"):
            order.append("second")
        done.set()

    with alone(tmp_path / "grading"):
        waiting = threading.Thread(target=second)
        waiting.start()
        while WAITS not in capsys.readouterr().err:
            assert waiting.is_alive()
            time.sleep(0.01)
        order.append("first")
    assert done.wait(10)
    waiting.join()
    assert order == ["first", "second"]


# ---- what a student wrote, where it is shown -----------------------------------------------------

CODES = "\x1b]0;title\x07\x1b[2J\x9b31m\u202e"


def test_no_text_of_a_students_acts_where_it_is_shown(course, monkeypatch, capsys) -> None:
    def judged(self: AtOnce, task: Task) -> Judged:
        why = (Result("check_attend_one", 3, 0, "raised", f"it printed {CODES}", f"{CODES}?"),)
        rejected = f"the file is {CODES}" if task.student == "eve" else ""
        fault = f"Traceback\nValueError: {CODES}" if task.student == "bob" else ""
        return Judged(task.student, why, (CODES,), rejected, fault)

    monkeypatch.setattr(AtOnce, "_judged", judged)
    odd = course.root / "submitted" / f"zoe{CODES[1:5]}\x1b[2J"
    (odd / LESSON).mkdir(parents=True)
    (odd / LESSON / f"{LESSON}.ipynb").write_bytes(b"{}")
    (course.root / "submitted" / "ann" / LESSON / f"more{CODES}.ipynb").write_bytes(b"{}")
    assert grade(course) == 1
    out = capsys.readouterr()
    assert not acts((out.out + out.err).replace("\n", "").replace("\r", ""))
    assert "more\\x1b]0;title" in out.out
    cli.main(["report", LESSON, "--course", str(course.root)])
    out = capsys.readouterr()
    shown = [out.out, out.err]
    shown += [path.read_text() for path in course.records.glob("*.csv")]
    shown += [path.read_text() for path in course.records.glob("*.html")]
    assert len(shown) == 5
    for text in shown:
        assert not acts(text.replace("\n", ""))


def test_which_file_is_graded_is_said_everywhere(course, capsys) -> None:
    (course.root / "submitted" / "ann" / LESSON / "copy.ipynb").write_bytes(b"{}")
    assert grade(course) == 0
    note = "2 notebooks (04_kv_cache.ipynb, copy.ipynb); graded is ann/04_kv_cache/"
    assert f"ann: {note}" in capsys.readouterr().out
    rows = (course.records / f"{LESSON}.csv").read_text().splitlines()
    (ann,) = (row for row in rows if row.startswith("ann,"))
    assert note in ann.replace('"', "")
    record = read_record(course.record_path(LESSON, "ann"))
    assert record is not None
    assert record.notes[0].startswith(note)


# ---- a program that is killed --------------------------------------------------------------------


@pytest.mark.skipif(not os.path.isdir("/proc"), reason="processes are looked up in /proc")
def test_what_is_left_of_a_killed_program_ends_by_itself(zygote) -> None:
    """Its workers wait for tasks, each with a copy of the end that those come by."""
    program = os.fork()
    if program == 0:
        try:
            judging.judge = sleeping  # type: ignore[assignment]
            level, hidden = zygote.isolation.level, from_environment()
            tasks = [Task(name, LESSON, b"", "", "", level, hidden) for name in "abcd"]
            with pool.Here(2, level, zygote=zygote) as here:
                list(here.run(tasks))
        finally:
            os._exit(1)
    started = set()
    deadline = time.monotonic() + 30
    while len(started) < 2:
        assert time.monotonic() < deadline
        started = set(psutil.Process(program).children(recursive=True))
        time.sleep(0.1)
    time.sleep(0.5)
    os.kill(program, signal.SIGKILL)
    os.waitpid(program, 0)
    _, alive = psutil.wait_procs(list(started), timeout=5)
    assert alive == []


def sleeping(task: Task) -> Judged:
    time.sleep(60)
    return Judged(task.student)


sleeping.__module__, sleeping.__qualname__ = "grader.classroom.judging", "judge"
