"""The learner's copy: copied once, merged later, never overwritten."""

import copy
import json
import os
import re
from pathlib import Path

import nbformat
import pytest
from fake_students import Desk
from places import ROOT
from sample_course import (
    LESSON,
    MINE,
    OLD,
    STUB,
    Course,
    changed,
    code,
    ids,
    notebook,
    source,
    without,
    words,
)

from grader.judging import registry
from grader.learner import lab
from grader.notebooks.merge import merge

# ---- the merge itself --------------------------------------------------------------------------


def test_what_the_learner_left_alone_follows_the_release() -> None:
    new = changed(OLD, intro="# Lesson, better", check_kv_bytes='check("kv_bytes")  # new')
    merged = merge(OLD, changed(OLD, kv_bytes=MINE), new)
    assert source(merged.notebook, "intro") == "# Lesson, better"
    assert source(merged.notebook, "check_kv_bytes") == 'check("kv_bytes")  # new'
    assert source(merged.notebook, "kv_bytes") == MINE
    assert merged.conflicts == []
    assert merged.updated == ["# Lesson, better", "check_kv_bytes"]


def test_changed_on_both_sides_keeps_the_learners_text_and_says_so() -> None:
    new = changed(OLD, kv_bytes=STUB.replace("Bytes.", "Bytes of K and V."), end="The very end")
    merged = merge(OLD, changed(OLD, kv_bytes=MINE, end="My notes"), new)
    assert source(merged.notebook, "kv_bytes") == MINE
    assert source(merged.notebook, "end") == "My notes"
    assert merged.conflicts == ["kv_bytes", "The very end"]


def test_the_same_change_on_both_sides_is_no_conflict() -> None:
    both = changed(OLD, end="The very end")
    assert merge(OLD, both, both).conflicts == []


def test_added_cells_stay_after_their_predecessor() -> None:
    first, after = code("a0", "import this"), code("a1", "kv_bytes(3)")
    cells = OLD["cells"]
    mine = notebook(first, *cells[:2], after, code("a2", "1"), *cells[2:])
    new = notebook(*cells[:2], words("hint", "A new hint"), *cells[2:])
    merged = merge(OLD, mine, new)
    order = ["a0", "intro", "kv_bytes", "a1", "a2", "hint", "check_kv_bytes", "end"]
    assert ids(merged.notebook) == order


def test_moved_cells_stay_where_the_learner_put_them() -> None:
    cells = OLD["cells"]
    mine = notebook(cells[3], *cells[:3])
    merged = merge(OLD, mine, notebook(*cells, words("more", "More")))
    assert ids(merged.notebook) == ["end", "more", "intro", "kv_bytes", "check_kv_bytes"]


def test_deleted_checks_come_back_and_deleted_prose_does_not() -> None:
    new = changed(OLD, end="The very end", intro="# Better")
    merged = merge(OLD, without(OLD, "check_kv_bytes", "end"), new)
    assert ids(merged.notebook) == ["intro", "kv_bytes", "check_kv_bytes"]
    assert merged.restored == ["check_kv_bytes"]


def test_a_deleted_answer_comes_back_unless_it_would_shadow_the_learners_own() -> None:
    gone = without(OLD, "kv_bytes")
    assert merge(OLD, gone, OLD).restored == ["kv_bytes"]
    elsewhere = notebook(gone["cells"][0], code("mine", MINE), *gone["cells"][1:])
    merged = merge(OLD, elsewhere, OLD)
    assert merged.restored == []
    assert ids(merged.notebook) == ["intro", "mine", "check_kv_bytes", "end"]


def test_a_cell_that_the_release_drops_goes_unless_the_learner_wrote_in_it() -> None:
    new = without(OLD, "end", "kv_bytes")
    merged = merge(OLD, changed(OLD, kv_bytes=MINE), new)
    assert ids(merged.notebook) == ["intro", "kv_bytes", "check_kv_bytes"]
    assert source(merged.notebook, "kv_bytes") == MINE
    assert "nbgrader" not in merged.notebook["cells"][1]["metadata"]


def test_outputs_of_kept_cells_are_kept_and_lost_ones_are_named() -> None:
    mine = changed(OLD, kv_bytes=MINE)
    for cell in mine["cells"][1:3]:
        cell["outputs"] = [nbformat.v4.new_output("stream", text="done")]
    merged = merge(OLD, mine, changed(OLD, check_kv_bytes="check(kv_bytes)"))
    assert merged.notebook["cells"][1]["outputs"][0]["text"] == "done"
    assert merged.notebook["cells"][2]["outputs"] == []
    assert merged.outputs_lost == ["check_kv_bytes"]


def test_lost_ids_are_found_by_grade_id_and_by_text() -> None:
    mine = changed(OLD, kv_bytes=MINE)
    for number, cell in enumerate(mine["cells"]):
        cell["id"] = f"colab{number}"
    merged = merge(OLD, mine, changed(OLD, intro="# Better"))
    assert ids(merged.notebook) == ids(OLD)
    assert source(merged.notebook, "kv_bytes") == MINE
    assert source(merged.notebook, "intro") == "# Better"


def test_points_and_locks_come_from_the_release() -> None:
    mine = changed(OLD, kv_bytes=MINE)
    mine["cells"][2]["metadata"] = {"nbgrader": {"points": 100}, "collapsed": True}
    mine["cells"][1]["metadata"] = {}
    merged = merge(OLD, mine, changed(OLD, intro="# Better")).notebook["cells"]
    assert merged[1]["metadata"]["nbgrader"] == OLD["cells"][1]["metadata"]["nbgrader"]
    assert merged[2]["metadata"]["nbgrader"]["points"] == 2
    assert merged[2]["metadata"]["collapsed"] is True


def test_merge_changes_none_of_its_inputs() -> None:
    books = [OLD, changed(OLD, kv_bytes=MINE), changed(OLD, intro="# Better")]
    before = copy.deepcopy(books)
    merge(*books)
    assert books == before


def test_a_solved_lesson_survives_a_release_that_changed_every_text() -> None:
    root = ROOT
    release = lab.read_notebook(lab.released_path(root, LESSON))
    solution = lab.read_notebook(root / "solutions" / LESSON / f"{LESSON}.ipynb")
    solved = Desk(release, solution, registry.exercises(LESSON)).student("perfect").notebook
    new = copy.deepcopy(release)
    for cell in new["cells"]:
        if not cell["metadata"].get("nbgrader", {}).get("solution"):
            cell["source"] += "\n# a new line"
    merged = merge(release, solved, new)
    assert merged.conflicts == []
    answers = {c["id"]: c["source"] for c in solved["cells"] if is_answer(c)}
    assert {c["id"]: c["source"] for c in merged.notebook["cells"] if is_answer(c)} == answers
    rest = [c["source"] for c in merged.notebook["cells"] if not is_answer(c)]
    assert rest == [c["source"] for c in new["cells"] if not is_answer(c)]


def is_answer(cell: dict) -> bool:
    return bool(cell["metadata"].get("nbgrader", {}).get("solution"))


# ---- files -------------------------------------------------------------------------------------


@pytest.fixture
def course(tmp_path: Path) -> Course:
    return Course(tmp_path)


def test_the_first_time_the_release_is_copied(course: Course) -> None:
    assert "copied" in course.sync()
    assert course.mine.read_bytes() == lab.released_path(course.root, LESSON).read_bytes()


def test_the_second_time_nothing_happens(course: Course) -> None:
    course.sync()
    course.write(changed(OLD, kv_bytes=MINE))
    before = course.mine.read_bytes(), course.mine.stat().st_mtime_ns
    assert course.sync() == ""
    assert (course.mine.read_bytes(), course.mine.stat().st_mtime_ns) == before


def test_a_new_release_is_merged_and_is_the_base_of_the_next(course: Course) -> None:
    course.sync()
    course.write(changed(OLD, kv_bytes=MINE))
    course.release(changed(OLD, intro="# Second"))
    assert "everything you wrote is kept" in course.sync()
    course.release(changed(OLD, intro="# Third"))
    course.sync()
    assert source(course.read(), "kv_bytes") == MINE
    assert source(course.read(), "intro") == "# Third"
    assert not course.new.exists()
    assert course.copies() == []


def test_a_conflict_puts_the_release_beside_and_is_told_once(course: Course) -> None:
    course.sync()
    course.write(changed(OLD, kv_bytes=MINE))
    release = changed(OLD, kv_bytes=STUB + "  # new")
    course.release(release)
    assert str(course.new) in course.sync()
    assert source(course.read(), "kv_bytes") == MINE
    assert source(lab.read_notebook(course.new), "kv_bytes") == STUB + "  # new"
    assert course.sync() == ""


def test_notes_made_in_the_file_beside_are_not_lost(course: Course) -> None:
    course.sync()
    course.write(changed(OLD, kv_bytes=MINE))
    course.new.write_text("my notes", encoding="utf-8")
    course.release(changed(OLD, kv_bytes=STUB + "  # new"))
    course.sync()
    assert [path.read_text() for path in course.copies()] == ["my notes"]


def test_a_dated_copy_is_kept_when_outputs_are_lost(course: Course) -> None:
    course.sync()
    mine = changed(OLD, kv_bytes=MINE)
    mine["cells"][2]["outputs"] = [nbformat.v4.new_output("stream", text="measured 3 ms")]
    course.write(mine)
    before = course.mine.read_bytes()
    course.release(changed(OLD, check_kv_bytes="check(kv_bytes)"))
    said = course.sync()
    (kept,) = course.copies()
    assert str(kept) in said
    assert kept.read_bytes() == before


@pytest.mark.parametrize("content", [b"", b"{", b'{"cells": 3}', b"\xff\xfe\x00"])
def test_a_damaged_notebook_is_left_alone(course: Course, content: bytes) -> None:
    course.sync()
    course.mine.write_bytes(content)
    course.release(changed(OLD, intro="# Better"))
    assert "not a readable notebook" in course.sync()
    assert course.mine.read_bytes() == content
    assert source(lab.read_notebook(course.new), "intro") == "# Better"


def test_a_notebook_in_another_encoding_is_merged_and_kept_as_it_was(course: Course) -> None:
    course.sync()
    before = lab.notebook_text(changed(OLD, kv_bytes=MINE)).encode("utf-16")
    course.mine.write_bytes(before)
    course.release(changed(OLD, intro="# Better"))
    said = course.sync()
    assert "the file is UTF-16. As it was: " in said
    (kept,) = course.copies()
    assert kept.read_bytes() == before
    assert source(course.read(), "intro") == "# Better"
    assert source(course.read(), "kv_bytes") == MINE


def test_after_a_damaged_notebook_is_mended_it_is_merged(course: Course) -> None:
    course.sync()
    course.mine.write_text("{")
    course.release(changed(OLD, intro="# Better"))
    course.sync()
    course.write(changed(OLD, kv_bytes=MINE))
    course.sync()
    assert source(course.read(), "intro") == "# Better"
    assert source(course.read(), "kv_bytes") == MINE


def test_without_its_base_every_difference_is_the_learners(course: Course) -> None:
    course.sync()
    course.write(changed(OLD, kv_bytes=MINE, end="My notes"))
    (course.work / ".inferlab" / "base" / f"{LESSON}.ipynb").unlink()
    assert str(course.new) in course.sync()
    assert source(course.read(), "kv_bytes") == MINE
    assert source(course.read(), "end") == "My notes"


def test_a_write_that_fails_leaves_the_old_file_whole(
    course: Course, monkeypatch: pytest.MonkeyPatch
) -> None:
    course.sync()
    course.write(changed(OLD, kv_bytes=MINE))
    before = course.mine.read_bytes()
    course.release(changed(OLD, intro="# Better"))

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space"):
        course.sync()
    assert course.mine.read_bytes() == before
    assert [p.name for p in course.mine.parent.iterdir()] == [f"{LESSON}.ipynb"]
    monkeypatch.undo()
    course.sync()
    assert source(course.read(), "intro") == "# Better"


def test_data_of_a_lesson_is_copied_and_never_overwritten(course: Course) -> None:
    data = lab.released_path(course.root, LESSON).with_name("trace.csv")
    data.write_text("a")
    course.sync()
    mine = course.mine.with_name("trace.csv")
    assert mine.read_text() == "a"
    mine.write_text("my own")
    data.write_text("b")
    course.sync()
    assert mine.read_text() == "my own"


def test_start_afresh_keeps_a_dated_copy(course: Course) -> None:
    course.sync()
    course.write(changed(OLD, kv_bytes=MINE))
    before = course.mine.read_bytes()
    kept = lab.start_afresh(course.root, course.work, LESSON)
    again = lab.start_afresh(course.root, course.work, LESSON)
    assert kept is not None
    assert re.fullmatch(rf"{LESSON}\.\d{{4}}-\d\d-\d\dT\d\d-\d\d-\d\d\.ipynb", kept.name)
    assert kept.read_bytes() == before
    assert again not in (None, kept)
    assert ids(course.read()) == ids(OLD)
    assert source(course.read(), "kv_bytes") == STUB


# ---- naming a lesson, starting JupyterLab ------------------------------------------------------


@pytest.mark.parametrize("said", ["04", "4", "kv_cache", "04_kv_cache", "KV-cache", " 04 "])
def test_a_lesson_is_found_by_number_or_name(said: str) -> None:
    assert lab.find_lesson(said, ["01_roofline", "04_kv_cache", "10_batching"]) == "04_kv_cache"


@pytest.mark.parametrize("said", ["", "0", "kv", "44", "05"])
def test_an_unknown_lesson_lists_the_known_ones(said: str) -> None:
    with pytest.raises(lab.UnknownLesson, match="01_roofline, 04_kv_cache"):
        lab.find_lesson(said, ["01_roofline", "04_kv_cache"])


def test_jupyter_gets_our_defaults_and_keeps_the_users_settings() -> None:
    found = lab.jupyter_environment({"JUPYTER_CONFIG_PATH": "/theirs", "HOME": "/h", "PATH": "/b"})
    ours, theirs = found["JUPYTER_CONFIG_PATH"].split(os.pathsep)
    assert theirs == "/theirs"
    assert found["HOME"] == "/h"
    assert found["PATH"].endswith(os.pathsep + "/b")
    settings = json.loads(Path(ours, "labconfig", "default_setting_overrides.json").read_text())
    assert settings["@jupyterlab/apputils-extension:notification"]["fetchNews"] == "false"


def test_kernels_measure_with_a_core_left_to_the_browser(monkeypatch: pytest.MonkeyPatch) -> None:
    for physical, allowed, expected in [(2, 2, 1), (1, 2, 1), (8, 16, 7), (8, 4, 3), (None, 4, 1)]:
        monkeypatch.setattr("psutil.cpu_count", lambda logical, n=physical: n)
        monkeypatch.setattr(lab, "n_cores", lambda n=allowed: n)
        found = lab.jupyter_environment({"PATH": "/b"})
        assert {found[name] for name in lab.THREADS} == {str(expected)}
    theirs = lab.jupyter_environment({"OMP_NUM_THREADS": "5"})
    assert (theirs["OMP_NUM_THREADS"], theirs["OPENBLAS_NUM_THREADS"]) == ("5", "1")


def test_jupyter_command_opens_the_lesson_in_a_folder_with_spaces() -> None:
    command = lab.jupyter_command(Path("/my work"), LESSON, browser=False, port=9000)
    assert "--ServerApp.root_dir=/my work" in command
    assert f"--LabApp.default_url=/lab/tree/{LESSON}/{LESSON}.ipynb" in command
    assert "--no-browser" in command
    assert "--ServerApp.port=9000" in command
    assert "--no-browser" not in lab.jupyter_command(Path("/w"), LESSON)


@pytest.mark.parametrize(("euid", "expected"), [(0, True), (1000, False)])
def test_only_root_is_allowed_as_root(
    monkeypatch: pytest.MonkeyPatch, euid: int, expected: bool
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: euid)
    assert ("--allow-root" in lab.jupyter_command(Path("/w"), LESSON)) is expected


def test_start_without_a_release_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="make build"):
        lab.start(tmp_path, tmp_path / "work", None)


# ---- where the learner's copy lies -------------------------------------------------------------


def test_a_course_of_ones_own_keeps_the_copy_in_it(tmp_path: Path) -> None:
    assert lab.usual_work(tmp_path) == tmp_path / "work"


def test_a_shared_course_leaves_the_copy_to_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shared, mine = tmp_path / "shared", tmp_path / "work"
    shared.mkdir()
    monkeypatch.setattr(lab.os, "access", lambda path, mode: path != shared)
    assert lab.usual_work(shared) == mine
    (shared / "work").mkdir()  # it may be written in, so it is this user's
    assert lab.usual_work(shared) == shared / "work"
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(lab, "ROOT", shared)
    monkeypatch.setattr(lab, "IS_INSTALLED", True)
    assert lab.usual_work(shared) == mine


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "a file").touch()
    work = tmp_path / "a file" / "work"
    with pytest.raises(ValueError, match=r"cannot be kept in .*a file/work.*--work DIR"):
        lab.sync(ROOT, work, say=lambda line: None)
