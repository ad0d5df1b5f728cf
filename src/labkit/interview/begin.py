"""From what a person chose to a session: the same choices in a terminal and in a notebook."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from secrets import randbelow

from labkit.interview import mock as mocks
from labkit.interview.bank import Bank
from labkit.interview.history import History
from labkit.interview.session import Session, plan


@dataclass(frozen=True)
class Begun:
    """words: what is asked, and in which order, for the reader."""

    session: Session
    mock: mocks.Mock | None
    words: str


def begin(
    bank: Bank,
    history: History,
    *,
    topic: str | Sequence[str] = (),
    level: str | None = None,
    weak: bool = False,
    n: int = 10,
    minutes: float | None = None,
    mock: int | None = None,
    scenario: str | None = None,
    seed: int | None = None,
) -> Begun:
    """A drill of n questions, or a mock interview of so many minutes; seed None: what is due first.

    Raises ValueError for what cannot be asked.
    """
    topics = [topic] if isinstance(topic, str) else topic
    number = randbelow(10**6) if seed is None else seed
    order = "what is due first" if seed is None else f"by seed {seed}"
    if mock is None:
        if scenario is not None:
            raise ValueError("a scenario belongs to a mock interview: add --mock 30, or mock=30")
        due = seed is None
        items = plan(
            bank, history, topics=topics, level=level, weak=weak, n=n, seed=number, due=due
        )
        order = "the weakest first" if weak else order
        words = f"{len(items)} question{'s' * (len(items) > 1)}, {order}."
        return Begun(Session(bank, history, items, number, minutes), None, words)
    if topics or level is not None or weak or minutes is not None:
        raise ValueError(
            "a mock interview chooses its own questions: leave out topic, level, weak and minutes"
        )
    case = mocks.plan(bank, history, mock, number, scenario, seed is None)
    session = Session(bank, history, case.items, number, float(mock), "mock")
    return Begun(session, case, f"A mock interview of {mock} minutes, {order}.")
