"""Write docs/glossary.md from docs/glossary.toml. Run: python -m tools.docs.glossary"""

from __future__ import annotations

import tomllib
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from labkit.files import write_whole
from tools import DOCS, ROOT

TARGET = DOCS / "glossary.md"
HEAD = """\
# Glossary

<!-- written by: python -m tools.docs.glossary, from docs/glossary.toml -->

{count} terms of the field that the lessons use, each with its symbol in code or formulas, its unit
where it is measured, and the lesson that teaches it. GB is 10⁹ bytes, GiB is 2³⁰.
"""


@dataclass(frozen=True)
class Term:
    """One entry. also: other spellings and short forms; lesson: the number of its lesson."""

    term: str
    text: str
    lesson: int
    also: tuple[str, ...] = ()
    symbol: str = ""
    unit: str = ""

    @property
    def spellings(self) -> tuple[str, ...]:
        return (self.term, *self.also)

    @property
    def short_forms(self) -> tuple[str, ...]:
        """Those of its other names that say more than a shorter or longer form of the term."""
        term = _plain(self.term)
        return tuple(a for a in self.also if _plain(a) not in term and term not in _plain(a))


def _plain(name: str) -> str:
    return name.lower().replace("-", " ")


def terms(source: Path = DOCS / "glossary.toml") -> list[Term]:
    """All entries by name. Raises TypeError for a field that is missing or unknown."""
    records = tomllib.loads(source.read_text(encoding="utf-8"))["term"]
    entries = [Term(**{**record, "also": tuple(record.get("also", ()))}) for record in records]
    return sorted(entries, key=lambda entry: entry.term.lower())


def lesson_files() -> dict[int, str]:
    """Number of a lesson -> its name: 4 -> "04_kv_cache"."""
    scripts = (ROOT / "src" / "lessons").glob("*.py")
    return {int(path.stem[:2]): path.stem for path in scripts}


def markdown(entries: list[Term]) -> str:
    """The glossary, one table for each initial."""
    names = lesson_files()
    by_initial: dict[str, list[Term]] = defaultdict(list)
    for entry in entries:
        first = entry.term[0].upper()
        by_initial[first if first.isalpha() else "0–9"].append(entry)
    parts = [HEAD.format(count=len(entries))]
    for initial, group in by_initial.items():
        rows = "\n".join(_row(entry, names[entry.lesson]) for entry in group)
        head = "| term | meaning | symbol | unit | lesson |\n|---|---|---|---|---|"
        parts.append(f"## {initial}\n\n{head}\n{rows}\n")
    return "\n".join(parts)


def _row(entry: Term, lesson: str) -> str:
    name = f"**{entry.term}**"
    if entry.short_forms:
        name += f" ({', '.join(entry.short_forms)})"
    symbol = f"`{entry.symbol}`" if entry.symbol else ""
    link = f"[{lesson[:2]}](../src/lessons/{lesson}.py)"
    return f"| {name} | {entry.text} | {symbol} | {entry.unit} | {link} |"


if __name__ == "__main__":
    write_whole(TARGET, markdown(terms()))
