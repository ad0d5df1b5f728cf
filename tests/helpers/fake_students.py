"""Six students whose grade is known before anything runs, and the rule that says so.

The rule: a check earns its points when the exercise's own cell is right, whatever is wrong in the
exercises that it uses; a question earns its points when it is answered; the
written answer waits for a person when anything is written, and earns 0 when nothing is.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from nbformat import NotebookNode

from grader.judging.exercise import Exercise
from grader.notebooks.paste import BEGIN, END
from labkit.interview.questions import Question

# Exercises that the plausible student gets wrong, and the slip: (what the solution says, what
# this student says instead). No other exercise uses one of these.
SLIPS: dict[str, tuple[str, str]] = {
    # a sequence that fits by half is counted
    "largest_batch": ("max(0, int(free_bytes //", "max(0, round(free_bytes /"),
    # the headroom is taken from what is left, not from the whole memory
    "longest_context": (
        "memory_bytes * (1 - headroom) - weight_bytes",
        "(memory_bytes - weight_bytes) * (1 - headroom)",
    ),
    # every step asks with the first token's query
    "decode_cached": ("layer.query(row)", "layer.query(x[:1])"),
    # only the first layer forgets
    "KVCache.truncate": ("[n_tokens] * len(self.lengths)", "[n_tokens, *self.lengths[1:]]"),
}
ENDLESS = "longest_context"  # while True: pass
UNPARSABLE = "kv_bytes_per_token"  # a cell that is no Python


@dataclass(frozen=True)
class FakeStudent:
    """A student's notebook, the exercises whose cells are right, and what else is filled in."""

    id: str
    notebook: NotebookNode
    right: frozenset[str]
    answered: bool
    wrote: bool

    def expected(
        self, exercises: Iterable[Exercise], questions: Iterable[Question]
    ) -> dict[str, float]:
        """Points that each automatically graded cell must earn, by grade id."""
        points = {f"check_{e.grade_id}": float(e.points * (e.id in self.right)) for e in exercises}
        return points | {f"check_{q.id}": float(q.points * self.answered) for q in questions}


class Desk:
    """Fills released notebooks in: with the solution, with part of it, or with mistakes."""

    def __init__(
        self, released: NotebookNode, solution: NotebookNode, exercises: Iterable[Exercise]
    ) -> None:
        self.released = released
        self.solutions = {
            grade_id: without_markers(cell.source)
            for grade_id, cell in solution_cells(solution).items()
        }
        self.exercises = tuple(exercises)
        self.cells = {exercise.id: self._cell_of(exercise) for exercise in self.exercises}

    def _cell_of(self, exercise: Exercise) -> str:
        """Grade id of the cell that an exercise is written in."""
        return exercise.grade_id if exercise.grade_id in self.solutions else exercise.name

    def student(
        self,
        name: str,
        *,
        exercise_cells: Iterable[str] | None = None,
        rest: bool = True,
        changes: Mapping[str, Callable[[str], str]] | None = None,
        wrong: Iterable[str] = (),
    ) -> FakeStudent:
        """A student who fills in these exercise cells (None: all), and the rest or not.

        changes: exercise id -> what to make of its cell; wrong: further exercises spoilt by them.
        """
        changes = changes or {}
        own = set(self.cells.values())
        filled = own if exercise_cells is None else set(exercise_cells)
        filled |= set(self.solutions) - own if rest else set()
        notebook = copy.deepcopy(self.released)
        for grade_id, cell in solution_cells(notebook).items():
            if grade_id in filled:
                cell.source = self.solutions[grade_id]
        for exercise_id, change in changes.items():
            cell = solution_cells(notebook)[self.cells[exercise_id]]
            cell.source = change(cell.source)
        spoilt = {*changes, *wrong}
        right = {i for i, cell in self.cells.items() if cell in filled and i not in spoilt}
        return FakeStudent(name, notebook, frozenset(right), answered=rest, wrote=rest)

    def everyone(self) -> list[FakeStudent]:
        """The six students."""
        in_order = [g for g in solution_cells(self.released) if g in self.cells.values()]
        half = self.student("half", exercise_cells=in_order[: len(in_order) // 2], rest=False)
        unwritten = next(e.grade_id for e in self.exercises if e.id not in half.right)
        make_careless(half.notebook, written=in_order[0], unwritten=unwritten)
        neighbours = [i for i, c in self.cells.items() if c == self.cells[UNPARSABLE]]
        return [
            self.student("perfect"),
            self.student("blank", exercise_cells=(), rest=False),
            half,
            self.student("plausible", changes={i: slip(*SLIPS[i]) for i in SLIPS}),
            self.student("endless", changes={ENDLESS: never_ends}),
            self.student("syntax", changes={UNPARSABLE: unparsable}, wrong=neighbours),
        ]


def solution_cells(notebook: NotebookNode) -> dict[str, NotebookNode]:
    """The cells that a student fills in, by grade id, in order."""
    return {
        cell.metadata.nbgrader.grade_id: cell
        for cell in notebook.cells
        if cell.metadata.get("nbgrader", {}).get("solution")
    }


def make_careless(notebook: NotebookNode, written: str, unwritten: str) -> None:
    """Changes that must move no score.

    A right function prints to stderr, its check cell is deleted, and the check cell of a function
    that is not written is tagged to be skipped.
    """
    cell = solution_cells(notebook)[written]
    head, quotes, body = cell.source.rpartition('"""')
    remark = "    import sys\n    print('a remark', file=sys.stderr)"
    cell.source = f"{head}{quotes}\n{remark}{body}"
    checks = {c.metadata.get("nbgrader", {}).get("grade_id"): c for c in notebook.cells}
    notebook.cells.remove(checks[f"check_{written}"])
    checks[f"check_{unwritten}"].metadata.tags = ["skip-execution"]


def without_markers(source: str) -> str:
    """A solution as a student would have typed it."""
    return "\n".join(line for line in source.splitlines() if line.strip() not in (BEGIN, END))


def slip(right: str, wrong: str) -> Callable[[str], str]:
    """A change of one place in a cell; the place must be there."""

    def change(source: str) -> str:
        assert source.count(right) == 1, f"the solution says {right!r} not once: {source}"
        return source.replace(right, wrong)

    return change


def never_ends(source: str) -> str:
    """The function, its docstring, and a loop for ever."""
    head, quotes, _ = source.rpartition('"""')
    assert quotes, source
    return f"{head}{quotes}\n    while True:\n        pass"


def unparsable(source: str) -> str:
    """The cell with one bracket opened too many."""
    return source.replace("return ", "return (", 1)
