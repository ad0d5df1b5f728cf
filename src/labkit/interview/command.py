"""What `inferlab drill` does: arguments in, a drill, a mock interview or a report out."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from labkit.interview.bank import Bank
    from labkit.interview.history import History
    from labkit.interview.questions import Question
    from labkit.predictions import Prediction

REPORT = "interview-report.html"
DESCRIPTION = (
    "Interview practice: numeric questions with fresh numbers, choices, open questions that you "
    "mark yourself, system design. What is due comes first. Your history stays on this computer."
)


def add_arguments(sub: argparse.ArgumentParser) -> None:
    sub.description = DESCRIPTION
    sub.add_argument(
        "--topic", action="append", default=[], help="such as kv-cache or 04; may be repeated"
    )
    sub.add_argument("--level", help="screen, engineer, senior or design")
    sub.add_argument("--weak", action="store_true", help="what you did worst in first")
    sub.add_argument("--n", type=int, default=10, metavar="N", help="questions (default: 10)")
    sub.add_argument("--minutes", type=float, metavar="M", help="end after so many minutes")
    sub.add_argument(
        "--mock", type=int, metavar="30|45", help="a mock interview of so many minutes"
    )
    sub.add_argument("--scenario", metavar="ID", help="the mock's system design: see --list")
    sub.add_argument("--seed", type=int, help="these questions and numbers, whatever is due")
    sub.add_argument(
        "--confidence",
        action=argparse.BooleanOptionalAction,
        help="ask how sure you are before each verdict (default: if you type, not from a pipe)",
    )
    sub.add_argument("--list", action="store_true", help="topics, levels and scenarios")
    sub.add_argument(
        "--report",
        nargs="?",
        const=Path(REPORT),
        type=Path,
        metavar="FILE",
        help=f"write a page on your history (default: {REPORT})",
    )


def run(
    args: argparse.Namespace,
    questions: Sequence[Question],
    predictions: Sequence[Prediction],
) -> int:
    """-> the exit status. Raises ValueError for what cannot be asked."""
    from labkit.interview.bank import load
    from labkit.interview.history import History

    bank = load(questions)
    if args.list:
        print(contents(bank))
        return 0
    history = History.open()
    try:
        if args.report is not None:
            return write_report(bank, history, predictions, args.report)
        return _drill(args, bank, history)
    finally:
        history.close()


def _drill(args: argparse.Namespace, bank: Bank, history: History) -> int:
    from labkit.interview import terminal
    from labkit.interview.begin import begin

    names = ("topic", "level", "weak", "n", "minutes", "mock", "scenario", "seed")
    begun = begin(bank, history, **{name: getattr(args, name) for name in names})
    console = terminal.Console(sys.stdin, sys.stdout)
    console.say(begun.words)
    asks = console.interactive if args.confidence is None else args.confidence
    return terminal.run(begun.session, console, begun.mock, asks)


def contents(bank: Bank) -> str:
    """What there is to choose from."""
    from labkit.interview.bank import topic_title
    from labkit.interview.spec import KINDS, LEVELS

    rows = [f"{'topic':<26}{''.join(f'{level:>10}' for level in LEVELS)}"]
    for topic in bank.topics:
        counts = [
            sum(i.topic == topic and i.level == level for i in bank.items.values())
            for level in LEVELS
        ]
        rows.append(f"{topic_title(topic):<26}{''.join(f'{n:>10}' for n in counts)}")
    kinds = ", ".join(f"{sum(i.kind == k for i in bank.items.values())} {k}" for k in KINDS)
    cases = [f"  {case.id:<18}{case.title}" for case in bank.scenarios.values()]
    return "\n".join(
        [*rows, "", f"{len(bank.items)} questions: {kinds}", "", "scenarios (--mock):", *cases]
    )


def write_report(
    bank: Bank,
    history: History,
    predictions: Sequence[Prediction],
    path: Path,
    now: Callable[[], datetime] | None = None,
) -> int:
    """Write the page, and say where it is."""
    from labkit.files import write_whole
    from labkit.interview.page import page
    from labkit.interview.session import utc_now
    from labkit.interview.summary import report
    from labkit.predictions import lodged_over_computed

    moment = (now or utc_now)()
    ratios = {p.id: lodged_over_computed(p) for p in predictions}
    known = {name: ratio for name, ratio in ratios.items() if ratio is not None}
    found = report(history.answers(), history.cards(), bank, moment, history.n_skipped(), known)
    write_whole(path, page(found, moment))
    print(f"written: {path}; open it in a browser, or print it on one page")
    return 0
