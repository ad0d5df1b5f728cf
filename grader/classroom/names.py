"""Whose a file is, by where it lies and what it is called: the habits of the learning platforms."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import permutations

from labkit.shown import shown


@dataclass(frozen=True)
class Place:
    """What a path says.

    number: tells apart people of one name; user: the platform's own name for the student, which a
    roster may use; file: the name as the student had it; attempt: sorts by time, "" where there is
    but one; version: of files that the platform renamed because a name came twice.
    """

    student: str
    file: str
    number: str = ""
    user: str = ""
    attempt: str = ""
    version: int = 0
    late: bool = False
    when: datetime | None = None


_PLATFORMS = {
    # nbgrader's exchange: ann+04_kv_cache+2026-11-01 10:00:00 UTC+x7Qy
    "exchange": r"(?P<student>.+?)\+(?P<lesson>[^+]+)\+(?P<stamp>\d[^+]+)(\+[^+]*)?",
    # Moodle: Ann Lee_1234567_assignsubmission_file_/04_kv_cache.ipynb
    "moodle": r"(?P<student>.+?)_(?P<number>\d+)_assignsubmission_[a-z]+_?(?P<file>.*)",
    # Blackboard: Lab 4_alee_attempt_2026-11-01-10-00-00_04_kv_cache.ipynb
    "blackboard": r"(.+_)?(?P<student>[^_]+)_attempt_(?P<stamp>\d{4}(-\d\d){5})"
    r"(_(?P<file>.+)|\.txt)?",
    # Brightspace: 123-456 - Ann Lee - Nov 1, 2026 1000 AM - 04_kv_cache.ipynb
    "brightspace": r"\d+-\d+ - (?P<student>.+?) ?- (?P<stamp>[A-Z][a-z]+ \d+, \d{4} "
    r"\d{1,2}[:. ]?\d\d ?[AP]M)( - (?P<file>.+))?",
    # Sakai: Lee, Ann(alee)/Submission attachment(s)/04_kv_cache.ipynb
    "sakai": r"[^()]+, [^()]+\((?P<student>[^()]+)\)",
    # Canvas, anonymous: anon_x7Qy2_67890_04_kv_cache.ipynb
    "anonymous": r"(?P<student>anon_(?P<late>LATE_)?[A-Za-z0-9]{5})_(?P<version>\d+)_(?P<file>.+)",
    # Canvas: leeann_LATE_12345_67890_04_kv_cache-1.ipynb
    "canvas": r"(?P<student>.+?)_(?P<late>LATE_)?(?P<number>[1-9]\d*)_(?P<version>[1-9]\d{2,})_"
    r"(?P<file>.+)",
}
_FOLDERS_ONLY = ("exchange", "sakai")
_RENAMED = re.compile(
    r"""[ _-]*\(\d+\)$ | [ _-]+copy[ _-]*(\d+|\(\d+\))?$ | [ _-]\d{1,2}$ | \.ipynb$""",
    re.IGNORECASE | re.VERBOSE,
)
_COPY_OF = re.compile(r"^(copy|kopie|copie|copia)[ _]+(of|von|de|di)[ _]+", re.IGNORECASE)


def place(parts: tuple[str, ...], lesson: str) -> Place | None:
    """What the first part says by one of the platforms' habits, or by nbgrader's; else None.

    What lies within that part is the same student's, whatever it is called.
    parts: the folders and the name of the file, "" for the name where it is about a folder.
    """
    is_file = len(parts) == 1
    for platform, found in _matches(parts[0]):
        if not (is_file and platform in _FOLDERS_ONLY):
            return _from_match(platform, found.groupdict(), is_file, parts[-1], lesson)
    if parts[1:2] == (lesson,) and len(parts) > 2:  # nbgrader: ann/04_kv_cache/04_kv_cache.ipynb
        return Place(without_zip(parts[0]), parts[-1])
    return None


def is_of_a_platform(part: str, is_file: bool) -> bool:
    """Whether a platform calls one student's folder or file so."""
    return any(not (is_file and p in _FOLDERS_ONLY) for p, _ in _matches(part))


def _matches(part: str) -> Iterator[tuple[str, re.Match[str]]]:
    for platform, pattern in _PLATFORMS.items():
        if found := re.fullmatch(pattern, without_zip(part), re.DOTALL):
            yield platform, found


def _from_match(
    platform: str, found: dict[str, str | None], is_file: bool, name: str, lesson: str
) -> Place:
    file = (is_file and found.get("file")) or name
    canvas = platform in ("canvas", "anonymous")
    if canvas and plain_stem(file) == lesson and file.lower().endswith(".ipynb"):
        file = f"{lesson}.ipynb"  # "-1" at its end is Canvas's own
    when = _when(found.get("stamp"))
    return Place(
        student=(found["student"] or "").strip(),
        file=file,
        number=found.get("number") or "",
        user=(found.get("number") or "") if platform == "canvas" else "",
        attempt=when.isoformat() if when else "",
        version=int(found.get("version") or 0),
        late=bool(found.get("late")),
        when=when,
    )


def lesson_of(part: str) -> str:
    """The lesson in the name of a folder of nbgrader's exchange, "" for any other."""
    found = re.fullmatch(_PLATFORMS["exchange"], part)
    return found["lesson"] if found else ""


def _when(stamp: str | None) -> datetime | None:
    """A platform's time; one without a zone is taken as this computer's."""
    if not stamp:
        return None
    plain = re.sub(r"[:. ]?(\d\d) ?([AP]M)$", r" \1 \2", stamp)
    for text, form in (
        (stamp, "%Y-%m-%d-%H-%M-%S"),
        (plain, "%b %d, %Y %I %M %p"),
        (plain, "%B %d, %Y %I %M %p"),
    ):
        try:
            return datetime.strptime(text, form).astimezone(UTC)
        except (ValueError, OverflowError):
            continue
    return timestamp(stamp)


def timestamp(text: str) -> datetime | None:
    """The time in nbgrader's timestamp.txt, None if it is none."""
    from nbgrader.utils import parse_utc

    try:
        return parse_utc(text.strip()).replace(tzinfo=UTC)
    except Exception:  # dateutil raises what it likes
        return None


# ---- names of files ----------------------------------------------------------------------------


def without_zip(name: str) -> str:
    """An archive stands for the folder of its name."""
    return name[:-4] if name.lower().endswith(".zip") else name


def plain_stem(name: str) -> str:
    """A file's name without its ending and without what browsers and systems add to copies.

    04_kv_cache (1).ipynb, 04_kv_cache-Copy1.ipynb, Copy of 04_kv_cache.ipynb.txt -> 04_kv_cache
    """
    stem = re.sub(r"\.(ipynb|json|txt)$", "", name, flags=re.IGNORECASE)
    while True:
        shorter = _COPY_OF.sub("", _RENAMED.sub("", stem)).strip()
        if shorter in (stem, ""):
            return stem
        stem = shorter


def student_in(name: str, lesson: str) -> str:
    """The student in a file's name: "Ann Lee - 04_kv_cache.ipynb", "04_kv_cache_ann.ipynb"."""
    stem = re.sub(r"\.[A-Za-z0-9]{1,5}$", "", re.sub(r"\.ipynb.*$", "", name, flags=re.IGNORECASE))
    before, found, after = _COPY_OF.sub("", stem).partition(lesson)
    if not found:
        return stem
    rest = plain_stem(f"x{after}")[1:]  # "(1)" and "-Copy1" are nobody
    return before.strip(" _-.") or rest.strip(" _-.") or stem


# ---- names of people ---------------------------------------------------------------------------


def spellings(name: str) -> set[str]:
    """Ways to write one name, all small and without accents: "Lee, Ann" and "leeann" meet."""
    plain = unicodedata.normalize("NFKD", name.partition("@")[0]).casefold()
    plain = "".join(c for c in plain if not unicodedata.combining(c))
    words = re.findall(r"[^\W_]+", plain)
    if not 1 < len(words) <= 4:
        return {"".join(words)}
    return {"".join(order) for order in permutations(words)}


def _same_domain(one: str, other: str) -> bool:
    """Whether two names can be one person's: not two addresses of different domains."""
    domains = {name.rpartition("@")[2].strip().casefold() for name in (one, other) if "@" in name}
    return len(domains) < 2


class Roster:
    """Who should have handed something in, found by any spelling."""

    def __init__(self, students: Iterable[str]) -> None:
        self.students = list(dict.fromkeys(students))
        self._known: dict[str, set[str]] = {}
        for student in self.students:
            for spelling in spellings(student) - {""}:
                self._known.setdefault(spelling, set()).add(student)

    def find(self, name: str) -> str:
        """The one student that the name means, "" if none or several."""
        if name in self.students:
            return name
        found = set().union(*(self._known.get(s, set()) for s in spellings(name) if s))
        found = {student for student in found if _same_domain(student, name)}
        return found.pop() if len(found) == 1 else ""

    def find_in(self, text: str) -> str:
        """The one student whose name stands in the text as a word, "" if none or several do."""
        found = [
            student
            for student in self.students
            if re.search(rf"(?<![^\W_]){re.escape(student)}(?![^\W_])", text, re.IGNORECASE)
        ]
        return found[0] if len(found) == 1 else ""


# ---- names of folders --------------------------------------------------------------------------

MAX_FOLDER_BYTES = 128  # of a student's name: what a disk takes with room for more, and a gradebook
_PLAIN_FILE = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")


def folder_name(student: str) -> tuple[str, str]:
    """The name by which a student is graded, and why it is another than what was found, or "".

    It is a folder's name wherever it comes from: one part of a path, of no great length, visible.
    """
    said = shown(student)
    if said == student and not re.search(r"[/\\]|^[.\s]|\s$|^$", said):
        if len(said.encode()) <= MAX_FOLDER_BYTES:
            return student, ""
        why = f"the name {said[:40]}… of {len(said):,} characters is too long for a folder"
    else:
        why = f"the name {said[:40]!r} cannot be a folder's"
    name = f"{_short(said)}-{_hash(student)}"
    return name, f"{why}; graded as {name}"


def file_name(student: str) -> str:
    """A short name for a file of ours about this student, another one for each."""
    return student if _PLAIN_FILE.fullmatch(student) else f"{_short(student)}-{_hash(student)}"


def _short(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_-]+", "_", name)[:24].strip("_") or "student"


def _hash(name: str) -> str:
    return hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()[:16]
