"""nbgrader's settings for this course; its `nbgrader_config.py` is a call of `configure`."""

from __future__ import annotations

import sys
from pathlib import Path

from traitlets.config import Config

from grader.classroom import guard
from grader.classroom import nbgrader_steps as steps


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
