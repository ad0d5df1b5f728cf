"""A real lesson as a student hands it in, for tests of everything that reads such files."""

import copy
import json
import zipfile
from collections.abc import Callable, Mapping
from functools import cache
from io import BytesIO
from pathlib import Path

from fake_students import Desk
from places import ROOT

from grader.classroom.collect import Handed, collect
from grader.classroom.intake import prepare
from grader.judging import registry
from grader.learner import lab
from grader.notebooks.merge import Cell, Notebook, grade_id, is_needed, text

LESSON = "04_kv_cache"
NAME = f"{LESSON}.ipynb"


@cache
def release() -> Notebook:
    return lab.read_notebook(lab.released_path(ROOT, LESSON))


@cache
def _perfect() -> str:
    solution = lab.read_notebook(ROOT / "solutions" / LESSON / f"{LESSON}.ipynb")
    desk = Desk(release(), solution, registry.exercises(LESSON))
    return json.dumps(desk.student("perfect").notebook)


def perfect() -> Notebook:
    """The lesson with every answer right, as plain JSON; a new one each time."""
    return json.loads(_perfect())


def bytes_of(book: Notebook, **options: object) -> bytes:
    return json.dumps(book, indent=1, ensure_ascii=False, **options).encode()


def with_change(change: Callable[[Notebook], object], book: Notebook | None = None) -> Notebook:
    """The perfect notebook after a change of it in place."""
    changed = copy.deepcopy(book) if book else perfect()
    change(changed)
    return changed


def cell(book: Notebook, name: str) -> Cell:
    """The first cell with that grade id."""
    return next(c for c in book["cells"] if grade_id(c) == name)


def place(book: Notebook, name: str) -> int:
    return book["cells"].index(cell(book, name))


def graded_cells(book: Notebook) -> list[tuple[str, str, dict, str]]:
    """Everything by which a graded cell earns points: id, type, metadata and a check's text."""
    return [
        (grade_id(c), c["cell_type"], c["metadata"], "" if is_answer(c) else text(c))
        for c in book["cells"]
        if is_needed(c)
    ]


def is_answer(one: Cell) -> bool:
    return bool(one["metadata"]["nbgrader"].get("solution"))


def answers(book: Notebook) -> dict[str, str]:
    """What stands in each answer cell."""
    return {grade_id(c): text(c) for c in book["cells"] if is_needed(c) and is_answer(c)}


def pasted(one: Cell, name: str, **changes) -> Cell:
    """What JupyterLab makes of copy and paste: another id, the same metadata."""
    return {**copy.deepcopy(one), "id": name, **changes}


def drop(*names: str):
    def change(book: Notebook) -> None:
        book["cells"] = [c for c in book["cells"] if grade_id(c) not in names]

    return change


def without_marks(book: Notebook) -> None:
    for one in book["cells"]:
        one["metadata"] = {}


# ---- a whole class, in a folder or an archive ----------------------------------------------------


def told(who: str) -> bytes:
    """A perfect notebook that says whose it is."""
    return bytes_of(with_change(lambda b: cell(b, "kv_explain").update(source=f"I am {who}.")))


def half(who: str) -> bytes:
    """As told, with one answer not written."""

    def change(book):
        cell(book, "kv_explain")["source"] = f"I am {who}."
        cell(book, "attend_one")["source"] = text(cell(release(), "attend_one"))

    return bytes_of(with_change(change))


def who(handed: Handed) -> str:
    """Whose notebook was found, by its own words."""
    prepared = prepare(handed.data, LESSON)
    return answers(prepared.notebook)["kv_explain"][5:-1]


def folder(where: Path, contents: Mapping[str, bytes]) -> Path:
    for path, data in contents.items():
        (where / path).parent.mkdir(parents=True, exist_ok=True)
        (where / path).write_bytes(data)
    return where


def subfolder(where: Path, contents: Mapping[str, bytes]) -> Path:
    return folder(where / "all submissions", contents)


def packed(contents: Mapping[str | zipfile.ZipInfo, bytes]) -> bytes:
    made = BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, data in contents.items():
            archive.writestr(path, data)
    return made.getvalue()


def archive(where: Path, contents: Mapping[str | zipfile.ZipInfo, bytes]) -> Path:
    path = where / "all submissions.zip"
    path.write_bytes(packed(contents))
    return path


def found(where: Path, *roster: str) -> dict[str, Handed]:
    """By student; each found notebook says that it is that student's."""
    handed = collect(where, LESSON, roster)
    assert len({h.student for h in handed}) == len(handed)
    return {h.student: h for h in handed}


def only(where: Path, student: str, *roster: str) -> Handed:
    """The entry of the one student there is."""
    handed = found(where, *roster)
    assert list(handed) == [student]
    return handed[student]
