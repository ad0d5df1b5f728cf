"""Three questions, a clock that is told the time, and answers to give in a drill."""

from __future__ import annotations

import numpy as np

from labkit.interview.drill import Drill
from labkit.interview.questions import Question

SIZE = Question(
    "size",
    "04",
    1,
    text=lambda p: f"{p['n']} keys of 100 bytes: how many bytes?",
    why=lambda p: f"{p['n']} times `100`.",
    draw=lambda rng: {"n": int(rng.integers(2, 10**6))},
    answer=lambda p: 100.0 * p["n"],
    unit="kB",
    slips={"keys and values": lambda p: 200.0 * p["n"]},
)
WHY = Question(
    "why",
    "04",
    1,
    text=lambda p: "Why is it valid?",
    why=lambda p: "The past is closed.",
    choices=("keys never change", "softmax is a sum", "queries are small"),
    notes={"softmax is a sum": "how it is computed, not why it holds"},
)
COUNT = Question(
    "count",
    "04",
    1,
    text=lambda p: "Twelve?",
    why=lambda p: "A dozen.",
    answer=lambda p: 12.0,
)


class Clock:
    """Seconds that pass when told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def new_drill(*questions: Question, minutes: float = 1, seed: int = 0) -> tuple[Drill, Clock]:
    clock = Clock()
    rng = np.random.default_rng(seed)
    return Drill(questions or (SIZE,), minutes, rng=rng, clock=clock), clock


def right_answer(drill: Drill) -> str:
    asked = drill.asked
    return asked.answers.worked(asked.question.id)


def slip_answer(drill: Drill) -> str:
    return f"{200 * drill.asked.answers.params('size')['n']} B"


def wrong_letter(drill: Drill, choice: str = WHY.choices[1]) -> str:
    return next(letter for letter, text in drill.asked.choices.items() if text == choice)
