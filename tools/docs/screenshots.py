"""Take the README's two screenshots. Run: python -m tools.docs.screenshots (needs a Chromium)

docs/images/lab.png: a lesson in JupyterLab, with a plausible wrong answer and its verdict.
docs/images/serve.png: the live page of the served engine while five users are answered.
"""

from __future__ import annotations

import io
import os
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import nbformat
from PIL import Image
from playwright.sync_api import Page

from tools import HELPERS, ROOT

sys.path.insert(0, str(HELPERS))

from fake_students import Desk
from lab_page import LabPage, lab_server, launched

from grader.judging import registry
from grader.learner import lab
from inferlab.serve.load_client import load
from inferlab.serve.process import running_server
from labkit.files import write_whole

IMAGES = ROOT / "docs" / "images"
LESSON, EXERCISE = "04_kv_cache", "kv_cache_bytes"
MISTAKE = """\
    numbers = 2 * config.n_layers * config.n_heads * config.d_head  # keys and values
    return n_sequences * n_tokens * numbers * bytes_per_number"""
SCENE = (
    "ROSALIND: I have been told so of many: but indeed an old religious uncle of mine taught me to "
    "speak, who was in his youth an inland man; one that knew courtship too well. "
)
PROMPTS = [f"{SCENE}ORLANDO: {line}" for line in ("Can", "Did you", "I would", "No more", "Well")]


@contextmanager
def browser(width: int, height: int) -> Iterator[Page]:
    """A page of a Chromium without a window."""
    with launched() as running:
        yield running.new_page(viewport={"width": width, "height": height})


def keep(png: bytes, name: str) -> Path:
    """Save with 128 colours: a quarter of the bytes, and no difference to see."""
    picture = Image.open(io.BytesIO(png)).convert("RGB").quantize(128, dither=Image.Dither.NONE)
    IMAGES.mkdir(exist_ok=True)
    picture.save(IMAGES / name, optimize=True)
    return IMAGES / name


def mistaken_notebook() -> nbformat.NotebookNode:
    """The worked lesson, with one answer that confuses query heads and KV heads."""
    released = nbformat.read(lab.released_path(ROOT, LESSON), as_version=4)
    solution = nbformat.read(ROOT / "solutions" / LESSON / f"{LESSON}.ipynb", as_version=4)
    notebook = Desk(released, solution, registry.exercises(LESSON)).student("perfect").notebook
    given = {cell.id: cell.source for cell in released.cells}
    for cell in notebook.cells:
        if cell.metadata.get("nbgrader", {}).get("grade_id") == EXERCISE:
            head = given[cell.id].rpartition("    raise NotImplementedError")[0]
            cell.source = head + MISTAKE
    return notebook


def lab_picture() -> Path:
    """The exercise, the mistake and the verdict that names it."""
    os.environ["INFERLAB_CHECK_ONLY"] = "1"  # no need to measure
    with tempfile.TemporaryDirectory() as folder, lab_server(Path(folder), LESSON) as address:
        mine = lab.working_path(Path(folder) / "my work", LESSON)
        write_whole(mine, lab.notebook_text(mistaken_notebook()))
        with browser(1200, 760) as page:
            lab_page = LabPage(page, address, Path(folder))
            lab_page.open(f"{LESSON}/{LESSON}.ipynb")
            lab_page.run_all(120)
            verdict = lab_page.panel.locator(".inferlab-verdict[data-outcome=failed]").first
            for _ in range(3):  # cells get their true height when seen
                verdict.evaluate("e => e.scrollIntoView({block: 'end'})")
                page.wait_for_timeout(300)
            return keep(page.screenshot(), "lab.png")


def serve_picture() -> Path:
    """Four requests in the batch, one waiting; the pages of their common scene are shared."""
    with (
        running_server("--pages", "192", "--page-size", "8", "--max-running", "4") as address,
        browser(1200, 760) as page,
    ):
        page.goto(address)
        page.locator("#model", has_text="tiny-target").wait_for()
        arrivals = [0.0, 0.4, 0.5, 0.6, 0.7]  # the first has stored its scene when others come
        users = threading.Thread(
            target=load, args=(address, PROMPTS), kwargs={"arrivals_s": arrivals, "max_tokens": 240}
        )
        users.start()
        page.locator("#running", has_text="4 of 4").wait_for()
        page.wait_for_function("document.querySelectorAll('#map i:is(.used, .shared)').length > 70")
        picture = page.screenshot()
        users.join()
    return keep(picture, "serve.png")


if __name__ == "__main__":
    for made in (lab_picture(), serve_picture()):
        print(f"{made.relative_to(ROOT)}: {made.stat().st_size / 1000:.0f} kB")
