"""How far somebody has come, in words: a table in a notebook, plain text in a terminal."""

from __future__ import annotations

import html
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

from grader.judging import registry
from grader.learner import standing
from grader.learner.standing import Lesson, Line, Predicted
from labkit import store
from labkit.display import inline_html, put, table

HEADS = ("lesson", "exercises", "questions", "points", "", "minutes", "hints", "solutions")
BAR, WIDTH = 4, 96  # the column that only pictures a number; characters of a line in a terminal
MINUTES = (
    "Minutes run from one check, hint, solution or prediction to the next; more than "
    f"{standing.PAUSE.total_seconds() / 60:.0f} without one count as a pause. Reading before the "
    "first and after the last is not seen."
)
POINTS = "Points are those of the visible checks; hidden ones run at grading."


@dataclass(frozen=True)
class Standing:
    """All that is shown, read once."""

    lessons: Sequence[Lesson] = field(default_factory=standing.lessons)
    predicted: Predicted = field(default_factory=standing.predicted)

    @property
    def next(self) -> Line | None:
        return standing.left_off(self.lessons)


def text(lesson: str | None = None) -> str:
    """At most 40 lines: a line for each lesson, or for each exercise and question of one."""
    if lesson is not None:
        return _lesson_text(_named(lesson))
    now = Standing()
    rows = [HEADS, *(_row(each, now.next) for each in now.lessons), _total(now.lessons)]
    aligned = _aligned([row[:BAR] + row[BAR + 1 :] for row in rows])
    notes = [textwrap.fill(_plain(line), WIDTH) for line in _notes(now)]
    return "\n".join([*aligned, "", *notes, f"kept in {store.home()}"])


def progress(lesson: str | None = None) -> None:
    """Show how far you have come: in all lessons, or in one ("04_kv_cache", "04")."""
    if lesson is not None:
        one = _named(lesson)
        put(_lesson_html(one), _lesson_text(one))
        return
    now = Standing()
    rows = [_row(each, now.next) for each in now.lessons] + [_total(now.lessons)]
    lessons = table("How far you have come", HEADS, rows, right=(1, 2, 3, 5, 6, 7))
    notes = "".join(f"<p>{_with_link(line, now.next)}</p>" for line in _notes(now))
    markup = lessons + notes + _predictions(now.predicted)
    put(f'<div class="inferlab-progress">{markup}</div>', text())


def _named(lesson: str) -> Lesson:
    """Raises UnknownLesson, which lists those there are."""
    from grader.learner import lab

    name = lab.find_lesson(lesson, registry.lessons())
    return next(each for each in standing.lessons() if each.name == name)


# ---- the rows ----------------------------------------------------------------------------------


def _row(lesson: Lesson, at: Line | None) -> tuple[str, ...]:
    mark = "✓" if lesson.waiting is None else "▸" if at and at.lesson == lesson.name else "·"
    exercises, questions = lesson.count(True), lesson.count(False)
    used = [str(n) if lesson.is_begun else "–" for n in (lesson.hints, lesson.solutions)]
    counts = (f"{n}/{all_}" for n, all_ in (exercises, questions, lesson.points))
    return (f"{mark} {lesson.name}", *counts, _bar(*lesson.points), _minutes(lesson.minutes), *used)


def _total(lessons: Sequence[Lesson]) -> tuple[str, ...]:
    def together(pairs: list[tuple[int, int]]) -> tuple[int, int]:
        return sum(done for done, _ in pairs), sum(every for _, every in pairs)

    exercises = together([lesson.count(True) for lesson in lessons])
    questions = together([lesson.count(False) for lesson in lessons])
    points = together([lesson.points for lesson in lessons])
    spent = [lesson.minutes for lesson in lessons if lesson.minutes is not None]
    used = (sum(lesson.hints for lesson in lessons), sum(lesson.solutions for lesson in lessons))
    counts = (f"{n}/{all_}" for n, all_ in (exercises, questions, points))
    minutes = _minutes(sum(spent) if spent else None)
    return ("  all", *counts, _bar(*points), minutes, *(str(n) for n in used))


def _bar(done: int, every: int) -> str:
    """Ten marks, one for each tenth reached."""
    full = 10 * done // every if every else 0
    return "■" * full + "□" * (10 - full)


def _minutes(minutes: float | None) -> str:
    return "–" if minutes is None else f"{minutes:.0f}"


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = ("  ".join(f"{c:<{w}}" for c, w in zip(row, widths, strict=True)) for row in rows)
    return [line.rstrip() for line in lines]


# ---- the lines below it ------------------------------------------------------------------------


def _notes(now: Standing) -> list[str]:
    """Each with `code` and **bold** as the course's texts have them."""
    notes = [_go_on(now.next), _said(now.predicted), _parts(now.lessons), _drill()]
    if store.lab_mode():
        notes.append("Your instructor has switched solutions and worked answers off.")
    return [*notes, f"{POINTS} {MINUTES}"]


def _go_on(line: Line | None) -> str:
    if line is None:
        return "**Everything is passed.** `inferlab serve --mine` runs the engine that you wrote."
    kind = "exercise" if line.is_exercise else "question"
    return (
        f"**Go on at** lesson {line.lesson[:2]}, {kind} `{line.name}` (about {line.minutes} "
        "min): `inferlab lab` opens that lesson."
    )


def _said(predicted: Predicted) -> str:
    words = f"**Predictions:** {predicted.lodged} of {predicted.total} lodged"
    if not predicted.confronted:
        return f"{words}, none confronted with what is so yet."
    ratios, (right, choices) = predicted.ratios, predicted.choices
    parts = [f"{predicted.near} of {len(ratios)} numbers within a quarter"] if ratios else []
    parts += [f"{right} of {choices} choices right"] if choices else []
    words += f", {len(predicted.confronted)} confronted"
    return f"{words}: {', '.join(parts)}." if parts else f"{words}."


def _parts(lessons: Sequence[Lesson]) -> str:
    counts = [lesson.count(True) for lesson in lessons]
    yours, every = sum(n for n, _ in counts), sum(n for _, n in counts)
    return (
        f"**Your engine:** {yours} of {every} parts are yours, by the visible checks that you "
        "passed. `inferlab assemble` judges your notebooks again, hidden cases too."
    )


def _drill() -> str:
    try:
        due = standing.drill_due()
    except OSError as trouble:
        return f"**Interview practice:** {trouble}"
    if due is None:
        return "**Interview practice:** not begun; `inferlab drill` asks the first questions."
    return f"**Interview practice:** {due[0]} of {due[1]} questions asked are due: `inferlab drill`"


def _plain(line: str) -> str:
    return line.replace("**", "").replace("`", "")


def _with_link(line: str, at: Line | None) -> str:
    """The exercise's name as a link to its cell, where the notebook lies beside this one."""
    markup = inline_html(line)
    name = f"<code>{html.escape(at.name)}</code>" if at else ""
    target = _address(at) if at else None
    if at is None or target is None:
        return markup
    look = 'style="text-decoration:underline"'  # JupyterLab's links differ by colour alone
    return markup.replace(name, f'<a href="{target}" {look}>{html.escape(at.name)}</a>', 1)


def _address(line: Line) -> str | None:
    """Relative to the running notebook: ../05_gqa/05_gqa.ipynb#cell-id=… of the check's cell."""
    from grader.learner import lab

    path = lab.working_path(Path.cwd().parent, line.lesson)
    try:
        cells = lab.read_notebook(path)["cells"]
    except (OSError, lab.DamagedNotebook):
        return None
    wanted = f"check_{line.name.replace('.', '_')}"
    ids = [c["id"] for c in cells if c["metadata"].get("nbgrader", {}).get("grade_id") == wanted]
    fragment = f"#cell-id={quote(ids[0])}" if ids else ""
    return f"../{quote(line.lesson)}/{quote(path.name)}{fragment}"


# ---- predictions and one lesson ----------------------------------------------------------------


def _predictions(predicted: Predicted) -> str:
    """How far off, as a picture and a table; nothing where nothing was confronted."""
    if not predicted.confronted:
        return ""
    from labkit.interview import pictures

    ratios = predicted.ratios
    picture = pictures.predictions(ratios, "what was measured or computed") if ratios else ""
    heads = ("prediction", "yours", "so it is", "", "yours over that")
    rows = [
        (s.id, s.yours, s.so, "measured" if s.is_measured else "computed", s.in_words)
        for s in predicted.confronted
    ]
    each = table("Each prediction that was confronted", heads, rows)
    return (
        f'<div style="max-width:40em">{picture}</div>'
        f'<details><summary style="cursor:pointer;padding:6px 0">each prediction</summary>{each}'
        "</details>"
    )


def _lesson_rows(lesson: Lesson) -> list[tuple[str, ...]]:
    marks = {"passed": "✓", "failed": "✗"}
    return [
        (line.name, f"{marks.get(line.outcome, '·')} {line.outcome}", str(line.points), line.note)
        for line in lesson.lines
    ]


def _lesson_sum(lesson: Lesson) -> str:
    (done, every), (points, most) = lesson.count(True), lesson.points
    spent = "" if lesson.minutes is None else f", {lesson.minutes:.0f} min"
    return f"{lesson.name}: {done} of {every} exercises, {points} of {most} points{spent}"


def _lesson_next(lesson: Lesson) -> str:
    line = lesson.waiting
    return f"next: `{line.name}`, about {line.minutes} min" if line else "all of it is passed"


def _lesson_text(lesson: Lesson) -> str:
    rows = [("", "", "points", ""), *_lesson_rows(lesson)]
    return "\n".join([_lesson_sum(lesson), *_aligned(rows), _plain(_lesson_next(lesson))])


def _lesson_html(lesson: Lesson) -> str:
    heads = ("name", "outcome", "points", "used")
    lines = table(_lesson_sum(lesson), heads, _lesson_rows(lesson), (2,))
    at = _with_link(_lesson_next(lesson), lesson.waiting)
    return f'<div class="inferlab-progress">{lines}<p>{at}</p></div>'
