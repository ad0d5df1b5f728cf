"""docs/instructor.md: its commands run, its settings work, its pictures are there."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import nbformat
import pytest
from fake_students import Desk
from nbgrader_course import LESSON, Course, make_course
from traitlets.config import PyFileConfigLoader

from grader import cli
from grader.judging import registry
from grader.notebooks import build

GUIDE = build.ROOT / "docs" / "instructor.md"
TEXT = GUIDE.read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", TEXT, re.S)
CONSOLE = [line for kind, block in BLOCKS if kind == "console" for line in block.splitlines()]
PYTHON = [block for kind, block in BLOCKS if kind == "python"]
INLINE = re.findall(r"`((?:nbgrader|inferlab) [a-z_]+[^`]*)`", TEXT)
PICTURES = re.findall(r"!\[([^\]]+)\]\(([^)]+)\)", TEXT)
CLASS = "id,first_name,last_name,email\nada,Ada,Lovelace,ada@example.org\n"
LATE = "2030-03-01 20:30:00 UTC"  # two hours and a half after the guide's due date


def commands(program: str) -> list[list[str]]:
    """Every command of this program in a block, in the guide's order, as words."""
    return [shlex.split(line)[1:] for line in CONSOLE if line.startswith(f"{program} ")]


pytestmark = pytest.mark.filterwarnings("ignore:Passing unrecognized arguments")


@pytest.fixture(scope="module")
def taught(tmp_path_factory: pytest.TempPathFactory) -> Course:
    """The guide followed from the first command to the last, with one student, who is late.

    Another's notebook is put in place by hand.
    """
    course = make_course(tmp_path_factory.mktemp("guide"))
    (course.root / "class.csv").write_text(CLASS)
    _, zero, plugin, chosen = PYTHON
    (course.root / "late.py").write_text(plugin)
    with (course.root / "nbgrader_config.py").open("a") as settings:
        settings.write(f"\n{zero}\n{chosen}")
    for program, *words in map(shlex.split, CONSOLE):
        if program == "nbgrader" and words[0] == "collect":
            hand_in(course, "ada")
        if program == "inferlab" and words == ["grade", LESSON]:
            (course.root / "submitted" / "ada" / LESSON / "timestamp.txt").write_text(LATE)
            put_in_place(course, "bob")
            course.command(*words, program=program)
        if program == "nbgrader":
            said = course.command(*words)
            named = "not handed in through the exchange: bob" in said
            assert named == (words[0] == "release_feedback")
    course.exchange("FetchFeedback", "ada")
    return course


def hand_in(course: Course, student: str) -> None:
    """Fetch, fill in the questions but no exercise, submit."""
    course.exchange("FetchAssignment", student)
    path = course.desk_of(student) / LESSON / f"{LESSON}.ipynb"
    solution = course.root / "solutions" / LESSON / path.name
    released, worked = (nbformat.read(p, as_version=4) for p in (path, solution))
    desk = Desk(released, worked, registry.exercises(LESSON))
    nbformat.write(desk.student(student, exercise_cells=()).notebook, path)
    course.exchange("Submit", student)


def put_in_place(course: Course, student: str) -> None:
    """By hand: a notebook that did not come through the exchange."""
    folder = course.root / "submitted" / student / LESSON
    folder.mkdir(parents=True)
    shutil.copy(course.root / "notebooks" / LESSON / f"{LESSON}.ipynb", folder)


def test_the_guides_nbgrader_commands_release_grade_and_give_feedback(taught: Course) -> None:
    assert len(commands("nbgrader")) > 6
    assert (taught.folder / "an exchange" / "inferlab" / "outbound" / LESSON).is_dir()
    assert list((taught.desk_of("ada") / LESSON / "feedback").glob(f"*/{LESSON}.html"))
    (page,) = (taught.folder / "an exchange" / "inferlab" / "feedback").glob("*.html")
    assert page.stat().st_mode & 0o444 == 0o444, "students read it under accounts of their own"
    with taught.gradebook as gradebook:
        assert gradebook.find_student("ada").last_name == "Lovelace"


def test_the_guides_late_penalty_is_a_point_for_each_hour_begun(taught: Course) -> None:
    with taught.gradebook as gradebook:
        submission = gradebook.find_submission(LESSON, "ada")
        assert submission.score > 3
        assert submission.late_submission_penalty == 3


def test_the_guides_line_leads_to_the_course_from_anywhere(taught: Course) -> None:
    line = PYTHON[0].replace("/home/ada/course", str(taught.root))
    assert str(taught.root) in line
    (taught.folder / "nbgrader_config.py").write_text(line)
    config = PyFileConfigLoader("nbgrader_config.py", path=str(taught.folder)).load_config()
    assert config.CourseDirectory.root == str(taught.root)
    assert config.CourseDirectory.source_directory == "solutions"


@pytest.mark.parametrize("words", commands("inferlab"), ids=" ".join)
def test_the_guides_inferlab_commands_are_commands(words: list[str]) -> None:
    assert callable(cli.parser().parse_args(words).run)


def test_commands_named_in_passing_are_commands() -> None:
    for command in INLINE:
        program, verb, *_ = command.split()
        if program == "inferlab":
            assert re.search(rf"\b{verb}\b", cli.parser().format_help()), command


def test_every_other_command_is_one_of_the_projects_own() -> None:
    known = {
        "make env",
        "make wheel STUDENT=1",
        "source .venv/bin/activate",
        "jupyter lab",
        "export INFERLAB_LAB_MODE=1",
    }
    others = {line for line in CONSOLE if line.split()[0] not in ("nbgrader", "inferlab")}
    assert others == known


def test_pictures_are_there_small_and_described() -> None:
    assert len(PICTURES) > 4
    for words, path in PICTURES:
        file = GUIDE.parent / path
        assert file.is_file(), path
        assert file.stat().st_size < 150_000, path
        assert len(words) > 40, path
    named = {Path(path).name for _, path in PICTURES}
    taken = re.findall(
        r'save\(page, "(\w+)"', (build.ROOT / "tools/docs/instructor_screens.py").read_text()
    )
    assert named == {f"{name}.png" for name in taken}


def test_the_readme_leads_to_the_guide() -> None:
    assert "docs/instructor.md" in (build.ROOT / "README.md").read_text(encoding="utf-8")
