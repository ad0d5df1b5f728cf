"""Grade one notebook: its cells run in a student's process, its checks are judged here.

Nothing that the notebook's check cells contain is run. The judge knows which checks there are,
asks for the functions by name, and writes the outputs of those cells itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import jupytext

from grader import registry
from grader.exercise import Exercise
from grader.isolated.answers import answer_of
from grader.isolated.students import Gone, Student, Zygote
from grader.judge import hidden_seed, judge_on
from grader.verdict import Outcome, Verdict
from inferlab.data import ROOT
from labkit.questions import Answers, Question
from sandbox.endpoint import StandIn

CELL_S, CHECK_S = 30.0, 60.0
UNAVAILABLE = (
    "this is the course's own version, which is not there while it is graded: "
    "write it in this notebook"
)

REASONS = (
    "wrong value", "wrong shape or type", "raised", "out of time", "out of memory", "exited",
    "too much output", "not a notebook", "missing", "answered by the reference",
    "changed tests restored", "not written",
)  # fmt: skip


@dataclass(frozen=True)
class Result:
    """One check: points earned of points, and, where some are lost, exactly one reason."""

    grade_id: str
    points: int
    earned: int
    reason: str = ""
    text: str = ""  # what a person reads
    diagnosis: str = ""  # the likely mistake, if it is one that we know


@dataclass
class Graded:
    """A whole notebook: the outputs of each code cell by its place, and the results."""

    outputs: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    results: list[Result] = field(default_factory=list)
    lost: dict[int, Gone] = field(default_factory=dict)  # cells that ended the process

    def reasons(self) -> dict[str, str]:
        """grade id -> why points were lost there."""
        return {r.grade_id: r.reason for r in self.results if r.reason}

    @property
    def earned(self) -> int:
        return sum(result.earned for result in self.results)


def grade(notebook: Mapping[str, Any], lesson: str, zygote: Zygote) -> Graded:
    """Run and judge a submission whose graded cells are as released (see repair)."""
    return _Grading(notebook, lesson, zygote).run()


class _Grading:
    """One submission's way through its cells, with a new process wherever one is lost."""

    def __init__(self, notebook: Mapping[str, Any], lesson: str, zygote: Zygote) -> None:
        self.cells = notebook["cells"]
        self.lesson, self.zygote = lesson, zygote
        self.graded = Graded()
        self.checks = checks(lesson)
        self.student: Student | None = None

    def run(self) -> Graded:
        try:
            self.student = self._fork()
            for index, cell in enumerate(self.cells):
                if cell["cell_type"] != "code":
                    continue
                check = self.checks.get(grade_id(cell)) if is_check(cell) else None
                if check is not None:
                    self._judge(index, cell, check)
                elif not is_check(cell):
                    self._run_cell(index)
        finally:
            if self.student is not None:
                self.student.end()
        return self.graded

    def _fork(self) -> Student:
        return self.zygote.fork(under_judgement(self.lesson))

    def _run_cell(self, index: int) -> None:
        assert self.student is not None
        try:
            outputs, _ = self.student.run_cell(source(self.cells[index]), CELL_S)
        except Gone as gone:
            self.graded.lost[index] = gone
            outputs = [error_output("Stopped", f"{gone.reason}: {gone}")]
            self._start_again(index)
        self.graded.outputs[index] = outputs

    def _start_again(self, index: int) -> None:
        """A new process that has run every earlier cell but those that ended theirs."""
        self.student = self._fork()
        for earlier in range(index):
            cell = self.cells[earlier]
            if cell["cell_type"] == "code" and not is_check(cell):
                if earlier in self.graded.lost:
                    continue
                try:
                    self.student.run_cell(source(cell), CELL_S)
                except Gone as gone:  # it ran the first time
                    self.graded.lost[earlier] = gone
                    self._start_again(index)
                    return

    def _judge(self, index: int, cell: Mapping[str, Any], check: Exercise | Question) -> None:
        points = int(cell["metadata"]["nbgrader"]["points"])
        try:
            if isinstance(check, Question):
                verdict = self._answer_verdict(check)
            else:
                verdict = self._exercise_verdict(check)
        except Gone as gone:
            text = f"{gone.reason}: {gone}"
            result = Result(grade_id(cell), points, 0, gone.reason, text)
            self._start_again(index)
        else:
            reason = reason_of(verdict)
            earned = points if verdict.passed else 0
            text = verdict.text()
            result = Result(grade_id(cell), points, earned, reason, text, verdict.diagnosis)
        self.graded.results.append(result)
        self.graded.outputs[index] = [outcome_output(result)]

    def _exercise_verdict(self, exercise: Exercise) -> Verdict:
        assert self.student is not None
        with self.student.within(CHECK_S):
            try:
                written = self.student.value(exercise.name)
            except KeyError:
                line = f"there is no {exercise.name}: the cell that defines it did not run"
                return Verdict(exercise.id, Outcome.NOT_RUN, lines=(line,))
            answer = answer_of(self.student, exercise, written)
            if not callable(answer):
                line = f"{exercise.name} should be a function or class, it is {answer!r:.60}"
                return Verdict(exercise.id, Outcome.FAILED, lines=(line,), kind="type")
            cases = exercise.visible_cases() + exercise.hidden_cases(hidden_seed())
            return judge_on(exercise, answer, cases, hidden=True)

    def _answer_verdict(self, question: Question) -> Verdict:
        assert self.student is not None
        name, given = self.student.answer(question.id)
        answers = Answers(name, {question.id: question})
        answers[question.id] = given if not isinstance(given, StandIn) else ...
        result = answers.judge(question.id)
        outcome = Outcome(result.outcome)
        return Verdict(question.id, outcome, lines=(result.message,))


# ---- what there is to judge --------------------------------------------------------------------


@lru_cache(maxsize=32)
def checks(lesson: str) -> dict[str, Exercise | Question]:
    """grade id of a check cell -> what it judges."""
    found: dict[str, Exercise | Question] = {}
    for exercise in registry.exercises(lesson):
        found[f"check_{exercise.grade_id}"] = exercise
    for question in registry.questions(lesson):
        found[f"check_{question.id}"] = question
    return found


@lru_cache(maxsize=32)
def under_judgement(lesson: str) -> dict[str, str]:
    """What of the reference a lesson's students must not have: "module.function" -> what to say."""
    found: dict[str, str] = {}
    for exercise in registry.exercises(lesson):
        path = f"{exercise.reference.__module__}.{exercise.name}"
        method = exercise.id.partition(".")[2]
        names = [method] if method else methods_to_write(lesson).get(exercise.name, [])
        paths = [f"{path}.{name}" for name in names] or [path]
        found |= dict.fromkeys(paths, UNAVAILABLE)
    return found


@lru_cache(maxsize=32)
def methods_to_write(lesson: str) -> dict[str, list[str]]:
    """Class -> the methods that the learner writes, as the lesson's script says."""
    script = jupytext.read(ROOT / "src" / "lessons" / f"{lesson}.py")
    written = [c.metadata for c in script.cells if "write" in c.metadata]
    return {m["exercise"]: m["write"].split() for m in written}


# ---- cells -------------------------------------------------------------------------------------


def source(cell: Mapping[str, Any]) -> str:
    return "".join(cell["source"])


def grade_id(cell: Mapping[str, Any]) -> str:
    return str(cell["metadata"].get("nbgrader", {}).get("grade_id", ""))


def is_check(cell: Mapping[str, Any]) -> bool:
    """A cell that earns points by being judged, not one that a person reads."""
    facts = cell["metadata"].get("nbgrader", {})
    return bool(facts.get("grade")) and not facts.get("solution")


def error_output(name: str, text: str) -> dict[str, Any]:
    return {"output_type": "error", "ename": name, "evalue": text, "traceback": [text]}


def outcome_output(result: Result) -> dict[str, Any]:
    """The output that tells nbgrader and the student: an error unless everything was earned."""
    if result.earned == result.points:
        return {"output_type": "stream", "name": "stdout", "text": result.text + "\n"}
    return error_output("CheckFailed", result.text)


# ---- reasons -----------------------------------------------------------------------------------


def reason_of(verdict: Verdict) -> str:
    """One of REASONS, "" for a pass."""
    if verdict.passed:
        return ""
    text = "\n".join(verdict.lines)
    if verdict.outcome is Outcome.NOT_RUN:
        return "missing" if "there is no" in text else "not written"
    for needle, reason in _RAISED.items():
        if needle in text:
            return reason
    return _KINDS.get(verdict.kind, "wrong value")


_RAISED = {
    UNAVAILABLE[:40]: "answered by the reference",
    "raised MemoryError": "out of memory",
    "raised Exited": "exited",
}
_KINDS = {
    "raised": "raised",
    **dict.fromkeys(("type", "shape", "dtype", "length"), "wrong shape or type"),
}


def lost_points(graded: Graded) -> Iterator[Result]:
    """The checks that lost something."""
    return (result for result in graded.results if result.earned < result.points)
