"""A drill or a mock interview in a terminal, or fed from a pipe: lines in, lines out."""

from __future__ import annotations

import os
import re
import shutil
import sys
import textwrap
from dataclasses import dataclass
from typing import TextIO

from labkit.drill import Asked, clock_text
from labkit.interview.bank import topic_title
from labkit.interview.mock import Mock
from labkit.interview.session import Session

HELP = (
    "At any prompt: **skip** (s), **pause** (p), **quit** (q), **help** (?). "
    "What you have answered is kept."
)


class Quit(Exception):
    """The reader has had enough, or the input has ended."""


@dataclass
class Console:
    """Reads answers and writes text, wrapped, bold only where the terminal can show it."""

    source: TextIO
    sink: TextIO
    n_lines: int = 0

    def __post_init__(self) -> None:
        if hasattr(self.sink, "reconfigure"):
            self.sink.reconfigure(errors="replace")  # a terminal without ½ and ✓
        self.interactive = self.source.isatty()
        self.bold = (
            self.sink.isatty()
            and os.environ.get("TERM", "dumb") != "dumb"
            and not os.environ.get("NO_COLOR")
        )

    def say(self, text: str = "") -> None:
        width = max(40, min(96, shutil.get_terminal_size((80, 24)).columns))
        for line in text.split("\n"):
            indent = "    " if line.startswith("- ") else ""
            wrapped = textwrap.wrap(line, width, subsequent_indent=indent) or [""]
            print("\n".join(self._styled(part) for part in wrapped), file=self.sink, flush=True)

    def _styled(self, line: str) -> str:
        on, off = ("\033[1m", "\033[0m") if self.bold else ("", "")
        line = re.sub(r"\*\*(.+?)\*\*", rf"{on}\1{off}", line.replace("`", ""))
        return re.sub(r"(?<![\w*])\*([^*\s][^*]*?)\*(?![\w*])", r"\1", line).replace("**", "")

    def ask(self, prompt: str) -> str:
        """One line. Raises Quit at the end of the input."""
        print(prompt, end="", file=self.sink, flush=True)
        line = self.source.readline()
        if not line:
            print(file=self.sink)
            raise Quit
        self.n_lines += 1
        if not self.interactive:
            print(line.rstrip("\n"), file=self.sink)  # a script's answers stand in its record
        return line.strip()


def run(
    session: Session,
    console: Console,
    mock: Mock | None = None,
    confidence: bool = False,
) -> int:
    """Ask until the questions, the time or the patience end.

    -> 0; 130 after Ctrl-C; 2 where the input, no terminal, holds not one line
    """
    status = 0
    console.say(HELP)
    try:
        while (asked := _next(session, mock)) is not None:
            title = mock.heading(asked.question.id) if mock else ""
            console.say(f"\n**== {title} ==**" if title else "")
            _one(session, console, asked, confidence)
        console.say("\nTime is up." if session.drill.over else "\nThat was the last question.")
    except Quit:
        console.say("\nEnded here.")
    except KeyboardInterrupt:
        console.say("\nStopped.")
        status = 130
    session.end()
    if not console.n_lines and not console.interactive:
        print("inferlab: no answers: the input is empty and no terminal", file=sys.stderr)
        return 2
    for line in [*session.drill.summary().lines(), *_marks(session, mock)]:
        console.say(line)
    if session.history.kept:
        console.say("Your history is kept: inferlab drill --report draws a page of it.")
    else:
        console.say("**This session could not be kept**: see the warning above.")
    return status


def _marks(session: Session, mock: Mock | None) -> list[str]:
    """Marks with halves and parts of open answers: in all, and for each part of an interview."""
    marks = {answer.item: answer.score for answer in session.saved}
    lines = [f"{sum(marks.values()):.1f} of {len(marks)} marks, parts and half marks counted"]
    for head, items in mock.parts if mock else ():
        got = [marks[item.id] for item in items if item.id in marks]
        lines.append(f"- {head}: {sum(got):.1f} of {len(items)}, {len(got)} answered")
    return lines if marks else []


def _next(session: Session, mock: Mock | None) -> Asked | None:
    if mock is not None:
        session.drill.leave_out(mock.too_late(session.drill.remaining()))
    return session.drill.next_question()


def _one(session: Session, console: Console, asked: Asked, confidence: bool) -> None:
    number = len(session.saved) + 1
    item = session.item(asked)
    console.say(f"**{number}. {topic_title(item.topic)}, {item.level}**")
    console.say(asked.text())
    if asked.question.rubric and not _talk_through(session, console, asked):
        return
    while session.drill.asked is asked:
        console.say(f"*Answer: {asked.form}.*")
        text = _reply(session, console)
        if text is None:
            return  # skipped: next_question() counts it
        if confidence and not asked.question.rubric:
            session.confidence = _how_sure(session, console)
        for line in session.drill.answer(text).lines():
            console.say(line)


def _talk_through(session: Session, console: Console, asked: Asked) -> bool:
    """Let the reader answer in words, then show what a full answer has. -> False if skipped"""
    console.say("*Answer aloud, or type; an empty line shows what a full answer has.*")
    while text := _reply(session, console, empty=True):
        session.notes.append(text)
    if text is None:
        return False
    for part, full in asked.question.rubric.items():
        console.say(f"- **{part}**: {full}")
    return True


def _reply(session: Session, console: Console, empty: bool = False) -> str | None:
    """What is typed at the prompt, with the commands obeyed; None for skip."""
    while True:
        left = session.drill.remaining()
        clock = "" if left == float("inf") else f"[{clock_text(left)} left] "
        said = console.ask(f"{clock}> ")
        match said.casefold():
            case "skip" | "s":
                return None
            case "quit" | "q" | "exit":
                raise Quit
            case "help" | "?":
                console.say(HELP)
            case "pause" | "p":
                session.clocks.pause()
                console.ask("paused; Enter goes on ")
                session.clocks.go_on()
            case "" if not empty:
                continue
            case _:
                return said


def _how_sure(session: Session, console: Console) -> float | None:
    """0 to 1; None where the reader leaves it out."""
    said = console.ask("How sure are you, in %? (Enter: no answer) ").rstrip("% ")
    try:
        share = float(said) / 100
    except ValueError:
        return None
    return share if 0 <= share <= 1 else None
