"""A mock interview: quick questions, deeper ones, then a system to design, against the clock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from labkit.interview import choose
from labkit.interview.bank import Bank, Scenario
from labkit.interview.history import History
from labkit.interview.session import utc_now
from labkit.interview.spec import Item

# The share of the time after which no more questions of a level are begun: the design needs time.
BEGUN_BY = {"screen": 0.2, "engineer": 0.4, "senior": 0.55}
# minutes -> how many questions of each level come before the design
SHAPES = {
    30: {"screen": 4, "engineer": 3, "senior": 1},
    45: {"screen": 5, "engineer": 4, "senior": 3},
}


@dataclass(frozen=True)
class Mock:
    """parts: (heading, questions), in the order of the interview. begun_by: question -> seconds
    after which it is left out."""

    minutes: int
    scenario: Scenario
    parts: tuple[tuple[str, tuple[Item, ...]], ...]
    begun_by: Mapping[str, float]

    @property
    def items(self) -> list[Item]:
        return [item for _, items in self.parts for item in items]

    def heading(self, item_id: str) -> str:
        """The heading that stands before this question, or ""."""
        return next((head for head, items in self.parts if items and items[0].id == item_id), "")

    def too_late(self, remaining_s: float) -> set[str]:
        """Questions that are not begun any more when so many seconds are left."""
        passed_s = 60 * self.minutes - remaining_s
        return {name for name, end_s in self.begun_by.items() if passed_s >= end_s}


def plan(
    bank: Bank,
    history: History,
    minutes: int,
    seed: int,
    scenario: str | None = None,
    due: bool = True,
) -> Mock:
    """The questions of an interview of 30 or 45 minutes. scenario: its id; None: one drawn. due:
    what is due comes first, else seed alone decides.

    Raises ValueError for another length, or an unknown scenario.
    """
    if minutes not in SHAPES:
        raise ValueError(f"a mock interview takes 30 or 45 minutes, given {minutes}")
    if scenario is not None and scenario not in bank.scenarios:
        raise ValueError(f"no scenario {scenario!r}; there are: {', '.join(bank.scenarios)}")
    rng = np.random.default_rng(seed)
    case = bank.scenarios[scenario or str(rng.choice(list(bank.scenarios)))]
    cards, now = history.cards() if due else {}, utc_now()
    parts: list[tuple[str, tuple[Item, ...]]] = []
    begun_by: dict[str, float] = {}
    for level, n in SHAPES[minutes].items():
        pool = [i for i in choose.wanted(bank.items.values(), (), level) if not i.scenario]
        items = tuple(choose.due_first(pool, cards, now, rng)[:n])
        parts.append((f"{level.capitalize()} questions", items))
        begun_by |= {item.id: 60 * minutes * BEGUN_BY[level] for item in items}
    parts.append((f"System design: {case.title}", case.bound(seed)))
    return Mock(minutes, case, tuple(parts), begun_by)
