"""Grade one notebook: its cells run in a student's process, its checks are judged here.

Nothing that the notebook's check cells contain is run. The judge knows which checks there are,
asks for the functions by name, and writes the outputs of those cells itself.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from grader.judging import registry
from grader.judging.alone import may_borrow, noted, ours_for, watched
from grader.judging.exercise import Exercise
from grader.judging.hidden import Hidden, from_environment
from grader.judging.isolated.answers import NoAnswer, answer_of
from grader.judging.isolated.inert import inert, seen_as_data
from grader.judging.isolated.reference import UNAVAILABLE, methods_of, under_judgement
from grader.judging.isolated.students import Gone, OwnFault, Student, Zygote
from grader.judging.judge import judge_on
from grader.judging.verdict import Outcome, Verdict
from grader.notebooks.shadowed import in_cells
from labkit.interview.questions import Answers, Question
from sandbox.outputs import output_bytes, short_enough

MAX_ANSWER_CHARACTERS = 500  # of the answer to a question
LENT_TIMES = 2  # a part that is called across the border, in each of a law test's draws, is slow
MAX_BOOK_BYTES = 10_000_000  # of the outputs of all cells: a graded notebook is read by people
REASONS = (
    "wrong value", "wrong shape or type", "raised", "out of time", "out of memory", "exited",
    "too much output", "not a notebook", "missing", "answered by the reference",
    "changed tests restored", "not written",
)  # fmt: skip


@dataclass(frozen=True)
class Times:
    """How long, in seconds: one cell, one check with all of its cases, the whole submission."""

    cell_s: float = 30.0
    check_s: float = 60.0
    all_s: float = 900.0


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


def grade(
    notebook: Mapping[str, Any],
    lesson: str,
    zygote: Zygote,
    times: Times | None = None,
    hidden: Hidden | None = None,
) -> Graded:
    """Run and judge a submission whose graded cells are as released (see repair).

    hidden: the course's hidden cases, by default those of the environment.
    Raises OwnFault where it could not be judged, and not because of the student.
    """
    hidden = hidden or from_environment()
    return _Grading(notebook, lesson, zygote, times or Times(), hidden).run()


class _Grading:
    """One submission's way through its cells, with a new process wherever one is lost."""

    def __init__(
        self,
        notebook: Mapping[str, Any],
        lesson: str,
        zygote: Zygote,
        times: Times,
        hidden: Hidden,
    ) -> None:
        self.cells = notebook["cells"]
        self.lesson, self.zygote, self.times, self.hidden = lesson, zygote, times, hidden
        self.graded = Graded()
        self.checks = checks(lesson)
        self.ends = time.monotonic() + times.all_s
        self.student: Student | None = None
        self.faults: dict[str, Outcome] = {}  # exercises judged so far that did not pass
        self.room = MAX_BOOK_BYTES

    def run(self) -> Graded:
        self._know_all_checks()
        try:
            self._fork()
            for index, cell in enumerate(self.cells):
                if cell["cell_type"] != "code":
                    continue
                if is_check(cell):
                    if self.student is not None and not self.student.is_as_expected():
                        self._start_again(index)
                    self._judge(index, cell)
                else:
                    self._run_cell(index)
        finally:
            if self.student is not None:
                self.student.end()
        return self.graded

    def _know_all_checks(self) -> None:
        """A check that nobody judges must not count as passed, nor one twice."""
        found = [grade_id(cell) for cell in self.cells if is_check(cell)]
        if unknown := sorted(set(found) - set(self.checks)):
            raise OwnFault(
                f"{self.lesson} has no check {', '.join(unknown)}: were the submission and the "
                "course released together?"
            )
        if twice := sorted({name for name in found if found.count(name) > 1}):
            raise OwnFault(f"the check {', '.join(twice)} is there more than once: repair it first")

    def _fork(self) -> Student:
        self.student = self.zygote.fork(under_judgement(self.lesson))
        return self.student

    def _time_left(self, seconds: float) -> float:
        """That long, or what the whole submission still has. Raises Gone if that is nothing."""
        left = self.ends - time.monotonic()
        if left <= 0:
            raise Gone(
                "out of time", f"the whole notebook ran for more than {self.times.all_s:g} s"
            )
        return min(seconds, left)

    def _run_cell(self, index: int) -> None:
        assert self.student is not None
        try:
            seconds = self._time_left(self.times.cell_s)
            outputs, _ = self.student.run_cell(source(self.cells[index]), seconds)
        except Gone as gone:
            self.graded.lost[index] = gone
            outputs = [error_output("Stopped", f"{gone.reason}: {gone}")]
            self._start_again(index)
        self.graded.outputs[index] = outputs = short_enough(outputs, self.room)
        self.room -= sum(map(output_bytes, outputs))

    def _start_again(self, index: int) -> None:
        """A new process that has run every earlier cell but those that ended theirs."""
        while time.monotonic() < self.ends:
            if self.student is not None:
                self.student.end()
            student = self._fork()
            if self._replayed(student, index):
                return

    def _replayed(self, student: Student, index: int) -> bool:
        for earlier in range(index):
            cell = self.cells[earlier]
            if cell["cell_type"] != "code" or is_check(cell) or earlier in self.graded.lost:
                continue
            try:
                student.run_cell(source(cell), self._time_left(self.times.cell_s))
            except Gone as gone:  # it ran the first time
                self.graded.lost[earlier] = gone
                return False
        return True

    def _judge(self, index: int, cell: Mapping[str, Any]) -> None:
        assert self.student is not None
        name, check = grade_id(cell), self.checks[grade_id(cell)]
        points = int(cell["metadata"]["nbgrader"]["points"])
        try:
            verdict = self._with_shadows(self._verdict(index, check))
        except Gone as gone:
            result = Result(name, points, 0, gone.reason, f"{gone.reason}: {gone}")
            self.faults[check.id] = Outcome.FAILED
            self._start_again(index)
        except Exception as error:  # what a student's code raises has become a verdict by now
            raise OwnFault(f"judging {name} failed: {type(error).__name__}: {error}") from error
        else:
            earned = points if verdict.passed else 0
            reason, text = reason_of(verdict), verdict.text()
            result = Result(name, points, earned, reason, text, verdict.mistake)
            if not verdict.passed:
                self.faults[check.id] = verdict.outcome
        self.graded.results.append(result)
        self.graded.outputs[index] = [outcome_output(result)]

    def _verdict(self, index: int, check: Exercise | Question) -> Verdict:
        """Of an exercise: judged alone, with the reference in place of parts that are wrong.

        Where that fails too, its own parts have a say: what it does with those may be right.
        """
        if isinstance(check, Question):
            with self._asked() as student:
                return _answer_verdict(student, check)
        own = {
            part.id: self.faults[part.id] for part in may_borrow(check) if part.id in self.faults
        }
        called: set[str] = set()
        lent = watched(ours_for(own), called, classes=True)  # no class crosses the border
        longer = LENT_TIMES if lent else 1
        with self._asked(longer) as student, student.lent(lent):
            verdict = self._exercise_verdict(student, check)
        if not verdict.passed and called:
            try:
                with self._asked() as student:
                    plain = self._exercise_verdict(student, check)
            except Gone:  # a part of theirs: what is said of this exercise stands
                self._start_again(index)
            else:
                if plain.passed:
                    return plain
        return noted(verdict, {p: o for p, o in own.items() if p.partition(".")[0] in called})

    def _with_shadows(self, verdict: Verdict) -> Verdict:
        """Where a call failed, with Python's own names that cells have given another meaning."""
        if verdict.passed or "TypeError" not in verdict.text():
            return verdict
        said = tuple(words for _, words in in_cells(self.cells))
        return replace(verdict, lines=(*verdict.lines, *said))

    @contextmanager
    def _asked(self, longer: float = 1) -> Iterator[Student]:
        """The student's process, for as long as one check may take, or that many times as long."""
        assert self.student is not None
        seconds = self._time_left(longer * self.times.check_s)
        self.student.begin()
        with self.student.within(seconds):
            yield self.student

    def _exercise_verdict(self, student: Student, exercise: Exercise) -> Verdict:
        try:
            answer = answer_of(student, exercise, methods_of(exercise, self.lesson))
        except KeyError:
            line = f"there is no {exercise.name}: the cell that defines it did not run"
            return Verdict(exercise.id, Outcome.NOT_RUN, lines=(line,))
        except NoAnswer as error:
            return Verdict(exercise.id, Outcome.FAILED, lines=(str(error),), kind="type")
        cases = exercise.visible_cases() + self.hidden.cases(exercise)
        return judge_on(seen_as_data(exercise), answer, cases, hidden=True)


def _answer_verdict(student: Student, question: Question) -> Verdict:
    name, given = student.answer(question.id)
    answers = Answers(name[:MAX_ANSWER_CHARACTERS], {question.id: question})
    given = given[:MAX_ANSWER_CHARACTERS] if isinstance(given, str) else given
    answers[question.id] = inert(given)
    result = answers.judge(question.id)
    message = result.message[: 2 * MAX_ANSWER_CHARACTERS]
    return Verdict(question.id, Outcome(result.outcome), lines=(message,))


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
    said = result.text.startswith(result.reason)
    text = result.text if said else f"{result.text}\n  points lost: {result.reason}"
    return error_output("CheckFailed", text)


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
    "DefaultCPUAllocator: can't allocate": "out of memory",  # torch's own words
}
_KINDS = {
    "raised": "raised",
    **dict.fromkeys(("type", "shape", "dtype", "length"), "wrong shape or type"),
}
