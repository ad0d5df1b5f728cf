"""The timed drill: fresh numbers, fair time, honest counts; and its widgets, clicked."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import types

import numpy as np
import pytest

from labkit import display
from labkit import drill_panel as drills
from labkit.drill import Drill, Summary, clock_text
from labkit.drill_panel import Panel
from labkit.questions import Question

SIZE = Question(
    "size",
    "04",
    1,
    text=lambda p: f"{p['n']} keys of 100 bytes: how many bytes?",
    why=lambda p: f"{p['n']} times `100`.",
    draw=lambda rng: {"n": int(rng.integers(2, 10**6))},
    answer=lambda p: 100.0 * p["n"],
    unit="kB",
    slips={"keys and values": lambda p: 200.0 * p["n"]},
)
WHY = Question(
    "why",
    "04",
    1,
    text=lambda p: "Why is it valid?",
    why=lambda p: "The past is closed.",
    choices=("keys never change", "softmax is a sum", "queries are small"),
    notes={"softmax is a sum": "how it is computed, not why it holds"},
)
COUNT = Question(
    "count",
    "04",
    1,
    text=lambda p: "Twelve?",
    why=lambda p: "A dozen.",
    answer=lambda p: 12.0,
)


class Clock:
    """Seconds that pass when told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def _drill(*questions: Question, minutes: float = 1, seed: int = 0) -> tuple[Drill, Clock]:
    clock = Clock()
    rng = np.random.default_rng(seed)
    return Drill(questions or (SIZE,), minutes, rng=rng, clock=clock), clock


def _right(drill: Drill) -> str:
    asked = drill.asked
    return asked.answers.worked(asked.question.id)


def _slip(drill: Drill) -> str:
    return f"{200 * drill.asked.answers.params('size')['n']} B"


def _wrong_letter(drill: Drill, choice: str = WHY.choices[1]) -> str:
    return next(letter for letter, text in drill.asked.choices.items() if text == choice)


# ---- time --------------------------------------------------------------------------------------


def test_time_runs_from_the_start_and_stops_at_zero():
    drill, clock = _drill(minutes=2)
    clock.now += 500
    assert drill.remaining() == 120  # not started
    drill.start()
    clock.now += 45
    assert drill.remaining() == 75
    assert drill.remaining(clock.now + 5) == 70
    drill.start()  # a second start changes nothing
    assert drill.remaining() == 75
    clock.now += 75
    assert drill.remaining() == 0
    assert drill.over
    clock.now += 1
    assert drill.remaining() == 0


def test_the_first_question_starts_the_time_and_none_comes_after_it():
    drill, clock = _drill()
    assert drill.next_question() is not None
    clock.now += 59.9
    assert drill.next_question() is not None
    clock.now += 0.1
    assert drill.next_question() is None


def test_an_answer_after_the_end_is_judged_but_does_not_count():
    drill, clock = _drill()
    drill.next_question()
    clock.now += 60
    feedback = drill.answer(_right(drill))
    assert feedback.result.passed
    assert feedback.late
    assert "does not count" in feedback.lines()[-1]
    summary = drill.summary()
    assert (summary.n_right, summary.n_answered, summary.n_late) == (0, 0, 1)
    assert summary.lines()[0] == "**No question was answered in time.**"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (300, "05:00"),
        (299.2, "05:00"),
        (61, "01:01"),
        (0.1, "00:01"),
        (0, "00:00"),
        (6000, "100:00"),
    ],
)
def test_the_clock_shows_minutes_and_seconds(seconds, text):
    assert clock_text(seconds) == text


# ---- questions ---------------------------------------------------------------------------------


def test_each_time_the_numbers_are_fresh():
    drill, _ = _drill(SIZE)
    asked = [drill.next_question() for _ in range(20)]
    assert len({a.answers.params("size")["n"] for a in asked}) == 20
    assert asked[0].text() == f"{asked[0].answers.params('size')['n']} keys of 100 bytes: " + (
        "how many bytes?"
    )


def test_the_same_generator_gives_the_same_drill():
    texts = [[_drill(SIZE, WHY, seed=s)[0].next_question().text()] for s in (3, 3, 4, 5, 6)]
    assert texts[0] == texts[1]
    assert any(text != texts[0] for text in texts[2:])


@pytest.mark.parametrize("seed", range(20))
def test_every_question_comes_before_one_comes_again_and_never_twice_in_a_row(seed):
    drill, _ = _drill(SIZE, WHY, COUNT, seed=seed)
    order = [drill.next_question().question.id for _ in range(30)]
    for start in range(0, 30, 3):
        assert set(order[start : start + 3]) == {"size", "why", "count"}
    assert all(a != b for a, b in itertools.pairwise(order))


def test_the_order_differs_between_drills():
    def order(seed: int) -> tuple[str, ...]:
        drill, _ = _drill(SIZE, WHY, COUNT, seed=seed)
        return tuple(drill.next_question().question.id for _ in range(3))

    assert len({order(seed) for seed in range(40)}) == 6


def test_choices_are_shown_with_letters_and_no_notebook_syntax():
    drill, _ = _drill(WHY)
    asked = drill.next_question()
    assert sorted(asked.choices.values()) == sorted(WHY.choices)
    assert all(f"- **{letter})** {text}" in asked.text() for letter, text in asked.choices.items())
    assert "answers[" not in asked.text()
    assert asked.form == "one of the letters a, b, c"


@pytest.mark.parametrize(
    ("question", "form"),
    [(SIZE, "a number with its unit, such as 12.5 kB"), (COUNT, "a number")],
)
def test_the_form_of_an_answer_is_said(question, form):
    assert _drill(question)[0].next_question().form == form


# ---- judging -----------------------------------------------------------------------------------


def test_a_right_answer_is_counted_and_explained():
    drill, clock = _drill(SIZE)
    n = drill.next_question().answers.params("size")["n"]
    clock.now += 7
    feedback = drill.answer(f"{n / 10} kB")
    assert feedback.result.passed
    assert feedback.seconds == 7
    assert feedback.lines() == ["**✓ right**, after 7 s", f"{n} times `100`."]
    assert drill.summary() == Summary(1, 1, 0, 0, 7.0, ())


def test_a_slip_is_named_and_the_answer_given():
    drill, _ = _drill(SIZE)
    drill.next_question()
    right = _right(drill)
    feedback = drill.answer(_slip(drill))
    assert not feedback.result.passed
    lines = feedback.lines()
    assert "likely cause: keys and values" in lines[0]
    assert lines[0].startswith("**✗ not right**")
    assert lines[1] == f"The answer is **{right}**."
    assert "times `100`" in lines[2]


def test_a_wrong_choice_is_explained_by_its_note_and_the_right_one_shown_in_words():
    drill, _ = _drill(WHY)
    drill.next_question()
    letter = _right(drill)
    lines = drill.answer(_wrong_letter(drill)).lines()
    assert "not why it holds" in lines[0]
    assert f"{letter}) keys never change" in lines[1]


@pytest.mark.parametrize(
    ("choice", "met"),
    [
        (WHY.choices[1], "“softmax is a sum”: how it is computed, not why it holds"),
        (WHY.choices[2], "“queries are small”"),
    ],
)
def test_a_wrong_choice_is_met_in_its_own_words(choice, met):
    drill, _ = _drill(WHY)
    drill.next_question()
    drill.answer(_wrong_letter(drill, choice).upper() + ".")
    assert drill.summary().misconceptions == ((met, 1),)


@pytest.mark.parametrize(
    ("value", "unit", "right"),
    [
        (78_100.0, "kB", "78.1 kB"),
        (120_000.0, "kB", "120 kB"),
        (12_345_678_901.0, "MB", "12.3457 GB"),
        (100.0, None, "100"),
        (1500.0, None, "1,500"),
        (0.05, "s", "50 ms"),
        (4.0, "x", "4x"),
        (2.5, "tok/s", "2.5 tok/s"),
    ],
)
def test_the_right_answer_is_shown_without_idle_zeros(value, unit, right):
    question = dataclasses.replace(SIZE, answer=lambda p: value, unit=unit, slips={})
    drill, _ = _drill(question)
    drill.next_question()
    assert drill.asked.right == right
    assert drill.answer(right).result.passed


@pytest.mark.parametrize("text", ["", "  ", "abc", "12,5 kB", "12 furlong"])
def test_an_answer_that_cannot_be_read_may_be_given_again(text):
    drill, _ = _drill(SIZE)
    asked = drill.next_question()
    feedback = drill.answer(text)
    assert feedback.again
    assert "try again" in feedback.lines()[0]
    assert feedback.right == ""  # nothing is given away
    assert drill.asked is asked
    assert drill.summary().n_answered == 0
    assert drill.answer(_right(drill)).result.passed


def test_a_letter_that_is_no_choice_may_be_given_again():
    drill, _ = _drill(WHY)
    drill.next_question()
    assert drill.answer("z").again
    assert drill.answer(_right(drill).upper() + ")").result.passed


def test_a_missing_unit_counts_as_wrong():
    drill, _ = _drill(SIZE)
    drill.next_question()
    feedback = drill.answer("1234")
    assert not feedback.again
    assert "needs one" in feedback.lines()[0]
    assert drill.summary().n_answered == 1


def test_an_answer_without_an_open_question_is_refused():
    drill, _ = _drill(SIZE)
    with pytest.raises(ValueError, match="no question is open"):
        drill.answer("1 B")
    drill.next_question()
    drill.answer(_right(drill))
    with pytest.raises(ValueError, match="no question is open"):
        drill.answer("1 B")


# ---- the summary -------------------------------------------------------------------------------


def test_the_summary_counts_what_happened():
    drill, clock = _drill(SIZE, WHY, minutes=10)
    slips = 0
    for seconds in (10, 20, 90, 30, 40, 50):
        asked = drill.next_question()
        clock.now += seconds
        if asked.question.id == "size":
            drill.answer(_slip(drill))
            slips += 1
        else:
            drill.answer(_right(drill))
    drill.next_question()
    drill.next_question()  # skips one
    summary = drill.summary()
    assert slips == 3
    assert summary == Summary(3, 6, 1, 0, 35.0, (("keys and values", 3),))
    assert summary.lines() == [
        "**3 right of 6 answered**",
        "35 s a question (median)",
        "1 skipped",
        "met: keys and values (3 times)",
    ]


def test_time_spent_reading_the_feedback_is_not_counted():
    drill, clock = _drill(COUNT, minutes=10)
    drill.next_question()
    clock.now += 5
    drill.answer("12")
    clock.now += 100
    drill.next_question()
    clock.now += 7
    drill.answer("12")
    assert drill.summary().median_s == 6


@pytest.mark.parametrize(
    ("questions", "minutes", "message"),
    [
        ((), 5, "a drill needs questions"),
        ((SIZE, SIZE), 5, "an id of its own"),
        ((SIZE,), 0, "minutes=0 must be more than 0"),
        ((SIZE,), -1, "more than 0"),
        ((SIZE,), float("nan"), "more than 0"),
        ((SIZE,), float("inf"), "finite"),
    ],
)
def test_a_drill_that_cannot_work_is_refused(questions, minutes, message):
    with pytest.raises(ValueError, match=message):
        Drill(questions, minutes, rng=np.random.default_rng())
    with pytest.raises(ValueError, match=message):
        drills.drill(questions, minutes)


# ---- widgets -----------------------------------------------------------------------------------


def _shown(panel: Panel) -> set[str]:
    names = ("start_button", "answer_button", "next_button", "end_button", "field", "letters")
    return {name for name in names if getattr(panel, name).layout.display != "none"}


def _text(panel: Panel) -> str:
    return panel.question.outputs[0]["data"]["text/markdown"]


def test_at_first_there_is_only_start_and_the_time():
    drill, _ = _drill(SIZE, minutes=5)
    panel = Panel(drill)
    assert _shown(panel) == {"start_button"}
    assert "time left 05:00" in panel.clock.value
    assert 'role="timer"' in panel.clock.value
    assert panel.question.outputs == ()


def test_a_number_is_asked_answered_and_followed_by_the_next():
    drill, clock = _drill(SIZE)
    panel = Panel(drill)
    panel.start_button.click()
    assert _shown(panel) == {"field", "answer_button", "next_button", "end_button"}
    first = _text(panel)
    assert "such as 12.5 kB" in first
    clock.now += 3
    panel.field.value = _right(drill)
    panel.answer_button.click()
    assert "time left 00:57" in panel.clock.value
    assert panel.feedback.value.startswith('<div role="status"')
    assert "<b>✓ right</b>, after 3 s" in panel.feedback.value
    assert "<code>100</code>" in panel.feedback.value
    assert _shown(panel) == {"field", "next_button", "end_button"}
    assert panel.next_button.description == "next"
    panel.next_button.click()
    assert _text(panel) != first
    assert panel.field.value == ""
    assert panel.next_button.description == "skip"
    assert "right" not in panel.feedback.value
    assert "answer_button" in _shown(panel)


def test_a_choice_is_asked_with_radio_buttons_none_of_them_chosen():
    drill, _ = _drill(WHY)
    panel = Panel(drill)
    panel.start_button.click()
    assert _shown(panel) == {"letters", "answer_button", "next_button", "end_button"}
    assert panel.letters.value is None
    assert panel.letters.options == ("a", "b", "c")
    panel.answer_button.click()
    assert "try again" in panel.feedback.value
    panel.letters.value = _wrong_letter(drill)
    panel.answer_button.click()
    assert "✗ not right" in panel.feedback.value
    panel.next_button.click()
    assert panel.letters.value is None


def test_kinds_of_question_may_alternate():
    drill, _ = _drill(SIZE, WHY)
    panel = Panel(drill)
    panel.start_button.click()
    for _ in range(6):
        entry = "letters" if drill.asked.choices else "field"
        assert _shown(panel) & {"letters", "field"} == {entry}
        getattr(panel, entry).value = _right(drill)
        panel.answer_button.click()
        panel.next_button.click()
    assert drill.summary().n_right == 6


def test_enter_answers():
    drill, _ = _drill(SIZE)
    panel = Panel(drill)
    panel.start_button.click()
    panel.field.value = _right(drill)
    panel.field._handle_custom_msg({"event": "other"}, [])
    assert drill.summary().n_answered == 0
    panel.field._handle_custom_msg({"event": "submit"}, [])
    assert drill.summary().n_right == 1
    panel.field._handle_custom_msg({"event": "submit"}, [])  # Enter again: nothing is open
    assert drill.summary().n_answered == 1


def test_with_a_loop_enter_waits_for_the_value():
    drill, _ = _drill(SIZE)

    async def session() -> None:
        panel = Panel(drill)
        panel.start_button.click()
        panel.field._handle_custom_msg({"event": "submit"}, [])
        await asyncio.sleep(0.3)
        panel.field.value = _right(drill)  # it arrives after that, late on a busy computer
        await panel._arriving
        panel.finish()

    asyncio.run(session())
    assert drill.summary().n_right == 1


def test_with_a_loop_enter_on_an_answer_that_is_there_answers_all_the_same():
    drill, _ = _drill(SIZE)

    async def session() -> None:
        panel = Panel(drill)
        panel.start_button.click()
        panel.field.value = _right(drill)
        panel.field._handle_custom_msg({"event": "submit"}, [])  # no other value comes
        await panel._arriving
        panel.finish()

    asyncio.run(session())
    assert drill.summary().n_right == 1


def test_skipping_goes_on_without_an_answer():
    drill, _ = _drill(SIZE)
    panel = Panel(drill)
    panel.start_button.click()
    panel.next_button.click()
    panel.end_button.click()
    assert "1 skipped" in panel.feedback.value


def test_the_end_shows_the_summary_and_nothing_to_click():
    drill, clock = _drill(SIZE)
    panel = Panel(drill)
    panel.start_button.click()
    clock.now += 4
    panel.field.value = _slip(drill)
    panel.answer_button.click()
    panel.next_button.click()
    clock.now += 60
    panel.next_button.click()
    assert _shown(panel) == set()
    assert "time left 00:00" in panel.clock.value
    assert "time is up" in panel.feedback.value
    assert "<b>0 right of 1 answered</b>" in panel.feedback.value
    assert "met: keys and values" in panel.feedback.value


def test_an_answer_too_late_is_judged_and_ends_it():
    drill, clock = _drill(COUNT)
    panel = Panel(drill)
    panel.start_button.click()
    clock.now += 61
    panel.field.value = "12"
    panel.answer_button.click()
    assert "does not count" in panel.feedback.value
    assert "1 answered too late" in panel.feedback.value
    assert _shown(panel) == set()
    before = panel.feedback.value
    for button in (panel.start_button, panel.answer_button, panel.next_button, panel.end_button):
        button.click()
    assert panel.feedback.value == before


def test_an_end_before_the_time_is_not_called_up():
    drill, _ = _drill(COUNT)
    panel = Panel(drill)
    panel.start_button.click()
    panel.end_button.click()
    assert "The drill: ended" in panel.feedback.value


def test_a_question_is_escaped_where_it_is_shown_as_html():
    odd = Question(
        "odd",
        "04",
        1,
        text=lambda p: "?",
        why=lambda p: "1 < 2 & <b>",
        answer=lambda p: 12.0,
    )
    drill, _ = _drill(odd)
    panel = Panel(drill)
    panel.start_button.click()
    panel.field.value = "12"
    panel.answer_button.click()
    assert "1 &lt; 2 &amp; &lt;b&gt;" in panel.feedback.value


def test_the_clock_ticks_by_itself_and_ends_the_drill_and_its_task():
    drill, clock = _drill(COUNT)

    async def session() -> None:
        panel = Panel(drill)
        panel.start_button.click()
        await asyncio.sleep(0.05)
        clock.now += 10
        await asyncio.sleep(0.6)
        assert "time left 00:50" in panel.clock.value
        clock.now += 50
        await asyncio.sleep(0.6)
        assert panel.finished
        assert "time is up" in panel.feedback.value
        await asyncio.sleep(0)
        assert panel._ticker.done()

    asyncio.run(session())


def test_ending_or_closing_stops_the_task():
    async def session() -> None:
        for stop in (lambda panel: panel.finish(), lambda panel: panel.box.close()):
            panel = Panel(_drill(COUNT)[0])
            panel.start_button.click()
            await asyncio.sleep(0.05)
            assert not panel._ticker.done()
            stop(panel)
            await asyncio.sleep(0.6)
            assert panel._ticker.done()

    asyncio.run(session())


# ---- drill() -----------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _no_grading(monkeypatch):
    for name in ("NBGRADER_EXECUTION", "INFERLAB_CHECK_ONLY"):
        monkeypatch.delenv(name, raising=False)


def _kernel(monkeypatch) -> list[dict]:
    shown: list[dict] = []
    monkeypatch.setattr(display, "ipython", lambda: types.SimpleNamespace(kernel=object()))
    monkeypatch.setattr("IPython.display.display", lambda data, raw: shown.append(data))
    return shown


def test_without_widgets_it_says_how_to_run_it(capsys):
    assert drills.drill((SIZE, WHY), 3) is None
    out = capsys.readouterr().out
    assert "A drill of 3 minutes over 2 kinds of question: run this cell in JupyterLab" in out


def test_in_a_kernel_the_widgets_are_shown(monkeypatch):
    shown = _kernel(monkeypatch)
    assert drills.drill((SIZE, WHY)) is None
    (data,) = shown
    assert "application/vnd.jupyter.widget-view+json" in data
    assert "A drill of 5 minutes" in data["text/plain"]


def test_while_grading_there_are_no_widgets(monkeypatch):
    shown = _kernel(monkeypatch)
    monkeypatch.setenv("NBGRADER_EXECUTION", "autograde")
    drills.drill((SIZE,))
    (data,) = shown
    assert list(data) == ["text/html", "text/plain"]
    assert "skipped while grading" in data["text/plain"]
