"""The drill and the mock interview in a notebook."""

from __future__ import annotations

import html
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from labkit.display import box, in_kernel, put
from labkit.interview.bank import load
from labkit.interview.begin import begin
from labkit.interview.command import REPORT, contents, write_report
from labkit.interview.history import History
from labkit.interview.panel import InterviewPanel
from labkit.interview.questions import Question
from labkit.measure.device import grading
from labkit.predictions import Prediction


def show(
    questions: Sequence[Question],
    predictions: Sequence[Prediction] = (),
    *,
    list: bool = False,
    report: bool | str | Path = False,
    confidence: bool = True,
    **choice: Any,
) -> None:
    """Show the panel; where there are no widgets, say how to run it. See `inferlab drill --help`.

    list: what there is to choose from; report: write the page on the history instead (True: under
    its usual name); choice: as in begin(). Raises ValueError for what cannot be asked.
    """
    if grading():
        return _say("Interview practice is skipped while grading.")
    if list:
        text = contents(load(questions))
        return put(f"<pre>{html.escape(text)}</pre>", text)
    if report:
        return _report(questions, predictions, Path(REPORT if report is True else report))
    if not in_kernel():
        return _say("Run this cell in JupyterLab; in a terminal it is `inferlab drill`.")
    from IPython.display import display

    made = panel(questions, History.open(), confidence=confidence, **choice)
    bundle = made.box._repr_mimebundle_()
    data = bundle[0] if isinstance(bundle, tuple) else bundle
    display({**data, "text/plain": "Interview practice: run this cell again to start."}, raw=True)
    return None


def panel(
    questions: Sequence[Question], history: History, *, confidence: bool = True, **choice: Any
) -> InterviewPanel:
    """The widgets, with a history to keep the answers in. confidence: ask how sure one is."""
    return InterviewPanel(begin(load(questions), history, **choice), confidence)


def _report(questions: Sequence[Question], predictions: Sequence[Prediction], path: Path) -> None:
    history = History.open()
    try:
        write_report(load(questions), history, predictions, path)
    finally:
        history.close()


def _say(text: str) -> None:
    put(box(text), text.replace("`", ""))
