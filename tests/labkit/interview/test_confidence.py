"""How sure a candidate says to be: asked before the verdict in a terminal and in a notebook alike,
kept with the answer, and left out of the calibration where it was not said."""

from __future__ import annotations

import io

import pytest
from interview_candidate import Candidate, Time, sit, sit_at_panel, whole_bank

from grader.judging import registry
from labkit.interview import confidence, terminal
from labkit.interview.begin import begin
from labkit.interview.history import History
from labkit.interview.notebook import panel
from labkit.interview.page import page
from labkit.interview.panel import InterviewPanel
from labkit.interview.session import Session
from labkit.interview.summary import report
from labkit.interview.terminal import Console

BANK = whole_bank()
CHOICE = {"topic": "kv-cache", "n": 12, "seed": 3}


@pytest.fixture
def history() -> History:
    return History.in_memory()


def _panel(history: History, **choice) -> InterviewPanel:
    return panel(registry.questions(), history, **{**CHOICE, **choice})


def _kept(history: History) -> list[tuple]:
    return [(a.item, a.given, a.score, a.confidence) for a in history.answers()]


# ---- what is understood ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "share"),
    [("80", 0.8), (" 80 % ", 0.8), ("0", 0.0), ("100%", 1.0), ("62.5", 0.625), ("", None)],
)
def test_a_number_of_percent_or_nothing_is_understood(said, share):
    assert confidence.share(said) == share


@pytest.mark.parametrize("said", ["101", "-1", "nan", "quite", "0.8", "8O"])
def test_anything_else_is_refused_with_what_is_needed(said):
    with pytest.raises(ValueError, match=f"0 to 100, such as 80, or nothing; given {said}"):
        confidence.share(said)


# ---- the same candidate, in three places -------------------------------------------------------


def _typed(candidate: Candidate) -> str:
    """What the candidate types in a terminal, for the session of CHOICE."""
    rehearsal = begin(BANK, History.in_memory(), **CHOICE).session
    lines: list[str] = []
    while (asked := rehearsal.next_question()) is not None:
        is_open = bool(asked.question.rubric)
        answer = candidate.answer(rehearsal.item(asked), asked)
        lines += ["", answer] if is_open else [answer, candidate.sure]
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("sure", ["90", ""])
def test_terminal_and_notebook_leave_the_same_history_and_calibration(sure):
    candidate = Candidate(frozenset({"M53", "M54", "M60"}), sure=sure)
    plain, typed, clicked = (History.in_memory() for _ in range(3))
    sit(candidate, BANK, plain, list(begin(BANK, plain, **CHOICE).session.items), Time(), 3)
    console = Console(io.StringIO(_typed(candidate)), io.StringIO())
    assert terminal.run(begin(BANK, typed, **CHOICE).session, console, confidence=True) == 0
    sit_at_panel(candidate, _panel(clicked))
    assert _kept(plain) == _kept(typed) == _kept(clicked)
    assert len(_kept(plain)) == 12
    asked = [a for a in clicked.answers() if a.kind != "open"]
    assert 0 < sum(a.score == 1 for a in asked) < len(asked)
    found = report(clicked.answers(), {}, BANK, Time().date)
    text = page(found, Time().date)
    if not sure:
        assert found.bins == ()
        assert "no answer with how sure you were" in text
        return
    (only,) = found.bins  # open answers are marked by the reader, and say nothing here
    right = sum(a.score == 1 for a in asked) / len(asked)
    assert (only.n, only.said, only.right) == (len(asked), pytest.approx(0.9), right)
    assert f"said 90%, right {right:.0%} of {len(asked)}" in text


# ---- in a notebook -----------------------------------------------------------------------------


def _at_a_number(history: History, **choice) -> InterviewPanel:
    p = _panel(history, **choice)
    p.start_button.click()
    while p.drill.asked.choices or p.drill.asked.question.rubric:
        p.next_button.click()
    return p


def _is_shown(widget) -> bool:
    return widget.layout.display != "none"


def test_it_is_asked_for_numbers_and_choices_in_the_same_words(history):
    p = _panel(history)
    assert p.sure.description == confidence.QUESTION
    assert "How sure may stay empty" in p.question.outputs[0]["data"]["text/markdown"]
    p.start_button.click()
    seen = set()
    while not p.finished:
        seen.add((p.session.item(p.drill.asked).kind, _is_shown(p.sure)))
        p.next_button.click()
    assert seen == {("numeric", True), ("choice", True), ("open", False)}
    assert not _is_shown(p.sure)


def test_it_can_be_switched_off(history):
    p = _at_a_number(history, confidence=False)
    assert not _is_shown(p.sure)
    p.field.value = "1 B"
    p.field._handle_custom_msg({"event": "submit"}, [])
    assert [a.confidence for a in history.answers()] == [None]


def test_enter_goes_from_the_answer_to_how_sure_and_then_to_the_verdict(history):
    p = _at_a_number(history)
    went: list[str] = []
    p.sure.focus = lambda: went.append("how sure")
    p.field.value = "no number"
    p.field._handle_custom_msg({"event": "submit"}, [])
    assert (went, "try again" in p.feedback.value) == ([], True)
    p.field.value = "17 B"
    p.field._handle_custom_msg({"event": "submit"}, [])
    assert (went, history.answers()) == (["how sure"], [])
    p.sure.value = "70"
    p.sure._handle_custom_msg({"event": "submit"}, [])
    assert [a.confidence for a in history.answers()] == [0.7]
    assert "not right" in p.feedback.value
    assert _is_shown(p.sure)  # what was said stands beside what was so
    p.next_button.click()
    assert p.sure.value == ""


def test_enter_twice_leaves_it_out(history):
    p = _at_a_number(history)
    p.field.value = "17 B"
    p.field._handle_custom_msg({"event": "submit"}, [])
    p.sure._handle_custom_msg({"event": "submit"}, [])
    assert [a.confidence for a in history.answers()] == [None]


def test_what_cannot_be_read_is_asked_again_and_nothing_is_judged(history):
    p = _at_a_number(history)
    p.field.value, p.sure.value = "17 B", "very"
    p.answer_button.click()
    assert "a number from 0 to 100" in p.feedback.value
    assert "given very" in p.feedback.value
    assert history.answers() == []
    p.sure.value = "100"
    p.answer_button.click()
    assert [a.confidence for a in history.answers()] == [1.0]


# ---- in a terminal -----------------------------------------------------------------------------


def _run(history: History, names: tuple[str, ...], lines: str) -> str:
    session = Session(BANK, history, [BANK.items[n] for n in names], 1)
    console = Console(io.StringIO(lines), io.StringIO())
    terminal.run(session, console, confidence=True)
    return console.sink.getvalue()


def test_in_a_terminal_it_is_asked_again_until_it_can_be_read(history):
    said = _run(history, ("iv-passes", "iv-little"), "nonsense\n17\nvery\n80\n")
    assert said.count(confidence.QUESTION) == 2  # not of an answer that was none
    assert "given very" in said
    assert [a.confidence for a in history.answers()] == [0.8]


@pytest.mark.parametrize("ending", ["quit\n", ""])
def test_who_leaves_at_how_sure_has_answered(history, ending):
    said = _run(history, ("iv-passes", "iv-little"), f"17\n{ending}")
    assert "✗ not right" in said
    assert "Ended here." in said
    assert [a.confidence for a in history.answers()] == [None]


def test_nothing_of_a_skipped_question_is_kept_with_the_next(history):
    said = "about the first\nskip\n17\n\n"
    _run(history, ("iv-scale", "iv-passes"), said)
    session = Session(BANK, history, [BANK.items["iv-little"], BANK.items["iv-passes"]], 1)
    session.next_question()
    session.confidence = 0.9  # of an answer that could not be read
    session.next_question()
    session.drill.answer("17")
    assert _kept(history) == [("iv-passes", "17", 0.0, None)] * 2


def test_the_clock_stands_while_it_is_asked(history):
    time = Time()

    class Slow(io.StringIO):
        def readline(self, *_):
            time.pass_by(50)
            return super().readline()

    session = Session(BANK, history, [BANK.items["iv-passes"]], 1, 1.0, clocks=time.clocks())
    console = Console(Slow("17\n80\n"), io.StringIO())
    terminal.run(session, console, confidence=True)
    (answer,) = history.answers()
    assert (answer.seconds, answer.confidence) == (50, 0.8)
