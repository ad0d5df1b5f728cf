"""JSON that should be a notebook -> a valid notebook of format 4.5, every cell with its own id."""

from __future__ import annotations

import copy
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

import nbformat
from nbformat.v4.rwbase import rejoin_lines

from grader.notebooks.merge import Cell, Notebook, defined_names
from grader.notebooks.problem import Problem

MAX_CELLS = 1_500  # a lesson has about 150
MAX_CODE = 2_000_000  # characters; a lesson has about 50,000
MAX_OUTPUTS = 1_000  # of all cells; each is looked at, and grading makes them anew
MAX_DEPTH = 100  # lists in lists; pictures with data come to about 20

KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}
_LANGUAGES = {  # by the kernel's name, where nothing else says it
    r"ir$": "R",
    r"julia": "Julia",
    r"javascript|deno|tslab": "JavaScript",
    r"xcpp": "C++",
    r"bash$": "Bash",
}
_ID = re.compile(r"[a-zA-Z0-9_-]{1,64}\Z")
_CONFLICT = [re.compile(p, re.MULTILINE) for p in (r"^<{7} ", r"^={7}$", r"^>{7} ")]


class NotANotebook(ValueError):
    """What was handed in cannot be read as a notebook; the text is for its author."""


def well_formed(raw: Any) -> tuple[Notebook, list[Problem]]:
    """raw, as read from JSON, as a valid notebook of format 4.5; what was mended; raw stays.

    Ids that are given here are the same every time. Raises NotANotebook.
    """
    _refuse_depth(raw)
    book, problems = _version_4(raw)
    cells, odd = _cells(book["cells"])
    old = bool(problems)
    problems += _fewer_outputs(cells)
    metadata, more = _metadata(book.get("metadata"), cells)
    made = {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}
    problems += [*more, *_odd_problems(odd), *_own_ids(cells, old)]
    if not _valid(made):
        problems += _strip(made)
    problems += _unfinished_merges(cells)
    return rejoin_lines(nbformat.from_dict(made)), problems


def _refuse_depth(raw: Any) -> None:
    level, depth = [raw], 0
    while level:
        depth += 1
        if depth > MAX_DEPTH:
            raise NotANotebook(f"the file is nested more than {MAX_DEPTH} deep; it is not read")
        inner: list[Any] = []
        for value in level:
            if isinstance(value, dict):
                inner += [v for v in value.values() if isinstance(v, dict | list)]
            elif isinstance(value, list):
                inner += [v for v in value if isinstance(v, dict | list)]
        level = inner


# ---- versions ----------------------------------------------------------------------------------


def _version_4(raw: Any) -> tuple[dict[str, Any], list[Problem]]:
    """A notebook of format 4 whose cells are a list, not yet looked at."""
    if not isinstance(raw, dict):
        raise NotANotebook(f"the file is JSON, yet no notebook: it is {_a(raw)}")
    if "cells" not in raw and "worksheets" in raw:
        return _from_old(raw)
    if "cells" not in raw:
        keys = ", ".join(list(map(str, raw))[:6]) or "nothing"
        raise NotANotebook(f"the file is JSON, yet no notebook: it has no cells, only {keys:.200}")
    cells = raw["cells"]
    if not isinstance(cells, list):
        raise NotANotebook(f"the notebook's cells should be a list; they are {_a(cells)}")
    if len(cells) > MAX_CELLS:
        raise NotANotebook(f"the notebook has {len(cells):,} cells; at most {MAX_CELLS:,} are read")
    version = (raw.get("nbformat"), raw.get("nbformat_minor"))
    if version == (4, 5):
        return raw, []
    said = ".".join(map(str, version)) if all(isinstance(v, int) for v in version) else "not given"
    return raw, [_format_problem(said[:20])]


def _from_old(raw: dict[str, Any]) -> tuple[dict[str, Any], list[Problem]]:
    """Formats 2 and 3 kept their cells in worksheets; nbformat knows how to bring them up."""
    sheets = raw["worksheets"]
    if not isinstance(sheets, list) or not all(
        isinstance(s, dict) and isinstance(s.get("cells", []), list) for s in sheets
    ):
        raise NotANotebook("the notebook is of format 3, and its worksheets are damaged")
    if not any(sheet.get("cells") for sheet in sheets):
        raise NotANotebook("the notebook is of format 3 and holds no cells: it is empty or cut off")
    if sum(len(s.get("cells", [])) for s in sheets) > MAX_CELLS:
        raise NotANotebook(f"the notebook has more than {MAX_CELLS:,} cells")
    version = 2 if raw.get("nbformat") == 2 else 3
    old = {"metadata": {}, **raw, "nbformat": version}
    old["nbformat_minor"] = 0
    try:
        book = nbformat.convert(nbformat.reader.reads(json.dumps(old)), 4)
    except Exception as trouble:  # whatever its parser stumbles over
        words = f"{type(trouble).__name__}: {trouble}"
        raise NotANotebook(
            f"the notebook is of format {version} and damaged ({words:.120}). "
            "Open it in JupyterLab, save it, and hand it in again"
        ) from None
    for cell in book["cells"]:
        cell.pop("id", None)  # nbformat's are random
    return book, [_format_problem(str(version))]


def _format_problem(said: str) -> Problem:
    what = f"the notebook's format is {said}"
    return Problem("format", "", what, "it becomes format 4.5, in which every cell has an id")


# ---- cells -------------------------------------------------------------------------------------


def _cells(raw: list[Any]) -> tuple[list[Cell], dict[str, list[int]]]:
    """The cells, and what was odd -> the numbers (from 1) of the cells where it was."""
    odd: dict[str, list[int]] = defaultdict(list)
    cells = []
    for number, given in enumerate(raw, 1):
        if not isinstance(given, dict):
            raise NotANotebook(f"cell {number} of the notebook is no cell: it is {_a(given)}")
        cells.append(_cell(given, number, odd))
    n_characters = sum(len(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    if n_characters > MAX_CODE:
        raise NotANotebook(
            f"the code cells hold {n_characters:,} characters; at most {MAX_CODE:,} are read"
        )
    return cells, odd


def _cell(given: dict[str, Any], number: int, odd: dict[str, list[int]]) -> Cell:
    kind = _kind(given, number, odd)
    metadata = given.get("metadata", {})
    if not isinstance(metadata, dict):
        odd["metadata"].append(number)
        metadata = {}
    cell: Cell = {"cell_type": kind, "metadata": copy.deepcopy(metadata) if metadata else {}}
    cell["source"] = _source(given.get("source", ""), number, odd)
    if isinstance(given.get("id"), str) and _ID.match(given["id"]):
        cell["id"] = given["id"]
    if kind == "code":
        outputs, count = given.get("outputs"), given.get("execution_count")
        cell["outputs"] = copy.deepcopy(outputs) if isinstance(outputs, list) else []
        cell["execution_count"] = count if type(count) is int and count >= 0 else None
    elif isinstance(given.get("attachments"), dict):
        cell["attachments"] = copy.deepcopy(given["attachments"])
    return cell


def _fewer_outputs(cells: list[Cell]) -> Iterator[Problem]:
    """Without the outputs of all cells, where there are too many to look at."""
    n_outputs = sum(len(cell.get("outputs", ())) for cell in cells)
    if n_outputs > MAX_OUTPUTS:
        for cell in cells:
            if cell["cell_type"] == "code":
                cell["outputs"] = []
        what = f"the notebook has {n_outputs:,} outputs; at most {MAX_OUTPUTS:,} are read"
        yield Problem("outputs", "", what, "they are dropped; grading makes them anew")


def _kind(given: dict[str, Any], number: int, odd: dict[str, list[int]]) -> str:
    said = given.get("cell_type")
    if said in ("code", "markdown", "raw"):
        return str(said)
    odd["type"].append(number)
    word = said.strip().lower() if isinstance(said, str) else ""
    if word in ("code", "markdown", "raw"):
        return word
    if word == "heading":
        return "markdown"
    return "code" if "outputs" in given or "execution_count" in given else "raw"


def _source(given: Any, number: int, odd: dict[str, list[int]]) -> str:
    if isinstance(given, list) and all(isinstance(line, str) for line in given):
        given = "".join(given)
    if not isinstance(given, str):
        raise NotANotebook(
            f"the text of cell {number} should be text or a list of lines; it is {_a(given)}"
        )
    if "\r" in given:
        odd["newlines"].append(number)
        given = given.replace("\r\n", "\n").replace("\r", "\n")
    return given


_ODD = {
    "type": ("is of no known type", "are of no known type", "it becomes code, text or raw"),
    "metadata": ("has damaged metadata", "have damaged metadata", "the metadata starts empty"),
    "newlines": (
        "has the line ends of Windows",
        "have the line ends of Windows",
        "they become plain line ends",
    ),
}


def _odd_problems(odd: dict[str, list[int]]) -> Iterator[Problem]:
    for kind, (one, many, cure) in _ODD.items():
        if odd[kind]:
            words = many if len(odd[kind]) > 1 else one
            yield Problem(kind, "", f"{_numbers(odd[kind])} {words}", cure)


def _own_ids(cells: list[Cell], old: bool) -> Iterator[Problem]:
    """Every cell gets an id of its own; where several share one, the first keeps it.

    old: the format had no ids, so that their lack is no news.
    """
    taken = {cell["id"] for cell in cells if "id" in cell}
    seen: set[str] = set()
    given = []
    for number, cell in enumerate(cells, 1):
        if cell.get("id", "") in seen or "id" not in cell:
            given.append(number)
            cell["id"] = _free(f"cell-{number}", taken)
            taken.add(cell["id"])
        seen.add(cell["id"])
    if given and not old:
        lack = "lacks an id of its own" if len(given) == 1 else "lack ids of their own"
        yield Problem("ids", "", f"{_numbers(given)} {lack}", "new ids are given")


def _free(wish: str, taken: set[str]) -> str:
    while wish in taken:
        wish += "x"
    return wish


def _unfinished_merges(cells: Iterable[Cell]) -> Iterator[Problem]:
    for number, cell in enumerate(cells, 1):
        if _both_sides(cell["source"]):
            yield Problem(
                "conflict",
                "",
                f"cell {number} holds both sides of an unfinished merge and cannot run",
                "nothing: keep one side and delete the lines <<<<<<<, ======= and >>>>>>>",
            )


def _both_sides(source: str) -> bool:
    """Whether the three marker lines of a merge stand in the source, in their order."""
    start = 0
    for pattern in _CONFLICT:
        found = pattern.search(source, start)
        if found is None:
            return False
        start = found.end()
    return True


# ---- what the format does not allow ------------------------------------------------------------


def _valid(book: Notebook) -> bool:
    try:
        nbformat.validate(book, version=4, version_minor=5)
    except nbformat.ValidationError:
        return False
    return True


def _strip(book: Notebook) -> Iterator[Problem]:
    """Take away what the format does not allow; every text and every grading mark stays."""
    bad = []
    for number, cell in enumerate(book["cells"], 1):
        if not _valid({**book, "metadata": {}, "cells": [cell]}):
            bad.append(number)
            _bare(cell)
    if not _valid({**book, "cells": []}):
        book["metadata"] = {"kernelspec": dict(KERNEL), "language_info": {"name": "python"}}
        yield Problem("metadata", "", "the notebook's own metadata is damaged", "it starts afresh")
    if bad:
        has = "has" if len(bad) == 1 else "have"
        what = f"{_numbers(bad)} {has} outputs or metadata that the format does not allow"
        yield Problem("metadata", "", what, "they are dropped; the text stays")


def _bare(cell: Cell) -> None:
    mark = cell["metadata"].get("nbgrader")
    cell["metadata"] = {"nbgrader": mark} if isinstance(mark, dict) else {}
    cell.pop("attachments", None)
    if cell["cell_type"] == "code":
        cell["outputs"], cell["execution_count"] = [], None


# ---- the notebook's metadata -------------------------------------------------------------------


def _metadata(given: Any, cells: list[Cell]) -> tuple[dict[str, Any], list[Problem]]:
    """Metadata that names no other kernel and language than this course's, whatever it said."""
    problems = []
    metadata = copy.deepcopy(given) if isinstance(given, dict) else {}
    kernel, info = metadata.get("kernelspec"), metadata.get("language_info")
    kernel = kernel if isinstance(kernel, dict) else {}
    info = info if isinstance(info, dict) else {}
    language = _language(kernel, info)
    if language and not any(defined_names(c["source"]) for c in cells if c["cell_type"] == "code"):
        raise NotANotebook(
            f"the notebook is written in {language:.40}; this course's lessons are Python"
        )
    name = kernel.get("name")
    if language or (kernel and name != KERNEL["name"]):
        said = f"{language:.40}" if language else f"the kernel {name!r:.60}"
        what = f"the notebook asks for {said}, which the course does not have"
        problems.append(Problem("kernel", "", what, "it asks for the course's Python"))
    said_wrong = name != KERNEL["name"] or not isinstance(kernel.get("display_name"), str)
    if language or ("kernelspec" in metadata and said_wrong):
        metadata["kernelspec"] = dict(KERNEL)
    if language or ("language_info" in metadata and not isinstance(info.get("name"), str)):
        metadata["language_info"] = {"name": "python"}
    if not _widgets_whole(metadata.get("widgets", {})):
        del metadata["widgets"]
        what = "the saved state of the widgets is damaged"
        problems.append(Problem("widgets", "", what, "it is dropped; no grade depends on it"))
    return metadata, problems


def _language(kernel: dict[str, Any], info: dict[str, Any]) -> str:
    """The language that the notebook names if it is not Python, else ""."""
    named = [info.get("name"), kernel.get("language")]
    said = next((word.strip() for word in named if isinstance(word, str) and word.strip()), "")
    if said:
        return "" if re.match(r"i?python|py\b", said, re.IGNORECASE) else said
    name = str(kernel.get("name"))
    return next((said for pattern, said in _LANGUAGES.items() if re.match(pattern, name)), "")


def _widgets_whole(widgets: Any) -> bool:
    """Whether nbconvert can read the state; some front ends leave it half written."""
    return isinstance(widgets, dict) and all(
        isinstance(state, dict) and isinstance(state.get("state"), dict)
        for state in widgets.values()
    )


# ---- words -------------------------------------------------------------------------------------


def _a(value: Any) -> str:
    """How a person would call a JSON value."""
    if value is None:
        return "nothing (null)"
    names = {dict: "an object", list: "a list", str: "a text", bool: "true or false"}
    return names.get(type(value), "a number")


def _numbers(numbers: list[int]) -> str:
    """ "cell 3", "cells 3 and 7", "cells 3, 7, 9 and 20 more" """
    if len(numbers) == 1:
        return f"cell {numbers[0]}"
    if len(numbers) > 5:
        return f"cells {', '.join(map(str, numbers[:3]))} and {len(numbers) - 3} more"
    return f"cells {', '.join(map(str, numbers[:-1]))} and {numbers[-1]}"
