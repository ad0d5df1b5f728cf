"""What each cell of a lesson script becomes in the solution notebook."""

import ast
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nbformat import NotebookNode
from nbformat.v4 import new_markdown_cell

from grader.notebooks.paste import BuildError, definition, mark_bodies

KINDS = ("exercise", "check", "answer", "answer_check", "written")
# What a lesson script may say of a cell besides its kind; jupytext adds the last two by itself.
KEPT, DROPPED = {"tags", "jupyter"}, {"write", "points", "title", "lines_to_next_cell"}


@dataclass(frozen=True)
class ExerciseFacts:
    """What the build must know of an exercise; difficulty is 1 to 5."""

    points: int
    minutes: int
    difficulty: int


@dataclass(frozen=True)
class Facts:
    """What the build must know of a lesson: its exercises, and the points of its questions."""

    exercises: Mapping[str, ExerciseFacts]
    questions: Mapping[str, int]


@dataclass
class Lesson:
    """A lesson being built: its facts, where the reference lies, and which cell holds what."""

    slug: str
    facts: Facts
    source_root: Path
    where: dict[str, dict[str, int]] = field(default_factory=lambda: {kind: {} for kind in KINDS})
    number: int = 0  # of the cell being built, from 1

    def note(self, kind: str, given_id: str) -> None:
        """Remember that the present cell is the `kind` of `given_id`; there may be only one."""
        first = self.where[kind].setdefault(given_id, self.number)
        if first != self.number:
            raise BuildError(f"second {kind} cell for {given_id!r}; cell {first} is the first")


def grading(grade_id: str, *, solution: bool, points: int | None = None) -> dict[str, Any]:
    """nbgrader's metadata of a cell; one with points is graded, one that is no solution locked."""
    meta = {"schema_version": 3, "grade_id": grade_id, "solution": solution, "task": False}
    meta |= {"grade": points is not None, "locked": not solution}
    return meta if points is None else meta | {"points": points}


def exercise_cells(lesson: Lesson, cell: NotebookNode, cell_id: str) -> list[NotebookNode]:
    """The announcement and the pasted source that replace an import of the reference."""
    methods, ids = methods_and_ids(lesson, cell_id, cell.metadata.get("write", ""))
    for exercise_id in ids:
        lesson.note("exercise", exercise_id)
    module, name = single_import(cell.source)
    if name != cell_id.partition(".")[0]:
        raise BuildError(f"imports {name!r}, but the exercise is {cell_id!r}")
    source, is_class = definition(lesson.source_root, module, name)
    if is_class and not methods:
        raise BuildError(f'{name} is a class; name the methods to write, as in write="append"')
    if methods and not is_class:
        raise BuildError(f"{name} is a function, but write= names methods of a class")
    cell.source = mark_bodies(source, [f"{name}.{m}" for m in methods] or [name])
    cell.metadata = {"nbgrader": grading(cell_id.replace(".", "_"), solution=True)}
    return [new_markdown_cell(announcement(lesson.facts, ids)), cell]


def methods_and_ids(lesson: Lesson, cell_id: str, write: str) -> tuple[list[str], list[str]]:
    """Methods that the learner writes here, and the registry's exercises that judge them."""
    known = lesson.facts.exercises
    methods = write.split() or cell_id.split(".")[1:]
    parts = [f"{cell_id.partition('.')[0]}.{method}" for method in methods]
    ids = [i for i in known if i == cell_id or i in parts]
    if not ids:
        raise BuildError(f"unknown exercise id {cell_id!r}; the registry has {sorted(known)}")
    unjudged = [part for part in parts if cell_id not in ids and part not in ids]
    if unjudged:
        raise BuildError(f"no exercise of the registry judges {unjudged}")
    return methods, ids


def single_import(source: str) -> tuple[str, str]:
    """Module and name of the one `from inferlab... import name` that an exercise cell holds."""
    body = parsed(source).body
    if len(body) != 1 or not isinstance(body[0], ast.ImportFrom) or len(body[0].names) != 1:
        raise BuildError(f"an exercise cell is exactly one import of one name, not {source!r}")
    module, alias = body[0].module or "", body[0].names[0]
    if module.partition(".")[0] != "inferlab" or alias.asname or alias.name == "*":
        raise BuildError(f"an exercise cell imports a name from inferlab as it is, not {source!r}")
    return module, alias.name


def parsed(source: str) -> ast.Module:
    """The syntax tree of a cell's text."""
    try:
        return ast.parse(source)
    except SyntaxError as error:
        raise BuildError(f"not Python: {error.msg} in {source!r}") from error


def announcement(facts: Facts, ids: Iterable[str]) -> str:
    """One line above an exercise: what it is worth, how long it takes, how to get a hint."""
    return "\n".join(
        f"**Exercise `{i}`** · {facts.exercises[i].points} "
        f"{'point' if facts.exercises[i].points == 1 else 'points'} · "
        f"about {facts.exercises[i].minutes} minutes · difficulty {facts.exercises[i].difficulty}/5"
        f' · stuck? Run `hint("{i}")`  '
        for i in ids
    ).rstrip()


def check_cell(lesson: Lesson, cell: NotebookNode, exercise_id: str) -> list[NotebookNode]:
    """A graded cell: the visible call, and after it the same call with the hidden cases."""
    facts = lesson.facts.exercises.get(exercise_id)
    if facts is None:
        raise BuildError(f"check of an unknown exercise id {exercise_id!r}")
    if exercise_id not in lesson.where["exercise"]:
        raise BuildError(f"check of {exercise_id!r}, but no exercise cell before it")
    lesson.note("check", exercise_id)
    must_call(cell.source, "check", exercise_id)
    hidden = f'check("{exercise_id}", hidden=True)'
    cell.source += f"\n### BEGIN HIDDEN TESTS\n{hidden}\n### END HIDDEN TESTS"
    grade_id = f"check_{exercise_id.replace('.', '_')}"
    cell.metadata = {"nbgrader": grading(grade_id, solution=False, points=facts.points)}
    return [cell]


def must_call(source: str, function: str, argument: str) -> None:
    """Refuse a check cell whose last statement is not `function(argument)`: it checks nothing."""
    body = parsed(source).body
    last = ast.unparse(body[-1]) if body else ""
    if last not in (f"{function}({argument!r})", f"{function}({argument})"):
        raise BuildError(f'the last line must be {function}("{argument}"), not {last!r}')


def answer_cell(lesson: Lesson, cell: NotebookNode, question: str) -> list[NotebookNode]:
    """A knowledge-check answer: `answers["id"] = <expression>`, the expression a solution."""
    if question not in lesson.facts.questions:
        known = sorted(lesson.facts.questions)
        raise BuildError(f"unknown question id {question!r}; the registry has {known}")
    lesson.note("answer", question)
    body = parsed(cell.source).body
    if len(body) != 1 or not isinstance(body[0], ast.Assign):
        raise BuildError(f'an answer cell is exactly one answers["{question}"] = ...')
    target = ast.unparse(body[0].targets[0])
    if len(body[0].targets) != 1 or target != f"answers[{question!r}]":
        raise BuildError(f'assigns to {target}, not to answers["{question}"]')
    expression = ast.get_source_segment(cell.source, body[0].value) or ""
    lines = ["### BEGIN SOLUTION", *expression.splitlines(), "### END SOLUTION"]
    inner = "\n".join(f"    {line}" for line in lines)
    wrapped = f'answers["{question}"] = (\n{inner}\n)'
    if ast.dump(parsed(wrapped)) != ast.dump(parsed(cell.source)):
        raise BuildError(f"the answer to {question!r} changes when indented; put it on one line")
    cell.source = wrapped
    cell.metadata = {"nbgrader": grading(f"answer_{question}", solution=True)}
    return [cell]


def answer_check_cell(lesson: Lesson, cell: NotebookNode, question: str) -> list[NotebookNode]:
    """A graded cell of the knowledge check."""
    if question not in lesson.where["answer"]:
        raise BuildError(f"check of answer {question!r}, but no answer cell before it")
    lesson.note("answer_check", question)
    must_call(cell.source, "answers.check", question)
    points = lesson.facts.questions[question]
    cell.metadata = {"nbgrader": grading(f"check_{question}", solution=False, points=points)}
    return [cell]


def written_cell(lesson: Lesson, cell: NotebookNode, written: str) -> list[NotebookNode]:
    """A written answer that a person grades; its text is the sample answer and the rubric."""
    lesson.note("written", written)
    points = cell.metadata.get("points")
    if cell.cell_type != "markdown" or not isinstance(points, int) or points < 1:
        raise BuildError(f"written answer {written!r} needs [markdown] and points=<1 or more>")
    cell.metadata = {"nbgrader": grading(written, solution=True, points=points)}
    return [cell]


BUILDERS: dict[str, Callable[[Lesson, NotebookNode, str], list[NotebookNode]]] = {
    "exercise": exercise_cells,
    "check": check_cell,
    "answer": answer_cell,
    "answer_check": answer_check_cell,
    "written": written_cell,
}


def built_cell(lesson: Lesson, cell: NotebookNode) -> list[NotebookNode]:
    """What one cell of the script becomes."""
    unknown = set(cell.metadata) - set(KINDS) - KEPT - DROPPED
    if unknown:
        raise BuildError(f"unknown cell option {sorted(unknown)}; known are {KINDS}")
    kinds = [kind for kind in KINDS if kind in cell.metadata]
    if len(kinds) > 1:
        raise BuildError(f"one cell cannot be {' and '.join(kinds)}")
    if kinds:
        return BUILDERS[kinds[0]](lesson, cell, str(cell.metadata[kinds[0]]))
    cell.metadata = {key: cell.metadata[key] for key in sorted(cell.metadata) if key in KEPT}
    return [cell]


def check_complete(lesson: Lesson) -> None:
    """Every exercise and question has its cell and its check."""
    for kind, check, known in (
        ("exercise", "check", lesson.facts.exercises),
        ("answer", "answer_check", lesson.facts.questions),
    ):
        for given_id in known:
            if given_id not in lesson.where[kind]:
                raise BuildError(f"{kind} {given_id!r} of the registry is in no cell")
            if given_id not in lesson.where[check]:
                number = lesson.where[kind][given_id]
                raise BuildError(f"cell {number}: {kind} {given_id!r} has no {check} cell")
