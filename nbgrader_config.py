"""nbgrader's settings for this course. Run nbgrader in this folder.

`solutions/` is what nbgrader calls the source, `notebooks/` the release; both are built by
`make build`. Submissions, grades and feedback get nbgrader's usual folders beside them.
"""

from pathlib import Path

from grader.classroom.settings import configure

c = get_config()  # noqa: F821 (the loader of this file provides it)
configure(c, Path(__file__).parent)

# What is set from here on goes before the course's own settings.
