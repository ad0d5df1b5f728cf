"""The timed drill: fresh numbers, fair time, honest counts."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
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

from labkit.interview import drill_panel as drills
from labkit.interview.drill import Drill, Summary, clock_text

# ---- time --------------------------------------------------------------------------------------


def test_time_runs_from_the_start_and_stops_at_zero():
    drill, clock = new_drill(minutes=2)
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
    drill, clock = new_drill()
    assert drill.next_question() is not None
    clock.now += 59.9
    assert drill.next_question() is not None
    clock.now += 0.1
    assert drill.next_question() is None


def test_an_answer_after_the_end_is_judged_but_does_not_count():
    drill, clock = new_drill()
    drill.next_question()
    clock.now += 60
    feedback = drill.answer(right_answer(drill))
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
    drill, _ = new_drill(SIZE)
    asked = [drill.next_question() for _ in range(20)]
    assert len({a.answers.params("size")["n"] for a in asked}) == 20
    assert asked[0].text() == f"{asked[0].answers.params('size')['n']} keys of 100 bytes: " + (
        "how many bytes?"
    )


def test_the_same_generator_gives_the_same_drill():
    texts = [[new_drill(SIZE, WHY, seed=s)[0].next_question().text()] for s in (3, 3, 4, 5, 6)]
    assert texts[0] == texts[1]
    assert any(text != texts[0] for text in texts[2:])


@pytest.mark.parametrize("seed", range(20))
def test_every_question_comes_before_one_comes_again_and_never_twice_in_a_row(seed):
    drill, _ = new_drill(SIZE, WHY, COUNT, seed=seed)
    order = [drill.next_question().question.id for _ in range(30)]
    for start in range(0, 30, 3):
        assert set(order[start : start + 3]) == {"size", "why", "count"}
    assert all(a != b for a, b in itertools.pairwise(order))


def test_the_order_differs_between_drills():
    def order(seed: int) -> tuple[str, ...]:
        drill, _ = new_drill(SIZE, WHY, COUNT, seed=seed)
        return tuple(drill.next_question().question.id for _ in range(3))

    assert len({order(seed) for seed in range(40)}) == 6


def test_choices_are_shown_with_letters_and_no_notebook_syntax():
    drill, _ = new_drill(WHY)
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
    assert new_drill(question)[0].next_question().form == form


# ---- judging -----------------------------------------------------------------------------------


def test_a_right_answer_is_counted_and_explained():
    drill, clock = new_drill(SIZE)
    n = drill.next_question().answers.params("size")["n"]
    clock.now += 7
    feedback = drill.answer(f"{n / 10} kB")
    assert feedback.result.passed
    assert feedback.seconds == 7
    assert feedback.lines() == ["**✓ right**, after 7 s", f"{n} times `100`."]
    assert drill.summary() == Summary(1, 1, 0, 0, 7.0, ())


def test_a_slip_is_named_and_the_answer_given():
    drill, _ = new_drill(SIZE)
    drill.next_question()
    right = right_answer(drill)
    feedback = drill.answer(slip_answer(drill))
    assert not feedback.result.passed
    lines = feedback.lines()
    assert "likely cause: keys and values" in lines[0]
    assert lines[0].startswith("**✗ not right**")
    assert lines[1] == f"The answer is **{right}**."
    assert "times `100`" in lines[2]


def test_a_wrong_choice_is_explained_by_its_note_and_the_right_one_shown_in_words():
    drill, _ = new_drill(WHY)
    drill.next_question()
    letter = right_answer(drill)
    lines = drill.answer(wrong_letter(drill)).lines()
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
    drill, _ = new_drill(WHY)
    drill.next_question()
    drill.answer(wrong_letter(drill, choice).upper() + ".")
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
    drill, _ = new_drill(question)
    drill.next_question()
    assert drill.asked.right == right
    assert drill.answer(right).result.passed


@pytest.mark.parametrize("text", ["", "  ", "abc", "12,5 kB", "12 furlong"])
def test_an_answer_that_cannot_be_read_may_be_given_again(text):
    drill, _ = new_drill(SIZE)
    asked = drill.next_question()
    feedback = drill.answer(text)
    assert feedback.again
    assert "try again" in feedback.lines()[0]
    assert feedback.right == ""  # nothing is given away
    assert drill.asked is asked
    assert drill.summary().n_answered == 0
    assert drill.answer(right_answer(drill)).result.passed


def test_a_letter_that_is_no_choice_may_be_given_again():
    drill, _ = new_drill(WHY)
    drill.next_question()
    assert drill.answer("z").again
    assert drill.answer(right_answer(drill).upper() + ")").result.passed


def test_a_missing_unit_counts_as_wrong():
    drill, _ = new_drill(SIZE)
    drill.next_question()
    feedback = drill.answer("1234")
    assert not feedback.again
    assert "needs one" in feedback.lines()[0]
    assert drill.summary().n_answered == 1


def test_an_answer_without_an_open_question_is_refused():
    drill, _ = new_drill(SIZE)
    with pytest.raises(ValueError, match="no question is open"):
        drill.answer("1 B")
    drill.next_question()
    drill.answer(right_answer(drill))
    with pytest.raises(ValueError, match="no question is open"):
        drill.answer("1 B")


# ---- the summary -------------------------------------------------------------------------------


def test_the_summary_counts_what_happened():
    drill, clock = new_drill(SIZE, WHY, minutes=10)
    slips = 0
    for seconds in (10, 20, 90, 30, 40, 50):
        asked = drill.next_question()
        clock.now += seconds
        if asked.question.id == "size":
            drill.answer(slip_answer(drill))
            slips += 1
        else:
            drill.answer(right_answer(drill))
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
    drill, clock = new_drill(COUNT, minutes=10)
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
