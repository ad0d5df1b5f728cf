"""What was answered and when it is due again: a SQLite file in the learner's data folder.

Each answer is one transaction: it is in the file, whole, or it is not. Where the file cannot be
written, answers are kept in memory, a warning says so once, and the next write that works saves
them. Nothing leaves this computer.
"""

from __future__ import annotations

import json
import os
import sqlite3
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fsrs import Card, Rating

from labkit import store
from labkit.files import dated
from labkit.interview.misconceptions import Misconception
from labkit.interview.review import new_card, reviewed

LOCK_SECONDS = 5.0
# One entry a version of the file; PRAGMA user_version says how many have been applied. Never edit
# an entry that has been released: add one.
MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        "CREATE TABLE sessions (id INTEGER PRIMARY KEY, started TEXT NOT NULL, kind TEXT NOT NULL,"
        " seed INTEGER NOT NULL, minutes REAL)",
        "CREATE TABLE answers (id INTEGER PRIMARY KEY, session INTEGER NOT NULL REFERENCES"
        " sessions(id), at TEXT NOT NULL, item TEXT NOT NULL, topic TEXT NOT NULL, level TEXT NOT"
        " NULL, kind TEXT NOT NULL, given TEXT NOT NULL, score REAL NOT NULL, seconds REAL NOT"
        " NULL, rating INTEGER NOT NULL, met TEXT NOT NULL)",
        "CREATE TABLE cards (item TEXT PRIMARY KEY, card TEXT NOT NULL)",
    ),
    (
        "ALTER TABLE answers ADD COLUMN confidence REAL",
        "ALTER TABLE sessions ADD COLUMN skipped INTEGER NOT NULL DEFAULT 0",
        "CREATE INDEX answers_of_item ON answers (item, at)",
    ),
)


class NewerHistory(OSError):
    """The file was written by a newer inferlab, so this one leaves it alone."""


@dataclass(frozen=True)
class Answered:
    """One answer. score: 0 to 1. confidence: 0 to 1 as stated before the verdict, or None."""

    item: str
    topic: str
    level: str
    kind: str
    given: str
    score: float
    seconds: float
    rating: int
    at: datetime
    met: tuple[Misconception, ...] = ()
    confidence: float | None = None
    session: int = 0


@dataclass
class History:
    """The learner's answers and cards. path None: kept in memory, for this session only.

    Any thread may use it: JupyterLab has a widget's clicks run in another one than the cells.
    trouble: why it is not kept, "" where it is.
    """

    path: Path | None
    _db: sqlite3.Connection = field(repr=False)
    trouble: str = ""
    _lock: Any = field(default_factory=threading.RLock, repr=False)
    _waiting: list[Callable[[sqlite3.Connection], None]] = field(default_factory=list, repr=False)
    _warned: bool = field(default=False, repr=False)

    @classmethod
    def open(cls, path: Path | None = None) -> History:
        """The file at path (default: drill.sqlite3 in the learner's data folder), made if need be.

        A damaged file is moved aside and kept. Raises NewerHistory for one of a newer
        inferlab.
        """
        path = path or store.home() / "drill.sqlite3"
        try:
            return cls(path, _opened(path))
        except sqlite3.OperationalError as trouble:
            why = f"{path} cannot be opened ({trouble})"
        except sqlite3.DatabaseError as damage:
            aside = _move_aside(path)
            _warn(f"{path.name} was damaged ({damage}). It is kept as {aside}; starting fresh.")
            return cls(path, _opened(path))
        except NewerHistory:
            raise
        except OSError as trouble:
            why = f"{path} cannot be made ({trouble.strerror})"
        _warn(f"{why}; this session is not kept")
        return cls.in_memory(why)

    @classmethod
    def in_memory(cls, why: str = "it was in memory only") -> History:
        """A history that ends with this session."""
        return cls(None, _migrated(_connected(":memory:")), why)

    @property
    def kept(self) -> bool:
        """True if all that was answered is in the file."""
        return self.path is not None and not self._waiting

    def close(self) -> None:
        self._db.close()

    # ---- writing

    def start(self, kind: str, seed: int, minutes: float | None) -> int:
        """Note that a session begins. -> its number"""
        row = (_text(datetime.now(UTC)), kind, seed, minutes)
        sql = "INSERT INTO sessions (started, kind, seed, minutes) VALUES (?, ?, ?, ?)"
        started: list[int] = []

        def write(db: sqlite3.Connection) -> None:
            started.append(db.execute(sql, row).lastrowid or 0)

        self._write(write)
        return started[-1] if started else 0

    def save(self, answer: Answered) -> None:
        """Keep one answer, and move its card: both or neither."""
        columns = (
            *(answer.session, _text(answer.at), answer.item, answer.topic, answer.level),
            *(answer.kind, answer.given, answer.score, answer.seconds, answer.rating),
            *(json.dumps([_as_list(m) for m in answer.met]), answer.confidence),
        )

        def write(db: sqlite3.Connection) -> None:
            db.execute(
                "INSERT INTO answers (session, at, item, topic, level, kind, given, score, seconds,"
                f" rating, met, confidence) VALUES ({', '.join('?' * 12)})",
                columns,
            )
            row = db.execute("SELECT card FROM cards WHERE item = ?", (answer.item,)).fetchone()
            card = Card.from_json(row[0]) if row else new_card(answer.item, answer.at)
            moved = reviewed(card, Rating(answer.rating), answer.at)
            db.execute("REPLACE INTO cards VALUES (?, ?)", (answer.item, moved.to_json()))

        self._write(write)

    def note_skipped(self, session: int, n: int) -> None:
        """Note how many questions a session skipped."""

        def write(db: sqlite3.Connection) -> None:
            db.execute("UPDATE sessions SET skipped = ? WHERE id = ?", (n, session))

        self._write(write)

    def _write(self, change: Callable[[sqlite3.Connection], None]) -> None:
        with self._lock:
            self._waiting.append(change)
            try:
                with _transaction(self._db):
                    for each in self._waiting:
                        each(self._db)
                self._waiting.clear()
            except sqlite3.Error as trouble:
                self.trouble = f"{self.path} cannot be written ({trouble})"
                if not self._warned:
                    _warn(f"{self.trouble}; trying again at the next answer")
                self._warned = True

    # ---- reading

    def answers(self) -> list[Answered]:
        """All of them, the oldest first."""
        sql = (
            "SELECT item, topic, level, kind, given, score, seconds, rating, at, met, confidence,"
            " session FROM answers ORDER BY at, id"
        )
        return [_answered(row) for row in self._rows(sql)]

    def cards(self) -> dict[str, Card]:
        """item -> when it is due, and how well it is known."""
        rows = self._rows("SELECT item, card FROM cards")
        return {name: Card.from_json(text) for name, text in rows}

    def n_skipped(self) -> int:
        return int(self._rows("SELECT total(skipped) FROM sessions")[0][0])

    def _rows(self, sql: str) -> list[tuple[Any, ...]]:
        with self._lock:
            return self._db.execute(sql).fetchall()


def _connected(path: Path | str) -> sqlite3.Connection:
    """History's lock, not SQLite, keeps threads apart."""
    return sqlite3.connect(
        path, timeout=LOCK_SECONDS, isolation_level=None, check_same_thread=False
    )


def _opened(path: Path) -> sqlite3.Connection:
    path.parent.mkdir(parents=True, exist_ok=True)
    db = _connected(path)
    try:
        db.execute("PRAGMA journal_mode = WAL")  # stays a rollback journal where WAL cannot be
        db.execute("PRAGMA synchronous = FULL")
        found = db.execute("PRAGMA quick_check").fetchone()[0]
        if found != "ok":
            raise sqlite3.DatabaseError(found)
        return _migrated(db)
    except BaseException:
        db.close()
        raise


def _migrated(db: sqlite3.Connection) -> sqlite3.Connection:
    """Bring the tables to this version, all of it or none."""
    if _version(db) > len(MIGRATIONS):
        raise NewerHistory(
            f"drill.sqlite3 was written by a newer inferlab (version {_version(db)}, known "
            f"{len(MIGRATIONS)}): update inferlab, or set INFERLAB_HOME to another folder"
        )
    if _version(db) < len(MIGRATIONS):
        with _transaction(db):
            for statements in MIGRATIONS[_version(db) :]:  # read again: now nobody else writes
                for statement in statements:
                    db.execute(statement)
            db.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")
    return db


def _version(db: sqlite3.Connection) -> int:
    return int(db.execute("PRAGMA user_version").fetchone()[0])


@contextmanager
def _transaction(db: sqlite3.Connection) -> Iterator[None]:
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise


def _move_aside(path: Path) -> Path:
    """Rename a damaged file, and what SQLite keeps beside it."""
    aside = dated(path, "damaged")
    os.replace(path, aside)
    for end in ("-wal", "-shm"):
        beside = path.with_name(path.name + end)
        if beside.exists():
            os.replace(beside, aside.with_name(aside.name + end))
    return aside


def _answered(row: tuple[Any, ...]) -> Answered:
    item, topic, level, kind, given, score, seconds, rating, at, met, confidence, session = row
    known = tuple(Misconception(*entry) for entry in json.loads(met))
    when = datetime.fromisoformat(at)
    marks = (score, seconds, rating, when, known, confidence, session)
    return Answered(item, topic, level, kind, given, *marks)


def _as_list(met: Misconception) -> list[str]:
    return [met.id, met.name, met.cure, met.lesson]


def _text(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat()


def _warn(message: str) -> None:
    warnings.warn(message, UserWarning, stacklevel=3)
