"""A timed drill: knowledge-check questions one after another, each time with fresh numbers.

Drill is the logic, with a clock and a generator handed in; Panel shows it as widgets; drill() is
what a notebook calls. Nothing of a drill is stored.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any

import numpy as np

from labkit import units
from labkit.device import grading
from labkit.display import box, in_kernel, inline_html, put
from labkit.questions import Answers, Question, Result


@dataclass(frozen=True)
class Asked:
    """One question with the numbers drawn for it. choices: letter -> choice, or empty."""

    question: Question
    answers: Answers
    at_s: float

    @property
    def choices(self) -> dict[str, str]:
        return self.answers.choices(self.question.id)

    @property
    def form(self) -> str:
        """How an answer is written."""
        if self.choices:
            return f"one of the letters {', '.join(self.choices)}"
        if self.question.kind in units.NO_UNIT_NEEDED:
            return "a number" if self.question.kind != "x" else "a ratio, such as 4x"
        return f"a number with its unit, such as 12.5 {self.question.unit}"

    @property
    def right(self) -> str:
        """The right answer, as it would be typed; a choice with its text."""
        answer = self.answers.worked(self.question.id)
        if self.choices:
            return f"{answer}) {self.choices[answer]}"
        return re.sub(r"(\.\d*?)0+(?!\d)", r"\1", answer).replace(". ", " ").rstrip(".")

    @property
    def why(self) -> str:
        return self.question.why(self.answers.params(self.question.id))

    def met(self, text: str, result: Result) -> tuple[str, ...]:
        """The misconceptions behind an answer; a wrong choice is one, in its own words."""
        if not self.choices or result.passed:
            return result.slips
        chosen = self.choices[_letter(text)]
        return (": ".join((f"“{chosen}”", *result.slips)),)

    def text(self) -> str:
        """The question and its choices as Markdown."""
        lines = [self.question.text(self.answers.params(self.question.id)), ""]
        lines += [f"- **{letter})** {choice}" for letter, choice in self.choices.items()]
        return "\n".join(lines).rstrip()


@dataclass(frozen=True)
class Feedback:
    """How an answer was judged, and what there is to learn from it.

    again: the answer could not be read, so the question stays open. late: it came after the end,
    and does not count. right and why are empty while the question is open. met: misconceptions.
    """

    result: Result
    seconds: float
    again: bool = False
    late: bool = False
    right: str = ""
    why: str = ""
    met: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        """For the reader; `code` and **bold** as in Markdown."""
        said = self.result.message
        if self.again:
            return [f"**… try again**: {said}"]
        if self.result.passed:
            lines = [f"**✓ right**, after {self.seconds:.0f} s", self.why]
        else:
            lines = [f"**✗ not right**: {said}", f"The answer is **{self.right}**.", self.why]
        return [*lines, "Time was up: this one does not count."] if self.late else lines


@dataclass(frozen=True)
class Summary:
    """What a drill came to. median_s: seconds a question, None where none was answered."""

    n_right: int
    n_answered: int
    n_skipped: int
    n_late: int
    median_s: float | None
    misconceptions: tuple[tuple[str, int], ...]

    def lines(self) -> list[str]:
        """For the reader; **bold** as in Markdown."""
        if not self.n_answered:
            lines = ["**No question was answered in time.**"]
        else:
            lines = [
                f"**{self.n_right} right of {self.n_answered} answered**",
                f"{self.median_s:.0f} s a question (median)",
            ]
        lines += [f"{self.n_skipped} skipped"] if self.n_skipped else []
        lines += [f"{self.n_late} answered too late to count"] if self.n_late else []
        for name, times in self.misconceptions:
            lines.append(f"met: {name}" + (f" ({times} times)" if times > 1 else ""))
        return lines


class Drill:
    """Asks questions in random order, all of them before one comes again, until time is up.

    clock() gives seconds; rng draws the order and the numbers. The time runs from start(), or
    from the first question. Raises ValueError for no questions, two of one id, or minutes that are
    not more than 0.
    """

    def __init__(
        self,
        questions: Sequence[Question],
        minutes: float = 5,
        *,
        rng: np.random.Generator,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self.questions = {question.id: question for question in questions}
        if not questions or len(self.questions) != len(questions):
            ids = [question.id for question in questions]
            raise ValueError(f"a drill needs questions, each with an id of its own; given {ids}")
        if not 0 < minutes < float("inf"):
            raise ValueError(f"minutes={minutes} must be more than 0, and finite")
        self.seconds = 60.0 * minutes
        self.asked: Asked | None = None  # the question that is open
        self._rng, self._clock = rng, clock
        self._start_s: float | None = None
        self._ahead: list[str] = []  # ids, the next one last
        self._last_id = ""
        self._answered: list[Feedback] = []
        self._n_skipped = 0

    def start(self) -> None:
        """Let the time run; a second call changes nothing."""
        if self._start_s is None:
            self._start_s = self._clock()

    def remaining(self, now: float | None = None) -> float:
        """Seconds left at `now` (the clock's time), never below 0; all of them before the start."""
        if self._start_s is None:
            return self.seconds
        passed = (self._clock() if now is None else now) - self._start_s
        return max(0.0, self.seconds - passed)

    @property
    def over(self) -> bool:
        return self.remaining() == 0

    def next_question(self) -> Asked | None:
        """The next question with fresh numbers; None when time is up. An open one is skipped."""
        self.start()
        if self.over:
            return None
        self._n_skipped += self.asked is not None
        question_id = self._next_id()
        learner = f"drill {self._rng.integers(2**62)}"
        answers = Answers(learner, {question_id: self.questions[question_id]})
        self.asked = Asked(self.questions[question_id], answers, self._clock())
        return self.asked

    def _next_id(self) -> str:
        if not self._ahead:
            self._ahead = [str(i) for i in self._rng.permutation(list(self.questions))]
            if self._ahead[-1] == self._last_id:  # not the same twice in a row
                self._ahead.reverse()
        self._last_id = self._ahead.pop()
        return self._last_id

    def answer(self, text: str) -> Feedback:
        """Judge an answer to the open question; one that cannot be read leaves it open.

        Raises ValueError if no question is open.
        """
        if self.asked is None:
            raise ValueError("no question is open: call next_question() first")
        asked, late = self.asked, self.over
        asked.answers[asked.question.id] = text
        result = asked.answers.judge(asked.question.id)
        seconds = self._clock() - asked.at_s
        if not _readable(asked, text):
            return Feedback(result, seconds, again=True)
        met = asked.met(text, result)
        feedback = Feedback(result, seconds, late=late, right=asked.right, why=asked.why, met=met)
        self._answered.append(feedback)
        self.asked = None
        return feedback

    def summary(self) -> Summary:
        """What has been answered so far; answers that came too late are only counted as such."""
        counted = [feedback for feedback in self._answered if not feedback.late]
        met = Counter(name for feedback in counted for name in feedback.met)
        return Summary(
            n_right=sum(feedback.result.passed for feedback in counted),
            n_answered=len(counted),
            n_skipped=self._n_skipped,
            n_late=len(self._answered) - len(counted),
            median_s=statistics.median(f.seconds for f in counted) if counted else None,
            misconceptions=tuple(met.most_common()),
        )


def _letter(text: str) -> str:
    return text.strip().casefold().strip("().: ")


def _readable(asked: Asked, text: str) -> bool:
    """False for an answer that is no answer: blank, no such letter, no number, unknown unit."""
    if asked.choices:
        return _letter(text) in asked.choices
    try:
        units.parse(text)
    except ValueError:
        return False
    return True


def clock_text(seconds: float) -> str:
    """Whole seconds as mm:ss, rounded up, so that 00:00 means the end."""
    whole = int(-(-seconds // 1))
    return f"{whole // 60:02d}:{whole % 60:02d}"


# ---- widgets -----------------------------------------------------------------------------------


class Panel:
    """A drill as widgets. box is what to display."""

    def __init__(self, drill: Drill) -> None:
        import ipywidgets as w

        self.drill, self.finished = drill, False
        self._ticker: asyncio.Task[None] | None = None
        self.start_button = w.Button(description="start", button_style="primary")
        self.answer_button = w.Button(description="answer", button_style="primary")
        self.next_button = w.Button(description="skip")
        self.end_button = w.Button(description="end")
        self.clock = w.HTML()
        self.question = w.Output()
        # Sent when the field is left or Enter is pressed, so no half-typed value lags behind.
        self.field = w.Text(description="answer", continuous_update=False)
        self.letters = w.RadioButtons(description="answer", options=["a"])
        self.feedback = w.HTMLMath(value=_status([]))
        buttons = w.HBox([self.start_button, self.answer_button, self.next_button, self.end_button])
        body = [self.clock, self.question, self.field, self.letters, buttons, self.feedback]
        self.box = w.VBox(body)
        self.start_button.on_click(lambda _: self._start())
        self.answer_button.on_click(lambda _: self._answer())
        self.next_button.on_click(lambda _: self._next())
        self.end_button.on_click(lambda _: self.finish())
        self.field.on_msg(self._on_enter)
        self._show_only(self.start_button)
        self._tell_time()

    def _show_only(self, *shown: Any) -> None:
        every = [self.start_button, self.answer_button, self.next_button, self.end_button]
        for widget in [*every, self.field, self.letters]:
            widget.layout.display = None if widget in shown else "none"

    def _start(self) -> None:
        if self.drill.asked is not None or self.finished:
            return
        self.drill.start()
        with contextlib.suppress(RuntimeError):  # no loop: the clock then moves at each click
            loop = asyncio.get_running_loop()
            self._ticker = loop.create_task(self._tick())
        self._next()

    async def _tick(self) -> None:
        while not self.finished and self.box.comm is not None:
            self._tell_time()
            if self.drill.over:
                self.finish()
            await asyncio.sleep(0.5)

    def _tell_time(self) -> None:
        text = clock_text(self.drill.remaining())
        value = f'<span role="timer" style="font-weight:bold">time left {text}</span>'
        if self.clock.value != value:
            self.clock.value = value

    def _next(self) -> None:
        asked = None if self.finished else self.drill.next_question()
        if asked is None:
            self.finish()
            return
        self._tell_time()
        self.feedback.value = _status([])
        self.question.outputs = (_markdown(f"{asked.text()}\n\n*Answer: {asked.form}.*"),)
        self.next_button.description = "skip"
        entry = self.letters if asked.choices else self.field
        self.field.value = ""
        self.letters.options = list(asked.choices) or ["a"]
        self.letters.value = None
        self._show_only(entry, self.answer_button, self.next_button, self.end_button)
        entry.focus()

    def _on_enter(self, _: Any, content: dict[str, Any], __: Any) -> None:
        """Enter in the field. The value itself arrives just after this message."""
        if content.get("event") != "submit":
            return
        try:
            asyncio.get_running_loop().call_later(0.2, self._answer)
        except RuntimeError:
            self._answer()

    def _answer(self) -> None:
        asked = self.drill.asked
        if asked is None or self.finished:
            return
        given = self.letters.value if asked.choices else self.field.value
        feedback = self.drill.answer(given or "")
        self._tell_time()
        self.feedback.value = _status(feedback.lines())
        if self.drill.over:
            self.finish()
        elif not feedback.again:
            self.next_button.description = "next"
            entry = self.letters if asked.choices else self.field
            self._show_only(entry, self.next_button, self.end_button)
            self.next_button.focus()

    def finish(self) -> None:
        """Stop the clock and show the summary, below the last feedback."""
        if self.finished:
            return
        self.finished = True
        self._tell_time()
        if self._ticker is not None:
            self._ticker.cancel()
        self._show_only()
        summary = "".join(f"<li>{inline_html(line)}</li>" for line in self.drill.summary().lines())
        over = "time is up" if self.drill.over else "ended"
        self.feedback.value += (
            f'<div role="status"><b>The drill: {over}</b><ul>{summary}</ul></div>'
        )


def _status(lines: list[str]) -> str:
    body = "<br>".join(inline_html(line) for line in lines)
    return f'<div role="status" style="line-height:1.6;margin-top:0.4em">{body}</div>'


def _markdown(text: str) -> dict[str, Any]:
    data = {"text/markdown": text, "text/plain": text}
    return {"output_type": "display_data", "data": data, "metadata": {}}


def drill(questions: Sequence[Question], minutes: float = 5) -> None:
    """Show a timed drill over the questions; where there are no widgets, say how to run it.

    Raises ValueError for no questions, two of one id, or minutes that are not more than 0.
    """
    logic = Drill(questions, minutes, rng=np.random.default_rng())
    size = f"A drill of {minutes:g} minutes over {len(questions)} kinds of question"
    if grading():
        return _say(f"{size} is skipped while grading.")
    if not in_kernel():
        return _say(f"{size}: run this cell in JupyterLab, then click **start**.")
    from IPython.display import display

    bundle = Panel(logic).box._repr_mimebundle_()
    data = bundle[0] if isinstance(bundle, tuple) else bundle
    text = f"{size}: run this cell again to start it."
    display({**data, "text/plain": text}, raw=True)
    return None


def _say(text: str) -> None:
    put(box(text), text.replace("**", ""))
