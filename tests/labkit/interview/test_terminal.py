"""Interview practice in a terminal: by lines, in a pseudo-terminal, through a pipe."""

from __future__ import annotations

import fcntl
import io
import json
import os
import pty
import select
import signal
import subprocess
import sys
import termios
import time as real_time

import pytest
from interview_candidate import Time, whole_bank

from grader import cli
from labkit.interview import mock, terminal
from labkit.interview.history import History
from labkit.interview.session import Session
from labkit.interview.terminal import Console

BANK = whole_bank()


@pytest.fixture
def history() -> History:
    return History.in_memory()


# ---- the terminal, by lines --------------------------------------------------------------------


def _console(lines: str) -> Console:
    return Console(io.StringIO(lines), io.StringIO())


def _run(history: History, items: list, lines: str, time: Time | None = None, **more):
    minutes = more.pop("minutes", None)
    session = Session(BANK, history, items, 1, minutes, clocks=(time or Time()).clocks())
    console = _console(lines)
    status = terminal.run(session, console, **more)
    return status, console.sink.getvalue(), session


def test_a_scripted_drill_is_asked_answered_and_kept(history):
    items = [BANK.items[name] for name in ("iv-passes", "iv-flash-approx", "iv-scale")]
    status, said, _ = _run(history, items, "nonsense\n17\nskip\nbecause\n\n1 0.5 ½\n")
    assert status == 0
    assert "try again" in said
    assert "✗ not right" in said
    assert "variance" in said  # the rubric
    assert "2 of 3 by your own marks" in said
    assert "That was the last question." in said
    assert "1 skipped" in said
    kept = history.answers()
    assert [a.item for a in kept] == ["iv-passes", "iv-scale"]
    assert kept[1].given == "because\n1 0.5 ½"
    assert kept[1].score == pytest.approx(2 / 3)
    assert history.n_skipped() == 1
    assert "\033" not in said
    assert "**" not in said


def test_a_mock_interview_ends_with_the_marks_of_each_part(history):
    plan = mock.plan(BANK, history, 30, 1, "incident", due=False)
    session = Session(BANK, history, plan.items, 1, 30.0, "mock", Time().clocks())
    console = _console("skip\n" * 8 + "my view\n\n1 1 .5\nquit\n")
    assert terminal.run(session, console, plan) == 0
    said = console.sink.getvalue()
    assert "- Screen questions: 0.0 of 4, 0 answered" in said
    assert "- System design: a latency incident: 0.8 of 7, 1 answered" in said


def test_quit_and_the_end_of_the_input_keep_what_was_done(history):
    items = [BANK.items["iv-passes"], BANK.items["iv-little"]]
    for lines in ("17\nquit\n", "17\n"):
        status, said, _ = _run(history, items, lines)
        assert status == 0
        assert "Ended here." in said
    assert len(history.answers()) == 2


def test_an_empty_input_is_an_error_that_says_so(history, capsys):
    status, _, _ = _run(history, [BANK.items["iv-passes"]], "")
    assert status == 2
    assert "the input is empty and no terminal" in capsys.readouterr().err


def test_ctrl_c_ends_with_the_summary(history):
    class Interrupted(io.StringIO):
        def readline(self, *_):
            line = super().readline()
            if not line:
                raise KeyboardInterrupt
            return line

    session = Session(BANK, history, [BANK.items["iv-passes"]] * 1 + [BANK.items["iv-little"]], 1)
    console = Console(Interrupted("17\n"), io.StringIO())
    assert terminal.run(session, console) == 130
    assert "0 right of 1 answered" in console.sink.getvalue()
    assert len(history.answers()) == 1


def test_a_pause_takes_no_time(history):
    time = Time()

    class Slow(io.StringIO):
        def readline(self, *_):
            time.pass_by(20)
            return super().readline()

    session = Session(BANK, history, [BANK.items["iv-passes"]], 1, 1.0, clocks=time.clocks())
    console = Console(Slow("pause\n\n17\n"), io.StringIO())
    terminal.run(session, console)
    (answer,) = history.answers()  # within the minute: 20 s to the pause, 20 s after it
    assert answer.seconds == 40


def test_time_that_is_up_ends_it_and_a_late_answer_is_not_kept(history):
    time = Time()

    class Slow(io.StringIO):
        def readline(self, *_):
            time.pass_by(50)
            return super().readline()

    items = [BANK.items["iv-passes"], BANK.items["iv-little"], BANK.items["iv-pages"]]
    session = Session(BANK, history, items, 1, 1.0, clocks=time.clocks())
    console = Console(Slow("17\n18\n19\n"), io.StringIO())
    terminal.run(session, console)
    said = console.sink.getvalue()
    assert "[01:00 left]" in said
    assert "[00:10 left]" in said
    assert "Time is up." in said
    assert "1 answered too late to count" in said
    assert len(history.answers()) == 1


def test_confidence_is_asked_for_before_the_verdict(history):
    items = [BANK.items[n] for n in ("iv-passes", "iv-little", "iv-pages")]
    _, said, _ = _run(history, items, "1\n80%\n1\n\n1\nskip\n", confidence=True)
    assert said.index("How sure") < said.index("✗ not right")
    assert [a.confidence for a in history.answers()] == [0.8, None, None]


def test_a_sink_that_cannot_write_a_tick_gets_a_question_mark(history):
    raw = io.BytesIO()
    sink = io.TextIOWrapper(raw, encoding="ascii")
    session = Session(BANK, history, [BANK.items["iv-passes"]], 1)
    terminal.run(session, Console(io.StringIO("17\n"), sink))
    sink.flush()
    assert b"? not right" in raw.getvalue()


# ---- the command, in a pseudo-terminal ---------------------------------------------------------


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("INFERLAB_HOME", str(tmp_path / "my home"))
    return tmp_path / "my home"


def _so_that_ctrl_c_interrupts() -> None:
    """As in a terminal of one's own, also where these tests run in the background."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Terminal:
    """The command in a pseudo-terminal: waits for a text, types a line."""

    def __init__(self, *words: str, term: str = "xterm") -> None:
        self.master, slave = pty.openpty()
        command = [sys.executable, "-m", "grader.cli", "drill", *words]
        self.child = subprocess.Popen(
            command,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env={**os.environ, "TERM": term},
            start_new_session=True,
            preexec_fn=_so_that_ctrl_c_interrupts,
        )
        os.close(slave)
        self.text = ""

    def until(self, words: str, seconds: float = 60) -> str:
        end = real_time.monotonic() + seconds
        start = len(self.text)
        while words not in self.text[start:]:
            assert real_time.monotonic() < end, f"no {words!r} in {self.text[start:]!r}"
            if select.select([self.master], [], [], 0.5)[0]:
                try:
                    self.text += os.read(self.master, 65536).decode(errors="replace")
                except OSError:  # the other end is closed
                    assert words in self.text[start:], self.text[start:]
        return self.text[start:]

    def type(self, line: str) -> None:
        os.write(self.master, (line + "\n").encode())

    def end(self) -> int:
        try:
            return self.child.wait(60)
        finally:
            os.close(self.master)


def test_a_session_in_a_terminal(home):
    shell = Terminal("--topic", "kv-cache", "--level", "screen", "--n", "6", "--seed", "2")
    assert "\033[1m" in shell.until("> ")
    for line in ("?", "pause", "", "skip", "zebra"):
        shell.type(line)
        shell.until("> " if line != "pause" else "Enter goes on")
    shell.type("a")  # a person is asked how sure that is, without an option
    shell.until("How sure are you, in %? (Enter: no answer) ")
    shell.type("75")
    shell.until("> ")
    shell.type("quit")
    said = shell.until("report draws a page")
    assert "1 skipped" in said
    assert shell.end() == 0
    kept = History.open(home / "drill.sqlite3")
    assert kept.n_skipped() == 1
    assert [a.confidence for a in kept.answers()] == [0.75]
    kept.close()


def test_ctrl_c_in_a_dumb_terminal(home):
    shell = Terminal("--mock", "30", "--seed", "2", "--scenario", "rag", term="dumb")
    said = shell.until("[30:00 left] > ")
    assert "\033" not in said
    assert "Screen questions" in said
    os.write(shell.master, b"\x03")
    shell.until("report draws a page")
    assert shell.end() == 130


def test_kill_in_the_middle_keeps_what_was_answered(home):
    shell = Terminal("--topic", "01", "--n", "5", "--seed", "3", "--no-confidence")
    shell.until("> ")
    for _ in range(3):
        shell.type("a")  # a choice; or no number: asked again
        shell.until("> ")
        shell.type("1 B")
        shell.until("> ")
    shell.child.send_signal(signal.SIGKILL)
    assert shell.end() == -signal.SIGKILL
    kept = History.open(home / "drill.sqlite3")
    n = len(kept.answers())
    assert n >= 1
    kept.save(kept.answers()[0])
    assert len(kept.answers()) == n + 1
    kept.close()


def test_the_command_through_a_pipe(home, tmp_path):
    command = [sys.executable, "-m", "grader.cli", "drill", "--n", "3", "--seed", "1"]
    lines = "a\n1 B\nskip\nskip\nskip\n"
    done = subprocess.run(command, input=lines, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "of 1 answered" in done.stdout
    again = subprocess.run(command, input=lines, capture_output=True, text=True)
    assert again.stdout == done.stdout  # a seed gives the same questions, whatever was answered
    empty = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert empty.returncode == 2
    assert "the input is empty" in empty.stderr


@pytest.mark.parametrize(
    ("words", "trouble"),
    [
        (["--mock", "20"], "30 or 45"),
        (["--scenario", "rag"], "add --mock"),
        (["--mock", "30", "--topic", "04"], "leave out topic, level, weak and minutes"),
        (["--topic", "tea"], "there are: roofline"),
        (["--minutes", "0"], "more than 0"),
        (["--level", "guru"], "screen, engineer"),
    ],
)
def test_what_cannot_be_asked_is_said_and_ends_with_2(home, words, trouble, capsys):
    assert cli.main(["drill", *words]) == 2
    assert trouble in capsys.readouterr().err


def test_the_list_names_topics_and_scenarios(home, capsys):
    assert cli.main(["drill", "--list"]) == 0
    said = capsys.readouterr().out
    assert "04 KV cache" in said
    assert all(name in said for name in BANK.scenarios)


def test_a_sheet_for_nbgrader_has_written_answers_and_no_rubric_when_released(home, tmp_path):
    path = tmp_path / "open" / "open.ipynb"
    words = ["drill", "--sheet", str(path), "--level", "design", "--n", "4", "--seed", "5"]
    assert cli.main(words) == 0
    cells = json.loads(path.read_text())["cells"]
    graded = [c for c in cells if c["metadata"].get("nbgrader", {}).get("grade")]
    assert len(graded) == 4
    assert all(c["metadata"]["nbgrader"]["points"] == 3 for c in graded)
    assert all(c["metadata"]["nbgrader"]["solution"] for c in graded)
    assert all("Rubric" in "".join(c["source"]) for c in graded)
    released = _released(path)
    assert "Rubric" not in released
    assert "limit or a counter-example" in released
    before = path.read_text()
    assert cli.main(words) == 2  # never over a file that is there
    assert path.read_text() == before


def _released(path) -> str:
    """What nbgrader makes of it for students."""
    import nbformat
    from nbgrader.preprocessors import ClearSolutions

    notebook = nbformat.read(path, as_version=4)
    cleared, _ = ClearSolutions().preprocess(notebook, {})
    return "\n".join(cell.source for cell in cleared.cells)
