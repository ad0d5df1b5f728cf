"""The verbs of a notebook, called as a notebook calls them."""

import json

import pytest

import grader
from grader.judging import registry
from grader.learner.desk import CheckFailed, source_of
from labkit import store

RIGHT = """
def kv_bytes_per_token(config, bytes_per_number=2):
    return 2 * config.n_layers * config.n_kv_heads * config.d_head * bytes_per_number
"""
WRONG = RIGHT.replace("n_kv_heads", "n_heads")
STUB = """
def kv_bytes_per_token(config, bytes_per_number=2):
    raise NotImplementedError("write this")
"""


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("INFERLAB_HOME", str(tmp_path / "home"))
    for name in ("NBGRADER_EXECUTION", "INFERLAB_LAB_MODE", "INFERLAB_VERDICTS"):
        monkeypatch.delenv(name, raising=False)


def cell(source: str, **names):
    """Run source as a notebook cell would, with the verbs at hand."""
    namespace = {name: getattr(grader, name) for name in grader.__all__} | names
    exec(source, namespace)
    return namespace


def test_check_by_name_and_by_function_say_the_same(capsys):
    cell(RIGHT + 'check("kv_bytes_per_token")')
    by_name = capsys.readouterr().out
    cell(RIGHT + "check(kv_bytes_per_token)")
    assert capsys.readouterr().out == by_name
    assert "✓ passed" in by_name


def test_a_failing_check_shows_the_likely_cause_and_raises_nothing(capsys):
    cell(WRONG + 'check("kv_bytes_per_token")')
    out = capsys.readouterr().out
    assert "✗ failed" in out
    assert "expected 131,072   got 524,288" in out
    assert "n_heads in place of n_kv_heads" in out


@pytest.mark.parametrize("source", [WRONG, STUB, ""])
@pytest.mark.parametrize("how", ["autograde", "validate", "hidden"])
def test_whatever_is_not_passed_raises_where_it_is_graded(source, how, monkeypatch):
    if how == "hidden":
        call = 'check("kv_bytes_per_token", hidden=True)'
    else:
        monkeypatch.setenv("NBGRADER_EXECUTION", how)
        call = 'check("kv_bytes_per_token")'
    with pytest.raises(CheckFailed):
        cell(source + call)


def test_right_passes_where_it_is_graded(monkeypatch):
    monkeypatch.setenv("NBGRADER_EXECUTION", "autograde")
    cell(RIGHT + 'check("kv_bytes_per_token", hidden=True)')


def test_the_reference_itself_is_no_answer_where_it_is_graded(monkeypatch):
    source = "from inferlab.kv_cache import kv_bytes_per_token\n"
    cell(source + 'check("kv_bytes_per_token")')
    monkeypatch.setenv("NBGRADER_EXECUTION", "autograde")
    with pytest.raises(CheckFailed, match="the course's own"):
        cell(source + 'check("kv_bytes_per_token")')


def test_the_raised_error_shows_the_report_and_no_stack():
    with pytest.raises(CheckFailed) as caught:
        cell(WRONG + 'check("kv_bytes_per_token", hidden=True)')
    shown = "\n".join(caught.value._render_traceback_())
    assert "likely cause" in shown
    assert "Traceback" not in shown


def test_a_missing_definition_is_told_plainly(capsys):
    cell('check("kv_bytes_per_token")')
    assert "run the cell that defines it" in capsys.readouterr().out
    cell('kv_bytes_per_token = 3\ncheck("kv_bytes_per_token")')
    assert "should be a function" in capsys.readouterr().out


def test_a_class_is_checked_part_by_part(capsys):
    cell("from inferlab.kv_cache import KVCache\ncheck(KVCache)")
    out = capsys.readouterr().out
    for part in ("reserve", "append", "truncate"):
        assert f"KVCache.{part}   ✓ passed" in out


CALLER = """
def kv_cache_bytes(config, n_tokens, n_sequences=1, bytes_per_number=2):
    return n_sequences * n_tokens * kv_bytes_per_token(config, bytes_per_number)
"""


@pytest.mark.parametrize(
    ("part", "why"),
    [(WRONG, "yours fails its own check"), (STUB, "yours is not written yet")],
)
def test_a_right_answer_that_calls_a_wrong_part_is_right(part, why, capsys, monkeypatch):
    source = part + CALLER + 'check("kv_cache_bytes")'
    cell(source)
    monkeypatch.setenv("NBGRADER_EXECUTION", "autograde")
    cell(source)
    first, second = capsys.readouterr().out.split("kv_cache_bytes   ")[1:]
    assert first == second
    assert first.startswith("✓ passed")
    said = f"right; it was judged with the reference's `kv_bytes_per_token`, since {why}"
    assert said in first


def test_the_way_on_is_a_hint_to_what_is_wrong_itself(capsys):
    cell(WRONG + CALLER.replace("n_sequences * ", "") + 'check("kv_cache_bytes")')
    out = capsys.readouterr().out
    assert 'next: hint("kv_cache_bytes")' in out
    assert "likely cause: n_sequences is forgotten" in out


def test_a_cell_that_runs_a_right_answer_waits_for_its_parts_too(capsys):
    assert cell(WRONG + CALLER + 'x = ready("kv_cache_bytes")')["x"] is False
    said = "runs once these pass their checks: kv_bytes_per_token."
    assert said in capsys.readouterr().out
    assert cell(RIGHT + CALLER + 'x = ready("kv_cache_bytes")')["x"] is True


def test_a_builtin_that_a_cell_has_taken_is_named_with_the_cell(capsys):
    caller = CALLER.replace("return n_sequences", "return max(n_sequences, 1)")
    history = ["", "x = 1", "max = 3  # the longest", caller]
    cell("max = 3\n" + RIGHT + caller + 'check("kv_cache_bytes")', In=history)
    out = capsys.readouterr().out
    assert "max is no longer Python's own: cell [2] says `max = 3  # the longest`" in out
    cell(RIGHT + caller + 'check("kv_cache_bytes")', In=history)
    assert "no longer" not in capsys.readouterr().out


def test_an_unknown_exercise_lists_those_that_exist():
    with pytest.raises(ValueError, match=r"no exercise 'kv_bytes'.*attend_one"):
        cell('check("kv_bytes")')


def test_hints_come_in_steps_and_say_whether_more_follow(capsys):
    texts = registry.exercise("attend_one").hints
    for i, more in enumerate(("gives the next", "gives the next", "that was the last")):
        cell('hint("attend_one")')
        out = capsys.readouterr().out
        assert f"Hint {i + 1} of 3" in out
        assert texts[i] in out
        assert more in out
    cell('hint("attend_one", 2)')
    assert texts[1] in capsys.readouterr().out


def test_a_solution_needs_a_try_or_force_and_lab_mode_switches_it_off(capsys, monkeypatch):
    cell('solution("kv_bytes_per_token")')
    assert "Try it first" in capsys.readouterr().out
    cell(WRONG + 'check("kv_bytes_per_token")\nsolution("kv_bytes_per_token")')
    assert "2 * config.n_layers * config.n_kv_heads" in capsys.readouterr().out
    cell('solution("attend_one", force=True)')
    assert "np.einsum" in capsys.readouterr().out
    monkeypatch.setenv("INFERLAB_LAB_MODE", "1")
    cell('solution("attend_one", force=True)')
    assert "switched off" in capsys.readouterr().out


def test_the_solution_of_a_part_is_that_method():
    assert source_of(registry.exercise("KVCache.truncate")).startswith("def truncate(self")


def test_predictions_are_lodged_and_confronted(capsys):
    cell('predict("kv_mha_ratio", "8x")\nconfront("kv_mha_ratio")')
    out = capsys.readouterr().out
    assert "8x" in out
    assert "2x too large" in out
    assert store.prediction("kv_mha_ratio").value == "8x"


def test_answers_are_judged_with_the_learners_own_numbers(capsys, monkeypatch):
    source = 'answers = Answers("Ada")\nanswers["kv_q_rows"] = answers.worked("kv_q_rows")\n'
    cell(source + 'answers.check("kv_q_rows")')
    assert "✓ passed" in capsys.readouterr().out
    monkeypatch.setenv("NBGRADER_EXECUTION", "autograde")
    with pytest.raises(ValueError, match="switched off"):
        cell(source)
    with pytest.raises(CheckFailed, match="not answered yet"):
        cell('answers = Answers("Ada")\nanswers.check("kv_q_rows")')


def test_ready_says_what_a_cell_waits_for(capsys):
    assert cell(RIGHT + 'x = ready("kv_bytes_per_token")')["x"] is True
    assert capsys.readouterr().out == ""
    assert cell(STUB + 'x = ready("kv_bytes_per_token")')["x"] is False
    assert "runs once these pass their checks: kv_bytes_per_token" in capsys.readouterr().out


def test_each_verdict_is_noted_and_written_for_inferlab_check(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("INFERLAB_VERDICTS", str(tmp_path / "lines"))
    cell(WRONG + 'check("kv_bytes_per_token")')
    cell(RIGHT + 'check("kv_bytes_per_token")')
    lines = [json.loads(line) for line in (tmp_path / "lines").read_text().splitlines()]
    assert [line["outcome"] for line in lines] == ["failed", "passed"]
    assert store.attempts("kv_bytes_per_token") == 2
    capsys.readouterr()
    cell('progress("04_kv_cache")')
    out = capsys.readouterr().out
    assert "1 of 12 exercises, 1 of 34 points" in out
    assert "next: " in out


def test_whatever_a_right_answer_is_kept_in_check_finds_it(capsys):
    source = RIGHT + "from functools import partial\n"
    for bind in (
        "kv_bytes_per_token = partial(kv_bytes_per_token)",
        "right = kv_bytes_per_token\nkv_bytes_per_token = lambda *a, **k: right(*a, **k)",
    ):
        cell(f"{source}{bind}\ncheck(kv_bytes_per_token)")
        assert "kv_bytes_per_token   ✓ passed" in capsys.readouterr().out
    with pytest.raises(ValueError, match="needs the name of an exercise"):
        cell("check(3)")
    with pytest.raises(ValueError, match="is a question"):
        cell('hint("kv_q_rows")')


def test_a_changed_parameter_name_is_told(capsys):
    cell(
        RIGHT.replace("(config, ", "(cfg, ").replace("config.", "cfg.")
        + 'check("kv_bytes_per_token")'
    )
    assert "the parameters' names are part of the statement" in capsys.readouterr().out
