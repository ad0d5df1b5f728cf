"""Interview practice in JupyterLab, by keyboard alone: an answer, how sure it is, the verdict.

Screenshots are left in test-artifacts/browser/.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
from interview_candidate import Candidate, whole_bank
from lab_page import PANEL, STDERR, LabPage, lab_server
from places import SHOTS
from playwright.sync_api import Browser, Locator, expect

from grader.learner import lab
from labkit.files import write_whole
from labkit.interview import confidence
from labkit.interview.begin import begin
from labkit.interview.history import History

pytestmark = pytest.mark.browser
expect.set_options(timeout=30_000)  # a ceiling for a busy machine

NOTEBOOK = "practice.ipynb"
# Numbers, choices, an open question.
CHOICE = {"topic": "kv-cache", "n": 6, "minutes": 20, "seed": 58}
CELL = f"from grader import interview\n\ninterview(**{CHOICE})"
KERNEL = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}


@pytest.fixture(scope="module")
def course(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("a course")


@pytest.fixture(scope="module")
def page(browser: Browser, course: Path) -> Iterator[LabPage]:
    """A notebook with one cell that has shown the panel."""
    SHOTS.mkdir(parents=True, exist_ok=True)
    with lab_server(course, "04_kv_cache") as address:
        cells = [nbformat.v4.new_code_cell(CELL)]
        book = nbformat.v4.new_notebook(cells=cells, metadata=KERNEL)
        write_whole(course / "my work" / NOTEBOOK, lab.notebook_text(book))
        context = browser.new_context(viewport={"width": 1280, "height": 1000})
        context.set_default_timeout(20_000)
        shown = LabPage(context.new_page(), address, SHOTS)
        shown.open(NOTEBOOK)
        shown.run_all(60)
        yield shown
        shown.end_kernels()
        context.close()


def test_keys_alone_lead_through_it_and_what_was_said_is_kept(page: LabPage, course: Path) -> None:
    press = page.page.keyboard.press
    rehearsal = begin(whole_bank(), History.in_memory(), **CHOICE).session
    wrong = Candidate(frozenset(rehearsal.bank.catalogue.by_id))
    status = page.panel.locator('div[role="status"]').first
    page.shot("interview-before")
    button(page, "start").focus()
    press("Enter")
    expect(page.panel.get_by_role("timer")).to_contain_text("time left 19:")  # it moves by itself
    n_said = 0
    while (asked := rehearsal.next_question()) is not None:
        expect(page.panel.get_by_text(asked.text()[:30])).to_be_visible()
        expect(status).to_have_text("")
        expect(button(page, "skip")).to_be_visible()
        page.page.wait_for_timeout(500)  # the fields come after the text
        if asked.question.rubric:
            expect(sure(page)).to_be_hidden()
            button(page, "show a full answer").focus()
            press("Enter")
            expect(button(page, "½")).to_have_count(3)  # a mark for each part
            page.shot("interview-open")
            button(page, "skip").focus()
            press("Enter")
            expect(button(page, "½").first).to_be_hidden()
            continue
        answer(page, asked.choices, wrong.answer(rehearsal.item(asked), asked))
        expect(sure(page)).to_be_focused()
        if n_said % 2 == 0:
            page.page.keyboard.type("90")
        if n_said == 0:
            look(page)
        press("Enter")
        expect(status).to_contain_text("right")
        n_said += 1
        page.shot(f"interview-verdict-{n_said}")
        expect(button(page, "next")).to_be_focused()
        press("Enter")
    expect(page.panel.get_by_text("Your history is kept")).to_be_visible()
    page.shot("interview-end")
    assert n_said == 5
    assert page.texts(STDERR) == []
    assert page.troubles == []
    kept = History.open(course / "home" / "drill.sqlite3")
    said = [a.confidence for a in kept.answers()]
    kept.close()
    assert said == [0.9 if i % 2 == 0 else None for i in range(n_said)]


def button(page: LabPage, name: str) -> Locator:
    """Of the panel, not of the notebook's own toolbar."""
    return page.panel.locator(".jp-OutputArea-output").get_by_role("button", name=name, exact=True)


def sure(page: LabPage) -> Locator:
    return page.panel.get_by_label(confidence.QUESTION)


def answer(page: LabPage, choices: dict[str, str], text: str) -> None:
    """Type it, or choose it, and go on to how sure it is."""
    press = page.page.keyboard.press
    if not choices:
        expect(page.panel.get_by_label("answer", exact=True)).to_be_focused()
        page.page.keyboard.type(text)
        press("Enter")
        return
    letters = page.panel.locator('input[type="radio"]')
    expect(letters).to_have_count(len(choices))
    at = list(choices).index(text)
    expect(letters.first).to_be_focused()
    for _ in range(at):  # to ipywidgets each letter is a stop
        press("Tab")
    press("Space")
    for _ in range(at, len(choices)):
        press("Tab")


def look(page: LabPage) -> None:
    """How it looks, and what axe finds, light and dark."""
    for scheme in ("light", "dark"):
        page.wear(scheme, 1280, 1000)
        page.shot(f"interview-panel-{scheme}")
        violations, _ = page.axe([f"{PANEL} .jp-OutputArea-output"])
        assert violations == []
    page.wear("light", 1280, 1000)
    sure(page).focus()
