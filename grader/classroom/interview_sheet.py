"""Open interview questions as an nbgrader assignment: written answers that a person grades."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import nbformat
import numpy as np
from nbformat.v4 import new_markdown_cell, new_notebook

from grader.notebooks.cells import grading
from labkit.files import write_whole
from labkit.interview.bank import load
from labkit.interview.choose import wanted
from labkit.interview.questions import Answers
from labkit.interview.spec import Item


def write_sheet(path: Path, items: Sequence[Item], seed: int) -> int:
    """Write the instructor's version of a notebook with these questions. -> how many there are

    Each answer cell holds the rubric, which nbgrader takes out of what students get; it is graded
    by hand. seed decides the numbers in the questions. Raises ValueError for a file that is there,
    and where none of the items is open.
    """
    asked = [item for item in items if item.kind == "open"]
    if not asked:
        raise ValueError("no open question among them: choose another topic or level")
    if path.exists():
        raise ValueError(f"{path} is there already; give another name")
    notebook = new_notebook(cells=[new_markdown_cell(INTRODUCTION, id="introduction")])
    for item in asked:
        text = item.question.text(
            Answers(f"sheet {seed}", {item.id: item.question}).params(item.id)
        )
        rubric = [f"- **{part}** (1 point): {full}" for part, full in item.question.rubric.items()]
        answer = new_markdown_cell("\n".join(["**Rubric**", "", *rubric]), id=f"{item.id}-answer")
        answer.metadata["nbgrader"] = grading(item.id, solution=True, points=item.question.points)
        notebook.cells += [new_markdown_cell(f"{text}\n\n*3 points*", id=item.id), answer]
    write_whole(path, nbformat.writes(notebook) + "\n")
    return len(asked)


def main(args: argparse.Namespace) -> int:
    """inferlab drill --sheet FILE, with --topic, --level, --n and --seed."""
    bank, seed = load(), args.seed or 0
    topics = [bank.topic(name) for name in args.topic]
    rng = np.random.default_rng(seed)
    pool = wanted((i for i in bank.items.values() if i.kind == "open"), topics, args.level)
    chosen = [pool[int(i)] for i in rng.permutation(len(pool))[: args.n]]
    n = write_sheet(args.sheet, chosen, seed)
    print(f"written: {args.sheet}, {n} questions to be graded by hand; nbgrader takes it as source")
    return 0


INTRODUCTION = (
    "# Open questions\n\nAnswer each in a few lines: the mechanism, a number with its unit, and "
    "a limit or a counter-example. Each of the three earns a point."
)
