"""Isolated grading judges each exercise alone: a wrong part costs its own points, no others."""

import pytest
from isolated_submissions import LESSON, code, grade, lost, solved, written

from grader.judging import registry
from grader.judging.isolated import notebook as grading

TOKEN, CACHE = "kv_bytes_per_token", "kv_cache_bytes"
CALLER = """
def kv_cache_bytes(config, n_tokens, n_sequences=1, bytes_per_number=2):
    return n_sequences * n_tokens * kv_bytes_per_token(config, bytes_per_number)
"""
ROOTS = {  # parts that others call, as the worked notebooks have them
    "01_roofline": ("matmul_flops", "device_rates", "attention_params", "token_flops"),
    "02_forward_pass": ("rms_norm", "softmax", "rotate"),
    "03_prefill_decode": ("prefill", "pass_read_bytes", "end_to_end_s"),
    "04_kv_cache": ("attend_one", TOKEN),
    "05_gqa": ("absorb_query", "layer_cache_numbers"),
    "06_flash_attention": ("online_update", "n_key_blocks", "partial_attention"),
    "07_quantization": ("quantize_absmax", "dequantize", "unpack_nibbles"),
    "08_speculative_sampling": ("keep_top_p", "residual_law", "expected_tokens"),
    "09_moe": ("router_weights", "route", "touched_experts"),
    "10_batching": ("pages_needed", "own_page", "page_hashes"),
    "11_latency_metrics": ("request_latencies", "percentile", "poisson_arrivals"),
    "12_capacity": ("cache_room_bytes", "pass_seconds", "tensor_parallel_sizes"),
}


def graded(zygote, lesson: str, spoils: str):
    """The worked notebook's answers and checks; after all answers a cell that spoils some."""
    cells = [c for c in solved(lesson)["cells"] if c["cell_type"] == "code"]
    checks = [c for c in cells if grading.is_check(c)]
    answers = [c for c in cells if not grading.is_check(c) and not skipped(c)]
    return grading.grade({"cells": [*answers, code(spoils), *checks]}, lesson, zygote)


def skipped(cell) -> bool:
    """A cell that measures or draws: nothing that is judged needs it."""
    facts = cell["metadata"].get("nbgrader", {})
    source = grading.source(cell)
    return not (facts.get("solution") or "import" in source or "Answers(" in source)


def lost_points(result) -> set[str]:
    return {r.grade_id.removeprefix("check_") for r in result.results if r.earned < r.points}


@pytest.mark.parametrize("lesson", registry.lessons())
def test_wrong_parts_cost_their_own_points_alone(zygote, lesson, record_property):
    parts = ROOTS[lesson]
    spoils = "\n".join(f"def {part}(*args, **kwargs):\n    return None" for part in parts)
    result = graded(zygote, lesson, spoils)
    assert lost_points(result) == set(parts)
    record_property("count", "submissions graded by the isolated judge")


@pytest.mark.parametrize("exercise", registry.exercises(LESSON), ids=lambda e: e.id)
def test_in_lesson_04_each_mistake_costs_one_exercise(zygote, exercise, record_property):
    name, _, part = exercise.id.partition(".")
    target = exercise.id if part else name
    spoils = f"def spoilt(*args, **kwargs):\n    return None\n{target} = spoilt"
    if not part and isinstance(exercise.reference, type):
        spoils = f"{name}.append = lambda *args, **kwargs: None"
    assert lost_points(graded(zygote, LESSON, spoils)) == {exercise.grade_id}
    record_property("count", "submissions graded by the isolated judge")


@pytest.mark.parametrize(
    "part",
    [
        "raise NotImplementedError('write this')",
        "return 1 / 0",
        "while True: pass",
        "import os; os._exit(1)",
        "return kv_cache_bytes(config, 1)",
    ],
)
def test_whatever_the_part_does(zygote, part, record_property):
    token = f"def {TOKEN}(config, bytes_per_number=2):\n    {part}"
    times = grading.Times(check_s=3)
    found = grade(zygote, [token, CALLER], checks=(TOKEN, CACHE), times=times)
    token, cache = found.results
    assert (token.earned, cache.earned) == (0, cache.points)
    assert f"judged with the reference's `{TOKEN}`" in cache.text
    record_property("count", "submissions graded by the isolated judge")


def test_a_missing_part_is_ours_and_its_own_points_are_lost(zygote):
    cells = written(LESSON, CACHE)
    assert lost(zygote, cells, checks=(TOKEN, CACHE)) == {TOKEN: "missing"}


def test_the_first_mistake_is_told_and_what_it_was_judged_with(zygote):
    wrong = "def kv_bytes_per_token(config, b=2):\n    return 3"
    cache = CALLER.replace("n_sequences * ", "")
    result = grade(zygote, [wrong, cache], checks=(TOKEN, CACHE)).results[1]
    assert result.diagnosis.startswith("n_sequences is forgotten")
    assert "judged with the reference's `kv_bytes_per_token`, since yours fails" in result.text
    assert 'next: hint("kv_cache_bytes")' in result.text


def test_what_fits_a_wrong_part_of_ones_own_is_right_as_well(zygote):
    """A part in KiB, and a caller that knows: with ours it would be wrong."""
    wrong = "def kv_bytes_per_token(config, b=2):\n" + (
        "    return 2 * config.n_layers * config.n_kv_heads * config.d_head * b / 1024"
    )
    cache = (
        "def kv_cache_bytes(config, n_tokens, n_sequences=1, bytes_per_number=2):\n"
        "    per_token = kv_bytes_per_token(config, bytes_per_number) * 1024\n"
        "    return int(n_tokens * n_sequences * per_token)"
    )
    assert lost(zygote, [wrong, cache], checks=(TOKEN, CACHE)).keys() == {TOKEN}


STEALS = {  # the reference that is lent for kv_cache_bytes, as an answer to something else
    "kept": "import sys\nkept = []\ndef kv_cache_bytes(config, n_tokens, n_sequences=1, b=2):\n"
    "    kept.append(kv_bytes_per_token)\n    return 0\n"
    "def largest_batch(config, n_tokens, memory_bytes, bytes_per_number=2):\n"
    "    return memory_bytes // (n_tokens * kept[0](config, bytes_per_number))",
    "asked for itself": "def kv_cache_bytes(*args):\n"
    "    return kv_bytes_per_token.__wrapped__.__globals__['kv_cache_bytes'](*args)",
    "asked for its module": "def kv_cache_bytes(*args):\n"
    "    return getattr(kv_bytes_per_token, '__globals__')['kv_cache_bytes'](*args)",
    "called by a later one": "def kv_cache_bytes(config, n_tokens, n_sequences=1, b=2):\n"
    "    return largest_batch(config, n_tokens, 10 ** 15, b)",
}


@pytest.mark.parametrize("cell", STEALS.values(), ids=STEALS)
def test_what_is_lent_is_no_way_to_another_answer(zygote, cell, record_property):
    checks = (TOKEN, CACHE, "largest_batch")
    assert {TOKEN, CACHE} <= lost(zygote, [cell], checks=checks).keys()
    record_property("count", "submissions graded by the isolated judge")


def test_what_was_lent_is_taken_back(zygote):
    """The check of a question runs nothing of ours; the notebook's own name is its own again."""
    cells = [
        "def kv_bytes_per_token(config, b=2):\n    return 3",
        "def kv_cache_bytes(*args, **kwargs):\n    return kv_bytes_per_token(*args)",
    ]
    checks = [c for c in solved(LESSON)["cells"] if grading.is_check(c)][:2]
    notebook = {"cells": [*map(code, cells), *checks, code("print(kv_bytes_per_token(None))")]}
    result = grading.grade(notebook, LESSON, zygote)
    assert result.outputs[len(notebook["cells"]) - 1][0]["text"] == "3\n"


def test_a_builtin_that_a_cell_has_taken_is_named(zygote):
    cells = ["max = 3", CALLER.replace("return n_", "return max(1, n_").rstrip() + ")"]
    result = grade(zygote, cells, checks=(TOKEN, CACHE)).results[1]
    assert result.earned == 0
    assert "code cell 1 says `max = 3`" in result.text
