"""The judge itself: outcomes, tolerances, diagnosis, cases."""

import builtins
import math
import sys

import numpy as np
import pytest
import torch
from toy_exercise import toy_exercise

from grader.judging import registry
from grader.judging.compare import Comparison, Raised
from grader.judging.exercise import Case, given
from grader.judging.judge import judge
from grader.judging.verdict import Outcome

EPS = np.finfo(np.float64).eps


def double(x):
    return 2 * x


# ---- the three outcomes -------------------------------------------------------------------------


def test_right_is_passed_and_says_that_hidden_cases_follow():
    verdict = judge(toy_exercise(double), lambda x: x + x)
    assert verdict.outcome is Outcome.PASSED
    assert "hidden ones run at grading" in verdict.text()


def test_a_stub_is_not_run():
    def stub(x):
        raise NotImplementedError

    verdict = judge(toy_exercise(double), stub)
    assert verdict.outcome is Outcome.NOT_RUN
    assert "not written yet" in verdict.text()


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (lambda x: None, "is there a return?"),
        (lambda x: 2 * x[:2], "expected shape (3,)   got shape (2,)"),
        (lambda x: 3 * x, "1.5x the right value"),
        (lambda x: np.full(3, np.nan), "got nan"),
        (lambda x: np.full(3, np.inf), "got inf"),
        (lambda x: 1 / 0, "raised ZeroDivisionError"),
        (lambda x: "text", "got str"),
        (lambda x: [1, [2, 3]], "expected an array"),
        (lambda x: (2 * x).astype(complex), "expected an array"),
    ],
)
def test_wrong_is_failed_and_says_why(answer, says):
    verdict = judge(toy_exercise(double), answer)
    assert verdict.outcome is Outcome.FAILED
    assert says in verdict.text()
    assert verdict.next_step == 'hint("toy")'


@pytest.mark.parametrize(
    "answer",
    [
        lambda x: list(2 * x),
        lambda x: torch.from_numpy(2 * x),
        lambda x: np.float64(2) * x,
        lambda x: (0, 2, 4),
    ],
)
def test_a_right_answer_in_another_container_passes(answer):
    assert judge(toy_exercise(double), answer).passed


def test_a_whole_number_must_be_one():
    one = toy_exercise(lambda n: 7 * n, (given("n = 3", n=3),))
    assert judge(one, lambda n: np.int64(21)).passed
    assert "// gives whole numbers" in judge(one, lambda n: 42 / 2).text()
    assert judge(one, lambda n: True).outcome is Outcome.FAILED
    assert judge(toy_exercise(lambda n: 1, (given("n", n=3),)), lambda n: True).outcome is (
        Outcome.FAILED
    )


def test_exiting_is_a_failure_and_not_an_exit():
    verdict = judge(toy_exercise(double), lambda x: exit(0))
    assert verdict.outcome is Outcome.FAILED
    assert "SystemExit" in verdict.text()


def test_an_endless_loop_ends(monkeypatch):
    def answer(x):
        while True:
            try:
                pass
            except Exception:
                continue

    monkeypatch.setattr("grader.judging.judge.TIME_LIMIT_S", 0.2)
    verdict = judge(toy_exercise(double), answer)
    assert verdict.outcome is Outcome.FAILED
    assert "a loop that never ends?" in verdict.text()


# ---- what an answer must not do -----------------------------------------------------------------


def test_the_memory_of_an_imported_module_is_not_the_answers(tmp_path, monkeypatch):
    (tmp_path / "heavy_module.py").write_text("TABLE = bytearray(10**7)\n")
    monkeypatch.syspath_prepend(tmp_path)
    exercise = registry.exercise("grouped_attention")

    def answer(memory, visible):
        import heavy_module  # noqa: F401

        exercise.reference(memory, visible)

    verdict = judge(exercise, answer)
    assert sys.modules.pop("heavy_module")
    assert verdict.passed, verdict.text()


def test_a_changed_input_is_failed_even_with_the_right_result():
    def answer(x):
        x *= 2
        return x

    verdict = judge(toy_exercise(double), answer)
    assert verdict.outcome is Outcome.FAILED
    assert "changes its input x in place" in verdict.text()


@pytest.mark.parametrize(
    "change",
    [
        lambda record: record.setdefault("more"),
        lambda record: record["peaks"].update(bf16=1.0),
        lambda record: record["names"].append("c"),
        lambda record: record["row"].fill(0),
    ],
)
def test_a_change_inside_a_dict_is_found_too(change):
    record = {"peaks": {"bf16": 2.0, "fp8": math.nan}, "names": ["a", "b"], "row": np.ones(3)}

    def answer(record):
        peak = record["peaks"]["bf16"]
        change(record)
        return peak

    one = toy_exercise(lambda record: record["peaks"]["bf16"], (given("one", record=record),))
    assert judge(one, one.reference).passed
    assert "changes its input record in place" in judge(one, answer).text()


def test_state_kept_between_calls_is_found():
    kept = []

    def answer(x):
        kept.append(x)
        return 2 * x if len(kept) == 1 else 3 * x

    verdict = judge(toy_exercise(double), answer)
    assert "something is kept between calls" in verdict.text()


def test_a_refusal_that_is_asked_for_must_come():
    def root(x):
        if x < 0:
            raise ValueError(f"x must not be negative, given {x}")
        return math.sqrt(x)

    one = toy_exercise(root, (given("4", x=4.0), given("-1", x=-1.0)))
    assert judge(one, root).passed
    verdict = judge(one, lambda x: abs(x) ** 0.5)
    assert "expected a ValueError" in verdict.text()


def test_prints_do_not_show_unless_it_fails(capsys):
    def answer(x):
        print("debugging", x)
        return 3 * x

    assert judge(toy_exercise(double), lambda x: print("quiet") or 2 * x).passed
    verdict = judge(toy_exercise(double), answer)
    assert capsys.readouterr().out == ""
    assert "debugging" in verdict.text()


def test_a_numpy_warning_is_told():
    verdict = judge(toy_exercise(double), lambda x: np.exp(1000 + x) * 0)
    assert "NumPy warned: overflow" in verdict.text()


# ---- diagnosis ----------------------------------------------------------------------------------


def test_the_diagnosis_names_the_wrong_answer_that_agrees_everywhere():
    one = toy_exercise(
        lambda n: n**2,
        (given("two", n=2), given("three", n=3), given("five", n=5)),
        wrong={"doubles": lambda n: 2 * n, "cubes": lambda n: n**3, "adds 6": lambda n: n + 6},
    )
    assert judge(one, lambda n: n + n).diagnosis == "doubles"  # 2 fits 4; 3 tells
    assert judge(one, lambda n: n * n * n).diagnosis == "cubes"
    assert judge(one, lambda n: n - 100).diagnosis == ""


@pytest.mark.parametrize("says", ["n must not be negative", "no!"])
def test_how_an_answer_words_its_refusal_does_not_hide_its_mistake(says):
    def refusing(value):
        def answer(n, says="n < 0"):
            if n < 0:
                raise ValueError(says)
            return value(n)

        return answer

    one = toy_exercise(
        refusing(lambda n: 10 * n),
        (given("3", n=3), given("-1", n=-1), given("4", n=4)),
        wrong={"squares": refusing(lambda n: n * n), "doubles": refusing(lambda n: 2 * n)},
    )
    square = refusing(lambda n: n * n)
    assert judge(one, lambda n: square(n, says)).diagnosis == "squares"
    assert judge(one, lambda n: n * n).diagnosis == "squares"  # and it forgets to refuse
    assert judge(one, lambda n: n * n if n != 4 else 7).diagnosis == ""
    other = judge(one, lambda n: n * n if n > 0 else 1 / 0)
    assert other.diagnosis == "squares"


def test_an_ambiguous_case_is_settled_by_the_others():
    one = toy_exercise(
        lambda n: 0,
        (given("two", n=2), given("three", n=3)),
        wrong={"doubles": lambda n: 2 * n, "squares": lambda n: n**2},
    )
    assert judge(one, lambda n: n**2).diagnosis == "squares"
    assert judge(one, lambda n: n + n).diagnosis == "doubles"


# ---- tolerance ----------------------------------------------------------------------------------


def test_the_allowed_error_is_derived_and_printed():
    comparison = Comparison(terms=lambda i: 100, why="a sum of 100 numbers")
    one = toy_exercise(lambda x: x, (given("1", x=np.ones(4)),), comparison=comparison)
    allowed = 8 * EPS * 100
    assert judge(one, lambda x: x + 0.9 * allowed).passed
    verdict = judge(one, lambda x: x + 1.1 * allowed)
    assert verdict.outcome is Outcome.FAILED
    assert "8 · eps(float64) · 100 terms · magnitude 1; a sum of 100 numbers" in verdict.text()


def test_reordered_sums_stay_within_it_and_float32_does_not():
    rng = np.random.default_rng(0)
    for n in (10, 1000, 100_000):
        x = rng.normal(size=n)
        comparison = Comparison(
            terms=lambda i: i["x"].size, magnitude=lambda i: float(np.abs(i["x"]).max())
        )
        one = toy_exercise(lambda x: float(np.sum(x)), (given("sum", x=x),), comparison=comparison)
        assert judge(one, lambda x: sum(x.tolist())).passed
        assert judge(one, lambda x: math.fsum(x)).passed
    verdict = judge(
        toy_exercise(double, (given("x", x=rng.normal(size=9)),)), lambda x: x.astype("f4") * 2
    )
    assert "your result is float32; the inputs are float64" in verdict.text()
    third = toy_exercise(lambda n: n / 3, (given("2", n=2.0),))
    for nearly in (lambda n: float(np.float32(n) / 3), lambda n: round(n / 3, 6)):
        assert "so small an error: float32 on the way" in judge(third, nearly).text()
    assert "so small an error" not in judge(third, lambda n: n / 3.1).text()


def test_expected_infinities_and_nans_must_match():
    compare = Comparison().difference
    assert compare(np.array([np.inf, 1.0]), np.array([np.inf, 1.0]), {}) is None
    assert compare(np.array([np.nan]), np.array([np.nan]), {}) is None
    assert compare(np.array([np.inf]), np.array([-np.inf]), {}).kind == "nan"
    assert compare(np.array([np.nan]), np.array([np.inf]), {}).kind == "nan"
    assert compare(np.array([1.0]), np.array([np.nan]), {}).kind == "nan"


def test_nested_data_says_where():
    compare = Comparison().difference
    found = compare({"a": [1, 2], "b": np.ones(2)}, {"a": [1, 3], "b": np.ones(2)}, {})
    assert found.lines[0].startswith("a: [1] expected 2   got 3")
    assert compare({"a": 1}, {}, {}).lines == ("a is missing",)
    assert compare([1, 2], [1, 2, 3], {}).kind == "length"
    assert compare(Raised("ValueError"), Raised("ValueError"), {}) is None
    assert compare(Raised("ValueError"), Raised("TypeError"), {}).kind == "raised"


def test_a_result_that_is_not_plain_data_is_our_own_fault():
    with pytest.raises(TypeError, match="plain data"):
        Comparison().difference(object(), 1, {})


# ---- cases --------------------------------------------------------------------------------------


def test_hidden_cases_depend_on_the_seed_and_repeat():
    one = toy_exercise(double, draw=lambda rng: {"x": rng.normal(size=3)})
    first, again, other = (one.hidden_cases(seed)[0].make()["x"] for seed in (1, 1, 2))
    assert (first == again).all()
    assert (first != other).any()
    visible = [case.make()["x"] for case in one.visible_cases()[1:]]
    assert all((first != x).any() for x in visible)


def test_hard_coding_the_visible_cases_fails_on_the_hidden_ones():
    one = toy_exercise(double, draw=lambda rng: {"x": rng.normal(size=3)})
    table = {case.make()["x"].tobytes(): 2 * case.make()["x"] for case in one.visible_cases()}

    def answer(x):
        return table.get(x.tobytes(), np.zeros(3))

    assert judge(one, answer).passed
    assert judge(one, answer, hidden=True, seed=1).outcome is Outcome.FAILED


def test_a_hidden_named_case_is_not_run_visibly():
    cases = (given("shown", x=1), Case("kept back", lambda: {"x": 2}, hidden=True))
    one = toy_exercise(lambda x: x * x, cases)
    assert judge(one, lambda x: x).passed
    assert judge(one, lambda x: x, hidden=True).outcome is Outcome.FAILED


@pytest.mark.parametrize(
    ("answer", "how"),
    [
        (lambda x: 13579 if x == 8642 else x * x, "the value is wrong"),
        (lambda x: 1 / 0 if x == 8642 else x * x, "it raised ZeroDivisionError"),
    ],
)
def test_a_verdict_on_a_hidden_case_tells_nothing_of_it(answer, how):
    cases = (given("shown", x=1), Case("kept back", lambda: {"x": 8642}, hidden=True))
    one = toy_exercise(lambda x: x * x, cases)
    verdict = judge(one, answer, hidden=True)
    text = verdict.text() + verdict.to_html()
    assert f"every visible case is right; on a hidden one {how}" in text
    assert not any(told in text for told in ("8642", "8,642", "kept back", str(8642**2), "13579"))


def test_the_judge_restores_what_it_touches():
    before = builtins.print
    judge(toy_exercise(double), lambda x: print("x") or 2 * x)
    assert builtins.print is before


def test_where_it_raised_is_told_in_the_learners_own_line():
    verdict = judge(toy_exercise(double), lambda x: x.reshape(2, 2))
    assert "raised ValueError: cannot reshape" in verdict.text()
    assert "at your line" in verdict.text()
    assert "lambda x: x.reshape(2, 2)" in verdict.text()


def test_one_twin_on_one_case_is_not_believed():
    one = toy_exercise(
        lambda n: n**2, (given("two", n=2), given("three", n=3)), wrong={"zero": lambda n: 0}
    )
    assert judge(one, lambda n: 0 if n == 2 else 1).diagnosis == ""
    assert judge(one, lambda n: 0).diagnosis == "zero"


class Unprintable:
    def __repr__(self):
        raise RuntimeError("no")


@pytest.mark.parametrize(
    "value",
    [
        Unprintable(),
        torch.zeros(3, dtype=torch.bfloat16),
        torch.eye(3).to_sparse(),
        [torch.ones(1, requires_grad=True)] * 3,
        10**5000,
        object,
    ],
    ids=lambda value: type(value).__name__,
)
def test_no_result_whatever_breaks_the_judge(value):
    assert judge(toy_exercise(double), lambda x: value).outcome is Outcome.FAILED
    whole = toy_exercise(lambda n: 7 * n, (given("n = 3", n=3),))
    assert judge(whole, lambda n: value).outcome is Outcome.FAILED


def test_numpy_set_to_raise_does_not_break_the_reference():
    one = toy_exercise(lambda x: np.exp(-x * 1000), (given("x", x=np.ones(2)),))
    with np.errstate(all="raise"):
        assert judge(one, lambda x: np.exp(-1000 * x)).passed


def test_a_subclass_of_the_error_that_is_asked_for_will_do():
    class OutOfRange(ValueError):
        pass

    def strict(x):
        raise OutOfRange("no")

    def reference(x):
        raise ValueError(f"x must be positive, given {x}")

    assert judge(toy_exercise(reference, (given("-1", x=-1),)), strict).passed


def test_not_implemented_by_a_library_is_a_failure():
    def answer(x):
        raise NotImplementedError("softmax is not implemented for Long")

    assert judge(toy_exercise(double), answer).outcome is Outcome.FAILED


@pytest.mark.parametrize("huge", [10**400, -(10**400)])
def test_a_number_that_no_float_holds_is_wrong_and_breaks_nothing(huge):
    verdict = judge(toy_exercise(lambda x: 2.0), lambda x: huge)
    assert verdict.outcome is Outcome.FAILED
    assert "inf" in verdict.text()
