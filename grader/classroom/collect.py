"""What a class handed in, from a folder or a zip of any learning platform: one entry a student."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from grader.classroom.files import Entry, Refused, walk
from grader.classroom.names import (
    Place,
    Roster,
    lesson_of,
    place,
    plain_stem,
    student_in,
    timestamp,
    without_zip,
)
from grader.classroom.reading import NotANotebook, read_bytes
from grader.learner import lab
from grader.notebooks.merge import Notebook
from grader.notebooks.recognise import shared
from grader.notebooks.repair import n_written

MAX_CANDIDATES = 20  # notebooks of one student that are looked into


@dataclass(frozen=True)
class Handed:
    """What one student handed in for one lesson.

    data: the file's bytes, None if there is none; name: the file's name as the student had it;
    source: where in the folder or archive it was found; when: the time of handing in, where the
    platform tells it; late: marked as late by the platform; notes: what a person should know.
    """

    student: str
    lesson: str
    data: bytes | None
    source: str = ""
    when: datetime | None = None
    notes: tuple[str, ...] = ()
    name: str = ""
    late: bool = False


@dataclass(frozen=True)
class _Found:
    """A file, and what its path says."""

    entry: Entry
    place: Place

    @property
    def is_notebook(self) -> bool:
        return ".ipynb" in self.place.file.lower()


def collect(
    where: Path, lesson: str, roster: Sequence[str] = (), root: Path | None = None
) -> list[Handed]:
    """One entry for each student that is found, and for each of the roster.

    where: nbgrader's submitted/ or exchange, a folder with a folder or a file for each student, or
    a zip archive as Canvas, Moodle, Blackboard, Brightspace or Sakai make it. roster: the names
    that grading knows; a file is matched to them by any spelling, and who handed in nothing gets
    an entry without data. The order is the roster's, then by name.
    Raises ValueError if where is not there or cannot be opened, UnknownLesson.
    """
    root = root or lab.course_root()
    lesson = lab.find_lesson(lesson, lab.released_lessons(root))
    release = lab.read_notebook(lab.released_path(root, lesson))
    others = {*lab.released_lessons(root)} - {lesson}
    people = Roster(roster)
    with ExitStack() as stack:
        entries = [e for e in walk(where, stack) if not _elsewhere(e, others)]
        groups = _by_student(entries, where, lesson, people)
        found = {name: _chosen(name, files, lesson, release) for name, files in groups.items()}
    order = [*people.students, *sorted(found.keys() - {*people.students})]
    handed = [found.get(name) or _nothing(name, lesson) for name in order]
    if not roster:
        return handed
    known = {*people.students}
    return [h if h.student in known else _noted(h, "not on the roster") for h in handed]


def _elsewhere(entry: Entry, others: set[str]) -> bool:
    """True for a file in the folder of another lesson."""
    return any(part in others or lesson_of(part) in others for part in entry.parts[:-1])


def _nothing(student: str, lesson: str, *notes: str) -> Handed:
    return Handed(student, lesson, None, notes=(*notes, "no notebook was handed in"))


def _noted(handed: Handed, note: str) -> Handed:
    return replace(handed, notes=(*handed.notes, note))


# ---- whose is it -------------------------------------------------------------------------------


def _by_student(
    entries: list[Entry], where: Path, lesson: str, people: Roster
) -> dict[str, list[_Found]]:
    """Files by student; two people of one name are told apart by the platform's number."""
    placed = {e.parts: place((*e.parts, "") if e.is_folder else e.parts, lesson) for e in entries}
    loose = [e.parts for e in entries if placed[e.parts] is None]
    n_wrapping = _n_wrapping(loose, where, lesson)
    numbers: dict[str, set[str]] = defaultdict(set)
    for known in placed.values():
        if known is not None:
            numbers[known.student].add(known.number)
    groups: dict[str, list[_Found]] = defaultdict(list)
    for entry in entries:
        at = placed[entry.parts] or _loose_place(entry, n_wrapping, lesson, people)
        if at is None:
            continue
        if len(loose) == 1 and plain_stem(at.student) == lesson:
            at = replace(at, student=where.stem)  # the one notebook in somebody's folder
        several = len(numbers[at.student]) > 1
        name = at.user if at.user in people.students else "" if several else people.find(at.student)
        name = name or (f"{at.student}_{at.number}" if several else at.student)
        groups[name].append(_Found(entry, at))
    return groups


def _n_wrapping(loose: list[tuple[str, ...]], where: Path, lesson: str) -> int:
    """How many outer folders hold the whole class and stand for nobody."""
    depth = 0
    while _holds_a_class([parts[depth:] for parts in loose], where, lesson):
        depth += 1
    return depth


def _holds_a_class(loose: list[tuple[str, ...]], where: Path, lesson: str) -> bool:
    """Whether everything lies in one folder, and that is no student's."""
    outer = {parts[0] for parts in loose}
    if len(outer) != 1 or any(len(parts) < 2 for parts in loose):
        return False
    if outer <= {lesson, where.stem}:
        return True
    files = {parts[1] for parts in loose if len(parts) == 2 and ".ipynb" in parts[1].lower()}
    folders = {parts[1] for parts in loose if len(parts) > 2}
    if files:  # ann_04_kv_cache.ipynb names a student, Untitled.ipynb does not
        return all(lesson in n and plain_stem(student_in(n, lesson)) != lesson for n in files)
    return len(folders) > 1


def _loose_place(entry: Entry, n_wrapping: int, lesson: str, people: Roster) -> Place | None:
    """By the roster, else by the outermost folder, else by the name of the file.

    None for a file beside the students' folders that is nobody's, such as a list of grades.
    """
    parts = entry.parts
    for part in parts[:-1]:
        if people.find(without_zip(part)):
            return Place(without_zip(part), parts[-1])
    inner = parts[n_wrapping:] or parts
    if len(inner) > 1 or entry.is_folder:
        return Place(without_zip(inner[0]), parts[-1])
    known = people.find_in(parts[-1])
    handed_in = ".ipynb" in parts[-1].lower() or entry.refused
    return Place(known or student_in(inner[0], lesson), parts[-1]) if known or handed_in else None


# ---- which file is it --------------------------------------------------------------------------


def _chosen(student: str, files: list[_Found], lesson: str, release: Notebook) -> Handed:
    notes = [f"{f.entry.path} is not read: {f.entry.refused}" for f in files if f.entry.refused]
    open_ = [f for f in files if not f.entry.refused and not f.entry.is_folder]
    latest, note = _latest_attempt(open_)
    notes += note
    candidates = [f for f in latest if f.is_notebook] or _instead(latest)
    if not candidates:
        return _nothing(student, lesson, *notes)
    try:
        best, note = _best(candidates, lesson, release)
        data = best.entry.read()
    except Refused as trouble:
        path = candidates[0].entry.path
        return _nothing(student, lesson, *notes, f"{path} is not read: {trouble}")
    at = best.place
    when = at.when or _timestamp(best, files)
    late = any(f.place.late for f in latest)
    return Handed(student, lesson, data, best.entry.path, when, (*notes, *note), at.file, late)


def _latest_attempt(files: list[_Found]) -> tuple[list[_Found], list[str]]:
    attempts = sorted({f.place.attempt for f in files if f.is_notebook})
    if len(attempts) < 2:
        return files, []
    note = f"{len(attempts)} attempts; the latest is graded"
    return [f for f in files if f.place.attempt == attempts[-1]], [note]


def _instead(files: list[_Found]) -> list[_Found]:
    """Without a notebook: the file that was most likely meant to be one, so that it is named."""
    ends = (".json", ".py", ".html", ".pdf", ".txt")

    def rank(found: _Found) -> int:
        name = found.place.file.lower()
        return next((i for i, end in enumerate(ends) if name.endswith(end)), len(ends))

    receipts = ("timestamp.txt", "onlinetext.html", "comments.txt")
    meant = [
        f for f in files if f.place.file.lower() not in receipts and "_attempt_" not in f.place.file
    ]
    return sorted(meant, key=rank)[:1]


def _best(candidates: list[_Found], lesson: str, release: Notebook) -> tuple[_Found, list[str]]:
    """The right name wins; else the one that has cells of the lesson, and most answers written."""
    if len(candidates) == 1:
        return candidates[0], []
    first = sorted(candidates, key=lambda f: plain_stem(f.place.file) != lesson)[:MAX_CANDIDATES]
    ranked = max(first, key=lambda found: _rank(found, lesson, release))
    names = ", ".join(sorted(f.place.file for f in candidates)[:4])
    more = ", …" if len(candidates) > 4 else ""
    chosen = ranked.entry.path
    return ranked, [f"{len(candidates)} notebooks ({names}{more}); graded is {chosen}"]


def _rank(found: _Found, lesson: str, release: Notebook) -> tuple[bool, bool, bool, int, int, bool]:
    file = found.place.file
    right, close = file == f"{lesson}.ipynb", plain_stem(file).lower() == lesson
    version = found.place.version
    try:
        mine, _ = read_bytes(found.entry.read())
    except (NotANotebook, Refused):
        return False, right, False, version, 0, close
    return True, right, bool(shared(mine, release)), version, n_written(mine, release), close


def _timestamp(best: _Found, files: list[_Found]) -> datetime | None:
    """From the timestamp.txt that lies beside the notebook."""
    beside = (*best.entry.parts[:-1], "timestamp.txt")
    for found in files:
        if found.entry.parts == beside and not found.entry.refused:
            try:
                return timestamp(found.entry.read()[:200].decode(errors="replace"))
            except Refused:
                return None
    return None
