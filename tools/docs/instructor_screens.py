"""Pictures for docs/instructor.md, taken from a real run with the fake students of the tests.

python -m tools.docs.instructor_screens        writes docs/images/*.png (needs Chromium; a minute)
"""

from __future__ import annotations

import io
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tools import HELPERS, ROOT

sys.path.insert(0, str(HELPERS))

import nbformat
from fake_students import Desk, solution_cells
from lab_page import launched
from PIL import Image
from playwright.sync_api import Page
from test_nbgrader_loop import LESSON, Course, jupyter_server, make_course, succeed

from grader.judging import registry

IMAGES = ROOT / "docs" / "images"
TOKEN = "for-the-pictures"
MOST_BYTES = 150_000
OWN_WORDS = r"""
The past does not change: a mask lets no token look ahead, so its keys and values are final once
made. Keep them, and a step makes **one** row of each, not all. The price grows with every token:

$$2 \cdot n_\text{layers} \cdot n_\text{kv\_heads} \cdot d_\text{head} \cdot 2\ \text{bytes}$$

so an 8B model with $n_\text{kv\_heads} = 8$ pays 131,072 bytes a token.
"""
COMMENT = "The bytes are right. Say also what a sequence of $S$ tokens costs."
PEOPLE = {
    "perfect": ("ada", "Ada", "Lovelace"),
    "half": ("emmy", "Emmy", "Noether"),
    "plausible": ("alan", "Alan", "Turing"),
    "endless": ("grace", "Grace", "Hopper"),
    "syntax": ("kurt", "Kurt", "Gödel"),
    "blank": ("mary", "Mary", "Somerville"),
}


def main() -> None:
    """Make a class, grade it, and take every picture."""
    IMAGES.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="inferlab-screens-") as folder:
        course = graded_class(Path(folder))
        with jupyter_server(course, TOKEN) as address, browser_page() as page:
            page.goto(f"{address}/formgrader/manage_assignments?token={TOKEN}")
            take_all(page, course, f"{address}/formgrader")


def graded_class(folder: Path) -> Course:
    """Six students have submitted lesson 04; all are graded, nobody has read them yet."""
    course = make_course(folder)
    succeed(course.api.generate_assignment(LESSON))
    succeed(course.api.release_assignment(LESSON))
    name = f"{LESSON}.ipynb"
    solution = nbformat.read(course.root / "solutions" / LESSON / name, as_version=4)
    stubs = nbformat.read(course.root / "notebooks" / LESSON / name, as_version=4)
    for student in Desk(stubs, solution, registry.exercises(LESSON)).everyone():
        id_, first, last = PEOPLE[student.id]
        with course.gradebook as gradebook:
            gradebook.update_or_create_student(id_, first_name=first, last_name=last)
        if student.wrote:
            answer_in_own_words(student.notebook)
        to = course.root / "submitted" / id_ / LESSON / name
        to.parent.mkdir(parents=True)
        nbformat.write(student.notebook, to)
    course.command("autograde", LESSON)
    return course


def answer_in_own_words(notebook: nbformat.NotebookNode) -> None:
    """The fake students hand in the sample answer, which no picture may show."""
    for cell in solution_cells(notebook).values():
        if cell.cell_type == "markdown":
            cell.source = OWN_WORDS


@contextmanager
def browser_page() -> Iterator[Page]:
    """A browser window of a laptop's size."""
    with launched() as running:
        context = running.new_context(viewport={"width": 1100, "height": 640})
        context.set_default_timeout(60_000)
        yield context.new_page()


def take_all(page: Page, course: Course, formgrader: str) -> None:
    """Every picture, in the order in which an instructor sees the pages."""
    with course.gradebook as gradebook:
        alan = gradebook.find_submission_notebook(LESSON, LESSON, "alan").id
    page.goto(f"{formgrader}/manage_assignments")
    save(page, "formgrader_assignments", LESSON)
    page.goto(f"{formgrader}/manage_submissions/{LESSON}")
    save(page, "formgrader_submissions", "Lovelace")
    page.goto(f"{formgrader}/gradebook/{LESSON}/{LESSON}")
    save(page, "formgrader_manual_grading", "Submission #6")
    page.goto(f"{formgrader}/submissions/{alan}/", wait_until="networkidle")
    show(page, ".output_error:has-text('likely cause')")
    save(page, "formgrader_verdict")
    box = page.locator("input.score.needs_manual_grade").first
    written = str(box.get_attribute("id"))
    page.locator(f"#{written}-comment").fill(COMMENT)
    page.locator(f"#{written}").fill("2")
    page.keyboard.press("Tab")
    page.wait_for_load_state("networkidle")
    show(page, f"#{written}")
    save(page, "formgrader_written_answer")
    succeed(course.api.generate_feedback(LESSON))
    page.goto((course.root / "feedback" / "alan" / LESSON / f"{LESSON}.html").as_uri())
    save(page, "feedback_top")
    show(page, ".output_error:has-text('likely cause')")
    save(page, "feedback_verdict")


def show(page: Page, selector: str) -> None:
    """Bring the first such thing to the middle of the window."""
    for _ in range(3):  # formgrader itself scrolls, softly, to the field that has the focus
        page.locator(selector).first.evaluate("e => e.scrollIntoView({block: 'center'})")
        page.wait_for_timeout(800)


def save(page: Page, name: str, text: str = "") -> None:
    """A picture of the window, once `text` is in it, in few enough bytes."""
    if text:
        page.get_by_text(text).first.wait_for()
    page.wait_for_timeout(300)
    picture = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
    path = IMAGES / f"{name}.png"
    picture.quantize(96, dither=Image.Dither.NONE).save(path, optimize=True)
    size = path.stat().st_size
    if size > MOST_BYTES:
        raise ValueError(f"{path} has {size:,} bytes, more than {MOST_BYTES:,}")
    print(f"{path.relative_to(ROOT)}  {size:,} bytes")


if __name__ == "__main__":
    main()
