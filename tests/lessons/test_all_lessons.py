"""What holds for every lesson: its parts, its questions, its script, its notebooks."""

import json
import os

import nbformat
import pytest
from lesson_text import ROOT, cells, prose, script
from nbclient import NotebookClient
from warm_start import run_script, warm_kernels

from grader.judging import registry
from labkit.interview.questions import faults

LESSONS = registry.lessons()
QUESTIONS = registry.questions()
SECTIONS = (
    "1. Why it matters", "2. Predict", "3. Build", "4. Measure", "5. Explain", "6. In the wild",
    "7. Knowledge check", "8. Interview corner", "9. Summary",
)  # fmt: skip
# A test needs no median. What is measured, and all that is made of it, stays the lesson's own.
TIMED_ONCE = """
def once_each():
    from functools import wraps
    from inferlab import device

    measure, interleaved = device.measure, device.interleaved
    device.measure = wraps(measure)(
        lambda fn, **how: measure(fn, **how | {"repeat": 1})
    )
    device.interleaved = wraps(interleaved)(
        lambda fns, rounds=1, **how: interleaved(fns, 1, **how)
    )

once_each()
del once_each
"""


@pytest.mark.parametrize("lesson", LESSONS)
def test_a_lesson_has_its_nine_parts_in_order(lesson):
    text = "\n".join(prose(lesson))
    found = [line.removeprefix("## ") for line in text.splitlines() if line.startswith("## ")]
    assert tuple(found) == SECTIONS
    for part in ("**You will be able to**", "**Time**", "**You need**", "**Common mistakes.**",
                 "**References**", "**Rubric**", "<details>"):  # fmt: skip
        assert part in text, part


@pytest.mark.parametrize("lesson", LESSONS)
def test_a_lesson_has_every_part_that_is_not_text(lesson):
    code = "\n".join(c.source for c in cells(lesson) if c.cell_type == "code")
    for prediction in registry.predictions(lesson):
        assert f'predict("{prediction.id}")' in code
        assert f'confront("{prediction.id}"' in code
    for verb in ("drill(", "progress(", "not_measured(", "trained_model("):
        assert verb in code, verb
    assert 2 <= len(registry.predictions(lesson)) <= 4
    assert len(registry.questions(lesson)) >= 5
    assert sum("written" in c.metadata for c in cells(lesson)) == 1


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda q: q.id)
def test_a_question_is_sound(question):
    assert faults(question) == []


@pytest.mark.parametrize("prediction", registry.predictions(), ids=lambda p: p.id)
def test_a_prediction_has_an_answer(prediction):
    answer = prediction.answer()
    if prediction.choices:
        assert answer in prediction.choices
    else:
        assert answer == answer  # a number, and not nan


@pytest.mark.parametrize("lesson", LESSONS)
def test_the_script_runs_as_it_stands_and_passes_its_own_checks(lesson, tmp_path):
    lines = tmp_path / "verdicts"
    env = _environment(tmp_path) | {"INFERLAB_CHECK_ONLY": "1", "INFERLAB_VERDICTS": str(lines)}
    said = tmp_path / "standard error"
    assert run_script(script(lesson), env, said, seconds=120) == 0, said.read_text()
    assert _passed(lines) == _all_ids(lesson)


@pytest.mark.parametrize("lesson", LESSONS)
def test_the_solution_notebook_runs_from_start_to_end(lesson, tmp_path, real_model_path):
    """Measuring cells too, on the real model; each thing is timed once, not several times over."""
    lines = tmp_path / "verdicts"
    _run(ROOT / "solutions" / lesson / f"{lesson}.ipynb", tmp_path, lines)
    assert _passed(lines) == _all_ids(lesson)


@pytest.mark.parametrize("lesson", LESSONS)
def test_the_untouched_notebook_runs_and_passes_nothing(lesson, tmp_path, record_property):
    """Run All on a fresh copy goes on to the end, and no check is passed."""
    lines = tmp_path / "verdicts"
    notebook = ROOT / "notebooks" / lesson / f"{lesson}.ipynb"
    with warm_kernels():
        _run(notebook, tmp_path, lines, {"INFERLAB_CHECK_ONLY": "1"}, allow_errors=True)
    verdicts = [json.loads(line) for line in lines.read_text().splitlines()]
    assert {v["outcome"] for v in verdicts} == {"not run"}
    assert {v["exercise"] for v in verdicts} == _all_ids(lesson)
    record_property("count", "untouched notebooks that earn 0")


def _environment(home) -> dict[str, str]:
    return os.environ | {"INFERLAB_HOME": str(home / "home"), "MPLBACKEND": "agg"}


def _run(path, home, lines, more=None, allow_errors=False) -> None:
    notebook = nbformat.read(path, as_version=4)
    notebook.cells.insert(0, nbformat.v4.new_code_cell(TIMED_ONCE))
    client = NotebookClient(notebook, timeout=300, allow_errors=allow_errors)
    env = _environment(home) | {"INFERLAB_VERDICTS": str(lines)} | (more or {})
    client.execute(env=env, cwd=str(home))


def _passed(lines) -> set[str]:
    verdicts = [json.loads(line) for line in lines.read_text().splitlines()]
    return {v["exercise"] for v in verdicts if v["outcome"] == "passed"}


def _all_ids(lesson: str) -> set[str]:
    return {e.id for e in registry.exercises(lesson)} | {q.id for q in registry.questions(lesson)}
