"""The worked lessons, run once: outputs are kept by the content of what made them."""

from __future__ import annotations

import hashlib
import re
import sys
import tempfile
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

import nbformat
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell

from grader.judging import registry
from grader.learner.headless import run_cells
from inferlab.checkpoints.fetch import NotFetched, fetched_path
from labkit.files import write_whole
from tools import ROOT

CODE = ("src/inferlab", "src/labkit", "grader", "data")  # what an output depends on
CELL_SECONDS = 600
HIDDEN = re.compile(r"\n### BEGIN HIDDEN TESTS.*?### END HIDDEN TESTS", re.DOTALL)
Say = Callable[[str], None]


class LessonFailed(ValueError):
    """A worked lesson that does not run to its end without an error."""


def executed(lesson: str, kept_in: Path, say: Say = print) -> NotebookNode:
    """The solution notebook with its outputs; run where `kept_in` does not have it yet.

    A prediction is lodged for every question first, so that each confrontation is shown.
    Raises LessonFailed, which names the cell.
    """
    source = ROOT / "solutions" / lesson / f"{lesson}.ipynb"
    kept = kept_in / f"{lesson}.{key(source)}.ipynb"
    if not kept.exists():
        say(f"{lesson}: running it once")
        start = time.monotonic()
        notebook = run(nbformat.read(source, as_version=4), lesson)
        for old in kept_in.glob(f"{lesson}.*.ipynb"):
            old.unlink()
        write_whole(kept, nbformat.writes(notebook) + "\n")
        say(f"{lesson}: ran in {time.monotonic() - start:.0f} s; outputs kept")
    return nbformat.read(kept, as_version=4)


def key(source: Path) -> str:
    """Changes with the notebook, with the code that it calls, and with what this computer has."""
    here = f"{_code_digest()} {sys.version_info[:2]} {_has_real_model()}"
    return hashlib.sha256(source.read_bytes() + here.encode()).hexdigest()[:16]


@cache
def _code_digest() -> str:
    digest = hashlib.sha256(Path(__file__).read_bytes())
    for folder in CODE:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in {".py", ".json", ".safetensors"}:
                digest.update(str(path.relative_to(ROOT)).encode() + path.read_bytes())
    return digest.hexdigest()


def _has_real_model() -> bool:
    try:
        return fetched_path("smollm2").exists()
    except (NotFetched, ValueError):
        return False


def run(notebook: NotebookNode, lesson: str) -> NotebookNode:
    """Run all cells in a kernel of their own, away from this user's progress.

    Checks are run as a learner runs them, without the hidden cases.
    """
    for cell in notebook.cells:
        cell.source = HIDDEN.sub("", cell.source)
    first = new_code_cell(_lodging(lesson))
    notebook.cells.insert(0, first)
    with tempfile.TemporaryDirectory(prefix="inferlab-site-") as home:
        variables = {"INFERLAB_HOME": home, "MPLBACKEND": "agg"}
        trouble = run_cells(notebook, Path(home), variables, CELL_SECONDS)
    if trouble:
        raise LessonFailed(f"{lesson}: {trouble}")
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            if output.output_type == "error":
                line = cell.source.partition("\n")[0]
                raise LessonFailed(f"{lesson}, cell “{line}”: {output.ename}: {output.evalue}")
    notebook.cells.remove(first)
    return notebook


def _lodging(lesson: str) -> str:
    lines = [f"predict({p.id!r}, {p.example()!r})" for p in registry.predictions(lesson)]
    return "\n".join(["from grader import predict", *lines])
