"""The site's first page, and the documents that come with it."""

from __future__ import annotations

import re
from pathlib import Path

from tools import DOCS
from tools.docs import readme_table

REFERENCE = ("cheatsheet", "glossary")  # the other documents in docs/ are for those who teach
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")
INDEX = """\
# inferlab

A hands-on course on **LLM inference**. In twelve Jupyter notebooks you write every part of an
inference engine, are judged numerically on each part within seconds, predict what it will cost,
measure it on your own computer, and at the end serve a real model over HTTP with the parts you
wrote. Everything runs on a laptop's CPU, offline once it is installed.

![{alt}](pipeline.svg)

<div class="paths">
<div>

**On your own**

`make lab` opens JupyterLab on the first lesson. `check()` judges what you wrote at once and names
the likely mistake; hints come in steps; nothing you wrote is ever overwritten.

</div>
<div>

**In a university lab**

Release, collect, grade, send back: nbgrader's own workflow. Student code is graded in isolation,
with hidden cases, many submissions at once.{instructor}

</div>
<div>

**Before an interview**

Timed drills with fresh numbers, graded with their units. Every lesson ends with the questions that
are asked, their answers and the follow-ups. [The cheat sheet](cheatsheet.md) fits on two pages.

</div>
</div>

## Lessons

Here you can read them, with the pictures and outputs of a run. The functions are yours to write.

{table}

Minutes are for exercises and questions; reading and measuring come on top: {hours} hours in all.

{toctrees}"""
TOCTREE = """\
```{{toctree}}
:hidden:
:caption: {caption}

{entries}
```
"""


def documents() -> dict[str, list[str]]:
    """Heading in the list of pages -> names of the documents in docs/ that stand under it."""
    there = sorted(path.stem for path in DOCS.glob("*.md"))
    others = sorted(set(there) - set(REFERENCE), key=lambda name: (name != "instructor", name))
    return {
        "reference": [name for name in REFERENCE if name in there],
        "for teachers and contributors": others,
    }


def names() -> list[str]:
    """All documents of the site."""
    return [name for group in documents().values() for name in group]


def document(name: str, lessons: list[str]) -> str:
    """A document with its links turned to pages of the site; links to anything else become text."""
    text = (DOCS / f"{name}.md").read_text(encoding="utf-8")
    return LINK.sub(lambda match: _link(match, lessons), text)


def pictures(text: str) -> list[str]:
    """Files in docs/ that a document shows."""
    return [target for mark, _, target in LINK.findall(text) if mark and "://" not in target]


def _link(match: re.Match[str], lessons: list[str]) -> str:
    picture, text, target = match.groups()
    path, _, anchor = target.partition("#")
    stem = Path(path).stem
    if picture or target.startswith("https://") or not path:
        return match.group()
    if stem in lessons:
        return f"[{text}](lessons/{stem}.ipynb)"
    if stem in names():
        return f"[{text}]({stem}.md{'#' + anchor if anchor else ''})"
    return text


def index(lessons: list[str], alt: str) -> str:
    """The front page for these lessons. alt: what the picture of the engine shows."""
    instructor = " [The guide](instructor.md)." if "instructor" in names() else ""
    groups = {"lessons": [f"lessons/{lesson}" for lesson in lessons], **documents()}
    toctrees = "\n".join(
        TOCTREE.format(caption=title.capitalize(), entries="\n".join(entries))
        for title, entries in groups.items()
        if entries
    )
    minutes = sum(readme_table.minutes(lesson) for lesson in lessons)
    return INDEX.format(
        alt=alt,
        instructor=instructor,
        table=lesson_table(lessons),
        hours=round(minutes / 60),
        toctrees=toctrees,
    )


def lesson_table(lessons: list[str]) -> str:
    """One row a lesson: its title, which leads to its page, and what it takes."""
    rows = ["| lesson | exercises | questions | minutes |", "|---|---|---|---|"]
    for lesson in lessons:
        cells = [f"[](lessons/{lesson}.ipynb)", *readme_table.counts(lesson)]
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)
