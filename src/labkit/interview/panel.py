"""The same drill in a notebook: open questions get room to write, then marks to give."""

from __future__ import annotations

from typing import Any

from labkit.interview import confidence
from labkit.interview.bank import topic_title
from labkit.interview.begin import Begun
from labkit.interview.drill import Asked
from labkit.interview.drill_panel import Panel, markdown, status

MARKS = ("0", "½", "1")
KEYS = (
    "Enter goes from your answer to how sure you are, and from there to the verdict. How sure may "
    "stay empty."
)


class InterviewPanel(Panel):
    """A Session as widgets. asks_sure: ask how sure each answer is, before its verdict."""

    def __init__(self, begun: Begun, asks_sure: bool = True) -> None:
        import ipywidgets as w

        self.session, self.mock = begun.session, begun.mock
        super().__init__(self.session.drill)
        self.asks_sure = asks_sure
        self.notes = w.Textarea(
            placeholder="your answer in a few lines; it is kept with your marks",
            layout=w.Layout(width="46em", height="7em"),
        )
        self.sure = w.Text(
            description=confidence.QUESTION,
            placeholder="may stay empty",
            continuous_update=False,
        )
        for entry in (self.field, self.sure):  # one below the other
            entry.style.description_width = "14em"
            entry.layout.width = "28em"
        self.reveal_button = w.Button(description="show a full answer", button_style="primary")
        self.pause_button = w.Button(description="pause")
        self.marks = w.VBox([])
        self._before_pause: list[Any] = []
        self.sure.on_msg(self._on_enter)
        self.reveal_button.on_click(lambda _: self._reveal())
        self.pause_button.on_click(lambda _: self._pause())
        at = self.box.children.index(self.buttons)
        own = (self.notes, self.marks, self.sure)
        self._parts += [*own, self.reveal_button, self.pause_button]
        self.box.children = (*self.box.children[:at], *own, *self.box.children[at:])
        self.buttons.children = (self.reveal_button, *self.buttons.children, self.pause_button)
        self.question.outputs = (markdown(f"{begun.words} {KEYS if asks_sure else ''}".strip()),)
        self._show_only(self.start_button)

    def _ask(self) -> Asked | None:
        return self.session.next_question(
            self.mock.too_late(self.drill.remaining()) if self.mock else ()
        )

    def _next(self) -> None:
        super()._next()
        asked = self.drill.asked
        if asked is None or self.finished:
            return
        self.sure.value = ""
        if asked.question.rubric:
            self.notes.value = ""
            self._show_only(self.notes, self.reveal_button, self.next_button, self.end_button)
        self._show_too(self.pause_button, *[self.sure] * self._wants_sure(asked))

    def _show_too(self, *shown: Any) -> None:
        for widget in shown:
            widget.layout.display = None

    def _wants_sure(self, asked: Asked | None) -> bool:
        """Whether it is asked how sure this answer is: not where the reader marks it."""
        return self.asks_sure and asked is not None and not asked.question.rubric

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

    def _entered(self, field: Any) -> None:
        """Enter after an answer leads to how sure it is; after that, to the verdict."""
        asked = self.drill.asked
        unsaid = self._wants_sure(asked) and not self.sure.value.strip()
        if asked is not None and field is self.field and unsaid and asked.can_read(field.value):
            self.sure.focus()
        else:
            self._answer()

    def _answer(self) -> None:
        asked = self.drill.asked
        wants_sure = self._wants_sure(asked) and not self.finished
        if wants_sure and not self._take_confidence():
            return
        super()._answer()
        if not self.finished:
            self._show_too(self.pause_button, *[self.sure] * wants_sure)
            if asked is not None and asked.question.rubric:
                self.notes.layout.display = None

    def _take_confidence(self) -> bool:
        """Note how sure the reader says to be; False, and said so, where it cannot be read."""
        try:
            self.session.confidence = confidence.share(self.sure.value)
        except ValueError as trouble:
            self.feedback.value = status([f"**… try again**: {trouble}"])
            self.sure.focus()
            return False
        return True

    def _pause(self) -> None:
        """Stop the clock and hide the question; the same button goes on."""
        clocks = self.session.clocks
        if clocks.paused:
            clocks.go_on()
            self._show_only(*self._before_pause)
        else:
            clocks.pause()
            self._before_pause = [p for p in self._parts if p.layout.display != "none"]
            self._show_only(self.pause_button)
        self.pause_button.description = "go on" if clocks.paused else "pause"
        self.question.layout.display = "none" if clocks.paused else None

    def finish(self) -> None:
        if not self.finished:
            self.session.end()
        super().finish()

    def _closing_lines(self) -> list[str]:
        parts = self.mock.parts if self.mock else ()
        lines = self.session.closing_lines(parts, "interview(report=True)")
        return [line.removeprefix("- ") for line in lines]  # they become a list


def _part(name: str, full: str) -> Any:
    import ipywidgets as w

    from labkit.display import inline_html

    text = f'<div style="line-height:1.4"><b>{name}</b>: {inline_html(full)}</div>'
    return w.HTMLMath(text, layout=w.Layout(width="34em"))
