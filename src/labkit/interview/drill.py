"""A timed drill: knowledge-check questions one after another, each time with fresh numbers.

Drill is the logic, with a clock and a generator handed in. drill_panel.py shows it as widgets, the
package interview runs it in a terminal. Nothing is stored here.
"""

from __future__ import annotations

import re
import statistics
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from time import monotonic

import numpy as np

from labkit import units
from labkit.interview.questions import Answers, Question, Result, marks


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
        if self.question.rubric:
            return f"a mark of 0, ½ or 1 for each of: {', '.join(self.question.rubric)}"
        if self.choices:
            return f"one of the letters {', '.join(self.choices)}"
        if self.question.kind in units.NO_UNIT_NEEDED:
            return "a number" if self.question.kind != "x" else "a ratio, such as 4x"
        return f"a number with its unit, such as 12.5 {self.question.unit}"

    @property
    def right(self) -> str:
        """The right answer, as it would be typed; a choice with its text; a rubric in words."""
        if self.question.rubric:
            return "; ".join(f"{part}: {text}" for part, text in self.question.rubric.items())
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
        chosen = self.choices[letter(text)]
        return (": ".join((f"“{chosen}”", *result.slips)),)

    def can_read(self, text: str) -> bool:
        """False for what is no answer: blank, no such letter, no number, unknown unit."""
        if self.question.rubric:
            return marks(self.question, text) is not None
        if self.choices:
            return letter(text) in self.choices
        try:
            units.parse(text)
        except ValueError:
            return False
        return True

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
    is_open: bool = False

    def lines(self) -> list[str]:
        """For the reader; `code` and **bold** as in Markdown."""
        said = self.result.message
        if self.again:
            return [f"**… try again**: {said}"]
        if self.is_open:
            lines = [f"**{said}** by your own marks", self.why]
        elif self.result.passed:
            lines = [f"**✓ right**, after {self.seconds:.0f} s", self.why]
        else:
            half = " (half a mark)" if self.result.score == 0.5 else ""
            lines = [f"**✗ not right**: {said}{half}", f"The answer is **{self.right}**.", self.why]
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
    from the first question; minutes None: without end. in_order: each once, as given, and no more.
    on_answer is called with each question, what was answered, and the feedback. Raises ValueError
    for no questions, two of one id, or minutes that are not more than 0.
    """

    def __init__(
        self,
        questions: Sequence[Question],
        minutes: float | None = 5,
        *,
        rng: np.random.Generator,
        clock: Callable[[], float] = monotonic,
        in_order: bool = False,
        on_answer: Callable[[Asked, str, Feedback], None] | None = None,
    ) -> None:
        self.questions = {question.id: question for question in questions}
        if not questions or len(self.questions) != len(questions):
            ids = [question.id for question in questions]
            raise ValueError(f"a drill needs questions, each with an id of its own; given {ids}")
        if minutes is not None and not 0 < minutes < float("inf"):
            raise ValueError(f"minutes={minutes} must be more than 0, and finite")
        self.seconds = float("inf") if minutes is None else 60.0 * minutes
        self.asked: Asked | None = None  # the question that is open
        self._rng, self._clock = rng, clock
        self._start_s: float | None = None
        self._in_order, self._on_answer = in_order, on_answer
        self._ahead = [*self.questions][::-1] if in_order else []  # ids, the next one last
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
        """The next question with fresh numbers; None at the end. An open one is skipped."""
        self.start()
        if self.over:
            return None
        self._n_skipped += self.asked is not None
        self.asked = None
        if self._in_order and not self._ahead:
            return None
        question_id = self._next_id()
        learner = f"drill {self._rng.integers(2**62)}"
        answers = Answers(learner, {question_id: self.questions[question_id]})
        self.asked = Asked(self.questions[question_id], answers, self._clock())
        return self.asked

    def leave_out(self, ids: Collection[str]) -> None:
        """Do not ask these, where they are still to come."""
        self._ahead = [name for name in self._ahead if name not in ids]

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
        if not asked.can_read(text):
            return Feedback(result, seconds, again=True)
        met = asked.met(text, result)
        feedback = Feedback(
            result,
            seconds,
            late=late,
            right=asked.right,
            why=asked.why,
            met=met,
            is_open=bool(asked.question.rubric),
        )
        self._answered.append(feedback)
        self.asked = None
        if self._on_answer is not None:
            self._on_answer(asked, text, feedback)
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


def letter(text: str) -> str:
    """The letter of a choice, however it is written: \"(B).\" -> \"b\"."""
    return text.strip().casefold().strip("().: ")


def clock_text(seconds: float) -> str:
    """Whole seconds as mm:ss, rounded up, so that 00:00 means the end."""
    whole = int(-(-seconds // 1))
    return f"{whole // 60:02d}:{whole % 60:02d}"
