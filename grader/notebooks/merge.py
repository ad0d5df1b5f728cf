"""Three-way merge of notebooks by stable cell ids: the learner's text always wins.

base  the release that the learner's copy was made from
mine  the learner's notebook now
new   the release now

No file is touched here; grader.learner.lab does that.
"""

from __future__ import annotations

import ast
import copy
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

MAX_SOURCE = 100_000  # characters; a cell that is longer is nobody's answer, and slow to parse
_IPYTHON = re.compile(r"^([ \t]*)[%!].*$", re.MULTILINE)

Cell = dict[str, Any]
Notebook = dict[str, Any]


@dataclass
class Merge:
    """The merged notebook, and what a person should know of it."""

    notebook: Notebook
    conflicts: list[str] = field(default_factory=list)  # changed on both sides: mine was kept
    updated: list[str] = field(default_factory=list)  # taken from the new release
    restored: list[str] = field(default_factory=list)  # deleted by the learner, needed for grading
    outputs_lost: list[str] = field(default_factory=list)  # of cells whose text is new, or gone


def merge(base: Notebook, mine: Notebook, new: Notebook) -> Merge:
    """Bring the changes from base to new into mine, without losing a word of mine.

    base, mine, new: notebooks of format 4.5 (every cell has an id); none is modified.
    A cell the learner left as it was follows the release. A cell the learner changed or added
    stays; where the release changed it too, its label is listed in `conflicts`. A deleted check
    or answer cell comes back, deleted text does not.
    """
    base, mine, new = copy.deepcopy(base), copy.deepcopy(mine), copy.deepcopy(new)
    _give_ids_back(mine["cells"], [*base["cells"], *new["cells"]])
    old, own, fresh = _by_id(base), _by_id(mine), _by_id(new)
    result = Merge({**mine, **new, "metadata": {**mine["metadata"], **new["metadata"]}})
    cells = []
    for name in _order(list(old), list(own), list(fresh)):
        if name not in own:
            cell = _not_in_mine(old.get(name), fresh[name], mine, result) if name in fresh else None
        elif name not in fresh:
            cell = _not_in_new(old.get(name), own[name], result)
        else:
            cell = _in_both(old.get(name), own[name], fresh[name], result)
        if cell is not None:
            cells.append(cell)
    result.notebook["cells"] = cells
    return result


def label(cell: Cell) -> str:
    """How a person would name the cell: its grade id, or its first line of text."""
    first = next((line for line in text(cell).splitlines() if line.strip()), "(empty)")
    return grade_id(cell) or first[:60]


def text(cell: Cell) -> str:
    """The cell's source as one string; the end of the last line does not count as a change."""
    source = cell["source"]
    return (source if isinstance(source, str) else "".join(source)).rstrip()


def grading(cell: Cell) -> dict[str, Any]:
    """nbgrader's metadata of the cell, {} where it has none."""
    metadata = cell.get("metadata")
    found = metadata.get("nbgrader") if isinstance(metadata, dict) else None
    return found if isinstance(found, dict) else {}


def grade_id(cell: Cell) -> str:
    """The name by which grading knows the cell, "" where it has none."""
    found = grading(cell).get("grade_id")
    return found if isinstance(found, str) else ""


def parsed(source: str) -> ast.Module | None:
    """The source as Python sees it, lines for IPython (%time, !ls) left out; None if it is none."""
    if len(source) > MAX_SOURCE:
        return None
    try:
        return ast.parse(_IPYTHON.sub(r"\1pass", source))
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # the last two: ((((((…
        return None


def defined_names(source: str) -> set[str]:
    """Functions and classes that the source defines at top level; none if it does not parse."""
    module = parsed(source)
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return {node.name for node in module.body if isinstance(node, kinds)} if module else set()


def is_needed(cell: Cell) -> bool:
    """True for a cell without which the notebook cannot be graded in full."""
    return bool(grading(cell).get("grade") or grading(cell).get("solution"))


def _same(a: Cell, b: Cell) -> bool:
    return a["cell_type"] == b["cell_type"] and text(a) == text(b)


def _by_id(notebook: Notebook) -> dict[str, Cell]:
    return {cell["id"]: cell for cell in notebook["cells"]}


def _give_ids_back(mine: list[Cell], released: Iterable[Cell]) -> None:
    """Cells that lost their id (cut and pasted, or saved by a front end that drops ids).

    A cell takes the released id of its grade id, or of its exact text. An id that two of the
    learner's cells share stays with the first.
    """
    taken: set[str] = set()
    for cell in mine:
        if cell.get("id") in taken or "id" not in cell:
            cell["id"] = ""
        taken.add(cell["id"])
    released = list(released)
    known = {cell["id"] for cell in released}
    by_grade_id = {grade_id(c): c["id"] for c in released if grade_id(c)}
    by_text = {(c["cell_type"], text(c)): c["id"] for c in released if text(c)}
    for number, cell in enumerate(mine):
        if cell["id"] in known:
            continue
        found = by_grade_id.get(grade_id(cell))
        found = found or by_text.get((cell["cell_type"], text(cell)))
        if found and found not in taken:
            cell["id"] = found
        elif not cell["id"]:
            cell["id"] = f"mine-{number}"
        taken.add(cell["id"])


def _order(old: list[str], own: list[str], fresh: list[str]) -> list[str]:
    """All ids, in the new release's order, or in the learner's if the learner moved cells."""
    moved = [i for i in own if i in old] != [i for i in old if i in own]
    return _weave(own, fresh) if moved else _weave(fresh, own)


def _weave(frame: list[str], guests: list[str]) -> list[str]:
    """Put each guest that the frame lacks directly after the guest before it."""
    woven, place = list(frame), 0
    for guest in guests:
        if guest not in frame:
            woven.insert(place, guest)
            place += 1
        else:
            place = woven.index(guest) + 1
    return woven


def _not_in_mine(old: Cell | None, fresh: Cell, mine: Notebook, result: Merge) -> Cell | None:
    """A released cell that the learner does not have: new, or deleted by the learner."""
    if old is None:
        result.updated.append(label(fresh))
        return fresh
    wanted = is_needed(fresh)
    if wanted and grading(fresh).get("solution"):
        # Their own definition in another cell must not be shadowed by a returning stub.
        written = set().union(*(defined_names(text(c)) for c in mine["cells"]))
        wanted = not defined_names(text(fresh)) & written
    if not wanted:
        return None
    result.restored.append(label(fresh))
    return fresh


def _not_in_new(old: Cell | None, own: Cell, result: Merge) -> Cell | None:
    """A cell of the learner's that the new release does not have."""
    if old is None:
        return own
    if _same(old, own):
        if own.get("outputs"):
            result.outputs_lost.append(label(own))
        result.updated.append(label(own))
        return None
    own["metadata"].pop("nbgrader", None)  # the release grades it no more
    return own


def _in_both(old: Cell | None, own: Cell, fresh: Cell, result: Merge) -> Cell:
    """Text by the three-way rule; what nbgrader needs always as released."""
    metadata = {**fresh["metadata"], **own["metadata"]}
    for key in ("nbgrader", "deletable", "editable"):
        metadata.pop(key, None)
        if key in fresh["metadata"]:
            metadata[key] = fresh["metadata"][key]
    if _same(own, fresh):
        return {**own, "metadata": metadata}
    if old is not None and _same(old, own):
        result.updated.append(label(fresh))
        if own.get("outputs"):
            result.outputs_lost.append(label(own))
        return {**fresh, "metadata": metadata}
    if old is None or not _same(old, fresh):
        result.conflicts.append(label(fresh))
    return {**own, "metadata": metadata}
