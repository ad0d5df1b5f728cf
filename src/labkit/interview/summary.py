"""What a history of answers says: strengths, misconceptions, calibration, what is due."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta

from fsrs import Card

from labkit.interview.bank import Bank
from labkit.interview.history import Answered
from labkit.interview.misconceptions import Misconception
from labkit.interview.review import SLOW

STRONG, WEAK, N_ENOUGH = 0.8, 0.6, 3
CURED_AFTER = 2  # right answers, since it was last met, to questions that can show it
BINS = ((0.0, 0.6), (0.6, 0.8), (0.8, 0.95), (0.95, 1.01))


@dataclass(frozen=True)
class TopicScore:
    """share: the mean score. pace: the median of time taken over time expected, None where no
    answer says it."""

    topic: str
    n: int
    share: float
    pace: float | None

    @property
    def verdict(self) -> str:
        if self.n < N_ENOUGH:
            return "too few answers"
        if self.share < WEAK:
            return "to work on"
        if self.share < STRONG:
            return "nearly there"
        return "right, but slow" if self.pace and self.pace > SLOW else "strong"


@dataclass(frozen=True)
class Met:
    """A misconception, how often it was met, when last, and right answers since where it could
    have shown."""

    what: Misconception
    times: int
    last: datetime
    right_since: int

    @property
    def cured(self) -> bool:
        return self.right_since >= CURED_AFTER


@dataclass(frozen=True)
class Bin:
    """Answers given with about the same confidence: what was said, and what was so."""

    n: int
    said: float
    right: float


@dataclass(frozen=True)
class Day:
    day: date
    n: int
    share: float


@dataclass(frozen=True)
class Report:
    n_answers: int
    n_skipped: int
    share: float
    topics: tuple[TopicScore, ...]
    met: tuple[Met, ...]
    bins: tuple[Bin, ...]
    days: tuple[Day, ...]
    n_due: int
    n_due_week: int
    predictions: Mapping[str, float]

    @property
    def strengths(self) -> list[TopicScore]:
        return [t for t in self.topics if t.verdict in ("strong", "right, but slow")]


def report(
    answers: Sequence[Answered],
    cards: Mapping[str, Card],
    bank: Bank,
    now: datetime,
    n_skipped: int = 0,
    predictions: Mapping[str, float] | None = None,
) -> Report:
    """predictions: question -> lodged over computed."""
    due = [card.due for card in cards.values()]
    return Report(
        len(answers),
        n_skipped,
        _mean(a.score for a in answers),
        tuple(_topics(answers, bank)),
        tuple(_met(answers, bank)),
        tuple(_bins(answers)),
        tuple(_days(answers)),
        sum(when <= now for when in due),
        sum(when <= now + timedelta(days=7) for when in due),
        predictions or {},
    )


def _mean(values: Iterable[float]) -> float:
    known = list(values)
    return sum(known) / len(known) if known else 0.0


def _topics(answers: Sequence[Answered], bank: Bank) -> list[TopicScore]:
    """The strongest first."""
    groups: dict[str, list[Answered]] = defaultdict(list)
    for answer in answers:
        groups[answer.topic].append(answer)
    scores = []
    for topic, group in groups.items():
        paces = [
            answer.seconds / bank.items[answer.item].seconds
            for answer in group
            if answer.kind != "open" and answer.item in bank.items
        ]
        pace = statistics.median(paces) if paces else None
        scores.append(TopicScore(topic, len(group), _mean(a.score for a in group), pace))
    return sorted(scores, key=lambda score: (-score.share, score.topic))


def _met(answers: Sequence[Answered], bank: Bank) -> list[Met]:
    """The ones not cured first, the most frequent first."""
    what: dict[str, Misconception] = {}
    last: dict[str, int] = {}
    times: dict[str, int] = defaultdict(int)
    for place, answer in enumerate(answers):
        for misconception in answer.met:
            what[misconception.id] = misconception
            times[misconception.id] += 1
            last[misconception.id] = place
    found = []
    for name, place in last.items():
        later = answers[place + 1 :]
        right = sum(a.score == 1 and _can_show(bank, a.item, answers[place], name) for a in later)
        found.append(Met(what[name], times[name], answers[place].at, right))
    return sorted(found, key=lambda met: (met.cured, -met.times, met.what.name))


def _can_show(bank: Bank, item_id: str, met_at: Answered, name: str) -> bool:
    """Whether an answer to this question could have shown that misconception."""
    item = bank.items.get(item_id)
    return item_id == met_at.item or (item is not None and name in item.met_by.values())


def _bins(answers: Sequence[Answered]) -> list[Bin]:
    bins = []
    for low, high in BINS:
        group = [a for a in answers if a.confidence is not None and low <= a.confidence < high]
        if group:
            said = _mean(a.confidence or 0.0 for a in group)
            bins.append(Bin(len(group), said, _mean(float(a.score == 1) for a in group)))
    return bins


def _days(answers: Sequence[Answered]) -> list[Day]:
    groups: dict[date, list[float]] = defaultdict(list)
    for answer in answers:
        groups[answer.at.astimezone().date()].append(answer.score)
    return [Day(day, len(scores), _mean(scores)) for day, scores in sorted(groups.items())]
