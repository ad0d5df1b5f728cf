"""Protected wherever it was started: real servers in other folders, with each wrong configuration.

A student's notebook attacks whoever opens it and tells where its code ran. Beside the course lies
another one, of which nobody here knows anything: it keeps nbgrader's own pages and steps.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import Request, urlopen

import nbformat
import pytest
from attacks import rings
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook
from nbgrader.apps.api import NbGraderAPI
from nbgrader_course import (
    LESSON,
    Course,
    environment,
    make_course,
    run_command,
    server_in,
    succeed,
)
from traitlets.config import Config

from grader.judging import registry
from grader.safe_pages import whose
from sandbox import walls

pytestmark = pytest.mark.filterwarnings("ignore:Passing unrecognized arguments")

TOKEN = "for-this-test"
OTHER = "ps1"
ATTACK = f"<script>{rings('script')}</script>"
POLICY = "Content-Security-Policy"
WHERE = "the kernel has no parent that judges"
# Runs as whoever grades: in nbgrader's own kernel, whose module this is, and there alone.
TELLS = f"import sys\nif 'ipykernel.kernelapp' in sys.modules: print({WHERE!r})"
STOCK_STEPS = """
from nbgrader.converters import Autograde
c.Autograde.sanitize_preprocessors = Autograde.sanitize_preprocessors.default()
c.Autograde.autograde_preprocessors = Autograde.autograde_preprocessors.default()
c.GenerateFeedback.exporter_class = "nbconvert.exporters.HTMLExporter"
"""


@dataclass
class Server:
    """Formgrader over HTTP."""

    base: str

    def ask(self, path: str, method: str = "GET") -> tuple[int, str]:
        """Status and text of an answer."""
        headers = {"Authorization": f"token {TOKEN}"}
        request = Request(f"{self.base}/formgrader/{path}", headers=headers, method=method)
        try:
            with urlopen(request, timeout=120) as answer:
                return answer.status, answer.read().decode()
        except HTTPError as error:
            return error.code, error.read().decode()

    def flash(self, assignment: str) -> None:
        """Press the button that grades one submission."""
        status, said = self.ask(f"api/submission/{assignment}/eve/autograde", "POST")
        assert status == 200, said
        succeed(json.loads(said))

    def submission(self, assignment: str) -> str:
        """The page of eve's submission."""
        status, said = self.ask(f"api/submitted_notebooks/{assignment}/{assignment}")
        assert status == 200, said
        (one,) = json.loads(said)
        status, page = self.ask(f"submissions/{one['id']}/")
        assert status == 200
        return page

    def open(self, course: Path) -> tuple[int, str]:
        """Formgrader's first page, of the course in another folder."""
        return self.ask(f"?path={quote(str(course))}")


def hand_in(course: Path, assignment: str, notebook: nbformat.NotebookNode) -> None:
    folder = course / "submitted" / "eve" / assignment
    folder.mkdir(parents=True)
    notebook.cells += [new_markdown_cell(f"mine\n\n{ATTACK}"), new_code_cell(TELLS)]
    nbformat.write(notebook, folder / f"{assignment}.ipynb")


@pytest.fixture(scope="module")
def course(tmp_path_factory: pytest.TempPathFactory) -> Course:
    """A course below the home, whose own settings put nbgrader's steps back."""
    home = tmp_path_factory.mktemp("home").resolve()
    (home / "teaching").mkdir()
    course = make_course(home / "teaching")
    succeed(course.api.generate_assignment(LESSON))
    released = course.root / "notebooks" / LESSON / f"{LESSON}.ipynb"
    hand_in(course.root, LESSON, nbformat.read(released, as_version=4))
    with (course.root / "nbgrader_config.py").open("a") as settings:
        settings.write(STOCK_STEPS)
    return course


@pytest.fixture(scope="module")
def home(course: Course) -> Path:
    return course.folder.parent


@pytest.fixture(scope="module")
def bare(course: Course) -> Path:
    """The course without any settings: what a server that reads none would see."""
    folder = course.folder.parent / "bare"
    shutil.copytree(course.root, folder)
    (folder / "nbgrader_config.py").unlink()
    return folder


@pytest.fixture(scope="module")
def other(home: Path) -> Path:
    """Another course, with nbgrader's own settings and one question."""
    folder = home / "other"
    cell = new_code_cell("assert True")
    cell.metadata.nbgrader = {
        "grade": True,
        "solution": False,
        "task": False,
        "locked": True,
        "grade_id": "one",
        "points": 1,
        "schema_version": 3,
    }
    notebook = new_notebook(cells=[cell])
    notebook.metadata.kernelspec = {"name": "python3", "language": "python", "display_name": "P"}
    source = folder / "source" / OTHER
    source.mkdir(parents=True)
    nbformat.write(notebook, source / f"{OTHER}.ipynb")
    (folder / "nbgrader_config.py").write_text(
        f"c = get_config()\nc.CourseDirectory.course_id = 'other'\n{STOCK_STEPS}"
    )
    config = Config()
    config.CourseDirectory.root = str(folder)
    succeed(NbGraderAPI(config=config).generate_assignment(OTHER))
    hand_in(folder, OTHER, nbformat.read(folder / "release" / OTHER / f"{OTHER}.ipynb", 4))
    return folder


def graded(course: Path, assignment: str) -> nbformat.NotebookNode:
    return nbformat.read(
        course / "autograded" / "eve" / assignment / f"{assignment}.ipynb", as_version=4
    )


def assert_judged(course: Path) -> None:
    """The lesson was run by the judge, with the walls that this computer has."""
    notebook = graded(course, LESSON)
    assert notebook.metadata.inferlab.isolation == walls.level()[0]
    assert WHERE not in str([c.get("outputs") for c in notebook.cells])


def assert_shown_safely(page: str) -> None:
    assert POLICY in page[: page.index("</head>")]
    assert ATTACK not in page
    assert "mine" in page


# ---- servers -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def unset(home: Path, course: Course, other: Path) -> Iterator[Server]:
    """Started in the home, no settings anywhere: the course lies further down."""
    own = home / "unset"
    own.mkdir()
    with server_in(home, own, TOKEN) as base:
        yield Server(base)


@pytest.fixture(scope="module")
def misled(home: Path, course: Course, other: Path) -> Iterator[Server]:
    """Started in another course, which lists nbgrader's steps; the user's settings name our root.

    The course's own settings list nbgrader's steps too.
    """
    own = home / "misled"
    (own / "JUPYTER_CONFIG_DIR").mkdir(parents=True)
    (own / "JUPYTER_CONFIG_DIR" / "nbgrader_config.py").write_text(
        f"c = get_config()\nc.CourseDirectory.root = {str(course.root)!r}\n"
    )
    with server_in(other, own, TOKEN, f"--ServerApp.root_dir={home}") as base:
        yield Server(base)


def test_above_the_course_formgrader_says_which_line_is_missing(
    unset: Server, home: Path, course: Course
) -> None:
    for path in ("manage_assignments", "gradebook", "api/assignments"):
        status, page = unset.ask(path)
        assert status == 409
        assert f"load_subconfig({str(course.root / 'nbgrader_config.py')!r})" in page.replace(
            "&#x27;", "'"
        )
    assert not (home / "gradebook.db").exists()


def test_another_course_keeps_nbgraders_pages_and_steps(unset: Server, other: Path) -> None:
    status, page = unset.open(other)
    assert (status, POLICY in page) == (200, False)
    unset.flash(OTHER)
    assert WHERE in str(graded(other, OTHER).cells), "the attack does not work: tests see nothing"
    page = unset.submission(OTHER)
    assert ATTACK in page
    assert POLICY not in page


def test_with_the_root_set_elsewhere_and_nbgraders_steps_the_course_is_protected(
    misled: Server, course: Course
) -> None:
    misled.flash(LESSON)
    assert_judged(course.root)
    assert_shown_safely(misled.submission(LESSON))
    status, page = misled.ask("manage_assignments")
    assert (status, POLICY in page) == (200, True)


def test_without_any_settings_the_course_is_protected(misled: Server, bare: Path) -> None:
    status, page = misled.open(bare)
    assert (status, POLICY in page) == (200, True)
    misled.flash(LESSON)
    assert_judged(bare)


# ---- commands ------------------------------------------------------------------------------------


def test_commands_without_any_settings_judge_and_show_safely(bare: Path, home: Path) -> None:
    variables = environment(home)
    run_command(bare, variables, "nbgrader", "autograde", LESSON, "--force")
    assert_judged(bare)
    run_command(bare, variables, "nbgrader", "generate_feedback", LESSON)
    assert_shown_safely((bare / "feedback" / "eve" / LESSON / f"{LESSON}.html").read_text())


# ---- whose course it is --------------------------------------------------------------------------


def test_every_lesson_is_recognised_by_its_name() -> None:
    assert all(map(whose.is_lesson, registry.lessons()))
    assert not any(map(whose.is_lesson, ("ps1", "04_other", "kv_cache", "99", "")))


def test_a_lesson_under_another_name_is_recognised_by_what_the_instructor_gave(
    tmp_path: Path, course: Course
) -> None:
    shutil.copytree(course.root / "solutions" / LESSON, tmp_path / "source" / "lab1")
    (tmp_path / "submitted" / "eve" / "ps1").mkdir(parents=True)
    assert whose.is_ours(tmp_path, "lab1")
    assert whose.holds_course(tmp_path)
    assert not whose.is_ours(tmp_path, "ps1")


def test_what_cannot_be_loaded_is_not_shown_and_not_run(
    monkeypatch: pytest.MonkeyPatch, course: Course
) -> None:
    """Where our modules do not import, nbgrader's own step does not run in their place."""

    def broken(*_: object) -> None:
        raise ImportError("no judge here")

    api = course.api
    monkeypatch.setattr("grader.classroom.nbgrader_steps.with_judge", broken)
    result = api.autograde(LESSON, "eve")
    assert not result["success"]
    assert "no judge here" in result["log"]
