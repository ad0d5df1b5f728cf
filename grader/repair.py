"""Find what would cost points in a notebook, say it in plain words, and repair it.

nbgrader gives 0, with a message that does not help, for a graded cell that was copied or split and
for a renamed file. Each problem is found by comparing with the released notebook: a cell is
recognised by its id, then by its grade id, then by its text.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from grader import lab
from grader.merge import Cell, Notebook, defined_names, grading, is_needed, text
from labkit.files import write_whole


@dataclass(frozen=True)
class Problem:
    """kind: one word for tests and tables; what: the finding; cure: what --fix does."""

    kind: str
    cell: str
    what: str
    cure: str


def diagnose(mine: Notebook, release: Notebook) -> list[Problem]:
    """Everything that would cost points at grading, in the order of repair()."""
    return repair(mine, release)[1]


def repair(mine: Notebook, release: Notebook) -> tuple[Notebook, list[Problem]]:
    """A notebook that grades as its author meant it, and what was wrong with theirs.

    mine is not modified. The learner's code is kept wherever it does not stand twice; the caller
    keeps a copy of the file all the same.
    """
    book = copy.deepcopy(mine)
    cells: list[Cell] = book["cells"]
    released = {grading(c)["grade_id"]: c for c in release["cells"] if is_needed(c)}
    problems = [
        *_unknown_grade_ids(cells, released),
        *_lost_metadata(cells, released),
        *_repeated(cells, released),
        *_altered(cells, released),
        *_missing(cells, release["cells"], released),
    ]
    return book, problems


def find_release(path: Path, mine: Notebook, root: Path) -> str:
    """The lesson that a notebook belongs to: by its file name, else by the cells it shares.

    Raises UnknownLesson if it shares no graded cell with any lesson.
    """
    lessons = lab.released_lessons(root)
    if path.stem in lessons:
        return path.stem
    best = max(lessons, key=lambda name: len(_shared(mine, root, name)), default="")
    if not best or not _shared(mine, root, best):
        known = ", ".join(lessons) or "none yet"
        raise lab.UnknownLesson(f"{path} has no cell of any released lesson ({known})")
    return best


def _shared(mine: Notebook, root: Path, lesson: str) -> set[str]:
    release = lab.read_notebook(lab.released_path(root, lesson))
    needed = [c for c in release["cells"] if is_needed(c)]
    return {c["id"] for c in needed} & {c["id"] for c in mine["cells"]} | (
        {grading(c)["grade_id"] for c in needed}
        & {grading(c).get("grade_id") for c in mine["cells"]}
    )


# ---- the five findings -------------------------------------------------------------------------


def _unknown_grade_ids(cells: list[Cell], released: dict[str, Cell]) -> Iterator[Problem]:
    for cell in cells:
        name = grading(cell).get("grade_id")
        if name is None or name in released:
            continue
        if is_needed(cell):
            yield Problem(
                "unknown",
                name,
                f"a cell claims to be the graded cell {name}, which this lesson does not have",
                "it becomes an ordinary cell; its text stays",
            )
        _make_ordinary(cell)


def _lost_metadata(cells: list[Cell], released: dict[str, Cell]) -> Iterator[Problem]:
    """Some front ends drop the marks by which nbgrader knows a cell."""
    present = {grading(cell).get("grade_id") for cell in cells}
    for name, model in released.items():
        cell = None if name in present else _recognise(cells, model)
        if cell is None:
            continue
        cell["metadata"] = {**cell["metadata"], **copy.deepcopy(model["metadata"])}
        yield Problem(
            "metadata",
            name,
            f"the cell {name} is there and has lost the mark by which grading finds it",
            "the mark is put back",
        )


def _recognise(cells: list[Cell], model: Cell) -> Cell | None:
    """The unmarked cell that is the released one: same id, same text, or same definition."""
    free = [c for c in cells if not is_needed(c)]
    names = defined_names(text(model)) if grading(model).get("solution") else set()
    tests = (
        lambda c: c["id"] == model["id"],
        lambda c: bool(text(c)) and text(c) == text(model),
        lambda c: bool(names) and c["cell_type"] == "code" and names <= defined_names(text(c)),
    )
    return next((cell for test in tests for cell in free if test(cell)), None)


def _repeated(cells: list[Cell], released: dict[str, Cell]) -> Iterator[Problem]:
    for name, model in released.items():
        same = [c for c in cells if grading(c).get("grade_id") == name]
        if len(same) < 2:
            continue
        if _join_split(cells, same, model):
            yield Problem(
                "split",
                name,
                f"the answer cell {name} was split in {len(same)}; grading would give 0",
                "its pieces are joined again",
            )
            continue
        kept = _first_with_code(same, model)
        for other in (c for c in same if c is not kept):
            if _says_something_else(other, kept, model):
                _make_ordinary(other)
                other["id"] = _free_id(cells, name)
            else:
                cells[:] = [c for c in cells if c is not other]
        yield Problem(
            "copied",
            name,
            f"the graded cell {name} is there {len(same)} times; grading would give 0",
            "the first one with code is graded, copies of it go, other text stays ungraded",
        )


def _join_split(cells: list[Cell], pieces: list[Cell], model: Cell) -> bool:
    """Join neighbouring pieces that make an answer only together; False if they do not."""
    start = next(i for i, c in enumerate(cells) if c is pieces[0])
    neighbours = [c is p for c, p in zip(cells[start:], pieces, strict=False)]
    whole = "\n".join(text(piece) for piece in pieces)
    torn = not all(_parses(text(piece)) for piece in pieces)
    if not (torn and all(neighbours) and _parses(whole)):
        return False
    if not defined_names(text(model)) <= defined_names(whole):
        return False
    pieces[0]["source"] = whole
    cells[start : start + len(pieces)] = [pieces[0]]
    return True


def _parses(source: str) -> bool:
    try:
        ast.parse(source)
    except (SyntaxError, ValueError):
        return False
    return True


def _first_with_code(same: list[Cell], model: Cell) -> Cell:
    """Of cells with one grade id: the first that is written; for a check the first unchanged."""
    if not grading(model).get("solution"):
        return next((c for c in same if text(c) == text(model)), same[0])
    names = defined_names(text(model))
    written = [c for c in same if text(c) and not _is_stub(c, model)]
    whole = [c for c in written if names <= defined_names(text(c))]
    return (whole or written or same)[0]


def _says_something_else(other: Cell, kept: Cell, model: Cell) -> bool:
    """True where the text must stay: it is neither a copy, nor another version of the answer.

    Another version below the graded one would silently take its place.
    """
    if not text(other) or text(other) in (text(kept), text(model)):
        return False
    names = defined_names(text(model))
    if grading(model).get("solution") and other["cell_type"] == "code":
        return bool(names) and not names & defined_names(text(other))
    return True


def _is_stub(cell: Cell, model: Cell) -> bool:
    return text(cell) == text(model)


def _altered(cells: list[Cell], released: dict[str, Cell]) -> Iterator[Problem]:
    """Checks whose text was edited, and marks that were edited in any cell."""
    for cell in cells:
        name = grading(cell).get("grade_id")
        model = released.get(name) if name else None
        if model is None:
            continue
        is_answer = grading(model).get("solution")
        wrong_kind = cell["cell_type"] != model["cell_type"]
        if wrong_kind or (not is_answer and text(cell) != text(model)):
            _become(cell, model, keep_text=bool(is_answer))
            yield Problem(
                "edited",
                str(name),
                f"the {'answer' if is_answer else 'check'} cell {name} was changed",
                "it is as released again" + (", with your text" if is_answer else ""),
            )
        elif grading(cell) != grading(model):
            cell["metadata"]["nbgrader"] = copy.deepcopy(grading(model))
            yield Problem(
                "metadata",
                str(name),
                f"the grading mark of {name} was changed",
                "the mark is as released again",
            )


def _become(cell: Cell, model: Cell, keep_text: bool) -> None:
    source = cell["source"] if keep_text else model["source"]
    cell.clear()
    cell.update(copy.deepcopy(model))
    cell["source"] = source


def _missing(
    cells: list[Cell], model_cells: list[Cell], released: dict[str, Cell]
) -> Iterator[Problem]:
    """Graded cells that are gone come back after the cell they followed in the release."""
    for position, model in enumerate(model_cells):
        name = grading(model).get("grade_id")
        if name not in released or any(grading(c).get("grade_id") == name for c in cells):
            continue
        back = copy.deepcopy(model)
        if any(c["id"] == back["id"] for c in cells):
            back["id"] = _free_id(cells, str(name))
        cells.insert(_place(cells, model_cells[:position]), back)
        kind = "answer" if grading(model).get("solution") else "check"
        yield Problem(
            "missing",
            str(name),
            f"the {kind} cell {name} is gone; without it its points are lost",
            "it is put back as released",
        )


def _place(cells: list[Cell], before: list[Cell]) -> int:
    for model in reversed(before):
        for index, cell in enumerate(cells):
            known = grading(model).get("grade_id")
            if cell["id"] == model["id"] or (known and grading(cell).get("grade_id") == known):
                return index + 1
    return 0


def _make_ordinary(cell: Cell) -> None:
    for key in ("nbgrader", "deletable", "editable"):
        cell["metadata"].pop(key, None)


def _free_id(cells: list[Cell], name: str) -> str:
    taken, number = {c["id"] for c in cells}, 1
    while f"own-{number}" in taken:
        number += 1
    return f"own-{number}"


# ---- on the command line -----------------------------------------------------------------------


def main(path: Path, fix: bool, root: Path | None = None) -> int:
    """`inferlab doctor NOTEBOOK [--fix]`: 0 if it grades as it is or is mended, else 1."""
    root = root or lab.course_root()
    if not path.is_file():
        raise ValueError(f"there is no file {path}")
    mine = lab.read_notebook(path)
    lesson = find_release(path, mine, root)
    book, problems = repair(mine, lab.read_notebook(lab.released_path(root, lesson)))
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
    if not fix:
        print(f"To repair it (a dated copy is kept): inferlab doctor '{path}' --fix")
        return 1
    return _write(path, right, book, bool(problems))


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
