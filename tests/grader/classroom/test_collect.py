"""Folders and archives of every learning platform: one entry a student."""

import unicodedata
from datetime import UTC, datetime

import pytest
from handed_in import (
    LESSON,
    NAME,
    archive,
    folder,
    found,
    half,
    only,
    subfolder,
    told,
    who,
)

from grader.classroom.collect import collect
from grader.classroom.names import Roster

# ---- nbgrader ------------------------------------------------------------------------------------


def test_nbgraders_submitted_folder_with_its_times(tmp_path):
    where = folder(
        tmp_path,
        {
            f"ann/{LESSON}/{NAME}": told("ann"),
            f"ann/{LESSON}/timestamp.txt": b"2026-11-01 10:00:00.5 UTC\n",
            f"bob/{LESSON}/{NAME}": told("bob"),
            f"bob/{LESSON}/timestamp.txt": b"yesterday, I think",
            "bob/05_gqa/05_gqa.ipynb": b"{}",
            "eve/05_gqa/05_gqa.ipynb": b"{}",
        },
    )
    handed = found(where)
    assert {name: who(h) for name, h in handed.items()} == {"ann": "ann", "bob": "bob"}
    assert handed["ann"].when == datetime(2026, 11, 1, 10, 0, 0, 500_000, tzinfo=UTC)
    assert handed["bob"].when is None
    assert handed["ann"].source == f"ann/{LESSON}/{NAME}"
    assert [h.notes for h in handed.values()] == [(), ()]


def test_nbgraders_exchange_where_the_latest_attempt_wins(tmp_path):
    where = folder(
        tmp_path,
        {
            f"ann+{LESSON}+2026-11-01 10:00:00.000001 UTC+aB3/{NAME}": told("early"),
            f"ann+{LESSON}+2026-11-02 09:00:00.000001 UTC+cD4/{NAME}": told("late"),
            f"ann+05_gqa+2026-11-03 09:00:00.000001 UTC+cD4/{NAME}": told("another lesson"),
        },
    )
    ann = only(where, "ann")
    assert who(ann) == "late"
    assert ann.notes == ("2 attempts; the latest is graded",)
    assert ann.when == datetime(2026, 11, 2, 9, 0, 0, 1, tzinfo=UTC)


def test_an_empty_folder_of_a_student_is_reported(tmp_path):
    (tmp_path / "bob" / LESSON).mkdir(parents=True)
    folder(tmp_path, {f"ann/{LESSON}/{NAME}": told("ann")})
    bob = found(tmp_path)["bob"]
    assert (bob.data, bob.notes) == (None, ("no notebook was handed in",))


# ---- folders and files of no particular platform -------------------------------------------------


@pytest.mark.parametrize(
    "paths",
    [
        ("ann/{}", "bob/{}"),
        ("ann/work/{}", "bob/{}"),
        ("class of 26/ann/{}", "class of 26/bob/{}"),
        ("04_kv_cache/ann/{}", "04_kv_cache/bob/{}"),
        ("ann_{}", "bob_{}"),
        ("ann - {}", "bob - {}"),
        ("04_kv_cache/ann.ipynb", "04_kv_cache/bob.ipynb"),
        ("ann.ipynb", "bob.ipynb"),
        ("04_kv_cache_ann.ipynb", "04_kv_cache_bob (1).ipynb"),
        ("export/ann_{}", "export/bob_{}"),
        ("all submissions/ann.ipynb", "all submissions/bob.ipynb"),
    ],
)
@pytest.mark.parametrize("made", [subfolder, archive])
def test_a_folder_or_a_file_for_each_student(tmp_path, made, paths):
    contents = {p.format(NAME): told(n) for p, n in zip(paths, ("ann", "bob"), strict=True)}
    handed = found(made(tmp_path, contents))
    assert {name: who(h) for name, h in handed.items()} == {"ann": "ann", "bob": "bob"}


@pytest.mark.parametrize("path", [NAME, f"{LESSON}/{NAME}"])
def test_the_one_notebook_in_somebodys_folder(tmp_path, path):
    assert who(only(folder(tmp_path / "ann", {path: told("ann")}), "ann")) == "ann"


def test_one_file(tmp_path):
    path = tmp_path / f"ann_{NAME}"
    path.write_bytes(told("ann"))
    assert who(only(path, "ann")) == "ann"


def test_a_file_that_names_a_student_of_the_roster(tmp_path):
    where = folder(tmp_path, {"lab4-s1234-final.ipynb": told("x"), "Lab4_s99.ipynb": told("y")})
    assert {n: who(h) for n, h in found(where, "s1234", "s99").items()} == {
        "s1234": "x",
        "s99": "y",
    }


# ---- learning platforms --------------------------------------------------------------------------


def test_canvas(tmp_path):
    where = archive(
        tmp_path,
        {
            f"leeann_12345_67890_{NAME}": told("ann"),
            f"omalleybob_LATE_12346_67891_{LESSON}-1.ipynb": told("bob"),
            f"doejane_111_901_{NAME}": told("one Jane"),
            f"doejane_222_902_{NAME}": told("another Jane"),
            f"anon_x7Qy2_70001_{NAME}": told("nobody"),
        },
    )
    handed = found(where)
    assert {name: who(h) for name, h in handed.items()} == {
        "leeann": "ann",
        "omalleybob": "bob",
        "doejane_111": "one Jane",
        "doejane_222": "another Jane",
        "anon_x7Qy2": "nobody",
    }
    assert [name for name, h in handed.items() if h.late] == ["omalleybob"]
    assert {h.name for h in handed.values()} == {NAME}


def test_of_files_that_canvas_numbered_the_latest_wins(tmp_path):
    where = archive(
        tmp_path,
        {
            f"leeann_12345_800_{LESSON}.ipynb": told("first"),
            f"leeann_12345_905_{LESSON}-2.ipynb": half("third"),
            f"leeann_12345_850_{LESSON}-1.ipynb": told("second"),
            "leeann_12345_999_scratch.ipynb": told("a trial"),
        },
    )
    ann = only(where, "leeann")
    assert who(ann) == "third"
    assert "4 notebooks" in ann.notes[0]
    assert ann.notes[0].endswith(f"graded is leeann_12345_905_{LESSON}-2.ipynb")


@pytest.mark.parametrize(
    "pattern",
    [
        "{}_1234567_assignsubmission_file_/" + NAME,
        "{}_1234567_assignsubmission_file/" + NAME,
        "{}_1234567_assignsubmission_file_" + NAME,
        "Lab 4/{}_1234567_assignsubmission_file_/deep/er/" + NAME,
    ],
)
def test_moodle(tmp_path, pattern):
    above = "Lab 4/" if pattern.startswith("Lab 4/") else ""  # everything of a class, or nothing
    text = f"{above}Ann Lee_1234567_assignsubmission_onlinetext_/onlinetext.html"
    extra = {text: b"<p>Hello</p>"}
    contents = {pattern.format(n): told(n) for n in ("Ann Lee", "Zoë Ó Briain")}
    handed = found(archive(tmp_path, contents | extra))
    assert {name: who(h) for name, h in handed.items()} == {
        n: n for n in ("Ann Lee", "Zoë Ó Briain")
    }


def test_blackboard_where_the_latest_attempt_wins(tmp_path):
    start = "Lab_4 KV cache_alee_attempt_2026-11"
    where = archive(
        tmp_path,
        {
            f"{start}-01-10-00-00_{NAME}": told("early"),
            f"{start}-01-10-00-00.txt": b"Name: Ann Lee (alee)",
            f"{start}-03-10-00-00_{NAME}": told("late"),
            f"{start}-03-10-00-00.txt": b"Name: Ann Lee (alee)",
            f"{start}-02-10-00-00_{NAME}": told("between"),
        },
    )
    ann = only(where, "alee")
    assert who(ann) == "late"
    assert ann.notes == ("3 attempts; the latest is graded",)
    assert ann.when == datetime(2026, 11, 3, 10, 0, 0).astimezone(UTC)
    assert ann.name == NAME


def test_a_blackboard_attempt_without_a_file_is_missing(tmp_path):
    where = archive(tmp_path, {"Lab_alee_attempt_2026-11-01-10-00-00.txt": b"Name: Ann Lee"})
    assert only(where, "alee").data is None


@pytest.mark.parametrize("pattern", ["{} - {}", "{}/{}"])
def test_brightspace(tmp_path, pattern):
    stem = "123456-789 - Ann Lee - Nov 1, 2026 1015 PM"
    ann = only(archive(tmp_path, {pattern.format(stem, NAME): told("ann")}), "Ann Lee")
    assert who(ann) == "ann"
    assert ann.when == datetime(2026, 11, 1, 22, 15).astimezone(UTC)


def test_sakai(tmp_path):
    where = archive(
        tmp_path, {f"Lab 4/Lee, Ann(alee)/Submission attachment(s)/{NAME}": told("ann")}
    )
    assert who(only(where, "alee")) == "ann"


# ---- the roster ----------------------------------------------------------------------------------


def test_who_handed_in_nothing_is_in_the_list_in_the_rosters_order(tmp_path):
    where = folder(tmp_path, {f"bob/{NAME}": told("bob"), f"mallory/{NAME}": told("mallory")})
    handed = collect(where, "04", ["zoe", "bob", "ann"])
    assert [(h.student, h.data is None) for h in handed] == [
        ("zoe", True),
        ("bob", False),
        ("ann", True),
        ("mallory", False),
    ]
    assert handed[3].notes == ("not on the roster",)


@pytest.mark.parametrize(
    ("roster", "path"),
    [
        ("Ann Lee", f"leeann_12345_67890_{NAME}"),
        ("Lee, Ann", f"Ann Lee_1234567_assignsubmission_file_/{NAME}"),
        ("12345", f"leeann_12345_67890_{NAME}"),
        ("ANN.LEE@uni.edu", f"ann_lee/{NAME}"),
        ("Zoé Ó Briain", f"obriainzoe_1_67890_{NAME}"),
        ("ann", f"hand-ins/2026/ANN/{NAME}"),
        ("Ángel", unicodedata.normalize("NFD", "Ángel") + f"/{NAME}"),
    ],
)
def test_students_are_found_by_any_spelling(tmp_path, roster, path):
    handed = only(
        archive(
            tmp_path,
            {
                path: told("x"),
            },
        ),
        roster,
        roster,
    )
    assert who(handed) == "x"
    assert handed.notes == ()


def test_two_people_of_one_name_are_never_taken_for_one(tmp_path):
    where = archive(
        tmp_path,
        {f"doejane_111_901_{NAME}": told("one"), f"doejane_222_902_{NAME}": told("another")},
    )
    handed = found(where, "Jane Doe", "222")
    assert {n: h.data and who(h) for n, h in handed.items()} == {
        "Jane Doe": None,
        "222": "another",
        "doejane_111": "one",
    }


def test_the_number_of_a_moodle_participant_is_no_students_number(tmp_path):
    where = archive(tmp_path, {f"Ann Lee_1234567_assignsubmission_file_/{NAME}": told("ann")})
    assert found(where, "1234567")["1234567"].data is None


def test_a_list_of_grades_beside_the_folders_is_nobodys(tmp_path):
    where = folder(tmp_path, {f"ann/{NAME}": told("ann"), "grades.csv": b"ann,3", "bob.pdf": b"x"})
    assert list(found(where)) == ["ann"]
    assert list(found(where, "ann", "bob")) == ["ann", "bob"]


def test_a_name_that_two_on_the_roster_share_is_nobodys():
    roster = Roster(["Ann Lee", "Lee Ann", "bob"])
    assert (roster.find("leeann"), roster.find("Bob"), roster.find("Ann Lee")) == (
        "",
        "bob",
        "Ann Lee",
    )
