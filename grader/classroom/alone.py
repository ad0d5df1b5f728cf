"""One grader at a time in a course; and what a disk or a gradebook refuses, in one sentence."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from grader.classroom.private import touch
from labkit.shown import shown

WAITS = "another `inferlab grade` is at work in this course; waiting until it is done"


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Nobody else is in such a block for this folder; who comes second says so and waits."""
    try:
        import fcntl
    except ImportError:  # a system without such locks
        yield
        return
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with touch(folder / ".lock").open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(WAITS, file=sys.stderr, flush=True)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def in_one_sentence(where: str) -> Iterator[None]:
    """Raises ValueError for what the database at `where` refuses: what it is and what to do."""
    try:
        yield
    except Exception as trouble:
        if not _is_of_the_database(trouble):
            raise
        words = shown(getattr(trouble, "orig", None) or trouble)[:200]
        raise ValueError(f"{where}: {words}. {_cure(words)}. {AGAIN}") from None


AGAIN = "Then run the same command again: it grades and enters what is missing"


def _is_of_the_database(trouble: Exception) -> bool:
    return isinstance(trouble, sqlite3.Error) or type(trouble).__module__.startswith("sqlalchemy")


def _cure(words: str) -> str:
    if "locked" in words:
        return "Another program is writing to the gradebook, such as formgrader: let it finish"
    if "full" in words or "disk I/O" in words:
        return "Make room on the disk"
    if "malformed" in words or "not a database" in words:
        return (
            "The gradebook is damaged: put a copy of it back, or move it away, and a new one is "
            "filled from the records of grading (points that people gave are only in the copy)"
        )
    return "The gradebook cannot be used as it is"
