"""How far a learner has come: counted and timed from what was recorded, in words and as a table."""

from __future__ import annotations

import importlib
import json
import re
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from pathlib import Path

import pytest

from grader import cli
from grader.judging import registry
from grader.learner import desk, lab, standing
from labkit import predictions, store
from labkit.interview.history import Answered, History
from labkit.interview.questions import Question

progress = importlib.import_module(
    "grader.learner.progress"
)  # the package has a function of that name
FIRST, SECOND, *_ = registry.lessons()
START = datetime(2030, 1, 2, 9, tzinfo=UTC)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("INFERLAB_HOME", str(tmp_path / "my data"))
    monkeypatch.delenv("NBGRADER_EXECUTION", raising=False)
    monkeypatch.delenv("INFERLAB_LAB_MODE", raising=False)
    monkeypatch.setattr(store, "_pending", {})
    monkeypatch.setattr(store, "_warned", set())
    return tmp_path / "my data"


def at(minutes: float) -> datetime:
    return START + timedelta(minutes=minutes)


def exercise(lesson: str, i: int = 0) -> str:
    return registry.exercises(lesson)[i].id


def passed_all(lesson: str) -> None:
    for item in (*registry.exercises(lesson), *registry.questions(lesson)):
        store.record_attempt(item.id, "passed", at(0))


# ---- counting ----------------------------------------------------------------------------------


def test_an_empty_store_gives_every_lesson_and_points_at_the_first_exercise(home: Path) -> None:
    said = progress.text()
    for lesson in registry.lessons():
        n, questions = len(registry.exercises(lesson)), len(registry.questions(lesson))
        points = sum(e.points for e in registry.exercises(lesson))
        points += sum(q.points for q in registry.questions(lesson))
        assert re.search(rf"{lesson} +0/{n} +0/{questions} +0/{points} +– +– +–\n", said)
    assert f"Go on at lesson 01, exercise {exercise(FIRST)} " in said
    assert "none confronted" in said
    assert not home.exists(), "looking writes nothing"


def test_what_is_passed_hinted_and_read_is_counted() -> None:
    one, two = exercise(SECOND), exercise(SECOND, 1)
    store.record_attempt(one, "failed", at(0))
    store.record_attempt(one, "passed", at(1))
    store.record_attempt(one, "failed", at(2))  # passed stays passed
    store.record_hint(two, when=at(2))
    store.record_hint(two, when=at(2))
    store.record_solution_shown(two, at(3))
    lesson = next(each for each in standing.lessons() if each.name == SECOND)
    assert lesson.count(exercises=True)[0] == 1
    assert lesson.points[0] == registry.exercise(one).points
    assert (lesson.hints, lesson.solutions) == (2, 1)
    assert [line.note for line in lesson.lines[:2]] == ["3 tries", "2 hints, solution seen"]
    parts = f"1 of {len(registry.exercises())} parts are yours"
    assert parts in " ".join(progress.text().split())


# ---- minutes -----------------------------------------------------------------------------------


def test_minutes_run_between_moments_and_a_pause_is_left_out() -> None:
    store.record_attempt(exercise(FIRST), "failed", at(0))
    store.record_hint(exercise(FIRST), when=at(8))
    store.record_attempt(exercise(FIRST), "passed", at(12))
    store.record_attempt(exercise(FIRST, 1), "failed", at(12 + 31))  # a pause
    store.record_attempt(exercise(SECOND), "failed", at(12 + 31 + 5))  # 5 for the second lesson
    assert standing.minutes_spent() == {FIRST: 12, SECOND: 5}


def test_predictions_are_moments_of_their_lesson_too() -> None:
    lodged = registry.predictions(FIRST)[0]
    store.record_prediction(lodged.id, "1", at(0))
    store.record_attempt(exercise(FIRST), "failed", at(10))
    store.record_confronted(lodged.id, None, at(15))
    assert standing.minutes_spent() == {FIRST: 15}


def test_a_single_moment_is_no_time_and_nonsense_is_none() -> None:
    store.record_attempt(exercise(FIRST), "failed", at(0))
    store.record_attempt(exercise(FIRST, 1), "failed", "yesterday")
    store.record_attempt("an exercise of another course", "failed", at(3))
    assert standing.minutes_spent() == {}
    assert standing.lessons()[0].minutes is None


def test_a_moment_without_a_time_zone_is_local() -> None:
    store.record_attempt(exercise(FIRST), "failed", "2030-06-01T10:00:00")
    local = datetime(2030, 6, 1, 10, 6).astimezone().astimezone(UTC)
    store.record_attempt(exercise(FIRST), "passed", local)
    assert standing.minutes_spent() == {FIRST: 6}


# ---- an older file -----------------------------------------------------------------------------


def test_a_store_of_schema_1_is_read_and_keeps_its_times(home: Path) -> None:
    home.mkdir()
    one = exercise(FIRST)
    old = {"attempts": 3, "hints": 1, "outcome": "passed"}
    old |= {"first": at(0).isoformat(), "passed_at": at(9).isoformat(), "last": at(9).isoformat()}
    (home / "progress.json").write_text(json.dumps({"schema": 1, "exercises": {one: old}}))
    guess = {"value": "4x", "when": at(2).isoformat()}
    predicted = {registry.predictions(FIRST)[0].id: guess}
    (home / "predictions.json").write_text(json.dumps({"schema": 1, "predictions": predicted}))
    assert standing.minutes_spent() == {FIRST: 9}
    assert standing.predicted().lodged == 1
    store.record_attempt(one, "passed", at(14))
    written = json.loads((home / "progress.json").read_text())
    assert written["schema"] == store.SCHEMA
    assert written["exercises"][one]["moments"] == [at(n).isoformat() for n in (0, 9)] + [
        at(14).astimezone().isoformat(timespec="seconds")
    ]
    assert standing.minutes_spent() == {FIRST: 14}
    assert store.status(one)["hints"] == 1


# ---- where to go on ----------------------------------------------------------------------------


def test_it_goes_on_in_the_lesson_worked_on_last() -> None:
    store.record_attempt(exercise(FIRST), "failed", at(0))
    store.record_attempt(exercise(SECOND), "passed", at(5))
    line = standing.left_off()
    assert line is not None
    assert (line.lesson, line.name) == (SECOND, exercise(SECOND, 1))


def test_a_finished_lesson_leads_to_the_next_and_the_last_to_what_was_skipped() -> None:
    passed_all(FIRST)
    line = standing.left_off()
    assert line is not None
    assert line.name == exercise(SECOND)
    for lesson in registry.lessons()[2:]:
        passed_all(lesson)
    line = standing.left_off()
    assert line is not None
    assert line.name == exercise(SECOND)
    passed_all(SECOND)
    assert standing.left_off() is None
    assert "Everything is passed." in progress.text()


def test_lab_without_a_lesson_opens_where_you_left_off(tmp_path, monkeypatch, capsys) -> None:
    started: list[list[str]] = []
    monkeypatch.setattr("os.execvpe", lambda program, command, _: started.append(command))
    monkeypatch.chdir(tmp_path)

    def opened() -> str:
        cli.main(["lab", "--work", str(tmp_path / "work")])
        return next(word for word in started[-1] if "default_url" in word)

    assert FIRST in opened()  # the first time
    store.record_attempt(exercise(SECOND), "failed", at(0))
    assert f"{SECOND}/{SECOND}.ipynb" in opened()
    assert f"where you left off (next: {exercise(SECOND)})" in capsys.readouterr().out
    cli.main(["lab", "4", "--work", str(tmp_path / "work")])
    assert "04_kv_cache" in " ".join(started[-1])  # a lesson that is named wins


def test_the_link_names_the_cell_that_checks_the_exercise(tmp_path, monkeypatch) -> None:
    line = standing.left_off()
    assert line is not None
    here = tmp_path / "work" / "anywhere"
    here.mkdir(parents=True)
    monkeypatch.chdir(here)
    assert progress._address(line) is None  # no notebook beside this one
    path = lab.working_path(tmp_path / "work", line.lesson)
    path.parent.mkdir()
    path.write_bytes(lab.released_path(lab.course_root(), line.lesson).read_bytes())
    address = progress._address(line)
    assert address is not None
    cell = address.partition("#cell-id=")[2]
    cells = {each["id"]: each["source"] for each in lab.read_notebook(path)["cells"]}
    assert f'check("{line.name}")' in "".join(cells[cell])
    path.write_text("no notebook")
    assert progress._address(line) is None


# ---- predictions -------------------------------------------------------------------------------


def numeric(lesson: str = FIRST) -> predictions.Prediction:
    return next(p for p in registry.predictions(lesson) if not p.choices)


def test_what_was_measured_is_kept_and_comes_before_what_was_computed(capsys) -> None:
    asked = numeric()
    right = float(asked.answer())
    store.record_prediction(asked.id, f"{right}{asked.unit}", at(0))
    assert standing.predicted().confronted == ()
    predictions.confront(asked)
    (seen,) = standing.predicted().confronted
    assert not seen.is_measured
    assert seen.over == pytest.approx(1, rel=1e-3)
    predictions.confront(asked, right * 4)
    (seen,) = standing.predicted().confronted
    assert seen.is_measured
    assert seen.over == pytest.approx(0.25, rel=1e-3)
    assert seen.in_words == "4x too small"
    predictions.confront(asked, "no number at all")  # not usable: the last usable one stays
    assert standing.predicted().confronted[0].over == pytest.approx(0.25, rel=1e-3)
    assert "1 confronted: 0 of 1 numbers within a quarter" in progress.text()


def test_a_prediction_that_was_not_confronted_gives_nothing_away() -> None:
    asked = numeric()
    store.record_prediction(asked.id, f"3{asked.unit}", at(0))
    assert "1 of " in progress.text()
    assert "none confronted" in progress.text()
    assert asked.id not in shown()


def test_choices_are_right_or_not() -> None:
    asked = next(p for p in registry.predictions() if p.choices)
    wrong = next(c for c in asked.choices if c != asked.answer())
    store.record_prediction(asked.id, wrong, at(0))
    store.record_confronted(asked.id)
    assert standing.predicted().choices == (0, 1)
    assert "0 of 1 choices right" in progress.text()


def test_confronting_what_was_never_lodged_keeps_nothing(home: Path, capsys) -> None:
    predictions.confront(numeric(), 4.0)
    assert store.all_predictions() == {}
    assert not home.exists()


# ---- the drill ---------------------------------------------------------------------------------


def test_due_questions_of_the_drill_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    assert standing.drill_due() is None
    history = History.open()
    said = ("q", "kv-cache", "screen", "numeric", "1", 0.0, 9.0, 1)
    history.save(Answered(*said, at=START))
    history.close()
    assert standing.drill_due(START + timedelta(days=30)) == (1, 1)
    assert standing.drill_due(START) == (0, 1)
    monkeypatch.setattr(standing, "drill_due", lambda: (3, 8))
    assert "3 of 8 questions asked are due" in progress.text()


# ---- how it is shown ---------------------------------------------------------------------------


def shown(lesson: str | None = None) -> str:
    found: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(progress, "put", lambda markup, text: found.append(markup))
        progress.progress(lesson)
    return found[0]


class Tags(HTMLParser):
    """Every tag with its attributes, and those left open."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, dict]] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in ("line", "circle", "br", "img"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list) -> None:
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_table_names_rows_and_columns_and_takes_the_pages_colours() -> None:
    for p in registry.predictions(FIRST):
        store.record_prediction(p.id, predictions._read(p, p.example()), at(0))
        store.record_confronted(p.id)
    markup = shown()
    tags = Tags()
    tags.feed(markup)
    assert tags.open == []
    scopes = [attrs.get("scope") for tag, attrs in tags.seen if tag == "th"]
    assert scopes.count("row") == len(registry.lessons()) + 1 + len(registry.predictions(FIRST))
    assert None not in scopes
    assert [attrs for tag, attrs in tags.seen if tag == "svg" and attrs.get("aria-label")]
    assert not re.search(r"(?<!-)color\s*:|background|#[0-9a-f]{3,6}\b", markup)
    assert 'fill="currentColor"' in markup


@pytest.mark.parametrize("lesson", [None, *registry.lessons()])
def test_in_a_terminal_it_takes_at_most_40_lines(lesson: str | None) -> None:
    for each in registry.lessons():
        for item in registry.exercises(each)[:3]:
            store.record_attempt(item.id, "failed", at(0))
            store.record_hint(item.id)
    lines = progress.text(lesson).splitlines()
    assert len(lines) <= 40
    assert max(map(len, lines[:-1])) <= progress.WIDTH  # the last names a folder


def test_one_lesson_lists_every_exercise_and_question(capsys) -> None:
    store.record_attempt(exercise(SECOND), "passed", at(0))
    assert cli.main(["progress", "2"]) == 0
    said = capsys.readouterr().out
    items = (*registry.exercises(SECOND), *registry.questions(SECOND))
    begin = {line.partition(" ")[0] for line in said.splitlines()}
    assert {item.id for item in items} <= begin
    assert re.search(rf"^{re.escape(exercise(SECOND))} +✓ passed", said, re.M)
    assert f"next: {exercise(SECOND, 1)}," in said
    assert cli.main(["progress", "99"]) == 2


# ---- lab mode ----------------------------------------------------------------------------------


def test_in_lab_mode_solutions_and_worked_answers_are_refused_with_words(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setenv("INFERLAB_LAB_MODE", "1")
    store.record_attempt(exercise(FIRST), "failed", at(0))
    desk.solution(exercise(FIRST), force=True)
    assert capsys.readouterr().out.startswith("Solutions are switched off in this course")
    assert store.status(exercise(FIRST))["solution_shown"] is None
    question: Question = registry.questions(FIRST)[0]
    with pytest.raises(ValueError, match="worked answers are switched off here"):
        desk.Answers("Ada").worked(question.id)
    assert "Your instructor has switched solutions" in progress.text()
    assert "Your instructor has switched solutions" in shown()
    desk.hint(exercise(FIRST))  # hints stay
    assert "Hint 1 of 3" in capsys.readouterr().out
