"""Files that people care about: written whole or not at all, copied before they are replaced."""

from __future__ import annotations

import os
import tempfile
from datetime import datetime
from pathlib import Path


def write_whole(path: Path, text: str, mode: int | None = None) -> None:
    """Write beside the file, then put in its place: a reader sees the old or the new, whole.

    mode: the file's permissions; by default those that it has, 0644 if it is new.
    """
    target = Path(os.path.realpath(path))  # through a link, so that a linked file stays linked
    target.parent.mkdir(parents=True, exist_ok=True)
    if mode is None:
        mode = target.stat().st_mode & 0o777 if target.exists() else 0o644
    handle, temporary = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, mode)
        os.replace(temporary, target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def dated(path: Path, word: str = "", now: datetime | None = None) -> Path:
    """A name beside path with the date and time in it that no file has yet.

    04_kv_cache.ipynb -> 04_kv_cache.2026-11-29T10-15-00.ipynb; word goes before the date.
    """
    stamp = f"{(now or datetime.now()):%Y-%m-%dT%H-%M-%S}"
    label = f"{word}-{stamp}" if word else stamp
    for number in range(1, 10_000):
        suffix = "" if number == 1 else f"-{number}"
        candidate = path.with_name(f"{path.stem}.{label}{suffix}{path.suffix}")
        if not candidate.exists():
            return candidate
    raise OSError(f"too many dated copies of {path}")
