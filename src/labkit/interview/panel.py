"""The same drill in a notebook: open questions get room to write, then marks to give."""

from __future__ import annotations

from typing import Any

from labkit.drill import Asked
from labkit.drill_panel import Panel
from labkit.interview.bank import topic_title
from labkit.interview.mock import Mock
from labkit.interview.session import Session

MARKS = ("0", "½", "1")


class InterviewPanel(Panel):
    """A Session as widgets."""

    def __init__(self, session: Session, mock: Mock | None = None) -> None:
        import ipywidgets as w

        self.session, self.mock = session, mock
        super().__init__(session.drill)
        self.notes = w.Textarea(
            placeholder="your answer in a few lines; it is kept with your marks",
            layout=w.Layout(width="46em", height="7em"),
        )
        self.reveal_button = w.Button(description="show a full answer", button_style="primary")
        self.pause_button = w.Button(description="pause")
        self.marks = w.VBox([])
        self.reveal_button.on_click(lambda _: self._reveal())
        self.pause_button.on_click(lambda _: self._pause())
        own = (self.notes, self.marks)
        self._parts += [*own, self.reveal_button, self.pause_button]
        at = self.box.children.index(self.field)
        self.box.children = (*self.box.children[:at], *own, *self.box.children[at:])
        self.buttons.children = (self.reveal_button, *self.buttons.children, self.pause_button)
        self._show_only(self.start_button)

    def _next(self) -> None:
        if self.mock is not None:
            self.drill.leave_out(self.mock.too_late(self.drill.remaining()))
        self.session.notes.clear()
        super()._next()
        asked = self.drill.asked
        if asked is not None and asked.question.rubric and not self.finished:
            self.notes.value = ""
            self._show_only(self.notes, self.reveal_button, self.next_button, self.end_button)
        if not self.finished:
            self.pause_button.layout.display = None

    def _text(self, asked: Asked) -> str:
        item = self.session.item(asked)
        title = self.mock.heading(item.id) if self.mock else ""
        form = "in your own words; then mark it yourself" if item.kind == "open" else asked.form
        head = f"**{title}**\n\n" if title else ""
        head += f"*{topic_title(item.topic)}, {item.level}*"
        return f"{head}\n\n{asked.text()}\n\n*Answer: {form}.*"

    def _entry(self, asked: Asked) -> Any:
        return self.marks if asked.question.rubric else super()._entry(asked)

    def _given(self, asked: Asked) -> str:
        if not asked.question.rubric:
            return super()._given(asked)
        self.session.notes[:] = self.notes.value.split("\n") if self.notes.value.strip() else []
        return " ".join(row.children[1].value or "–" for row in self.marks.children)

    def _reveal(self) -> None:
        """Show what a full answer has, with a mark to choose for each part."""
        import ipywidgets as w

        asked = self.drill.asked
        if asked is None or not asked.question.rubric:
            return
        self.marks.children = [
            w.HBox([_part(part, full), w.ToggleButtons(options=MARKS, value=None)])
            for part, full in asked.question.rubric.items()
        ]
        for row in self.marks.children:
            row.children[1].style.button_width = "3em"
        buttons = (self.answer_button, self.next_button, self.end_button, self.pause_button)
        self._show_only(self.notes, self.marks, *buttons)

    def _answer(self) -> None:
        asked = self.drill.asked
        super()._answer()
        if not self.finished:
            self.pause_button.layout.display = None
            if asked is not None and asked.question.rubric:
                self.notes.layout.display = None

    def _pause(self) -> None:
        """Stop the clock and hide the question; the same button goes on."""
        clocks = self.session.clocks
        if clocks.paused:
            clocks.go_on()
        else:
            clocks.pause()
        self.pause_button.description = "go on" if clocks.paused else "pause"
        self.question.layout.display = "none" if clocks.paused else None

    def finish(self) -> None:
        if not self.finished:
            self.session.end()
        super().finish()


def _part(name: str, full: str) -> Any:
    import ipywidgets as w

    from labkit.display import inline_html

    text = f'<div style="line-height:1.4"><b>{name}</b>: {inline_html(full)}</div>'
    return w.HTMLMath(text, layout=w.Layout(width="34em"))
