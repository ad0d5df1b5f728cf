"""Judge one submission: bytes in, results and a graded notebook out. Runs in a worker process."""

from __future__ import annotations

import ctypes
import json
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import nbformat
from nbformat.v4.rwbase import rejoin_lines
from nbgrader import utils
from threadpoolctl import threadpool_limits

from grader.classroom.intake import prepare
from grader.judging import registry
from grader.judging.hidden import Hidden
from grader.judging.isolated import step
from grader.judging.isolated.notebook import Result, checks, grade_id, is_check, under_judgement
from grader.judging.isolated.students import Zygote
from grader.learner import lab
from labkit.shown import shown
from sandbox.walls import PR_SET_PDEATHSIG
from sandbox.zygote import by_value, errors


@dataclass(frozen=True)
class Task:
    """One thing to judge. data: the file's bytes, None where nothing was handed in.

    notes: on how it was handed in; the graded notebook says them to its author.
    """

    student: str
    lesson: str
    data: bytes | None
    name: str  # of the file, as it was handed in
    course: str
    isolation: str
    hidden: Hidden
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Judged:
    """What came of a task.

    notebook: as text, with the outputs of every cell; "" if rejected. scores: of each graded cell
    by nbgrader's own rule, None where a person has to read it; untouched: answers left as released.
    """

    student: str
    results: tuple[Result, ...] = ()
    problems: tuple[str, ...] = ()
    rejected: str = ""
    fault: str = ""
    notebook: str = ""
    scores: dict[str, float | None] = field(default_factory=dict)
    untouched: tuple[str, ...] = ()
    seconds: float = 0.0


LOST = "the process that judged it ended, twice; see whether memory ran out, and grade it again"
_one_at_a_time = threading.Lock()  # a worker may have threads; its zygote answers one judge


def judge(task: Task) -> Judged:
    """Never raises: a failure of ours is Judged.fault, and nobody's zero."""
    begun = time.perf_counter()
    try:
        with _one_at_a_time:
            return _judge(task, begun)
    except Exception:
        seconds = time.perf_counter() - begun
        return Judged(task.student, fault=traceback.format_exc(limit=-4), seconds=seconds)


def _judge(task: Task, begun: float) -> Judged:
    course = Path(task.course)
    prepared = prepare(task.data, task.lesson, task.name, course)
    problems = tuple(f"{p.what}; {p.cure}" for p in prepared.problems)
    if prepared.notebook is None:
        lost = nothing(course, task.lesson, prepared.reason, prepared.text)
        return Judged(task.student, lost, problems, rejected=prepared.text)
    notebook = rejoin_lines(nbformat.from_dict(prepared.notebook))
    graded = step.judge_notebook(
        notebook, task.lesson, task.isolation, own_zygote(task), hidden=task.hidden
    )
    _say(notebook, task.notes)
    notebook.metadata["inferlab"] = {"isolation": task.isolation, "reasons": graded.reasons()}
    scores = {c.metadata.nbgrader.grade_id: utils.determine_grade(c)[0] for c in _graded(notebook)}
    return Judged(
        task.student,
        tuple(graded.results),
        problems,
        notebook=json.dumps(notebook, ensure_ascii=False, indent=1) + "\n",
        scores=scores,
        untouched=tuple(_untouched(notebook)),
        seconds=time.perf_counter() - begun,
    )


def _say(notebook: nbformat.NotebookNode, notes: tuple[str, ...]) -> None:
    """The notes, as the first output of the first code cell: so they stand on every page."""
    if notes and (cells := [cell for cell in notebook.cells if cell.cell_type == "code"]):
        text = "".join(f"{shown(note)}\n" for note in notes)
        cells[0].outputs.insert(0, nbformat.v4.new_output("stream", name="stderr", text=text))


def _graded(notebook: nbformat.NotebookNode) -> Iterator[nbformat.NotebookNode]:
    return (cell for cell in notebook.cells if utils.is_grade(cell))


def _untouched(notebook: nbformat.NotebookNode) -> Iterator[str]:
    """Answers whose text is still the released one, as their checksums say."""
    for cell in notebook.cells:
        is_answer = utils.is_solution(cell) or utils.is_task(cell)
        if is_answer and cell.metadata.nbgrader.get("checksum") == utils.compute_checksum(cell):
            yield cell.metadata.nbgrader.grade_id


def nothing(course: Path, lesson: str, reason: str, text: str) -> tuple[Result, ...]:
    """Every check of a lesson, with nothing earned for one reason."""
    return tuple(
        Result(name, points, 0, reason, text) for name, points in worth(course, lesson).items()
    )


@lru_cache(maxsize=32)
def worth(course: Path, lesson: str) -> dict[str, int]:
    """Points of every check in a lesson's release, by grade id."""
    known = checks(lesson)
    cells = lab.read_notebook(lab.released_path(course, lesson))["cells"]
    return {
        grade_id(cell): int(cell["metadata"]["nbgrader"]["points"])
        for cell in cells
        if is_check(cell) and grade_id(cell) in known
    }


# ---- a worker's zygote -------------------------------------------------------------------------

_given: dict[str, Zygote] = {}


def warm(lesson: str, hidden: Hidden) -> None:
    """Do once what every worker would do for itself: it forks with all of this in memory."""
    for exercise in registry.exercises(lesson):
        exercise.visible_cases()
        hidden.cases(exercise)
    checks(lesson)
    under_judgement(lesson)
    by_value()
    errors()


def begin(take: Callable[[], Any] | None) -> None:
    """Start of a worker: take() gives it a zygote of its own, where the program has some ready.

    One thread for arithmetic: there are as many workers as cores.
    """
    threadpool_limits(1)
    if take is not None:
        _end_with_parent()
        zygote = take()
        _given[zygote.isolation.level] = zygote


def judge_apart(task: Task) -> Judged:
    """judge(), in a process beside this one, whose worker runs it in a thread: alarms, and with
    them the judge's own limits, work in a main thread only.
    """
    for _ in range(2):
        try:
            return _beside().submit(judge, task).result()
        except BrokenProcessPool:
            _beside.cache_clear()
    return Judged(task.student, fault=LOST)


@lru_cache(maxsize=1)
def _beside() -> ProcessPoolExecutor:
    # Dask's nanny marks its workers as daemons, which for multiprocessing may have no children.
    multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined]
    return ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), _begin_beside)


def _end_with_parent() -> None:
    """From now on this process ends with the one that forked it, however that ends.

    It would wait for ever for its next task: it has a copy of the end that the task is to come by.
    """
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _begin_beside() -> None:
    """Start of a process beside a dask worker: it ends with that, however that ends."""
    parent = os.getppid()

    def watch() -> None:  # not by the kernel's signal, which comes with the end of a thread too
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
    begin(None)


def own_zygote(task: Task) -> Zygote:
    """This worker's zygote: the one it was given, or one that it starts."""
    return _given.get(task.isolation) or step.zygote(task.isolation, task.course)
