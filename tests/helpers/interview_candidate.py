"""A candidate who sits at the drill's table: what is known, how fast, with which misconceptions."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import numpy as np

from grader.judging import registry
from labkit.interview import confidence
from labkit.interview.bank import Bank, load
from labkit.interview.drill import Asked, Feedback
from labkit.interview.history import History
from labkit.interview.panel import InterviewPanel
from labkit.interview.session import Clocks, Session
from labkit.interview.spec import Item
from labkit.units import Quantity


def whole_bank() -> Bank:
    return load(registry.questions())


@dataclass
class Time:
    """A clock and a calendar that move when told to."""

    seconds: float = 1000.0
    date: datetime = datetime(2026, 3, 1, 9, 0, tzinfo=UTC)

    def clocks(self) -> Clocks:
        return Clocks(lambda: self.seconds, lambda: self.date)

    def pass_by(self, seconds: float) -> None:
        self.seconds += seconds
        self.date += timedelta(seconds=seconds)


@dataclass
class Candidate:
    """Answers right, but for what they believe (ids of misconceptions).

    pace: time taken over time expected. guesses: takes any of a question's choices. sure: what
    they type when asked how sure they are of a number or a choice.
    """

    believes: frozenset[str] = frozenset()
    pace: float = 0.7
    guesses: np.random.Generator | None = None
    sure: str = ""
    given: dict[str, str] = field(default_factory=dict)

    def answer(self, item: Item, asked: Asked) -> str:
        question = asked.question
        if question.rubric:
            return " ".join("1" for _ in question.rubric)
        if asked.choices and self.guesses is not None:
            return str(self.guesses.choice(list(asked.choices)))
        held = [slip for slip, name in item.met_by.items() if name in self.believes]
        if not held:
            return asked.answers.worked(question.id)
        if asked.choices:
            return next(letter for letter, text in asked.choices.items() if text == held[0])
        wrong = question.slips[held[0]](asked.answers.params(question.id))
        return f"{float(wrong)!r} {Quantity(0, question.kind).kind}".strip()


def sit(
    candidate: Candidate, bank: Bank, history: History, items: list[Item], time: Time, seed: int = 0
) -> list[Feedback]:
    """Let the candidate answer all items."""
    session = Session(bank, history, items, seed, clocks=time.clocks())
    given = []
    while (asked := session.next_question()) is not None:
        item = session.item(asked)
        text = candidate.answer(item, asked)
        if not asked.question.rubric:
            session.confidence = confidence.share(candidate.sure)
        time.pass_by(candidate.pace * item.seconds)
        given.append(session.drill.answer(text))
    session.end()
    return given


def sit_at_panel(candidate: Candidate, panel: InterviewPanel) -> None:
    """Let the candidate answer all that a notebook's panel asks, by its widgets."""
    panel.start_button.click()
    while not panel.finished:
        asked = panel.drill.asked
        text = candidate.answer(panel.session.item(asked), asked)
        if asked.question.rubric:
            panel.reveal_button.click()
            for row, mark in zip(panel.marks.children, text.split(), strict=True):
                row.children[1].value = mark
        else:
            (panel.letters if asked.choices else panel.field).value = text
            panel.sure.value = candidate.sure
        panel.answer_button.click()
        panel.next_button.click()
