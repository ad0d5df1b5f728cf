"""Python's own names that a notebook has taken: found by reading it, told with their cell."""

import json

import pytest
from handed_in import bytes_of, perfect
from places import ROOT

from grader.judging import registry
from grader.notebooks import repair
from grader.notebooks.shadowed import in_cells, shadows

USES = "def f(x):\n    return max(x, len([x]))"


@pytest.mark.parametrize(
    "cell",
    [
        "max = 3",
        "max: int = 3",
        "a, max = 1, 2",
        "max = other = []",
        "for max in range(3): pass",
        "with open('a') as max: pass",
        "if True:\n    max = 3",
        "print(max := 3)",
        "%time max = 3\nmax = 4",
    ],
)
@pytest.mark.parametrize("before", [True, False])
def test_a_name_that_is_taken_is_found(cell, before):
    (found,) = shadows([cell, USES] if before else [USES, cell])
    assert (found.name, found.number) == ("max", 0 if before else 1)
    assert "max" in found.line


@pytest.mark.parametrize(
    "cells",
    [
        ["max = 3"],  # nobody calls it
        ["sum = 3", USES],
        [USES, "max = 3", "del max"],
        [USES, "max = max"],
        [USES, "max = np.max"],
        [USES, "max = lambda *a: 3"],
        [USES, "def max(*a): return 3"],
        [USES, "from numpy import max"],
        [USES, "def g():\n    max = 3"],
        [USES, "[max for max in (1, 2)]"],
        ["max = 3", "def f(x, max):\n    return max(x)"],
        ["def broken(:", "max ="],
    ],
)
def test_what_does_no_harm_is_left_alone(cells):
    assert shadows(cells) == []


@pytest.mark.parametrize("lesson", registry.lessons())
@pytest.mark.parametrize("folder", ["notebooks", "solutions"])
def test_the_course_takes_none(lesson, folder):
    notebook = json.loads((ROOT / folder / lesson / f"{lesson}.ipynb").read_text(encoding="utf-8"))
    assert list(in_cells(notebook["cells"])) == []


def test_doctor_names_it_with_its_cell_and_leaves_the_file(tmp_path, capsys):
    book = perfect()
    scratch = {"cell_type": "code", "id": "scratch", "metadata": {}, "outputs": []}
    book["cells"].insert(1, scratch | {"source": "max = 3", "execution_count": None})
    path = tmp_path / "04_kv_cache.ipynb"
    path.write_bytes(bytes_of(book))
    for fix in (False, True):
        assert repair.main(path, fix, ROOT) == 1
        said = capsys.readouterr().out
        assert "says `max = 3`, and a function calls max(...)" in said
        assert "ready to submit" not in said
        assert "To repair it" not in said
    assert path.read_bytes() == bytes_of(book)
