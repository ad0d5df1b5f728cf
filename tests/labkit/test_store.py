"""The learner's data folder loses nothing and stops nobody."""

from __future__ import annotations

import json
import multiprocessing
import os
import warnings
from pathlib import Path

import pytest
from filelock import FileLock

from labkit import store
from labkit.files import write_whole


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("INFERLAB_HOME", str(tmp_path / "my data"))
    monkeypatch.delenv("NBGRADER_EXECUTION", raising=False)
    monkeypatch.setattr(store, "_pending", {})
    monkeypatch.setattr(store, "_warned", set())
    return tmp_path / "my data"


def test_home_is_the_users_data_folder_unless_named(folder, monkeypatch):
    assert store.home() == folder
    monkeypatch.delenv("INFERLAB_HOME")
    assert store.home().is_absolute()
    assert store.home().name == "inferlab"


def test_nothing_is_known_and_nothing_written_at_first(folder):
    assert store.attempts("kv") == 0
    assert store.status("kv")["passed_at"] is None
    assert store.all_progress() == {}
    assert store.prediction("p") is None
    assert not folder.exists()


def test_attempts_count_tries_and_keep_the_first_pass():
    store.record_attempt("kv", "not run", "t0")
    assert store.attempts("kv") == 0
    store.record_attempt("kv", "failed", "t1")
    store.record_attempt("kv", "passed", "t2")
    store.record_attempt("kv", "failed", "t3")
    known = store.status("kv")
    assert (known["attempts"], known["outcome"]) == (3, "failed")
    assert (known["first"], known["last"], known["passed_at"]) == ("t1", "t3", "t2")


def test_an_unknown_outcome_is_refused():
    with pytest.raises(ValueError, match=r"skipped.*passed, failed, not run"):
        store.record_attempt("kv", "skipped")


def test_hints_step_up_and_stay_at_the_last():
    assert [store.record_hint("kv") for _ in range(5)] == [0, 1, 2, 2, 2]
    assert store.status("kv")["hints"] == 3


def test_the_first_solution_shown_is_kept():
    store.record_solution_shown("kv", "t1")
    store.record_solution_shown("kv", "t2")
    assert store.status("kv")["solution_shown"] == "t1"


def test_the_first_prediction_stays_lodged():
    first = store.record_prediction("p", "4x", "t1")
    assert first == store.Lodged("4x", "t1")
    store.record_prediction("p", "8x", "t2")
    store.record_prediction("p", "4x", "t3")
    assert store.prediction("p") == store.Lodged("4x", "t1", (("8x", "t2"), ("4x", "t3")))


def test_files_are_readable_json_with_a_schema(folder):
    store.record_attempt("kv", "passed", "t1")
    store.record_prediction("p", "≈ 4x", "t1")
    for name in ("progress.json", "predictions.json"):
        text = (folder / name).read_text(encoding="utf-8")
        assert json.loads(text)["schema"] == store.SCHEMA
        assert text.count("\n") > 5
    assert "≈ 4x" in (folder / "predictions.json").read_text(encoding="utf-8")


def test_forgetting_keeps_a_dated_copy_and_the_rest(folder):
    store.record_attempt("a", "passed", "t1")
    store.record_attempt("b", "failed", "t1")
    before = (folder / "progress.json").read_bytes()
    copies = [store.forget(["a", "unknown"]), store.forget([])]
    assert copies[0].read_bytes() == before
    assert len({*copies}) == 2
    assert set(store.all_progress()) == {"b"}


def test_forgetting_nothing_recorded_makes_no_copy():
    assert store.forget(["a"]) is None


@pytest.mark.parametrize(
    "damage",
    [
        b'{"schema": 1, "exercises": {"kv": {"att',
        b"\xff\xfe\x00",
        b"[]",
        b'{"exercises": {}}',
        b'{"schema": 1, "exercises": {"kv": {"attempts": "three"}}}',
        b"",
        b"[" * 100_000,
    ],
)
def test_a_damaged_file_is_moved_aside_and_said(folder, damage):
    folder.mkdir()
    (folder / "progress.json").write_bytes(damage)
    with pytest.warns(UserWarning, match=r"progress\.json was damaged .* kept as"):
        store.record_attempt("kv", "passed")
    assert store.attempts("kv") == 1
    (aside,) = folder.glob("progress.damaged-*.json")
    assert aside.read_bytes() == damage


def test_a_damaged_file_does_not_break_reading(folder):
    folder.mkdir()
    (folder / "predictions.json").write_text('{"schema": 1, "predictions": {"p": {"value": 3}}}')
    with pytest.warns(UserWarning, match="was damaged"):
        assert store.prediction("p") is None
    assert not (folder / "predictions.json").exists()


def test_a_newer_file_is_left_alone(folder):
    folder.mkdir()
    newer = json.dumps({"schema": store.SCHEMA + 1, "exercises": {"kv": {"stars": 5}}})
    (folder / "progress.json").write_text(newer)
    with pytest.warns(UserWarning, match="newer inferlab"):
        store.record_attempt("kv", "passed")
    assert store.attempts("kv") == 1
    assert (folder / "progress.json").read_text() == newer


def test_an_unwritable_folder_warns_once_and_goes_on(folder):
    folder.write_text("a file where the folder should be")
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        store.record_attempt("kv", "failed")
        store.record_attempt("kv", "passed")
        steps = [store.record_hint("kv") for _ in range(3)]
        store.record_prediction("p", "4x", "t1")
    assert steps == [0, 1, 2]
    assert store.attempts("kv") == 2
    assert store.prediction("p") == store.Lodged("4x", "t1")
    assert len(seen) == 1
    assert "cannot be written" in str(seen[0].message)
    assert "INFERLAB_HOME" in str(seen[0].message)


def test_what_waited_is_saved_when_writing_works_again(folder, monkeypatch):
    def refuse(source, target):
        raise OSError(30, "Read-only file system")

    store.record_attempt("kv", "failed", "t1")
    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", refuse)
        with pytest.warns(UserWarning, match="Read-only"):
            store.record_attempt("kv", "passed", "t2")
    assert list(folder.glob(".progress*")) == []
    store.record_attempt("kv", "failed", "t3")
    monkeypatch.setattr(store, "_pending", {})
    assert store.attempts("kv") == 3
    assert store.status("kv")["passed_at"] == "t2"


def test_a_held_lock_is_waited_for_shortly_then_said(folder, monkeypatch):
    monkeypatch.setattr(store, "LOCK_SECONDS", 0.05)
    folder.mkdir()
    with (
        FileLock(folder / "progress.json.lock", is_singleton=False),
        pytest.warns(UserWarning, match="another program has held its lock"),
    ):
        store.record_attempt("kv", "passed")
    assert store.attempts("kv") == 1


def test_a_failed_write_leaves_the_old_file_whole(tmp_path, monkeypatch):
    path = tmp_path / "progress.json"
    write_whole(path, "old")

    def refuse(handle):
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(OSError, match="disk full"):
        write_whole(path, "new")
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["progress.json"]


def test_a_linked_file_stays_a_link(tmp_path):
    (tmp_path / "real.json").write_text("old")
    (tmp_path / "link.json").symlink_to("real.json")
    write_whole(tmp_path / "link.json", "new")
    assert (tmp_path / "link.json").is_symlink()
    assert (tmp_path / "real.json").read_text() == "new"


def _write_many(who: int, n: int) -> None:
    for step in range(n):
        store.record_attempt("shared", "failed")
        store.record_attempt(f"own {who} {step}", "passed")
        store.record_prediction("p", f"{who}-{step}", f"{who}-{step}")


def test_two_processes_lose_nothing(folder):
    n = 15
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_write_many, args=(who, n)) for who in (1, 2)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
    assert [writer.exitcode for writer in writers] == [0, 0]
    assert store.attempts("shared") == 2 * n
    assert len(store.all_progress()) == 2 * n + 1
    lodged = store.prediction("p")
    assert len(lodged.revisions) + 1 == 2 * n


def test_autograding_leaves_the_graders_own_folder_alone(folder, monkeypatch):
    store.record_attempt("kv", "passed", "t1")
    before = (folder / "progress.json").read_bytes()
    monkeypatch.setenv("NBGRADER_EXECUTION", "autograde")
    assert store.attempts("kv") == 0
    store.record_attempt("kv", "failed")
    assert store.attempts("kv") == 1
    assert (folder / "progress.json").read_bytes() == before


def test_lab_mode_is_the_instructors_switch(monkeypatch):
    monkeypatch.delenv("INFERLAB_LAB_MODE", raising=False)
    assert not store.lab_mode()
    monkeypatch.setenv("INFERLAB_LAB_MODE", "1")
    assert store.lab_mode()
    monkeypatch.setenv("INFERLAB_LAB_MODE", "0")
    assert not store.lab_mode()
