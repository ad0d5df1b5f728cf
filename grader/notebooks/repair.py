"""Find what would cost points in a notebook, say it in plain words, and repair it.

nbgrader by itself gives 0, with a message that does not help, for a graded cell that was copied or
split and for a renamed file. Each problem is found by comparing with the released notebook: a cell
is recognised by its id, then by its grade id, by its text, by what it defines, and by its place.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from grader.learner import lab
from grader.notebooks.copies import free_id, index_of, make_ordinary, remove, repeated
from grader.notebooks.merge import Cell, Notebook, grade_id, grading, is_needed, text
from grader.notebooks.problem import Problem
from grader.notebooks.recognise import (
    Released,
    bound_names,
    find_release,
    given_names,
    is_answer,
    needed_cells,
    recognise,
    used_names,
    where,
)
from grader.notebooks.shadowed import in_cells
from labkit.files import write_whole

__all__ = ["Problem", "diagnose", "find_release", "main", "n_written", "repair"]

BY_HAND = ("conflict", "shadowed")  # kinds of problems that only the author can mend
ACTED_ON = {"skip-execution", "raises-exception"}  # tags that change how a cell is run


def diagnose(mine: Notebook, release: Notebook) -> list[Problem]:
    """Everything that would cost points at grading, in the order of repair()."""
    return repair(mine, release)[1]


def repair(mine: Notebook, release: Notebook) -> tuple[Notebook, list[Problem]]:
    """A notebook that grades as its author meant it, and what was wrong with theirs.

    mine is not modified. The learner's code is kept wherever it does not stand twice; the caller
    keeps a copy of the file all the same. Afterwards every graded cell of the release is there
    once, of its type and with its metadata; checks have their text and stand below the answers
    that they judge.
    """
    book = copy.copy(mine)
    cells: list[Cell] = [_own(cell) for cell in mine["cells"]]
    book["cells"] = cells
    released = needed_cells(release)
    claims = _unusable_marks(cells)
    problems = [
        *_unknown_grade_ids(cells, released),
        *_lost_metadata(cells, released, release["cells"]),
        *_claims(claims),
        *repeated(cells, released),
        *_altered(cells, released),
        *_missing(cells, release["cells"], released),
        *_out_of_order(cells, released),
        *_lost_setup(cells, release["cells"]),
    ]
    return book, problems


def _own(cell: Cell) -> Cell:
    """The cell, to be changed as one likes; outputs are shared, for they are never looked at."""
    own = copy.copy(cell)
    own["metadata"] = copy.deepcopy(cell["metadata"]) if cell["metadata"] else {}
    return own


def n_written(mine: Notebook, release: Notebook) -> int:
    """How many answers of the release are written in the notebook."""
    released = needed_cells(release)
    cells = {grade_id(cell): cell for cell in repair(mine, release)[0]["cells"]}
    return sum(is_answer(m) and text(cells[n]) not in ("", text(m)) for n, m in released.items())


# ---- marks -------------------------------------------------------------------------------------


def _unusable_marks(cells: list[Cell]) -> list[Cell]:
    """Take away marks that name no cell; return the cells that claimed something by them."""
    claims = []
    for cell in cells:
        if "nbgrader" in cell["metadata"] and not grade_id(cell):
            claims += [cell] if is_needed(cell) else []
            make_ordinary(cell)
    return claims


def _claims(claims: list[Cell]) -> Iterator[Problem]:
    """What is said of those that were not recognised either."""
    n = sum(not grade_id(cell) for cell in claims)
    if n:
        what = (
            "a cell has a grading mark that names" if n == 1 else f"{n} cells have marks that name"
        )
        yield Problem("unknown", "", f"{what} no graded cell", "the mark goes; the text stays")


def _unknown_grade_ids(cells: list[Cell], released: Released) -> Iterator[Problem]:
    for cell in cells:
        name = grade_id(cell)
        if not name or name in released:
            continue
        if is_needed(cell):
            yield Problem(
                "unknown",
                name[:80],
                f"a cell claims to be the graded cell {name:.80}, which this lesson does not have",
                "it becomes an ordinary cell; its text stays",
            )
        make_ordinary(cell)


def _lost_metadata(cells: list[Cell], released: Released, release: list[Cell]) -> Iterator[Problem]:
    """Some front ends drop the marks by which nbgrader knows a cell."""
    present = {grade_id(cell) for cell in cells}
    for name, model in released.items():
        cell = None if name in present else recognise(cells, model, release)
        if cell is None:
            continue
        cell["metadata"] = {**cell["metadata"], **copy.deepcopy(model["metadata"])}
        yield Problem(
            "metadata",
            name,
            f"the cell {name} is there and has lost the mark by which grading finds it",
            "the mark is put back",
        )


# ---- cells that were changed, and cells that are gone ------------------------------------------


def _altered(cells: list[Cell], released: Released) -> Iterator[Problem]:
    """Checks whose text was edited, and types and marks that were edited in any cell."""
    for cell in cells:
        name = grade_id(cell)
        model = released.get(name)
        if model is None:
            continue
        answer = is_answer(model)
        if cell["cell_type"] != model["cell_type"] or (not answer and text(cell) != text(model)):
            kind = "answer" if answer else "check"
            cure = "it is as released again" + (", with your text" if answer else "")
            yield Problem("edited", name, f"the {kind} cell {name} was changed", cure)
        if grading(cell) != grading(model):
            what = f"the grading mark of {name} was changed{_how(grading(cell), grading(model))}"
            yield Problem("metadata", name, what, "the mark is as released again")
        tags = _tags(cell) & ACTED_ON - _tags(model)
        if tags:
            what = f"the cell {name} is tagged {' and '.join(sorted(tags))}"
            yield Problem("metadata", name, what, "the tags go; the cell is run and graded")
        _as_released(cell, model)


def _tags(cell: Cell) -> set[str]:
    tags = cell["metadata"].get("tags")
    return {tag for tag in tags if isinstance(tag, str)} if isinstance(tags, list) else set()


def _how(given: dict[str, Any], right: dict[str, Any]) -> str:
    """ " (points: 100, released with 2)" """
    shown = ("points", "grade", "solution", "locked")
    differ = [key for key in shown if given.get(key) != right.get(key)]
    said = [f"{k}: {given.get(k)!r:.20}, released with {right.get(k)!r:.20}" for k in differ]
    return f" ({'; '.join(said)})" if said else ""


def _as_released(cell: Cell, model: Cell) -> None:
    """Type and metadata of the release, all of it, and a check's text; the learner's answer."""
    own = {"id": cell["id"], "source": cell["source"]}
    if cell["cell_type"] != model["cell_type"]:
        cell.clear()
        cell.update(copy.deepcopy(model), **own)
    cell["metadata"] = copy.deepcopy(model["metadata"])
    if not is_answer(model):
        cell["source"] = model["source"]


def _missing(cells: list[Cell], release: list[Cell], released: Released) -> Iterator[Problem]:
    """Graded cells that are gone come back after the cell they followed in the release."""
    present = {grade_id(cell) for cell in cells}
    for position, model in enumerate(release):
        name = grade_id(model)
        if name not in released or name in present:
            continue
        kind = "answer" if is_answer(model) else "check"
        _put_back(cells, release, position)
        yield Problem(
            "missing",
            name,
            f"the {kind} cell {name} is gone",
            "it is put back as released",
        )


def _put_back(cells: list[Cell], release: list[Cell], position: int) -> None:
    model = release[position]
    back = copy.deepcopy(model)
    if any(c["id"] == back["id"] for c in cells):
        back["id"] = free_id(cells)
    place = _place(cells, release[:position])
    names = given_names(text(model)) if not is_needed(model) or is_answer(model) else set()
    for index, cell in enumerate(cells[:place]):
        # Their own definition in another cell must not be shadowed by a returning stub.
        if cell["cell_type"] == "code" and names & given_names(text(cell)):
            place = index
            break
    cells.insert(place, back)


def _place(cells: list[Cell], before: list[Cell]) -> int:
    found = (where(cells, model) for model in reversed(before))
    return next((index + 1 for index in found if index is not None), 0)


def _out_of_order(cells: list[Cell], released: Released) -> Iterator[Problem]:
    """A check must stand below every answer that it stood below in the release."""
    by_name = {grade_id(cell): cell for cell in cells}
    above: list[Cell] = []
    moved = []
    for name, model in released.items():
        cell = by_name[name]
        if is_answer(model):
            above.append(cell)
            continue
        last = max((index_of(cells, c) for c in above), default=-1)
        if index_of(cells, cell) > last:
            continue
        remove(cells, cell)
        cells.insert(last, cell)  # one place less since the check is out
        above.append(cell)
        moved.append(name)
    if moved:
        shown = ", ".join(moved[:3]) + (f" and {len(moved) - 3} more" if len(moved) > 3 else "")
        what = f"checks stand above answers that the lesson has above them ({shown})"
        yield Problem("moved", moved[0], what, "they are moved below")


def _lost_setup(cells: list[Cell], release: list[Cell]) -> Iterator[Problem]:
    """A released cell that is gone and gave names (imports, say) that graded cells use."""
    seen = {c["id"] for c in cells} | {text(c) for c in cells}
    gone = [
        position
        for position, model in enumerate(release)
        if model["cell_type"] == "code" and not {model["id"], text(model)} & seen
    ]
    if not gone:
        return
    code = [text(c) for c in cells if c["cell_type"] == "code"]
    bound = set().union(*map(bound_names, code))
    used = set().union(*(used_names(text(c)) for c in cells if is_needed(c)))
    for position in gone:
        given = given_names(text(release[position]))
        lost = given & (used - bound)
        if not lost or "*" in bound or is_needed(release[position]):
            continue
        _put_back(cells, release, position)
        bound |= given
        words = ", ".join(sorted(lost)[:5])
        yield Problem(
            "missing",
            "",
            f"a cell of the lesson that graded cells need is gone (it gives {words})",
            "it is put back as released",
        )


def _shadowed(cells: list[Cell]) -> Iterator[Problem]:
    """What only the author can mend: a variable that hides one of Python's own functions."""
    for shadow, words in in_cells(cells):
        yield Problem("shadowed", shadow.name, words, "nothing, because only you know a better name")


# ---- on the command line -----------------------------------------------------------------------


def main(path: Path, fix: bool, root: Path | None = None) -> int:
    """`inferlab doctor NOTEBOOK [--fix]`: 0 if it grades as it is or is mended, else 1."""
    root = root or lab.course_root()
    if not path.is_file():
        raise ValueError(f"there is no file {path}")
    mine, mended = lab.read(path)
    lesson = find_release(path, mine, root)
    book, found = repair(mine, lab.read_notebook(lab.released_path(root, lesson)))
    problems = [*mended, *found, *_shadowed(book["cells"])]
    right = path.with_name(f"{lesson}.ipynb")
    for number, problem in enumerate(problems, 1):
        print(f"{number}. {problem.what}.\n   With --fix: {problem.cure}.")
    misnamed = right.name != path.name
    if misnamed:
        print(f"{len(problems) + 1}. grading looks for {right.name}; this file is {path.name}.")
        print(f"   With --fix: {_naming(right)}.")
    if not problems and not misnamed:
        print(f"{path}: ready to submit as lesson {lesson}")
        return 0
    by_hand = [problem for problem in problems if problem.kind in BY_HAND]
    if not fix:
        if problems != by_hand or misnamed:
            print(f"To repair it (a dated copy is kept): inferlab doctor '{path}' --fix")
        return 1
    return max(_write(path, right, book, problems != by_hand), bool(by_hand))


def _naming(right: Path) -> str:
    if right.exists():
        return f"nothing, because {right.name} exists already; decide which of the two is yours"
    return f"it is copied to {right.name}"


def _write(path: Path, right: Path, book: Notebook, mended: bool) -> int:
    if mended:
        print(f"repaired; as it was before: {lab.keep_copy(path)}")
        write_whole(path, lab.notebook_text(book))
    if right.name != path.name:
        if right.exists():
            print(f"not copied: {right} exists already")
            return 1
        write_whole(right, lab.notebook_text(book))
        print(f"copied to {right}: submit that one")
    return 0
