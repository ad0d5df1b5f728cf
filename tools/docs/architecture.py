"""Draw docs/architecture.svg: from source to learner, judge and server.

Run: python -m tools.docs.architecture
"""

from __future__ import annotations

import sys
from pathlib import Path

from tools import DOCS
from tools.docs.boxes import arrow, box, note, picture

ALT = (
    "make build joins the words of the lessons, the reference engine and the checks into worked "
    "notebooks; nbgrader makes the released ones from them, and inferlab lab copies those to the "
    "learner. In the notebook, check hands what the learner wrote to the judge, which runs it and "
    "the reference through the same cases. What is submitted goes to inferlab grade, which reads "
    "and repairs it and hands it to the judge; then the student's code runs in a sandbox of "
    "namespaces, a filter of kernel calls and limits, and only data crosses its border. A guard "
    "outside ends the sandbox when the judge hangs up or memory runs out. Grades and feedback are "
    "nbgrader's. The reference also stands behind the HTTP server, in NumPy or PyTorch, with the "
    "learner's own parts in it if wanted."
)

# text, badge, x, y, width, kind
BOXES = (
    ("src/lessons/\nthe words", "", 0.0, 5.2, 2.6, "measure"),
    ("grader/checks/\nwhat earns points", "", 0.0, 3.6, 2.6, "measure"),
    ("src/inferlab/\nthe reference engine", "", 0.0, 2.0, 2.6, "measure"),
    ("serving engine, HTTP\nserver: NumPy or PyTorch", "", 0.0, 0.2, 3.2, "flow"),
    ("make build", "", 3.4, 5.2, 1.5, "flow"),
    ("solutions/\nworked", "", 5.6, 5.2, 1.6, "memory"),
    ("notebooks/\nreleased", "", 8.2, 5.2, 1.6, "memory"),
    ("work/\nthe learner's copy", "", 11.0, 5.2, 2.4, "memory"),
    ("judge: one drive for\nanswer and reference", "", 5.0, 2.0, 2.6, "flow"),
    ("verdict, likely cause,\nhints, progress", "", 5.0, 0.2, 2.6, "memory"),
    ("inferlab grade: read,\nrepair, many at once", "", 9.8, 3.6, 3.8, "flow"),
    ("sandbox: student's code, in\nnamespaces, seccomp, limits", "", 9.8, 2.0, 3.8, "flow"),
    ("gradebook, feedback", "", 9.8, 0.2, 3.8, "memory"),
)
# from (x, y) to (x, y)
ARROWS = (
    ((2.6, 5.675), (3.4, 5.675)),
    ((2.6, 4.3), (3.6, 5.2)),
    ((2.6, 2.75), (4.1, 5.2)),
    ((4.9, 5.675), (5.6, 5.675)),
    ((7.2, 5.675), (8.2, 5.675)),
    ((9.8, 5.675), (11.0, 5.675)),
    ((2.6, 3.95), (5.0, 2.7)),
    ((2.6, 2.3), (5.0, 2.3)),
    ((1.3, 2.0), (1.3, 1.15)),
    ((11.0, 5.3), (6.6, 2.95)),
    ((12.6, 5.2), (12.6, 4.55)),
    ((9.8, 3.85), (7.6, 2.75)),
    ((6.3, 2.0), (6.3, 1.15)),
    ((7.6, 2.1), (9.8, 0.95)),
)
# x, y, words
NOTES = (
    (7.7, 5.9, "nbgrader"),
    (10.4, 5.9, "inferlab lab"),
    (7.6, 4.0, "check()"),
    (8.7, 2.2, "data only"),
    (11.7, 1.55, "a guard outside ends it when the judge\nhangs up or memory runs out"),
)


def draw(path: Path) -> None:
    """Write the picture; the same bytes each time."""
    title = "From source to learner, judge and server"
    with picture(path, title, ALT, width=13.7, top=6.4) as axes:
        for one in BOXES:
            box(axes, *one)
        for start, end in ARROWS:
            arrow(axes, start, end)
        arrow(axes, (7.6, 2.45), (9.8, 2.45), style="<|-|>")
        for x, y, words in NOTES:
            note(axes, x, y, words)
        note(axes, 12.7, 4.87, "submitted", ha="left")
        note(axes, 1.4, 1.58, "or with the learner's own\nparts: serve --mine", ha="left")


if __name__ == "__main__":
    draw(Path(sys.argv[1]) if len(sys.argv) > 1 else DOCS / "architecture.svg")
