"""What judging found, entered in nbgrader's gradebook by nbgrader's own rules.

A few submissions in one transaction; formgrader, manual grading, late penalties, feedback and
export go on from there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import nbformat
from nbgrader.api import Gradebook, MissingEntry, Student
from nbgrader.preprocessors import AssignLatePenalties, SaveCells

from grader.classroom.course import Course
from grader.classroom.record import Record
from grader.learner import lab


def ensure_lesson(course: Course, gradebook: Gradebook, lesson: str) -> None:
    """Enter a lesson's graded cells in the gradebook, if they are not there."""
    try:
        gradebook.find_notebook(lesson, lesson)
        return
    except MissingEntry:
        gradebook.update_or_create_assignment(lesson)
    source = Path(course.directory.format_path(course.directory.source_directory, ".", lesson))
    path = source / f"{lesson}.ipynb"
    if not path.is_file():  # an installed course: the release has the same cells
        path = lab.released_path(course.root, lesson)
    facts = {"notebook": lesson, "assignment": lesson, "db_url": course.directory.db_url}
    notebook = nbformat.read(path, as_version=4)
    SaveCells(config=course.config).preprocess(notebook, {"nbgrader": facts})
    gradebook.db.expire_all()


def ensure_students(gradebook: Gradebook, students: Iterable[str]) -> None:
    """Enter those who are not in the gradebook, all at once."""
    known = {student.id for student in gradebook.students}
    with one_transaction(gradebook):
        gradebook.db.add_all(Student(id=student) for student in students if student not in known)


def save(
    course: Course,
    gradebook: Gradebook,
    lesson: str,
    record: Record,
    submitted: datetime | None,
) -> None:
    """Enter what was judged, in one_transaction(): scores, comments, a penalty if it is late.

    Points that a person gave stay; where they gave some, the cell asks for another look, as in
    `nbgrader autograde`.
    """
    student, times = record.student, {}
    if submitted is not None:
        times["timestamp"] = submitted.astimezone(UTC).replace(tzinfo=None)
    gradebook.update_or_create_student(student)
    submission = gradebook.update_or_create_submission(lesson, student, **times)
    (own,) = [n for n in submission.notebooks if n.notebook.name == lesson]
    names = {cell.id: cell.name for cell in own.notebook._base_cells}
    for grade in own.grades:
        grade.auto_score = record.scores.get(names[grade.cell_id])
        by_hand = grade.manual_score is not None or grade.auto_score is None
        grade.needs_manual_grade = by_hand
    for comment in own.comments:
        is_untouched = names[comment.cell_id] in record.untouched
        comment.auto_comment = "No response." if is_untouched else None
    _penalise(course, gradebook, submission, own)


@contextmanager
def one_transaction(gradebook: Gradebook) -> Iterator[None]:
    """All or nothing, and one wait for the disk: nbgrader's own steps would commit one by one.

    What is saved in the block is in the gradebook when it ends.
    """
    session = gradebook.db()
    session.expire_on_commit = False  # a lesson's cells are the same for everybody
    gradebook.db.commit = lambda: None  # written at the end, all rows of a table at once
    try:
        yield
    except BaseException:
        session.rollback()
        raise
    finally:
        del gradebook.db.commit
    session.commit()


def save_nothing(gradebook: Gradebook, lesson: str, student: str) -> None:
    """Enter, in one_transaction(), what could not be judged: 0 everywhere, nothing to read."""
    gradebook.update_or_create_student(student)
    submission = gradebook.update_or_create_submission(lesson, student)
    for notebook in submission.notebooks:
        for grade in notebook.grades:
            grade.auto_score, grade.needs_manual_grade = 0, False


def _penalise(course: Course, gradebook: Gradebook, submission: Any, notebook: Any) -> None:
    """The course's late penalty, by nbgrader's own step and whatever plugin is set."""
    notebook.late_submission_penalty = None
    if submission.total_seconds_late <= 0:
        return
    gradebook.db.flush()
    gradebook.db.refresh(notebook)  # its score is a sum that the database takes
    step = AssignLatePenalties(config=course.config)
    step.init_plugin()
    penalty = step.plugin_inst.late_submission_penalty(
        submission.student.id, notebook.score, submission.total_seconds_late
    )
    if penalty is not None:
        notebook.late_submission_penalty = step._check_late_penalty(notebook, penalty)


def students(gradebook: Gradebook) -> list[str]:
    return [student.id for student in gradebook.students]


def entered(gradebook: Gradebook, lesson: str) -> set[str]:
    """Students who have a submission of a lesson in the gradebook."""
    return {s.student.id for s in gradebook.assignment_submissions(lesson)}
