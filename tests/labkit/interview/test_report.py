"""The page on a learner's history: says what the answers say, stands alone, can be read by all."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser

import numpy as np
import pytest
from interview_candidate import Candidate, Time, sit, whole_bank

from grader import cli
from grader.judging import registry
from labkit import predictions
from labkit.interview.history import History
from labkit.interview.page import page
from labkit.interview.summary import Report, report

BANK = whole_bank()
NOW = datetime(2026, 3, 20, 9, 0, tzinfo=UTC)


def practised(days: int = 12) -> tuple[History, Time]:
    """Somebody who practises some days, believes two things, and states a confidence."""
    history, time = History.in_memory(), Time()
    rng = np.random.default_rng(1)
    items = list(BANK.items.values())
    for day in range(days):
        some = [items[int(i)] for i in rng.permutation(len(items))[:12]]
        believes = frozenset({"M53", "M78", "M31"} if day < days / 2 else {"M53"})
        sit(Candidate(believes, pace=0.6 + 0.1 * (day % 4)), BANK, history, some, time, day)
        time.date += timedelta(days=1 + day % 3)
    return history, time


def found(history: History, time: Time, ratios: dict | None = None) -> Report:
    answers = history.answers()
    return report(answers, history.cards(), BANK, time.date, history.n_skipped(), ratios)


class Page(HTMLParser):
    """What the page refers to, and its pictures."""

    VOID = ("meta", "br", "line", "circle", "polyline")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict]] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def all(self, tag: str) -> list[dict]:
        return [attrs for name, attrs in self.tags if name == tag]


def test_it_names_misconceptions_with_cure_and_lesson_and_what_is_strong():
    history, time = practised()
    summary = found(history, time)
    text = page(summary, time.date)
    for met in summary.met:
        assert met.what.name in text
        assert met.what.cure in text
    assert "only KV heads are cached" in text
    assert ">04 KV cache</td>" in text
    assert f"{summary.n_answers}</b>answers" in text
    for score in summary.topics:
        assert f"{score.share:.0%}" in text
    assert summary.strengths
    assert "misconceptions open" in text


def test_it_loads_nothing_and_is_well_formed():
    history, time = practised()
    text = page(found(history, time, {"a": 2.0}), time.date)
    assert not re.search(r"https?:|src=|href=|@import|url\(|<script|<link", text)
    parsed = Page(text)
    assert parsed.all("html")[0]["lang"] == "en"
    assert len(parsed.all("h1")) == 1


def test_every_picture_says_in_words_what_it_shows():
    history, time = practised()
    answers = [a for a in history.answers() if a.kind == "numeric"]
    sure = [type(a)(**{**vars(a), "confidence": 0.9 if a.score == 1 else 0.7}) for a in answers]
    summary = report(sure, history.cards(), BANK, time.date, 0, {"x": 0.5, "y": 1.0, "z": 0.0})
    pictures = Page(page(summary, time.date)).all("svg")
    assert len(pictures) == 3
    assert all(picture["role"] == "img" for picture in pictures)
    labels = [picture["aria-label"] for picture in pictures]
    assert any(re.search(r"1 March \d+% of \d+", label) for label in labels)
    assert any("said 90%, right 100%" in label for label in labels)
    assert any("3 lodged predictions" in label for label in labels)


def test_it_has_a_light_a_dark_and_a_printed_look():
    text = page(found(*practised(2)), NOW)
    assert "prefers-color-scheme: dark" in text
    assert "@media print" in text
    assert "size: A4" in text


def test_with_no_history_it_says_so():
    empty = found(History.in_memory(), Time())
    text = page(empty, NOW)
    assert "No answers yet" in text
    assert "None so far" in text
    assert "No predictions lodged" in text
    Page(text)


def test_what_learners_wrote_is_escaped():
    history, time = History.in_memory(), Time()
    sit(Candidate(), BANK, history, [BANK.items["iv-ridge"]], time)
    (answer,) = history.answers()
    odd = BANK.catalogue.of("<script>alert(1)</script>: <b>cure</b>", "04_kv_cache")
    changed = type(answer)(**{**vars(answer), "met": (odd,), "score": 0.5})
    text = page(report([changed], {}, BANK, NOW), NOW)
    assert "<script" not in text
    assert "&lt;script&gt;" in text


def test_confidence_is_compared_with_what_was_so():
    history, time = History.in_memory(), Time()
    sit(Candidate(), BANK, history, [BANK.items["iv-ridge"]] * 1, time)
    (one,) = history.answers()

    def said(confidence: float, score: float):
        return type(one)(**{**vars(one), "confidence": confidence, "score": score})

    answers = [said(0.9, 1.0)] * 3 + [said(0.9, 0.5)] + [said(0.5, 0.0)] * 2
    low, high = report(answers, {}, BANK, NOW).bins
    assert (low.n, low.said, low.right) == (2, 0.5, 0.0)
    assert (high.n, high.said, high.right) == (4, pytest.approx(0.9), 0.75)


def test_due_questions_are_counted():
    history, time = History.in_memory(), Time()
    items = [BANK.items["iv-ridge"], BANK.items["iv-kv-token"]]
    sit(Candidate(frozenset({"M53"}), pace=0.3), BANK, history, items, time)
    cards = history.cards()
    later = time.date + timedelta(days=1, hours=1)
    summary = report(history.answers(), cards, BANK, later)
    assert summary.n_due == 1  # the one that was missed
    assert summary.n_due_week == sum(c.due <= later + timedelta(days=7) for c in cards.values())


# ---- predictions -------------------------------------------------------------------------------


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("INFERLAB_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_lodged_prediction_is_compared_with_the_answer(home):
    rows = registry.prediction("kv_rows_12")
    assert predictions.lodged_over_computed(rows) is None
    predictions.lodge(rows, "78")
    assert predictions.lodged_over_computed(rows) == 0.5
    choice = registry.prediction("kv_bidirectional")
    predictions.lodge(choice, "in all layers but the first")
    assert predictions.lodged_over_computed(choice) == 1.0


def test_the_command_writes_the_page_with_predictions_in_it(home, capsys):
    predictions.lodge(registry.prediction("kv_rows_12"), "78")
    predictions.lodge(registry.prediction("kv_mha_ratio"), "4x")
    assert cli.main(["drill", "--report", "my report.html"]) == 0
    assert "my report.html" in capsys.readouterr().out
    text = (home / "my report.html").read_text(encoding="utf-8")
    assert "1 of 2 lodged predictions" in text
    assert cli.main(["drill", "--report"]) == 0
    assert (home / "interview-report.html").is_file()
