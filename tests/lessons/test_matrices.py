"""The kill matrix and the accept matrix, complete, for every exercise there is."""

import time
from collections import Counter
from collections.abc import Callable

import pytest
from lesson_text import methods_to_write
from trial_bench import Bench

from grader.judging import registry
from grader.judging.exercise import Exercise
from grader.judging.judge import judge, judge_on
from grader.judging.verdict import Outcome

EXERCISES = registry.exercises()
HIDDEN_SEEDS = (1, 2, 3)


def label(value: Exercise) -> str:
    return value.id


@pytest.fixture(scope="module", params=EXERCISES, ids=label)
def of_one(request):
    """One exercise; its tests share what its reference and its named answers give."""
    return Bench(request.param)


def test_every_wrong_answer_is_rejected_and_named(of_one, record_property):
    not_so = {}
    for name, wrong in of_one.given.wrong.items():
        with of_one.trial(wrong) as exercise:
            verdict = judge(exercise, wrong)
        if verdict.outcome is not Outcome.FAILED or verdict.diagnosis != name:
            not_so[name] = verdict.text()
        record_property("count", "wrong answers rejected and named")
    assert not_so == {}


def test_the_hidden_cases_alone_reject_each_too(of_one, monkeypatch):
    monkeypatch.setattr("grader.judging.judge.diagnose", lambda *_: None)  # takes most of the time
    not_so = {}
    for name, wrong in of_one.given.wrong.items():
        with of_one.trial(wrong) as exercise:
            if missed := seeds_that_miss(exercise, wrong):
                not_so[name] = missed
    assert not_so == {}


def seeds_that_miss(exercise: Exercise, wrong: Callable) -> list[str]:
    """Draws of hidden cases that let this wrong answer pass."""

    def rejected(*cases):
        return judge_on(exercise, wrong, cases, hidden=True).outcome is Outcome.FAILED

    named = [case for case in exercise.cases if not case.hidden]
    if any(rejected(case) for case in exercise.visible_cases()[len(named) :]):
        return [f"seed {n}" for n in HIDDEN_SEEDS if not rejected(*exercise.hidden_cases(n))]
    # Special inputs tell; judging runs them each time beside the hidden ones.
    return [] if rejected(*named) else ["the special inputs"]


def test_every_other_right_answer_passes(of_one, record_property):
    not_so = {}
    for name, right in of_one.given.right.items():
        with of_one.trial(right) as exercise:
            first, *others = HIDDEN_SEEDS
            verdicts = [judge(exercise, right, hidden=True, seed=first)]  # the visible cases too
            verdicts += [judge_on(exercise, right, exercise.hidden_cases(n)) for n in others]
        if failed := [verdict.text() for verdict in verdicts if not verdict.passed]:
            not_so[name] = failed
        record_property("count", "right answers accepted")
    assert not_so == {}


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
