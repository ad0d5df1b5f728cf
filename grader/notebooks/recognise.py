"""Which cell of a learner's notebook is which cell of the release, when the marks are lost."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from pathlib import Path

from grader.learner import lab
from grader.notebooks.merge import Cell, Notebook, grade_id, grading, is_needed, parsed, text

Released = Mapping[str, Cell]  # grade id -> the released cell, in the release's order


def needed_cells(release: Notebook) -> dict[str, Cell]:
    """The cells without which a notebook cannot be graded in full: grade id -> cell, in order."""
    return {grade_id(c): c for c in release["cells"] if is_needed(c) and grade_id(c)}


def is_answer(model: Cell) -> bool:
    """True for a cell that a learner writes in, False for a check."""
    return bool(grading(model).get("solution"))


# ---- names -------------------------------------------------------------------------------------


def given_names(source: str) -> frozenset[str]:
    """What a cell gives the rest of the notebook: functions, classes, names, items (`a["b"]`)."""
    return _names(source)[0]


def used_names(source: str) -> frozenset[str]:
    """Every name that the source reads, anywhere in it."""
    return _names(source)[1]


def bound_names(source: str) -> frozenset[str]:
    """Every name that the source binds, at the top or within a function."""
    return _names(source)[2]


@lru_cache(maxsize=2048)  # the cells that a class leaves as released are the same everywhere
def _names(source: str) -> tuple[frozenset[str], frozenset[str], frozenset[str]]:
    """The names that a source gives, uses and binds."""
    module = parsed(source)
    if module is None:
        return frozenset(), frozenset(), frozenset()
    nodes = list(ast.walk(module))
    names = [node for node in nodes if isinstance(node, ast.Name)]
    used = {node.id for node in names if isinstance(node.ctx, ast.Load)}
    bound = {node.id for node in names if not isinstance(node.ctx, ast.Load)}
    bound |= {node.arg for node in nodes if isinstance(node, ast.arg)}
    given = set().union(*map(_given_by, module.body))
    return frozenset(given), frozenset(used), frozenset(bound | given)


def _given_by(node: ast.stmt) -> set[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {node.name}
    if isinstance(node, ast.Import | ast.ImportFrom):
        return {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
    if isinstance(node, ast.Assign | ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        return {ast.unparse(target) for target in targets}
    return set()


# ---- cells -------------------------------------------------------------------------------------


def recognise(cells: list[Cell], model: Cell, release: list[Cell]) -> Cell | None:
    """The unmarked cell that is the released one: by id, text, what it gives, or its place."""
    free = [c for c in cells if not is_needed(c)]
    names = given_names(text(model)) if is_answer(model) else set()
    tests: tuple[Callable[[Cell], bool], ...] = (
        lambda c: c["id"] == model["id"],
        lambda c: bool(text(c)) and text(c) == text(model),
        lambda c: bool(names) and c["cell_type"] == "code" and names <= given_names(text(c)),
    )
    found = next((cell for test in tests for cell in free if test(cell)), None)
    in_words = is_answer(model) and not names
    return found or (_by_place(cells, model, release) if in_words else None)


def _by_place(cells: list[Cell], model: Cell, release: list[Cell]) -> Cell | None:
    """The learner's own unmarked cell of the same type that stands where the released one did."""
    place = next(i for i, c in enumerate(release) if c is model)
    ids, texts = {c["id"] for c in release}, {text(c) for c in release}
    for step in (-1, 1):
        if not 0 <= place + step < len(release):
            continue
        beside = where(cells, release[place + step])
        index = beside - step if beside is not None else -1
        if not 0 <= index < len(cells):
            continue
        cell = cells[index]
        own = cell["id"] not in ids and text(cell) not in texts and not is_needed(cell)
        if own and text(cell) and cell["cell_type"] == model["cell_type"]:
            return cell
    return None


def where(cells: list[Cell], model: Cell) -> int | None:
    """Where a released cell stands among the learner's; None if it is gone."""
    name = grade_id(model)
    for index, cell in enumerate(cells):
        if cell["id"] == model["id"] or (name and grade_id(cell) == name):
            return index
    same = (i for i, cell in enumerate(cells) if text(cell) and text(cell) == text(model))
    return next(same, None)


def shared(mine: Notebook, release: Notebook) -> set[str]:
    """Grade ids of the released cells of which the notebook has a trace: id, grade id or text."""
    ids = {c["id"] for c in mine["cells"]}
    names = {grade_id(c) for c in mine["cells"]}
    texts = {text(c) for c in mine["cells"]}
    return {
        name
        for name, model in needed_cells(release).items()
        if model["id"] in ids
        or name in names
        or (text(model) in texts and not grading_by_hand(model))
    }


def grading_by_hand(model: Cell) -> bool:
    """True for a written answer, which a person grades; its stub is the same in every lesson."""
    return is_answer(model) and bool(grading(model).get("grade"))


# ---- lessons -----------------------------------------------------------------------------------


def find_release(path: Path, mine: Notebook, root: Path) -> str:
    """The lesson that a notebook belongs to: by its file name, else by the cells it shares.

    Raises UnknownLesson if it shares no graded cell with any lesson.
    """
    lessons = lab.released_lessons(root)
    if path.stem in lessons:
        return path.stem
    best = most_shared(mine, lessons, root)
    if not best:
        known = ", ".join(lessons) or "none yet"
        raise lab.UnknownLesson(f"{path} has no cell of any released lesson ({known})")
    return best


def most_shared(mine: Notebook, lessons: Iterable[str], root: Path) -> str:
    """The lesson of which the notebook has most graded cells, "" if it has none of any."""
    counts = {
        name: len(shared(mine, lab.read_notebook(lab.released_path(root, name))))
        for name in lessons
    }
    best = max(counts, key=lambda name: counts[name], default="")
    return best if counts.get(best) else ""
