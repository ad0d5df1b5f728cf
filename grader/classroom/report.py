"""`inferlab report LESSON`: what a class knows, question by question; what to look at oneself.

It reads the records of `inferlab grade` and writes one page that needs nothing from outside.
"""

from __future__ import annotations

import argparse
import html
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure

from grader.classroom import private
from grader.classroom.course import Course
from grader.classroom.grade import course_folder
from grader.classroom.record import Record, read_record
from grader.classroom.similar import Pair, pairs, written_code
from grader.learner import lab
from grader.notebooks.merge import text
from labkit.figures import show as figures
from labkit.files import write_whole
from labkit.shown import shown

NEVER = "These pairs share code that few others wrote. Read both: it is no proof of anything."
STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem;
       color: #1a1a1a; background: #fff; }
table { border-collapse: collapse; width: 100%; }
caption { text-align: left; font-weight: bold; }
th, td { text-align: left; padding: .3rem .6rem; border-bottom: 1px solid #ccc; }
th, td { vertical-align: top; }
td.number { text-align: right; white-space: nowrap; } img { max-width: 100%; background: #fff; }
@media (prefers-color-scheme: dark) { body { color: #eee; background: #1b1b1b; } }
"""


@dataclass(frozen=True)
class Item:
    """One check over the whole class. causes: named mistakes; reasons: all lost points' reasons."""

    grade_id: str
    points: int
    n_passed: int
    n_judged: int
    causes: tuple[tuple[str, int], ...]
    reasons: tuple[tuple[str, int], ...]

    @property
    def rate(self) -> float:
        return self.n_passed / self.n_judged


def items(records: Sequence[Record]) -> list[Item]:
    """Every check, in lesson order, over the submissions that could be judged."""
    found: dict[str, list] = {}
    for record in records:
        if not record.rejected and not record.fault:
            for result in record.results:
                found.setdefault(result.grade_id, []).append(result)
    return [
        Item(
            name,
            results[0].points,
            sum(r.earned == r.points for r in results),
            len(results),
            tuple(Counter(r.diagnosis for r in results if r.diagnosis).most_common(3)),
            tuple(Counter(r.reason for r in results if r.reason).most_common()),
        )
        for name, results in found.items()
    ]


def picture(rows: Sequence[Item]) -> Figure:
    """A bar for each check: how many of a hundred passed it."""
    figure, plot = figures.axes(
        "Who passed what", "passed (% of the submissions)", "check (by name)",
        size=(8.4, 1.4 + 0.28 * len(rows)),
    )  # fmt: skip
    names = [row.grade_id.removeprefix("check_") for row in rows]
    rates = [100 * row.rate for row in rows]
    bars = plot.barh(names, rates, color="#0072b2", height=0.62)
    plot.bar_label(bars, [f"{rate:.0f}" for rate in rates], padding=3, fontsize=9)
    plot.set_xlim(0, 108)
    plot.invert_yaxis()
    plot.tick_params(axis="y", labelsize=9)
    return figure


def alt(rows: Sequence[Item]) -> str:
    hardest = sorted(rows, key=lambda row: row.rate)[:3]
    said = ", ".join(f"{row.grade_id.removeprefix('check_')} {row.rate:.0%}" for row in hardest)
    return f"A bar for each of {len(rows)} checks: the share that passed. Lowest: {said}."


def summary(lesson: str, records: Sequence[Record], alike: Sequence[Pair]) -> str:
    """The report as text, for the terminal."""
    rows = items(records)
    seconds = [r.seconds for r in records if r.seconds]
    lines = [_head(lesson, records)]
    if seconds:
        lines.append(f"judging took {statistics.median(seconds):.1f} s a submission (median)")
    for row in sorted(rows, key=lambda row: row.rate):
        name = row.grade_id.removeprefix("check_")
        lines.append(f"{row.rate:6.0%}  {name} ({row.n_passed} of {row.n_judged})")
        lines += [f"          {n} x {cause}" for cause, n in row.causes]
    lines += [f"{_words(pair)}" for pair in alike]
    return "\n".join(map(shown, [*lines, NEVER] if alike else lines))


def _head(lesson: str, records: Sequence[Record]) -> str:
    judged = [r for r in records if not r.rejected and not r.fault]
    head = f"{lesson}: {len(judged)} judged"
    if rejected := sum(bool(r.rejected) for r in records):
        head += f", {rejected} rejected or missing"
    if faults := sum(bool(r.fault) for r in records):
        head += f", {faults} not graded through our own fault"
    return head


def _words(pair: Pair) -> str:
    return (
        f"alike: {pair.one} and {pair.other}: {pair.share_of_one:.0%} and "
        f"{pair.share_of_other:.0%} of their unusual code"
    )


def page(lesson: str, records: Sequence[Record], alike: Sequence[Pair]) -> str:
    """The report as one HTML page."""
    rows = items(records)
    body = [f"<h1>{html.escape(_head(lesson, records))}</h1>"]
    if rows:
        body += [figures.show(picture(rows), alt(rows)) or "", _table(rows)]
    if alike:
        said = "".join(f"<li>{html.escape(shown(_words(pair)))}</li>" for pair in alike)
        body.append(f"<h2>Worth reading side by side</h2><p>{NEVER}</p><ul>{said}</ul>")
    title = html.escape(f"{lesson}: report")
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f"<style>{STYLE}</style></head><body><main>{''.join(body)}</main></body></html>\n"
    )


def _table(rows: Sequence[Item]) -> str:
    head = "".join(
        f'<th scope="col">{name}</th>'
        for name in ("check", "passed", "commonest named mistakes", "why points were lost")
    )
    body = "".join(
        f'<tr><th scope="row"><code>{html.escape(row.grade_id.removeprefix("check_"))}</code></th>'
        f'<td class="number">{row.rate:.0%} ({row.n_passed} of {row.n_judged})</td>'
        f"<td>{_counts(row.causes)}</td><td>{_counts(row.reasons)}</td></tr>"
        for row in rows
    )
    caption = "<caption>Check by check, in lesson order</caption>"
    return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _counts(counts: Sequence[tuple[str, int]]) -> str:
    return "<br>".join(f"{n} × {html.escape(shown(what))}" for what, n in counts)


# ---- on the command line -----------------------------------------------------------------------


def read_records(course: Course, lesson: str) -> list[Record]:
    """What `inferlab grade` kept. Raises ValueError if there is nothing."""
    paths = sorted((course.records / lesson).glob("*.json"))
    records = [record for path in paths if (record := read_record(path))]
    if not records:
        raise ValueError(f"{lesson} has not been graded here: inferlab grade {lesson}")
    return records


def alike(course: Course, lesson: str, records: Sequence[Record]) -> list[Pair]:
    """Pairs worth reading side by side, of the submissions that were judged."""
    release = lab.read_notebook(lab.released_path(course.root, lesson))
    codes = {}
    for record in records:
        path = course.graded_path(lesson, record.student)
        if path.is_file():
            codes[record.student] = written_code(lab.read_notebook(path), release)
    known = ["\n\n".join(text(c) for c in release["cells"] if c["cell_type"] == "code")]
    solution = course.root / "solutions" / lesson / f"{lesson}.ipynb"
    if solution.is_file():
        known.append(written_code(lab.read_notebook(solution), release))
    return pairs(codes, known)


def main(args: argparse.Namespace) -> int:
    """Print the report and write the page."""
    course = Course(args.course or course_folder())
    lesson = lab.find_lesson(args.lesson, lab.released_lessons(course.root))
    records = read_records(course, lesson)
    found = alike(course, lesson, records)
    print(summary(lesson, records, found))
    path: Path = course.records / f"{lesson}-report.html"
    with course.kept_private("grading"):
        write_whole(path, page(lesson, records, found), private.FILE)
    print(f"written: {path}")
    return 0
