"""How far somebody has come: exercises passed, hints taken, what comes next."""

from __future__ import annotations

import html
from dataclasses import dataclass

from grader import registry
from labkit import store
from labkit.display import put


@dataclass(frozen=True)
class Line:
    """One exercise or question and how it stands."""

    lesson: str
    name: str
    points: int
    minutes: int
    outcome: str  # passed, failed, not run or not yet
    note: str  # tries, hints, solution seen

    @property
    def passed(self) -> bool:
        return self.outcome == "passed"


def lines(lesson: str | None = None) -> list[Line]:
    known = store.all_progress()
    items = [(e.lesson, e.id, e.points, e.minutes) for e in registry.exercises(lesson)]
    items += [(q.lesson, q.id, q.points, 2) for q in registry.questions(lesson)]
    return [Line(*item, *_standing(known.get(item[1]))) for item in sorted(items, key=_order)]


def _order(item: tuple[str, str, int, int]) -> str:
    return item[0]  # by lesson; within a lesson as registered


def _standing(status: dict | None) -> tuple[str, str]:
    """Passed stays passed, whatever was tried later."""
    if status is None:
        return "not yet", ""
    outcome = "passed" if status["passed_at"] else status["outcome"] or "not yet"
    notes = [f"{status['attempts']} tries"] if status["attempts"] > 1 else []
    notes += [f"{status['hints']} hints"] if status["hints"] else []
    notes += ["solution seen"] if status["solution_shown"] else []
    return outcome, ", ".join(notes)


def text(lesson: str | None = None) -> str:
    """A line for each lesson; the exercises of one that is asked for, or begun and not finished."""
    rows = lines(lesson)
    out = []
    for name in dict.fromkeys(row.lesson for row in rows):
        mine = [row for row in rows if row.lesson == name]
        out.append(f"{name}: {_sum(mine)}")
        if lesson or _is_begun(mine):
            out += [f"  {r.outcome:<8} {r.name}{'  ' + r.note if r.note else ''}" for r in mine]
    return "\n".join([*out, _next(rows), f"kept in {store.home()}"])


def progress(lesson: str | None = None) -> None:
    """Show how far you have come, in one lesson ("04_kv_cache") or in all."""
    rows = lines(lesson)
    cell = 'style="text-align:left;padding:1px 10px"'
    body = "".join(
        f"<tr><td {cell}>{'✓' if r.passed else '○'} {r.outcome}</td>"
        f"<td {cell}><code>{html.escape(r.name)}</code></td>"
        f"<td {cell}>{r.points}</td><td {cell}>{html.escape(r.note)}</td></tr>"
        for r in rows
    )
    heads = "".join(f"<th {cell}>{h}</th>" for h in ("", "exercise", "points", ""))
    markup = (
        f"<p><b>{html.escape(_sum(rows))}</b></p><table><thead><tr>{heads}</tr></thead>"
        f"<tbody>{body}</tbody></table><p>{html.escape(_next(rows))}</p>"
    )
    put(markup, text(lesson))


def _sum(rows: list[Line]) -> str:
    done = [r for r in rows if r.passed]
    points, total = sum(r.points for r in done), sum(r.points for r in rows)
    return f"{len(done)} of {len(rows)} passed, {points} of {total} points"


def _is_begun(rows: list[Line]) -> bool:
    """Something was tried, and something is left."""
    tried = any(r.outcome != "not yet" for r in rows)
    return tried and not all(r.passed for r in rows)


def _next(rows: list[Line]) -> str:
    """The first exercise left in the lesson that was begun, else in the first one unfinished."""
    waiting = [r for r in rows if not r.passed]
    if not waiting:
        return "everything here is passed"
    by_lesson = {name: [r for r in rows if r.lesson == name] for name in {r.lesson for r in rows}}
    begun = [r for r in waiting if _is_begun(by_lesson[r.lesson])]
    first = (begun or waiting)[0]
    return f"next: {first.name} in {first.lesson}, about {first.minutes} minutes"
