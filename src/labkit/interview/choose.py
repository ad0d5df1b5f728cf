"""Which questions a session asks, and in which order."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

import numpy as np
from fsrs import Card

from labkit.interview.history import Answered
from labkit.interview.spec import LEVELS, Item

N_RECENT = 3  # answers to a question that say how well it is known now


def wanted(
    items: Iterable[Item], topics: Sequence[str] = (), level: str | None = None
) -> list[Item]:
    """The items of these topics (none given: all) and of this level.

    Raises ValueError for an unknown level, and where nothing is left.
    """
    if level is not None and level not in LEVELS:
        raise ValueError(f"no level {level!r}; there are: {', '.join(LEVELS)}")
    found = [
        item
        for item in items
        if (not topics or item.topic in topics) and level in (None, item.level)
    ]
    if not found:
        raise ValueError(f"no question of level {level} in {', '.join(topics) or 'any topic'}")
    return found


def due_first(
    items: Sequence[Item], cards: Mapping[str, Card], now: datetime, rng: np.random.Generator
) -> list[Item]:
    """What is due, the longest due first; then what was never asked, topics in turn; then the rest
    in the order in which it falls due."""
    asked = sorted((i for i in items if i.id in cards), key=lambda item: cards[item.id].due)
    due = [item for item in asked if cards[item.id].due <= now]
    fresh = _topics_in_turn([item for item in items if item.id not in cards], rng)
    return [*due, *fresh, *asked[len(due) :]]


def _topics_in_turn(items: Sequence[Item], rng: np.random.Generator) -> list[Item]:
    """In random order, but one of each topic before a topic comes again."""
    seen: dict[str, int] = defaultdict(int)
    placed: list[tuple[int, int, Item]] = []
    for index in rng.permutation(len(items)):
        item = items[int(index)]
        placed.append((seen[item.topic], len(placed), item))
        seen[item.topic] += 1
    return [item for _, _, item in sorted(placed, key=lambda place: place[:2])]


def weak_first(
    items: Sequence[Item], answers: Sequence[Answered], rng: np.random.Generator
) -> list[Item]:
    """The weakest first: low scores lately, in this question or its topic, or a misconception that
    was met and that this question can show."""
    by_item: dict[str, list[float]] = defaultdict(list)
    by_topic: dict[str, list[float]] = defaultdict(list)
    for answer in answers:
        by_item[answer.item].append(answer.score)
        by_topic[answer.topic].append(answer.score)
    met = {m.id for answer in answers for m in answer.met}

    def weakness(item: Item) -> float:
        topic = [0.5, *by_topic[item.topic]]  # nothing known: in the middle
        recent = [sum(topic) / len(topic), *by_item[item.id][-N_RECENT:]]
        return 1 - sum(recent) / len(recent) + 0.25 * bool(met & set(item.met_by.values()))

    shuffled = [items[int(i)] for i in rng.permutation(len(items))]
    return sorted(shuffled, key=weakness, reverse=True)
