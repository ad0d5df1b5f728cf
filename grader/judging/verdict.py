"""What a judgement says: an outcome, and a short report that reads like a colleague."""

from __future__ import annotations

import html
from dataclasses import dataclass
from enum import StrEnum


class Outcome(StrEnum):
    PASSED = "passed"
    FAILED = "failed"
    NOT_RUN = "not run"


MARKS = {Outcome.PASSED: "✓", Outcome.FAILED: "✗", Outcome.NOT_RUN: "○"}
# Blue, orange, grey: told apart by colour-blind readers; the mark and the word say it as well.
COLOURS = {Outcome.PASSED: "#0072b2", Outcome.FAILED: "#b34700", Outcome.NOT_RUN: "#666666"}


@dataclass(frozen=True)
class Verdict:
    """The result of one check.

    case: the inputs it failed on; lines: expected and got; diagnosis: the likely mistake;
    next_step: what to do now; kind: of the first difference, as compare.Difference has it. Empty
    where there is nothing to say. is_certain: the mistake agrees with the answer on every case;
    borrowed: parts of the reference that it was judged with, in place of the learner's.
    """

    exercise: str
    outcome: Outcome
    case: str = ""
    lines: tuple[str, ...] = ()
    diagnosis: str = ""
    next_step: str = ""
    kind: str = ""
    is_certain: bool = True
    borrowed: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        return self.outcome is Outcome.PASSED

    @property
    def head(self) -> str:
        return f"{MARKS[self.outcome]} {self.outcome}"

    @property
    def cause(self) -> str:
        """The likely mistake, in words as sure as it is; "" where none is known."""
        if not self.diagnosis:
            return ""
        how = "likely cause" if self.is_certain else "on this case it looks like"
        return f"{how}: {self.diagnosis}"

    @property
    def mistake(self) -> str:
        """Its name alone where it is certain, else the words of `cause`."""
        return self.diagnosis if self.is_certain else self.cause

    def body(self) -> list[str]:
        lines = list(self.lines)
        if self.diagnosis:
            lines.append(self.cause)
        if self.next_step:
            lines.append(f"next: {self.next_step}")
        return lines

    def text(self) -> str:
        case = f"   case “{self.case}”" if self.case else ""
        return "\n".join([f"{self.exercise}   {self.head}{case}", *(f"  {x}" for x in self.body())])

    def to_html(self) -> str:
        colour = COLOURS[self.outcome]
        case = f" &nbsp; case “{html.escape(self.case)}”" if self.case else ""
        body = "\n".join(html.escape(line) for line in self.body())
        wrapped = "white-space:pre-wrap;word-break:normal;overflow-wrap:anywhere"
        pre = f'<pre style="margin:4px 0 0;{wrapped}">{body}</pre>' if body else ""
        return (
            f'<div class="inferlab-verdict" data-outcome="{self.outcome}" '
            f'style="border-left:4px solid {colour};padding:4px 10px;margin:2px 0">'
            f"<strong>{self.head}</strong> &nbsp; "
            f"<code>{html.escape(self.exercise)}</code>{case}{pre}</div>"
        )

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        return {"text/plain": self.text(), "text/html": self.to_html()}
