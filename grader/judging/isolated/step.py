"""Isolated grading as nbgrader's execute step: the judge writes the outputs."""

from __future__ import annotations

import atexit
from functools import lru_cache
from typing import Any

from nbformat import NotebookNode, from_dict

from grader.judging import registry
from grader.judging.hidden import Hidden
from grader.judging.isolated.notebook import Graded, Times, grade
from grader.judging.isolated.students import Isolation, OwnFault, Zygote, floor_reached


@lru_cache(maxsize=2)
def zygote(level: str, *hide: str) -> Zygote:
    """The process that forks this run's students: started once, ended with the program.

    hide: folders that they must not see, besides the course and the one that is graded in.
    """
    floor_reached(level)
    found = Zygote(Isolation(level), hide)
    atexit.register(found.close)
    return found


def judge_notebook(
    nb: NotebookNode,
    lesson: str,
    level: str,
    by: Zygote | None = None,
    times: Times | None = None,
    hidden: Hidden | None = None,
) -> Graded:
    """Grade nb and write every code cell's outputs into it. by: this run's own zygote if None."""
    if lesson not in registry.lessons():
        raise OwnFault(f"{lesson!r} is no lesson of this course: {', '.join(registry.lessons())}")
    graded = grade(nb, lesson, by or zygote(level), times, hidden)
    count = 0
    for index, cell in enumerate(nb.cells):
        if cell.cell_type == "code":
            count += 1
            cell.execution_count = count
            cell.outputs = [_node(o) for o in graded.outputs.get(index, [])]
    return graded


def _node(output: dict[str, Any]) -> NotebookNode:
    return from_dict(output)
