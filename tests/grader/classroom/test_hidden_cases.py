"""An instructor's own hidden cases and seed: named in the course's settings, used by both desks."""

import json
import shutil
from pathlib import Path

import pytest
from handed_in import bytes_of, cell, perfect
from nbgrader_course import Course as NbgraderCourse

from grader import cli
from grader.classroom.course import Course
from grader.classroom.lay_out import lay_out
from grader.classroom.record import hashes
from grader.judging import hidden, registry
from grader.judging.exercise import given
from grader.judging.hidden import Hidden

LESSON, NAME = "04_kv_cache", "the private zebra"
FILE = f"""
from grader.judging.exercise import given
from inferlab.config import ModelConfig

ZEBRA = ModelConfig(77, 1024, 14, 7, 98, 4096, 32_000)
CASES = {{"kv_bytes_per_token": (given("{NAME}", config=ZEBRA, bytes_per_number=1),)}}
"""
SETTINGS = '\nc.Judge.extra_cases = "private/cases.py"\nc.Judge.hidden_seed = 7\n'
CHEAT = """

_right = kv_bytes_per_token
def kv_bytes_per_token(config, bytes_per_number=2):
    return 1 if config.n_layers == 77 else _right(config, bytes_per_number)
"""


def course_with(folder: Path, settings: str = SETTINGS) -> Course:
    """One student, who answers all but the private case."""
    root = folder / "a course"
    lay_out(root, [LESSON])
    config = root / "nbgrader_config.py"
    config.write_text(config.read_text() + settings)
    (root / "private").mkdir()
    (root / "private" / "cases.py").write_text(FILE)
    book = perfect()
    answer = cell(book, "kv_bytes_per_token")
    answer["source"] = "".join(answer["source"]) + CHEAT
    path = root / "submitted" / "ada" / LESSON / f"{LESSON}.ipynb"
    path.parent.mkdir(parents=True)
    path.write_bytes(bytes_of(book))
    return Course(root)


def lost(course: Course) -> dict[str, str]:
    record = json.loads(course.record_path(LESSON, "ada").read_text())
    return {r["grade_id"]: r["text"] for r in record["results"] if r["earned"] < r["points"]}


def test_inferlab_grade_judges_on_the_private_case_and_tells_nothing_of_it(tmp_path: Path) -> None:
    course = course_with(tmp_path)
    asked = ["grade", LESSON, "--course", str(course.root), "--jobs", "1"]
    assert cli.main(asked) == 0
    (text,) = lost(course).values()
    assert set(lost(course)) == {"check_kv_bytes_per_token"}
    assert "on a hidden one the value is wrong" in text
    graded = course.graded_path(LESSON, "ada").read_text()
    assert NAME not in graded
    assert "105,644" not in graded  # 2 * 77 layers * 7 heads * 98 numbers: what is right there
    (course.root / "private" / "cases.py").write_text("CASES = {}")
    assert cli.main(asked) == 0, "what was judged on other cases is judged again"
    assert lost(course) == {}


def test_nbgraders_autograde_judges_on_it_too(tmp_path: Path) -> None:
    course = course_with(tmp_path)
    nbgrader = NbgraderCourse(tmp_path)
    nbgrader.command("generate_assignment", LESSON, "--force")
    nbgrader.command("autograde", LESSON, "--create")
    book = json.loads(course.graded_path(LESSON, "ada").read_text())
    assert book["metadata"]["inferlab"]["reasons"] == {"check_kv_bytes_per_token": "wrong value"}


def test_settings_say_which(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    course = course_with(tmp_path)
    assert course.hidden == Hidden(7, str(course.root / "private" / "cases.py"))
    shutil.rmtree(course.root)
    monkeypatch.setenv("INFERLAB_HIDDEN_SEED", "11")
    monkeypatch.setenv("INFERLAB_HIDDEN_CASES", "/elsewhere.py")
    assert course_with(tmp_path, "").hidden == Hidden(11, "/elsewhere.py")
    monkeypatch.setenv("INFERLAB_HIDDEN_SEED", "a secret")
    with pytest.raises(ValueError, match="'a secret' must be a whole number"):
        hidden.from_environment()


def test_results_rest_on_the_seed_and_on_the_files_text(tmp_path: Path) -> None:
    course = course_with(tmp_path)
    file = course.root / "private" / "cases.py"
    found = [hashes(b"", LESSON, course.root, Hidden(seed)) for seed in (1, 2)]
    found.append(hashes(b"", LESSON, course.root, Hidden(1, str(file))))
    assert len({h["hidden"] for h in found}) == 3


def test_every_case_of_the_file_is_hidden(tmp_path: Path) -> None:
    (tmp_path / "cases.py").write_text(FILE)
    exercise = registry.exercise("kv_bytes_per_token")
    mine = Hidden(7, str(tmp_path / "cases.py")).cases(exercise)
    assert [case.name for case in mine if case.name == NAME] == [NAME]
    assert all(case.hidden for case in mine)
    assert len(mine) == exercise.n_draws + 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("1 / 0", "cannot be run: ZeroDivisionError"),
        ("ZEBRA = 1", "must define CASES"),
        ("CASES = {'zebra': ()}", "no exercise is called 'zebra'"),
        ("CASES = {'kv_cache_bytes': [1]}", "must be a tuple of cases"),
    ],
)
def test_a_file_that_will_not_do_is_named(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "cases.py"
    path.write_text(text)
    with pytest.raises(ValueError, match=f"{path.name}.*{said}"):
        Hidden(1, str(path)).cases(registry.exercise("kv_cache_bytes"))


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"there is no file .*none\.py"):
        Hidden(1, str(tmp_path / "none.py")).cases(registry.exercise("kv_cache_bytes"))


def test_a_case_keeps_its_inputs() -> None:
    """The oracle of the file above: given() as the checks use it."""
    assert given("n", n=1).make() == {"n": 1}
