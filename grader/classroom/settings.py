"""nbgrader's settings for this course, and the small file that brings them in."""

from __future__ import annotations

from traitlets.config import Config

from grader.classroom.nbgrader_steps import STUB, grading_steps, release_steps, sanitize_steps
from grader.safe_pages import formgrader

FILE = '''"""nbgrader's settings for this course. Run nbgrader in this folder.

`solutions/` is what nbgrader calls the source, `notebooks/` the release. Submissions, grades and
feedback get nbgrader's usual folders beside them. What you set below `configure` wins.
"""

from grader.classroom.settings import configure

c = get_config()  # noqa: F821 (the loader of this file provides it)
configure(c)
'''
"""A course's nbgrader_config.py."""


def configure(c: Config) -> None:
    """Every setting that the course needs; formgrader's pages are made safe on the way."""
    c.CourseDirectory.course_id = "inferlab"
    c.CourseDirectory.source_directory = "solutions"
    c.CourseDirectory.release_directory = "notebooks"

    c.GenerateAssignment.preprocessors = release_steps()
    c.ClearSolutions.code_stub = {"python": STUB}

    c.Autograde.sanitize_preprocessors = sanitize_steps()
    c.Autograde.autograde_preprocessors = grading_steps()
    c.Judge.timeout = 30  # seconds a cell

    # A deleted check cell comes back, and is scored like any other.
    c.OverwriteCells.add_missing_cells = True
    # A warning printed to stderr costs nothing: only an error does.
    c.IgnorePattern.enabled = True
    c.IgnorePattern.pattern = r"[\s\S]*"
    # The stock tag "skip-execution" would let a student skip a failing check and keep its points.
    c.Execute.skip_cells_with_tag = "nbgrader-never-skip"

    # What students wrote is shown without their scripts, and with nothing fetched from outside: in
    # formgrader and in the feedback.
    formgrader.install()
    c.GenerateFeedback.exporter_class = "grader.safe_pages.exporters.FeedbackExporter"
