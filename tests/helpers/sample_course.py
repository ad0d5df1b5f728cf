"""A small course with one lesson, for tests of everything that handles notebooks as files."""

import copy
import re
from pathlib import Path

import nbformat

from grader.learner import lab

LESSON = "04_kv_cache"


def code(name: str, source: str, **nbgrader: object) -> dict:
    cell = nbformat.v4.new_code_cell(source, id=name)
    if nbgrader:
        cell.metadata["nbgrader"] = {"grade_id": name, "schema_version": 3, **nbgrader}
    return cell


def words(name: str, source: str) -> dict:
    return nbformat.v4.new_markdown_cell(source, id=name)


def answer(name: str, source: str) -> dict:
    return code(name, source, solution=True, grade=False, locked=False)


def check_cell(name: str, source: str, points: int = 2) -> dict:
    return code(name, source, solution=False, grade=True, locked=True, points=points)


def notebook(*cells: dict) -> dict:
    return nbformat.v4.new_notebook(cells=copy.deepcopy(list(cells)))


STUB = 'def kv_bytes(n):\n    """Bytes."""\n    raise NotImplementedError("write this")'
MINE = 'def kv_bytes(n):\n    """Bytes."""\n    return 4 * n'
OLD = notebook(
    words("intro", "# Lesson"),
    answer("kv_bytes", STUB),
    check_cell("check_kv_bytes", 'check("kv_bytes")'),
    words("end", "The end"),
)


def ids(book: dict) -> list[str]:
    return [cell["id"] for cell in book["cells"]]


def source(book: dict, name: str) -> str:
    return next(cell["source"] for cell in book["cells"] if cell["id"] == name)


def changed(book: dict, **sources: str) -> dict:
    book = copy.deepcopy(book)
    for cell in book["cells"]:
        cell["source"] = sources.get(cell["id"], cell["source"])
    return book


def without(book: dict, *names: str) -> dict:
    return notebook(*(cell for cell in book["cells"] if cell["id"] not in names))


class Course:
    """A course in a folder with a space, with one released lesson."""

    def __init__(self, folder: Path) -> None:
        self.root, self.work = folder / "the course", folder / "the course" / "work"
        self.mine = self.work / LESSON / f"{LESSON}.ipynb"
        self.new = self.mine.with_name(f"{LESSON}.new.ipynb")
        self.said: list[str] = []
        self.release(OLD)

    def release(self, book: dict) -> None:
        path = lab.released_path(self.root, LESSON)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(lab.notebook_text(book), encoding="utf-8")

    def sync(self) -> str:
        self.said = []
        lab.sync(self.root, self.work, self.said.append)
        return "\n".join(self.said)

    def write(self, book: dict) -> None:
        self.mine.write_text(lab.notebook_text(book), encoding="utf-8")

    def read(self) -> dict:
        return lab.read_notebook(self.mine)

    def copies(self) -> list[Path]:
        return sorted(p for p in self.mine.parent.iterdir() if re.search(r"\.\d{4}-", p.name))
