"""`inferlab course DIR`: a folder for a class, of which nothing is ever overwritten."""

from pathlib import Path

import pytest
from places import ROOT
from traitlets.config import PyFileConfigLoader

from grader import cli
from grader.classroom.settings import FILE, configure

LESSON = "04_kv_cache"


def files(folder: Path) -> dict[str, bytes]:
    found = (p for p in folder.rglob("*") if p.is_file())
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in found}


def test_the_folder_holds_settings_releases_and_solutions(tmp_path: Path) -> None:
    assert cli.main(["course", str(tmp_path / "my class"), "--lessons", "04", "gqa"]) == 0
    found = files(tmp_path / "my class")
    lessons = [f"{p}/{n}/{n}.ipynb" for p in ("solutions", "notebooks") for n in (LESSON, "05_gqa")]
    assert sorted(found) == sorted(["nbgrader_config.py", *lessons])
    for name, data in found.items():
        assert data == (ROOT / name).read_bytes(), name


def test_a_second_run_keeps_what_was_edited_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    words = ["course", str(tmp_path), "--lessons", "04"]
    cli.main(words)
    (tmp_path / "nbgrader_config.py").write_text("# mine")
    (tmp_path / "notebooks" / LESSON / f"{LESSON}.ipynb").unlink()
    capsys.readouterr()
    assert cli.main(words) == 0
    said = capsys.readouterr().out
    assert (tmp_path / "nbgrader_config.py").read_text() == "# mine"
    assert (
        f"left as it is, and other than in this release: {tmp_path / 'nbgrader_config.py'}" in said
    )
    assert "1 files written" in said
    assert (tmp_path / "notebooks" / LESSON / f"{LESSON}.ipynb").is_file()


def test_an_unknown_lesson_lays_out_nothing(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    assert cli.main(["course", str(tmp_path / "c"), "--lessons", "zebra"]) == 2
    assert 'no lesson "zebra"' in capsys.readouterr().err
    assert not (tmp_path / "c").exists()


def test_the_repositorys_own_settings_are_the_same_file() -> None:
    assert (ROOT / "nbgrader_config.py").read_text() == FILE
    config = PyFileConfigLoader("nbgrader_config.py", path=str(ROOT)).load_config()
    other = type(config)()
    configure(other, ROOT)
    assert config == other
    assert config.CourseDirectory.source_directory == "solutions"
    assert config.Execute.skip_cells_with_tag == "nbgrader-never-skip"


def test_a_folder_without_settings_is_no_course(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("inferlab.data.ROOT", tmp_path)
    assert cli.main(["export"]) == 2
    assert "inferlab course DIR" in capsys.readouterr().err
