"""The words of all twelve lessons in JupyterLab, light and dark: axe finds nothing to object to.

Nothing is executed: what cells put out is judged in test_browser_looks.py, on one lesson, and the
figures of all lessons where they are drawn (figure_words.require_readable).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
from lab_page import CHROMIUM_FLAGS, PANEL, LabPage, chromium, lab_server
from playwright.sync_api import sync_playwright
from test_browser_looks import axe, wear

from grader import lab, registry
from labkit.files import write_whole

pytestmark = pytest.mark.browser

ROOT = Path(__file__).parents[2]
WORDS = f"{PANEL} .jp-RenderedMarkdown"
LESSONS = registry.lessons()
FOLDS = "all => all.map(one => one.getBoundingClientRect().height)"
# The page scrolls on past its end, by its own height.
CONTENT = "outer => outer.scrollHeight - outer.clientHeight"
SIDEWAYS = "outer => outer.scrollWidth - outer.clientWidth"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabPage]:
    """A Lab whose lessons hold their words alone."""
    program, course = chromium(), tmp_path_factory.mktemp("a course")
    with lab_server(course, LESSONS[0]) as address, sync_playwright() as playwright:
        for lesson in LESSONS:
            words_alone(course / "my work", lesson)
        browser = playwright.chromium.launch(executable_path=program, args=CHROMIUM_FLAGS)
        page = browser.new_page(viewport={"width": 1280, "height": 1000})
        page.set_default_timeout(20_000)
        yield LabPage(page, address, ROOT / "test-artifacts" / "browser")
        browser.close()


def unroll(page: LabPage) -> None:
    """A window just so tall that all cells are on the screen: axe judges colours only there."""
    outer = page.panel.locator(".jp-WindowedPanel-outer")
    for height in (15_000, 0):  # cells get their true height when seen
        height = height or outer.evaluate(CONTENT) + 400
        page.page.set_viewport_size({"width": 1280, "height": height})
        page.page.wait_for_timeout(300)
    assert outer.evaluate(CONTENT) <= height


def words_alone(work: Path, lesson: str) -> None:
    notebook = nbformat.read(lab.released_path(ROOT, lesson), as_version=4)
    notebook.cells = [cell for cell in notebook.cells if cell.cell_type == "markdown"]
    path = lab.working_path(work, lesson)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, nbformat.writes(notebook))


@pytest.mark.parametrize("number", range(len(LESSONS)), ids=LESSONS)
def test_axe_finds_nothing_in_the_words_of_a_lesson(page: LabPage, number: int) -> None:
    lesson, schemes = LESSONS[number], ("light", "dark")
    page.page.goto(f"{page.base}/lab/tree/{lesson}/{lesson}.ipynb?reset")
    page.panel.locator(".jp-RenderedMarkdown h1").first.wait_for()
    for scheme in schemes[:: -1 if number % 2 else 1]:  # the theme that the last one ended with
        wear(page, scheme, 1280, 1000)
        unroll(page)
        violations, judged = axe(page, [WORDS])
        assert violations == [], scheme
        assert judged["color-contrast"] > 100, "the text was not judged"
    heights = page.panel.locator("summary").evaluate_all(FOLDS)
    assert len(heights) >= 6, "the questions that fold open were not seen"
    assert min(heights) >= 24  # WCAG 2.2, 2.5.8
    page.page.set_viewport_size({"width": 800, "height": 1000})
    assert page.panel.locator(".jp-WindowedPanel-outer").evaluate(SIDEWAYS) <= 1
    page.end_kernels()
