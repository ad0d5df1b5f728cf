"""What notebooks do besides: magics, shell lines, files, copies of themselves, floods of output."""

import json

import pytest
from handed_in import bytes_of, cell, text, with_change
from isolated_submissions import ANSWER, CACHE, GOOD, RIGHT, SHORT, TOKEN, grade, lost, said

from grader.classroom.intake import prepare
from grader.judging.isolated import notebook as grading

LINES = {  # in the cell of an answer
    "%matplotlib inline": "%matplotlib inline\n{}",
    "%matplotlib": "%matplotlib\n{}",
    "%gui": "%gui qt\n{}",
    "%pip": "%pip install numpy\n{}",
    "%conda": "%conda install numpy\n{}",
    "a shell line": "!echo hello\n{}",
    "a shell line that fails": "!false\n{}",
    "what a shell line says": "files = !echo a b\nassert files == ['a b']\n{}",
    "%time at its end": "{}\n%time 1 + 1",
    "%%time": "%%time\n{}",
    "a question": "{}\nkv_bytes_per_token?",
    "%load_ext": "%load_ext autoreload\n%autoreload 2\n{}",
    "%config": "%config InlineBackend.figure_format = 'retina'\n{}",
    "%env": "%env MINE=1\n{}",
}


@pytest.mark.parametrize("line", LINES.values(), ids=LINES)
def test_a_magic_in_the_cell_of_an_answer_costs_nothing(zygote, line):
    assert lost(zygote, [line.format(TOKEN), CACHE, ANSWER]) == {}


def test_through_reading_and_repair_too(zygote):
    def change(book):
        one = cell(book, "kv_bytes_per_token")
        one["source"] = f"%matplotlib inline\n!echo hello\n{text(one)}"

    prepared = prepare(bytes_of(with_change(change)), "04_kv_cache")
    assert prepared.problems == ()
    assert grading.grade(prepared.notebook, "04_kv_cache", zygote).reasons() == {}


def test_functions_from_a_file_that_an_earlier_cell_writes(zygote):
    write = f"%%writefile mine.py\n{TOKEN}"
    assert lost(zygote, [write, "from mine import *", CACHE, ANSWER]) == {}
    saved = f"open('other.py', 'w').write({TOKEN!r})\nimport other"
    bound = "kv_bytes_per_token = other.kv_bytes_per_token"
    assert lost(zygote, [saved, bound, CACHE, ANSWER]) == {}


FORKS = {
    "in the call": "os.fork()",
    "in the call, late": "if os.fork() == 0: time.sleep(0.2)",
    "by the C library": "ctypes.CDLL(None).fork()",
    "by the C library, twice": "ctypes.CDLL(None).fork(); ctypes.CDLL(None).fork()",
}


@pytest.mark.parametrize("fork", FORKS.values(), ids=FORKS)
def test_a_copy_that_answers_too_takes_no_other_question(zygote, fork):
    cells = [
        f"import ctypes, os, time\ndef kv_bytes_per_token(config, bytes_per_number=2):\n"
        f"    {fork}\n    return {RIGHT}",
        CACHE,
        ANSWER,
    ]
    assert set(lost(zygote, cells, times=SHORT)) <= {"kv_bytes_per_token"}


def test_the_outputs_of_all_cells_together_have_a_limit(zygote, monkeypatch):
    monkeypatch.setattr(grading, "MAX_BOOK_BYTES", 200_000)
    result = grade(zygote, ["print('x' * 50_000)"] * 12 + GOOD)
    assert len(json.dumps(result.outputs)) < 250_000
    assert "more are left out" in json.dumps(result.outputs[11])
    assert result.reasons() == {}


def test_a_program_that_asks_the_network_for_packages_does_not_wait(zygote):
    assert "No matching distribution" in said(zygote, "!python -m pip install nothing-there 2>&1")
