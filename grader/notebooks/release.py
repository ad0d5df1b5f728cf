"""Release: nbgrader makes notebooks/ from solutions/; a scan proves that no answer leaks."""

import json
import logging
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import nbformat
from nbformat import NotebookNode
from nbgrader.converters import GenerateAssignment
from nbgrader.coursedir import CourseDirectory
from traitlets.config import PyFileConfigLoader

from grader.notebooks.paste import BuildError

REGION = re.compile(
    r"^[^\n]*BEGIN (SOLUTION|HIDDEN TESTS)[^\n]*\n(.*?)^[^\n]*END \1[^\n]*$", re.S | re.M
)
MARKERS = ("BEGIN SOLUTION", "END SOLUTION", "HIDDEN TESTS", "hidden=True", "MARK SCHEME")
TELLING = 12  # characters besides spaces from which a line of a solution is worth looking for


def release_all(course: Path, solutions: Path, into: Path) -> None:
    """Release every lesson of `solutions` with the course's nbgrader_config.py.

    Works in a temporary course and moves each finished notebook into place at once. Raises
    BuildError when a released notebook holds what it should not.
    """
    lessons = sorted(path.stem for path in solutions.glob("*/*.ipynb"))
    with tempfile.TemporaryDirectory(prefix="inferlab-release-") as folder:
        workshop = Path(folder).resolve()
        shutil.copy(course / "nbgrader_config.py", workshop)
        shutil.copytree(solutions, workshop / "solutions")
        for lesson in lessons:
            released = generate(workshop, lesson)
            refuse_leaks(released, solutions / lesson / f"{lesson}.ipynb")
            move_into_place(released, into / lesson / f"{lesson}.ipynb")


def generate(course: Path, lesson: str) -> Path:
    """Run nbgrader's generate_assignment for one lesson, without a gradebook; the released file."""
    config = PyFileConfigLoader("nbgrader_config.py", path=str(course)).load_config()
    config.CourseDirectory.root = str(course)
    config.CourseDirectory.assignment_id = lesson
    config.SaveCells.enabled = False
    config.GenerateAssignment.no_database = True
    config.GenerateAssignment.force = True
    coursedir = CourseDirectory(config=config)
    step = GenerateAssignment(coursedir=coursedir, config=config)
    step.log.setLevel(logging.ERROR)
    step.start()
    return course / coursedir.release_directory / lesson / f"{lesson}.ipynb"


def move_into_place(released: Path, target: Path) -> None:
    """Replace `target` by `released`, which may lie on another file system, in one step."""
    target.parent.mkdir(parents=True, exist_ok=True)
    beside = target.with_name(f".{target.name}.new")
    shutil.copyfile(released, beside)
    os.replace(beside, target)


def refuse_leaks(released: Path, solution: Path) -> None:
    """Raise BuildError naming every leak of a released notebook file."""
    found = leaks(*(nbformat.read(path, as_version=4) for path in (released, solution)))
    if found:
        raise BuildError(f"{released.name} would leak: " + "; ".join(found))


def leaks(released: NotebookNode, solution: NotebookNode) -> list[str]:
    """What a released notebook tells that its solution notebook keeps back, one line each.

    Looks for markers, outputs, execution counts, files besides the text (attachments), lines of a
    solution, of a hidden test or of a sample answer that stand nowhere in the text every learner
    is given, and whole solutions that the given text repeats.
    """
    found = [line for cell in released.cells for line in cell_leaks(cell)]
    given = squeezed("\n".join(given_text(cell) for cell in solution.cells))
    shown = squeezed("\n".join(texts(released)))
    for secret in (secret for cell in solution.cells for secret in secrets(cell)):
        lines = [line for line in squeezed(secret).splitlines() if is_telling(line)]
        found += [
            f"line of a solution: {line!r}" for line in lines if line in shown and line not in given
        ]
        if lines and squeezed(secret) in given:
            found.append(f"solution given away elsewhere in the text: {lines[0]!r}")
    return found


def texts(node: Any) -> Iterator[str]:
    """Every string in a notebook: sources, metadata, outputs, attachments."""
    if isinstance(node, str):
        yield node
    elif isinstance(node, Mapping):
        yield from texts([*node.keys(), *node.values()])
    elif isinstance(node, list):
        for child in node:
            yield from texts(child)


def cell_leaks(cell: NotebookNode) -> Iterator[str]:
    """Leaks that show in one released cell alone."""
    place = f"cell {cell.id}"
    yield from (f"{place}: {marker!r}" for marker in MARKERS if marker in json.dumps(cell))
    if cell.get("outputs"):
        yield f"{place}: outputs"
    if cell.get("execution_count") is not None:
        yield f"{place}: execution count"
    if cell.get("attachments"):
        yield f"{place}: attachments"


def is_written_answer(cell: NotebookNode) -> bool:
    """Whether the whole cell is a sample answer."""
    return cell.cell_type == "markdown" and cell.metadata.get("nbgrader", {}).get("solution", False)


def secrets(cell: NotebookNode) -> list[str]:
    """Texts of a solution cell that a learner must not be given."""
    if is_written_answer(cell):
        return [cell.source]
    return [match.group(2) for match in REGION.finditer(cell.source)]


def given_text(cell: NotebookNode) -> str:
    """Text of a solution cell that every learner is given."""
    return "" if is_written_answer(cell) else REGION.sub("", cell.source)


def squeezed(text: str) -> str:
    """The text's lines without indentation, trailing spaces and empty lines."""
    return "\n".join(line.strip() for line in text.splitlines() if line.strip())


def is_telling(line: str) -> bool:
    """Whether a line says enough to be looked for: 12 characters, and no comment of markers."""
    return len("".join(line.split())) >= TELLING
