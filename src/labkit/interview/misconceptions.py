"""What people get wrong: a name for it, one line that cures it, the lesson to read."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Misconception:
    """id: as in data/interview/misconceptions.json; of a slip that has no entry there, its text.

    also: slips of the lessons' knowledge checks that are the same thing in other words.
    """

    id: str
    name: str
    cure: str
    lesson: str
    also: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """As a verdict says it."""
        return f"{self.name}: {self.cure}"


class Catalogue:
    """All misconceptions that have an id, found by it or by any text that stands for them."""

    def __init__(self, entries: Iterable[Misconception]) -> None:
        self.by_id = {entry.id: entry for entry in entries}
        self._by_text = {
            text: entry for entry in self.by_id.values() for text in (entry.text, *entry.also)
        }

    def of(self, text: str, lesson: str, cure: str = "") -> Misconception:
        """The entry that a slip's text or id stands for; one made of the text where there is none.

        A slip is written "what is wrong: why"; the part after the colon is the cure.
        """
        known = self.by_id.get(text) or self._by_text.get(text)
        if known is not None:
            return known
        name, _, why = text.partition(": ")
        return Misconception(text, name, why or cure, lesson)
