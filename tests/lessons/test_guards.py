"""Run All on a half-filled notebook: no cell may fall over an exercise that is still to be written.

A cell that uses what a learner writes begins with `if ready(...)`. It must ask for every exercise
that it calls, and for every exercise that a name of an earlier cell waited for.
"""

import ast

import pytest
from lesson_text import cells
from nbformat import NotebookNode

from grader.judging import registry

LESSONS = registry.lessons()


def asked(node: ast.AST, lists: dict[str, set[str]]) -> frozenset[str]:
    """The exercises that the calls of ready(...) within a node ask for; a class for its methods."""
    found: set[str] = set()
    for call in ast.walk(node):
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "ready":
            for given in call.args:
                if isinstance(given, ast.Starred):
                    found |= lists[ast.unparse(given.value)]
                else:
                    found.add(ast.literal_eval(given))
    return frozenset(name.partition(".")[0] for name in found)


def condition(statement: ast.stmt) -> ast.AST:
    return statement.test if isinstance(statement, ast.If) else ast.Pass()


def strings(statement: ast.stmt) -> set[str]:
    return {n.value for n in ast.walk(statement) if isinstance(n, ast.Constant) and n.value}


def given_names(statement: ast.stmt) -> set[str]:
    nodes = list(ast.walk(statement))
    names = {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    names |= {n.name for n in nodes if isinstance(n, ast.FunctionDef | ast.ClassDef)}
    names |= {n.asname or n.name for n in nodes if isinstance(n, ast.alias)}
    names |= {n.name for n in nodes if isinstance(n, ast.ExceptHandler) and n.name}
    return names | {n.arg for n in nodes if isinstance(n, ast.arg)}


def used_names(statement: ast.stmt) -> set[str]:
    nodes = (n for n in ast.walk(statement) if isinstance(n, ast.Name))
    return {n.id for n in nodes if isinstance(n.ctx, ast.Load)} - given_names(statement)


def unguarded(lesson_cells: tuple[NotebookNode, ...]) -> list[str]:
    """What a cell uses without asking for the exercise that it needs."""
    exercises: set[str] = set()
    waits: dict[str, list[frozenset[str]]] = {}  # name -> what each statement that gives it asks
    lists: dict[str, set[str]] = {}
    found = []
    for cell in lesson_cells:
        if cell.cell_type != "code":
            continue
        if name := cell.metadata.get("exercise"):
            exercises.add(name.partition(".")[0])
            continue
        for statement in ast.parse(cell.source).body:
            if isinstance(statement, ast.Assign | ast.AugAssign):
                for name in given_names(statement):
                    lists[name] = lists.get(name, set()) | strings(statement)
            asks = asked(statement, lists)
            for name in sorted(used_names(statement)):
                called = name in exercises and not isinstance(statement, ast.FunctionDef)
                if called and name not in asks and not _only_named(statement):
                    found.append(f"{name} is called; asked for: {sorted(asks)}")
                if name in waits and not any(before <= asks for before in waits[name]):
                    more = [sorted(before - asks) for before in waits[name]]
                    found.append(f"{name} waits for {more} besides {sorted(asks)}")
            for name in given_names(statement):
                waits.setdefault(name, []).append(asked(condition(statement), lists))
    return found


def _only_named(statement: ast.stmt) -> bool:
    """True for `greedy = partial(sampling_law, temperature=0)`: nothing is called yet."""
    return isinstance(statement, ast.Assign) and "partial(" in ast.unparse(statement)


@pytest.mark.parametrize("lesson", LESSONS)
def test_a_cell_asks_for_every_exercise_that_it_needs(lesson):
    assert unguarded(cells(lesson)) == []


def _cells(*sources: str) -> tuple[NotebookNode, ...]:
    first = NotebookNode(cell_type="code", source="", metadata={"exercise": "f"})
    return (first, *(NotebookNode(cell_type="code", source=s, metadata={}) for s in sources))


@pytest.mark.parametrize(
    ("sources", "n_found"),
    [
        (['if ready("f"):\n    x = f()', 'if ready("f"):\n    print(x)'], 0),
        (['if ready("f"):\n    x = f()', "print(x)"], 1),
        (['if ready("g"):\n    x = f()'], 1),
        (
            ['if ready("g"):\n    if ready("f"):\n        f()\n    x = 1', 'if ready("g"):\n    x'],
            0,
        ),
        (['PARTS = ("f", "g")\nif ready(*PARTS):\n    f()'], 0),
        (["def later():\n    return f()"], 0),
    ],
)
def test_what_is_not_asked_for_is_found(sources, n_found):
    assert len(unguarded(_cells(*sources))) == n_found
