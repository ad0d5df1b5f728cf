"""The drill and the mock interview in a notebook."""

from __future__ import annotations

from collections.abc import Sequence
from secrets import randbelow

from labkit.device import grading
from labkit.display import box, in_kernel, put
from labkit.interview import mock as mocks
from labkit.interview.bank import load
from labkit.interview.history import History
from labkit.interview.panel import InterviewPanel
from labkit.interview.session import Session, plan
from labkit.questions import Question


def show(
    questions: Sequence[Question],
    *,
    topic: str | Sequence[str] = (),
    level: str | None = None,
    weak: bool = False,
    n: int = 10,
    minutes: float | None = None,
    mock: int | None = None,
    scenario: str | None = None,
    seed: int | None = None,
) -> None:
    """Show the panel; where there are no widgets, say how to run it. See `inferlab drill --help`.

    Raises ValueError for what cannot be asked.
    """
    if grading():
        return _say("Interview practice is skipped while grading.")
    if not in_kernel():
        return _say("Run this cell in JupyterLab; in a terminal it is `inferlab drill`.")
    from IPython.display import display

    bundle = panel(
        questions,
        History.open(),
        topic=topic,
        level=level,
        weak=weak,
        n=n,
        minutes=minutes,
        mock=mock,
        scenario=scenario,
        seed=seed,
    ).box._repr_mimebundle_()
    data = bundle[0] if isinstance(bundle, tuple) else bundle
    display({**data, "text/plain": "Interview practice: run this cell again to start."}, raw=True)
    return None


def panel(
    questions: Sequence[Question],
    history: History,
    *,
    topic: str | Sequence[str] = (),
    level: str | None = None,
    weak: bool = False,
    n: int = 10,
    minutes: float | None = None,
    mock: int | None = None,
    scenario: str | None = None,
    seed: int | None = None,
) -> InterviewPanel:
    """The widgets, with a history to keep the answers in."""
    bank, due = load(questions), seed is None
    seed = randbelow(10**6) if seed is None else seed
    if mock is not None:
        case = mocks.plan(bank, history, mock, seed, scenario, due)
        return InterviewPanel(Session(bank, history, case.items, seed, float(mock), "mock"), case)
    topics = [topic] if isinstance(topic, str) else topic
    items = plan(bank, history, topics=topics, level=level, weak=weak, n=n, seed=seed, due=due)
    return InterviewPanel(Session(bank, history, items, seed, minutes))


def _say(text: str) -> None:
    put(box(text), text.replace("`", ""))
