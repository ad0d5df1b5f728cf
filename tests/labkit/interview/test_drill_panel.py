"""The timed drill's widgets, clicked."""

from __future__ import annotations

import asyncio
import types

import pytest
from drill_questions import (
    COUNT,
    SIZE,
    WHY,
    new_drill,
    right_answer,
    slip_answer,
    wrong_letter,
)

from labkit import display
from labkit.interview import drill_panel as drills
from labkit.interview.drill_panel import Panel
from labkit.interview.questions import Question

# ---- widgets -----------------------------------------------------------------------------------


def _shown(panel: Panel) -> set[str]:
    names = ("start_button", "answer_button", "next_button", "end_button", "field", "letters")
    return {name for name in names if getattr(panel, name).layout.display != "none"}


def _text(panel: Panel) -> str:
    return panel.question.outputs[0]["data"]["text/markdown"]


def test_at_first_there_is_only_start_and_the_time():
    drill, _ = new_drill(SIZE, minutes=5)
    panel = Panel(drill)
    assert _shown(panel) == {"start_button"}
    assert "time left 05:00" in panel.clock.value
    assert 'role="timer"' in panel.clock.value
    assert panel.question.outputs == ()


def test_a_number_is_asked_answered_and_followed_by_the_next():
    drill, clock = new_drill(SIZE)
    panel = Panel(drill)
    panel.start_button.click()
    assert _shown(panel) == {"field", "answer_button", "next_button", "end_button"}
    first = _text(panel)
    assert "such as 12.5 kB" in first
    clock.now += 3
    panel.field.value = right_answer(drill)
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
    drill, _ = new_drill(WHY)
    panel = Panel(drill)
    panel.start_button.click()
    assert _shown(panel) == {"letters", "answer_button", "next_button", "end_button"}
    assert panel.letters.value is None
    assert panel.letters.options == ("a", "b", "c")
    panel.answer_button.click()
    assert "try again" in panel.feedback.value
    panel.letters.value = wrong_letter(drill)
    panel.answer_button.click()
    assert "✗ not right" in panel.feedback.value
    panel.next_button.click()
    assert panel.letters.value is None


def test_kinds_of_question_may_alternate():
    drill, _ = new_drill(SIZE, WHY)
    panel = Panel(drill)
    panel.start_button.click()
    for _ in range(6):
        entry = "letters" if drill.asked.choices else "field"
        assert _shown(panel) & {"letters", "field"} == {entry}
        getattr(panel, entry).value = right_answer(drill)
        panel.answer_button.click()
        panel.next_button.click()
    assert drill.summary().n_right == 6


def test_enter_answers():
    drill, _ = new_drill(SIZE)
    panel = Panel(drill)
    panel.start_button.click()
    panel.field.value = right_answer(drill)
    panel.field._handle_custom_msg({"event": "other"}, [])
    assert drill.summary().n_answered == 0
    panel.field._handle_custom_msg({"event": "submit"}, [])
    assert drill.summary().n_right == 1
    panel.field._handle_custom_msg({"event": "submit"}, [])  # Enter again: nothing is open
    assert drill.summary().n_answered == 1


def test_with_a_loop_enter_waits_for_the_value():
    drill, _ = new_drill(SIZE)

    async def session() -> None:
        panel = Panel(drill)
        panel.start_button.click()
        panel.field._handle_custom_msg({"event": "submit"}, [])
        await asyncio.sleep(0.3)
        panel.field.value = right_answer(drill)  # it arrives after that, late on a busy computer
        await panel._arriving
        panel.finish()

    asyncio.run(session())
    assert drill.summary().n_right == 1


def test_with_a_loop_enter_on_an_answer_that_is_there_answers_all_the_same():
    drill, _ = new_drill(SIZE)

    async def session() -> None:
        panel = Panel(drill)
        panel.start_button.click()
        panel.field.value = right_answer(drill)
        panel.field._handle_custom_msg({"event": "submit"}, [])  # no other value comes
        await panel._arriving
        panel.finish()

    asyncio.run(session())
    assert drill.summary().n_right == 1


def test_skipping_goes_on_without_an_answer():
    drill, _ = new_drill(SIZE)
    panel = Panel(drill)
    panel.start_button.click()
    panel.next_button.click()
    panel.end_button.click()
    assert "1 skipped" in panel.feedback.value


def test_the_end_shows_the_summary_and_nothing_to_click():
    drill, clock = new_drill(SIZE)
    panel = Panel(drill)
    panel.start_button.click()
    clock.now += 4
    panel.field.value = slip_answer(drill)
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
    drill, clock = new_drill(COUNT)
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
    drill, _ = new_drill(COUNT)
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
    drill, _ = new_drill(odd)
    panel = Panel(drill)
    panel.start_button.click()
    panel.field.value = "12"
    panel.answer_button.click()
    assert "1 &lt; 2 &amp; &lt;b&gt;" in panel.feedback.value


def test_the_clock_ticks_by_itself_and_ends_the_drill_and_its_task():
    drill, clock = new_drill(COUNT)

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
            panel = Panel(new_drill(COUNT)[0])
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
