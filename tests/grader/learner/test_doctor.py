"""`inferlab doctor`: the computer, and a notebook before submission."""

import copy
import shutil
import sys
from collections import namedtuple
from pathlib import Path

import nbformat
import pytest
from fake_students import Desk
from places import ROOT
from sample_course import (
    LESSON,
    MINE,
    OLD,
    Course,
    changed,
    check_cell,
    code,
    ids,
    notebook,
    source,
    without,
    words,
)

from grader.judging import registry
from grader.learner import doctor, lab
from grader.notebooks import repair

CELLS = OLD["cells"]
OTHER = MINE.replace("4 * n", "5 * n")


def copied(cell: dict, name: str, **keys: object) -> dict:
    """What JupyterLab makes of copy and paste: another id, the same metadata."""
    return nbformat.from_dict({**copy.deepcopy(cell), "id": name, **keys})


def kinds(mine: dict) -> list[tuple[str, str]]:
    return [(p.kind, p.cell) for p in repair.diagnose(mine, OLD)]


def repaired(mine: dict) -> dict:
    """The repaired notebook, of which a second look must find nothing."""
    before = copy.deepcopy(mine)
    book, _ = repair.repair(mine, OLD)
    assert mine == before, "repair() changed its input"
    assert repair.diagnose(book, OLD) == []
    nbformat.validate(nbformat.from_dict(book))
    return book


# ---- a notebook --------------------------------------------------------------------------------


@pytest.mark.parametrize("mine", [OLD, changed(OLD, kv_bytes=MINE, intro="my words")])
def test_a_sound_notebook_has_no_problem(mine: dict) -> None:
    assert kinds(mine) == []
    assert repaired(mine) == mine


def test_own_cells_are_no_problem() -> None:
    assert kinds(notebook(code("own", "1 + 1"), *CELLS, words("note", "note"))) == []


def test_a_copied_check_goes() -> None:
    mine = notebook(*CELLS, copied(CELLS[2], "again"))
    assert kinds(mine) == [("copied", "check_kv_bytes")]
    assert repaired(mine) == OLD


def test_a_copied_check_that_became_an_experiment_stays_as_an_ordinary_cell() -> None:
    play = copied(CELLS[2], "again", source="print(kv_bytes(3))")
    book = repaired(notebook(*CELLS[:2], play, *CELLS[2:]))
    assert source(book, "check_kv_bytes") == 'check("kv_bytes")'
    (ordinary,) = [c for c in book["cells"] if c["source"] == "print(kv_bytes(3))"]
    assert "nbgrader" not in ordinary["metadata"]


def test_of_a_copied_answer_the_first_with_code_wins() -> None:
    empty = copied(CELLS[1], "a1")
    first, second = copied(CELLS[1], "a2", source=MINE), copied(CELLS[1], "a3", source=OTHER)
    mine = notebook(CELLS[0], empty, first, second, *CELLS[2:])
    assert kinds(mine) == [("copied", "kv_bytes")]
    book = repaired(mine)
    assert ids(book) == ["intro", "a2", "check_kv_bytes", "end"]
    assert source(book, "a2") == MINE


def test_an_answer_split_inside_the_function_is_joined() -> None:
    head, tail = MINE.rsplit("\n", 1)
    pieces = copied(CELLS[1], "kv_bytes", source=head), copied(CELLS[1], "b", source=tail)
    mine = notebook(CELLS[0], *pieces, *CELLS[2:])
    assert kinds(mine) == [("split", "kv_bytes")]
    assert repaired(mine) == changed(OLD, kv_bytes=MINE)


def test_an_answer_split_in_three_is_joined() -> None:
    parts = MINE.split("\n")
    pieces = [copied(CELLS[1], f"p{i}", source=part) for i, part in enumerate(parts)]
    book = repaired(notebook(CELLS[0], *pieces, *CELLS[2:]))
    assert source(book, "p0") == MINE


def test_a_piece_split_off_below_the_function_becomes_an_ordinary_cell() -> None:
    whole = copied(CELLS[1], "kv_bytes", source=MINE)
    below = copied(CELLS[1], "b", source="print(kv_bytes(3))")
    book = repaired(notebook(CELLS[0], whole, below, *CELLS[2:]))
    assert [c["source"] for c in book["cells"][1:3]] == [MINE, "print(kv_bytes(3))"]
    assert "nbgrader" not in book["cells"][2]["metadata"]


def test_a_helper_split_off_above_the_function_keeps_its_place() -> None:
    above = copied(CELLS[1], "b", source="factor = 4")
    whole = copied(CELLS[1], "kv_bytes", source=MINE)
    book = repaired(notebook(CELLS[0], above, whole, *CELLS[2:]))
    assert [c["source"] for c in book["cells"][1:3]] == ["factor = 4", MINE]
    assert source(book, "kv_bytes") == MINE


def test_a_deleted_check_comes_back_in_its_place() -> None:
    mine = changed(without(OLD, "check_kv_bytes"), kv_bytes=MINE)
    assert kinds(mine) == [("missing", "check_kv_bytes")]
    assert repaired(mine) == changed(OLD, kv_bytes=MINE)


def test_a_deleted_answer_comes_back_as_a_stub() -> None:
    assert kinds(without(OLD, "kv_bytes")) == [("missing", "kv_bytes")]
    assert repaired(without(OLD, "kv_bytes")) == OLD


def test_an_edited_check_is_as_released_again() -> None:
    mine = changed(OLD, check_kv_bytes="assert True")
    assert kinds(mine) == [("edited", "check_kv_bytes")]
    assert repaired(mine) == OLD


def test_a_check_turned_to_text_is_code_again() -> None:
    mine = copy.deepcopy(OLD)
    mine["cells"][2] = words("check_kv_bytes", 'check("kv_bytes")')
    mine["cells"][2]["metadata"] = copy.deepcopy(CELLS[2]["metadata"])
    assert kinds(mine) == [("edited", "check_kv_bytes")]
    assert repaired(mine) == OLD


def test_an_answer_turned_to_text_is_code_again_and_keeps_the_text() -> None:
    mine = copy.deepcopy(OLD)
    mine["cells"][1] = words("kv_bytes", MINE)
    mine["cells"][1]["metadata"] = copy.deepcopy(CELLS[1]["metadata"])
    assert repaired(mine) == changed(OLD, kv_bytes=MINE)


@pytest.mark.parametrize("how", ["by id", "by text", "by definition"])
def test_lost_metadata_is_put_back(how: str) -> None:
    mine = changed(OLD, kv_bytes=MINE)
    for cell in mine["cells"]:
        cell["metadata"] = {}
        if how != "by id":
            cell["id"] = f"new-{cell['id']}"
    if how == "by text":
        mine["cells"][1]["source"] = CELLS[1]["source"]
    assert kinds(mine) == [("metadata", "kv_bytes"), ("metadata", "check_kv_bytes")]
    book = repaired(mine)
    assert [c["metadata"] for c in book["cells"]] == [c["metadata"] for c in CELLS]
    assert [c["source"] for c in book["cells"]] == [c["source"] for c in mine["cells"]]


def test_edited_points_are_as_released_again() -> None:
    mine = copy.deepcopy(OLD)
    mine["cells"][2]["metadata"]["nbgrader"]["points"] = 100
    assert kinds(mine) == [("metadata", "check_kv_bytes")]
    assert repaired(mine) == OLD


def test_a_graded_cell_of_another_lesson_becomes_ordinary() -> None:
    mine = notebook(*CELLS, check_cell("check_other", 'check("other")'))
    assert kinds(mine) == [("unknown", "check_other")]
    assert "nbgrader" not in repaired(mine)["cells"][-1]["metadata"]


def test_many_problems_at_once() -> None:
    head, tail = MINE.rsplit("\n", 1)
    pieces = copied(CELLS[1], "kv_bytes", source=head), copied(CELLS[1], "b", source=tail)
    mine = notebook(*pieces, words("end", "The end"))
    assert kinds(mine) == [("split", "kv_bytes"), ("missing", "check_kv_bytes")]
    assert ids(repaired(mine)) == ["kv_bytes", "check_kv_bytes", "end"]


def test_released_and_solved_lessons_have_no_problem() -> None:
    root = ROOT
    lessons = lab.released_lessons(root)
    assert LESSON in lessons
    for name in lessons:
        release = lab.read_notebook(lab.released_path(root, name))
        solution = lab.read_notebook(root / "solutions" / name / f"{name}.ipynb")
        solved = Desk(release, solution, registry.exercises(name)).student("perfect").notebook
        assert repair.diagnose(release, release) == []
        assert repair.diagnose(solved, release) == []
        assert repair.find_release(Path("renamed.ipynb"), solved, root) == name


# ---- the command on a notebook file ------------------------------------------------------------


@pytest.fixture
def course(tmp_path: Path) -> Course:
    made = Course(tmp_path)
    made.sync()
    return made


def test_a_sound_file_is_ready(course: Course, capsys: pytest.CaptureFixture) -> None:
    assert repair.main(course.mine, fix=False, root=course.root) == 0
    assert "ready to submit" in capsys.readouterr().out


def test_without_fix_nothing_is_written(course: Course, capsys: pytest.CaptureFixture) -> None:
    course.write(without(OLD, "check_kv_bytes"))
    before = course.mine.read_bytes()
    assert repair.main(course.mine, fix=False, root=course.root) == 1
    said = capsys.readouterr().out
    assert "the check cell check_kv_bytes is gone" in said
    assert "--fix" in said
    assert course.mine.read_bytes() == before
    assert course.copies() == []


def test_fix_repairs_and_keeps_a_dated_copy(course: Course, capsys: pytest.CaptureFixture) -> None:
    course.write(without(OLD, "check_kv_bytes"))
    before = course.mine.read_bytes()
    assert repair.main(course.mine, fix=True, root=course.root) == 0
    (kept,) = course.copies()
    assert kept.read_bytes() == before
    assert str(kept) in capsys.readouterr().out
    assert ids(course.read()) == ids(OLD)
    assert repair.main(course.mine, fix=False, root=course.root) == 0


def test_a_renamed_file_is_told_and_copied(course: Course, capsys: pytest.CaptureFixture) -> None:
    stray = course.mine.with_name(f"{LESSON}-Copy1.ipynb")
    shutil.move(course.mine, stray)
    assert repair.main(stray, fix=False, root=course.root) == 1
    assert f"grading looks for {LESSON}.ipynb" in capsys.readouterr().out
    assert not course.mine.exists()
    assert repair.main(stray, fix=True, root=course.root) == 0
    assert stray.exists()
    assert ids(course.read()) == ids(OLD)


def test_a_renamed_file_never_replaces_another(course: Course) -> None:
    stray = course.mine.with_name("lab.ipynb")
    stray.write_text(lab.notebook_text(changed(OLD, kv_bytes=MINE)), encoding="utf-8")
    before = course.mine.read_bytes()
    assert repair.main(stray, fix=True, root=course.root) == 1
    assert course.mine.read_bytes() == before


def test_a_notebook_of_no_lesson_is_refused(course: Course) -> None:
    other = course.mine.with_name("shopping.ipynb")
    other.write_text(lab.notebook_text(notebook(words("w", "milk"))), encoding="utf-8")
    with pytest.raises(lab.UnknownLesson, match=LESSON):
        repair.main(other, fix=True, root=course.root)


@pytest.mark.parametrize("content", ["", "{", "[1]"])
def test_a_file_that_is_no_notebook_is_refused(course: Course, content: str) -> None:
    course.mine.write_text(content)
    with pytest.raises(lab.DamagedNotebook, match="not a readable notebook"):
        repair.main(course.mine, fix=True, root=course.root)
    assert course.mine.read_text() == content


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_fix_makes_a_file_plain_that_jupyterlab_cannot_open(
    course: Course, capsys: pytest.CaptureFixture, encoding: str
) -> None:
    sound = course.mine.read_bytes()
    before = sound.decode().encode(encoding)
    course.mine.write_bytes(before)
    assert repair.main(course.mine, fix=False, root=course.root) == 1
    assert "1. the file is UTF-" in capsys.readouterr().out
    assert repair.main(course.mine, fix=True, root=course.root) == 0
    assert course.mine.read_bytes() == sound
    (kept,) = course.copies()
    assert kept.read_bytes() == before


def test_an_unfinished_merge_in_a_cell_is_left_to_its_author(
    course: Course, capsys: pytest.CaptureFixture
) -> None:
    course.write(changed(OLD, intro="<<<<<<< local\nmine\n=======\ntheirs\n>>>>>>> remote"))
    before = course.mine.read_bytes()
    assert repair.main(course.mine, fix=True, root=course.root) == 1
    assert "keep one side and delete the lines <<<<<<<" in capsys.readouterr().out
    assert course.mine.read_bytes() == before
    assert course.copies() == []


def test_a_file_that_was_cut_off_says_where(course: Course) -> None:
    course.mine.write_bytes(course.mine.read_bytes()[:-200])
    with pytest.raises(lab.DamagedNotebook, match=r"breaks off in line \d+, in cell 3"):
        repair.main(course.mine, fix=True, root=course.root)


def test_of_a_damaged_file_the_earlier_state_is_named(course: Course) -> None:
    earlier = course.mine.parent / ".ipynb_checkpoints" / f"{LESSON}-checkpoint.ipynb"
    earlier.parent.mkdir()
    shutil.move(course.mine, earlier)
    course.mine.write_text("{")
    with pytest.raises(lab.DamagedNotebook, match=r"kept an earlier state: .*-checkpoint\.ipynb"):
        repair.main(course.mine, fix=True, root=course.root)


# ---- the computer ------------------------------------------------------------------------------


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("INFERLAB_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("INFERLAB_CACHE", str(tmp_path / "cache"))
    return tmp_path


def found(name: str) -> doctor.Finding:
    (finding,) = [f for f in doctor.examine() if f.name == name]
    return finding


def test_this_environment_is_reported_in_full(home: Path) -> None:
    findings = {f.name: f for f in doctor.examine()}
    wanted = "python system torch numpy jupyterlab nbgrader packages kernel processor memory device"
    assert set(wanted.split()) | {"disk", "model", "compiler", "data folder"} <= set(findings)
    assert findings["python"].value.startswith(f"{sys.version_info[0]}.{sys.version_info[1]}.")
    assert not [f for f in findings.values() if "could not be examined" in f.value]
    assert findings["packages"].todo == ""


def test_a_missing_model_is_something_to_do(home: Path) -> None:
    assert "inferlab fetch smollm2" in found("model").todo


def test_a_data_folder_that_cannot_be_written_is_something_to_do(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "file").write_text("")
    monkeypatch.setenv("INFERLAB_HOME", str(home / "file" / "below"))
    assert "INFERLAB_HOME" in found("data folder").todo


def test_little_memory_and_little_disk_are_something_to_do(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import psutil

    memory = namedtuple("memory", "total available")(4e9, 0.5e9)
    usage = namedtuple("usage", "total used free")(1e9, 1e9, 1e6)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage)
    assert "0.5 GB are free" in found("memory").todo
    assert "disk space" in found("disk").todo


def test_no_compiler_is_something_to_do(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert "build-essential" in found("compiler").todo


def test_an_old_package_is_something_to_do(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from importlib import metadata

    real = metadata.version
    monkeypatch.setattr(metadata, "version", lambda n: "0.9.0" if n == "nbgrader" else real(n))
    finding = found("packages")
    assert "nbgrader" in finding.todo
    assert "here: 0.9.0" in finding.todo


def test_a_broken_torch_is_reported_and_the_rest_still_examined(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    names = {f.name: f for f in doctor.examine()}
    assert "could not be examined" in names["device"].value
    assert names["device"].todo
    assert "data folder" in names


def test_report_numbers_what_is_to_do_and_else_says_ready(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    well, ill = doctor.Finding("a", "1"), doctor.Finding("b", "2", "mend b")
    assert doctor.report([well]).endswith("\nready")
    assert doctor.report([ill, well, ill]).endswith("to do:\n1. mend b\n2. mend b")
    for findings, code_ in (([well], 0), ([ill], 1)):
        monkeypatch.setattr(doctor, "examine", lambda findings=findings: findings)
        assert doctor.main() == code_


# ---- names that hide the course's packages -----------------------------------------------------


def test_a_file_or_package_beside_a_notebook_that_hides_ours_is_named(tmp_path: Path) -> None:
    (tmp_path / "grader.py").touch()
    (tmp_path / "labkit").mkdir()
    (tmp_path / "labkit" / "__init__.py").touch()
    (tmp_path / "inferlab" / "src").mkdir(parents=True)  # git's clone: hides nothing
    assert set(doctor.hidden_packages([tmp_path, tmp_path])) == {
        (tmp_path / "grader.py", "grader"),
        (tmp_path / "labkit" / "__init__.py", "labkit"),
    }


def test_the_repository_and_an_empty_folder_hide_nothing(tmp_path: Path) -> None:
    assert list(doctor.hidden_packages([tmp_path, ROOT, ROOT / "src"])) == []


def test_what_hides_a_package_is_a_thing_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sandbox.py").touch()
    monkeypatch.chdir(tmp_path)
    (found,) = doctor._names()
    assert found.value == f"{tmp_path / 'sandbox.py'} hides the package sandbox"
    assert "rename or move" in found.todo
