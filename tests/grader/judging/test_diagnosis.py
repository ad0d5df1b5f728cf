"""The likely cause: it explains the case shown, agrees with most others, says how sure it is."""

import re
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from toy_exercise import toy_exercise

from grader.judging import registry
from grader.judging.exercise import Case, given
from grader.judging.judge import Trial, judge
from inferlab.kv_cache import KVCache
from inferlab.latency_metrics import request_latencies
from inferlab.speculative_sampling import expected_tokens

SURE, ON_THIS_CASE = "likely cause: ", "on this case it looks like: "


# ---- the rule -----------------------------------------------------------------------------------


def report(n, first=1, second=2, third=3):
    return {"first": first * n, "second": second * n, "third": third * n}


REPORT = toy_exercise(
    report,
    tuple(given(f"n = {n}", n=n) for n in (1, 2, 3, 4)),
    wrong={
        "the second is the first": lambda n: report(n, second=1),
        "the third is squared": lambda n: report(n) | {"third": 9 * n * n},
        "all are 0": lambda n: report(n, 0, 0, 0),
    },
)


def test_a_second_fault_beside_it_hides_no_name():
    verdict = judge(REPORT, lambda n: report(n, second=1, third=7))
    assert verdict.cause == ON_THIS_CASE + "the second is the first"
    assert verdict.diagnosis in verdict.text()
    assert "likely cause" not in verdict.text() + verdict.to_html()


def test_the_one_that_is_shown_first_is_named():
    both = judge(REPORT, lambda n: report(n, second=1) | {"third": 9 * n * n})
    assert both.lines[1].startswith("second: ")
    assert both.cause == ON_THIS_CASE + "the second is the first"


def test_an_edge_handled_otherwise_hides_no_name():
    verdict = judge(REPORT, lambda n: report(n, second=1) if n != 3 else report(n, 8, 8, 8))
    assert verdict.cause == ON_THIS_CASE + "the second is the first"
    assert judge(REPORT, lambda n: report(n, second=1)).cause == SURE + "the second is the first"


def test_what_contradicts_the_case_shown_is_not_named():
    assert judge(REPORT, lambda n: report(n, second=5)).cause == ""
    first_otherwise = judge(REPORT, lambda n: report(n, second=1 if n > 1 else 5))
    assert first_otherwise.cause == ""


def test_of_two_that_explain_the_case_the_one_that_explains_more_is_named():
    one = toy_exercise(
        lambda n: 0,
        tuple(given(f"{n}", n=n) for n in (2, 3, 4, 5, 6)),
        wrong={"doubles": lambda n: 2 * n, "squares": lambda n: n * n},
    )
    verdict = judge(one, lambda n: n * n if n < 6 else -1)
    assert verdict.cause == ON_THIS_CASE + "squares"


def test_where_more_cases_contradict_than_agree_nothing_is_named():
    one = toy_exercise(
        lambda n: 0,
        tuple(given(f"{n}", n=n) for n in (2, 3, 4, 5, 6, 7, 8)),
        wrong={"doubles": lambda n: 2 * n},
    )
    assert judge(one, lambda n: 2 * n if n < 4 else -n).cause == ""
    assert judge(one, lambda n: 2 * n if n < 5 else -n).cause == ON_THIS_CASE + "doubles"


def test_what_agrees_on_the_visible_cases_by_chance_is_not_sure():
    one = toy_exercise(
        lambda n: n,
        (given("2", n=2),),
        draw=lambda rng: {"n": int(rng.integers(3, 1000))},
        wrong={"doubles": lambda n: 2 * n},
    )
    seen = {case.make()["n"] for case in one.visible_cases()}
    assert judge(one, lambda n: 2 * n if n in seen else 5).cause == ON_THIS_CASE + "doubles"
    assert judge(one, lambda n: 2 * n).cause == SURE + "doubles"


def test_a_value_that_nobody_asked_for_tells_two_apart():
    one = toy_exercise(
        lambda n: {"n": 1},
        (given("2", n=2),),
        wrong={"nan": lambda n: {"n": 2, "x": np.nan}, "zero": lambda n: {"n": 2, "x": 0.0}},
    )
    for name, answer in one.wrong.items():
        assert judge(one, answer).diagnosis == name


def test_an_error_beside_an_array_is_another_result():
    def fails(x):
        raise KeyError("x")

    one = toy_exercise(lambda x: 2 * x, wrong={"fails": fails, "triples": lambda x: 3 * x})
    assert judge(one, lambda x: 3 * x).cause == SURE + "triples"
    assert judge(one, lambda x: {}["x"]).cause == SURE + "fails"


def test_only_inputs_that_the_statement_names_are_shown():
    """A drive needs more than the answer sees."""
    one = toy_exercise(
        lambda x: 2 * x,
        (given("one", x=[3], rounds=2, seed=17),),
        drive=lambda answer, inputs: answer(inputs["x"] * inputs["rounds"]),
    )
    text = judge(one, lambda x: 0).text()
    assert "inputs: x = [3]" in text
    assert "rounds" not in text
    assert "seed" not in text
    hidden = toy_exercise(
        lambda x: sum(x),
        (given("one", kept=[3]),),
        drive=lambda answer, inputs: answer(inputs["kept"]),
    )
    text = judge(hidden, lambda x: x.append(1) or 3).text()
    assert "it changes one of its inputs in place" in text
    assert "kept" not in text


@pytest.mark.parametrize("exercise", registry.exercises(), ids=lambda e: e.id)
def test_no_message_of_a_course_exercise_names_what_only_its_drive_knows(exercise, monkeypatch):
    monkeypatch.setattr("grader.judging.judge.diagnose", lambda *_: None)  # takes most of the time
    line = judge(exercise, next(iter(exercise.wrong.values()))).lines[0]
    if line.startswith("inputs: "):
        assert set(re.findall(r"(?:^inputs: |, )(\w+) [=(]", line)) <= exercise.parameters()


# ---- causes that the course knows --------------------------------------------------------------


def ttft_from_start(trace):
    times = trace.token_times_s
    start = trace.arrival_s if trace.start_s is None else trace.start_s
    return request_latencies(trace) | {"ttft_s": times[0] - start}


def goodput_of(meets):
    def goodput(traces, limits_s, duration_s):
        whole = [request_latencies(trace) for trace in traces if not trace.failed]
        return sum(meets(seen, limits_s) for seen in whole) / duration_s

    return goodput


def strict_top_k(law, k):
    kept = np.where(law > np.sort(law)[::-1][min(k, len(law)) - 1], law, 0)
    return kept / kept.sum()


def absolute_min_p(law, min_p):
    kept = np.where(law >= min_p, law, 0)
    return kept / kept.sum()


def without_target(acceptance, gamma, draft_cost, verify_cost=1.0):
    return expected_tokens(acceptance, gamma) / (gamma * draft_cost) if gamma else 1.0


def softmax_over_queries(scores):
    weights = np.exp(scores - scores.max(axis=0, keepdims=True))
    return weights / weights.sum(axis=0, keepdims=True)


def strictest(seen, limits):
    name = min(limits, key=limits.get, default=None)
    return name is None or seen[name] <= limits[name]


class GrowsByBoth(KVCache):
    def reserve(self, n_tokens):
        if n_tokens > self.capacity:
            more = max(2 * self.capacity, n_tokens) - self.capacity
            room = ((0, 0), (0, 0), (0, 0), (0, more), (0, 0))
            self.keys, self.values = np.pad(self.keys, room), np.pad(self.values, room)


class KeepsATail(KVCache):
    def truncate(self, n_tokens):
        if not 0 <= n_tokens <= self.n_tokens:
            raise ValueError(f"{n_tokens} of {self.n_tokens} tokens cannot be kept")
        dropped = self.n_tokens - n_tokens
        self.lengths = [length - dropped for length in self.lengths]


KNOWN = {  # written by somebody who handles some edge otherwise -> words of the cause
    "TTFT + n · TPOT": (
        "end_to_end_s",
        lambda ttft_s, tpot_s, n_output: ttft_s + n_output * (tpot_s or 0),
        "TTFT + n · TPOT",
    ),
    "goodput, any limit": (
        "goodput",
        goodput_of(lambda seen, limits: any(seen[n] <= s for n, s in limits.items())),
        "counts a request that meets any limit",
    ),
    "goodput, strictest limit": ("goodput", goodput_of(strictest), "only TPOT is looked at"),
    "expected tokens, no bonus": (
        "expected_tokens",
        lambda acceptance, gamma: sum(acceptance**i for i in range(1, gamma + 1)),
        "the replacement or bonus token is missing",
    ),
    "expected tokens, closed form": (
        "expected_tokens",
        lambda acceptance, gamma: (1 - acceptance**gamma) / (1 - acceptance),
        "one power too few",
    ),
    "speedup, no target": ("speedup", without_target, "the target's own pass is missing"),
    "softmax over queries": (
        "softmax",
        softmax_over_queries,
        "one largest score for all rows of a sequence; each row has its own|"
        "the sum runs over the first axis|the largest score is taken over the first axis",
    ),
    "absolute min-p": ("keep_min_p", absolute_min_p, "compares with min_p itself"),
    "strict top-k": ("keep_top_k", strict_top_k, "a strict > drops the k-th token"),
    "reserve, the larger of two": ("KVCache.reserve", GrowsByBoth, "the larger of twice the"),
    "truncate, a tail": ("KVCache.truncate", KeepsATail, "every layer loses equally many"),
    "TTFT from start_s": ("request_latencies", ttft_from_start, "TTFT counts from start_s"),
}


@pytest.mark.parametrize(("name", "answer", "words"), KNOWN.values(), ids=KNOWN)
def test_a_known_mistake_is_named_though_an_edge_is_handled_otherwise(name, answer, words):
    cause = judge(registry.exercise(name), answer).cause
    assert any(cause in (SURE + full, ON_THIS_CASE + full) for full in named(name, words)), cause


def named(exercise_id: str, words: str) -> list[str]:
    wrong = registry.exercise(exercise_id).wrong
    return [name for name in wrong if name.startswith(tuple(words.split("|")))]


# ---- every exercise: a named mistake, and a second fault on another case -----------------------


@dataclass
class Faulty:
    """A named wrong answer that fails in another way on one case."""

    wrong: Any
    on: str


def with_second_fault(exercise):
    """The exercise with its visible cases, and a drive that lets a Faulty answer fail once."""
    now: list[str] = []

    def noting(case: Case) -> Case:
        def make():
            now[:] = [case.name]
            return case.make()

        return Case(case.name, make)

    def drive(answer, inputs):
        if not isinstance(answer, Faulty):
            return exercise.drive(answer, inputs)
        if now == [answer.on]:
            raise RuntimeError("a second fault")
        return exercise.drive(answer.wrong, inputs)

    cases = tuple(map(noting, exercise.visible_cases()))
    return replace(exercise, cases=cases, draw=None, drive=drive)


@pytest.mark.parametrize("exercise", registry.exercises(), ids=lambda e: e.id)
def test_a_second_fault_on_another_case_never_brings_up_another_mistake(exercise, record_property):
    judged = with_second_fault(exercise)
    name, wrong = list(exercise.wrong.items())[len(exercise.wrong) // 2]
    shown = Trial(judged, wrong, judged.cases).run().failure
    later = [c.name for c in judged.cases if c.name != shown.case.name]
    if not later:
        return
    verdict = judge(judged, Faulty(wrong, later[-1]))
    if verdict.case == shown.case.name and verdict.diagnosis not in ("", name):
        alike = Trial(judged, exercise.wrong[verdict.diagnosis], (shown.case,)).run().failure
        assert alike.found == shown.found
    assert verdict.diagnosis == name or not verdict.is_certain or not verdict.diagnosis
    record_property("count", "named mistakes beside a second fault")
