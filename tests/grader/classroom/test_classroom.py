"""The desk: a class of known students through `inferlab grade`, report and export.

The students and the rule for what each earns are those of test_nbgrader_loop, so the desk and
`nbgrader autograde` are held to the same scores.
"""

from __future__ import annotations

import csv
import json
import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import nbformat
import psutil
import pytest
from fake_students import Desk, FakeStudent
from nbgrader.api import Gradebook

from grader import cli
from grader.classroom import judging, pool
from grader.classroom.book import ensure_lesson
from grader.classroom.course import Course
from grader.classroom.record import Record, read_record
from grader.judging import registry
from grader.judging.isolated import notebook as isolated
from grader.notebooks import build
from sandbox import walls

LESSON = "04_kv_cache"
TIMES = isolated.Times(check_s=6)
STUDENTS = ("perfect", "blank", "half", "plausible", "endless", "syntax")


@pytest.fixture(scope="module")
def people() -> dict[str, FakeStudent]:
    def read(folder: str) -> nbformat.NotebookNode:
        return nbformat.read(build.ROOT / folder / LESSON / f"{LESSON}.ipynb", as_version=4)

    desk = Desk(read("notebooks"), read("solutions"), registry.exercises(LESSON))
    return {student.id: student for student in desk.everyone()}


@pytest.fixture(scope="module", autouse=True)
def one_zygote(zygote) -> Iterator[None]:
    """Every run of this file forks from one zygote: importing everything once is enough."""
    with pytest.MonkeyPatch.context() as patch:
        start = pool.open_pool

        def open_pool(n_jobs: int | None, scheduler: str, isolation: str, hide: Any) -> pool.Pool:
            if scheduler or isolation != zygote.isolation.level or not n_jobs:
                return start(n_jobs, scheduler, isolation, hide)
            return pool.Here(n_jobs, isolation, zygote=zygote)

        patch.setattr(pool, "open_pool", open_pool)
        yield


def make_course(folder: Path, lesson: str = LESSON, settings: str = "") -> Course:
    root = folder / "a course"
    for part in ("solutions", "notebooks"):
        shutil.copytree(build.ROOT / part / lesson, root / part / lesson)
    text = (build.ROOT / "nbgrader_config.py").read_text() + settings
    (root / "nbgrader_config.py").write_text(text)
    return Course(root)


def hand_in(course: Course, student: str, data: bytes, lesson: str = LESSON) -> Path:
    path = course.folder("submitted", lesson, student) / f"{lesson}.ipynb"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    (path.parent / "timestamp.txt").write_text("2026-11-20 10:00:00 UTC")
    return path


def grade(course: Course, *options: str) -> int:
    return cli.main(["grade", LESSON, "--course", str(course.root), "--jobs", "2", *options])


def records(course: Course) -> dict[str, Record]:
    paths = (course.records / LESSON).glob("*.json")
    found = [read_record(path) for path in paths]
    return {record.student: record for record in found if record}


def scores(course: Course, student: str) -> dict[str, float | None]:
    with course.gradebook() as gradebook:
        notebook = gradebook.find_submission_notebook(LESSON, LESSON, student)
        return {g.name: g.auto_score for g in notebook.grades}


@pytest.fixture(scope="module")
def graded(tmp_path_factory, people) -> Iterator[Course]:
    """The six students, graded once; an endless loop may take 6 s."""
    course = make_course(tmp_path_factory.mktemp("class").resolve())
    for student in people.values():
        hand_in(course, student.id, nbformat.writes(student.notebook).encode())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(isolated, "Times", lambda: TIMES)
        assert grade(course) == 0
        yield course


@pytest.fixture(scope="module")
def copied(graded, tmp_path_factory) -> Course:
    """A copy of the graded course, for tests that change it."""
    root = tmp_path_factory.mktemp("copy").resolve() / "a course"
    shutil.copytree(graded.root, root)
    return Course(root)


def only(course: Course, *students: str) -> None:
    """Take the other students' submissions out of a course."""
    for folder in (course.root / "submitted").iterdir():
        if folder.name not in students:
            shutil.rmtree(folder)


@pytest.fixture(scope="module")
def template(tmp_path_factory, people) -> Course:
    """A course of three students with a lesson that is cut short, and nothing graded yet."""
    course = make_course(tmp_path_factory.mktemp("template").resolve())
    for folder in ("solutions", "notebooks"):
        path = course.root / folder / LESSON / f"{LESSON}.ipynb"
        nbformat.write(cut_short(nbformat.read(path, as_version=4)), path)
    for name in ("blank", "half", "plausible"):
        notebook = cut_short(people[name].notebook)
        hand_in(course, name, nbformat.writes(notebook).encode())
    with course.gradebook() as gradebook:
        ensure_lesson(course, gradebook, LESSON)
    return course


def cut_short(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """The first cells, with a few exercises, and what a person reads at the end."""
    cells = notebook.cells
    checks = [i for i, c in enumerate(cells) if isolated.is_check(c)]
    written = [c for c in cells if c.cell_type == "markdown" and "nbgrader" in c.metadata]
    return nbformat.from_dict({**notebook, "cells": [*cells[: checks[2] + 1], *written]})


@pytest.fixture
def small(template, tmp_path) -> Course:
    """A copy of the template of its own."""
    shutil.copytree(template.root, tmp_path / "a course")
    return Course(tmp_path / "a course")


# ---- what each student earns -------------------------------------------------------------------


@pytest.mark.parametrize("student", STUDENTS)
def test_each_student_earns_exactly_what_the_rule_says(graded, people, student) -> None:
    expected = people[student].expected(registry.exercises(LESSON), registry.questions(LESSON))
    found = scores(graded, student)
    assert {name: found[name] for name in expected} == expected
    record = records(graded)[student]
    assert {r.grade_id: r.earned for r in record.results} == expected


def test_every_lost_point_has_one_reason_of_the_list(graded) -> None:
    lost = [r for record in records(graded).values() for r in record.results if not r.earned]
    assert lost
    assert all(r.reason in isolated.REASONS and r.text for r in lost)
    by_id = {r.grade_id: r.reason for r in records(graded)["endless"].results}
    assert by_id["check_longest_context"] == "out of time"
    reasons = {r.reason for r in records(graded)["blank"].results}
    assert reasons == {"not written"}


def test_a_named_mistake_is_kept_with_its_name(graded) -> None:
    found = {r.grade_id: r.diagnosis for r in records(graded)["plausible"].results if r.diagnosis}
    assert set(found) >= {"check_largest_batch", "check_longest_context"}


def test_what_a_person_has_to_read_is_theirs_to_score(graded, people) -> None:
    with graded.gradebook() as gradebook:
        for student in ("perfect", "blank"):
            notebook = gradebook.find_submission_notebook(LESSON, LESSON, student)
            assert notebook.needs_manual_grade == people[student].wrote
            said = {c.name: c.auto_comment for c in notebook.comments}
            assert ("No response." in said.values()) == (student == "blank")


def test_records_name_what_they_rest_on(graded) -> None:
    for record in records(graded).values():
        assert record.isolation == os.environ.get("INFERLAB_ISOLATION", "full")
        assert set(record.hashes or {}) == {"notebook", "checks", "hidden", "environment"}
        assert all((record.hashes or {}).values())


# ---- again -------------------------------------------------------------------------------------


def test_a_second_run_judges_nothing_and_changes_nothing(graded, monkeypatch, capsys) -> None:
    before = {p: p.read_bytes() for p in (graded.records / LESSON).glob("*.json")}
    monkeypatch.setattr(judging, "judge", lambda task: pytest.fail("judged again"))
    assert grade(graded) == 0
    assert "6 unchanged since the last run" in capsys.readouterr().out
    assert before == {p: p.read_bytes() for p in (graded.records / LESSON).glob("*.json")}


def test_only_what_has_changed_is_judged_again(copied, people, capsys) -> None:
    hand_in(copied, "blank", nbformat.writes(people["half"].notebook).encode())
    assert grade(copied) == 0
    assert "5 unchanged" in capsys.readouterr().out
    assert scores(copied, "blank") == scores(copied, "half")


def test_a_lost_gradebook_is_filled_again_from_the_records(copied) -> None:
    before = {student: scores(copied, student) for student in STUDENTS}
    (copied.root / "gradebook.db").unlink()
    assert grade(copied) == 0
    assert {student: scores(copied, student) for student in STUDENTS} == before


def test_the_same_bytes_give_the_same_result_in_any_order(small, monkeypatch) -> None:
    assert grade(small) == 0
    first = records(small)
    books = {s: small.graded_path(LESSON, s).read_bytes() for s in first}
    monkeypatch.setattr(pool, "AHEAD", 1)
    assert grade(small, "--fresh", "--jobs", "1") == 0
    again = records(small)
    assert {s: replace(r, seconds=0) for s, r in again.items()} == {
        s: replace(r, seconds=0) for s, r in first.items()
    }
    assert books == {s: small.graded_path(LESSON, s).read_bytes() for s in again}


def test_points_that_a_person_gave_stay_and_are_looked_at_again(small) -> None:
    only(small, "half")
    assert grade(small) == 0
    check = next(iter(records(small)["half"].scores))

    def given(gradebook: Gradebook) -> Any:
        return gradebook.find_grade(check, LESSON, LESSON, "half")

    with small.gradebook() as gradebook:
        given(gradebook).manual_score, given(gradebook).needs_manual_grade = 0.5, False
        gradebook.db.commit()
    assert grade(small, "--fresh") == 0
    with small.gradebook() as gradebook:
        grade_now = given(gradebook)
        assert (grade_now.manual_score, grade_now.score) == (0.5, 0.5)
        assert grade_now.needs_manual_grade


# ---- when something goes wrong -----------------------------------------------------------------


def test_our_own_fault_is_nobodys_zero(small, monkeypatch, capsys) -> None:
    honest = judging._judge

    def faulty(task: judging.Task, begun: float) -> judging.Judged:
        if task.student == "half":
            raise RuntimeError("the judge has a bug")
        return honest(task, begun)

    monkeypatch.setattr(judging, "_judge", faulty)
    assert grade(small) == 1
    said = capsys.readouterr().out
    assert "NOT GRADED, and not their fault: half: RuntimeError: the judge has a bug" in said
    with small.gradebook() as gradebook:
        assert {s.student.id for s in gradebook.assignment_submissions(LESSON)} == {
            "blank",
            "plausible",
        }
    monkeypatch.undo()
    assert grade(small) == 0
    assert "2 unchanged" in capsys.readouterr().out


@pytest.mark.skipif(not hasattr(os, "fork"), reason="workers are forked here")
def test_a_worker_that_dies_takes_no_other_with_it(small, monkeypatch, capsys) -> None:
    honest = judging.judge

    def deadly(task: judging.Task) -> judging.Judged:
        if task.student == "half":
            os._exit(9)
        return honest(task)

    deadly.__module__, deadly.__qualname__ = "grader.classroom.judging", "judge"
    monkeypatch.setattr(judging, "judge", deadly)
    assert grade(small) == 1
    assert "half: the process that judged it ended, twice" in capsys.readouterr().out
    found = records(small)
    assert found["half"].fault
    assert found["plausible"].earned > 0


def test_interrupted_it_keeps_what_is_done_and_goes_on_later(small, monkeypatch, capsys) -> None:
    whole = pool.Here.run

    def stop_after_one(self: pool.Here, tasks: object) -> Iterator[judging.Judged]:
        results = whole(self, tasks)  # type: ignore[arg-type]

        def some() -> Iterator[judging.Judged]:
            yield next(results)
            raise KeyboardInterrupt

        return some()

    monkeypatch.setattr(pool.Here, "run", stop_after_one)
    assert grade(small) == 130
    assert "1 of 3 graded" in capsys.readouterr().out
    assert len(records(small)) == 1
    monkeypatch.undo()
    assert grade(small) == 0
    assert "3 of 3 graded, isolation" in (said := capsys.readouterr().out)
    assert "1 unchanged" in said


def test_a_file_that_is_no_notebook_earns_nothing_for_one_reason(small, tmp_path, capsys) -> None:
    only(small, "blank")
    hand_in(small, "torn", b'{"cells": [{"cell_type": "co')
    names = tmp_path / "names.csv"
    names.write_text("id,name\ntorn,A\nblank,B\nabsent,C\n")
    assert grade(small, "--roster", str(names)) == 0
    found = records(small)
    assert {r.reason for r in found["torn"].results} == {"not a notebook"}
    assert {r.reason for r in found["absent"].results} == {"missing"}
    assert found["torn"].points == found["blank"].points == found["absent"].points > 0
    assert set(scores(small, "torn").values()) == {0.0}
    with small.gradebook() as gradebook:
        assert "absent" not in {s.id for s in gradebook.students}
    assert "torn: " in capsys.readouterr().out


def test_below_the_floor_it_refuses_and_says_what_to_do(small, monkeypatch, capsys) -> None:
    from grader.judging.isolated.students import floor_reached

    floor_reached.cache_clear()
    monkeypatch.setattr(walls, "level", lambda: ("limits", "unshare: not permitted"))
    assert grade(small, "--isolation", "full") == 2
    said = capsys.readouterr().err
    assert "unshare: not permitted" in said
    assert "none" in said
    floor_reached.cache_clear()


def test_without_isolation_every_result_says_so(small) -> None:
    only(small, "half")
    assert grade(small, "--isolation", "none") == 0
    (record,) = records(small).values()
    assert record.isolation == "none"
    assert record.earned > 0
    graded = json.loads(small.graded_path(LESSON, "half").read_text())
    assert graded["metadata"]["inferlab"]["isolation"] == "none"


@pytest.mark.parametrize(
    ("options", "said"),
    [(["--jobs", "0"], "at least 1"), (["--course", "/"], "no nbgrader_config.py")],
)
def test_bad_input_is_refused_in_words(small, options, said, capsys) -> None:
    assert cli.main(["grade", LESSON, "--course", str(small.root), *options]) == 2
    assert said in capsys.readouterr().err


def test_a_dask_cluster_gives_the_same_results(small) -> None:
    distributed = pytest.importorskip("distributed", reason="NOT TESTED: dask is not installed")
    assert grade(small) == 0
    here = records(small)
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, dashboard_address=None
    ) as cluster:
        address = cluster.scheduler_address
        command = ["grade", LESSON, "--course", str(small.root), "--scheduler", address, "--fresh"]
        assert cli.main(command) == 0
        workers = [p for p in psutil.Process().children() if "spawn_main" in " ".join(p.cmdline())]
        beside = [p for worker in workers for p in worker.children(recursive=True)]
    there = records(small)
    assert {s: replace(r, seconds=0) for s, r in there.items()} == {
        s: replace(r, seconds=0) for s, r in here.items()
    }
    assert len(beside) >= 4
    assert psutil.wait_procs(beside, timeout=20)[1] == []  # none outlives the cluster


def test_a_scheduler_that_is_not_there_is_named(small, monkeypatch, capsys) -> None:
    monkeypatch.setattr(pool, "CONNECT_S", 1)
    assert grade(small, "--scheduler", "tcp://127.0.0.1:9") == 2
    assert "no dask scheduler answers at tcp://127.0.0.1:9" in capsys.readouterr().err


# ---- late --------------------------------------------------------------------------------------


def test_lateness_costs_what_the_courses_plugin_says(small, monkeypatch) -> None:
    only(small, "half")
    monkeypatch.setattr(sys, "path", [*sys.path])
    (small.root / "late_by_the_day.py").write_text(
        "from nbgrader.plugins import BasePlugin\n\n\n"
        "class HalfAPointADay(BasePlugin):\n"
        "    def late_submission_penalty(self, student_id, score, total_seconds_late):\n"
        "        return total_seconds_late / 86400 / 2\n"
    )
    settings = small.root / "nbgrader_config.py"
    chosen = "\nc.AssignLatePenalties.plugin_class = 'late_by_the_day.HalfAPointADay'\n"
    settings.write_text(settings.read_text() + chosen)
    with small.gradebook() as gradebook:
        gradebook.update_or_create_assignment(LESSON, duedate="2026-11-18 10:00:00 UTC")
    assert grade(small) == 0
    with small.gradebook() as gradebook:
        submission = gradebook.find_submission(LESSON, "half")
        assert submission.total_seconds_late == 2 * 24 * 3600
        assert submission.late_submission_penalty == 1 < submission.score


# ---- tables, exports ---------------------------------------------------------------------------


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_the_tables_say_what_was_earned_and_why_not(graded, people) -> None:
    by_student = {row["student"]: row for row in rows(graded.records / f"{LESSON}.csv")}
    assert set(by_student) == set(STUDENTS)
    expected = people["plausible"].expected(registry.exercises(LESSON), registry.questions(LESSON))
    row = by_student["plausible"]
    assert float(row["earned"]) == sum(expected.values())
    assert {name: float(row[name]) for name in expected} == expected
    lost = rows(graded.records / f"{LESSON}-lost-points.csv")
    assert {r["check"] for r in lost if r["student"] == "plausible"} == {
        name for name, points in expected.items() if not points
    }
    assert all(r["reason"] for r in lost)


def test_canvas_and_moodle_get_scores_after_penalties(copied) -> None:
    with copied.gradebook() as gradebook:
        gradebook.update_or_create_student("=cmd()", first_name="@x", last_name="Mallory")
        total = gradebook.find_submission(LESSON, "half").score
        most = gradebook.find_assignment(LESSON).max_score
    for kind in ("csv", "canvas", "moodle"):
        assert cli.main(["export", "--to", kind, "--course", str(copied.root)]) == 0
    canvas = list(csv.reader((copied.root / "grades-canvas.csv").open()))
    assert canvas[0] == ["Student", "ID", "SIS User ID", "SIS Login ID", "Section", LESSON]
    assert canvas[1] == ["    Points Possible", "", "", "", "", str(most)]
    assert ["half", "", "", "half", "", str(total)] in canvas
    moodle = {row["username"]: row for row in rows(copied.root / "grades-moodle.csv")}
    assert float(moodle["half"][LESSON]) == total
    assert moodle["'=cmd()"][LESSON] == ""
    assert moodle["'=cmd()"]["firstname"] == "'@x"


def test_an_unknown_lesson_is_refused(graded, capsys) -> None:
    command = ["export", "--to", "canvas", "--lesson", "99", "--course", str(graded.root)]
    assert cli.main(command) == 2
    assert 'no lesson "99"' in capsys.readouterr().err


# ---- report ------------------------------------------------------------------------------------


def test_the_report_counts_who_passed_and_names_the_mistakes(graded, capsys) -> None:
    assert cli.main(["report", "04", "--course", str(graded.root)]) == 0
    said = capsys.readouterr().out
    n_right = sum(
        r.earned > 0
        for record in records(graded).values()
        for r in record.results
        if r.grade_id == "check_largest_batch"
    )
    assert f"largest_batch ({n_right} of 6)" in said
    page = (graded.records / f"{LESSON}-report.html").read_text()
    assert 'alt="A bar for each of' in page
    assert 'src="data:image' in page
    assert "http" not in page.replace("http://www.w3.org", "")
    diagnosis = next(r.diagnosis for r in records(graded)["plausible"].results if r.diagnosis)
    assert diagnosis[:40] in page.replace("&#x27;", "'").replace("&quot;", '"')


def test_without_records_the_report_says_what_to_do(small, capsys) -> None:
    assert cli.main(["report", "04", "--course", str(small.root)]) == 2
    assert f"inferlab grade {LESSON}" in capsys.readouterr().err


def test_a_gradebook_is_nbgraders_own(graded) -> None:
    with Gradebook(f"sqlite:///{graded.root / 'gradebook.db'}", "inferlab") as gradebook:
        assert [a.name for a in gradebook.assignments] == [LESSON]
        assert {s.id for s in gradebook.students} == set(STUDENTS)
