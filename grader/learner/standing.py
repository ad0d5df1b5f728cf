"""How far a learner has come, from what the data folder holds: nothing is judged here again."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise

from grader.judging import registry
from labkit import predictions, store

PAUSE = timedelta(minutes=30)  # more than this without a record counts as a pause
DONE = "passed"


@dataclass(frozen=True)
class Line:
    """One exercise or question and how it stands. outcome: passed, failed, not run or not yet."""

    lesson: str
    name: str
    is_exercise: bool
    points: int
    minutes: int  # that it is meant to take
    outcome: str = "not yet"
    attempts: int = 0
    hints: int = 0
    solution_seen: bool = False

    @property
    def passed(self) -> bool:
        return self.outcome == DONE

    @property
    def note(self) -> str:
        """Tries, hints and the solution, where there were any."""
        notes = [f"{self.attempts} tries"] if self.attempts > 1 else []
        notes += [f"{self.hints} hint{'s' * (self.hints > 1)}"] if self.hints else []
        notes += ["solution seen"] if self.solution_seen else []
        return ", ".join(notes)


@dataclass(frozen=True)
class Lesson:
    """One lesson: its lines, in the order of the notebook, and the minutes spent in it."""

    name: str
    lines: tuple[Line, ...]
    minutes: float | None = None  # None where nothing, or a single moment, is recorded

    def count(self, exercises: bool) -> tuple[int, int]:
        """(passed, all) of the exercises, or of the questions."""
        mine = [line for line in self.lines if line.is_exercise is exercises]
        return sum(line.passed for line in mine), len(mine)

    @property
    def points(self) -> tuple[int, int]:
        """(earned, all), by the checks that a learner sees."""
        done = sum(line.points for line in self.lines if line.passed)
        return done, sum(line.points for line in self.lines)

    @property
    def hints(self) -> int:
        return sum(line.hints for line in self.lines)

    @property
    def solutions(self) -> int:
        return sum(line.solution_seen for line in self.lines)

    @property
    def is_begun(self) -> bool:
        return any(line.outcome != "not yet" or line.hints for line in self.lines)

    @property
    def waiting(self) -> Line | None:
        """The first line that is not passed."""
        return next((line for line in self.lines if not line.passed), None)


def lessons() -> list[Lesson]:
    """Every lesson, in order."""
    known, minutes = store.all_progress(), minutes_spent()
    return [
        Lesson(name, tuple(_lines(name, known)), minutes.get(name)) for name in registry.lessons()
    ]


def _lines(lesson: str, known: dict[str, dict]) -> Iterable[Line]:
    items = [(e.id, True, e.points, e.minutes) for e in registry.exercises(lesson)]
    items += [(q.id, False, q.points, 2) for q in registry.questions(lesson)]
    for item in items:
        line = Line(lesson, *item)
        yield _standing(line, known[line.name]) if line.name in known else line


def _standing(line: Line, status: dict) -> Line:
    """Passed stays passed, whatever was tried later."""
    outcome = DONE if status["passed_at"] else status["outcome"] or "not yet"
    counts = (status["attempts"], status["hints"], bool(status["solution_shown"]))
    facts = (line.lesson, line.name, line.is_exercise, line.points, line.minutes)
    return Line(*facts, outcome, *counts)


# ---- time --------------------------------------------------------------------------------------


def minutes_spent() -> dict[str, float]:
    """lesson -> minutes, from the moments that are recorded.

    Recorded are checks, hints, solutions and predictions. The time from one moment to the next
    counts for the lesson of the later one; more than PAUSE counts as a pause, not as work. What was
    read before the first moment and after the last is not seen.
    """
    spent: dict[str, float] = {}
    timeline = moments()
    for (before, _), (after, lesson) in pairwise(timeline):
        gap = after - before
        if gap <= PAUSE:
            spent[lesson] = spent.get(lesson, 0.0) + gap.total_seconds() / 60
    return spent


def moments() -> list[tuple[datetime, str]]:
    """(when, lesson) of all that is recorded, in order of time."""
    lesson_of = {e.id: e.lesson for e in registry.exercises()}
    lesson_of |= {q.id: q.lesson for q in registry.questions()}
    found = [
        (moment, lesson_of[name])
        for name, status in store.all_progress().items()
        if name in lesson_of
        for moment in status["moments"]
    ]
    lodged = store.all_predictions()
    for lesson in registry.lessons():
        for prediction in registry.predictions(lesson):
            if prediction.id in lodged:
                found += [(moment, lesson) for moment in lodged[prediction.id].moments]
    return sorted((when, lesson) for text, lesson in found if (when := _time(text)))


def _time(text: str) -> datetime | None:
    try:
        return datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, OverflowError, OSError):
        return None  # written by hand


# ---- what comes next ---------------------------------------------------------------------------


def left_off(among: Iterable[Lesson] | None = None) -> Line | None:
    """Where to go on: the first line not passed of the lesson that was worked on last.

    Is that lesson finished, the next one that is not, and after the last the first. None where
    everything is passed.
    """
    known = list(lessons() if among is None else among)
    recorded = moments()
    last = recorded[-1][1] if recorded else ""
    at = next((i for i, lesson in enumerate(known) if lesson.name == last), 0)
    return next((line for each in known[at:] + known[:at] if (line := each.waiting)), None)


# ---- predictions and drill ---------------------------------------------------------------------


@dataclass(frozen=True)
class Predicted:
    """Predictions: how many there are, how many lodged, and those that were confronted."""

    total: int
    lodged: int
    confronted: tuple[predictions.Seen, ...]

    @property
    def ratios(self) -> dict[str, float]:
        """Of those with a number: yours over what was so."""
        return {s.id: s.over for s in self.confronted if not s.is_choice and s.over is not None}

    @property
    def near(self) -> int:
        """How many lie within a quarter."""
        return sum(predictions.is_near(ratio) for ratio in self.ratios.values())

    @property
    def choices(self) -> tuple[int, int]:
        """(right, all) of those with choices."""
        said = [s.over for s in self.confronted if s.is_choice and s.over is not None]
        return sum(over == 1 for over in said), len(said)


def predicted(lesson: str | None = None) -> Predicted:
    """What was lodged. The answer to a prediction that was not confronted yet is not given away."""
    asked, lodged = registry.predictions(lesson), store.all_predictions()
    mine = [(p, lodged[p.id]) for p in asked if p.id in lodged]
    seen = tuple(predictions.seen(p, said) for p, said in mine if said.confronted)
    return Predicted(len(asked), len(mine), seen)


def drill_due(now: datetime | None = None) -> tuple[int, int] | None:
    """(due, asked so far) of the interview practice; None where there was none yet.

    Raises OSError where the history was written by a newer inferlab.
    """
    if not (store.home() / "drill.sqlite3").is_file():
        return None
    from labkit.interview.history import History

    history = History.open()
    try:
        cards = history.cards()
    finally:
        history.close()
    moment = now or datetime.now(UTC)
    return sum(card.due <= moment for card in cards.values()), len(cards)
