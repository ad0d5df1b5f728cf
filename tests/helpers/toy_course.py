"""A miniature course for tests of the build: one reference module, one lesson, two questions."""

import shutil
from pathlib import Path

from grader.notebooks.build import ROOT
from grader.notebooks.cells import ExerciseFacts, Facts

LESSON = "01_toy"
FACTS = Facts(
    {
        "double": ExerciseFacts(points=1, minutes=5, difficulty=1),
        "Shelf.put": ExerciseFacts(points=2, minutes=10, difficulty=2),
        "Shelf.take": ExerciseFacts(points=3, minutes=10, difficulty=3),
    },
    {"q_sum": 2},
)
REFERENCE = '''\
"""A toy reference."""

from functools import cache

import numpy as np


# This comment is about the function, not part of it.
@cache
def double(x: float) -> float:
    """Twice x.

    Example: 2 -> 4.
    """
    # The reason stays with the body.
    return np.float64(x) + np.float64(x)
    # So does this last word on doubling.


class Shelf:
    """Things in a row."""

    def __init__(self) -> None:
        self.things: list = []

    def put(self, thing: object) -> None:
        """Add one thing at the end."""
        self.things.append(thing)  # at the end of the row

    def take(self) -> object:
        """Take the first thing away."""

        # A blank line above, on purpose.
        first_thing = self.things[0]
        self.things = self.things[1:]
        return first_thing
        # The trailing secret of taking.

    def __len__(self) -> int:
        return len(self.things)


NOT_A_DEFINITION = 3


def helped(x: float) -> float:
    """x and its helper's word."""
    return _helper(x) + NOT_A_DEFINITION


def silent(x: float) -> float:
    return x


def empty(x: float) -> float:
    """Says much, does nothing."""
'''
SCRIPT = """\
# ---
# jupyter:
#   jupytext:
#     formats: py:percent
# ---

# %% [markdown]
# # A toy lesson
# Double things, then shelve them.

# %%
from functools import cache

import numpy as np

answers, worked = {}, str

# %% exercise="double"
from inferlab.toy import double

# %% check="double"
# Doubles ints and floats.
check("double")

# %% [markdown]
# Once more.

# %% exercise="Shelf" write="put take"
from inferlab.toy import Shelf

# %% check="Shelf.put"
check("Shelf.put")

# %% check="Shelf.take"
check("Shelf.take")

# %% [markdown]
# Once more.

# %% tags=["figure"]
print("a figure")

# %% answer="q_sum"
answers["q_sum"] = worked("q_sum")

# %% answer_check="q_sum"
answers.check("q_sum")

# %% [markdown] written="why_double" points=3
# Because twice the sample answer is enough for anyone.
#
# Rubric: 3 points for saying so.
"""


def make_course(folder: Path) -> Path:
    """Write the miniature course into `folder` (made if missing) and return it."""
    for name, text in {
        f"src/lessons/{LESSON}.py": SCRIPT,
        "src/inferlab/toy.py": REFERENCE,
    }.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    shutil.copy(ROOT / "nbgrader_config.py", folder)
    return folder


def facts_of(lesson: str) -> Facts:
    """The facts of the one lesson there is."""
    assert lesson == LESSON
    return FACTS
