"""Drives a notebook in a running JupyterLab, in a real Chromium, and notes all that goes wrong.

Selectors were seen to hold on JupyterLab 4.6 and ipywidgets 8.1. Commands are found by their id,
never by their label.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote, urlparse

import pytest
from axe_page import axe
from playwright.sync_api import Browser, ConsoleMessage, Locator, Page, sync_playwright

CHROMIUM_FLAGS = [
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
LOOPBACK = {"127.0.0.1", "localhost", "::1"}
PANEL = ".jp-NotebookPanel:not(.lm-mod-hidden)"
OURS = [f"{PANEL} .jp-RenderedHTMLCommon", f"{PANEL} .jp-OutputArea-output"]
# JupyterLab's own: the mark beside a heading, and MathJax's copy of a formula. ipywidgets gives a
# slider's handle no name; its label stands before it, and what it shows is said in role=status.
THEIRS = [".jp-InternalAnchorLink", "mjx-assistive-mml", ".noUi-handle"]
TAGS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]
STDERR = "[data-mime-type='application/vnd.jupyter.stderr']"  # warnings and tracebacks alike
DEAD_WIDGETS = ("Error displaying widget", "Error creating widget", "model not found")
CHANGED = """() => Promise.all(document.getAnimations()
    .filter(one => one instanceof CSSTransition).map(one => one.finished.catch(() => null)))"""
# Of every cell that is drawn, where it is and how large, after two frames.
PLACES = """panel => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() =>
    done(JSON.stringify([...panel.querySelectorAll('.jp-Cell')].map(one => {
        const {top, width, height} = one.getBoundingClientRect();
        return [top, width, height]; }))))))"""
CONTENT = "outer => outer.scrollHeight - outer.clientHeight"  # it scrolls on by its own height
SIDEWAYS = "outer => outer.scrollWidth - outer.clientWidth"
# One kernel serves all notebooks that are only looked at; none is started for each.
TURN = """async path => {
    const {commands, restored, serviceManager, shell} = window.jupyterapp;
    await restored;
    for (const one of [...shell.widgets('main')]) one.dispose();
    const kernel = [...serviceManager.kernels.running()][0];
    await commands.execute('docmanager:open', {path, factory: 'Notebook', kernel}); }"""
# What JupyterLab itself writes to the console on a healthy start; anything else fails the test.
HARMLESS: tuple[str, ...] = ()


def chromium() -> str:
    """The Chromium to use. Without one the test is skipped, or fails where CI=true promised one."""
    mac = "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome"
    names = (os.environ.get("INFERLAB_CHROMIUM"), "chromium", "chromium-browser", "google-chrome")
    found = next((path for path in map(shutil.which, (*filter(None, names), mac)) if path), None)
    if found:
        return found
    message = "NOT TESTED in a browser: no Chromium here (Debian: apt-get install chromium)"
    if os.environ.get("CI", "").lower() in ("true", "1"):
        pytest.fail(message, pytrace=False)
    pytest.skip(message)


@contextmanager
def launched() -> Iterator[Browser]:
    """A running Chromium; where there is none, see `chromium`."""
    program = chromium()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=CHROMIUM_FLAGS)
        yield browser
        browser.close()


@contextmanager
def lab_server(folder: Path, lesson: str) -> Iterator[str]:
    """`inferlab lab LESSON` on a fresh copy in folder/"my work"; gives the address it opened.

    Nothing of this user's own settings, progress or workspaces is read or written.
    """
    own = {
        "INFERLAB_HOME": "home",
        "JUPYTER_CONFIG_DIR": "config",
        "JUPYTER_RUNTIME_DIR": "runtime",
        "JUPYTERLAB_SETTINGS_DIR": "settings",
        "JUPYTERLAB_WORKSPACES_DIR": "workspaces",
        "IPYTHONDIR": "ipython",
    }
    environment = {**os.environ, **{name: str(folder / sub) for name, sub in own.items()}}
    command = [sys.executable, "-m", "grader.cli", "lab", lesson, "--no-browser", "--port", "18080"]
    command += ["--work", str(folder / "my work"), "--", "--IdentityProvider.token="]
    command += ["--LabApp.expose_app_in_browser=True"]  # for LabPage.turn_to
    log = folder / "server.log"
    with log.open("w") as out:
        server = subprocess.Popen(
            command, stdout=out, stderr=subprocess.STDOUT, env=environment, cwd=folder
        )
    try:
        yield _address(server, log)
    finally:
        server.send_signal(signal.SIGTERM)
        try:
            server.wait(timeout=15)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def _address(server: subprocess.Popen, log: Path, seconds: float = 60) -> str:
    """The address that the server printed: .../lab/tree/LESSON."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found = re.search(r"http://127\.0\.0\.1:\d+/lab/\S+", log.read_text())
        if found:
            return found.group()
        if server.poll() is not None:
            break
        time.sleep(0.1)
    pytest.fail(f"JupyterLab did not start:\n{log.read_text()[-3000:]}", pytrace=False)


class LabPage:
    """One notebook in one browser page, and a record of everything that went wrong in it."""

    def __init__(self, page: Page, address: str, shots: Path) -> None:
        self.page, self.shots = page, shots
        parts = urlparse(address)
        self.base = f"{parts.scheme}://{parts.netloc}"
        self.panel = page.locator(PANEL)
        self.worn: tuple[str, int, int] | None = None
        self.outside: list[str] = []
        self.troubles: list[str] = []
        page.on("request", lambda request: self._seen(request.url))
        page.on("websocket", lambda socket: self._seen(socket.url))
        page.on("console", self._console)
        page.on("pageerror", lambda error: self.troubles.append(f"page error: {error}"))
        page.on("requestfailed", lambda r: self.troubles.append(f"failed: {r.url} {r.failure}"))
        page.on(
            "response",
            lambda r: (
                self.troubles.append(f"HTTP {r.status}: {r.url}") if r.status >= 400 else None
            ),
        )

    def _seen(self, url: str) -> None:
        parts = urlparse(url)
        if parts.scheme in ("http", "https", "ws", "wss") and parts.hostname not in LOOPBACK:
            self.outside.append(url)

    def _console(self, message: ConsoleMessage) -> None:
        if message.type == "error" and not any(known in message.text for known in HARMLESS):
            self.troubles.append(f"console: {message.text}")

    # ---- doing ----

    def open(self, path: str) -> None:
        """Open a notebook in a fresh workspace and wait until its kernel is idle."""
        self.worn = None
        url = f"{self.base}/lab/tree/{quote(path)}?reset"
        self.page.goto(url, wait_until="domcontentloaded")
        self.cells().first.wait_for(timeout=60_000)
        # The indicator may read idle while the session is still being made: ask the server too.
        script = """async base => (await (await fetch(base + '/api/sessions')).json())
                    .some(session => session.kernel)"""
        end = time.monotonic() + 60
        while not (self.page.evaluate(script, self.base) and self.settled(quiet=0.3, seconds=2)):
            assert time.monotonic() < end, "the kernel did not get ready"
            self.page.wait_for_timeout(100)

    def turn_to(self, path: str) -> None:
        """Put a notebook in the place of those that are open, to look at; the page stays.

        Starting JupyterLab takes the browser seconds, and so does a kernel.
        """
        if self.page.url == "about:blank":
            self.page.goto(f"{self.base}/lab/tree/{quote(path)}?reset")
            self.page.wait_for_function("window.jupyterapp")
        else:
            self.page.evaluate(TURN, path)
        self.worn = None
        self.panel.locator(".jp-RenderedMarkdown h1").first.wait_for()

    def run_all(self, seconds: float) -> None:
        """Run every cell through the menu and wait until all are done."""
        self.menu("Run", "runmenu:run-all")
        self.page.wait_for_timeout(300)
        assert self.settled(seconds=seconds), f"cells still run after {seconds} s: {self.busy()}"

    def menu(self, title: str, command: str) -> None:
        label = re.compile(rf"^{title}$")
        self.page.locator("#jp-MainMenu .lm-MenuBar-itemLabel", has_text=label).click()
        entry = f'.lm-Menu-item[data-command="{command}"]:not(.lm-mod-hidden)'
        self.page.locator(entry).first.click()

    def settled(self, quiet: float = 0.6, seconds: float = 30) -> bool:
        """Wait until no cell runs and the kernel was idle for `quiet` seconds."""
        indicator = self.panel.locator(".jp-Notebook-ExecutionIndicator").first
        end, calm = time.monotonic() + seconds, None
        while time.monotonic() < end:
            if self.busy() or indicator.get_attribute("data-status") != "idle":
                calm = None
            else:
                calm = calm or time.monotonic()
                if time.monotonic() - calm >= quiet:
                    return True
            self.page.wait_for_timeout(100)
        return False

    def end_kernels(self) -> None:
        """Shut down all kernels, so that the next page starts with its own."""
        script = """async base => {
            const xsrf = (document.cookie.match(/_xsrf=([^;]*)/) || [])[1] || '';
            for (const one of await (await fetch(base + '/api/sessions')).json())
                await fetch(base + '/api/sessions/' + one.id,
                            {method: 'DELETE', headers: {'X-XSRFToken': xsrf}}); }"""
        self.page.evaluate(script, self.base)

    def shot(self, name: str, at: Locator | None = None) -> None:
        """A screenshot for test-artifacts/, with `at` scrolled into view."""
        for _ in range(3 if at is not None else 0):  # cells get their true height when seen
            at.evaluate("e => e.scrollIntoView({block: 'center'})")
            self.page.wait_for_timeout(200)
        self.page.screenshot(path=str(self.shots / f"{name}.png"))

    def wear(self, scheme: str, width: int, height: int) -> None:
        """Light or dark, as the system says, and a window of this size; until all is in its place.

        The theme changes in a low window: a tall one takes seconds to paint a frame, and without
        frames neither does the page hear of the system's choice nor does any colour change over.
        """
        size = {"width": width, "height": height}
        if self.worn == (scheme, width, height) and self.page.viewport_size == size:
            return
        self.page.set_viewport_size({"width": width, "height": 1000})
        self.page.emulate_media(color_scheme=scheme)
        light = "true" if scheme == "light" else "false"
        self.page.locator(f'body[data-jp-theme-light="{light}"]').wait_for(state="attached")
        self.page.locator("#jupyterlab-splash").wait_for(state="detached")  # it covers the change
        self.panel.wait_for()
        self.page.evaluate(CHANGED)
        self.page.set_viewport_size(size)
        self.laid_out()
        self.worn = scheme, width, height

    def laid_out(self) -> None:
        """Until the cells have kept their places for a while and no frame is owed."""
        end, before, calm = time.monotonic() + 30, None, 0
        while calm < 3:
            assert time.monotonic() < end, "the cells do not come to rest"
            now = self.panel.evaluate(PLACES)
            calm, before = calm + 1 if now == before else 0, now
            self.page.wait_for_timeout(100)

    def unroll(self) -> None:
        """A window so tall that all cells are on the screen: axe judges colours only there.

        Cells get their true height when they are seen, so the window grows until it holds them
        all, and they stay as they are.
        """
        outer = self.panel.locator(".jp-WindowedPanel-outer")
        end, height, before = time.monotonic() + 30, 0, None
        while before is None or not outer.evaluate(CONTENT) == before <= height:
            assert time.monotonic() < end, "the cells' heights do not settle"
            before = outer.evaluate(CONTENT)
            height = max(height, before + 400)
            width = self.page.viewport_size["width"]
            self.page.set_viewport_size({"width": width, "height": height})
            self.page.wait_for_timeout(300)

    # ---- looking ----

    def axe(
        self, inside: Sequence[str] = OURS
    ) -> tuple[list[tuple[str, list[str]]], dict[str, int]]:
        """What axe objects to inside these places, and how many places each rule found sound.

        JupyterLab's body has no height of its own, by which axe takes all in it for hidden.
        """
        self.page.add_style_tag(content="body { min-height: 100vh }")
        return axe(self.page, inside, THEIRS, TAGS)

    def sideways(self) -> float:
        """By how many pixels the notebook is wider than its window."""
        return self.panel.locator(".jp-WindowedPanel-outer").evaluate(SIDEWAYS)

    def cells(self) -> Locator:
        return self.panel.locator(".jp-CodeCell")

    def busy(self) -> int:
        """How many cells run or wait to run."""
        return self.panel.locator(".jp-CodeCell .jp-InputPrompt", has_text="[*]").count()

    def not_executed(self) -> list[str]:
        """The first lines of code cells that have no execution number."""
        script = """cells => cells
            .filter(c => !/\\[\\d+\\]/.test(c.querySelector('.jp-InputPrompt').textContent))
            .map(c => c.querySelector('.cm-content')?.textContent ?? '')
            .filter(text => text.trim())"""
        return self.cells().evaluate_all(script)

    def texts(self, selector: str) -> list[str]:
        return self.panel.locator(selector).all_text_contents()

    def outputs(self) -> str:
        """All text that the cells put out, also what is scrolled out of view; no source code."""
        return "\n".join(self.texts(".jp-OutputArea-output"))

    def verdicts(self) -> dict[str, str]:
        """exercise -> outcome, as shown."""
        pairs = self.panel.locator(".inferlab-verdict").evaluate_all(
            "all => all.map(v => [v.querySelector('code').textContent, v.dataset.outcome])"
        )
        return dict(pairs)

    def images_without_words(self) -> list[str]:
        """Images with no text alternative of ours: JupyterLab itself puts "Image" there."""
        script = """all => all.filter(i => ['', 'Image'].includes((i.alt || '').trim()))
                           .map(i => i.outerHTML.slice(0, 120))"""
        return self.panel.locator("img").evaluate_all(script)
