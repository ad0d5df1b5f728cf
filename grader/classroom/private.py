"""Grades and submissions are for whoever grades: nobody else on this computer may read them.

The folders and the gradebook are private from their first moment, whatever the umask, and closed
again where they are found open. A course that is shared with a group stays open to the group.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nbgrader.coursedir import CourseDirectory

STEPS = ("submitted", "autograded", "feedback")
ALSO = ("grading", "downloaded")  # what `inferlab grade` keeps; archives before zip_collect
OTHERS, ALL_BUT_ME = 0o007, 0o077
FILE = 0o600  # permissions of what `inferlab` writes


@contextmanager
def kept(course: CourseDirectory, say: Callable[[str], None], *steps: str) -> Iterator[None]:
    """Around whatever writes a course's files: they are private before and after.

    steps: folders that are about to be written, made now if they are not there.
    """
    for step in steps:
        mode = 0o770 if course.groupshared else 0o700
        _folder(course, step).mkdir(mode=mode, parents=True, exist_ok=True)
    found = close(course)
    if found:
        names = ", ".join(str(path) for path in found)
        say(f"made private, because others on this computer could read it: {names}")
    try:
        yield
    finally:
        close(course)


def close(course: CourseDirectory) -> list[Path]:
    """Take from others what they may do with a course's files; which of them stood open."""
    taken = OTHERS if course.groupshared else ALL_BUT_ME
    root, database = Path(course.root), gradebook_path(course.db_url)
    folders = [_folder(course, step).resolve() for step in (*STEPS, *ALSO)]
    files = list(root.glob("grades*.csv"))
    if database is not None:
        files += database.parent.glob(f"{database.name}*")  # and its -journal, -wal, -shm
    found = [path for path in (*folders, *files) if _take(path, taken)]
    for folder in folders:
        for where, names, inner in os.walk(folder):
            for name in (*names, *inner):
                _take(Path(where, name), taken)
    return found


def touch(path: Path) -> Path:
    """A file that only its owner may read: made so if it is not there, empty."""
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT, FILE))
    _take(path, ALL_BUT_ME)
    return path


def gradebook_path(db_url: str) -> Path | None:
    """The file of a gradebook, if it is one: SQLite gives its journal the same permissions."""
    from sqlalchemy.engine import make_url

    url = make_url(db_url)
    is_file = url.get_backend_name() == "sqlite" and url.database not in (None, "", ":memory:")
    return Path(str(url.database)) if is_file else None


def _folder(course: CourseDirectory, step: str) -> Path:
    return Path(course.root) / (getattr(course, f"{step}_directory") if step in STEPS else step)


def _take(path: Path, taken: int) -> bool:
    """Whether a file or folder of ours was open to those; it is no longer. Links are left alone."""
    try:
        mode = path.lstat().st_mode
        if stat.S_ISLNK(mode) or not mode & taken:
            return False
        path.chmod(stat.S_IMODE(mode) & ~taken)
    except (FileNotFoundError, PermissionError):  # just gone, or a colleague's in a shared course
        return False
    return True
