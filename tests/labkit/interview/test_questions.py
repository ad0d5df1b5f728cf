"""Knowledge checks: a learner's own numbers, judged with units, misconceptions named."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from labkit.interview.questions import MIXED_PREFIXES, Answers, Question, equal_length, faults
from labkit.units import Quantity

WRONG_HEADS = "n_heads in place of n_kv_heads"


def _draw(rng: np.random.Generator) -> dict:
    return {"n_layers": int(rng.choice([16, 32])), "n_tokens": 1000 * int(rng.integers(1, 9))}


def _bytes(params: dict, heads: int = 8) -> float:
    return 2 * params["n_layers"] * heads * 128 * params["n_tokens"] * 2


KV = Question(
    "kv_bytes",
    "04",
    2,
    text=lambda p: f"{p['n_layers']} layers, {p['n_tokens']:,} tokens: how many bytes?",
    why=lambda p: f"Keys and values in each of the {p['n_layers']} layers.",
    draw=_draw,
    answer=_bytes,
    unit="MB",
    slips={WRONG_HEADS: lambda p: _bytes(p, 32), "keys alone": lambda p: _bytes(p) / 2},
)
SPEED = Question(
    "ratio",
    "04",
    1,
    text=lambda p: "How many times?",
    why=lambda p: "So.",
    answer=lambda p: 4.0,
    unit="x",
)
COUNT = dataclasses.replace(SPEED, id="count", unit=None, answer=lambda p: 4096.0, tolerance=0.0)
WHY = Question(
    "why",
    "04",
    1,
    text=lambda p: "Why?",
    why=lambda p: "Because.",
    choices=("earlier keys never change", "queries are small vectors", "softmax is monotonous"),
    notes={"queries are small vectors": "size is not what makes it valid"},
)
BANK = {q.id: q for q in (KV, SPEED, COUNT, WHY)}


def _judge(question_id: str, answer, learner: str = "Ada"):
    answers = Answers(learner, BANK)
    answers[question_id] = answer
    return answers.judge(question_id)


def _right(learner: str = "Ada") -> float:
    return _bytes(Answers(learner, BANK).params("kv_bytes"))


def test_the_bank_has_no_faults():
    assert [faults(question) for question in BANK.values()] == [[], [], [], []]


def test_a_learner_always_gets_the_same_numbers_and_others_get_others():
    first = Answers("Ada Lovelace", BANK).params("kv_bytes")
    assert Answers("  ada  LOVELACE ", BANK).params("kv_bytes") == first
    others = [str(Answers(f"learner {i}", BANK).params("kv_bytes")) for i in range(40)]
    assert len(set(others)) > 8


def test_the_draw_is_the_same_on_every_machine():
    assert Answers("ada", BANK).params("kv_bytes") == {"n_layers": 16, "n_tokens": 4000}
    assert Answers("ada", BANK).choices("why")["a"] == WHY.choices[0]


def test_a_blank_name_is_the_anonymous_draw_and_says_so():
    assert "numbers that everybody gets" in Answers(" ", BANK).text("kv_bytes")
    assert "everybody" not in Answers("ada", BANK).text("kv_bytes")


@pytest.mark.parametrize("blank", [..., None, "", "  "])
def test_no_answer_yet_is_not_run(blank):
    result = _judge("kv_bytes", blank)
    assert (result.outcome, result.message, result.points) == ("not run", "not answered yet", 0)
    assert Answers("ada", BANK).judge("why").outcome == "not run"


def test_a_right_answer_passes_in_any_unit_and_is_explained():
    right = _right()
    for text in (
        f"{right:.0f} B",
        f"{right / 1e6} MB",
        f"{right / 2**20} MiB",
        f"{right / 1e9} GB",
    ):
        result = _judge("kv_bytes", text)
        assert (result.outcome, result.points) == ("passed", 2)
        assert "Keys and values" in result.why


@pytest.mark.parametrize(
    ("factor", "passed"), [(1.0049, True), (0.9951, True), (1.0051, False), (0.9949, False)]
)
def test_the_tolerance_is_half_a_per_cent(factor, passed):
    assert _judge("kv_bytes", f"{_right() * factor} B").passed is passed


@pytest.mark.parametrize(
    ("form", "message"),
    [
        ("{mb}", 'has no unit; this answer needs one, such as "12.5 MB"'),
        ("{mb} s", "is in s; the question asks for B"),
        ("{mib} MB", "right in MiB, but you wrote MB: 1 MB = 1,000,000 B, 1 MiB = 1,048,576 B"),
        ("{mib} mb", "right in MiB, but you wrote MB"),
        ("{mb} MiB", "right in MB, but you wrote MiB"),
        ("{gib} GB", "right in GiB, but you wrote GB"),
        ("{mb} GB", "1,000x too large: see the prefix"),
        ("{mb} kB", "1,000x too small: see the prefix"),
        ("{mb} B", "1,000,000x too small"),
        ("-{mb} MB", "the sign is wrong"),
        ("{big} MB", "too large (the answer may be off by 0.5%)"),
        ("12,5 MB", "decimals with a point"),
        ("{mb} Mb", "means bits"),
    ],
)
def test_a_wrong_answer_is_told_what_is_wrong(form, message):
    right = _right()
    numbers = {
        "mb": right / 1e6,
        "mib": right / 2**20,
        "gib": right / 2**30,
        "big": right / 1e6 * 1.3,
    }
    result = _judge("kv_bytes", form.format(**numbers))
    assert result.outcome == "failed"
    assert message in result.message
    assert not result.why


def test_each_slip_is_rejected_and_named():
    params = Answers("Ada", BANK).params("kv_bytes")
    for name, wrong in KV.slips.items():
        result = _judge("kv_bytes", f"{wrong(params):.0f} B")
        assert (result.outcome, result.slips) == ("failed", (name,))
        assert name in result.message


@pytest.mark.parametrize(
    "odd", [True, [1], {"a": 1}, object(), 10**400, float("nan"), 3 + 4j, b"3"]
)
def test_odd_answers_fail_and_do_not_raise(odd):
    assert _judge("kv_bytes", odd).outcome == "failed"
    assert _judge("why", odd).outcome == "failed"


def test_a_ratio_or_a_count_needs_no_unit():
    assert all(_judge("ratio", given).passed for given in (4, "4", "4x", "4 ×", np.float32(4)))
    assert all(_judge("count", given).passed for given in (4096, "4,096", np.int64(4096)))
    assert not _judge("count", 4095).passed
    assert "plain number" in _judge("count", "4096 B").message


def test_choices_are_shuffled_but_one_letter_is_right():
    firsts = set()
    for number in range(30):
        answers = Answers(f"learner {number}", BANK)
        options = answers.choices("why")
        assert sorted(options.values()) == sorted(WHY.choices)
        firsts.add(options["a"])
        passed = []
        for letter in options:
            answers["why"] = letter.upper()
            passed.append(answers.judge("why").passed)
        assert passed == [choice == WHY.choices[0] for choice in options.values()]
    assert firsts == set(WHY.choices)


def test_a_wrong_choice_is_explained_where_a_note_exists():
    letter = next(a for a, c in Answers("Ada", BANK).choices("why").items() if c == WHY.choices[1])
    assert "size is not what makes it valid" in _judge("why", letter).message
    assert "one letter" in _judge("why", "z").message


def test_every_worked_answer_passes():
    for question_id in BANK:
        answers = Answers("somebody", BANK)
        answers[question_id] = answers.worked(question_id)
        assert answers.judge(question_id).passed


def test_the_callback_gets_every_result():
    seen = []
    answers = Answers("ada", BANK, on_result=seen.append)
    answers.judge("why")
    answers["why"] = answers.worked("why")
    answers.judge("why")
    assert [result.outcome for result in seen] == ["not run", "passed"]


def test_answers_are_a_mapping_and_unknown_names_are_helped():
    answers = Answers("ada", BANK)
    assert list(answers) == list(BANK)
    assert answers["why"] is ...
    answers["why"] = "a"
    del answers["why"]
    assert answers["why"] is ...
    with pytest.raises(ValueError, match="did you mean kv_bytes"):
        answers["kv_byte"] = 3
    with pytest.raises(ValueError, match="must be text"):
        Answers(7, BANK)


def test_asking_shows_the_learners_numbers_and_how_to_answer(capsys):
    answers = Answers("ada", BANK)
    answers.ask("kv_bytes")
    answers.ask("why")
    out = capsys.readouterr().out
    assert f"{answers.params('kv_bytes')['n_tokens']:,} tokens" in out
    assert 'answers["kv_bytes"] = "12.5 MB"' in out
    assert "- **c)** " in out


def test_faulty_questions_are_found():
    same = dataclasses.replace(KV, slips={"the answer itself": _bytes})
    assert any("the answer itself" in fault for fault in faults(same, 3))
    hidden = dataclasses.replace(KV, slips={"1000 times": lambda p: _bytes(p) * 1.001})
    assert faults(hidden, 3)
    silent = dataclasses.replace(KV, why=lambda p: " ")
    assert faults(silent, 1)


def test_a_choice_that_stands_out_by_length_is_found():
    assert equal_length(KV)
    assert equal_length(WHY)
    assert equal_length(dataclasses.replace(WHY, choices=("x" * 80, "y" * 100), notes={}))
    long = dataclasses.replace(WHY, choices=("a" * 41, "b" * 28), notes={})
    assert not equal_length(long)
    assert faults(long, 1) == ["its choices differ too much in length"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"choices": ("a", "b")}, "either an answer or choices"),
        ({"answer": None}, "either an answer or choices"),
        ({"unit": "furlong"}, "unknown unit"),
        ({"notes": {"a": "b"}}, "notes on no wrong choice"),
    ],
)
def test_a_question_that_cannot_work_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(KV, **change)


def test_a_quantity_can_be_the_answer():
    assert _judge("kv_bytes", Quantity(_right(), "B")).passed


def test_a_count_may_be_followed_by_the_word_for_what_is_counted():
    question = Question("q", "l", 1, lambda p: "How many?", lambda p: "so", answer=lambda p: 34.0)
    answers = Answers("ada", {"q": question})
    for given, passed in [
        ("34 sequences", True),
        ("34 rows", True),
        ("33 rows", False),
        ("34 GB", False),
    ]:
        answers["q"] = given
        assert answers.judge("q").passed == passed, given


# ---- open questions ----------------------------------------------------------------------------

OPEN = Question(
    "open",
    "04_kv_cache",
    3,
    text=lambda p: "Why?",
    why=lambda p: "Because.",
    rubric={"mechanism": "how it works", "number": "how large", "limit": "when not"},
)


@pytest.mark.parametrize(
    ("given", "score", "passed"),
    [
        ("1 1 1", 1.0, True),
        ("1, ½, 0", 0.5, False),
        ("1;1/2;.5", 2 / 3, False),
        ("0 0 0", 0.0, False),
    ],
)
def test_an_open_answer_has_the_mean_of_its_marks(given, score, passed):
    answers = Answers("ada", {"open": OPEN})
    answers["open"] = given
    result = answers.judge("open")
    assert (result.score, result.passed) == (pytest.approx(score), passed)
    assert result.message.endswith("of 3")


@pytest.mark.parametrize("given", ["1 1", "1 1 2", "yes", "1 1 1 1"])
def test_marks_that_cannot_be_read_earn_nothing_and_say_what_is_asked(given):
    answers = Answers("ada", {"open": OPEN})
    answers["open"] = given
    result = answers.judge("open")
    assert result.score == 0
    assert "for each of: mechanism, number, limit" in result.message
    assert faults(OPEN) == []


def test_a_slip_earns_half_and_gb_for_gib_has_a_name():
    answers = Answers("ada", {KV.id: KV})
    right = KV.answer(answers.params(KV.id))
    for text, score, slips in (
        (f"{right} B", 1.0, ()),
        (f"{right / 2} B", 0.5, ("keys alone",)),
        (f"{right / 2**30:.9f} GB", 0.5, (MIXED_PREFIXES,)),
        (f"{right * 1.3} B", 0.0, ()),
        ("", 0.0, ()),
    ):
        answers[KV.id] = text
        result = answers.judge(KV.id)
        assert (result.score, result.slips) == (score, slips)
        assert result.points == (KV.points if score == 1 else 0)  # a knowledge check gives no half
