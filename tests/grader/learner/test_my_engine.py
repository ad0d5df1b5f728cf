"""A notebook's own engine: what is said of its parts, and the command that serves it."""

import subprocess
import sys

import grader
from grader.cli import parser
from grader.learner import my_engine as module
from grader.learner.my_engine import my_engine
from sandbox.stand_ins import grader_module


def say(monkeypatch, text: str, status: int = 0) -> None:
    """`inferlab assemble` prints this."""
    done = subprocess.CompletedProcess([], status, stdout=text, stderr="no such lesson")
    monkeypatch.setattr(module.subprocess, "run", lambda *_, **__: done)


def test_whose_parts_in_short_and_the_command(capsys, monkeypatch):
    said = "01_x\n  one    yours\n  two    reference  no notebook\n\n02_y\n  three  reference\n"
    say(monkeypatch, f"{said}\n1 of 3 parts are yours\n")
    program, dash_m, name, *words = my_engine()
    assert (program, dash_m, name) == (sys.executable, "-m", "grader.cli")
    assert parser().parse_args([*words, "--pages", "64"]).mine
    shown = capsys.readouterr().out
    assert "01_x: 1 of 2 yours\n  one    yours\n" in shown
    assert "02_y: 0 of 1 yours\n  all 1 from the reference\n" in shown
    assert "three" not in shown


def test_where_no_part_is_yours_the_reference_serves(capsys, monkeypatch):
    say(monkeypatch, "02_y\n  three  reference\n\n0 of 1 parts are yours\n")
    assert my_engine() is None
    assert "0 of 1 parts are yours" in capsys.readouterr().out


def test_a_failure_is_said_and_the_reference_serves(capsys, monkeypatch):
    say(monkeypatch, "", status=2)
    assert my_engine() is None
    assert "inferlab assemble failed: no such lesson" in capsys.readouterr().out


def test_every_verb_of_a_notebook_is_there_while_it_is_graded():
    stand_in = grader_module()
    assert [name for name in grader.__all__ if not hasattr(stand_in, name)] == ["CheckFailed"]
    assert stand_in.my_engine() is None
