"""Files in a folder or a zip archive, archives in archives too, none of them trusted.

Nothing is unpacked to disk. What could do harm (a link, a path that leads outside, an archive that
swells) is listed with the reason and not read; what operating systems leave behind is passed over.
"""

from __future__ import annotations

import os
import re
import stat
import unicodedata
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from io import BytesIO
from itertools import islice
from pathlib import Path
from typing import BinaryIO

from grader.classroom.reading import MAX_BYTES

MAX_FILES = 100_000  # in all
MAX_MEMBERS = 20_000  # of one archive
MAX_ARCHIVE_BYTES = 200_000_000  # of an archive within an archive, as it lies there
MAX_UNPACKED_BYTES = 1_000_000_000  # of one student's archive, by its own table of contents
MAX_NAME = 255  # characters of one part of a path, as on any disk
MAX_NESTING = 3  # archives in archives

_JUNK = re.compile(
    r"__MACOSX$|Thumbs\.db$|desktop\.ini$|\.", re.IGNORECASE
)  # and all that is hidden
_DRIVE = re.compile(r"[A-Za-z]:")
_BROKEN = (
    zipfile.BadZipFile,
    zipfile.LargeZipFile,
    zlib.error,
    RuntimeError,  # a password is needed
    NotImplementedError,  # a compression that Python does not know
    EOFError,
    OSError,
    ValueError,
)


class Refused(ValueError):
    """A file that is not read; the text says why."""


@dataclass(frozen=True)
class Entry:
    """A file, or an empty folder: its path in parts, how to read it, or why it is not read."""

    parts: tuple[str, ...]
    read: Callable[[], bytes]
    refused: str = ""
    is_folder: bool = False

    @property
    def path(self) -> str:
        return "/".join(self.parts)


def walk(where: Path, stack: ExitStack) -> list[Entry]:
    """Every file below a folder or in an archive, in order of its path.

    stack: keeps the archives open for as long as entries are read.
    Raises ValueError if there is nothing at where, or more than MAX_FILES files.
    """
    if where.is_dir():
        found = _folder(where, stack)
    elif where.is_file() and where.suffix.lower() == ".zip":
        found = _whole_archive(where, stack)
    elif where.is_file():
        found = iter([Entry((_plain(where.name),), lambda: _read(where))])
    else:
        raise ValueError(f"there is no folder or file {where}")
    entries = list(islice(found, MAX_FILES + 1))
    if len(entries) > MAX_FILES:
        raise ValueError(f"{where} holds more than {MAX_FILES:,} files: name a smaller folder")
    full = {e.parts[:n] for e in entries for n in range(1, len(e.parts))}
    kept = [e for e in entries if not (e.is_folder and e.parts in full)]
    return sorted(kept, key=lambda entry: entry.parts)


def _whole_archive(where: Path, stack: ExitStack) -> Iterator[Entry]:
    try:
        yield from _archive(where.open("rb"), (), 1, stack)
    except _BROKEN as trouble:
        raise ValueError(f"{where} cannot be opened: {trouble}") from trouble


def refusal(parts: tuple[str, ...], why: str) -> Entry:
    """An entry that says why it is not read."""

    def read() -> bytes:
        raise Refused(why)

    return Entry(parts, read, refused=why)


# ---- folders -----------------------------------------------------------------------------------


def _folder(where: Path, stack: ExitStack) -> Iterator[Entry]:
    for folder, names, files in os.walk(where):
        here = Path(folder)
        above = tuple(_plain(part) for part in here.relative_to(where).parts)
        names[:] = sorted(name for name in names if not _JUNK.match(name))
        for name in [name for name in names if (here / name).is_symlink()]:
            yield refusal((*above, _plain(name)), "it is a link")
        kept = sorted(name for name in files if not _JUNK.match(name))
        if above and not kept and not names:
            yield Entry(above, bytes, is_folder=True)
        for name in kept:
            yield from _file(here / name, (*above, _plain(name)), stack)


def _file(path: Path, parts: tuple[str, ...], stack: ExitStack) -> Iterator[Entry]:
    mode = path.lstat().st_mode
    if stat.S_ISLNK(mode):
        yield refusal(parts, "it is a link")
    elif not stat.S_ISREG(mode):
        yield refusal(parts, "it is no plain file")
    elif path.suffix.lower() == ".zip":
        yield from _inner(parts, 1, stack, lambda: path.open("rb"), path.stat().st_size)
    else:
        yield Entry(parts, lambda: _read(path))


def _read(path: Path) -> bytes:
    """The file, and one byte more than is allowed of a larger one: reading it says so."""
    try:
        with path.open("rb") as file:
            return file.read(MAX_BYTES + 1)
    except OSError as trouble:
        raise Refused(f"it cannot be read ({trouble.strerror})") from None


# ---- archives ----------------------------------------------------------------------------------


def _inner(
    parts: tuple[str, ...],
    depth: int,
    stack: ExitStack,
    opened: Callable[[], BinaryIO],
    n_bytes: int,
) -> Iterator[Entry]:
    """The members of one student's archive; one refusal if it is not fit to be opened."""
    if depth > MAX_NESTING:
        yield refusal(parts, f"archives are nested more than {MAX_NESTING} deep")
    elif n_bytes > MAX_ARCHIVE_BYTES:
        yield refusal(parts, f"it is larger than {MAX_ARCHIVE_BYTES / 1e6:.0f} MB")
    else:
        try:
            yield from _archive(opened(), parts, depth, stack)
        except _BROKEN as trouble:
            yield refusal(parts, f"it cannot be opened ({trouble or type(trouble).__name__})")


def _archive(
    file: BinaryIO, above: tuple[str, ...], depth: int, stack: ExitStack
) -> Iterator[Entry]:
    archive = stack.enter_context(zipfile.ZipFile(stack.enter_context(file)))
    members = archive.infolist()
    if len(members) > MAX_MEMBERS:
        raise ValueError(f"it has {len(members):,} members; at most {MAX_MEMBERS:,} are read")
    unpacked = sum(member.file_size for member in members)
    if above and unpacked > MAX_UNPACKED_BYTES:
        raise ValueError(
            f"it would unpack to {unpacked / 1e9:,.1f} GB; "
            f"at most {MAX_UNPACKED_BYTES / 1e9:.0f} GB is read"
        )
    for member in members:
        yield from _member(archive, member, above, depth, stack)


def _member(
    archive: zipfile.ZipFile,
    member: zipfile.ZipInfo,
    above: tuple[str, ...],
    depth: int,
    stack: ExitStack,
) -> Iterator[Entry]:
    name = _member_name(member)
    said = name.replace("\\", "/").split("/")
    inner = tuple(p for p in said if p not in ("", ".", "..") and not _DRIVE.fullmatch(p))
    parts = (*above, *inner)
    if not inner or any(_JUNK.match(part) for part in inner):
        return
    shown = tuple(part[:MAX_NAME] for part in parts)
    if name.startswith(("/", "\\")) or _DRIVE.match(name) or ".." in said:
        yield refusal(shown, f"its path leads outside the archive ({name:.80})")
    elif stat.S_ISLNK(member.external_attr >> 16):
        yield refusal(shown, "it is a link")
    elif max(map(len, inner)) > MAX_NAME:
        yield refusal(shown, "its name is too long")
    elif member.is_dir():
        yield Entry(parts, bytes, is_folder=True)
    elif member.flag_bits & 1:
        yield refusal(parts, "it is locked with a password")
    elif inner[-1].lower().endswith(".zip"):
        size = max(member.file_size, member.compress_size)
        opened = _reader(archive, member, MAX_ARCHIVE_BYTES)
        yield from _inner(parts, depth + 1, stack, lambda: BytesIO(opened()), size)
    else:
        yield Entry(parts, _reader(archive, member, MAX_BYTES + 1))


def _reader(
    archive: zipfile.ZipFile, member: zipfile.ZipInfo, most_bytes: int
) -> Callable[[], bytes]:
    """Reads a member as it is unpacked, and stops at most_bytes, whatever its header says."""

    def read() -> bytes:
        try:
            with archive.open(member) as file:
                return file.read(most_bytes)
        except _BROKEN as trouble:
            words = str(trouble) or type(trouble).__name__
            raise Refused(f"it is damaged within the archive ({words:.100})") from None

    return read


# ---- names -------------------------------------------------------------------------------------


def _member_name(member: zipfile.ZipInfo) -> str:
    """The member's name; many programs write UTF-8 without saying so."""
    name = member.filename
    if not member.flag_bits & 0x800:
        with suppress(UnicodeError):
            name = name.encode("cp437").decode("utf-8")
    return unicodedata.normalize("NFC", name)


def _plain(name: str) -> str:
    """A name from the disk that can be printed, and is spelt as in a roster."""
    return unicodedata.normalize("NFC", os.fsencode(name).decode("utf-8", errors="replace"))
