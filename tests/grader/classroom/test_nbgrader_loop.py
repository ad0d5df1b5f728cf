"""The whole loop of nbgrader, from release to export, with six students whose grades are known.

The course lies in a temporary folder with a space in its name. Export runs as an instructor runs
it, on the command line; the other steps through the classes behind the commands.
"""

from __future__ import annotations

import csv
import json
import sys
import urllib.request
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import nbformat
import pytest
from fake_students import Desk, solution_cells
from nbformat.v4 import new_code_cell, new_notebook
from nbgrader.validator import Validator
from nbgrader_course import LESSON, Course, jupyter_server, make_course, succeed
from traitlets.config import PyFileConfigLoader

from grader.classroom.nbgrader_steps import Judge
from grader.judging import registry
from grader.notebooks import build

# nbgrader's own slips of the pen: in each release of feedback, and for each submission graded.
pytestmark = [
    pytest.mark.filterwarnings("ignore:Passing unrecognized arguments"),
    pytest.mark.filterwarnings("ignore:Object of type <Submitted"),
]


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    course = make_course(tmp_path_factory.mktemp("loop"))
    monkeypatch = pytest.MonkeyPatch()
    home = course.folder / "INFERLAB_HOME"
    monkeypatch.setenv("INFERLAB_HOME", str(home))  # not this user's progress
    yield course
    monkeypatch.undo()


@pytest.fixture(scope="module")
def released(course):
    """The course after generate_assignment and release_assignment."""
    succeed(course.api.generate_assignment(LESSON))
    succeed(course.api.release_assignment(LESSON))
    return course


@pytest.fixture(scope="module")
def submitted(released):
    """The course after every student has fetched, filled in and submitted."""
    course, name = released, f"{LESSON}.ipynb"
    solution = nbformat.read(course.root / "solutions" / LESSON / name, as_version=4)
    stubs = nbformat.read(course.root / "notebooks" / LESSON / name, as_version=4)
    for student in Desk(stubs, solution, registry.exercises(LESSON)).everyone():
        course.students[student.id] = student
        course.exchange("FetchAssignment", student.id)
        path = course.desk_of(student.id) / LESSON / name
        assert nbformat.read(path, as_version=4) == stubs
        nbformat.write(student.notebook, path)
        course.exchange("Submit", student.id)
    return course


@pytest.fixture(scope="module")
def graded(submitted, zygote):
    """The course after collect, and one autograde of all students."""
    succeed(submitted.api.collect(LESSON))
    submitted.autograde(zygote)
    written = list((submitted.folder / "INFERLAB_HOME").glob("**/*"))
    assert written == [], "grading wrote into the grader's own progress"
    return submitted


def scores(course: Course, student: str) -> dict[str, float | None]:
    """The automatic score of each graded cell."""
    with course.gradebook as gb:
        notebook = gb.find_submission_notebook(LESSON, LESSON, student)
        return {grade.name: grade.auto_score for grade in notebook.grades}


def written_ids(course: Course) -> list[str]:
    """Grade ids of the answers that a person grades."""
    cells = solution_cells(course.students["blank"].notebook)
    return [g for g, cell in cells.items() if cell.metadata.nbgrader.grade]


def test_the_release_is_byte_for_byte_the_committed_one(released):
    name = Path("notebooks", LESSON, f"{LESSON}.ipynb")
    assert (released.root / name).read_bytes() == (build.ROOT / name).read_bytes()


@pytest.mark.parametrize("student", ["perfect", "half", "plausible", "endless", "syntax", "blank"])
def test_each_student_earns_exactly_what_the_rule_says(graded, student, record_property):
    fake = graded.students[student]
    written = dict.fromkeys(written_ids(graded), None if fake.wrote else 0.0)
    expected = fake.expected(registry.exercises(LESSON), registry.questions(LESSON))
    assert scores(graded, student) == expected | written
    record_property("count", "fake students graded")


def test_the_students_differ_as_they_should(graded):
    """Guards the rule itself: nobody but the perfect student has all, only the blank one none."""
    exercises, questions = registry.exercises(LESSON), registry.questions(LESSON)
    whole = sum(e.points for e in exercises) + sum(q.points for q in questions)
    total = {
        name: sum(s.expected(exercises, questions).values()) for name, s in graded.students.items()
    }
    assert total["perfect"] == whole
    assert total["blank"] == 0
    assert all(0 < total[name] < whole for name in ("half", "plausible", "endless", "syntax"))


def test_no_check_leaves_a_result_that_nbgrader_would_read_as_a_score(graded):
    path = graded.root / "autograded" / "perfect" / LESSON / f"{LESSON}.ipynb"
    for cell in nbformat.read(path, as_version=4).cells:
        if cell.metadata.get("nbgrader", {}).get("grade") and cell.cell_type == "code":
            kinds = [output.output_type for output in cell.outputs]
            assert "execute_result" not in kinds, cell.source


def test_an_endless_loop_is_stopped_and_the_cells_after_it_still_run(graded):
    path = graded.root / "autograded" / "endless" / LESSON / f"{LESSON}.ipynb"
    cells = nbformat.read(path, as_version=4).cells
    code = [cell for cell in cells if cell.cell_type == "code" and cell.source.strip()]
    assert code[-1].execution_count == len(code)


# ---- validate: what a student runs before submitting ---------------------------------------------


def validated(course: Course, student: str) -> dict[str, Any]:
    path = course.desk_of(student) / LESSON / f"{LESSON}.ipynb"
    return Validator(config=course.config()).validate(str(path))


def test_validate_has_nothing_to_say_of_the_perfect_notebook(submitted):
    assert validated(submitted, "perfect") == {}


def test_validate_names_every_check_of_the_untouched_notebook(submitted):
    results = validated(submitted, "blank")
    n_checks = len(registry.exercises(LESSON)) + len(registry.questions(LESSON))
    assert list(results) == ["failed"]
    assert len(results["failed"]) == n_checks + len(written_ids(submitted))


# ---- formgrader, by HTTP -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def formgrader(graded):
    """get(path) and put(path, data) of formgrader in the course's folder."""
    token = "for-this-test"
    with jupyter_server(graded, token) as base:

        def ask(path: str, method: str = "GET", data: Any = None) -> str:
            body = None if data is None else json.dumps(data).encode()
            headers = {"Authorization": f"token {token}"}
            request = urllib.request.Request(base + path, body, headers, method=method)
            with urllib.request.urlopen(request, timeout=30) as reply:
                return reply.read().decode()

        yield SimpleNamespace(
            page=ask,
            get=lambda path: json.loads(ask(path)),
            put=lambda path, data: json.loads(ask(path, "PUT", data)),
        )


def test_formgrader_lists_the_assignment_and_every_submission(formgrader, graded):
    for page in (
        "manage_assignments",
        f"manage_submissions/{LESSON}",
        "gradebook",
        f"gradebook/{LESSON}/{LESSON}",
        "manage_students",
    ):
        assert "nbgrader" in formgrader.page(f"/formgrader/{page}").lower()
    assignments = formgrader.get("/formgrader/api/assignments")
    found = [(a["name"], a["status"], a["num_submissions"]) for a in assignments]
    assert found == [(LESSON, "released", len(graded.students))]
    submissions = formgrader.get(f"/formgrader/api/submissions/{LESSON}")
    exercises, questions = registry.exercises(LESSON), registry.questions(LESSON)
    assert {s["student"]: s["score"] for s in submissions} == {
        name: sum(student.expected(exercises, questions).values())
        for name, student in graded.students.items()
    }


def test_a_submissions_page_shows_its_cells_and_their_scores(formgrader, graded):
    notebooks = formgrader.get(f"/formgrader/api/submitted_notebooks/{LESSON}/{LESSON}")
    submission = next(n["id"] for n in notebooks if n["student"] == "plausible")
    page = formgrader.page(f"/formgrader/submissions/{submission}/")
    shown = scores(graded, "plausible")
    for grade_id in shown:
        assert f'id="{grade_id}"' in page  # the box that the score goes into
    grades = formgrader.get(f"/formgrader/api/grades?submission_id={submission}")
    assert {g["name"]: g["auto_score"] for g in grades} == shown


@pytest.fixture(scope="module")
def manually_graded(formgrader, graded):
    """The course after a person has given all but one point for each written answer."""
    notebooks = formgrader.get(f"/formgrader/api/submitted_notebooks/{LESSON}/{LESSON}")
    for submission in notebooks:
        for grade in formgrader.get(f"/formgrader/api/grades?submission_id={submission['id']}"):
            if grade["needs_manual_grade"]:
                given = {"manual_score": grade["max_score"] - 1, "extra_credit": None}
                formgrader.put(f"/formgrader/api/grade/{grade['id']}", given)
    return graded


def final_score(course: Course, student: str) -> float:
    """Automatic points by the rule, and the manual ones."""
    fake = course.students[student]
    cells = solution_cells(fake.notebook)
    manual = sum(cells[g].metadata.nbgrader.points - 1 for g in written_ids(course))
    automatic = fake.expected(registry.exercises(LESSON), registry.questions(LESSON))
    return sum(automatic.values()) + (manual if fake.wrote else 0)


def test_a_written_answer_gets_its_points_from_a_person(manually_graded):
    assert written_ids(manually_graded)
    with manually_graded.gradebook as gb:
        for name in manually_graded.students:
            submission = gb.find_submission(LESSON, name)
            assert submission.score == final_score(manually_graded, name)
            assert not submission.needs_manual_grade


@pytest.fixture(scope="module")
def returned(manually_graded):
    """The course after generate_feedback, release_feedback and fetch_feedback."""
    succeed(manually_graded.api.generate_feedback(LESSON))
    succeed(manually_graded.api.release_feedback(LESSON))
    for student in manually_graded.students:
        manually_graded.exchange("FetchFeedback", student)
    return manually_graded


def test_every_student_fetches_feedback_with_their_score(returned):
    exercises, questions = registry.exercises(LESSON), registry.questions(LESSON)
    cells = solution_cells(returned.students["blank"].notebook)
    whole = float(
        sum(e.points for e in exercises)
        + sum(q.points for q in questions)
        + sum(cells[g].metadata.nbgrader.points for g in written_ids(returned))
    )
    for student in returned.students:
        (page,) = (returned.desk_of(student) / LESSON / "feedback").glob(f"*/{LESSON}.html")
        assert f"(Score: {final_score(returned, student)} / {whole})" in page.read_text()


HIDDEN = ("HIDDEN TESTS", "hidden=True", "hidden case ")


def test_no_student_is_shown_a_hidden_test(returned):
    """Neither in the feedback, where grading has put the tests back, nor in any release."""
    for student in returned.students:
        graded = returned.root / "autograded" / student / LESSON / f"{LESSON}.ipynb"
        assert "hidden=True" in graded.read_text()
        (page,) = (returned.desk_of(student) / LESSON / "feedback").glob(f"*/{LESSON}.html")
        assert not [word for word in HIDDEN if word in page.read_text()], student
    for release in (build.ROOT / "notebooks").glob("*/*.ipynb"):
        assert not [word for word in HIDDEN if word in release.read_text()], release.name


def test_the_grades_are_exported(returned):
    returned.command("export", "--to=grades.csv")
    with (returned.root / "grades.csv").open(newline="") as file:
        rows = {row["student_id"]: float(row["score"]) for row in csv.DictReader(file)}
    assert rows == {student: final_score(returned, student) for student in returned.students}


# ---- the step that executes ----------------------------------------------------------------------


def test_the_judge_runs_this_python_and_skips_no_cell(tmp_path, monkeypatch):
    other = tmp_path / "kernels" / "python3"
    other.mkdir(parents=True)
    spec = {"argv": ["/bin/false", "{connection_file}"], "display_name": "no", "language": "python"}
    (other / "kernel.json").write_text(json.dumps(spec))
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path))
    startup = tmp_path / "ipython" / "profile_default" / "startup"
    startup.mkdir(parents=True)
    (startup / "00.py").write_text("check = print")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    cells = [
        new_code_cell("import os, sys; print(sys.executable, os.environ['NBGRADER_EXECUTION'])"),
        new_code_cell("print(os.environ['PATH'].split(os.pathsep)[0], 'check' in globals())"),
        new_code_cell("while True: pass"),
        new_code_cell("print('ran')", metadata={"tags": ["skip-execution"]}),
    ]
    config = PyFileConfigLoader("nbgrader_config.py", path=str(build.ROOT)).load_config()
    config.Judge.timeout, config.Judge.isolation = 2, "none"
    judge = Judge(config=config)
    done, _ = judge.preprocess(new_notebook(cells=cells), {"metadata": {"path": str(tmp_path)}})
    first, second, endless, tagged = (cell.outputs for cell in done.cells)
    assert first[0].text == f"{sys.executable} autograde\n"
    assert second[0].text == f"{Path(sys.executable).parent} False\n"
    assert [output.ename for output in endless] == ["KeyboardInterrupt", "CellTimeoutError"]
    assert tagged[0].text == "ran\n"
