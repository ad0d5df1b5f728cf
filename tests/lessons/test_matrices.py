"""The kill matrix and the accept matrix, complete, for every exercise there is."""

import time
from collections import Counter

import pytest
from lesson_text import methods_to_write

from grader.judging import registry
from grader.judging.exercise import Exercise
from grader.judging.judge import judge, judge_on
from grader.judging.verdict import Outcome

EXERCISES = registry.exercises()
WRONG = [(e, name) for e in EXERCISES for name in e.wrong]
RIGHT = [(e, name) for e in EXERCISES for name in e.right]
HIDDEN_SEEDS = (1, 2, 3)


def label(value: object) -> str:
    return value.id if isinstance(value, Exercise) else str(value)


@pytest.mark.parametrize(("exercise", "name"), WRONG, ids=label)
def test_a_wrong_answer_is_rejected_and_named(exercise, name, record_property):
    verdict = judge(exercise, exercise.wrong[name])
    assert verdict.outcome is Outcome.FAILED
    assert verdict.diagnosis == name, verdict.text()
    record_property("count", "wrong answers rejected and named")


@pytest.mark.parametrize(("exercise", "name"), WRONG, ids=label)
def test_the_hidden_cases_alone_reject_it_too(exercise, name, monkeypatch):
    monkeypatch.setattr("grader.judging.judge.diagnose", lambda *_: "")  # takes most of the time

    def rejected(*cases):
        verdict = judge_on(exercise, exercise.wrong[name], cases, hidden=True)
        return verdict.outcome is Outcome.FAILED

    named = [case for case in exercise.cases if not case.hidden]
    if any(rejected(case) for case in exercise.visible_cases()[len(named) :]):
        for seed in HIDDEN_SEEDS:
            assert rejected(*exercise.hidden_cases(seed)), f"seed {seed}"
    else:  # special inputs tell; judging runs them each time beside the hidden ones
        assert rejected(*named)


@pytest.mark.parametrize(("exercise", "name"), RIGHT, ids=label)
def test_another_right_answer_passes(exercise, name, record_property):
    verdict = judge(exercise, exercise.right[name])
    assert verdict.passed, verdict.text()
    for seed in HIDDEN_SEEDS:
        verdict = judge(exercise, exercise.right[name], hidden=True, seed=seed)
        assert verdict.passed, verdict.text()
    record_property("count", "right answers accepted")


@pytest.mark.parametrize("exercise", EXERCISES, ids=label)
def test_the_reference_passes_quickly(exercise, record_property):
    started = time.process_time()
    verdict = judge(exercise, exercise.reference, hidden=True)
    assert verdict.passed, verdict.text()
    # Not a measurement: a check that took ten times as long would still be usable.
    assert time.process_time() - started < 10
    record_property("count", "exercises")


@pytest.mark.parametrize("exercise", EXERCISES, ids=label)
def test_an_exercise_is_complete(exercise):
    assert len(exercise.wrong) >= 5
    assert len(exercise.right) >= 2
    assert len(exercise.hints) == 3
    assert len(set(exercise.hints)) == 3
    assert all(len(hint) <= 300 for hint in exercise.hints)


@pytest.mark.parametrize("exercise", EXERCISES, ids=label)
def test_a_stub_is_not_run(exercise):
    def stub(*args, **kwargs):
        raise NotImplementedError("write this")

    part = exercise.id.partition(".")[2]
    if isinstance(exercise.reference, type):
        methods = [part] if part else methods_to_write(exercise.lesson, exercise.name)
        answer = type(exercise.name, (exercise.reference,), dict.fromkeys(methods, stub))
    else:
        answer = stub
    assert judge(exercise, answer, hidden=True).outcome is Outcome.NOT_RUN


def test_ids_are_unique():
    ids = [e.id for e in EXERCISES]
    ids += [q.id for q in registry.questions()] + [p.id for p in registry.predictions()]
    assert [i for i, n in Counter(ids).items() if n > 1] == []
