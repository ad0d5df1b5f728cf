"""What grading found as tables: one row a student, one row a lost point."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from grader.classroom import private
from grader.classroom.record import Record
from labkit.files import write_whole
from labkit.shown import shown

FORMULA = ("=", "+", "-", "@")  # a spreadsheet would run what begins so


def text(value: Any) -> str:
    """A cell of text that no spreadsheet takes for a formula."""
    said = shown(" ".join(str(value).split("\n")))
    return f"'{said}" if said.lstrip().startswith(FORMULA) else said


def write_table(path: Path, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> Path:
    """A CSV file in UTF-8, whole or not at all. Text is made safe, numbers stay numbers."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(header)
    for row in rows:
        writer.writerow([v if isinstance(v, int | float) else text(v) for v in row])
    write_whole(path, out.getvalue(), private.FILE)
    return path


def scores(path: Path, records: Sequence[Record]) -> Path:
    """One row a student: points of each check, their sum, why the rest is missing, repairs."""
    ids = list(dict.fromkeys(r.grade_id for record in records for r in record.results))
    header = ["student", "earned", "points", "why", "repaired", "isolation", "submitted"]
    rows = []
    for record in sorted(records, key=lambda r: r.student):
        earned = {result.grade_id: result.earned for result in record.results}
        lost = record.rejected or ("not graded: our own fault" if record.fault else "")
        why = "; ".join(filter(None, (lost, *record.notes)))
        total: list[Any] = ["", ""] if record.fault else [record.earned, record.points]
        facts = [why, len(record.problems), record.isolation, record.submitted]
        rows.append([record.student, *total, *facts, *(earned.get(i, "") for i in ids)])
    return write_table(path, [*header, *ids], rows)


def reasons(path: Path, records: Sequence[Record]) -> Path:
    """One row for each check that lost points: the reason, and what the student reads."""
    header = ["student", "check", "earned", "points", "reason", "text"]
    rows = [
        [record.student, r.grade_id, r.earned, r.points, r.reason, r.text]
        for record in sorted(records, key=lambda r: r.student)
        for r in record.results
        if r.earned < r.points
    ]
    return write_table(path, header, rows)
