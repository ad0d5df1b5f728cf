"""Run a learner's notebook without a front end and collect what its checks say."""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grader.judging.alone import RIGHT_WITH_OURS
from grader.learner.lab import read_notebook

CELL_SECONDS = 60  # a cell that takes longer is interrupted; measuring cells are skipped here


@dataclass(frozen=True)
class Row:
    """The latest verdict of an exercise or question. outcome: passed, failed or not run."""

    exercise: str
    outcome: str
    text: str  # what a person reads when it is not passed, or not with the learner's parts alone


def collect(
    notebook: Path,
    exercises: tuple[str, ...],
    seconds: int = CELL_SECONDS,
    keep_progress: bool = True,
) -> list[Row]:
    """Run the notebook in a fresh kernel and return one row for each id, in order.

    exercises: ids of exercises and of questions of the knowledge check. Cells that raise do not
    stop the run; the file itself is not changed. What no check cell judged is "not run".
    keep_progress: whether the verdicts count as the learner's progress; not so for a file of
    somebody else.
    Raises DamagedNotebook or FileNotFoundError for a file that cannot be read.
    """
    content = read_notebook(notebook)
    with tempfile.TemporaryDirectory() as folder:
        said = Path(folder) / "verdicts.jsonl"
        said.touch()
        ours = {"INFERLAB_CHECK_ONLY": "1", "INFERLAB_VERDICTS": str(said), "MPLBACKEND": "agg"}
        if not keep_progress:
            ours["INFERLAB_HOME"] = folder
        trouble = run_cells(content, notebook.parent, ours, seconds)
        verdicts = _latest(said)
    reason = trouble or "no check cell for it ran (deleted? try: inferlab doctor on this file)"
    missing = {"outcome": "not run", "text": reason}
    rows = [(name, verdicts.get(name, missing)) for name in exercises]
    return [Row(name, v["outcome"], v["text"]) for name, v in rows]


def run_cells(content: Any, folder: Path, variables: dict[str, str], seconds: int) -> str:
    """Run all cells in a fresh kernel; return why the run ended early, or "". Fills in outputs."""
    import subprocess

    from jupyter_client.kernelspec import NATIVE_KERNEL_NAME
    from nbclient import NotebookClient
    from nbclient.exceptions import CellTimeoutError, DeadKernelError

    client = NotebookClient(
        content,
        kernel_name=NATIVE_KERNEL_NAME,
        allow_errors=True,
        timeout=seconds,
        interrupt_on_timeout=True,
        resources={"metadata": {"path": str(folder.absolute())}},
    )
    try:
        # The kernel's own log is not for the learner; what cells print does not go there.
        client.execute(env={**os.environ, **variables}, stderr=subprocess.DEVNULL)
    except CellTimeoutError:
        return f"the notebook stopped at a cell that ran over {seconds} s and could not be stopped"
    except DeadKernelError:
        return "the notebook's kernel died before this check"
    return ""


def _latest(said: Path) -> dict[str, dict[str, str]]:
    """exercise -> its last verdict. A line that a dying kernel cut off is skipped."""
    found: dict[str, dict[str, str]] = {}
    for line in said.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            verdict = json.loads(line)
            found[verdict["exercise"]] = {k: str(verdict[k]) for k in ("outcome", "text")}
        except (ValueError, KeyError, TypeError):
            continue
    return found


def table(rows: list[Row]) -> str:
    """The rows as text: a table, then the reports of those that failed, then the sum."""
    width = max([len(row.exercise) for row in rows], default=0)
    lines = [f"{row.exercise:<{width}}  {row.outcome}" for row in rows]
    for row in rows:
        if row.outcome == "failed":
            lines += ["", row.text]
    lines += [f"{row.exercise}: {row.text}" for row in rows if _never_judged(row)]
    lines += [f"{row.exercise}: {note}" for row in rows for note in _passed_notes(row)]
    passed = sum(row.outcome == "passed" for row in rows)
    lines += ["", f"{passed} of {len(rows)} passed the visible checks; hidden ones run at grading"]
    return "\n".join(lines)


def _passed_notes(row: Row) -> list[str]:
    """Whose parts an answer that is right was judged with, where not all were the learner's."""
    said = [line.strip() for line in row.text.splitlines()] if row.outcome == "passed" else []
    return [line for line in said if line.startswith(RIGHT_WITH_OURS)]


def _never_judged(row: Row) -> bool:
    return row.outcome == "not run" and not row.text.startswith(row.exercise)
