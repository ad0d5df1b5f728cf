"""What a class handed in, from a folder or a zip of any learning platform: one entry a student."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from grader.classroom.files import Entry, Refused, walk
from grader.classroom.names import (
    Place,
    Roster,
    folder_name,
    is_of_a_platform,
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
    where: Path,
    lesson: str,
    roster: Sequence[str] = (),
    root: Path | None = None,
    known: Collection[str] = (),
) -> list[Handed]:
    """One entry for each student that is found, and for each of the roster.

    where: nbgrader's submitted/ or exchange, a folder with a folder or a file for each student, or
    a zip archive as Canvas, Moodle, Blackboard, Brightspace or Sakai make it. roster: the names
    that grading knows; a file is matched to them by any spelling, and who handed in nothing gets
    an entry without data. The order is the roster's, then by name. known: names of students
    besides; a folder of such a name is theirs, with all that is in it.
    A student's name is one that a folder may have. Raises ValueError if where is not there or
    cannot be opened, or for a name of the roster that is none, UnknownLesson.
    """
    root = root or lab.course_root()
    lesson = lab.find_lesson(lesson, lab.released_lessons(root))
    release = lab.read_notebook(lab.released_path(root, lesson))
    others = {*lab.released_lessons(root)} - {lesson}
    if bad := [name for name in roster if folder_name(name)[1]]:
        raise ValueError(f"the roster names {bad[0]!r:.60}, which cannot be the name of a folder")
    people = Roster(roster)
    with ExitStack() as stack:
        entries = [e for e in walk(where, stack) if not _elsewhere(e, others)]
        groups = _by_student(entries, where, lesson, Class(people, frozenset(known), lesson))
        found = dict(_named(name, files, lesson, release) for name, files in groups.items())
    order = [*people.students, *sorted(found.keys() - {*people.students})]
    handed = [found.get(name) or _nothing(name, lesson) for name in order]
    if not roster:
        return handed
    listed = {*people.students}
    return [h if h.student in listed else _noted(h, "not on the roster") for h in handed]


def _named(name: str, files: list[_Found], lesson: str, release: Notebook) -> tuple[str, Handed]:
    """What was found, under the name that its folders get: checked last, wherever it came from."""
    safe, note = folder_name(name)
    handed = _chosen(safe, files, lesson, release)
    return safe, _noted(handed, note) if note else handed


def _elsewhere(entry: Entry, others: set[str]) -> bool:
    """True for a file in the folder of another lesson."""
    return any(part in others or lesson_of(part) in others for part in entry.parts[:-1])


def _nothing(student: str, lesson: str, *notes: str) -> Handed:
    return Handed(student, lesson, None, notes=(*notes, "no notebook was handed in"))


def _noted(handed: Handed, note: str) -> Handed:
    return replace(handed, notes=(*handed.notes, note))


# ---- whose is it -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Class:
    """By what a part of a path is known to be one student's."""

    people: Roster
    known: frozenset[str]
    lesson: str

    def names(self, part: str, is_file: bool) -> bool:
        """Whether a folder or file is called as one student's is, by a platform or by name."""
        plain = without_zip(part)
        if is_of_a_platform(part, is_file) or (plain in self.known and not is_file):
            return True
        return not is_file and bool(self.people.find(plain))


def _by_student(
    entries: list[Entry], where: Path, lesson: str, known: Class
) -> dict[str, list[_Found]]:
    """Files by student; two people of one name are told apart by the platform's number."""
    people = known.people
    paths = {e.parts: (*e.parts, "") if e.is_folder else e.parts for e in entries}
    n_wrapping = _n_wrapping([*paths.values()], where, known)
    placed = {e: _place(e, paths[e.parts][n_wrapping:], lesson, people) for e in entries}
    numbers: dict[str, set[str]] = defaultdict(set)
    for at in placed.values():
        if at is not None:
            numbers[at.student].add(at.number)
    groups: dict[str, list[_Found]] = defaultdict(list)
    for entry, at in placed.items():
        if at is None:
            continue
        several = len(numbers[at.student]) > 1
        name = at.user if at.user in people.students else "" if several else people.find(at.student)
        name = name or (f"{at.student}_{at.number}" if several else at.student)
        groups[name].append(_Found(entry, at))
    if _is_one_students({path[n_wrapping] for path in paths.values()}, groups, lesson):
        return {people.find(where.stem) or where.stem: [f for own in groups.values() for f in own]}
    return groups


def _is_one_students(outer: set[str], groups: Collection[str], lesson: str) -> bool:
    """Whether all of it is one student's, by what it is called: a checkout, or just the lesson."""
    if len(groups) == 1 and plain_stem(next(iter(groups))) in (lesson, *_CHECKOUT):
        return True
    return _is_checkout(outer)


_CHECKOUT = ("inferlab", "inferlab-main", "work", "notebooks")
_COURSE_FOLDERS = {
    *("autograded", "benchmarks", "data", "docs", "feedback", "grader", "grading", "notebooks"),
    *("release", "solutions", "src", "submitted", "test-artifacts", "tests", "tools", "work"),
}


def _is_checkout(names: set[str]) -> bool:
    """Whether these folders are the course's own, as a learner has them: work/, notebooks/ …"""
    return bool(names & {"work", "notebooks"}) and len(names & _COURSE_FOLDERS) > 1


def _n_wrapping(paths: list[tuple[str, ...]], where: Path, known: Class) -> int:
    """How many outer folders hold students' folders and stand for nobody.

    What lies within one student's folder or archive is not asked: it may be called anything.
    """
    outer = {path[0]: len(path) == 1 for path in paths}
    if not outer or any(known.names(part, is_file) for part, is_file in outer.items()):
        return 0
    if any(len(path) < 2 or _is_nbgraders(path, known.lesson) for path in paths):
        return 0
    inner = [path[1:] for path in paths]
    if len(outer) == 1:
        more = _n_wrapping(inner, where, known)
        named = any(known.names(p[more], len(p) == more + 1) for p in inner if len(p) > more)
        return 1 + more if named or more or _holds_a_class(paths, where, known.lesson) else 0
    sections = all(known.names(path[0], len(path) == 1) for path in inner)
    return 1 if sections else 0


def _is_nbgraders(path: tuple[str, ...], lesson: str) -> bool:
    """Whether it is ann/04_kv_cache/04_kv_cache.ipynb, or the empty folder for it."""
    return len(path) == 3 and path[1] == lesson and plain_stem(path[2]) in (lesson, "")


def _holds_a_class(paths: list[tuple[str, ...]], where: Path, lesson: str) -> bool:
    """Whether the one folder in which everything lies is no student's."""
    if {path[0] for path in paths} <= {lesson, where.stem}:
        return True
    files = {path[1] for path in paths if len(path) == 2 and ".ipynb" in path[1].lower()}
    folders = {path[1] for path in paths if len(path) > 2}
    if _is_checkout(folders):
        return False
    if files:  # ann_04_kv_cache.ipynb names a student, Untitled.ipynb does not
        return all(lesson in n and plain_stem(student_in(n, lesson)) != lesson for n in files)
    return len(folders) > 1


def _place(entry: Entry, parts: tuple[str, ...], lesson: str, people: Roster) -> Place | None:
    """By the outermost folder, a platform's or any other; else by the name of the file.

    None for a file beside the students' folders that is nobody's, such as a list of grades.
    """
    if found := place(parts, lesson):
        return found
    if len(parts) > 1:
        return Place(without_zip(parts[0]), entry.parts[-1])
    known = people.find_in(parts[0])
    handed_in = ".ipynb" in parts[0].lower() or entry.refused
    return Place(known or student_in(parts[0], lesson), parts[0]) if known or handed_in else None


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
    """One with answers wins over one without; then the right name; then the lesson's cells, and
    most answers."""
    if len(candidates) == 1:
        return candidates[0], []
    first = sorted(candidates, key=lambda f: plain_stem(f.place.file) != lesson)[:MAX_CANDIDATES]
    ranked = max(first, key=lambda found: _rank(found, lesson, release))
    names = ", ".join(sorted(f.place.file for f in candidates)[:4])
    more = ", …" if len(candidates) > 4 else ""
    chosen = ranked.entry.path
    return ranked, [f"{len(candidates)} notebooks ({names}{more}); graded is {chosen}"]


def _rank(found: _Found, lesson: str, release: Notebook) -> tuple[int | bool, ...]:
    """Larger is better. A worked solution is nobody's answer where there is anything else."""
    file = found.place.file
    right, close = file == f"{lesson}.ipynb", plain_stem(file).lower() == lesson
    version, own = found.place.version, "solutions" not in found.entry.parts[:-1]
    try:
        mine, _ = read_bytes(found.entry.read())
    except (NotANotebook, Refused):
        return False, own, False, right, False, version, 0, close
    n = n_written(mine, release)
    return True, own, n > 0, right, bool(shared(mine, release)), version, n, close


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
