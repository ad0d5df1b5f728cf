"""The explorer in a notebook: controls, and under them one picture that they redraw in place.

The picture and the formulas are an ordinary output, updated by its display id: it stays in the
file, so a notebook that is opened without a kernel still shows it.
"""

from __future__ import annotations

import html
import uuid
from typing import Any

from labkit.display import box, in_kernel, inline_html, put
from labkit.explorer import controls as form
from labkit.explorer.pictures import alt_text
from labkit.explorer.setting import OWN, Setting, adapted
from labkit.explorer.sheets import board, board_img
from labkit.explorer.state import compute
from labkit.explorer.tasks import TASKS, Task
from labkit.explorer.words import KvBytes, comparison, notebook_table, status
from labkit.figures.show import show
from labkit.measure.device import grading
from labkit.predictions import confrontation_html
from labkit.predictions import form as prediction_form
from labkit.store import prediction as lodged

GONE = "The explorer is not drawn here: while a notebook is graded the course's functions are away."


def explore(lesson: str = "", kv_bytes: KvBytes | None = None) -> None:
    """Open the explorer where a lesson needs it: explore("04").

    lesson: "01", "04", "05", "07", "08", "09" or "12" chooses where the controls stand and which
    come first; "" gives all. kv_bytes: the learner's own kv_cache_bytes, to be compared. While a
    notebook is graded, and outside a kernel, there is only the picture.
    """
    start = form.focus(lesson).start
    if not in_kernel() or grading():
        try:
            figure, alt = board(compute(start))
        except NotImplementedError:  # its functions are what is graded
            put(box(GONE), GONE)
            return
        show(figure, alt=alt)
        return
    Explorer(lesson, kv_bytes).show()


class Explorer:
    """One explorer in a notebook: its controls, the sentence under them, and its picture."""

    def __init__(self, lesson: str = "", kv_bytes: KvBytes | None = None) -> None:
        import ipywidgets as w

        focus = form.focus(lesson)
        self.kv_bytes, self.setting = kv_bytes, focus.start
        self._handle = f"explorer-{uuid.uuid4().hex}"
        self._shown = self._quiet = False  # quiet: controls are set together, nothing is drawn
        self.controls = {c.name: _control(c) for c in form.controls()}
        self.said = w.HTML(layout=w.Layout(width="auto"))
        for control in self.controls.values():
            control.observe(self._turned, names="value")
        self.set(focus.start)
        self.widget = w.VBox(self._arranged(lesson, focus.first))
        self.widget.add_class("x-explorer")  # NOTEBOOK_STYLE: ipywidgets' own titles are too pale

    def _arranged(self, lesson: str, first: tuple[str, ...]) -> list[Any]:
        """The controls of the topic, the others folded away, the tasks, the sentence."""
        import ipywidgets as w

        look = w.Layout(display="flex", flex_flow="row wrap", width="100%")
        parts: list[Any] = [w.Box([self.controls[n] for n in first], layout=look)]
        rest = [control for name, control in self.controls.items() if name not in first]
        folds = [("more controls", w.Box(rest, layout=look))] if rest else []
        tasks = [task for task in TASKS if lesson in ("", *task.lessons)]
        folds += [(f"try it: {task.title}", self._task(task)) for task in tasks]
        if folds:
            folded = w.Accordion([content for _, content in folds], selected_index=None)
            for place, (title, _) in enumerate(folds):
                folded.set_title(place, title)
            parts.append(folded)
        return [*parts, self.said]

    # ---- turning -------------------------------------------------------------------------------

    def set(self, setting: Setting) -> None:
        """Put every control where the setting says, and draw once."""
        self._quiet = True
        self.controls["model"].value = setting.model
        self._offer_attention(setting.model)
        for name, control in self.controls.items():
            control.value = getattr(setting, name)
        self._quiet = False
        self._draw(setting)

    def _turned(self, change: dict[str, Any]) -> None:
        if self._quiet:
            return
        values = {name: control.value for name, control in self.controls.items()}
        setting, why = adapted(values)
        if change["owner"] is self.controls["model"]:
            self._quiet = True
            self._offer_attention(setting.model)
            self.controls["attention"].value = setting.attention
            self._quiet = False
        self._draw(setting, why)

    def _offer_attention(self, model: str) -> None:
        self.controls["attention"].options = form.attention_options(model)
        self.controls["attention"].value = OWN

    # ---- showing -------------------------------------------------------------------------------

    def output(self) -> dict[str, str]:
        """The picture and the formulas, as they are displayed."""
        state = compute(self.setting)
        parts = [board_img(state)]
        if self.kv_bytes is not None:
            parts.append(f"<p>{inline_html(comparison(state, self.kv_bytes))}</p>")
        return {
            "text/html": "".join([*parts, notebook_table(state)]),
            "text/plain": alt_text(state),
        }

    def show(self) -> None:
        """Display the controls, and under them the picture."""
        from IPython.display import display

        data = self.widget._repr_mimebundle_()
        text = "the controls need a notebook with widgets; the picture below needs none"
        bundle = data[0] if isinstance(data, tuple) else data
        display({**bundle, "text/plain": text}, raw=True)
        display(self.output(), raw=True, display_id=self._handle)
        self._shown = True

    def _draw(self, setting: Setting, why: str = "") -> None:
        from IPython.display import update_display

        self.setting = setting
        said = " ".join(filter(None, [status(compute(setting)), why]))
        self.said.value = f'<p role="status" style="line-height:1.4">{html.escape(said)}</p>'
        if self._shown:
            update_display(self.output(), display_id=self._handle, raw=True)

    # ---- tasks ---------------------------------------------------------------------------------

    def _task(self, task: Task) -> Any:
        """Story, where to begin, the predictions; what is so comes once they are lodged."""
        import ipywidgets as w

        seen = w.HTML(layout=w.Layout(width="auto"))
        moves = [_button(text, lambda _, to=to: self.set(to)) for text, to in task.moves]
        turning = w.Box(moves, layout=w.Layout(flex_flow="row wrap", display="none"))

        def confront(_: Any) -> None:
            missing = [one for one in task.predictions if lodged(one.id) is None]
            if missing:
                seen.value = '<p role="status">Lodge your prediction first; a guess is enough.</p>'
                return
            tables = "".join(confrontation_html(one) for one in task.predictions)
            seen.value = f'<div role="status">{tables}</div>'
            turning.layout.display = "flex"

        begin = _button("set the controls for it", lambda _: self.set(task.start))
        story = w.HTML(f"<p>{html.escape(task.story)}</p>", layout=w.Layout(width="auto"))
        asked = [prediction_form(one) for one in task.predictions]
        return w.VBox([story, begin, *asked, _button("see what is so", confront), seen, turning])


def _button(text: str, do: Any) -> Any:
    import ipywidgets as w

    button = w.Button(description=text, layout=w.Layout(width="max-content"))
    button.on_click(do)
    return button


def _control(control: form.Control) -> Any:
    """The ipywidget of one control; everything is reached with Tab and turned with arrow keys."""
    import ipywidgets as w

    look: dict[str, Any] = {
        "description": control.label,
        "style": {"description_width": "9.5em"},
        "layout": w.Layout(width="27em", max_width="98%"),
        "options": control.options,
    }
    if control.slides:
        return w.SelectionSlider(continuous_update=False, **look)
    return w.Dropdown(**look)
