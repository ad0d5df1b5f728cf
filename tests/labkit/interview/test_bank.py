"""The interview bank: every question sound for fifty draws, right by independent numbers, and
together covering what interviews ask."""

from __future__ import annotations

import json
import math
from collections import Counter

import numpy as np
import pytest
from interview_candidate import whole_bank
from interview_topics import COVERED

from grader.judging import registry
from labkit.interview import bank as banks
from labkit.interview import spec
from labkit.interview.formula import Formula, function
from labkit.interview.misconceptions import Catalogue, Misconception
from labkit.interview.questions import Answers, equal_length, faults
from labkit.interview.spec import LEVELS
from labkit.units import parse

BANK = whole_bank()
OWN = [item for item in BANK.items.values() if item.id.startswith("iv-")]
NUMERIC = [item for item in OWN if item.kind == "numeric"]
N_SEEDS = 50


# ---- the whole ---------------------------------------------------------------------------------


def test_the_bank_is_large_and_spread_over_lessons_levels_and_kinds():
    assert len(OWN) >= 120
    assert set(BANK.topics) == set(registry.lessons())
    assert all(n >= 8 for n in Counter(item.topic for item in OWN).values())
    levels, kinds = Counter(i.level for i in OWN), Counter(i.kind for i in OWN)
    assert set(levels) == set(LEVELS)
    assert min(levels.values()) >= 25
    assert kinds["numeric"] >= 60
    assert kinds["choice"] >= 30
    assert kinds["open"] >= 40


def test_the_readme_says_how_many_there_are():
    text = (banks.ROOT / "README.md").read_text(encoding="utf-8")
    assert f"{len(BANK.items)} questions, six system designs" in " ".join(text.split())
    assert len(BANK.scenarios) == 6


def test_the_lessons_questions_are_in_it():
    assert {question.id for question in registry.questions()} <= set(BANK.items)
    assert len(BANK.items) == len(OWN) + len(registry.questions())


def test_everything_on_the_list_has_its_question():
    """interview_topics.py: what interviews and knowledge checks ask, and where it is asked here."""
    assert len(COVERED) >= 120
    missing = {
        what: ids for what, ids in COVERED.items() if not set(ids.split()) <= set(BANK.items)
    }
    assert not missing
    assert all(ids.split() for ids in COVERED.values())


def test_every_misconception_of_the_catalogue_can_be_met():
    shown = {name for item in BANK.items.values() for name in item.met_by.values()} | {"UNITS"}
    assert set(BANK.catalogue.by_id) <= shown
    for entry in BANK.catalogue.by_id.values():
        assert entry.lesson in BANK.topics
        assert ": " not in entry.name
        assert entry.cure


def test_slips_of_the_lessons_that_stand_for_a_misconception_exist():
    slips = {slip for question in registry.questions() for slip in question.slips}
    slips.add("GB and GiB mixed: 1 GB = 10^9 B, 1 GiB = 2^30 B")
    for entry in BANK.catalogue.by_id.values():
        assert set(entry.also) <= slips, entry.id


def test_no_text_of_the_bank_is_a_slip_of_two_misconceptions():
    texts = Counter(t for e in BANK.catalogue.by_id.values() for t in {e.text, *e.also})
    assert max(texts.values()) == 1


# ---- choices -----------------------------------------------------------------------------------


def test_choices_are_of_equal_length_and_the_longest_or_shortest_is_no_hint():
    choices = [item.question for item in BANK.items.values() if item.kind == "choice"]
    assert all(equal_length(question) for question in choices)
    chance = sum(1 / len(question.choices) for question in choices)
    for pick in (max, min):
        score = 0.0
        for question in choices:
            lengths = [len(choice) for choice in question.choices]
            best = pick(lengths)
            score += (lengths[0] == best) / lengths.count(best)
        assert score <= chance, f"picking the {pick.__name__} scores {score} of {chance}"


def test_choices_are_shuffled_evenly():
    places = Counter()
    for item in OWN:
        if item.kind == "choice":
            for seed in range(N_SEEDS):
                answers = Answers(f"{seed}", {item.id: item.question})
                places[answers.worked(item.id)] += 1
    total = sum(places.values())
    for letter in "abcd":
        spread = 5 * math.sqrt(total * 0.25 * 0.75)
        assert abs(places[letter] - total / 4) < spread


# ---- numeric questions -------------------------------------------------------------------------


@pytest.mark.parametrize("item", OWN, ids=lambda item: item.id)
def test_the_worked_answer_passes_and_each_slip_is_named_for_fifty_draws(item):
    assert faults(item.question, N_SEEDS) == []


@pytest.mark.parametrize("item", NUMERIC, ids=lambda item: item.id)
def test_slips_differ_from_the_answer_and_from_each_other_and_numbers_vary(item):
    question, seen = item.question, set()
    for seed in range(N_SEEDS):
        params = question.draw(np.random.default_rng(seed))
        right = question.answer(params)
        values = [right, *(slip(params) for slip in question.slips.values())]
        assert all(math.isfinite(value) for value in values)
        assert right > 0
        assert spec.all_apart(values, question.tolerance)
        text, why = question.text(params), question.why(params)
        assert "{" not in text + why
        seen.add(text)
    assert len(seen) >= 3


@pytest.mark.parametrize("item", NUMERIC, ids=lambda item: item.id)
def test_the_same_seed_gives_the_same_question(item):
    once, again = (item.question.draw(np.random.default_rng(7)) for _ in range(2))
    assert item.question.text(once) == item.question.text(again)
    assert item.question.answer(once) == item.question.answer(again)


@pytest.mark.parametrize("item", NUMERIC, ids=lambda item: item.id)
def test_an_answer_by_three_digits_is_right_and_a_known_slip_earns_half(item):
    question = item.question
    answers = Answers("somebody", {item.id: question})
    params = answers.params(item.id)
    answers[item.id] = f"≈ {question.answer(params):.4g} {question.kind}".strip()
    result = answers.judge(item.id)
    assert (result.passed or question.tolerance < 1e-4, result.score in (0, 1)) == (True, True)
    for name, slip in question.slips.items():
        answers[item.id] = f"{float(slip(params))!r} {question.kind}".strip()
        result = answers.judge(item.id)
        assert (result.passed, result.score, result.slips) == (False, 0.5, (name,))
    answers[item.id] = f"{1.37 * question.answer(params)!r} {question.kind}".strip()
    if not answers.judge(item.id).slips:
        assert answers.judge(item.id).score == 0


# What the numbers must be: worked by hand, or published. question -> (values drawn, right answer)
GOLDEN = {
    "iv-max-decode": ({"billions": 8, "bits": 16, "device": "h100-sxm"}, "209.375 tok/s"),
    "iv-ridge": ({"device": "h100-sxm"}, "295.343 FLOP/B"),
    "iv-decode-knee": ({"model": "llama-3-8b", "device": "h100-sxm"}, "148 seq"),
    "iv-never-bound": ({"model": "llama-3-8b", "device": "h100-sxm"}, "393.05 tok"),
    "iv-new-chip": ({"old": "h100-sxm", "new": "h200-sxm"}, "1.4328x"),
    "iv-gemm": ({"N": 2000, "d_in": 4096, "d_out": 4096}, "1011.86 FLOP/B"),
    "iv-token-flops": ({"model": "llama-3-8b", "T": 8192}, "19.3043 GFLOP"),
    "iv-count-tied": ({"model": "qwen2.5-0.5b"}, "494,032,768"),
    "iv-passes": ({"n": 500}, "500"),
    "iv-kv-token": ({"model": "llama-3-70b"}, "320 KiB"),
    "iv-kv-head-dim": ({"model": "qwen3-0.6b"}, "114688 B"),
    "iv-kv-sequence": ({"model": "llama-3-70b", "T": 32768}, "10 GiB"),
    "iv-kv-fit": ({"model": "llama-3-70b", "n": 8, "T": 32768}, "40"),
    "iv-kv-gib": ({"size": 80, "T": 8192}, "65"),
    "iv-mla-token": ({"model": "deepseek-v3"}, "70272 B"),
    "iv-window-bytes": ({"model": "gpt-oss-20b", "T": 131072}, "3224371200 B"),
    "iv-int4-memory": ({"billions": 8, "group": 32}, "4.625 GB"),
    "iv-block-bits": ({"block": 32}, "4.25"),
    "iv-accepted-share": ({"a": 0.8, "g": 4}, "59.04 %"),
    "iv-draft-equal": ({"g": 4}, "5 tok"),
    "iv-moe-step": (
        {"shared": 4, "E": 16, "k": 2, "e": 2, "B": 16},
        f"{(4 + 2 * 14.1109266) / 8} x",
    ),
    "iv-ship-kv": ({"model": "llama-3-8b", "S": 8192, "link": 450}, "2.386 ms"),
    "iv-little": ({"rate": 12, "e2e": 8}, "96"),
    "iv-queue-load": ({"mu": 10, "start": 0.8, "end": 0.9}, "2x"),
    "iv-devices": ({"model": "llama-3-70b", "users": 4, "T": 32768}, "4"),
    "iv-idle-cost": ({"n": 1, "usd": 2.5, "users": 50, "ms": 25, "busy": 25}, "1.3889"),
    "iv-allreduce": ({"model": "llama-3-70b", "n": 4, "B": 310, "link": 450}, "2.71 ms"),
    "iv-chat-70b-kv": ({"model": "llama-3-70b", "n_in": 1024, "n_out": 500, "n": 4}, "499.4 MB"),
    "iv-chat-70b-fit": ({"model": "llama-3-70b", "n_in": 1024, "n_out": 500, "n": 4}, "295"),
    "iv-code-expected": ({"a": 0.8, "g": 4, "c_pct": 5, "device": "h100-sxm"}, "3.3616 tok"),
    "iv-code-speed": ({"a": 0.8, "g": 4, "c_pct": 5, "device": "h100-sxm"}, "2.8013x"),
    "iv-code-gamma": ({"a": 0.8, "g": 4, "c_pct": 5, "device": "h100-sxm"}, "8"),
    "iv-agent-bytes": ({"P": 20000, "t": 2000, "users": 2}, "2.62144 GB"),
    "iv-incident-reread": ({"S": 8000, "T": 1024, "B": 32}, "28000 tok"),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_right_answers_are_the_known_ones(name):
    wanted, right = GOLDEN[name]
    entry, numbers = _entry(name)
    params = {
        key: values[0] for key, values in entry["draw"].items() if isinstance(values, list)
    } | wanted
    for given, formula in entry.get("given", {}).items():
        params[given] = numbers.formula(formula)(params)
    value = BANK.items[name].question.answer(params)
    assert value == pytest.approx(parse(right).value, rel=6e-4)


def _entry(name: str) -> tuple[dict, spec.Numbers]:
    """An entry as it stands in its file, with the numbers of its scenario where it has one."""
    for path in banks.FOLDER.glob("*.json"):
        data = json.loads(path.read_text(encoding="utf-8"))
        for entry in data.get("questions", ()):
            if entry["id"] == name:
                return entry, spec.Numbers(entry)
        for case in data.get("scenarios", ()):
            if name in {one["id"] for one in case["follow_ups"]}:
                return case, spec.Numbers(case)
    raise AssertionError(name)


def test_no_right_answer_is_typed_in():
    for path in banks.FOLDER.glob("*.json"):
        data = json.loads(path.read_text(encoding="utf-8"))
        for entry in data.get("questions", ()):
            if entry["kind"] == "numeric":
                formula = spec.Numbers(entry).formula(entry["answer"])
                used = set(formula.names)
                for name in list(used):  # what the answer's own names are computed from
                    given = entry.get("given", {}).get(name)
                    used |= spec.Numbers(entry).formula(given).names if given else set()
                called = {path.rpartition(".")[2] for path in entry["functions"]}
                assert used & called, f"{entry['id']} computes nothing with inferlab"


# ---- open questions and scenarios --------------------------------------------------------------


@pytest.mark.parametrize("item", [i for i in OWN if i.kind == "open"], ids=lambda item: item.id)
def test_a_rubric_has_a_mechanism_a_number_and_a_limit(item):
    rubric = item.question.rubric
    assert list(rubric) == ["mechanism", "number", "limit"]
    assert all(len(text) > 40 for text in rubric.values())
    assert any(character.isdigit() for character in rubric["number"]) or (
        "TTFT" in rubric["number"]
    )


@pytest.mark.parametrize("scenario", BANK.scenarios.values(), ids=lambda case: case.id)
def test_a_scenario_keeps_its_numbers_through_all_follow_ups(scenario):
    assert len(scenario.follow_ups) >= 5
    items = scenario.bound(11)
    assert items[0].kind == "open"
    params = [item.question.draw(np.random.default_rng(i)) for i, item in enumerate(items)]
    assert all(p == params[0] for p in params)
    case = scenario.text.format_map(params[0])
    assert items[0].question.text(params[0]).startswith(case)
    for item in items[1:]:
        assert case not in item.question.text(params[0])
        alone = BANK.items[item.id].question
        assert alone.text(params[0]).startswith(case)
    assert scenario.bound(11)[0].question.text({}) == items[0].question.text({})
    assert scenario.bound(12)[0].question.text({}) != items[0].question.text({})


# ---- what is refused ---------------------------------------------------------------------------

GOOD = {
    "id": "x",
    "kind": "numeric",
    "level": "screen",
    "text": "{n}?",
    "why": "{answer}",
    "draw": {"n": [2, 3, 5]},
    "functions": ["inferlab.paging.pages_needed"],
    "answer": "pages_needed(n, 1)",
    "slips": {"M76": "n - 1"},
}
KNOWN = Catalogue([Misconception("M76", "a", "b", "10_batching")])


@pytest.mark.parametrize(
    ("change", "trouble"),
    [
        ({"kind": "riddle"}, "kind must be one of"),
        ({"level": "guru"}, "level must be one of"),
        ({"colour": "red"}, "unknown fields .'colour'."),
        ({"answer": "open('x')"}, "not named beside it"),
        ({"answer": "n.__class__"}, "Attribute is not allowed"),
        ({"answer": "[m for m in (1, 2)]"}, "ListComp is not allowed"),
        ({"answer": "n +"}, "is no formula"),
        ({"functions": ["os.system"]}, "must name a function of inferlab"),
        ({"functions": ["inferlab.paging.no_such"]}, "there is no function"),
        ({"functions": []}, "names no function|not named beside it"),
        ({"draw": {"n": []}}, "needs a list"),
        ({"draw": {"n": {"low": 3, "high": 1, "step": 1}}}, "low < high"),
        ({"unit": "furlong"}, "unknown unit"),
    ],
)
def test_an_entry_that_cannot_work_is_refused_and_named(change, trouble):
    with pytest.raises(ValueError, match=trouble):
        spec.item({**GOOD, **change}, "10_batching", KNOWN)


def test_a_slip_that_always_equals_the_answer_is_found_at_the_first_draw():
    item = spec.item({**GOOD, "slips": {"M76": "n"}}, "10_batching", KNOWN)
    with pytest.raises(ValueError, match="too many slips coincide"):
        item.question.draw(np.random.default_rng(0))


def test_ids_are_unique_across_files_and_lessons():
    with pytest.raises(ValueError, match="same id: kv_q_token"):
        banks.load([*registry.questions("04_kv_cache")] * 2)


def test_a_formula_computes_with_named_functions():
    formula = Formula("max(f(a, b=2), 1) ** 2 - a['x']", {"f": lambda a, b: a["x"] * b})
    assert formula({"a": {"x": 3}}) == 33
    with pytest.raises(ValueError, match="with"):
        formula({})
    assert function("inferlab.paging.pages_needed")(17, 16) == 2


@pytest.mark.parametrize("name", ["kv-cache", "kv_cache", "04", "4", "04_kv_cache", " KV-Cache "])
def test_a_topic_has_many_names(name):
    assert BANK.topic(name) == "04_kv_cache"


def test_an_unknown_topic_is_refused_with_those_that_exist():
    with pytest.raises(ValueError, match=r"there are: roofline, .*kv-cache"):
        BANK.topic("cooking")
