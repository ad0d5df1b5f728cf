"""Graded cells that stand in a notebook more than once: copies, and pieces of a split one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from grader.notebooks.merge import Cell, grade_id, parsed, text
from grader.notebooks.problem import Problem
from grader.notebooks.recognise import Released, given_names, is_answer


def repeated(cells: list[Cell], released: Released) -> Iterator[Problem]:
    """Leave one cell with each grade id: pieces are joined, of copies the first with code stays."""
    groups: dict[str, list[Cell]] = defaultdict(list)
    for cell in cells:
        groups[grade_id(cell)].append(cell)
    for name, model in released.items():
        same = groups[name]
        if len(same) < 2:
            continue
        if _join_split(cells, same, model):
            yield Problem(
                "split",
                name,
                f"the answer cell {name} was split in {len(same)}",
                "its pieces are joined again",
            )
            continue
        kept = _first_with_code(same, model)
        for other in (c for c in same if c is not kept):
            if _says_something_else(other, kept, model):
                make_ordinary(other)
                other["id"] = free_id(cells)
            else:
                remove(cells, other)
        yield Problem(
            "copied",
            name,
            f"the graded cell {name} is there {len(same)} times",
            "the first one with code is graded, copies of it go, other text stays ungraded",
        )


def _join_split(cells: list[Cell], pieces: list[Cell], model: Cell) -> bool:
    """Join pieces that make an answer only together; False if they do not."""
    if not is_answer(model):
        return False
    prose = model["cell_type"] == "markdown"
    whole = ("\n\n" if prose else "\n").join(text(piece) for piece in pieces)
    if not (_is_torn_prose if prose else _is_torn_code)(cells, pieces, model, whole):
        return False
    pieces[0]["source"] = whole
    for piece in pieces[1:]:
        remove(cells, piece)
    return True


def _is_torn_code(cells: list[Cell], pieces: list[Cell], model: Cell, whole: str) -> bool:
    torn = any(parsed(text(piece)) is None for piece in pieces)
    return torn and parsed(whole) is not None and given_names(text(model)) <= given_names(whole)


def _is_torn_prose(cells: list[Cell], pieces: list[Cell], model: Cell, whole: str) -> bool:
    """Neighbours that each say something of their own."""
    start = index_of(cells, pieces[0])
    neighbours = [c is p for c, p in zip(cells[start:], pieces, strict=False)]
    said = {text(piece) for piece in pieces} - {"", text(model)}
    return all(neighbours) and len(said) == len(pieces)


def _first_with_code(same: list[Cell], model: Cell) -> Cell:
    """Of cells with one grade id: the first that is written; for a check the first unchanged."""
    if not is_answer(model):
        return next((c for c in same if text(c) == text(model)), same[0])
    names = given_names(text(model))
    written = [c for c in same if text(c) not in ("", text(model))]
    whole = [c for c in written if names <= given_names(text(c))]
    return (whole or written or same)[0]


def _says_something_else(other: Cell, kept: Cell, model: Cell) -> bool:
    """True where the text must stay: it is neither a copy, nor another version of the answer.

    Another version below the graded one would silently take its place.
    """
    if not text(other) or text(other) in (text(kept), text(model)):
        return False
    names = given_names(text(model))
    if is_answer(model) and other["cell_type"] == "code":
        return not names & given_names(text(other))
    return True


# ---- cells in their list -----------------------------------------------------------------------


def index_of(cells: list[Cell], cell: Cell) -> int:
    return next(index for index, c in enumerate(cells) if c is cell)


def remove(cells: list[Cell], cell: Cell) -> None:
    del cells[index_of(cells, cell)]


def free_id(cells: list[Cell]) -> str:
    taken, number = {c["id"] for c in cells}, 1
    while f"own-{number}" in taken:
        number += 1
    return f"own-{number}"


def make_ordinary(cell: Cell) -> None:
    for key in ("nbgrader", "deletable", "editable"):
        cell["metadata"].pop(key, None)
