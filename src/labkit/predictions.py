"""Predict first: a number or a choice lodged before the answer is seen, then confronted with it."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from labkit import store, units
from labkit.display import in_kernel, inline_html, put, table
from labkit.measure.device import grading

Answer = float | str


@dataclass(frozen=True)
class Prediction:
    """One thing to predict.

    question: one or two sentences; `code` and **bold** are understood.
    answer: gives the right answer: a float in the base unit of unit, or one of choices.
    because: the reason, in one or two sentences, shown when the prediction is confronted.
    Exactly one of unit ("x", "MB", "tok/s" …; "" for a plain number) and choices is given.
    """

    id: str
    question: str
    answer: Callable[[], Answer]
    because: str
    unit: str | None = None
    choices: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if (self.unit is None) == (not self.choices):
            raise ValueError(f"prediction {self.id!r} needs either a unit or choices")
        if self.unit is not None:
            units.unit(self.unit)
        elif len(set(self.choices)) != len(self.choices) or len(self.choices) < 2:
            raise ValueError(f"prediction {self.id!r} needs two or more different choices")

    @property
    def kind(self) -> str:
        """The kind of unit, "" for a plain number or a choice."""
        return units.unit(self.unit or "")[1]

    def example(self) -> str:
        """Something a learner might type."""
        if self.choices:
            return "a"
        if self.kind in units.COUNTS:
            return f"128 {self.unit}"
        return "2.5x" if self.kind == "x" else f"12.5 {self.unit}".strip()


@dataclass(frozen=True)
class Confrontation:
    """A prediction beside what is so: all as text, ready to show."""

    yours: str
    computed: str
    measured: str | None
    ratio: str
    because: str


def lodge(prediction: Prediction, value: str | float) -> store.Lodged | None:
    """Store a prediction. The first one stays the lodged one; later ones are kept as revisions.

    Raises ValueError that says how to write it.
    """
    return store.record_prediction(prediction.id, _read(prediction, value))


def _read(prediction: Prediction, value: str | float) -> str:
    """The value as it is stored: a choice's text, or the quantity as typed."""
    if prediction.choices:
        return _choice(prediction, value)
    quantity = units.parse(value)
    if quantity.kind == "" and prediction.kind in units.NO_UNIT_NEEDED:
        return f"{value} {prediction.unit}".strip() if prediction.kind != "x" else f"{value}x"
    if quantity.kind == "":
        raise ValueError(f'{value!r} has no unit: write it as "{value} {prediction.unit}"')
    if quantity.kind != prediction.kind:
        raise ValueError(
            f"{value!r} is measured in {quantity.kind}; this asks for "
            f'{prediction.kind or "a number"}, such as "{prediction.example()}"'
        )
    return str(value).strip()


def _choice(prediction: Prediction, value: str | float) -> str:
    said = " ".join(str(value).split()).casefold()
    for letter, choice in zip("abcdefghij", prediction.choices, strict=False):
        if said in {letter, f"{letter})", f"({letter})", f"{letter}.", choice.casefold()}:
            return choice
    offered = "; ".join(f"{a}) {c}" for a, c in zip("abcdefghij", prediction.choices, strict=False))
    raise ValueError(f"{value!r} is not one of the choices: {offered}")


# ---- the form ----------------------------------------------------------------------------------


def how(prediction: Prediction) -> str:
    """The form as plain text: the question, what is lodged, and what to type."""
    lines = [_plain(prediction.question)]
    lines += [
        f"  {letter}) {choice}"
        for letter, choice in zip("abcdefghij", prediction.choices, strict=False)
    ]
    return "\n".join([*lines, _plain(_state(prediction)), _typed(prediction)])


def _typed(prediction: Prediction) -> str:
    return f'to lodge it: predict("{prediction.id}", "{prediction.example()}")'


def show_form(prediction: Prediction) -> None:
    """Display the form; where widgets cannot work, the same as text, with what to type."""
    if not in_kernel() or grading():
        print(how(prediction))
        return
    from IPython.display import display

    bundle = form(prediction)._repr_mimebundle_()
    data = bundle[0] if isinstance(bundle, tuple) else bundle
    display({**data, "text/plain": how(prediction)}, raw=True)


def form(prediction: Prediction) -> Any:
    """An ipywidgets form: a field or choices, a button, and a line that says what is lodged.

    Everything is reached with Tab and set with the keyboard. Returns the widget.
    """
    import ipywidgets as w

    wide = w.Layout(width="auto")
    question = w.HTMLMath(value=f"<p>{inline_html(prediction.question)}</p>", layout=wide)
    entry = _entry(prediction)
    button = w.Button(
        description="lodge",
        button_style="primary",
        tooltip=f"Lodge your prediction: {_plain(prediction.question)}",
    )
    state = w.HTML(layout=wide)

    def say(trouble: str = "") -> None:
        text = f"<b>not lodged:</b> {html.escape(trouble)}" if trouble else _state_html(prediction)
        state.value = f'<span role="status" style="line-height:1.4">{text}</span>'

    def on_click(_: Any) -> None:
        if entry.value in (None, ""):
            return say("nothing is entered yet")
        try:
            lodge(prediction, entry.value)
        except ValueError as error:
            return say(str(error))
        return say()

    button.on_click(on_click)
    say()
    return w.VBox([question, w.HBox([entry, button], layout=w.Layout(flex_flow="row wrap")), state])


def _entry(prediction: Prediction) -> Any:
    import ipywidgets as w

    named = {"description_width": "initial"}
    if prediction.choices:
        return w.RadioButtons(
            options=prediction.choices,
            index=None,
            description="you predict:",
            style=named,
            layout=w.Layout(width="max-content"),
        )
    label = "you predict" + (f" (in {prediction.unit})" if prediction.unit else "") + ":"
    return w.Text(
        description=label,
        placeholder=f"such as {prediction.example()}",
        style=named,
        layout=w.Layout(width="24em"),
    )


def _state(prediction: Prediction) -> str:
    lodged = store.prediction(prediction.id)
    if lodged is None:
        return "nothing lodged yet: a guess is enough, and the first one counts"
    text = f"lodged: **{lodged.value}** on {_day(lodged.when)}"
    changed = [(value, when) for value, when in lodged.revisions if value != lodged.value]
    if changed:
        value, when = changed[-1]
        text += f" (later you said {value}, on {_day(when)}; the first one is confronted)"
    return text


def _state_html(prediction: Prediction) -> str:
    return inline_html(_state(prediction))


def _day(when: str) -> str:
    try:
        moment = datetime.fromisoformat(when)
        return f"{moment.day} {moment:%B %Y, %H:%M}"
    except ValueError:
        return when


# ---- the confrontation -------------------------------------------------------------------------


def confrontation(prediction: Prediction, measured: Answer | None = None) -> Confrontation:
    """The lodged prediction beside the right answer, and beside a measurement where there is one.

    measured: in base units, or text such as "4.1x". Never raises: what cannot be had is said.
    """
    lodged = store.prediction(prediction.id)
    right, computed = _computed(prediction)
    seen, shown = right, None
    if measured is not None:
        seen, shown = _measured(prediction, measured)
    yours = lodged.value if lodged else "none lodged"
    return Confrontation(
        yours, computed, shown, _ratio(prediction, lodged, seen), prediction.because
    )


def _computed(prediction: Prediction) -> tuple[Answer | None, str]:
    try:
        answer = prediction.answer()
        return answer, _written(prediction, answer)
    except Exception as error:  # the answer may call the learner's own functions
        return None, f"could not be computed here ({type(error).__name__}: {error})"


def _measured(prediction: Prediction, measured: Answer) -> tuple[Answer | None, str]:
    try:
        if isinstance(measured, str) and not prediction.choices:
            quantity = units.parse(measured)
            if quantity.kind != prediction.kind:
                return None, f"not usable ({measured} is no {prediction.kind or 'plain number'})"
            measured = quantity.value
        return measured, _written(prediction, measured)
    except (ValueError, TypeError) as error:
        return None, f"not usable ({error})"


def _written(prediction: Prediction, answer: Answer) -> str:
    if prediction.choices:
        return str(answer)
    if prediction.kind == "B":
        return units.format_bytes(float(answer))
    return units.format_quantity(float(answer), prediction.kind)


def _ratio(prediction: Prediction, lodged: store.Lodged | None, seen: Answer | None) -> str:
    if lodged is None or seen is None:
        return "–"
    if prediction.choices:
        return "as you said" if lodged.value == seen else "not as you said"
    ratio = _quotient(lodged, seen)
    return "–" if ratio is None else _in_words(ratio)


def _quotient(lodged: store.Lodged, seen: Answer) -> float | None:
    try:
        ratio = units.parse(lodged.value).value / float(seen)
    except (ValueError, ZeroDivisionError):
        return None
    return ratio if math.isfinite(ratio) else None


def lodged_over_computed(prediction: Prediction) -> float | None:
    """The lodged prediction over the right answer; of choices 1.0 for the right one, else 0.0.

    None where nothing was lodged or no answer can be had. Never raises.
    """
    lodged = store.prediction(prediction.id)
    return None if lodged is None else _over(prediction, lodged, _computed(prediction)[0])


def _over(prediction: Prediction, lodged: store.Lodged, seen: Answer | None) -> float | None:
    if seen is None:
        return None
    return float(lodged.value == seen) if prediction.choices else _quotient(lodged, seen)


@dataclass(frozen=True)
class Seen:
    """A lodged prediction that was confronted, and how far off it was.

    so: the measurement where there was one, else the computed answer. over: yours over that; of
    choices 1.0 for the right one, else 0.0; None where it cannot be said.
    """

    id: str
    yours: str
    so: str
    is_measured: bool
    is_choice: bool
    over: float | None
    in_words: str


def is_near(ratio: float) -> bool:
    """Within a quarter of what was so."""
    return 0.8 <= ratio <= 1.25


def seen(prediction: Prediction, lodged: store.Lodged) -> Seen:
    """How a confronted prediction came out, from what is kept of it. Never raises."""
    value: Answer | None
    if lodged.measured is not None:
        value = lodged.measured if prediction.choices else _number(lodged.measured)
        so = "not usable" if value is None else _written(prediction, value)
    else:
        value, so = _computed(prediction)
    words = _ratio(prediction, lodged, value)
    over = _over(prediction, lodged, value)
    kinds = (lodged.measured is not None, bool(prediction.choices))
    return Seen(prediction.id, lodged.value, so, *kinds, over, words)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _in_words(ratio: float) -> str:
    """0.25 -> "4x too small"."""
    if math.isclose(ratio, 1):
        return "1: exact"
    if 0.95 <= ratio <= 1.05:
        return f"{ratio:.2f}: close"
    if ratio <= 0:
        return f"{ratio:.3g}"
    word, times = ("large", ratio) if ratio > 1 else ("small", 1 / ratio)
    return f"{times:,.0f}x too {word}" if times >= 100 else f"{times:.3g}x too {word}"


def confront(prediction: Prediction, measured: Answer | None = None) -> None:
    """Show the prediction, what is so, their ratio and the reason, as a small table.

    With no prediction lodged it says how to lodge one, and keeps the answer to itself.
    """
    if store.prediction(prediction.id) is None:
        text = f"Lodge a prediction first, then run this cell again; {_typed(prediction)}"
        put(f"<p>{inline_html(text)}</p>", text)
        return
    columns = _columns(confrontation(prediction, measured))
    put(_table(prediction, columns), _table_text(prediction, columns))
    usable = None if measured is None else _measured(prediction, measured)[0]
    store.record_confronted(prediction.id, None if usable is None else str(usable))


def confrontation_html(prediction: Prediction) -> str:
    """The same table of a lodged prediction as HTML, for whoever shows it in a place of its own."""
    return _table(prediction, _columns(confrontation(prediction)))


def _columns(seen: Confrontation) -> dict[str, str]:
    columns = {"your prediction": seen.yours, "computed": seen.computed}
    if seen.measured is not None:
        columns["measured"] = seen.measured
    columns["yours / measured" if seen.measured else "yours / computed"] = seen.ratio
    return columns


def _table(prediction: Prediction, columns: dict[str, str]) -> str:
    shown = table(prediction.question, list(columns), [list(columns.values())])
    return f"{shown}<p><b>Why:</b> {inline_html(prediction.because)}</p>"


def _table_text(prediction: Prediction, columns: dict[str, str]) -> str:
    rows = [f"  {name + ':':<18} {text}" for name, text in columns.items()]
    why = f"  {'why:':<18} {_plain(prediction.because)}"
    return "\n".join([_plain(prediction.question), *rows, why])


def _plain(text: str) -> str:
    return re.sub(r"\*\*(.+?)\*\*", r"\1", text)
