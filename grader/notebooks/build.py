"""Build the notebooks: lesson scripts and reference -> solutions/ -> notebooks/.

`python -m grader.notebooks.build` writes both folders; `--check` writes nothing, reports what differs from
the files that are there, and exits with status 1 if anything does.
"""

import argparse
import hashlib
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

import jupytext
import nbformat
from nbformat import NotebookNode
from nbformat.v4 import new_notebook

from inferlab.data import ROOT
from grader.notebooks.cells import ExerciseFacts, Facts, Lesson, built_cell, check_complete
from grader.notebooks.paste import BuildError, unbound_names
from labkit.files import write_whole

NOTEBOOK_METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"file_extension": ".py", "mimetype": "text/x-python", "name": "python"},
}


def registry_facts(lesson: str) -> Facts:
    """The facts of `lesson` from the course's registry."""
    from grader.judging import registry

    exercises = {
        e.id: ExerciseFacts(e.points, e.minutes, e.difficulty) for e in registry.exercises(lesson)
    }
    return Facts(exercises, {q.id: q.points for q in registry.questions(lesson)})


def give_ids(cells: Iterable[NotebookNode], slug: str) -> None:
    """Ids from content: a cell keeps its id when others change, a graded one even when it does."""
    seen: dict[str, int] = {}
    for cell in cells:
        key = cell.metadata.get("nbgrader", {}).get("grade_id") or cell.cell_type + cell.source
        seen[key] = seen.get(key, 0) + 1
        if "nbgrader" in cell.metadata and seen[key] > 1:
            raise BuildError(f"two cells share the grade id {key!r}")
        text = f"{slug}/{key}" if seen[key] == 1 else f"{slug}/{key}/{seen[key]}"
        cell.id = hashlib.sha256(text.encode()).hexdigest()[:8]


def make_room(cells: Iterable[NotebookNode]) -> None:
    """Questions that fold open are as tall as a finger or a shaky hand needs (WCAG 2.2, 2.5.8).

    The style stands in the cell itself: no style sheet of ours reaches every front end.
    """
    for cell in cells:
        if cell.cell_type == "markdown":
            cell.source = cell.source.replace("<summary>", '<summary style="padding:6px 0">')


def build_notebook(script: Path, facts: Facts, source_root: Path) -> NotebookNode:
    """The solution notebook of one lesson script.

    Raises BuildError, which names the script, the cell (counted from 1) and the reason.
    """
    lesson, cells = Lesson(script.stem, facts, source_root), []
    first_line = ""
    try:
        for cell in jupytext.read(script, fmt="py:percent").cells:
            lesson.number, first_line = lesson.number + 1, cell.source.partition("\n")[0]
            cells += built_cell(lesson, cell)
    except BuildError as error:
        message = f"{script.name}, cell {lesson.number} ({first_line[:60]}): {error}"
        raise BuildError(message) from error
    try:
        check_complete(lesson)
        give_ids(cells, script.stem)
        unbound_names(cells)
        make_room(cells)  # after the ids, which come from the words alone
    except BuildError as error:
        raise BuildError(f"{script.name}, {error}") from error
    notebook = new_notebook(cells=cells, metadata=NOTEBOOK_METADATA)
    nbformat.validate(notebook)
    return notebook


def build_solutions(
    course: Path, into: Path, facts_of: Callable[[str], Facts] = registry_facts
) -> list[str]:
    """Write into/<lesson>/<lesson>.ipynb for every script in src/lessons; one line on each."""
    report = []
    for script in sorted((course / "src" / "lessons").glob("*.py")):
        facts = facts_of(script.stem)
        notebook = build_notebook(script, facts, course / "src")
        path = into / script.stem / f"{script.stem}.ipynb"
        write_whole(path, nbformat.writes(notebook) + "\n")
        minutes = sum(exercise.minutes for exercise in facts.exercises.values())
        report.append(
            f"{script.stem}: {len(notebook.cells)} cells, {len(facts.exercises)} exercises "
            f"(about {minutes} minutes), {len(facts.questions)} questions, "
            f"{total_points(notebook)} points"
        )
    return report


def total_points(notebook: NotebookNode) -> int:
    """Sum of the points of a notebook's graded cells."""
    return sum(cell.metadata.get("nbgrader", {}).get("points", 0) for cell in notebook.cells)


def build(course: Path = ROOT, facts_of: Callable[[str], Facts] = registry_facts) -> list[str]:
    """Build solutions/ and notebooks/ of a course. Returns one line a lesson."""
    from grader.notebooks.release import release_all

    report = build_solutions(course, course / "solutions", facts_of)
    release_all(course, course / "solutions", course / "notebooks")
    return report


def differences(
    course: Path = ROOT, facts_of: Callable[[str], Facts] = registry_facts
) -> list[str]:
    """What a fresh build would change in solutions/ and notebooks/; writes nothing there."""
    from grader.notebooks.release import release_all

    with tempfile.TemporaryDirectory(prefix="inferlab-build-") as folder:
        fresh = Path(folder)
        build_solutions(course, fresh / "solutions", facts_of)
        release_all(course, fresh / "solutions", fresh / "notebooks")
        return [
            line
            for part in ("solutions", "notebooks")
            for line in folder_differences(course / part, fresh / part, part)
        ]


def folder_differences(here: Path, fresh: Path, label: str) -> list[str]:
    """One line for each notebook that is missing, left over or not byte for byte the same."""
    ours, theirs = (
        {path.relative_to(folder) for path in folder.glob("*/*.ipynb")} for folder in (here, fresh)
    )
    lines = [f"missing: {label}/{name}" for name in sorted(theirs - ours)]
    lines += [f"left over, no lesson builds it: {label}/{name}" for name in sorted(ours - theirs)]
    changed = (
        n for n in sorted(ours & theirs) if (here / n).read_bytes() != (fresh / n).read_bytes()
    )
    return lines + [f"differs: {label}/{name}" for name in changed]


def main(arguments: list[str] | None = None) -> int:
    """`python -m grader.notebooks.build [--check]`; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m grader.notebooks.build", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; report differences")
    checking = parser.parse_args(arguments).check
    try:
        lines = differences() if checking else build()
    except BuildError as error:
        print(f"build failed: {error}", file=sys.stderr)
        return 1
    print("\n".join(lines) if lines or not checking else "solutions/ and notebooks/ are up to date")
    if checking and lines:
        print("run `make build` and commit the result", file=sys.stderr)
    return int(checking and bool(lines))


if __name__ == "__main__":
    sys.exit(main())
