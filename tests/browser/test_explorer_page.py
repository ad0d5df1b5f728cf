"""The explorer in a real browser: the page of `inferlab explore`, and the widget in JupyterLab.

No request may leave this machine; axe finds nothing to object to, light or dark. Screenshots are
left in test-artifacts/browser/.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
from axe_page import axe
from lab_page import DEAD_WIDGETS, STDERR, LabPage, lab_server
from live_page import LivePage
from places import SHOTS
from playwright.sync_api import Browser, Locator

from grader.learner import lab
from inferlab.serve.process import stop
from labkit.files import write_whole

pytestmark = pytest.mark.browser

STARTUP_S = 60
SHOWN = "document.body.dataset.shown || '{}'"


@pytest.fixture(scope="module")
def address(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address that `inferlab explore` prints; predictions go to a folder of these tests."""
    folder = tmp_path_factory.mktemp("explorer")
    log = folder / "explore.log"
    environment = {**os.environ, "INFERLAB_HOME": str(folder / "home")}
    command = [sys.executable, "-m", "grader.cli", "explore", "--no-browser"]
    with log.open("w") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, env=environment)
    try:
        end = time.monotonic() + STARTUP_S
        while not (found := re.search(r"http://127\.0\.0\.1:\d+/", log.read_text())):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < end, "the explorer does not start"
            time.sleep(0.1)
        yield found.group()
    finally:
        stop(process)


@pytest.fixture(autouse=True)
def pages_are_closed(browser: Browser) -> Iterator[None]:
    """A page that stays open goes on working beside the next test."""
    yield
    for context in browser.contexts:
        context.close()


class Explorer(LivePage):
    """The explorer's page: its controls, and what it shows."""

    def open(self, address: str) -> None:
        self.page.goto(address)
        self.page.locator("body[data-shown]").wait_for()

    def shown(self) -> dict:
        return json.loads(self.page.evaluate(SHOWN))

    def control(self, label: str) -> Locator:
        return self.page.get_by_label(label, exact=True)

    def wait_for(self, **values: object) -> None:
        """Until a setting with these values is shown. (The page's policy forbids eval.)"""
        end = time.monotonic() + 30
        while any(self.shown().get(name) != value for name, value in values.items()):
            assert time.monotonic() < end, f"{values} wanted, {self.shown()} shown"
            self.page.wait_for_timeout(50)

    def press(self, label: str, key: str, times: int = 1) -> None:
        self.control(label).focus()
        for _ in range(times):
            self.page.keyboard.press(key)

    def alt(self, picture: str) -> str:
        return self.page.locator(f"#{picture}").get_attribute("aria-label") or ""

    def shot(self, name: str, whole: bool = False) -> None:
        SHOTS.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=str(SHOTS / f"explorer-{name}.png"), full_page=whole)

    def require_sound(self) -> None:
        assert self.outside == [], "requests left this machine"
        assert self.troubles == []
        assert self.text("trouble") == ""
        assert axe(self.page)[0] == []


def opened(browser: Browser, address: str, scheme: str = "light", width: int = 1280) -> Explorer:
    context = browser.new_context(
        viewport={"width": width, "height": 1000}, color_scheme=scheme, reduced_motion="reduce"
    )
    context.set_default_timeout(20_000)
    found = Explorer(context.new_page())
    found.open(address)
    return found


def test_sliders_turn_by_keyboard_and_the_memory_bar_turns(browser: Browser, address: str) -> None:
    page = opened(browser, address)
    assert "It fits, 46.76 GB left" in page.alt("memory")
    assert not page.page.locator("#figures.short").count()
    before = {name: page.page.locator(f"#{name}").inner_html() for name in ("memory", "speed")}
    page.press("batch (sequences)", "ArrowRight", 43)
    page.wait_for(n_sequences=59)
    assert "It fits" in page.alt("memory")
    page.press("batch (sequences)", "ArrowRight")
    page.wait_for(n_sequences=60)
    assert "It does not fit" in page.alt("memory")
    assert "does not fit" in page.text("figures")
    assert "does not fit" in page.text("status")
    assert page.page.locator("#figures.short").count() == 1
    for name, old in before.items():
        assert page.page.locator(f"#{name}").inner_html() != old
    assert page.control("batch (sequences)").get_attribute("aria-valuetext") == "60"
    page.shot("does-not-fit")
    page.press("batch (sequences)", "Home")
    page.wait_for(n_sequences=1)
    assert "1 × 8,192 tokens" in page.text("status")
    page.require_sound()


def test_lists_follow_the_model_and_what_cannot_be_had_is_said(
    browser: Browser, address: str
) -> None:
    page = opened(browser, address)
    page.control("attention").select_option(label="GQA: 8 KV heads")
    page.wait_for(attention="gqa")
    page.control("model").select_option(label="falcon-7b (6.9 B, MQA)")
    page.wait_for(model="falcon-7b", attention="own")
    assert "71 query heads" in page.text("notes")
    disabled = page.page.locator("#x-attention option[disabled]").all_text_contents()
    assert disabled == ["GQA: no equal groups", "MLA: not in this model"]
    page.control("model").select_option(label="deepseek-v2-lite (16 B, MLA)")
    page.wait_for(model="deepseek-v2-lite")
    page.control("attention").select_option(label="MLA: 512 + 64 numbers")
    page.wait_for(attention="mla")
    assert "512 + 64" in page.page.locator("#formulas").inner_text()
    page.require_sound()


def test_a_prediction_is_lodged_before_anything_is_told(browser: Browser, address: str) -> None:
    page = opened(browser, address)
    task = page.page.locator("#task")
    page.page.get_by_role("button", name="70B on one device").click()
    page.wait_for(model="70b-style", n_sequences=8)
    assert page.page.locator("#seen").count() == 0
    assert task.get_by_role("button", name="INT4 weights", exact=True).count() == 0
    task.get_by_role("button", name="lodge").click()
    task.get_by_text("nothing is entered yet").wait_for()
    page.shot("predict")
    choice = task.get_by_role("radio", name="it takes INT4 weights and an 8-bit cache")
    choice.focus()
    page.page.keyboard.press("Space")
    task.get_by_role("button", name="lodge").focus()
    page.page.keyboard.press("Enter")
    page.page.locator("#seen").wait_for()
    seen = page.text("seen")
    assert "not as you said" in seen
    assert "it takes INT4 weights; the cache may stay at 16 bit" in seen
    assert "Why:" in seen
    task.get_by_role("button", name="INT4 weights", exact=True).click()
    page.wait_for(weights="int4", cache="bf16")
    assert "It fits" in page.alt("memory")
    page.shot("confronted")
    page.require_sound()
    page.open(address)  # it is kept, and cannot be lodged again
    page.page.get_by_role("button", name="70B on one device").click()
    page.page.locator("#seen").wait_for()
    assert task.get_by_role("radio").count() == 0


def test_a_number_is_lodged_with_its_unit(browser: Browser, address: str) -> None:
    page = opened(browser, address)
    page.page.get_by_role("button", name="MHA in place of GQA").click()
    field = page.page.get_by_role("textbox")
    field.fill("4 seconds")
    page.page.keyboard.press("Enter")
    page.page.locator("#task").get_by_text("measured in s").wait_for()
    field.fill("34.36")
    page.page.keyboard.press("Enter")
    page.page.locator("#task").get_by_text("has no unit").wait_for()
    field.fill("34.36 GB")
    page.page.keyboard.press("Enter")
    page.page.locator("#seen").wait_for()
    assert "2x too small" in page.text("seen")
    assert "68.72 GB" in page.text("seen")
    page.require_sound()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 800])
def test_it_is_sound_and_fits_the_window(
    browser: Browser, address: str, scheme: str, width: int
) -> None:
    page = opened(browser, f"{address}?gamma=4&headroom=0.1", scheme, width)
    page.wait_for(gamma=4, headroom=0.1)
    page.shot(f"{scheme}-{width}")
    page.shot(f"{scheme}-{width}-whole", whole=True)
    overflow = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert page.page.evaluate(overflow) <= 0
    ink = page.page.evaluate("getComputedStyle(document.body).color")
    assert (min(map(int, re.findall(r"\d+", ink))) > 128) == (scheme == "dark")
    for picture in ("memory", "roofline", "speed"):
        first_text = f"document.querySelector('#{picture} svg text')"
        drawn = page.page.evaluate(f"getComputedStyle({first_text}).fill")
        assert (min(map(int, re.findall(r"\d+", drawn))) > 128) == (scheme == "dark"), picture
    page.require_sound()


def test_the_test_sees_a_fault(browser: Browser, address: str) -> None:
    page = opened(browser, address)
    page.page.evaluate("document.getElementById('memory').removeAttribute('aria-label')")
    with pytest.raises(AssertionError, match="role-img-alt"):
        page.require_sound()


def test_the_page_says_when_the_program_is_gone(browser: Browser, address: str) -> None:
    page = opened(browser, address)
    page.page.route("**/state?*", lambda route: route.abort())
    page.press("batch (sequences)", "ArrowRight")
    page.page.get_by_text("The program does not answer").wait_for()


# ---- in JupyterLab -----------------------------------------------------------------------------


def test_the_widget_moves_in_jupyterlab(browser: Browser, tmp_path: Path) -> None:
    """A control redraws the one picture in place; a prediction is lodged and confronted."""
    folder = tmp_path / "a course"
    folder.mkdir()
    source = (
        "from inferlab.kv_cache import kv_cache_bytes\nfrom labkit.explorer import explore\n\n"
        'explore("04", kv_cache_bytes)'
    )
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source)], metadata=kernel)
    with lab_server(folder, "04_kv_cache") as found:
        write_whole(folder / "my work" / "explorer.ipynb", lab.notebook_text(notebook))
        context = browser.new_context(viewport={"width": 1280, "height": 1400})
        context.set_default_timeout(20_000)
        SHOTS.mkdir(parents=True, exist_ok=True)
        page = LabPage(context.new_page(), found, SHOTS)
        page.open("explorer.ipynb")
        page.run_all(60)
        turn_and_predict(page)
        page.end_kernels()
        context.close()


def turn_and_predict(page: LabPage) -> None:
    picture = page.panel.locator("img")
    said = page.panel.locator("[role=status]", has_text="tokens on 80 GB")
    picture.wait_for()
    assert picture.count() == 1
    assert "the same" in page.outputs()
    page.shot("explorer-lab")
    before = picture.get_attribute("src"), said.text_content()
    handle = page.panel.locator(".widget-slider .noUi-handle").first
    handle.focus()
    page.page.keyboard.press("ArrowRight")
    page.page.wait_for_function(
        "old => document.querySelector('.jp-NotebookPanel img').src !== old", arg=before[0]
    )
    assert picture.count() == 1
    assert "KV cache 18.25 GB" in (picture.get_attribute("alt") or "")
    assert "16 × 8,192 tokens" in before[1]
    assert "17 × 8,192 tokens" in said.text_content()
    page.panel.get_by_text("try it: MHA in place of GQA").click()
    page.panel.get_by_placeholder("such as").first.fill("68.7 GB")
    page.panel.get_by_role("button", name=re.compile("^(lodge|Lodge your)")).first.click()
    page.panel.get_by_text("lodged: ").first.wait_for()
    page.panel.get_by_role("button", name="see what is so").first.click()
    page.panel.get_by_text("1.00: close").wait_for()
    page.panel.get_by_role("button", name="switch to MHA").click()
    page.panel.locator("[role=status]", has_text="does not fit").first.wait_for()
    page.settled()
    page.shot("explorer-lab-predicted")
    assert page.texts(STDERR) == []
    assert [sign for sign in DEAD_WIDGETS if sign in page.outputs()] == []
    assert page.images_without_words() == []
    assert page.outside == []
    assert page.troubles == []
