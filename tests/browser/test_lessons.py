"""The words of all twelve lessons in JupyterLab, light and dark: axe finds nothing to object to.

Nothing is executed: what cells put out is judged in test_looks.py, on one lesson, and the
figures of all lessons where they are drawn (figure_words.require_readable).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
from lab_page import PANEL, LabPage, lab_server
from places import ROOT
from playwright.sync_api import Browser

from grader.judging import registry
from grader.learner import lab
from labkit.files import write_whole

pytestmark = pytest.mark.browser

WORDS = f"{PANEL} .jp-RenderedMarkdown"
LESSONS = registry.lessons()
FOLDS = "all => all.map(one => one.getBoundingClientRect().height)"


@pytest.fixture(scope="module")
def page(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabPage]:
    """A Lab whose lessons hold their words alone."""
    course = tmp_path_factory.mktemp("a course")
    with lab_server(course, LESSONS[0]) as address:
        for lesson in LESSONS:
            words_alone(course / "my work", lesson)
        page = browser.new_page(viewport={"width": 1280, "height": 1000})
        page.set_default_timeout(20_000)
        found = LabPage(page, address, ROOT / "test-artifacts" / "browser")
        yield found
        found.end_kernels()
        page.close()


def words_alone(work: Path, lesson: str) -> None:
    notebook = nbformat.read(lab.released_path(ROOT, lesson), as_version=4)
    notebook.cells = [cell for cell in notebook.cells if cell.cell_type == "markdown"]
    path = lab.working_path(work, lesson)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, nbformat.writes(notebook))


@pytest.mark.parametrize("number", range(len(LESSONS)), ids=LESSONS)
def test_axe_finds_nothing_in_the_words_of_a_lesson(page: LabPage, number: int) -> None:
    lesson, schemes = LESSONS[number], ("light", "dark")
    page.turn_to(f"{lesson}/{lesson}.ipynb")
    for scheme in schemes[:: -1 if number % 2 else 1]:  # the theme that the last one ended with
        page.wear(scheme, 1280, 1000)
        page.unroll()
        violations, judged = page.axe([WORDS])
        assert violations == [], scheme
        assert judged["color-contrast"] > 100, "the text was not judged"
    heights = page.panel.locator("summary").evaluate_all(FOLDS)
    assert len(heights) >= 6, "the questions that fold open were not seen"
    assert min(heights) >= 24  # WCAG 2.2, 2.5.8
    page.page.set_viewport_size({"width": 800, "height": 1000})
    assert page.sideways() <= 1
