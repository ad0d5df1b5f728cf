"""Small submissions for the isolated judge, and what each should earn: shared by its test files.

Most are a few cells of lesson 04 and the checks of two functions and one question. What a table
says of one: its cells, and for each check that loses its points the one reason.
"""

import json
import textwrap
from functools import cache

from places import ROOT

from grader.judging.isolated import notebook as grading
from grader.judging.isolated.notebook import Times

LESSON = "04_kv_cache"
SHORT = Times(cell_s=1.5, check_s=1.5, all_s=60)  # for what never ends

TOKEN = textwrap.dedent(
    """
    def kv_bytes_per_token(config, bytes_per_number=2):
        return 2 * config.n_layers * config.n_kv_heads * config.d_head * bytes_per_number
    """
)
CACHE = textwrap.dedent(
    """
    def kv_cache_bytes(config, n_tokens, n_sequences=1, bytes_per_number=2):
        per_token = 2 * config.n_layers * config.n_kv_heads * config.d_head * bytes_per_number
        return per_token * n_tokens * n_sequences
    """
)
ANSWER = 'from grader import Answers, check\nanswers = Answers("")\nanswers["kv_q_steps"] = "842"'
GOOD = [TOKEN, CACHE, ANSWER]
CHECKS = ("kv_bytes_per_token", "kv_cache_bytes", "kv_q_steps")


def code(source: str, **metadata) -> dict:
    return {"cell_type": "code", "source": source, "metadata": metadata, "outputs": []}


def check_cell(lesson: str, name: str, source: str = "") -> dict:
    grade_id = f"check_{name}"
    facts = {"grade": True, "solution": False, "locked": True, "points": points(lesson, name)}
    return code(source, nbgrader={**facts, "grade_id": grade_id})


def points(lesson: str, name: str) -> int:
    return grading.checks(lesson)[f"check_{name}"].points


def submission(cells: list, lesson: str = LESSON, checks: tuple = CHECKS) -> dict:
    found = [cell if isinstance(cell, dict) else code(cell) for cell in cells]
    return {"cells": found + [check_cell(lesson, name) for name in checks]}


def grade(zygote, cells: list, lesson: str = LESSON, checks: tuple = CHECKS, times=None):
    return grading.grade(submission(cells, lesson, checks), lesson, zygote, times)


def lost(zygote, cells: list, lesson: str = LESSON, checks: tuple = CHECKS, times=None) -> dict:
    """check -> reason, of those that lost; what is not lost has all of its points."""
    results = grade(zygote, cells, lesson, checks, times).results
    assert [r.grade_id for r in results] == [f"check_{name}" for name in checks]
    for result in results:
        assert result.earned == (0 if result.reason else result.points)
        assert not result.reason or (result.reason in grading.REASONS and result.text)
    return {r.grade_id.removeprefix("check_"): r.reason for r in results if r.reason}


def said(zygote, source: str, lesson: str = LESSON) -> str:
    """What a cell prints, and the error that ends it."""
    result = grading.grade({"cells": [code(source)]}, lesson, zygote)
    return "".join(o.get("text", "") or o.get("evalue", "") for o in result.outputs[0])


def instead(source: str) -> list[str]:
    """kv_bytes_per_token written so, the rest right."""
    return [textwrap.dedent(source), CACHE, ANSWER]


def body(lines: str, before: str = "") -> list[str]:
    """kv_bytes_per_token with this body; `before` stands above it in its cell."""
    inner = textwrap.indent(textwrap.dedent(lines).strip(), "    ")
    head = textwrap.dedent(before) + "\n"
    return instead(f"{head}def kv_bytes_per_token(config, bytes_per_number=2):\n{inner}")


RIGHT = "2 * config.n_layers * config.n_kv_heads * config.d_head * bytes_per_number"


@cache
def solution(lesson: str) -> str:
    return (ROOT / "solutions" / lesson / f"{lesson}.ipynb").read_text()


def solved(lesson: str, old: str = "", new: str = "") -> dict:
    """A lesson's solution with one piece of text replaced."""
    notebook = json.loads(solution(lesson))
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if old and cell["cell_type"] == "code" and old in source:
            cell["source"] = source.replace(old, new)
            return notebook
    assert not old, f"{old!r} is in no cell"
    return notebook


def written(lesson: str, *names: str) -> list[str]:
    """The lesson's first cell and the solution cells of these exercises."""
    cells = [c for c in json.loads(solution(lesson))["cells"] if c["cell_type"] == "code"]
    by_id = {c["metadata"].get("nbgrader", {}).get("grade_id"): c for c in cells}
    return ["".join(c["source"]) for c in (cells[0], *(by_id[name] for name in names))]
