"""A whole lesson in JupyterLab, worked, as somebody sees it who reads on dark, narrow or by ear.

axe-core judges only what is ours: the lesson's text and the outputs of its cells, progress() among
them. Screenshots are left in test-artifacts/browser/.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
from dark_page import on_dark
from fake_students import Desk
from lab_page import PANEL, STDERR, LabPage, lab_server
from matplotlib.colors import to_rgb
from PIL import Image
from places import ROOT
from playwright.sync_api import Browser

from grader.judging import registry
from grader.learner import lab
from labkit.figures.show import COLOURS, INK, ORANGE, SKY
from labkit.files import write_whole

pytestmark = pytest.mark.browser

LESSON = "09_moe"  # the quickest with an explorer
RUN_SECONDS = 120  # a ceiling for a busy machine; a quiet one needs a tenth of it
TALL = 45_000  # pixels: all cells on the screen at once, since axe judges colours only there
# Beside the lesson's own cells: a check that fails, and how far the learner has come.
MORE = (
    "def router_weights(logits, n_chosen):\n    return logits",
    "check('router_weights')",
    "from grader import progress\nprogress()",
)


@pytest.fixture(scope="module")
def page(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabPage]:
    """The worked lesson, run once for all tests of this file."""
    shots = ROOT / "test-artifacts" / "browser"
    shots.mkdir(parents=True, exist_ok=True)
    course = tmp_path_factory.mktemp("a course")
    with lab_server(course, LESSON) as address:
        worked(course / "my work")
        context = browser.new_context(viewport={"width": 1280, "height": 1000})
        context.set_default_timeout(20_000)
        found = LabPage(context.new_page(), address, shots)
        found.open(f"{LESSON}/{LESSON}.ipynb")
        found.run_all(RUN_SECONDS)
        assert found.texts(STDERR) == []
        assert found.not_executed() == []
        yield found
        found.end_kernels()
        context.close()


def worked(work: Path) -> None:
    """Put the worked lesson and MORE into the learner's copy, without the cells that measure."""
    released = nbformat.read(lab.released_path(ROOT, LESSON), as_version=4)
    solution = nbformat.read(ROOT / "solutions" / LESSON / f"{LESSON}.ipynb", as_version=4)
    notebook = Desk(released, solution, registry.exercises(LESSON)).student("perfect").notebook
    slow = ("if not grading()", "if model and")
    cells = [c for c in notebook["cells"] if not c["source"].startswith(slow)]
    assert len(cells) < len(notebook["cells"])
    notebook["cells"] = cells + [nbformat.v4.new_code_cell(source) for source in MORE]
    write_whole(lab.working_path(work, LESSON), lab.notebook_text(notebook))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_in_what_is_ours(page: LabPage, scheme: str) -> None:
    page.wear(scheme, 1280, TALL)
    seen = page.panel.locator(".inferlab-progress, .inferlab-verdict, .inferlab-figure, table")
    assert seen.count() > 20
    violations, judged = page.axe()
    assert violations == []
    assert judged["image-alt"] >= 4, "the figures were not judged"
    assert judged["color-contrast"] > 100, "the text was not judged"


def test_axe_would_see_a_nameless_picture_and_pale_text(page: LabPage) -> None:
    page.wear("light", 1280, 1000)
    first = page.panel.locator(".inferlab-progress").first
    page.shot("looks-progress-lesson", first)
    kept = first.inner_html()
    fault = '<img src="data:," width=9><p style="color:#ccc">pale</p>'
    first.evaluate("(e, fault) => e.innerHTML += fault", fault)
    try:
        found, _ = page.axe([f"{PANEL} .inferlab-progress"])
        assert {name for name, _ in found} == {"image-alt", "color-contrast"}
    finally:
        first.evaluate("(e, kept) => e.innerHTML = kept", kept)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_figure_or_table_is_wider_than_its_column(page: LabPage, scheme: str) -> None:
    page.wear(scheme, 800, 1000)
    script = """all => all.map(one => {
        const column = one.closest('.jp-RenderedHTMLCommon, .jp-OutputArea-output');
        const frame = one.closest('.inferlab-frame');
        const [a, b] = [frame.getBoundingClientRect(), column.getBoundingClientRect()];
        const spare = one.getBoundingClientRect().width - parseFloat(one.style.minWidth);
        return [Math.round(a.width), Math.round(a.right - b.right), Math.round(spare)]; })"""
    found = page.panel.locator("img.inferlab-figure").evaluate_all(script)
    assert len(found) >= 5
    # Each keeps to its column, and its letters to 9 pixels: what is wider scrolls in its frame.
    assert [one for one in found if one[0] < 200 or one[1] > 1 or one[2] < 0] == []
    assert page.sideways() <= 1, "the page scrolls sideways"
    page.shot(f"looks-800-{scheme}", page.panel.locator("img.inferlab-figure").nth(1))


def test_dark_pages_have_dark_figures(page: LabPage) -> None:
    script = "one => getComputedStyle(one).filter"
    figure = page.panel.locator("img.inferlab-figure").first
    page.wear("light", 1280, 1000)
    assert figure.evaluate(script) == "none"
    page.wear("dark", 1280, 1000)
    assert "invert" in figure.evaluate(script)


@pytest.mark.parametrize("colour", ["white", INK, SKY, ORANGE, *COLOURS])
def test_colours_turn_round_as_the_tests_of_contrast_say(page: LabPage, colour: str) -> None:
    """dark_page.on_dark computes what the browser does."""
    page.wear("dark", 1280, 1000)
    red, green, blue = (round(255 * part) for part in to_rgb(colour))
    script = """(all, colour) => { const one = new Image(50, 50);
        one.src = `data:image/svg+xml,<svg xmlns="http://www.w3.org/2000/svg"><rect width="50"
            height="50" fill="rgb(${colour})"/></svg>`;
        one.className = 'inferlab-figure'; one.id = 'patch';
        one.style = 'position:fixed;top:0;left:0;z-index:99999'; document.body.append(one);
        return one.decode(); }"""
    page.page.locator("body").evaluate(script, f"{red},{green},{blue}")
    try:
        shot = Image.open(io.BytesIO(page.page.locator("#patch").screenshot())).convert("RGB")
        want = [255 * part for part in on_dark(colour)]
        assert shot.getpixel((25, 25)) == pytest.approx(want, abs=2)
    finally:
        page.page.locator("#patch").evaluate("one => one.remove()")


def test_progress_is_shown_and_its_link_opens_the_next_exercise(page: LabPage) -> None:
    page.wear("dark", 1280, 1000)
    shown = page.panel.locator(".inferlab-progress").last
    n_exercises, n_questions = len(registry.exercises(LESSON)), len(registry.questions(LESSON))
    row = shown.locator("tr", has_text=LESSON)
    cells = [text.strip() for text in row.locator("th, td").all_text_contents()]
    counts = [f"{n_exercises}/{n_exercises}", f"{n_questions}/{n_questions}"]
    assert cells[:3] == [f"✓ {LESSON}", *counts]  # passed stays passed, whatever was tried later
    page.shot("looks-progress-dark", shown)
    following = registry.lessons()[registry.lessons().index(LESSON) + 1]
    first = registry.exercises(following)[0].id
    link = shown.locator("a")
    assert link.text_content() == first
    link.click()
    active = page.panel.locator(".jp-Cell.jp-mod-active .cm-content")
    active.get_by_text(f'check("{first}")').wait_for()
    assert page.page.url.endswith(f"{following}.ipynb")
