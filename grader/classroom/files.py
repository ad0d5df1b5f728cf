"""Files in a folder or a zip archive, archives in archives too, none of them trusted.

Nothing is unpacked to disk. What could do harm (a link, a path that leads outside, an archive that
swells) is listed with the reason and not read; what operating systems leave behind is passed over.
Limits are each student's, so that one who hands in too much stops nobody else.
"""

from __future__ import annotations

import os
import re
import stat
import unicodedata
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from itertools import groupby
from pathlib import Path
from typing import BinaryIO

from grader.classroom.reading import MAX_BYTES

MAX_FILES = 20_000  # of one student
MAX_MEMBERS = 20_000  # of one student's archive
MAX_ARCHIVES = 50  # of one student, those in archives too
MAX_ARCHIVE_BYTES = 200_000_000  # of all archives within one student's archives, as they lie there
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

    What lies in one folder or archive of the outermost level that has several is one student's, and
    no more of it is listed than one student may hand in; a refusal says so.
    stack: keeps the archives open for as long as entries are read.
    Raises ValueError if there is nothing at where, or it is an archive that cannot be opened.
    """
    drawer = Drawer()
    stack.callback(drawer.close)
    if where.is_dir():
        found = _folder(where, drawer)
    elif where.is_file() and where.suffix.lower() == ".zip":
        found = _whole_archive(where, drawer, stack)
    elif where.is_file():
        found = iter([Entry((_plain(where.name),), lambda: _read(where))])
    else:
        raise ValueError(f"there is no folder or file {where}")
    entries = list(found)
    full = {e.parts[:n] for e in entries for n in range(1, len(e.parts))}
    kept = [e for e in entries if not (e.is_folder and e.parts in full)]
    return sorted(kept, key=lambda entry: entry.parts)


@dataclass
class Share:
    """What one student may still hand in."""

    files: int
    archives: int
    archive_bytes: int


def _own_share() -> Share:
    return Share(MAX_FILES, MAX_ARCHIVES, MAX_ARCHIVE_BYTES)


def _bounded(above: tuple[str, ...], entries: Iterator[Entry], share: Share) -> Iterator[Entry]:
    """The entries, up to the student's share of files; then one refusal in place of the rest."""
    for entry in entries:
        if share.files == 0:
            yield refusal(above, f"it holds more than {MAX_FILES:,} files; the rest is not read")
            return
        share.files -= 1
        yield entry


class Drawer:
    """Holds one student's archive open at a time; the others are opened again when they are read.

    An archive within an archive is unpacked for that, so nothing of it stays in memory.
    """

    def __init__(self) -> None:
        self._opened: Callable[[], BinaryIO] | None = None
        self._archive: zipfile.ZipFile | None = None
        self._file: BinaryIO | None = None

    def archive(self, opened: Callable[[], BinaryIO]) -> zipfile.ZipFile:
        """opened: gives the archive's bytes; the same one for the same archive."""
        if self._archive is None or self._opened is not opened:
            file = opened()  # which may need another archive in here
            self.close()
            self._file, self._archive, self._opened = file, zipfile.ZipFile(file), opened
        return self._archive

    def close(self) -> None:
        for thing in (self._archive, self._file):
            if thing is not None:
                thing.close()
        self._archive = self._file = self._opened = None


def _whole_archive(where: Path, drawer: Drawer, stack: ExitStack) -> Iterator[Entry]:
    try:
        archive = stack.enter_context(zipfile.ZipFile(stack.enter_context(where.open("rb"))))
        members = archive.infolist()
        names = [_inner_parts(_member_name(member)) for member in members]
        depth = _depth_of_several(names)
        by_student = sorted(range(len(members)), key=lambda i: names[i][: depth + 1])
        for above, indices in groupby(by_student, key=lambda i: names[i][: depth + 1]):
            share = _own_share()
            own = (members[i] for i in indices)
            found = _members(lambda: archive, own, (), 1, drawer, share)
            yield from _bounded(above, found, share)
    except _BROKEN as trouble:
        raise ValueError(f"{where} cannot be opened: {trouble}") from trouble


def _depth_of_several(names: Iterable[tuple[str, ...]]) -> int:
    """How many outer folders hold everything, each alone in the one before."""
    kept = [name for name in names if name and not _is_junk(name)]
    depth = 0
    while len({name[: depth + 1] for name in kept}) == 1 and any(len(n) > depth + 1 for n in kept):
        depth += 1
    return depth


def refusal(parts: tuple[str, ...], why: str) -> Entry:
    """An entry that says why it is not read."""

    def read() -> bytes:
        raise Refused(why)

    return Entry(parts, read, refused=why)


# ---- folders -----------------------------------------------------------------------------------


def _folder(where: Path, drawer: Drawer) -> Iterator[Entry]:
    inner, children = where, _children(where)
    while len(children) == 1 and children[0].is_dir() and not children[0].is_symlink():
        inner = children[0]
        children = _children(inner)
    if inner != where and not children:
        yield Entry(_parts(inner, where), bytes, is_folder=True)
    for child in children:
        share = _own_share()
        parts = _parts(child, where)
        found = _below(child, where, drawer, share)
        yield from _bounded(parts, found, share)


def _children(folder: Path) -> list[Path]:
    return sorted(child for child in folder.iterdir() if not _JUNK.match(child.name))


def _parts(path: Path, where: Path) -> tuple[str, ...]:
    return tuple(_plain(part) for part in path.relative_to(where).parts)


def _below(top: Path, where: Path, drawer: Drawer, share: Share) -> Iterator[Entry]:
    """A file, or everything below a folder."""
    if top.is_symlink() or not top.is_dir():
        yield from _file(top, _parts(top, where), drawer, share)
        return
    for folder, names, files in os.walk(top):
        here = Path(folder)
        above = _parts(here, where)
        names[:] = sorted(name for name in names if not _JUNK.match(name))
        for name in [name for name in names if (here / name).is_symlink()]:
            yield refusal((*above, _plain(name)), "it is a link")
        kept = sorted(name for name in files if not _JUNK.match(name))
        if not kept and not names:
            yield Entry(above, bytes, is_folder=True)
        for name in kept:
            yield from _file(here / name, (*above, _plain(name)), drawer, share)


def _file(path: Path, parts: tuple[str, ...], drawer: Drawer, share: Share) -> Iterator[Entry]:
    mode = path.lstat().st_mode
    if stat.S_ISLNK(mode):
        yield refusal(parts, "it is a link")
    elif not stat.S_ISREG(mode):
        yield refusal(parts, "it is no plain file")
    elif path.suffix.lower() == ".zip":
        size = path.stat().st_size
        yield from _inner(parts, 1, drawer, lambda: path.open("rb"), size, share)
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
    drawer: Drawer,
    opened: Callable[[], BinaryIO],
    n_bytes: int,
    share: Share,
) -> Iterator[Entry]:
    """The members of one student's archive; one refusal if it is not fit to be opened."""
    if depth > MAX_NESTING:
        yield refusal(parts, f"archives are nested more than {MAX_NESTING} deep")
    elif share.archives == 0:
        yield refusal(parts, f"there are more than {MAX_ARCHIVES} archives; this one is not read")
    elif n_bytes > share.archive_bytes:
        most = f"{MAX_ARCHIVE_BYTES / 1e6:.0f} MB"
        yield refusal(parts, f"it is larger than {most}, alone or with the archives before it")
    else:
        share.archives -= 1
        share.archive_bytes -= n_bytes
        try:
            members = _fit(drawer.archive(opened).infolist())
        except _BROKEN as trouble:
            yield refusal(parts, f"it cannot be opened ({trouble or type(trouble).__name__})")
            return
        archive = partial(drawer.archive, opened)
        yield from _members(archive, members, parts, depth, drawer, share)


def _fit(members: list[zipfile.ZipInfo]) -> list[zipfile.ZipInfo]:
    """Raises ValueError for what would swell."""
    if len(members) > MAX_MEMBERS:
        raise ValueError(f"it has {len(members):,} members; at most {MAX_MEMBERS:,} are read")
    unpacked = sum(member.file_size for member in members)
    if unpacked > MAX_UNPACKED_BYTES:
        raise ValueError(
            f"it would unpack to {unpacked / 1e9:,.1f} GB; "
            f"at most {MAX_UNPACKED_BYTES / 1e9:.0f} GB is read"
        )
    return members


def _members(
    archive: Callable[[], zipfile.ZipFile],
    members: Iterable[zipfile.ZipInfo],
    above: tuple[str, ...],
    depth: int,
    drawer: Drawer,
    share: Share,
) -> Iterator[Entry]:
    for member in members:
        name = _member_name(member)
        inner = _inner_parts(name)
        parts = (*above, *inner)
        if not inner or _is_junk(inner):
            continue
        if why := _unfit(member, name, inner):
            yield refusal(tuple(part[:MAX_NAME] for part in parts), why)
        elif member.is_dir():
            yield Entry(parts, bytes, is_folder=True)
        elif inner[-1].lower().endswith(".zip"):
            size = max(member.file_size, member.compress_size)
            opened = _unpacked(_reader(archive, member, MAX_ARCHIVE_BYTES))
            yield from _inner(parts, depth + 1, drawer, opened, size, share)
        else:
            yield Entry(parts, _reader(archive, member, MAX_BYTES + 1))


def _unfit(member: zipfile.ZipInfo, name: str, inner: tuple[str, ...]) -> str:
    """Why a member is not read, "" if it is."""
    said = name.replace("\\", "/").split("/")
    if name.startswith(("/", "\\")) or _DRIVE.match(name) or ".." in said:
        return f"its path leads outside the archive ({name:.80})"
    if stat.S_ISLNK(member.external_attr >> 16):
        return "it is a link"
    if max(map(len, inner)) > MAX_NAME:
        return "its name is too long"
    return "it is locked with a password" if member.flag_bits & 1 else ""


def _unpacked(read: Callable[[], bytes]) -> Callable[[], BinaryIO]:
    return lambda: BytesIO(read())


def _reader(
    archive: Callable[[], zipfile.ZipFile], member: zipfile.ZipInfo, most_bytes: int
) -> Callable[[], bytes]:
    """Reads a member as it is unpacked, and stops at most_bytes, whatever its header says."""

    def read() -> bytes:
        try:
            with archive().open(member) as file:
                return file.read(most_bytes)
        except _BROKEN as trouble:
            words = str(trouble) or type(trouble).__name__
            raise Refused(f"it is damaged within the archive ({words:.100})") from None

    return read


# ---- names -------------------------------------------------------------------------------------


def _inner_parts(name: str) -> tuple[str, ...]:
    """The folders and the name of a member, without what leads outside."""
    said = name.replace("\\", "/").split("/")
    return tuple(p for p in said if p not in ("", ".", "..") and not _DRIVE.fullmatch(p))


def _is_junk(parts: Iterable[str]) -> bool:
    return any(_JUNK.match(part) for part in parts)


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
