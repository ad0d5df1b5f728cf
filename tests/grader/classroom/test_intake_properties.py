"""Whatever happens to a notebook, reading and repairing end with one that can be graded."""

import copy
import json

import nbformat
from handed_in import LESSON, graded_cells, is_answer, perfect, release
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from nbgrader.nbgraderformat import MetadataValidator

from grader.classroom.intake import prepare
from grader.classroom.reading import NotANotebook, read_bytes
from grader.learner import lab
from grader.notebooks.merge import grade_id, is_needed
from grader.notebooks.repair import diagnose, repair

numbers = st.integers(0, 200)
odd = st.sampled_from(
    [None, True, 7, -1.5, "", "x", "check_attend_one", [], ["a"], [1], {}, {"a": {"b": [None]}}]
)
keys = st.sampled_from(["cell_type", "id", "metadata", "source", "outputs", "execution_count"])
marks = st.sampled_from(
    ["grade", "grade_id", "locked", "points", "schema_version", "solution", "checksum"]
)
types = st.sampled_from(["code", "markdown", "raw", "heading", "Code"])
tags = st.lists(st.sampled_from(["skip-execution", "raises-exception", "a"]), unique=True)
pieces = st.sampled_from(
    ["", "x = (", "def attend_one(q):\n    return q", "((((" * 60, "\0", "%%time\n1", "é\r\n"]
)

mutations = st.one_of(
    st.tuples(st.just("drop"), numbers),
    st.tuples(st.just("copy"), numbers, numbers),
    st.tuples(st.just("paste"), numbers, numbers),
    st.tuples(st.just("move"), numbers, numbers),
    st.tuples(st.just("split"), numbers, numbers),
    st.tuples(st.just("join"), numbers),
    st.tuples(st.just("type"), numbers, types),
    st.tuples(st.just("tags"), numbers, tags),
    st.tuples(st.just("delete"), numbers, keys),
    st.tuples(st.just("set"), numbers, keys, odd),
    st.tuples(st.just("mark"), numbers, marks, odd),
    st.tuples(st.just("unmark"), numbers, marks),
    st.tuples(st.just("nbgrader"), numbers, odd),
    st.tuples(st.just("text"), numbers, pieces),
    st.tuples(st.just("book"), st.sampled_from(["metadata", "nbformat", "nbformat_minor"]), odd),
)


def mutated(book: dict, mutation: tuple) -> None:
    """One thing that happens to a notebook, in place; nothing where it does not apply."""
    what, *rest = mutation
    if what == "book":
        book[rest[0]] = rest[1]
        return
    cells = book["cells"]
    if not cells:
        return
    index = rest[0] % len(cells)
    cell = cells[index]
    if what == "drop":
        del cells[index]
    elif what in ("copy", "paste"):
        new = copy.deepcopy(cell)
        if what == "paste":  # as JupyterLab pastes: another id
            new["id"] = f"pasted-{rest[1]}"
        cells.insert(rest[1] % len(cells), new)
    elif what == "move":
        cells.insert(rest[1] % len(cells), cells.pop(index))
    elif what == "type":
        cell["cell_type"] = rest[1]
    elif what == "delete":
        cell.pop(rest[1], None)
    elif what == "set":
        cell[rest[1]] = rest[2]
    elif what == "text":
        cell["source"] = rest[1]
    elif what in ("split", "join"):
        mutated_text(cells, index, rest)
    else:
        mutated_metadata(cell, what, rest)


def mutated_text(cells: list[dict], index: int, rest: list) -> None:
    cell, following = cells[index], cells[(index + 1) % len(cells)]
    text = cell.get("source")
    if not isinstance(text, str):
        return
    if len(rest) > 1:  # split
        new = copy.deepcopy(cell)
        cut = rest[1] % (len(text) + 1)
        cell["source"], new["source"], new["id"] = text[:cut], text[cut:], f"half-{index}"
        cells.insert(index + 1, new)
    elif following is not cell and isinstance(following.get("source"), str):
        cell["source"] = f"{text}\n{following['source']}"
        cells.remove(following)


def mutated_metadata(cell: dict, what: str, rest: list) -> None:
    metadata = cell.get("metadata")
    if not isinstance(metadata, dict):
        return
    mark = metadata.get("nbgrader")
    if what == "tags":
        metadata["tags"] = rest[1]
    elif what == "nbgrader":
        metadata["nbgrader"] = rest[1]
    elif isinstance(mark, dict) and what == "mark":
        mark[rest[1]] = rest[2]
    elif isinstance(mark, dict):
        mark.pop(rest[1], None)


def assert_gradable(book: dict) -> None:
    """Every graded cell of the release once, as released, each check below its answers."""
    found, wanted = graded_cells(book), graded_cells(release())
    assert sorted(found, key=lambda c: c[0]) == sorted(wanted, key=lambda c: c[0])
    where = {grade_id(c): i for i, c in enumerate(book["cells"]) if is_needed(c)}
    above = []
    for model in filter(is_needed, release()["cells"]):
        if is_answer(model):
            above.append(where[grade_id(model)])
        else:
            assert where[grade_id(model)] > max(above)
    node = nbformat.from_dict(book)
    nbformat.validate(node)
    MetadataValidator().validate_nb(node)
    assert len({c["id"] for c in book["cells"]}) == len(book["cells"])


@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(mutations, min_size=1, max_size=12))
def test_any_notebook_that_can_be_read_is_repaired_once_and_for_all(changes):
    raw = perfect()
    for change in changes:
        mutated(raw, change)
    try:
        mine, _ = read_bytes(json.dumps(raw).encode())
    except NotANotebook:
        return
    before = copy.deepcopy(mine)
    book, problems = repair(mine, release())
    assert mine == before
    assert_gradable(book)
    assert diagnose(book, release()) == []
    assert all(problem.what and problem.cure for problem in problems)
    again, mended = read_bytes(lab.notebook_text(book).encode())
    assert mended == ()
    assert again == book


@settings(max_examples=100, deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
    | st.fixed_dictionaries({"cells": st.lists(odd | st.dictionaries(keys, odd))}),
)
def test_any_json_is_prepared_or_refused_with_a_reason(value):
    prepared = prepare(json.dumps(value).encode(), LESSON)
    if prepared.notebook is None:
        assert prepared.reason == "not a notebook"
        assert prepared.text
    else:
        assert_gradable(prepared.notebook)


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=400))
def test_any_bytes_are_refused_with_a_reason(data):
    prepared = prepare(data, LESSON)
    assert prepared.notebook is None
    assert prepared.reason == "not a notebook"
    assert prepared.text.startswith("the ")


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 100_000))
def test_a_notebook_that_breaks_off_anywhere_is_refused(n):
    data = json.dumps(perfect(), indent=1).encode()
    prepared = prepare(data[: len(data) - n % len(data) - 1], LESSON)
    assert prepared.reason == "not a notebook"
