"""nbgrader's settings for this course. Run nbgrader in this folder.

`solutions/` is what nbgrader calls the source, `notebooks/` the release. Submissions, grades and
feedback get nbgrader's usual folders beside them. What you set below `configure` wins.
"""

from pathlib import Path

from grader.classroom.settings import configure

c = get_config()  # noqa: F821 (the loader of this file provides it)
configure(c, Path(__file__).parent)
