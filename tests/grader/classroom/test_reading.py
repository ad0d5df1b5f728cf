"""Files as they are handed in: which are read as the notebook they hold, and why others are not."""

import json
import zipfile
from io import BytesIO

import nbformat
import pytest
from handed_in import (
    LESSON,
    ROOT,
    answers,
    bytes_of,
    graded_cells,
    perfect,
    release,
    with_change,
)

from grader.classroom import form, reading
from grader.classroom.intake import prepare
from grader.classroom.reading import NotANotebook, read_bytes
from grader.notebooks.merge import Notebook, text
from grader.notebooks.problem import Problem


def only(problems: tuple[Problem, ...]) -> Problem:
    (problem,) = problems
    return problem


def assert_whole(data: bytes, *kinds: str) -> tuple[Problem, ...]:
    """It grades as the perfect notebook does, and what was mended is of these kinds."""
    prepared = prepare(data, LESSON)
    assert prepared.reason == ""
    assert graded_cells(prepared.notebook) == graded_cells(release())
    assert answers(prepared.notebook) == answers(perfect())
    assert [problem.kind for problem in prepared.problems] == list(kinds)
    return prepared.problems


def refused(data: bytes) -> str:
    with pytest.raises(NotANotebook) as trouble:
        read_bytes(data)
    prepared = prepare(data, LESSON)
    assert (prepared.notebook, prepared.reason) == (None, "not a notebook")
    assert prepared.text == str(trouble.value)
    return prepared.text


# ---- encodings -----------------------------------------------------------------------------------


def test_a_plain_notebook_needs_no_mending():
    assert_whole(bytes_of(perfect()))


@pytest.mark.parametrize(
    ("encoding", "mark", "said"),
    [
        ("utf-8", b"\xef\xbb\xbf", "UTF-8 with a byte order mark"),
        ("utf-16-le", b"\xff\xfe", "UTF-16"),
        ("utf-16-be", b"\xfe\xff", "UTF-16"),
        ("utf-16-le", b"", "UTF-16"),
        ("utf-16-be", b"", "UTF-16"),
        ("utf-32-le", b"\xff\xfe\0\0", "UTF-32"),
    ],
)
def test_other_encodings_are_read(encoding, mark, said):
    data = mark + bytes_of(perfect()).decode().encode(encoding)
    problem = only(assert_whole(data, "encoding"))
    assert problem.what == f"the file is {said}"
    assert problem.cure == "it becomes plain UTF-8"


def test_a_file_of_an_old_windows_program_is_read():
    book = perfect()
    book["cells"].append({**book["cells"][0], "id": "own", "source": "Schrödinger’s café"})
    data = "".join(c for c in bytes_of(book).decode() if c.isascii() or c in "öé’").encode("cp1252")
    mended, problems = read_bytes(data)
    assert mended["cells"][-1]["source"] == "Schrödinger’s café"
    assert "not UTF-8" in only(problems).what


def test_line_ends_of_windows_around_the_json_are_nothing():
    assert_whole(bytes_of(perfect()).replace(b"\n", b"\r\n"))


@pytest.mark.parametrize("end", ["\r\n", "\r"])
def test_other_line_ends_inside_cells_become_plain(end):
    book = perfect()
    for cell in book["cells"]:
        cell["source"] = cell["source"].replace("\n", end).splitlines(keepends=True)
    problem = only(assert_whole(bytes_of(book), "newlines"))
    assert "the line ends of Windows" in problem.what


def test_zeros_that_a_crash_left_at_the_end_are_nothing():
    assert_whole(bytes_of(perfect()) + b"\0" * 512)


def test_half_characters_become_question_marks():
    book = perfect()
    book["cells"][0]["source"] = "HALF"
    mended, _ = read_bytes(bytes_of(book).replace(b"HALF", rb"a\ud83d b\ud83d\ude00"))
    assert mended["cells"][0]["source"] == "a? b😀"


# ---- formats -------------------------------------------------------------------------------------


def downgraded(minor: int) -> Notebook:
    book = perfect()
    for cell in book["cells"]:
        del cell["id"]
    return {**book, "nbformat_minor": minor}


@pytest.mark.parametrize("minor", [0, 1, 2, 4])
def test_formats_before_ids_are_read(minor):
    problem = only(assert_whole(bytes_of(downgraded(minor)), "format"))
    assert problem.what == f"the notebook's format is 4.{minor}"
    assert "4.5" in problem.cure


def test_format_3_is_read():
    old = nbformat.convert(nbformat.from_dict(perfect()), 3)
    data = nbformat.v3.writes_json(old).encode()
    assert b"worksheets" in data
    assert only(assert_whole(data, "format")).what == "the notebook's format is 3"


def test_a_format_of_the_future_is_read_as_far_as_it_is_known():
    book = {**perfect(), "nbformat_minor": 9}
    book["cells"][3]["from the future"] = {"x": 1}
    assert_whole(bytes_of(book), "format")


@pytest.mark.parametrize("key", ["nbformat", "nbformat_minor"])
def test_a_notebook_that_does_not_say_its_format_is_read(key):
    book = perfect()
    del book[key]
    assert only(assert_whole(bytes_of(book), "format")).what == "the notebook's format is not given"


def test_ids_are_the_same_every_time():
    data = bytes_of(downgraded(4))
    assert prepare(data, LESSON) == prepare(data, LESSON)


# ---- kernels and languages -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "spec",
    [
        {"display_name": "ml (3.12)", "language": "python", "name": "conda-env-ml-py"},
        {"display_name": ".venv", "name": "iron-env"},
        {"display_name": "Python", "language": "python", "name": None},
    ],
)
def test_an_unknown_kernel_becomes_the_courses(spec):
    data = bytes_of(with_change(lambda book: book["metadata"].update(kernelspec=spec)))
    problem = only(assert_whole(data, "kernel"))
    assert f"the kernel {spec['name']!r}" in problem.what
    mended, _ = read_bytes(data)
    assert mended["metadata"]["kernelspec"] == form.KERNEL


def test_a_missing_kernel_is_nothing_to_speak_of():
    assert_whole(bytes_of(with_change(lambda book: book["metadata"].clear())))


def test_a_python_notebook_that_was_opened_with_another_kernel_is_read():
    wrong = {
        "kernelspec": {"display_name": "R", "language": "R", "name": "ir"},
        "language_info": {"name": "R"},
    }
    data = bytes_of(with_change(lambda book: book["metadata"].update(wrong)))
    assert "asks for R" in only(assert_whole(data, "kernel")).what
    assert read_bytes(data)[0]["metadata"]["language_info"]["name"] == "python"


@pytest.mark.parametrize(
    ("metadata", "language"),
    [
        ({"language_info": {"name": "R"}}, "R"),
        ({"kernelspec": {"name": "ir", "display_name": "R"}}, "R"),
        ({"kernelspec": {"name": "julia-1.10", "display_name": "x"}}, "Julia"),
        ({"kernelspec": {"name": "x", "display_name": "x", "language": "scala"}}, "scala"),
    ],
)
def test_a_notebook_in_another_language_is_refused(metadata, language):
    cell = nbformat.v4.new_code_cell("f <- function(x) x + 1")
    book = nbformat.v4.new_notebook(cells=[cell], metadata=metadata)
    assert f"is written in {language}; this course's lessons are Python" in refused(bytes_of(book))


# ---- cells that are not as they should be --------------------------------------------------------


def test_double_ids_are_told_apart():
    book = perfect()
    book["cells"][3]["id"] = book["cells"][5]["id"] = book["cells"][1]["id"]
    problem = only(assert_whole(bytes_of(book), "ids"))
    assert problem.what == "cells 4 and 6 lack ids of their own"


@pytest.mark.parametrize("bad", [None, 7, "", "a b", "ä", "x" * 65, ["a"]])
def test_a_bad_id_is_replaced(bad):
    book = perfect()
    book["cells"][12]["id"] = bad
    assert_whole(bytes_of(book), "ids")


@pytest.mark.parametrize("bad", [None, "x", 3, []])
def test_metadata_of_another_type_starts_empty_and_the_mark_comes_back(bad):
    book = perfect()
    book["cells"][12]["metadata"] = bad
    problems = assert_whole(bytes_of(book), "metadata", "metadata")
    assert problems[0].what == "cell 13 has damaged metadata"
    assert problems[1].cell == "attend_one"


@pytest.mark.parametrize(
    "change",
    [
        {"metadata": {"tags": "a,b"}},
        {"outputs": [{"output_type": "stream"}]},
        {"outputs": [3]},
        {"metadata": {"collapsed": "yes"}},
    ],
)
def test_what_the_format_does_not_allow_is_dropped_and_the_text_stays(change):
    book = perfect()
    book["cells"][3].update(change)
    problem = only(assert_whole(bytes_of(book), "metadata"))
    assert problem.what.startswith("cell 4 has outputs or metadata")
    assert read_bytes(bytes_of(book))[0]["cells"][3]["source"] == book["cells"][3]["source"]


def test_the_notebooks_own_damaged_metadata_starts_afresh():
    data = bytes_of(with_change(lambda book: book["metadata"].update(authors="me", title=3)))
    assert only(assert_whole(data, "metadata")).what == "the notebook's own metadata is damaged"


def test_half_written_state_of_widgets_is_dropped():
    state = {"application/vnd.jupyter.widget-state+json": {"a1": {"model_name": "SliderModel"}}}
    data = bytes_of(with_change(lambda book: book["metadata"].update(widgets=state)))
    assert_whole(data, "widgets")
    assert "widgets" not in read_bytes(data)[0]["metadata"]


@pytest.mark.parametrize("kind", ["Code", "sql", None])
def test_a_cell_of_an_unknown_type_that_has_outputs_is_code(kind):
    book = perfect()
    book["cells"][12]["cell_type"] = kind
    assert only(assert_whole(bytes_of(book), "type")).what == "cell 13 is of no known type"


def test_outputs_survive_reading():
    book = perfect()
    out = [{"output_type": "stream", "name": "stdout", "text": ["a\n", "b"]}]
    book["cells"][12]["outputs"] = out
    assert read_bytes(bytes_of(book))[0]["cells"][12]["outputs"] == [{**out[0], "text": "a\nb"}]


@pytest.mark.parametrize("source", [3, {"a": 1}, ["a", 3], None])
def test_a_cell_whose_text_is_no_text_is_refused(source):
    book = perfect()
    book["cells"][4]["source"] = source
    assert "the text of cell 5 should be text or a list of lines" in refused(bytes_of(book))


def test_an_unfinished_merge_within_a_cell_is_said_and_the_rest_is_graded():
    both = "<<<<<<< local\nx = 1\n=======\nx = 2\n>>>>>>> remote"
    book = perfect()
    book["cells"][3]["source"] = both
    problem = only(assert_whole(bytes_of(book), "conflict"))
    assert problem.what.startswith("cell 4 holds both sides of an unfinished merge")


# ---- files that are no notebook ------------------------------------------------------------------


def test_an_empty_file():
    assert refused(b"").startswith("the file is empty (0 bytes). Open your own copy in JupyterLab")


@pytest.mark.parametrize("data", [b" \n\t\n", b"\0" * 100, b"\xef\xbb\xbf"])
def test_a_file_of_blanks(data):
    assert "holds nothing but blanks" in refused(data)


@pytest.mark.parametrize("part", [0.05, 0.3, 0.5, 0.77, 0.999])
def test_a_file_that_was_cut_off_says_where_it_ends(part):
    data = bytes_of(perfect())
    cut = data[: int(len(data) * part)].decode(errors="ignore")
    said = refused(cut.encode())
    n_cells = cut.count('"cell_type"')
    assert f"in cell {n_cells}, after {len(cut.rstrip()):,} characters: it was cut off" in said
    assert said.endswith(f"{reading.AGAIN}")


@pytest.mark.parametrize("end", ["tru", '"a\\', '"\\u00', "[1,", '{"a":', "-"])
def test_a_file_that_was_cut_off_in_the_middle_of_a_word(end):
    assert "breaks off in line 1" in refused(b'{"cells": [], "x": ' + end.encode())


def test_an_unfinished_merge_is_refused_with_its_lines():
    lines = bytes_of(perfect()).decode().splitlines()
    lines[40:42] = ["<<<<<<< HEAD", lines[40], "=======", lines[40], ">>>>>>> theirs"]
    lines[90:91] = ["<<<<<<< HEAD", "=======", lines[90], ">>>>>>> theirs"]
    said = refused("\n".join(lines).encode())
    assert "both sides of an unfinished merge, in lines 41 to 45 and lines 91 to 94" in said
    assert "git checkout --ours" in said


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"%PDF-1.7 ...", "a PDF"),
        (b"<!DOCTYPE html><html><body>lab</body></html>", "a web page (HTML)"),
        (b'<?xml version="1.0"?><a/>', "an XML file"),
        (b"import numpy as np\n\ndef f(x):\n    return x\n", "Python source"),
        (b"# %%\nimport numpy as np\nprint(\n", "source code"),
        (b"# %%\nimport numpy as np\n%timeit np.ones(3)\n", "Python source"),
        (b"finished", "text"),
        (b"\x89PNG\r\n\x1a\n....", "a picture"),
        (rb"{\rtf1\ansi text}", "a document of an office program"),
        (b"Dear all, my notebook is attached.", "text"),
        (b"\x1f\x8b\x08....", "a gz archive"),
        (b'[{"cells": ', "damaged JSON"),
    ],
)
def test_another_kind_of_file_is_named(data, said):
    text_ = refused(data)
    assert text_.startswith(f"the file is {said}")
    assert "Hand in the notebook itself" in text_


def test_a_zip_with_the_wrong_ending_is_named():
    packed = BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr(f"{LESSON}.ipynb", bytes_of(perfect()))
    assert "a zip archive" in refused(packed.getvalue())


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ([1, 2], "it is a list"),
        (3, "it is a number"),
        ("x", "it is a text"),
        (None, "it is nothing (null)"),
        ({"a": 1, "b": 2}, "it has no cells, only a, b"),
        ({}, "it has no cells, only nothing"),
    ],
)
def test_json_that_is_no_notebook(value, said):
    assert refused(json.dumps(value).encode()) == f"the file is JSON, yet no notebook: {said}"


@pytest.mark.parametrize("cells", [3, "x", {"0": {}}, None])
def test_cells_that_are_no_list(cells):
    assert "the notebook's cells should be a list" in refused(
        bytes_of({**perfect(), "cells": cells})
    )


@pytest.mark.parametrize("cell", [3, "x", [], None])
def test_a_cell_that_is_no_cell(cell):
    book = with_change(lambda book: book["cells"].insert(2, cell))
    assert "cell 3 of the notebook is no cell" in refused(bytes_of(book))


@pytest.mark.parametrize("sheets", [3, [3], [{"cells": 3}], [{"cells": [3]}], [{"cells": [{}]}]])
def test_damaged_worksheets_of_format_3(sheets):
    book = {"nbformat": 3, "nbformat_minor": 0, "metadata": {}, "worksheets": sheets}
    assert "of format 3" in refused(bytes_of(book))


def test_damage_in_the_middle_says_where():
    data = bytes_of(perfect()).replace(b'"cell_type": "code"', b'"cell_type" "code"', 1)
    line = data[: data.index(b'"cell_type" "code"')].count(b"\n") + 1
    assert f"damaged in line {line}, column 16 (Expecting ':' delimiter)" in refused(data)


def test_a_file_that_is_too_large(monkeypatch):
    monkeypatch.setattr(reading, "MAX_BYTES", 1_000_000)
    said = refused(bytes_of(perfect()) + b" " * 2_000_000)
    assert "at most 1 MB are read" in said
    assert "Clear Outputs of All Cells" in said


def test_values_without_end_are_not_built(monkeypatch):
    monkeypatch.setattr(reading, "LONG", 1_000)
    monkeypatch.setattr(reading, "MAX_VALUES", 10_000)
    data = bytes_of({**perfect(), "x": [[]] * 20_000})
    assert "more than 10,000 values" in refused(data)
    commas = bytes_of(
        with_change(lambda b: b["cells"].append({**b["cells"][0], "source": ",[" * 9999}))
    )
    assert read_bytes(commas)[0]["cells"][-1]["source"] == ",[" * 9999


@pytest.mark.parametrize("depth", [150, 5_000, 100_000])
def test_a_bomb_of_nesting(depth):
    bomb = "[" * depth + "]" * depth
    data = bytes_of(perfect())[:-1].rstrip(b"\n}") + b', "x": ' + bomb.encode() + b"}"
    assert "nested" in refused(data)


def test_too_many_cells(monkeypatch):
    monkeypatch.setattr(form, "MAX_CELLS", 100)
    assert "cells; at most 100 are read" in refused(bytes_of(perfect()))


def test_too_much_code(monkeypatch):
    monkeypatch.setattr(form, "MAX_CODE", 1_000)
    assert "characters; at most 1,000 are read" in refused(bytes_of(perfect()))


def test_a_number_of_thousands_of_digits():
    data = bytes_of(perfect()).replace(b'"nbformat": 4', b'"nbformat": ' + b"4" * 5_000)
    assert "thousands of digits" in refused(data)


def test_source_that_no_parser_survives_is_only_text():
    deep = "(" * 100_000
    data = bytes_of(
        with_change(lambda b: b["cells"].append({**b["cells"][3], "id": "d", "source": deep}))
    )
    prepared = prepare(data, LESSON)
    assert text(prepared.notebook["cells"][-1]) == deep
    assert prepared.problems == ()


# ---- a whole hand-in -----------------------------------------------------------------------------


def test_nothing_handed_in_is_missing():
    prepared = prepare(None, LESSON)
    assert (prepared.notebook, prepared.reason, prepared.sha256) == (None, "missing", "")


def test_a_renamed_file_is_said_and_graded():
    prepared = prepare(bytes_of(perfect()), LESSON, f"{LESSON} (1).ipynb")
    assert only(prepared.problems).kind == "name"
    assert answers(prepared.notebook) == answers(perfect())


def test_a_notebook_of_another_lesson_is_said():
    data = (ROOT / "notebooks" / "05_gqa" / "05_gqa.ipynb").read_bytes()
    prepared = prepare(data, LESSON, f"{LESSON}.ipynb")
    first = prepared.problems[0]
    assert (first.kind, first.what) == (
        "lesson",
        f"the notebook has no graded cell of {LESSON}; it looks like lesson 05_gqa",
    )
    assert graded_cells(prepared.notebook)
    assert "no lesson of this course" in prepare(b'{"cells": []}', LESSON).problems[1].what


def test_an_unknown_lesson_is_the_callers_mistake():
    with pytest.raises(ValueError, match=r'no lesson "99_x"; released lessons: 01_roofline'):
        prepare(b"", "99_x")
