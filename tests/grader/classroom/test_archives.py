"""Of several files the right one; nothing harmful is read from folders and archives."""

import os
import stat
import zipfile

import pytest
from handed_in import LESSON, NAME, archive, folder, found, half, only, packed, told, who

from grader.classroom import collect as collecting
from grader.classroom import files
from grader.classroom.collect import collect
from grader.classroom.intake import prepare
from grader.classroom.names import plain_stem, student_in
from grader.classroom.reading import read_bytes

# ---- which of several files ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "04_kv_cache (1).ipynb",
        "04_kv_cache(12).ipynb",
        "04_kv_cache-Copy1.ipynb",
        "04_kv_cache - Copy (2).ipynb",
        "04_kv_cache copy.ipynb",
        "Copy of 04_kv_cache.ipynb",
        "04_kv_cache-3.ipynb",
        "04_kv_cache.ipynb.txt",
        "04_kv_cache.ipynb.json",
        "04_KV_CACHE.IPYNB",
        "my lab.ipynb",
        "Untitled7 (1).ipynb",
    ],
)
def test_a_renamed_notebook_is_found(tmp_path, name):
    handed = only(folder(tmp_path, {f"ann/{name}": told("ann"), "ann/notes.txt": b"hello"}), "ann")
    assert who(handed) == "ann"
    assert handed.name == name


def test_the_right_name_wins_over_more_answers(tmp_path):
    where = folder(tmp_path, {f"ann/{NAME}": half("right"), "ann/other.ipynb": told("other")})
    handed = only(where, "ann")
    assert who(handed) == "right"
    assert handed.notes == (f"2 notebooks ({NAME}, other.ipynb); graded is ann/{NAME}",)


def test_a_notebook_of_the_lesson_wins_over_others(tmp_path):
    foreign = b'{"cells": [{"cell_type": "code", "source": "1"}], "nbformat": 4}'
    where = folder(
        tmp_path, {"ann/a.ipynb": foreign, "ann/lab.ipynb": half("ann"), "ann/z.ipynb": foreign}
    )
    assert who(only(where, "ann")) == "ann"


def test_of_two_the_one_with_more_answers_wins(tmp_path):
    where = folder(tmp_path, {"ann/a (1).ipynb": half("less"), "ann/a (2).ipynb": told("more")})
    handed = only(where, "ann")
    assert who(handed) == "more"
    assert handed.notes[0].endswith("graded is ann/a (2).ipynb")


def test_a_notebook_that_can_be_read_wins_over_the_right_name(tmp_path):
    where = folder(tmp_path, {f"ann/{NAME}": b"", "ann/backup.ipynb": told("ann")})
    assert who(only(where, "ann")) == "ann"


@pytest.mark.parametrize("name", ["04_kv_cache.pdf", "lab.html", "solution.py"])
def test_without_a_notebook_the_other_file_is_taken_so_that_it_is_named(tmp_path, name):
    where = folder(tmp_path, {f"ann/{name}": b"%PDF-1.7", "ann/picture.png": b"x"})
    handed = only(where, "ann")
    assert handed.source == f"ann/{name}"
    assert prepare(handed.data, LESSON, handed.name).reason == "not a notebook"


def test_what_systems_leave_behind_is_passed_over(tmp_path):
    contents = {
        f"ann/{NAME}": told("ann"),
        f"__MACOSX/ann/._{NAME}": b"x",
        f"ann/._{NAME}": b"x",
        "ann/.DS_Store": b"x",
        f"ann/.ipynb_checkpoints/{LESSON}-checkpoint.ipynb": told("old"),
        "ann/Thumbs.db": b"x",
    }
    for where in (archive(tmp_path, contents), folder(tmp_path / "f", contents)):
        assert only(where, "ann").notes == ()


def test_plain_names():
    assert plain_stem("04_kv_cache (1)-Copy2.ipynb") == LESSON
    assert plain_stem("Kopie von 04_kv_cache.ipynb") == LESSON
    assert plain_stem("(1).ipynb") == "(1)"
    assert student_in(f"{LESSON} (3).ipynb", LESSON) == f"{LESSON} (3)"
    assert student_in(f"ann-{LESSON}-Copy1.ipynb", LESSON) == "ann"


# ---- archives, harmless and harmful --------------------------------------------------------------


def test_archives_in_archives(tmp_path):
    inner = packed({f"home/ann/{NAME}": told("ann")})
    outer = packed({"my work.zip": inner, "readme.txt": b"see the zip"})
    where = archive(tmp_path, {"leeann_12345_67890_hw.zip": outer, f"bob/{NAME}": told("bob")})
    handed = found(where)
    assert {name: who(h) for name, h in handed.items()} == {"leeann": "ann", "bob": "bob"}
    assert handed["leeann"].source == f"leeann_12345_67890_hw.zip/my work.zip/home/ann/{NAME}"


def test_a_students_archive_in_a_folder(tmp_path):
    where = folder(
        tmp_path, {"ann.zip": packed({f"x/{NAME}": told("ann")}), f"bob/{NAME}": told("bob")}
    )
    assert {name: who(h) for name, h in found(where).items()} == {"ann": "ann", "bob": "bob"}


def member(path: str, mode: int = 0) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(path)
    info.external_attr = mode << 16
    return info


@pytest.mark.parametrize(
    ("path", "why"),
    [
        (f"ann/../../{NAME}", "its path leads outside the archive"),
        (f"/etc/ann/{NAME}", "its path leads outside the archive"),
        (f"C:\\ann\\{NAME}", "its path leads outside the archive"),
        (f"ann\\..\\{NAME}", "its path leads outside the archive"),
    ],
)
def test_a_path_that_leads_outside_is_not_read(tmp_path, path, why):
    info = zipfile.ZipInfo("x")
    info.filename = path  # as it would stand in a hostile archive
    where = archive(tmp_path, {info: told("evil"), f"ann/{NAME}": told("ann")})
    handed = found(where, "ann")["ann"]
    assert who(handed) == "ann"
    assert any(why in note for h in found(where, "ann").values() for note in h.notes)
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["all submissions.zip"]


def test_links_are_not_followed(tmp_path):
    (tmp_path / "secret.ipynb").write_bytes(told("secret"))
    where = folder(tmp_path / "all", {f"ann/{NAME}": told("ann")})
    (where / "bob").mkdir()
    os.symlink(tmp_path / "secret.ipynb", where / "bob" / NAME)
    os.symlink(tmp_path, where / "eve")
    handed = found(where)
    assert (handed["bob"].data, handed["eve"].data) == (None, None)
    assert handed["bob"].notes[0] == f"bob/{NAME} is not read: it is a link"
    in_zip = archive(tmp_path, {member(f"bob/{NAME}", stat.S_IFLNK | 0o777): b"../secret.ipynb"})
    assert only(in_zip, "bob").notes[0].endswith("it is a link")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no pipes in folders")
def test_a_pipe_does_not_hold_everybody_up(tmp_path):
    (tmp_path / "ann").mkdir()
    os.mkfifo(tmp_path / "ann" / NAME)
    assert "no plain file" in only(tmp_path, "ann").notes[0]


def test_an_archive_that_swells_is_not_opened(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "MAX_UNPACKED_BYTES", 5_000_000)
    bomb = packed({f"{i}.ipynb": b"\0" * 2_000_000 for i in range(4)})
    handed = found(folder(tmp_path, {"eve.zip": bomb, f"ann/{NAME}": told("ann")}))
    assert who(handed["ann"]) == "ann"
    assert "it would unpack to" in handed["eve"].notes[0]


def test_a_file_that_swells_is_read_only_so_far(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "MAX_BYTES", 1_000_000)
    where = archive(tmp_path, {f"eve/{NAME}": b" " * 300_000_000})
    assert len(only(where, "eve").data) == 1_000_001


def test_a_name_without_end_is_cut(tmp_path):
    handed = only(archive(tmp_path, {"ann/" + "-" * 60_000 + ".ipynb": told("ann")}), "ann")
    assert "its name is too long" in handed.notes[0]
    assert len(handed.notes[0]) < 400


def test_too_many_members_and_too_many_layers(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "MAX_MEMBERS", 10)
    many = packed({f"{i}.txt": b"x" for i in range(11)})
    deep = packed({NAME: told("deep")})
    for _ in range(4):
        deep = packed({"in.zip": deep})
    handed = found(folder(tmp_path, {"ann.zip": many, "bob.zip": deep}))
    assert "11 members; at most 10 are read" in handed["ann"].notes[0]
    assert "nested more than 3 deep" in handed["bob"].notes[0]


def test_damaged_and_locked_archives_are_said(tmp_path):
    whole = packed({NAME: told("ann")})
    crooked = bytearray(whole)
    crooked[200:260] = b"x" * 60
    locked = bytearray(whole)
    for start, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        locked[locked.index(start) + offset] |= 1
    where = folder(
        tmp_path,
        {"ann.zip": whole[:500], "bob.zip": bytes(crooked), "eve.zip": bytes(locked)},
    )
    handed = found(where)
    assert "it cannot be opened" in handed["ann"].notes[0]
    assert "damaged within the archive" in handed["bob"].notes[0]
    assert "locked with a password" in handed["eve"].notes[0]
    assert [h.data for h in handed.values()] == [None] * 3


def test_names_that_are_utf_8_without_saying_so(tmp_path):
    made = packed({f"Zoë/{NAME}": told("Zoë")})
    raw = bytearray(made)
    for start, offset in ((b"PK\x03\x04", 7), (b"PK\x01\x02", 9)):
        raw[raw.index(start) + offset] &= ~8  # the flag that says UTF-8
    path = tmp_path / "class.zip"
    path.write_bytes(bytes(raw))
    assert who(only(path, "Zoë")) == "Zoë"


@pytest.mark.skipif(os.name != "posix", reason="names are bytes on POSIX systems only")
def test_names_on_disk_that_are_no_utf_8(tmp_path):
    try:
        os.makedirs(os.fsencode(tmp_path) + b"/J\xfcrgen")
    except OSError:
        pytest.skip("this file system wants UTF-8")
    (tmp_path / os.fsdecode(b"J\xfcrgen") / NAME).write_bytes(told("x"))
    handed = only(tmp_path, "J\N{REPLACEMENT CHARACTER}rgen")
    assert handed.source.encode()


@pytest.mark.parametrize("content", [b"", b"no zip"])
def test_an_archive_that_cannot_be_opened_is_the_callers_to_know(tmp_path, content):
    path = tmp_path / "class.zip"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"class\.zip cannot be opened"):
        collect(path, LESSON)


def test_a_place_that_is_not_there_and_a_lesson_that_is_none(tmp_path):
    with pytest.raises(ValueError, match="there is no folder or file"):
        collect(tmp_path / "nowhere", LESSON)
    with pytest.raises(ValueError, match='no lesson "99"'):
        collect(tmp_path, "99")


def test_many_notebooks_of_one_student_are_not_all_looked_into(tmp_path, monkeypatch):
    monkeypatch.setattr(collecting, "MAX_CANDIDATES", 3)
    many = {f"ann/{i}.ipynb": half(str(i)) for i in range(5)}
    where = folder(tmp_path, {**many, f"ann/z/{NAME}": told("right")})
    looked_at = []
    monkeypatch.setattr(
        collecting, "read_bytes", lambda data: looked_at.append(1) or read_bytes(data)
    )
    handed = only(where, "ann")
    assert handed.notes[0].startswith("6 notebooks")
    assert (who(handed), len(looked_at)) == ("right", 3)
