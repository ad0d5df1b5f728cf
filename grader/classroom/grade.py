"""`inferlab grade LESSON`: judge every submission of a lesson, fill the gradebook, write tables."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from labkit.files import write_whole
from labkit.shown import shown

MAX_NOTED = 20  # students of whom the summary tells what was noted; the tables tell it of all
TOGETHER, TOGETHER_S = 8, 0.5  # results entered at once: so many, or what comes in so long

if TYPE_CHECKING:
    from grader.classroom.collect import Handed
    from grader.classroom.course import Course
    from grader.classroom.judging import Judged
    from grader.classroom.pool import Pool
    from grader.classroom.record import Record


@dataclass
class Run:
    """One run of the desk, and what it has found so far."""

    course: Course
    lesson: str
    isolation: str
    handed: dict[str, Handed] = field(default_factory=dict)
    records: dict[str, Record] = field(default_factory=dict)
    n_kept: int = 0  # taken from an earlier run, because nothing has changed


def main(args: argparse.Namespace) -> int:
    """0 when everything was judged; 1 if something could not be, through our own fault."""
    from grader.classroom.pool import open_pool
    from inferlab.data import IS_FOR_STUDENTS

    if IS_FOR_STUDENTS:
        raise ValueError("this is the edition for students; grading needs the whole one")
    root = (args.course or course_folder()).resolve()
    # Its processes import while this one does.
    with open_pool(args.jobs, args.scheduler, args.isolation, (str(root),)) as pool:
        return _grade(args, root, pool)


def _grade(args: argparse.Namespace, root: Path, pool: Pool) -> int:
    from grader.classroom import course as courses
    from grader.classroom.alone import alone, in_one_sentence
    from grader.learner import lab

    course = courses.Course(root)
    lesson = lab.find_lesson(args.lesson, lab.released_lessons(course.root))
    with alone(course.records), in_one_sentence(course.directory.db_url):
        return _grade_lesson(args, Run(course, lesson, args.isolation), pool)


def _grade_lesson(args: argparse.Namespace, run: Run, pool: Pool) -> int:
    from grader.classroom import course as courses
    from grader.classroom import judging

    course, lesson = run.course, run.lesson
    roster = courses.read_list(args.roster) if args.roster else ()
    _take_in(run, args.source, roster)
    todo = [
        handed for handed in run.handed.values() if args.fresh or not _is_unchanged(run, handed)
    ]
    if todo:
        judging.warm(lesson, course.hidden)
    results = pool.run(_tasks(run, todo))  # they are at work while the gradebook is opened
    from grader.classroom import book

    with course.gradebook() as gradebook:
        book.ensure_lesson(course, gradebook, lesson)
        roster = roster or book.students(gradebook)
        if not run.handed and not roster:
            raise ValueError(
                f"nobody has handed in {lesson}: nothing in {course.root / 'submitted'}; "
                "collect first, or name a folder or zip with --from"
            )
        book.ensure_students(
            gradebook, [h.student for h in run.handed.values() if h.data is not None]
        )
        _enter_unchanged(run, gradebook)
        is_whole = _enter_all(run, results, gradebook, len(todo))
    if is_whole:
        _note_missing(run, roster)
    courses.pass_on_secrets(course, lesson, run.records)
    tables = _write_tables(run)
    print(summary(run, is_whole))
    print("written: " + ", ".join(str(path) for path in tables))
    if not is_whole:
        return 130
    return 1 if any(record.fault for record in run.records.values()) else 0


def course_folder() -> Path:
    """The folder that the command runs in, if it is a course; else inferlab's repository.

    Raises ValueError if there is neither.
    """
    from inferlab.data import ROOT

    for folder in (Path.cwd(), ROOT):
        if (folder / "nbgrader_config.py").is_file():
            return folder
    raise ValueError(
        "this folder is no course: there is no nbgrader_config.py in it. Name one with --course "
        "DIR, or make one: inferlab course DIR"
    )


def _take_in(run: Run, source: Path | None, roster: Sequence[str]) -> None:
    """Find what was handed in. From elsewhere: put it where nbgrader keeps submissions."""
    from grader.classroom.collect import collect

    submitted = run.course.root / "submitted"
    where = source or submitted
    if source is None and not where.is_dir():
        return
    known = [path.name for path in submitted.iterdir()] if submitted.is_dir() else []
    found = collect(where, run.lesson, roster, run.course.root, known)
    run.handed.update({handed.student: handed for handed in found})
    if source is None:
        return
    with run.course.kept_private("submitted", "grading"):
        for handed in found:
            if handed.data is not None:
                _keep(run, handed, handed.data)


def _keep(run: Run, handed: Handed, data: bytes) -> None:
    """A copy among nbgrader's submissions; another one that was there is kept with the records."""
    from grader.classroom.course import timestamp
    from grader.classroom.names import file_name
    from labkit.files import dated

    folder = run.course.folder("submitted", run.lesson, handed.student)
    path = folder / f"{run.lesson}.ipynb"
    if path.is_file() and (earlier := path.read_bytes()) != data:
        kept = run.course.records / run.lesson / "earlier" / f"{file_name(handed.student)}.ipynb"
        kept.parent.mkdir(parents=True, exist_ok=True)
        dated(kept).write_bytes(earlier)
    folder.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.new")
    try:
        temporary.write_bytes(data)
        temporary.replace(path)
    finally:  # a full disk leaves half of it
        temporary.unlink(missing_ok=True)
    if handed.when is not None:
        write_whole(folder / "timestamp.txt", timestamp(handed.when))


# ---- judging -----------------------------------------------------------------------------------


def _enter_all(run: Run, results: Iterator[Judged], gradebook: Any, n_todo: int) -> bool:
    """Keep and enter each result as it comes; False if it was interrupted before the last."""
    few: list[Judged] = []  # the gradebook is written for these at once
    bar = tqdm(total=n_todo, desc=run.lesson, unit="submission", disable=not n_todo)
    last = time.monotonic()
    try:
        for judged in results:
            few.append(judged)
            bar.update()
            if len(few) == TOGETHER or time.monotonic() - last > TOGETHER_S:
                _enter(run, gradebook, few)
                last = time.monotonic()
    except KeyboardInterrupt:
        return False
    finally:
        bar.close()
        _enter(run, gradebook, few)
    return True


def _tasks(run: Run, handed: Sequence[Handed]) -> Iterator[Any]:
    from grader.classroom.judging import Task

    for one in handed:
        where = str(run.course.root)
        yield Task(
            one.student, run.lesson, one.data, one.name, where, run.isolation, run.course.hidden,
            one.notes,
        )  # fmt: skip


def _is_unchanged(run: Run, handed: Handed) -> bool:
    """Whether all that an earlier result rests on is as it was; then it is among run.records."""
    from grader.classroom.record import hashes, read_record

    record = read_record(run.course.record_path(run.lesson, handed.student))
    if record is None or record.fault or record.isolation != run.isolation:
        return False
    if record.hashes != hashes(handed.data, run.lesson, run.course.root, run.course.hidden):
        return False
    if record.notes != handed.notes:
        return False
    if not record.rejected and not run.course.graded_path(run.lesson, handed.student).is_file():
        return False
    run.records[handed.student], run.n_kept = record, run.n_kept + 1
    return True


def _enter_unchanged(run: Run, gradebook: Any) -> None:
    """Results of an earlier run that the gradebook does not have: it was deleted, or is new."""
    from grader.classroom import book

    entered = book.entered(gradebook, run.lesson)
    with book.one_transaction(gradebook):
        for student, record in run.records.items():
            if student not in entered:
                _enter_scores(run, gradebook, record)  # nothing for those who handed in nothing


def _note_missing(run: Run, roster: Sequence[str]) -> None:
    """A record for each student of the list who handed nothing in; the gradebook gets none."""
    from grader.classroom import judging
    from grader.classroom.collect import Handed

    for student in set(roster) - set(run.handed):
        run.handed[student] = Handed(student, run.lesson, None)
        judged = judging.judge(next(_tasks(run, [run.handed[student]])))
        run.records[student] = _record(run, judged)
        run.records[student].write(run.course.record_path(run.lesson, student))


def _record(run: Run, judged: Judged) -> Record:
    from grader.classroom.record import Record, hashes

    handed = run.handed[judged.student]
    return Record(
        judged.student,
        run.lesson,
        judged.results,
        judged.problems,
        judged.rejected,
        judged.fault,
        handed.when.isoformat() if handed.when else "",
        handed.source,
        run.isolation,
        hashes(handed.data, run.lesson, run.course.root, run.course.hidden),
        judged.scores,
        judged.untouched,
        round(judged.seconds, 3),
        handed.notes,
    )


def _enter(run: Run, gradebook: Any, few: list[Judged]) -> None:
    """Keep notebooks, enter scores, keep records; a record says that all of it was done.

    Takes out of `few` what is entered, or what could not be. Where we failed, there is a record
    alone.
    """
    from grader.classroom import book

    records = [_record(run, judged) for judged in few]
    try:
        with book.one_transaction(gradebook):
            for record, judged in zip(records, few, strict=True):
                _enter_one(run, gradebook, record, judged)
        for record in records:
            record.write(run.course.record_path(run.lesson, record.student))
            run.records[record.student] = record
    except Exception:  # a full disk, a damaged gradebook: trying once more says less
        few.clear()
        raise
    few.clear()


def _enter_one(run: Run, gradebook: Any, record: Record, judged: Judged) -> None:
    from grader.classroom import course as courses

    if judged.notebook:
        when = run.handed[record.student].when
        courses.write_graded(run.course, run.lesson, record.student, judged.notebook, when)
    if not record.fault:
        _enter_scores(run, gradebook, record)


def _enter_scores(run: Run, gradebook: Any, record: Record) -> None:
    from grader.classroom import book

    if run.handed[record.student].data is None:
        return  # as in nbgrader: who handed in nothing has no submission
    if record.rejected:
        book.save_nothing(gradebook, run.lesson, record.student)
    else:
        when = run.handed[record.student].when
        book.save(run.course, gradebook, run.lesson, record, when)


# ---- what is said at the end -------------------------------------------------------------------


def _write_tables(run: Run) -> list[Path]:
    from grader.classroom import tables

    records, folder = list(run.records.values()), run.course.records
    return [
        tables.scores(folder / f"{run.lesson}.csv", records),
        tables.reasons(folder / f"{run.lesson}-lost-points.csv", records),
    ]


def summary(run: Run, is_whole: bool = True) -> str:
    """What happened, in a few lines; a failure of ours is never among the zeros."""
    records = list(run.records.values())
    judged = [r for r in records if not r.rejected and not r.fault]
    lines = [f"{run.lesson}: {len(records)} of {len(run.handed)} graded, isolation {run.isolation}"]
    if run.n_kept:
        lines[0] += f"; {run.n_kept} unchanged since the last run"
    if judged:
        scores = sorted(r.earned for r in judged)
        middle = scores[len(scores) // 2]
        lines.append(f"points: {scores[0]} to {scores[-1]} of {judged[0].points}, median {middle}")
    for record in sorted(records, key=lambda r: r.student):
        if record.fault:
            last = record.fault.strip().splitlines()[-1]
            lines.append(f"NOT GRADED, and not their fault: {record.student}: {last}")
        elif record.rejected:
            lines.append(f"{record.student}: {record.rejected}")
    noted = [f"{r.student}: {'; '.join(r.notes)}" for r in records if r.notes]
    lines += sorted(noted)[:MAX_NOTED]
    if len(noted) > MAX_NOTED:
        lines.append(f"notes on {len(noted) - MAX_NOTED} more are in the tables")
    repaired = sum(bool(r.problems) for r in records)
    if repaired:
        lines.append(f"repaired before judging: {repaired} (what was done is in the tables)")
    if not is_whole:
        lines.append("interrupted: what is graded is kept; the same command goes on with the rest")
    return "\n".join(map(shown, lines))
