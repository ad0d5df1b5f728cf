"""The interview bank: data/interview/ and the lessons' knowledge checks, as one set of questions.

data/README.md describes the files. Everything here reads them once and refuses what is wrong.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from inferlab.data import ROOT
from labkit.interview import spec as specs
from labkit.interview.drill import Asked, letter
from labkit.interview.misconceptions import Catalogue, Misconception
from labkit.interview.questions import MIXED_PREFIXES, Question, Result
from labkit.interview.spec import LEVELS, Item, Numbers

FOLDER = ROOT / "data" / "interview"
NOT_TOPICS = ("misconceptions", "scenarios")


def topic_title(topic: str) -> str:
    """ "04_kv_cache" -> "04 KV cache" """
    words = topic.replace("_", " ")
    for short, written in {"kv": "KV", "gqa": "GQA", "moe": "MoE", "flash": "Flash"}.items():
        words = words.replace(f" {short}", f" {written}")
    return words.replace("Flash attention", "FlashAttention")


@dataclass(frozen=True)
class Scenario:
    """A system-design case: an opening question and the follow-ups, all on the same numbers."""

    id: str
    title: str
    opening: Item
    follow_ups: tuple[Item, ...]
    numbers: Numbers
    text: str

    def bound(self, seed: int) -> tuple[Item, ...]:
        """The opening and the follow-ups with one set of numbers; each text without the case."""
        params = self.numbers.draw(np.random.default_rng(seed))
        case = self.text.format_map(params)
        items = []
        for one in (self.opening, *self.follow_ups):
            own = one.question.text(params).removeprefix(case).strip()
            text = f"{case}\n\n{own}" if one is self.opening else own
            question = replace(one.question, text=_always(text), draw=_always(params))
            items.append(replace(one, question=question))
        return tuple(items)


def _always(value: Any) -> Callable[[Any], Any]:
    return lambda given: value


@dataclass(frozen=True)
class Bank:
    """items by id; scenarios by id; the catalogue of misconceptions."""

    items: Mapping[str, Item]
    scenarios: Mapping[str, Scenario]
    catalogue: Catalogue

    @property
    def topics(self) -> tuple[str, ...]:
        return tuple(sorted({item.topic for item in self.items.values()}))

    def topic(self, name: str) -> str:
        """The lesson that a name stands for: "kv-cache", "kv_cache", "04" or "04_kv_cache"."""
        said = name.strip().lower().replace("-", "_")
        for topic in self.topics:
            number, _, word = topic.partition("_")
            if said in {topic, number, number.lstrip("0"), word}:
                return topic
        known = ", ".join(topic.partition("_")[2].replace("_", "-") for topic in self.topics)
        raise ValueError(f"no topic {name!r}; there are: {known}")

    def met(self, item: Item, asked: Asked, text: str, result: Result) -> tuple[Misconception, ...]:
        """The misconceptions behind an answer; a wrong choice is one, in its own words."""
        if asked.choices and not result.passed:
            return (self._wrong_choice(item, asked, text),)
        found = []
        for slip in result.slips:
            known = "UNITS" if slip == MIXED_PREFIXES else item.met_by.get(slip, slip)
            found.append(self.catalogue.of(known, item.topic, asked.why))
        return tuple(found)

    def _wrong_choice(self, item: Item, asked: Asked, text: str) -> Misconception:
        choice = asked.choices[letter(text)]
        if choice in item.met_by:
            return self.catalogue.by_id[item.met_by[choice]]
        cure = asked.question.notes.get(choice, asked.why)
        return Misconception(f"{item.id}: {choice}", f"“{choice}”", cure, item.topic)


def load(lesson_questions: Iterable[Question] = (), folder: Path = FOLDER) -> Bank:
    """The whole bank: the files, and the questions of the lessons' knowledge checks.

    Raises ValueError that names the question and what is wrong with it.
    """
    items, scenarios, catalogue = _files(folder)
    all_items = [*items, *(_from_lesson(question, catalogue) for question in lesson_questions)]
    twice = [name for name, n in Counter(item.id for item in all_items).items() if n > 1]
    if twice:
        raise ValueError(f"questions with the same id: {', '.join(twice)}")
    return Bank({item.id: item for item in all_items}, scenarios, catalogue)


@lru_cache(maxsize=4)
def _files(folder: Path) -> tuple[tuple[Item, ...], dict[str, Scenario], Catalogue]:
    catalogue = Catalogue(
        Misconception(**{**entry, "also": tuple(entry.get("also", ()))})
        for entry in _read(folder / "misconceptions.json")["misconceptions"]
    )
    items: list[Item] = []
    for path in sorted(folder.glob("*.json")):
        if path.stem not in NOT_TOPICS:
            entries = _read(path)["questions"]
            items += [specs.item(entry, path.stem, catalogue) for entry in entries]
    scenarios = [
        _scenario(entry, catalogue) for entry in _read(folder / "scenarios.json")["scenarios"]
    ]
    for scenario in scenarios:
        items += [scenario.opening, *scenario.follow_ups]
    return tuple(items), {scenario.id: scenario for scenario in scenarios}, catalogue


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing: install inferlab from a wheel, or whole")
    return dict(json.loads(path.read_text(encoding="utf-8")))


def _scenario(entry: dict[str, Any], catalogue: Catalogue) -> Scenario:
    """A case: its numbers are drawn once, so that they suit every follow-up."""
    numbers, case, lesson = Numbers(entry), entry["text"], entry["lesson"]

    def made(spec: dict[str, Any]) -> Item:
        whole = {**spec, "text": f"{case}\n\n{spec['text']}"}
        specs.check_fields(whole, shared=("draw", "given", "where", "functions"))
        if whole["kind"] == "numeric":
            question = specs.numeric(whole, lesson, numbers, catalogue)
        else:
            question = specs.open_ended(whole, lesson, numbers.draw)
        return specs.as_item(spec, question, catalogue, entry["id"])

    opening, *follow_ups = [made(spec) for spec in (entry["opening"], *entry["follow_ups"])]
    return Scenario(entry["id"], entry["title"], opening, tuple(follow_ups), numbers, case)


def _from_lesson(question: Question, catalogue: Catalogue) -> Item:
    kind = "choice" if question.choices else "numeric"
    level = LEVELS[0] if question.choices else LEVELS[1]
    met_by = {}
    for text in question.slips:
        entry = catalogue.of(text, question.lesson)
        met_by[text] = entry.id
    return Item(question, level, kind, specs.expected_seconds(kind, level), met_by)
