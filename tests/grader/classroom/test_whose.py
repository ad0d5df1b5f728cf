"""Whose a file is: what lies in one student's folder is that student's, whatever it is called."""

import os
from io import BytesIO
from pathlib import Path

import pytest
from handed_in import (
    LESSON,
    NAME,
    archive,
    bytes_of,
    folder,
    found,
    half,
    packed,
    release,
    subfolder,
    told,
    who,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from grader.classroom import files
from grader.classroom.collect import collect
from grader.classroom.course import Course
from grader.classroom.names import Roster, file_name, folder_name
from labkit.shown import acts, shown

# ---- within one student's folder -----------------------------------------------------------------

AS_BOBS = {  # how platforms call what is bob's
    "moodle": f"bob_1234567_assignsubmission_file_/{NAME}",
    "moodle, a file": f"bob_1234567_assignsubmission_file_{NAME}",
    "canvas": f"bob_12345_67890_{NAME}",
    "canvas, an archive": "bob_12345_67890_hw.zip",
    "blackboard": f"Lab_bob_attempt_2099-11-01-10-00-00_{NAME}",
    "brightspace": f"123-456 - bob - Nov 1, 2099 1015 PM - {NAME}",
    "sakai": f"Smith, Bob(bob)/Submission attachment(s)/{NAME}",
    "nbgrader's exchange": f"bob+{LESSON}+2099-11-01 10:00:00.000001 UTC+aB3/{NAME}",
    "nbgrader": f"bob/{LESSON}/{NAME}",
    "his name": f"bob/{NAME}",
    "his file": f"bob_{NAME}",
    "deeper": f"x/y/bob/{LESSON}/{NAME}",
    "a path upwards": f"z/bob/{LESSON}/{NAME}",
}
HERS = {
    "a folder": "mallory/{}",
    "a deep folder": "mallory/home/{}",
    "nbgrader's": f"mallory/{LESSON}/{{}}",
    "a platform's": "mallory_7654321_assignsubmission_file_/{}",
}


BOBS, WRONG = b'{"cells": ["right"]}', b'{"cells": ["wrong"]}'
APART = {"bob": BOBS, "mallory": WRONG}


def contents(inner: str) -> dict[str, bytes]:
    return {inner: packed({NAME: WRONG}) if inner.endswith(".zip") else WRONG}


def data_of(where: Path, *roster: str) -> dict[str, bytes | None]:
    return {name: handed.data for name, handed in found(where, *roster).items()}


@pytest.mark.parametrize("within", HERS.values(), ids=HERS)
@pytest.mark.parametrize("inner", AS_BOBS.values(), ids=AS_BOBS)
def test_what_is_called_as_bobs_in_mallorys_folder_is_mallorys(tmp_path, inner, within):
    platform = "assignsubmission" in within
    bobs = f"bob_1234567_assignsubmission_file_/{NAME}" if platform else f"bob/{LESSON}/{NAME}"
    hers = {within.format(path): data for path, data in contents(inner).items()}
    where = folder(tmp_path, {bobs: BOBS, **hers})
    for roster in ((), ("bob",), ("bob", "mallory")):
        assert data_of(where, *roster) == APART


@pytest.mark.parametrize("inner", AS_BOBS.values(), ids=AS_BOBS)
def test_in_her_archive_it_is_hers_too(tmp_path, inner):
    where = archive(
        tmp_path, {"mallory.zip": packed(contents(inner)), f"bob/{LESSON}/{NAME}": BOBS}
    )
    assert data_of(where) == APART


def test_alone_in_the_archive_it_is_hers_where_she_is_known(tmp_path):
    inner = f"mallory/bob_1234567_assignsubmission_file_/{NAME}"
    where = archive(tmp_path, {inner: WRONG})
    (handed,) = collect(where, LESSON, known=["mallory", "bob"])
    assert (handed.student, handed.data) == ("mallory", WRONG)


parts = st.sampled_from(
    [
        *("bob", "Bob", "bob.zip", "work", "x", LESSON, "05_gqa", "bob_1_assignsubmission_file_"),
        *("Smith, Bob(bob)", f"bob+{LESSON}+2099-11-01 10:00:00 UTC", "submitted", "solutions"),
    ]
)
names = st.sampled_from(
    [NAME, f"bob_{NAME}", f"bob_11_222_{NAME}", "bob.ipynb", f"bob_1_assignsubmission_file_{NAME}"]
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.differing_executors])
@given(st.lists(parts, max_size=4), names)
def test_no_path_within_her_folder_reaches_bobs_work(tmp_path_factory, inner, name):
    where = tmp_path_factory.mktemp("class")
    hers = "/".join(["mallory", *inner, name])
    handed = data_of(folder(where, {hers: WRONG, f"bob/{LESSON}/{NAME}": BOBS}), "bob")
    assert handed.pop("bob") == BOBS
    assert {*handed.values()} <= {WRONG, None}


def test_sections_of_a_class_are_looked_into(tmp_path):
    here = "_1234567_assignsubmission_file_"
    sections = {f"group {i}/{n}{here}/{NAME}": d for i, (n, d) in enumerate(APART.items())}
    assert data_of(folder(tmp_path, sections)) == APART


@pytest.mark.parametrize(
    ("name", "student"),
    [
        ("ann@uni.edu", "ann@uni.edu"),
        ("ann@UNI.edu", "ann@uni.edu"),
        ("ann", "ann@uni.edu"),
        ("ann@elsewhere.org", ""),
        ("ann@uni.edu@elsewhere.org", ""),
        ("bob@anywhere.org", "bob"),
    ],
)
def test_an_address_of_another_domain_is_another_person(name, student):
    assert Roster(["ann@uni.edu", "bob"]).find(name) == student


# ---- a whole work folder, a whole checkout -------------------------------------------------------

UNTOUCHED = bytes_of(release())
LAYOUTS = {
    "work": {f"work/{LESSON}/{NAME}": "own", "work/05_gqa/05_gqa.ipynb": "other"},
    "work and its memory": {
        f"work/{LESSON}/{NAME}": "own",
        f"work/.inferlab/base/{LESSON}.ipynb": "release",
    },
    "a checkout": {
        f"work/{LESSON}/{NAME}": "own",
        f"notebooks/{LESSON}/{NAME}": "release",
        f"solutions/{LESSON}/{NAME}": "solution",
        "src/inferlab/kv_cache.py": "other",
        "README.md": "other",
    },
    "a checkout in its folder": {
        f"inferlab/work/{LESSON}/{NAME}": "own",
        f"inferlab/notebooks/{LESSON}/{NAME}": "release",
        f"inferlab/solutions/{LESSON}/{NAME}": "solution",
        "inferlab/grader/cli.py": "other",
    },
    "a checkout that was written in": {
        f"inferlab/notebooks/{LESSON}/{NAME}": "own",
        f"inferlab/solutions/{LESSON}/{NAME}": "solution",
        "inferlab/src/x.py": "other",
    },
}


def laid_out(layout: dict[str, str], student: str) -> dict[str, bytes]:
    kinds = {"own": half(student), "release": UNTOUCHED, "solution": told("solution")}
    return {path: kinds.get(kind, b"{}") for path, kind in layout.items()}


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_who_hands_in_everything_is_graded_on_their_own(tmp_path, layout):
    class_of = {f"{n}/{p}": d for n in ("ann", "bob") for p, d in laid_out(layout, n).items()}
    handed = found(subfolder(tmp_path, class_of), "ann", "bob")
    assert {n: who(h) for n, h in handed.items()} == {"ann": "ann", "bob": "bob"}
    zipped = {f"{n}.zip": packed(laid_out(layout, n)) for n in ("ann", "bob")}
    handed = found(folder(tmp_path / "zips", zipped))
    assert {n: who(h) for n, h in handed.items()} == {"ann": "ann", "bob": "bob"}


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_one_alone_is_called_as_the_folder_or_archive_is(tmp_path, layout):
    path = tmp_path / "ann.zip"
    path.write_bytes(packed(laid_out(layout, "ann")))
    for where in (path, folder(tmp_path / "f" / "ann", laid_out(layout, "ann"))):
        handed = found(where)
        assert {n: who(h) for n, h in handed.items()} == {"ann": "ann"}


def test_of_an_untouched_notebook_and_a_solved_copy_the_solved_one_is_taken(tmp_path):
    where = folder(tmp_path, {f"ann/{NAME}": UNTOUCHED, f"ann/{LESSON}-Copy1.ipynb": half("ann")})
    handed = found(where)["ann"]
    assert who(handed) == "ann"
    assert handed.notes == (f"2 notebooks ({LESSON}-Copy1.ipynb, {NAME}); graded is "
                            f"ann/{LESSON}-Copy1.ipynb",)  # fmt: skip


# ---- limits, each student's ----------------------------------------------------------------------


def test_who_hands_in_too_many_files_is_told_and_the_others_are_graded(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "MAX_FILES", 10)
    many = {f"eve/{i:02}.txt": b"x" for i in range(30)}
    packs = {f"mia/{i}.zip": packed({f"{j}.txt": b"x" for j in range(4)}) for i in range(4)}
    one = {"zoe.zip": packed({f"{i}.txt": b"x" for i in range(30)})}
    all_of_them = {**many, **packs, **one, f"ann/{NAME}": b"1", f"bob/{NAME}": b"2"}
    for n, made in enumerate((folder, subfolder, archive)):
        (tmp_path / str(n)).mkdir()
        handed = found(made(tmp_path / str(n), all_of_them))
        for student in ("eve", "mia", "zoe"):
            assert any("more than 10 files" in note for note in handed[student].notes)
        assert (handed["ann"].data, handed["bob"].data) == (b"1", b"2")


def test_many_and_large_archives_are_one_students_to_answer_for(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "MAX_ARCHIVES", 5)
    monkeypatch.setattr(files, "MAX_ARCHIVE_BYTES", 1_000_000)
    several = packed({f"{i}.zip": packed({"a.txt": b"x"}) for i in range(60)})
    large = packed({f"{i}.zip": packed({"a.bin": os.urandom(400_000)}) for i in range(4)})
    where = archive(
        tmp_path, {"eve.zip": several, "mia.zip": large, "ann.zip": packed({NAME: b"1"})}
    )
    handed = found(where)
    assert any("more than 5 archives" in note for note in handed["eve"].notes)
    assert any("larger than 1 MB, alone or with" in note for note in handed["mia"].notes)
    assert handed["ann"].data == b"1"


def test_of_inner_archives_one_at_a_time_is_unpacked(tmp_path, monkeypatch):
    kept: list[BytesIO] = []
    made = files.BytesIO
    monkeypatch.setattr(files, "BytesIO", lambda data: kept.append(made(data)) or kept[-1])
    inner = {f"{i}.zip": packed({f"{i}.ipynb": bytes(100_000)}) for i in range(6)}
    with files.ExitStack() as stack:
        entries = files.walk(archive(tmp_path, {"eve.zip": packed(inner), "b.ipynb": b""}), stack)
        assert sum(not one.closed for one in kept) <= 1
        assert [len(e.read()) for e in entries if e.parts[0] == "eve.zip"] == [100_000] * 6
        assert sum(not one.closed for one in kept) <= 1
    assert all(one.closed for one in kept)


# ---- names ---------------------------------------------------------------------------------------

BAD = ["..", ".", "", ".hidden", "a/b", "../x", "a\\b", "a\0b", "a\nb", "\x1b[2J", "x" * 251]
BAD += ["😀" * 63, " ann", "ann\u202e", "\ud800"]


@pytest.mark.parametrize("name", BAD)
def test_a_name_that_is_no_folders_becomes_one(name):
    safe, why = folder_name(name)
    assert safe != name
    assert why.endswith(f"graded as {safe}")
    assert not acts(why)
    assert folder_name(safe) == (safe, "")


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=300), st.text(max_size=300))
def test_every_name_has_a_folder_and_a_file_of_its_own(tmp_path_factory, one, other):
    root = Path("/course")
    for name in (folder_name(one)[0], file_name(one)):
        assert os.path.normpath(root / name) == str(root / name)
        assert (root / name).parent == root
        assert len(os.fsencode(name)) <= 128
        assert not acts(name)
    if one != other:
        assert folder_name(one)[0] != folder_name(other)[0]
        assert file_name(one).casefold() != file_name(other).casefold()


PLATFORM_FORMS = [
    f"Lab_.._attempt_2026-11-01-10-00-00_{NAME}",
    f"123-456 - .. - Nov 1, 2026 1015 PM/{NAME}",
    f"Lee, Ann(..)/Submission attachment(s)/{NAME}",
    f".._1234567_assignsubmission_file_/{NAME}",
]


@pytest.mark.parametrize("path", PLATFORM_FORMS)
def test_a_platforms_form_with_dots_for_a_name_stays_inside(tmp_path, path):
    (tmp_path / "nbgrader_config.py").write_text("")
    course = Course(tmp_path)
    where = archive(tmp_path, {path: b"1", f"a_{path.replace('..', 'ann')}": b"2"})
    for handed in collect(where, LESSON):
        for step in ("submitted", "autograded"):
            folder = course.folder(step, LESSON, handed.student)
            assert folder == tmp_path / step / handed.student / LESSON
        assert course.record_path(LESSON, handed.student).parent == tmp_path / "grading" / LESSON


@pytest.mark.parametrize("name", ["..", "../..", "a/../../..", "/etc", "", "."])
def test_the_course_hands_out_no_folder_outside_of_itself(tmp_path, name):
    (tmp_path / "nbgrader_config.py").write_text("")
    with pytest.raises(ValueError, match="outside"):
        Course(tmp_path).folder("submitted", LESSON, name)


def test_a_roster_with_a_name_that_is_no_folders_is_refused(tmp_path):
    folder(tmp_path, {f"ann/{NAME}": b"1"})
    with pytest.raises(ValueError, match="cannot be the name of a folder"):
        collect(tmp_path, LESSON, ["ann", ".."])


@settings(max_examples=200, deadline=None)
@given(st.text())
def test_what_is_shown_only_appears(text):
    assert not acts(shown(text))
    assert not acts(shown(text, lines=True).replace("\n", "").replace("\t", ""))
    if not acts(text):
        assert shown(text) == text
