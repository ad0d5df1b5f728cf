"""Lesson 04 in a real browser: as released, and with the solutions filled in.

`inferlab lab` serves a fresh copy from a folder with a space; Chromium opens it. No request may
leave this machine. Screenshots are left in test-artifacts/browser/.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
from fake_students import Desk
from lab_page import DEAD_WIDGETS, STDERR, LabPage, lab_server
from places import ROOT
from playwright.sync_api import Browser

from grader.judging import registry
from grader.learner import lab
from inferlab.checkpoints.fetch import NotFetched, fetched_path
from labkit.files import write_whole

pytestmark = pytest.mark.browser

LESSON = "04_kv_cache"
NOTEBOOK = f"{LESSON}/{LESSON}.ipynb"
EXERCISES = [exercise.id for exercise in registry.exercises(LESSON)]
QUESTIONS = [question.id for question in registry.questions(LESSON)]
MEASURING_SECONDS = 180  # a ceiling for a busy machine; a quiet one needs a sixth of it


@pytest.fixture(scope="module")
def course(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("a course")


@pytest.fixture(scope="module")
def address(browser: Browser, course: Path) -> Iterator[str]:
    """The address at which `inferlab lab` serves; no server where there is no browser."""
    with lab_server(course, LESSON) as found:
        yield found


@pytest.fixture
def page(browser: Browser, address: str) -> Iterator[LabPage]:
    shots = ROOT / "test-artifacts" / "browser"
    shots.mkdir(parents=True, exist_ok=True)
    context = browser.new_context(viewport={"width": 1280, "height": 1000})
    context.set_default_timeout(10_000)
    lab_page = LabPage(context.new_page(), address, shots)
    yield lab_page
    lab_page.end_kernels()
    context.close()


def assert_healthy(page: LabPage) -> None:
    """What must hold for every lesson, whoever has written what in it."""
    assert page.not_executed() == []
    assert page.texts(STDERR) == []
    assert [sign for sign in DEAD_WIDGETS if sign in page.outputs()] == []
    assert page.panel.locator("mjx-container").count() > 0
    assert page.texts("mjx-merror") == []
    assert page.panel.locator("img").count() > 0
    assert page.images_without_words() == []
    assert page.page.locator(".Toastify__toast").count() == 0, "a pop-up greets the learner"
    assert page.outside == [], "requests left this machine"
    assert page.troubles == []


def test_the_address_opens_the_lesson(address: str) -> None:
    assert address.endswith(f"/lab/tree/{NOTEBOOK}")


def test_this_test_sees_what_is_wrong(page: LabPage, course: Path) -> None:
    """Each thing that a healthy lesson must not have, put into a notebook on purpose."""
    faults = (
        "import sys; print('a warning', file=sys.stderr)",
        "from IPython.display import HTML; HTML('<img src=\"http://192.0.2.1/a.png\">')",
        "1 / 0",
        "print('after the error')",
    )
    cells = [nbformat.v4.new_code_cell(source) for source in faults]
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    broken = nbformat.v4.new_notebook(cells=cells, metadata=kernel)
    write_whole(course / "my work" / "broken.ipynb", lab.notebook_text(broken))
    page.page.route("**/a.png", lambda route: route.abort())
    page.open("broken.ipynb")
    page.run_all(30)
    warning, error = page.texts(STDERR)
    assert warning == "a warning\n"
    assert error.endswith("ZeroDivisionError: division by zero")
    assert page.not_executed() == ["print('after the error')"]
    assert "after the error" not in page.outputs()
    assert len(page.images_without_words()) == 1
    assert set(page.outside) == {"http://192.0.2.1/a.png"}
    assert page.troubles


def test_as_released(page: LabPage) -> None:
    page.open(NOTEBOOK)
    page.shot("1-released")
    page.run_all(MEASURING_SECONDS)
    assert page.texts(STDERR) == []
    assert page.not_executed() == []
    page.shot("2-released-verdict", page.panel.locator(".inferlab-verdict").first)
    assert page.verdicts() == dict.fromkeys([*EXERCISES, *QUESTIONS], "not run")
    assert_healthy(page)


def test_with_the_solutions_filled_in(page: LabPage, course: Path) -> None:
    fill_in(course / "my work")
    page.open(NOTEBOOK)
    page.run_all(MEASURING_SECONDS)
    assert page.texts(STDERR) == []
    assert page.not_executed() == []
    page.shot("3-solved-verdict", page.panel.locator(".inferlab-verdict").first)
    assert page.verdicts() == dict.fromkeys([*EXERCISES, *QUESTIONS], "passed")
    assert_healthy(page)
    assert_measured(page)
    turn_the_knob(page)
    page.shot("5-solved-end", page.cells().last)
    assert_healthy(page)


def fill_in(work: Path) -> None:
    """Put the worked lesson into the learner's copy, cell by cell, as a learner would."""
    released = nbformat.read(lab.released_path(ROOT, LESSON), as_version=4)
    solution = nbformat.read(ROOT / "solutions" / NOTEBOOK, as_version=4)
    perfect = Desk(released, solution, registry.exercises(LESSON)).student("perfect")
    write_whole(lab.working_path(work, LESSON), lab.notebook_text(perfect.notebook))


def assert_measured(page: LabPage) -> None:
    """The measuring cells measured; where there is no model, they say so."""
    try:
        fetched_path("smollm2")
    except NotFetched:
        assert "not measured here" in page.outputs()
        return
    assert re.search(r"the cache saves a factor of \d", page.outputs())
    assert "the first 12 tokens are the same" in page.outputs()


def turn_the_knob(page: LabPage) -> None:
    """Move the first slider by keyboard; its number, the text and the figure must follow."""
    cell = page.cells().filter(has=page.page.locator(".widget-slider"))
    slider, picture = cell.locator(".widget-slider").first, cell.locator("img")
    handle, readout = slider.locator(".noUi-handle"), slider.locator(".widget-readout")
    said = cell.locator("[role=status]", has_text="tokens on")
    handle.scroll_into_view_if_needed()
    before = readout.text_content(), said.text_content(), picture.get_attribute("src")
    handle.focus()
    page.page.keyboard.press("ArrowRight")
    for _ in range(100):
        page.page.wait_for_timeout(50)
        if picture.count() == 1 and picture.get_attribute("src") != before[2]:
            break
    after = readout.text_content(), said.text_content(), picture.get_attribute("src")
    assert all(old != new for old, new in zip(before, after, strict=True)), (before[:2], after[:2])
    page.settled()
    page.shot("4-solved-slider", slider)
