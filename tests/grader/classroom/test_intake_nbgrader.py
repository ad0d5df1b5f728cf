"""`nbgrader autograde` itself mends what used to give 0: one batch of awkward students."""

import json
import os
import shutil
import subprocess
import sys

import nbformat
import pytest
from handed_in import (
    LESSON,
    NAME,
    ROOT,
    bytes_of,
    cell,
    drop,
    pasted,
    perfect,
    place,
    with_change,
    without_marks,
)
from nbgrader.api import Gradebook
from nbgrader.apps.api import NbGraderAPI
from traitlets.config import PyFileConfigLoader

from grader.judging import registry
from grader.notebooks.merge import grade_id


def copied_check(book):
    book["cells"].append(pasted(cell(book, "check_attend_one"), "again"))


def split_answer(book):
    i, one = place(book, "attend_one"), cell(book, "attend_one")
    head, tail = one["source"].rsplit("\n", 1)
    book["cells"][i : i + 1] = [pasted(one, "a", source=head), pasted(one, "b", source=tail)]


def tagged_and_retyped(book):
    check = cell(book, "check_decode_cached")
    check["cell_type"] = "markdown"
    del check["outputs"], check["execution_count"]
    cell(book, "attend_one")["metadata"]["tags"] = ["skip-execution"]


def no_marks_and_no_ids(book):
    without_marks(book)
    for number, one in enumerate(book["cells"]):
        one["id"] = f"new-{number}"


def hundred_points(book):
    cell(book, "check_attend_one")["metadata"]["nbgrader"]["points"] = 100
    new = pasted(cell(book, "check_attend_one"), "mine", source="1")
    new["metadata"]["nbgrader"]["grade_id"] = "mine"
    book["cells"].append(new)


def odd_marks(book):
    cell(book, "check_attend_one")["metadata"]["nbgrader"] = {}
    cell(book, "attend_one")["metadata"]["nbgrader"] = "x"
    cell(book, "decode_cached")["metadata"]["nbgrader"]["schema_version"] = 1


def no_imports(book):
    del book["cells"][1]


def all_of(*changes):
    def change(book):
        for one in changes:
            one(book)

    return change


CHANGES = {
    "copied": copied_check,
    "split": all_of(split_answer, no_imports),
    "greedy": all_of(
        drop("check_decode_uncached", "check_KVCache_append", "check_kv_q_fits"),
        tagged_and_retyped,
        hundred_points,
    ),
    "markless": no_marks_and_no_ids,
    "odd": odd_marks,
}


def hand_in(course, student: str, data: bytes) -> None:
    path = course / "submitted" / student / LESSON / NAME
    path.parent.mkdir(parents=True)
    path.write_bytes(data)


@pytest.fixture(scope="module")
def graded(tmp_path_factory):
    """The course's folder after one autograde of everybody, and what it printed."""
    course = tmp_path_factory.mktemp("awkward") / "a course"
    shutil.copytree(ROOT / "solutions" / LESSON, course / "solutions" / LESSON)
    shutil.copy(ROOT / "nbgrader_config.py", course)
    config = PyFileConfigLoader("nbgrader_config.py", path=str(course)).load_config()
    config.CourseDirectory.root = str(course)
    made = NbGraderAPI(config=config).generate_assignment(LESSON)
    assert made["success"], made["log"]
    for student, change in CHANGES.items():
        hand_in(course, student, bytes_of(with_change(change)))
    old = nbformat.convert(nbformat.from_dict(perfect()), 3)
    hand_in(course, "format 3", nbformat.v3.writes_json(old).encode())
    folders = ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "INFERLAB_HOME")
    done = subprocess.run(
        [sys.executable, "-m", "nbgrader", "autograde", LESSON],
        cwd=course,
        env={**os.environ, **{name: str(course.parent / name) for name in folders}},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    return course, done.stdout


@pytest.mark.parametrize("student", [*CHANGES, "format 3"])
def test_every_check_earns_its_points(graded, student):
    course, _ = graded
    with Gradebook(f"sqlite:///{course / 'gradebook.db'}", "inferlab") as gradebook:
        notebook = gradebook.find_submission_notebook(LESSON, LESSON, student)
        scores = {grade.name: grade.auto_score for grade in notebook.grades}
    whole = {f"check_{e.grade_id}": float(e.points) for e in registry.exercises(LESSON)}
    whole |= {f"check_{q.id}": float(q.points) for q in registry.questions(LESSON)}
    assert scores == {**whole, "kv_explain": None}


def test_what_was_mended_is_noted_and_logged(graded):
    course, log = graded
    autograded = json.loads((course / "autograded" / "copied" / LESSON / NAME).read_text())
    (noted,) = autograded["metadata"]["inferlab"]["repairs"]
    assert noted == "the graded cell check_attend_one is there 2 times"
    assert f"copied: {noted}" in log
    names = [grade_id(c) for c in autograded["cells"]]
    assert names.count("check_attend_one") == 1
