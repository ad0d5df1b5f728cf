"""The history file: each answer whole or not there, upgraded from older versions, never lost; and
the dates that FSRS makes of the answers."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
from fsrs import Rating
from interview_answers import NOW, answered
from interview_candidate import Candidate, Time, sit, whole_bank
from places import HELPERS

from labkit import store
from labkit.interview import history as histories
from labkit.interview.choose import due_first
from labkit.interview.history import MIGRATIONS, History, NewerHistory
from labkit.interview.misconceptions import Misconception
from labkit.interview.review import known_share, new_card, rate, reviewed

M53 = Misconception("M53", "query heads", "only KV heads are cached", "04_kv_cache")


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / "a folder" / "drill.sqlite3"


def _check(path: Path) -> str:
    with sqlite3.connect(path) as db:
        return db.execute("PRAGMA integrity_check").fetchone()[0]


# ---- keeping -----------------------------------------------------------------------------------


def test_an_answer_comes_back_as_it_was(path):
    history = History.open(path)
    session = history.start("drill", 7, 5.0)
    given = answered(met=(M53,), confidence=0.8, session=session, given="≈ 1,024 kB\nGrüße ½")
    history.save(given)
    history.close()
    again = History.open(path)
    assert again.answers() == [given]
    card = again.cards()["iv-ridge"]
    assert card.last_review == NOW
    assert card.due > NOW
    again.close()


def test_it_lies_in_the_learners_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("INFERLAB_HOME", str(tmp_path / "home"))
    history = History.open()
    assert history.path == store.home() / "drill.sqlite3"
    history.start("drill", 1, None)
    history.close()
    assert history.path.is_file()


def test_two_processes_write_at_once(path):
    first, second = History.open(path), History.open(path)
    for i in range(10):
        first.save(answered(f"a{i}"))
        second.save(answered(f"b{i}"))
    first.save(answered("shared"))
    second.save(answered("shared", 0.0, at=NOW + timedelta(minutes=1)))
    assert len(first.answers()) == 22
    assert set(second.cards()) == set(first.cards())
    assert first.cards()["shared"].last_review == NOW + timedelta(minutes=1)
    first.close()
    second.close()


KILLED = """
import sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from interview_answers import answered
from labkit.interview.history import History

history = History.open(Path({path!r}))
for i in range(100_000):
    history.save(answered(f"q{{i % 50}}", given=f"{{i}} " + "x" * 5000))
    print(i, flush=True)
"""


@pytest.mark.skipif(os.name == "nt", reason="kill -9 is POSIX's")
@pytest.mark.parametrize("n_before", [1, 7, 25])
def test_kill_9_in_mid_write_loses_nothing_that_was_acknowledged(path, n_before):
    script = KILLED.format(tests=str(HELPERS), path=str(path))
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, cwd=path.parents[1]
    ) as child:
        last = -1
        for line in child.stdout:
            last = int(line)
            if last >= n_before:
                break
        child.send_signal(signal.SIGKILL)
        rest = child.stdout.read().split()
    last = int(rest[-1]) if rest else last
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # not damaged, not moved aside
        history = History.open(path)
    kept = [int(answer.given.split()[0]) for answer in history.answers()]
    assert kept == list(range(len(kept)))
    assert len(kept) in (last + 1, last + 2)  # the one in flight is there, whole, or is not
    assert set(history.cards()) == {f"q{i % 50}" for i in kept}
    history.save(answered("after"))
    history.close()
    assert _check(path) == "ok"


def test_an_answer_that_fails_half_way_leaves_neither_answer_nor_card(path, monkeypatch):
    history = History.open(path)
    history.save(answered("first"))

    def broken(*_):
        raise RuntimeError("in the middle")

    monkeypatch.setattr(histories, "reviewed", broken)
    with pytest.raises(RuntimeError):
        history.save(answered("second"))
    history.close()
    assert [a.item for a in History.open(path).answers()] == ["first"]


# ---- older, newer, damaged, out of reach -------------------------------------------------------


def _version_1(path: Path) -> None:
    """A file as the first version wrote it."""
    path.parent.mkdir(parents=True)
    db = sqlite3.connect(path)
    for statement in MIGRATIONS[0]:
        db.execute(statement)
    db.execute("PRAGMA user_version = 1")
    db.execute("INSERT INTO sessions VALUES (1, '2026-02-01T10:00:00+00:00', 'drill', 3, 5.0)")
    row = (1, 1, "2026-02-01T10:01:00+00:00", "iv-ridge", "01_roofline", "screen", "numeric")
    sql = f"INSERT INTO answers VALUES ({', '.join('?' * 12)})"
    db.execute(sql, (*row, "295 FLOP/B", 1.0, 20.0, 4, "[]"))
    card = reviewed(new_card("iv-ridge", NOW), Rating.Easy, NOW)
    db.execute("INSERT INTO cards VALUES ('iv-ridge', ?)", (card.to_json(),))
    db.commit()
    db.close()


def test_a_file_of_the_first_version_is_upgraded_with_all_that_is_in_it(path):
    _version_1(path)
    history = History.open(path)
    (old,) = history.answers()
    assert (old.item, old.score, old.confidence) == ("iv-ridge", 1.0, None)
    assert history.cards()["iv-ridge"].last_review == NOW
    history.save(answered("iv-gemm", confidence=0.9))
    assert [a.confidence for a in history.answers()] == [None, 0.9]
    history.note_skipped(1, 4)
    assert history.n_skipped() == 4
    history.close()
    with sqlite3.connect(path) as db:
        assert db.execute("PRAGMA user_version").fetchone()[0] == len(MIGRATIONS)
    assert History.open(path).answers()[0] == old  # a second time changes nothing


def test_an_upgrade_that_fails_changes_nothing(path, monkeypatch):
    _version_1(path)
    monkeypatch.setattr(histories, "MIGRATIONS", (*MIGRATIONS, ("DROP TABLE cards", "NONSENSE")))
    with (
        pytest.warns(UserWarning, match="cannot be opened"),
        pytest.raises(sqlite3.OperationalError, match="NONSENSE"),  # in memory neither
    ):
        History.open(path)
    monkeypatch.undo()
    with sqlite3.connect(path) as db:
        assert db.execute("PRAGMA user_version").fetchone()[0] == 1
    assert set(History.open(path).cards()) == {"iv-ridge"}


def test_a_file_of_a_newer_version_is_left_alone(path):
    History.open(path).close()
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version = 99")
    before = path.read_bytes()
    with pytest.raises(NewerHistory, match=r"newer inferlab .version 99"):
        History.open(path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("damage", ["no database", "cut", "scribbled"])
def test_a_damaged_file_is_kept_aside_and_a_fresh_one_begun(path, damage):
    history = History.open(path)
    for i in range(200):
        history.save(answered(f"q{i}", given="x" * 400))
    history.close()
    whole = path.read_bytes()
    bad = {
        "no database": b"my notes, by mistake" * 50,
        "cut": whole[: len(whole) // 2],
        "scribbled": whole[:4096] + b"\xff" * 8192 + whole[12288:],
    }[damage]
    path.write_bytes(bad)
    with pytest.warns(UserWarning, match=r"drill\.sqlite3 was damaged .* kept as"):
        fresh = History.open(path)
    assert fresh.answers() == []
    fresh.save(answered())
    fresh.close()
    (aside,) = [p for p in path.parent.iterdir() if "damaged" in p.name]
    assert aside.read_bytes() == bad
    assert _check(path) == "ok"


def test_where_no_file_can_be_made_the_session_goes_on_without(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.warns(UserWarning, match="this session is not kept"):
        history = History.open(tmp_path / "file" / "drill.sqlite3")
    assert history.path is None
    history.save(answered())
    assert len(history.answers()) == 1
    assert not history.kept
    assert (tmp_path / "file").read_text() == "in the way"


def test_answers_given_while_another_program_holds_the_file_are_saved_later(path, monkeypatch):
    monkeypatch.setattr(histories, "LOCK_SECONDS", 0.05)
    history = History.open(path)
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")
    with pytest.warns(UserWarning, match=r"cannot be written \(database is locked\)"):
        history.save(answered("one"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # it is said once
        history.save(answered("two"))
    assert not history.kept
    holder.execute("COMMIT")
    history.save(answered("three"))
    assert history.kept
    assert [a.item for a in history.answers()] == ["one", "two", "three"]
    assert set(history.cards()) == {"one", "two", "three"}
    history.close()
    holder.close()


# ---- when it is due ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("score", "seconds", "rating"),
    [
        (1.0, 20, Rating.Easy),
        (1.0, 30, Rating.Easy),
        (1.0, 31, Rating.Good),
        (1.0, 90, Rating.Good),
        (1.0, 91, Rating.Hard),
        (1.0, None, Rating.Good),
        (5 / 6, None, Rating.Good),
        (4 / 6, None, Rating.Hard),
        (0.5, 10, Rating.Again),
        (0.5, None, Rating.Again),
        (0.0, 10, Rating.Again),
    ],
)
def test_ratings_follow_from_score_and_time(score, seconds, rating):
    assert rate(score, seconds, 60) == rating


def test_intervals_grow_for_what_is_known_and_shrink_for_what_is_not():
    """Always right: each interval longer. Then a failure: a fraction of the last one."""
    card, now, intervals = new_card("x", NOW), NOW, []
    for _ in range(6):
        card = reviewed(card, Rating.Good, now)
        intervals.append(card.due - now)
        now = card.due
    assert intervals == sorted(intervals)
    assert intervals[-1] > timedelta(days=30)
    failed = reviewed(card, Rating.Again, now)
    assert failed.due - now < intervals[-1] / 4
    assert reviewed(new_card("y", NOW), Rating.Again, NOW).due == NOW + timedelta(days=1)
    slow, fast = (reviewed(card, r, now).due for r in (Rating.Hard, Rating.Easy))
    assert slow < reviewed(card, Rating.Good, now).due < fast
    assert known_share(card, now) > known_share(card, now + timedelta(days=60))


def test_the_same_answers_give_the_same_dates():
    due = {reviewed(new_card("x", NOW), Rating.Easy, NOW).due for _ in range(5)}
    assert len(due) == 1
    assert new_card("x", NOW).card_id != new_card("y", NOW).card_id


def test_a_month_with_two_candidates_who_know_and_who_do_not():
    bank = whole_bank()
    items = [i for i in bank.items.values() if "M53" in i.met_by.values()][:5]
    ends = {}
    for name, candidate in {
        "knows": Candidate(),
        "slow": Candidate(pace=2.0),
        "errs": Candidate(frozenset({"M53"})),
    }.items():
        history, time = History.in_memory(), Time()
        for _ in range(6):
            sit(candidate, bank, history, items, time)
            time.date += timedelta(days=5)
        cards = history.cards()
        ends[name] = [cards[item.id].due - cards[item.id].last_review for item in items]
        first = due_first(items, cards, time.date, np.random.default_rng(0))
        if name == "errs":
            assert [i.id for i in first[:5]] == sorted(
                (i.id for i in items), key=lambda n: cards[n].due
            )
    assert min(ends["knows"]) > 2 * max(ends["slow"])
    assert min(ends["slow"]) > max(ends["errs"]) == timedelta(days=1)


# ---- threads -----------------------------------------------------------------------------------


def test_another_thread_may_write_and_read(path):
    """In JupyterLab a cell opens it, and a widget's click, in a thread of its own, writes."""
    history = History.open(path)
    with ThreadPoolExecutor(4) as threads, warnings.catch_warnings():
        warnings.simplefilter("error")
        list(threads.map(lambda i: history.save(answered(f"q{i}")), range(40)))
        assert threads.submit(lambda: len(history.answers())).result() == 40
    assert history.kept
    history.close()
    again = History.open(path)
    assert set(again.cards()) == {f"q{i}" for i in range(40)}
    again.close()
