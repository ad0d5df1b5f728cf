"""When to ask again: FSRS, fed with ratings that follow from the score and the time taken.

Source: the Free Spaced Repetition Scheduler, version 6, in the library `fsrs`.
"""

from __future__ import annotations

import hashlib
from datetime import datetime

from fsrs import Card, Rating, Scheduler

SLOW, FAST = 1.5, 0.5  # times the seconds that a practised reader takes
# Whole days from the first answer on: FSRS's steps of minutes hold back a card that is answered
# right but slowly, for ever. Without fuzz: the same answers give the same dates on every computer.
SCHEDULER = Scheduler(
    desired_retention=0.9, learning_steps=(), relearning_steps=(), enable_fuzzing=False
)


def rate(score: float, seconds: float | None, expected_s: float) -> Rating:
    """How well an answer was known.

    Half a mark or less was not known. An open answer that missed something, or a right one that
    took long, was hard. seconds None: the time says nothing (talking through an open answer).
    """
    if score <= 0.5:
        return Rating.Again
    if score < 0.8:
        return Rating.Hard
    if seconds is None:
        return Rating.Good
    if seconds > SLOW * expected_s:
        return Rating.Hard
    return Rating.Easy if seconds <= FAST * expected_s and score == 1 else Rating.Good


def new_card(item_id: str, now: datetime) -> Card:
    """The card of a question that was never answered, due at once."""
    number = int.from_bytes(hashlib.sha256(item_id.encode()).digest()[:6], "big")
    return Card(card_id=number, due=now)


def reviewed(card: Card, rating: Rating, now: datetime) -> Card:
    """The card after an answer."""
    moved, _ = SCHEDULER.review_card(card, rating, now)
    return moved


def known_share(card: Card, now: datetime) -> float:
    """The probability, by FSRS's model, that this question would be answered now."""
    return float(SCHEDULER.get_card_retrievability(card, now))
