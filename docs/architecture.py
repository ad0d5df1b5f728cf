"""Draw docs/architecture.svg: from source to learner, judge and server.

Run: python docs/architecture.py
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:  # so that it also runs as a file
    sys.path.insert(0, str(ROOT))

from docs.boxes import arrow, box, note, picture  # noqa: E402

HERE = Path(__file__).parent
ALT = (
    "make build joins the words of the lessons, the reference engine and the checks into worked "
    "notebooks; nbgrader makes the released ones from them, and inferlab lab copies those to the "
    "learner. In the notebook, check hands what the learner wrote to the judge, which runs it and "
    "the reference through the same cases. At grading the student's code runs in a sandbox and "
    "only numbers and text reach the judge, which writes grades and feedback. The reference engine "
    "also stands behind the HTTP server, with the learner's own parts in it if wanted."
)

# text, badge, x, y, width, kind
BOXES = (
    ("src/lessons/\nthe words", "", 0.0, 5.2, 2.6, "measure"),
    ("grader/checks/\nwhat earns points", "", 0.0, 3.6, 2.6, "measure"),
    ("src/inferlab/\nthe reference engine", "", 0.0, 2.0, 2.6, "measure"),
    ("serving engine,\nHTTP server", "", 0.0, 0.2, 2.6, "flow"),
    ("make build", "", 3.4, 5.2, 1.5, "flow"),
    ("solutions/\nworked", "", 5.6, 5.2, 1.6, "memory"),
    ("notebooks/\nreleased", "", 8.2, 5.2, 1.6, "memory"),
    ("work/\nthe learner's copy", "", 11.0, 5.2, 2.4, "memory"),
    ("judge: one drive for\nanswer and reference", "", 5.0, 2.6, 2.6, "flow"),
    ("verdict, likely cause,\nhints, progress", "", 5.0, 0.2, 2.6, "memory"),
    ("sandbox: student's code,\nno network, limits", "", 9.9, 2.6, 2.9, "flow"),
    ("grades, feedback", "", 9.9, 0.2, 2.9, "memory"),
)
# from (x, y) to (x, y)
ARROWS = (
    ((2.6, 5.675), (3.4, 5.675)),
    ((2.6, 4.3), (3.6, 5.2)),
    ((2.6, 2.75), (4.1, 5.2)),
    ((4.9, 5.675), (5.6, 5.675)),
    ((7.2, 5.675), (8.2, 5.675)),
    ((9.8, 5.675), (11.0, 5.675)),
    ((2.6, 3.95), (5.0, 3.25)),
    ((2.6, 2.45), (5.0, 2.85)),
    ((1.3, 2.0), (1.3, 1.15)),
    ((11.2, 5.2), (7.2, 3.55)),
    ((12.2, 5.2), (12.2, 3.55)),
    ((6.3, 2.6), (6.3, 1.15)),
    ((7.6, 2.7), (9.9, 0.95)),
)
# x, y, words
NOTES = (
    (7.7, 5.9, "nbgrader"),
    (10.4, 5.9, "inferlab lab"),
    (8.75, 4.7, "check()"),
    (8.75, 3.35, "numbers and text only"),
)


def draw(path: Path) -> None:
    """Write the picture; the same bytes each time."""
    title = "From source to learner, judge and server"
    with picture(path, title, ALT, width=13.7, top=6.4) as axes:
        for one in BOXES:
            box(axes, *one)
        for start, end in ARROWS:
            arrow(axes, start, end)
        arrow(axes, (7.6, 3.1), (9.9, 3.1), style="<|-|>")
        for x, y, words in NOTES:
            note(axes, x, y, words)
        note(axes, 12.3, 4.4, "submitted", ha="left")
        note(axes, 2.7, 0.65, "or with the\nlearner's own parts:\nserve --mine", ha="left")


if __name__ == "__main__":
    draw(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / "architecture.svg")
