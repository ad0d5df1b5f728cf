"""The command `inferlab`: what each verb does, says and returns."""

import json
import os
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from sample_course import LESSON, MINE, OLD, Course, changed, code, notebook

from grader import cli
from grader.judging import registry
from grader.learner import headless, lab
from labkit import store

VERBS = ["lab", "progress", "reset", "check", "doctor", "fetch", "generate", "build"]


@pytest.fixture
def course(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Course:
    made = Course(tmp_path)
    monkeypatch.setattr(lab, "course_root", lambda: made.root)
    monkeypatch.setenv("INFERLAB_HOME", str(tmp_path / "home"))
    return made


def run(*words: str) -> int:
    return cli.main(words)


# ---- asking ------------------------------------------------------------------------------------


def test_help_names_every_verb(capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit) as stop:
        run("--help")
    assert stop.value.code == 0
    said = capsys.readouterr().out
    assert [verb for verb in VERBS if f"\n  {verb} " not in said and f"  {verb}" not in said] == []


@pytest.mark.parametrize("verb", VERBS)
def test_each_verb_explains_itself(verb: str, capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit) as stop:
        run(verb, "--help")
    assert stop.value.code == 0
    assert f"usage: inferlab {verb}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "VERB"),
        (["fly"], "invalid choice: 'fly'"),
        (["reset"], "LESSON"),
        (["check"], "LESSON"),
        (["generate"], "text"),
        (["lab", "--port", "many"], "--port"),
        (["progress", "--loud"], "--loud"),
    ],
)
def test_asked_wrongly_it_shows_usage(
    words: list[str], said: str, capsys: pytest.CaptureFixture
) -> None:
    with pytest.raises(SystemExit) as stop:
        run(*words)
    error = capsys.readouterr().err
    assert stop.value.code == 2
    assert "usage: inferlab" in error
    assert said in error


def test_help_is_quick_because_nothing_big_is_imported() -> None:
    big = ["torch", "nbformat", "nbclient", "nbgrader", "jupyterlab", "matplotlib", "transformers"]
    script = f"import sys, grader.cli; print([m for m in {big} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_the_installed_command_runs() -> None:
    command = Path(sys.executable).with_name("inferlab")
    done = subprocess.run([command, "--help"], capture_output=True, text=True, check=True)
    assert "usage: inferlab" in done.stdout


@pytest.mark.parametrize("verb", ["reset", "check", "lab"])
def test_an_unknown_lesson_lists_the_lessons(
    course: Course, verb: str, capsys: pytest.CaptureFixture
) -> None:
    assert run(verb, "99") == 2
    assert f'no lesson "99"; released lessons: {LESSON}' in capsys.readouterr().err


# ---- progress and reset ------------------------------------------------------------------------


def test_progress_shows_what_is_passed_and_what_is_next(
    course: Course, capsys: pytest.CaptureFixture
) -> None:
    first, second, *_ = registry.exercises(LESSON)
    store.record_attempt(first.id, "failed")
    store.record_attempt(first.id, "passed")
    assert run("progress") == 0
    said = capsys.readouterr().out
    row = next(line for line in said.splitlines() if LESSON in line)
    assert row.startswith(f"▸ {LESSON} ")
    assert f" 1/{len(registry.exercises(LESSON))} " in row
    assert f"Go on at lesson {LESSON[:2]}, exercise {second.id} " in said
    assert run("progress", LESSON) == 0
    (line,) = (x for x in capsys.readouterr().out.splitlines() if x.startswith(f"{first.id} "))
    assert "✓ passed" in line
    assert "2 tries" in line


def test_reset_keeps_a_copy_and_the_predictions_and_forgets_progress(
    course: Course, capsys: pytest.CaptureFixture
) -> None:
    course.sync()
    course.write(changed(OLD, kv_bytes=MINE))
    before = course.mine.read_bytes()
    exercise = registry.exercises(LESSON)[0].id
    store.record_attempt(exercise, "passed")
    store.record_attempt("exercise_of_another_lesson", "passed")
    store.record_prediction("guess", "4x")
    assert run("reset", "4") == 0
    (kept,) = course.copies()
    assert str(kept) in capsys.readouterr().out
    assert kept.read_bytes() == before
    assert course.mine.read_bytes() == lab.released_path(course.root, LESSON).read_bytes()
    assert store.status(exercise)["passed_at"] is None
    assert store.status("exercise_of_another_lesson")["passed_at"] is not None
    lodged = store.prediction("guess")
    assert lodged is not None
    assert lodged.value == "4x"


def test_reset_before_the_first_start_just_copies(course: Course) -> None:
    assert run("reset", "kv_cache") == 0
    assert course.mine.exists()
    assert course.copies() == []


# ---- check -------------------------------------------------------------------------------------

WRONG = "def kv_cache_bytes(config, n_tokens, bytes_per_number=2):\n    return 1.0"
SOLVED = "from inferlab.kv_cache import kv_cache_bytes"
STUB = "def kv_cache_bytes(*args, **kwargs):\n    raise NotImplementedError('write this')"


def lesson(answer: str, *more: dict) -> dict:
    return notebook(
        code("verbs", "from grader import check"),
        code("answer", answer),
        *more,
        code("check", 'check("kv_cache_bytes")'),
    )


def collected(course: Course, book: dict, seconds: int = 60) -> headless.Row:
    course.sync()
    course.write(book)
    (row,) = headless.collect(course.mine, ("kv_cache_bytes",), seconds)
    return row


@pytest.mark.parametrize(
    ("answer", "outcome"), [(SOLVED, "passed"), (WRONG, "failed"), (STUB, "not run")]
)
def test_check_runs_the_notebook_and_collects_verdicts(
    course: Course, answer: str, outcome: str
) -> None:
    assert collected(course, lesson(answer)).outcome == outcome


def test_check_of_the_own_copy_counts_as_progress_and_of_another_file_does_not(
    course: Course, capfd: pytest.CaptureFixture
) -> None:
    course.sync()
    course.write(lesson(SOLVED))
    other = course.mine.with_name("friend.ipynb")
    other.write_bytes(course.mine.read_bytes())
    run("check", "04", str(other))
    assert store.status("kv_cache_bytes")["passed_at"] is None
    run("check", "04")
    assert store.status("kv_cache_bytes")["passed_at"] is not None
    assert capfd.readouterr().err == ""


def test_check_goes_on_after_an_error_and_skips_measuring(course: Course) -> None:
    broken = code("broken", "1 / 0")
    guard = code("guard", "import os\nassert os.environ['INFERLAB_CHECK_ONLY'] == '1'")
    stop = code("stop", "if not os.environ.get('INFERLAB_CHECK_ONLY'): kv_cache_bytes = None")
    book = lesson(SOLVED, broken, guard, stop)
    assert collected(course, book).outcome == "passed"
    assert course.read() == book, "checking must not change the file"


def test_check_interrupts_a_cell_that_never_ends(course: Course) -> None:
    endless = code("endless", "while True: pass")
    assert collected(course, lesson(SOLVED, endless), seconds=3).outcome == "passed"


def test_check_says_when_the_kernel_died(course: Course) -> None:
    row = collected(course, lesson(SOLVED, code("die", "import os\nos._exit(1)")))
    assert row.outcome == "not run"
    assert "kernel died" in row.text


def test_check_says_when_the_check_cell_is_gone(course: Course) -> None:
    row = collected(course, notebook(code("answer", SOLVED)))
    assert row.outcome == "not run"
    assert "inferlab doctor" in row.text


def test_check_prints_a_table_and_returns_1_unless_all_passed(
    course: Course, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    course.sync()
    rows = [headless.Row("a", "passed", ""), headless.Row("b_long", "failed", "b_long ✗ failed")]
    for found, status in ((rows, 1), (rows[:1], 0)):
        monkeypatch.setattr(headless, "collect", lambda *_, found=found, **__: found)
        assert run("check", "04") == status
    said = capsys.readouterr().out
    assert "\na       passed\nb_long  failed\n\nb_long ✗ failed\n" in said
    assert "1 of 2 passed the visible checks; hidden ones run at grading" in said


def test_check_of_a_missing_file_says_what_to_do(
    course: Course, capsys: pytest.CaptureFixture
) -> None:
    assert run("check", "04") == 2
    assert "inferlab lab" in capsys.readouterr().err


# ---- lab, doctor, and the verbs that others wrote ----------------------------------------------


def test_lab_copies_the_lessons_and_becomes_jupyter(
    course: Course, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    started = []
    monkeypatch.setattr(os, "execvpe", lambda *args: started.append(args))
    monkeypatch.chdir(course.root)
    assert run("lab", "kv_cache", "--no-browser", "--port", "9123", "--", "--debug") == 0
    ((program, command, environment),) = started
    assert program == command[0] == sys.executable
    assert command[-1] == "--debug"
    assert f"--ServerApp.root_dir={course.work}" in command
    assert "--ServerApp.port=9123" in command
    assert "grader/learner/jupyter" in Path(environment["JUPYTER_CONFIG_PATH"]).as_posix()
    assert course.mine.exists()
    assert Path.cwd() == course.work


def test_lab_can_use_another_folder(
    course: Course, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "execvpe", lambda *_: None)
    monkeypatch.chdir(tmp_path)
    assert run("lab", "--work", "my own") == 0
    assert (tmp_path / "my own" / LESSON / f"{LESSON}.ipynb").exists()
    assert not course.work.exists()


def test_doctor_fix_needs_a_notebook(capsys: pytest.CaptureFixture) -> None:
    assert run("doctor", "--fix") == 2
    assert "inferlab doctor NOTEBOOK --fix" in capsys.readouterr().err


def test_doctor_looks_at_a_notebook(course: Course, capsys: pytest.CaptureFixture) -> None:
    course.sync()
    assert run("doctor", str(course.mine)) == 0
    assert "ready to submit" in capsys.readouterr().out
    assert run("doctor", str(course.mine.with_name("none.ipynb"))) == 2


@pytest.mark.parametrize(
    ("module", "name", "words", "expected"),
    [
        ("checkpoints.fetch", "run_fetch", ["fetch"], {"name": "smollm2", "force": False}),
        ("checkpoints.fetch", "run_fetch", ["fetch", "x", "--force"], {"name": "x", "force": True}),
        (
            "commands.generate",
            "run_generate",
            ["generate", "Hello", "--max-new-tokens", "5", "--raw"],
            {
                "text": "Hello",
                "model": "smollm2",
                "max_new_tokens": 5,
                "raw": True,
                "engine": "auto",
                "device": "cpu",
                "dtype": "float32",
            },
        ),
        (
            "commands.generate",
            "run_generate",
            ["generate", "x", "--engine", "torch", "--device", "auto", "--dtype", "int4"],
            {"engine": "torch", "device": "auto", "dtype": "int4"},
        ),
    ],
)
def test_fetch_and_generate_hand_their_arguments_over(
    monkeypatch: pytest.MonkeyPatch, module: str, name: str, words: list[str], expected: dict
) -> None:
    import importlib

    seen = []
    target = importlib.import_module(f"inferlab.{module}")
    monkeypatch.setattr(target, name, lambda args: seen.append(args) or 7)
    assert run(*words) == 7
    assert expected.items() <= vars(seen[0]).items()


def test_a_verdict_line_cut_off_in_the_middle_is_skipped(tmp_path: Path) -> None:
    good = {"exercise": "a", "outcome": "passed", "case": "", "text": "a ✓ passed"}
    said = tmp_path / "verdicts.jsonl"
    said.write_text(json.dumps(good) + '\n{"exercise": "a", "outc', encoding="utf-8")
    assert headless._latest(said) == {"a": {"outcome": "passed", "text": "a ✓ passed"}}


def test_the_notebook_format_of_the_sample_is_valid() -> None:
    nbformat.validate(OLD)
