"""nbgrader's settings for this course, and the small file that brings them in."""

from __future__ import annotations

import sys
from pathlib import Path

from traitlets.config import Config

from grader.classroom import guard
from grader.classroom import nbgrader_steps as steps

FILE = '''"""nbgrader's settings for this course. Run nbgrader in this folder.

`solutions/` is what nbgrader calls the source, `notebooks/` the release. Submissions, grades and
feedback get nbgrader's usual folders beside them. What you set below `configure` wins.
"""

from pathlib import Path

from grader.classroom.settings import configure

c = get_config()  # noqa: F821 (the loader of this file provides it)
configure(c, Path(__file__).parent)
'''
"""A course's nbgrader_config.py."""


def configure(c: Config, root: Path | None = None) -> None:
    """Enter every setting of this course in `c`; what is set in `c` afterwards goes before it.

    root: the course's folder, where plugins of the course may lie too; without it, the folder that
    nbgrader runs in.
    """
    guard.install()
    if root is not None:
        c.CourseDirectory.root = str(root.resolve())
        if str(root.resolve()) not in sys.path:
            sys.path.append(str(root.resolve()))
    c.CourseDirectory.course_id = "inferlab"
    c.CourseDirectory.source_directory = "solutions"
    c.CourseDirectory.release_directory = "notebooks"

    c.GenerateAssignment.preprocessors = steps.release_steps()
    c.ClearSolutions.code_stub = {"python": steps.STUB}

    c.Autograde.sanitize_preprocessors = steps.sanitize_steps()
    c.Autograde.autograde_preprocessors = steps.grading_steps()
    steps.set_grading(c)
    # What students wrote comes back without their scripts, and with nothing fetched from outside.
    c.GenerateFeedback.exporter_class = "grader.safe_pages.exporters.FeedbackExporter"
