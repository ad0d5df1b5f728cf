"""`inferlab export`: the gradebook's scores as Canvas, Moodle or a spreadsheet import them.

They are read from nbgrader's gradebook, so they carry what people graded and late penalties. The
exporters are plugins of `nbgrader export` too.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from nbgrader.api import Gradebook, MissingEntry
from nbgrader.plugins import CsvExportPlugin, ExportPlugin

from grader.classroom import private
from grader.classroom.tables import write_table


class _ForLms(ExportPlugin):
    """What the two exporters share: every student's score in each lesson."""

    def lessons(self, gradebook: Gradebook) -> list[Any]:
        """The assignments asked for with --assignment; all of them by default."""
        wanted = {str(name) for name in self.assignment}
        found = [a for a in gradebook.assignments if not wanted or a.name in wanted]
        if wanted - {a.name for a in found}:
            unknown = ", ".join(sorted(wanted - {a.name for a in found}))
            known = ", ".join(a.name for a in gradebook.assignments) or "none"
            raise ValueError(f"not in the gradebook: {unknown}; there: {known}")
        return found

    def people(self, gradebook: Gradebook) -> list[Any]:
        wanted = {str(name) for name in self.student}
        found = [s for s in gradebook.students if not wanted or s.id in wanted]
        return sorted(found, key=lambda s: s.id)

    def score(self, gradebook: Gradebook, lesson: str, student: str) -> float | str:
        """After penalties; "" where nothing was handed in, which an LMS leaves as it is."""
        try:
            submission = gradebook.find_submission(lesson, student)
        except MissingEntry:
            return ""
        return max(0.0, submission.score - (submission.late_submission_penalty or 0.0))


class CanvasExporter(_ForLms):
    """nbgrader export --exporter=grader.classroom.tables.CanvasExporter --to canvas.csv

    Canvas matches students by "SIS Login ID", here nbgrader's student ids, and makes a new
    assignment of a column that it does not know.
    """

    def export(self, gradebook: Gradebook) -> None:
        lessons = self.lessons(gradebook)
        header = ["Student", "ID", "SIS User ID", "SIS Login ID", "Section"]
        rows: list[list[Any]] = [
            ["    Points Possible", "", "", "", "", *(float(a.max_score) for a in lessons)]
        ]
        for s in self.people(gradebook):
            name = ", ".join(filter(None, (s.last_name, s.first_name))) or s.id
            points = [self.score(gradebook, a.name, s.id) for a in lessons]
            rows.append([name, "", "", s.id, "", *points])
        path = Path(self.to or "canvas.csv")
        write_table(path, [*header, *(a.name for a in lessons)], rows)


class MoodleExporter(_ForLms):
    """nbgrader export --exporter=grader.classroom.tables.MoodleExporter --to moodle.csv

    For "Grades > Import > CSV file": map username, or e-mail, and each lesson to its grade item.
    """

    def export(self, gradebook: Gradebook) -> None:
        lessons = self.lessons(gradebook)
        header = ["username", "email", "lastname", "firstname", *(a.name for a in lessons)]
        rows = [
            [s.id, s.email or "", s.last_name or "", s.first_name or ""]
            + [self.score(gradebook, a.name, s.id) for a in lessons]
            for s in self.people(gradebook)
        ]
        write_table(Path(self.to or "moodle.csv"), header, rows)


EXPORTERS: dict[str, type[ExportPlugin]] = {
    "csv": CsvExportPlugin,
    "canvas": CanvasExporter,
    "moodle": MoodleExporter,
}


def main(args: argparse.Namespace) -> int:
    """Write the file and say where it is."""
    from grader.classroom.course import Course
    from grader.classroom.grade import course_folder
    from grader.learner import lab

    course = Course(args.course or course_folder())
    released = lab.released_lessons(course.root)
    exporter = EXPORTERS[args.to](config=course.config)
    exporter.to = str(private.touch(args.out or course.root / f"grades-{args.to}.csv"))
    exporter.assignment = [lab.find_lesson(lesson, released) for lesson in args.lesson]
    with course.gradebook() as gradebook:
        exporter.export(gradebook)
    print(f"written: {exporter.to}")
    return 0
