"""The verbs of a notebook: check, ready, hint, solution, predict, confront, and answers."""

from __future__ import annotations

import inspect
import json
import os
import sys
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import labkit.interview.drill_panel
import labkit.interview.questions
import labkit.predictions
from grader.judging import registry
from grader.judging.alone import judge_alone
from grader.judging.exercise import Exercise
from grader.judging.verdict import Outcome, Verdict
from grader.notebooks.shadowed import shadows
from labkit import store
from labkit.display import put


class CheckFailed(AssertionError):
    """A check that did not pass, raised where a notebook is graded or validated."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(verdict.text())
        self.verdict = verdict

    def _render_traceback_(self) -> list[str]:
        """What IPython prints: the report alone. The stack would only show our own files."""
        return str(self).splitlines()


def check(target: Any, *, hidden: bool = False) -> None:
    """Judge what you wrote, and show the verdict.

    target: the name of an exercise ("kv_cache_bytes", "KVCache.append"), or the function or class
    itself. hidden adds the hidden cases.

    In a session of your own nothing is raised, so that Run All goes on. Where a notebook is graded
    or validated, and always with hidden=True, CheckFailed is raised unless the verdict is passed.
    """
    namespace = sys._getframe(1).f_globals
    exercises = _exercises_of(target, namespace)
    verdicts = [_judged(exercise, namespace, hidden) for exercise in exercises]
    report(verdicts, must_pass=hidden)


def report(verdicts: Iterable[Verdict], must_pass: bool = False) -> None:
    """Show and note each verdict; raise the first that is not passed, where that is due."""
    bad = None
    for verdict in verdicts:
        store.record_attempt(verdict.exercise, verdict.outcome)
        _write_line(verdict)
        if not verdict.passed and (must_pass or graded()):
            bad = bad or verdict
        else:
            put(verdict.to_html(), verdict.text())
    if bad:
        raise CheckFailed(bad)


def graded() -> bool:
    """True where nbgrader runs the notebook, to grade or to validate it."""
    return bool(os.environ.get("NBGRADER_EXECUTION"))


def _exercises_of(target: Any, namespace: Mapping[str, Any] | None = None) -> list[Exercise]:
    """The exercises that a name, function, class or method stands for."""
    name = target if isinstance(target, str) else _name_of(target, namespace or {})
    if name is None:
        raise ValueError(
            f'check needs the name of an exercise, such as "kv_cache_bytes", or what you wrote; '
            f"given {target!r}"
        )
    if name in {q.id for q in registry.questions()}:
        raise ValueError(f"{name} is a question; it is checked by answers.check, without hints")
    parts = [e for e in registry.exercises() if e.name == name]
    return parts or [registry.exercise(name)]


def _name_of(target: Any, namespace: Mapping[str, Any]) -> str | None:
    """The exercise that the caller keeps this object under; else the object's own name."""
    known = {e.name for e in registry.exercises()}
    bound = (name for name in known if namespace.get(name) is target)
    return next(bound, getattr(target, "__qualname__", None))


def _judged(exercise: Exercise, namespace: dict[str, Any], hidden: bool) -> Verdict:
    if exercise.name not in namespace:
        line = f"there is no {exercise.name} here yet: run the cell that defines it"
        return Verdict(exercise.id, Outcome.NOT_RUN, lines=(line,))
    answer = namespace[exercise.name]
    if answer is exercise.reference and graded():
        line = f"{exercise.name} is the course's own, imported: write it in this notebook"
        return Verdict(exercise.id, Outcome.NOT_RUN, lines=(line,))
    if not callable(answer):
        line = f"{exercise.name} should be a function or class, but it is {answer!r:.60}"
        return Verdict(exercise.id, Outcome.FAILED, lines=(line,))
    verdict = judge_alone(exercise, namespace, hidden)
    return _with_shadows(verdict, namespace) if "TypeError" in verdict.text() else verdict


def _with_shadows(verdict: Verdict, namespace: Mapping[str, Any]) -> Verdict:
    """With the names of Python's own functions that stand for something else here, by cell."""
    found = [s for s in shadows(namespace.get("In", ())) if not callable(namespace.get(s.name))]
    said = tuple(shadow.words(f"cell [{shadow.number}]") for shadow in found)
    return replace(verdict, lines=(*verdict.lines, *said))


def _write_line(verdict: Verdict) -> None:
    """Append the verdict to the file that `inferlab check` reads."""
    path = os.environ.get("INFERLAB_VERDICTS")
    if path:
        line = {
            "exercise": verdict.exercise,
            "outcome": verdict.outcome,
            "case": verdict.case,
            "text": verdict.text(),
        }
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def _one(target: Any) -> Exercise:
    """The exercise of a name or function; of a class with parts, the first not yet passed."""
    parts = _exercises_of(target)
    open_parts = [e for e in parts if not store.status(e.id)["passed_at"]]
    return (open_parts or parts)[0]


def hint(target: Any, step: int | None = None) -> None:
    """Show the next of three hints; with step (1, 2 or 3), that one."""
    exercise = _one(target)
    n = len(exercise.hints)
    if step is not None and step not in range(1, n + 1):
        raise ValueError(f"step must be 1 to {n}, given {step}")
    i = store.record_hint(exercise.id, n) if step is None else step - 1
    more = f'hint("{exercise.id}") gives the next' if i + 1 < n else "that was the last"
    text = f"**Hint {i + 1} of {n}** for `{exercise.id}`: {exercise.hints[i]}\n\n*({more})*"
    put(text, text, kind="text/markdown")


def solution(target: Any, force: bool = False) -> None:
    """Show a worked solution, once you have tried; force=True shows it at once."""
    exercise = _one(target)
    if store.lab_mode():
        text = "Solutions are switched off in this course; ask your instructor."
    elif not force and not store.attempts(exercise.id):
        text = (
            f'Try it first: write a body and run `check("{exercise.id}")`. Or, if you would '
            f'rather read: `solution("{exercise.id}", force=True)`.'
        )
    else:
        store.record_solution_shown(exercise.id)
        text = f"One way to write `{exercise.id}`:\n\n```python\n{source_of(exercise)}\n```"
    put(text, text, kind="text/markdown")


def source_of(exercise: Exercise) -> str:
    """The reference's source: the function, or the methods to be written."""
    part = exercise.id.partition(".")[2]
    source = inspect.getsource(getattr(exercise.reference, part) if part else exercise.reference)
    return textwrap.dedent(source).rstrip()


def ready(*exercise_ids: str) -> bool:
    """True when what you wrote for these exercises passes; else say what the cell waits for.

    Cells that use your functions begin with it, so that Run All works on a half-filled notebook.
    They run with your own parts, so one that passes with ours waits for those as well.
    """
    namespace = sys._getframe(1).f_globals
    missing: dict[str, None] = {}  # a set, in order
    for verdict in (_judged(registry.exercise(i), namespace, hidden=False) for i in exercise_ids):
        missing |= dict.fromkeys(verdict.borrowed)
        if not verdict.passed:
            missing[verdict.exercise] = None
    if missing:
        text = f"This cell runs once these pass their checks: {', '.join(missing)}."
        put(f"<p>{text}</p>", text)
    return not missing


def predict(prediction_id: str, value: Any = None) -> None:
    """Lodge a prediction: predict("id") shows a form, predict("id", "4x") lodges at once."""
    prediction = registry.prediction(prediction_id)
    if value is None:
        labkit.predictions.show_form(prediction)
        return
    lodged = labkit.predictions.lodge(prediction, value)
    text = f"lodged: {lodged.value}" if lodged else "this could not be kept; see the warning"
    put(f"<p>{text}</p>", text)


def confront(prediction_id: str, measured: Any = None) -> None:
    """Show what you predicted beside what was computed or measured."""
    labkit.predictions.confront(registry.prediction(prediction_id), measured)


def drill(lesson: str, minutes: float = 5) -> None:
    """Start a timed drill of a lesson's questions, each with fresh numbers."""
    questions = registry.questions(lesson)
    if not questions:
        known = ", ".join(registry.lessons())
        raise ValueError(f"no questions in lesson {lesson!r}; lessons: {known}")
    labkit.interview.drill_panel.drill(questions, minutes)


def interview(**choice: Any) -> None:
    """Practise for an interview: questions of all lessons and of the interview bank.

    interview(topic="kv-cache", level="senior", weak=True, n=10, minutes=5, seed=1), or a mock
    interview: interview(mock=30, scenario="rag"). You are asked how sure you are before each
    verdict (confidence=False: not). interview(list=True) says what there is to choose from,
    interview(report=True) writes a page on your history. Without any of it: what is due first.
    """
    from labkit.interview.notebook import show

    show(registry.questions(), registry.predictions(), **choice)


class Answers(labkit.interview.questions.Answers):
    """Your answers to a knowledge check. Your name decides the numbers in the questions."""

    def __init__(self, learner: str = "") -> None:
        super().__init__(learner, {q.id: q for q in registry.questions()})

    def worked(self, question_id: str) -> str:
        """The right answer for your numbers; refused where the notebook is graded."""
        if graded() or store.lab_mode():
            raise ValueError("worked answers are switched off here; write your own")
        return super().worked(question_id)

    def check(self, question_id: str) -> None:
        """Judge one answer and show the verdict."""
        result = self.judge(question_id)
        lines = tuple(text for text in (result.message, result.why) if text)
        report([Verdict(question_id, Outcome(result.outcome), lines=lines)])
