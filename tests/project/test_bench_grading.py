"""The grading benchmark's own arithmetic, and that its class is what it says. Nothing is timed."""

import sys

import nbformat
import pytest

from benchmarks import grading
from grader.judging.isolated.notebook import is_check


@pytest.mark.parametrize("kind", grading.KINDS)
def test_a_class_of_different_submissions_of_one_short_lesson(tmp_path, kind) -> None:
    root = grading.make_course(tmp_path / "a class", kind, 3, stock=False)
    paths = sorted((root / "submitted").glob(f"*/{grading.LESSON}/{grading.LESSON}.ipynb"))
    assert len({path.read_bytes() for path in paths}) == len(paths) == 3
    notebook = nbformat.read(paths[0], as_version=4)
    assert sum(map(is_check, notebook.cells)) == grading.N_EXERCISES
    assert grading.KINDS[kind] in notebook.cells[0].source
    assert not any("raise NotImplementedError" in cell.source for cell in notebook.cells)


def test_stock_nbgrader_gets_none_of_our_steps(tmp_path) -> None:
    root = grading.make_course(tmp_path / "stock", "numpy", 1, stock=True)
    assert "grader" not in (root / "nbgrader_config.py").read_text().replace("nbgrader", "")


def test_rates_are_medians_of_whole_runs_and_of_what_more_students_cost() -> None:
    def runs(*seconds: float) -> list[dict[str, float]]:
        return [{"seconds": s, "parent_bytes": 1.0, "all_bytes": 2.0} for s in seconds]

    samples = {"numpy": {"ours 1": runs(1, 1, 1), "ours 30": runs(3, 4, 9),
                         "ours 300": runs(13, 90, 9), "stock 8": runs(16, 16, 99)}}  # fmt: skip
    found = grading.summary(samples, 8)["numpy"]
    assert found["submissions_per_s"] == {
        "ours, once warm": 270 / (13 - 4),
        "ours, all in": 300 / 13,
        "stock": 0.5,
    }
    assert found["ours over stock"] == 300 / 13 / 0.5


def test_a_run_that_judged_wrongly_is_no_result(tmp_path) -> None:
    (tmp_path / "submitted" / "a").mkdir(parents=True)
    with pytest.raises(RuntimeError, match="0 of 1 students"):
        grading._all_right("student,earned,points\na,2,3\n", tmp_path)
    grading._all_right("student,earned,points\na,3,3\n", tmp_path)


def test_a_command_that_fails_stops_the_benchmark(tmp_path) -> None:
    command = [sys.executable, "-c", "print('gone'); raise SystemExit(3)"]
    with pytest.raises(RuntimeError, match="ended with 3: gone"):
        grading.timed(command, tmp_path)
