"""A timed drill as widgets: Panel shows it, drill() is what a notebook calls."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from labkit.display import box, in_kernel, inline_html, put
from labkit.interview.drill import Asked, Drill, clock_text
from labkit.interview.questions import Question
from labkit.measure.device import grading

LOOK_S = 0.05


class Panel:
    """A drill as widgets. box is what to display."""

    def __init__(self, drill: Drill) -> None:
        import ipywidgets as w

        self.drill, self.finished = drill, False
        self._ticker: asyncio.Task[None] | None = None
        self._arriving: asyncio.Task[None] | None = None  # a reference, so that it stays
        self.start_button = w.Button(description="start", button_style="primary")
        self.answer_button = w.Button(description="answer", button_style="primary")
        self.next_button = w.Button(description="skip")
        self.end_button = w.Button(description="end")
        self.clock = w.HTML()
        self.question = w.Output()
        # Sent when the field is left or Enter is pressed, so no half-typed value lags behind.
        self.field = w.Text(description="answer", continuous_update=False)
        self.letters = w.RadioButtons(description="answer", options=["a"])
        self.feedback = w.HTMLMath(value=status([]))
        row = [self.start_button, self.answer_button, self.next_button, self.end_button]
        self.buttons = w.HBox(row)
        body = [self.clock, self.question, self.field, self.letters, self.buttons, self.feedback]
        self.box = w.VBox(body)
        self._parts = [*row, self.field, self.letters]
        self.start_button.on_click(lambda _: self._start())
        self.answer_button.on_click(lambda _: self._answer())
        self.next_button.on_click(lambda _: self._next())
        self.end_button.on_click(lambda _: self.finish())
        self.field.on_msg(self._on_enter)
        self._show_only(self.start_button)
        self._tell_time()

    def _show_only(self, *shown: Any) -> None:
        for widget in self._parts:
            widget.layout.display = None if widget in shown else "none"

    def _start(self) -> None:
        if self.drill.asked is not None or self.finished:
            return
        self.drill.start()
        with contextlib.suppress(RuntimeError):  # no loop: the clock then moves at each click
            loop = asyncio.get_running_loop()
            self._ticker = loop.create_task(self._tick())
        self._next()

    async def _tick(self) -> None:
        while not self.finished and self.box.comm is not None:
            self._tell_time()
            if self.drill.over:
                self.finish()
            await asyncio.sleep(0.5)

    def _tell_time(self) -> None:
        seconds = self.drill.remaining()
        text = f"time left {clock_text(seconds)}" if math.isfinite(seconds) else "no time limit"
        value = f'<span role="timer" style="font-weight:bold">{text}</span>'
        if self.clock.value != value:
            self.clock.value = value

    def _next(self) -> None:
        asked = None if self.finished else self._ask()
        if asked is None:
            self.finish()
            return
        self._tell_time()
        self.feedback.value = status([])
        self.question.outputs = (markdown(self._text(asked)),)
        self.next_button.description = "skip"
        entry = self._entry(asked)
        self.field.value = ""
        self.letters.options = list(asked.choices) or ["a"]
        self.letters.value = None
        self._show_only(entry, self.answer_button, self.next_button, self.end_button)
        entry.focus()

    def _ask(self) -> Asked | None:
        return self.drill.next_question()

    def _text(self, asked: Asked) -> str:
        return f"{asked.text()}\n\n*Answer: {asked.form}.*"

    def _entry(self, asked: Asked) -> Any:
        """The widget that takes the answer."""
        return self.letters if asked.choices else self.field

    def _given(self, asked: Asked) -> str:
        return self._entry(asked).value or ""

    def _on_enter(self, field: Any, content: dict[str, Any], _: Any) -> None:
        """Enter in a field. The value itself arrives just after this message."""
        if content.get("event") != "submit":
            return
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            self._entered(field)
        else:
            self._arriving = loop.create_task(self._when_there(field, field.value))

    async def _when_there(self, field: Any, before: str) -> None:
        """Wait for the value: a moment where none comes, since it is as before; more for an answer,
        which a busy computer may deliver late."""
        for _ in range(30 if field is self.field else 12):
            await asyncio.sleep(LOOK_S)
            if field.value != before:
                break
        self._entered(field)

    def _entered(self, field: Any) -> None:
        self._answer()

    def _answer(self) -> None:
        asked = self.drill.asked
        if asked is None or self.finished:
            return
        entry = self._entry(asked)
        feedback = self.drill.answer(self._given(asked))
        self._tell_time()
        self.feedback.value = status(feedback.lines())
        if self.drill.over:
            self.finish()
        elif not feedback.again:
            self.next_button.description = "next"
            self._show_only(entry, self.next_button, self.end_button)
            self.next_button.focus()

    def finish(self) -> None:
        """Stop the clock and show the summary, below the last feedback."""
        if self.finished:
            return
        self.finished = True
        self._tell_time()
        if self._ticker is not None:
            self._ticker.cancel()
        self._show_only()
        summary = "".join(f"<li>{inline_html(line)}</li>" for line in self._closing_lines())
        over = "time is up" if self.drill.over else "ended"
        self.feedback.value += (
            f'<div role="status"><b>The drill: {over}</b><ul>{summary}</ul></div>'
        )

    def _closing_lines(self) -> list[str]:
        return self.drill.summary().lines()


def status(lines: list[str]) -> str:
    body = "<br>".join(inline_html(line) for line in lines)
    return f'<div role="status" style="line-height:1.6;margin-top:0.4em">{body}</div>'


def markdown(text: str) -> dict[str, Any]:
    data = {"text/markdown": text, "text/plain": text}
    return {"output_type": "display_data", "data": data, "metadata": {}}


def drill(questions: Sequence[Question], minutes: float = 5) -> None:
    """Show a timed drill over the questions; where there are no widgets, say how to run it.

    Raises ValueError for no questions, two of one id, or minutes that are not more than 0.
    """
    logic = Drill(questions, minutes, rng=np.random.default_rng())
    size = f"A drill of {minutes:g} minutes over {len(questions)} kinds of question"
    if grading():
        return _say(f"{size} is skipped while grading.")
    if not in_kernel():
        return _say(f"{size}: run this cell in JupyterLab, then click **start**.")
    from IPython.display import display

    bundle = Panel(logic).box._repr_mimebundle_()
    data = bundle[0] if isinstance(bundle, tuple) else bundle
    text = f"{size}: run this cell again to start it."
    display({**data, "text/plain": text}, raw=True)
    return None


def _say(text: str) -> None:
    put(box(text), text.replace("**", ""))
