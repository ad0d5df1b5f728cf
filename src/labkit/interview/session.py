"""A drill that is remembered: questions chosen by history, each answer saved as it is given."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from time import monotonic

import numpy as np

from labkit.interview import choose
from labkit.interview.bank import Bank
from labkit.interview.drill import Asked, Drill, Feedback
from labkit.interview.history import Answered, History
from labkit.interview.review import rate
from labkit.interview.spec import Item


def utc_now() -> datetime:
    return datetime.now(UTC)


@dataclass
class Clocks:
    """Seconds that can be stopped, and the date. Both can be replaced in a test."""

    seconds: Callable[[], float] = monotonic
    now: Callable[[], datetime] = utc_now
    _away_s: float = 0.0
    _since_s: float | None = None

    def __call__(self) -> float:
        """Seconds, without those that were paused."""
        at = self.seconds() if self._since_s is None else self._since_s
        return at - self._away_s

    @property
    def paused(self) -> bool:
        return self._since_s is not None

    def pause(self) -> None:
        if self._since_s is None:
            self._since_s = self.seconds()

    def go_on(self) -> None:
        if self._since_s is not None:
            self._away_s += self.seconds() - self._since_s
            self._since_s = None


@dataclass
class Session:
    """Runs a Drill over items, in their order, and saves every answer that counts.

    confidence: how sure the reader said to be, and notes: what they wrote before they marked an
    open answer; both are set before drill.answer(), and forgotten by next_question().
    """

    bank: Bank
    history: History
    items: Sequence[Item]
    seed: int
    minutes: float | None = None
    kind: str = "drill"
    clocks: Clocks = field(default_factory=Clocks)
    confidence: float | None = None
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.number = self.history.start(self.kind, self.seed, self.minutes)
        self._items = {item.id: item for item in self.items}
        self.drill = Drill(
            [item.question for item in self.items],
            self.minutes,
            rng=np.random.default_rng(self.seed),
            clock=self.clocks,
            in_order=True,
            on_answer=self._save,
        )
        self.saved: list[Answered] = []

    def item(self, asked: Asked) -> Item:
        return self._items[asked.question.id]

    def next_question(self, too_late: Collection[str] = ()) -> Asked | None:
        """As Drill's, without those that are too late to begin."""
        self.confidence = None
        self.notes.clear()
        self.drill.leave_out(too_late)
        return self.drill.next_question()

    def _save(self, asked: Asked, text: str, feedback: Feedback) -> None:
        if feedback.late:
            return
        item, result = self.item(asked), feedback.result
        seconds = None if item.kind == "open" else feedback.seconds
        answer = Answered(
            item.id,
            item.topic,
            item.level,
            item.kind,
            "\n".join([*self.notes, text]),
            result.score,
            feedback.seconds,
            int(rate(result.score, seconds, item.seconds)),
            self.clocks.now(),
            self.bank.met(item, asked, text, result),
            self.confidence,
            self.number,
        )
        self.history.save(answer)
        self.saved.append(answer)

    def end(self) -> None:
        """Note what was skipped. Nothing else waits to be saved."""
        self.history.note_skipped(self.number, self.drill.summary().n_skipped)

    def closing_lines(self, parts: Sequence[tuple[str, Sequence[Item]]], report: str) -> list[str]:
        """What the reader is told at the end; parts: of an interview; report: how to get one."""
        kept = (
            f"Your history is kept: `{report}` draws a page of it."
            if self.history.kept
            else f"**This session could not be kept**: {self.history.trouble}."
        )
        return [*self.drill.summary().lines(), *self._marks(parts), kept]

    def _marks(self, parts: Sequence[tuple[str, Sequence[Item]]]) -> list[str]:
        """Marks with halves and parts of open answers: in all, and for each part."""
        marks = {answer.item: answer.score for answer in self.saved}
        lines = [f"{sum(marks.values()):.1f} of {len(marks)} marks, parts and half marks counted"]
        for head, items in parts:
            got = [marks[item.id] for item in items if item.id in marks]
            lines.append(f"- {head}: {sum(got):.1f} of {len(items)}, {len(got)} answered")
        return lines if marks else []


def plan(
    bank: Bank,
    history: History,
    *,
    topics: Sequence[str] = (),
    level: str | None = None,
    weak: bool = False,
    n: int = 10,
    seed: int = 0,
    due: bool = True,
) -> list[Item]:
    """The n questions of a drill. topics: names as in Bank.topic. due: what is due comes first,
    else seed alone decides. Raises ValueError for n < 1."""
    if n < 1:
        raise ValueError(f"n={n} must be at least 1")
    rng = np.random.default_rng(seed)
    lessons = [bank.topic(name) for name in topics]
    pool = choose.wanted(bank.items.values(), lessons, level)
    if weak:
        return choose.weak_first(pool, history.answers(), rng)[:n]
    return choose.due_first(pool, history.cards() if due else {}, utc_now(), rng)[:n]
