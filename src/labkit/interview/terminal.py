"""A drill or a mock interview in a terminal, or fed from a pipe: lines in, lines out."""

from __future__ import annotations

import os
import re
import shutil
import sys
import textwrap
from dataclasses import dataclass
from typing import TextIO

from labkit.interview import confidence as sure
from labkit.interview.bank import topic_title
from labkit.interview.drill import Asked, clock_text
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
    parts = mock.parts if mock else ()
    for line in session.closing_lines(parts, "inferlab drill --report"):
        console.say(line)
    return status


def _next(session: Session, mock: Mock | None) -> Asked | None:
    return session.next_question(mock.too_late(session.drill.remaining()) if mock else ())


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
        ends = False
        if confidence and not asked.question.rubric and asked.can_read(text):
            ends = not _ask_how_sure(session, console)
        for line in session.drill.answer(text).lines():
            console.say(line)
        if ends:
            raise Quit


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


def _reply(
    session: Session, console: Console, empty: bool = False, prompt: str = "> "
) -> str | None:
    """What is typed at the prompt, with the commands obeyed; None for skip."""
    while True:
        left = session.drill.remaining()
        clock = "" if left == float("inf") else f"[{clock_text(left)} left] "
        said = console.ask(clock + prompt)
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


def _ask_how_sure(session: Session, console: Console) -> bool:
    """Ask how sure the answer is; the clock stands. -> False where the reader ends here."""
    session.clocks.pause()
    try:
        while True:
            said = _reply(
                session, console, empty=True, prompt=f"{sure.QUESTION} (Enter: no answer) "
            )
            try:
                session.confidence = sure.share(said or "")
                return True
            except ValueError as trouble:
                console.say(f"**… try again**: {trouble}")
    except Quit:
        return False  # the answer stands, and is judged first
    finally:
        session.clocks.go_on()
