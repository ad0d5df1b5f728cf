"""The static site in a real browser: from a server and from a plain folder, light and dark.

Nothing on a page may come from another computer. Screenshots are left in test-artifacts/browser/.
"""

from __future__ import annotations

import functools
import http.server
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote, urlparse

import pytest
from axe_page import axe
from lab_page import LOOPBACK
from places import SHOTS
from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.browser

LESSON = "lessons/04_kv_cache.html"
PAGES = ("index.html", LESSON, "cheatsheet.html", "glossary.html")


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Serves files, and keeps no log."""

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def html(browser: Browser, request: pytest.FixtureRequest) -> Path:
    """Nothing is built where there is no browser."""
    return request.getfixturevalue("site").html


@pytest.fixture(scope="module")
def served(html: Path) -> Iterator[str]:
    """The site as `python -m http.server` serves it."""
    handler = functools.partial(Quiet, directory=str(html))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


class SitePage:
    """A page of the site, and a record of everything that went wrong in it."""

    def __init__(self, page: Page, base: str) -> None:
        self.page, self.base = page, base
        self.outside: list[str] = []
        self.troubles: list[str] = []
        page.on("request", lambda request: self._seen(request.url))
        page.on("pageerror", lambda error: self.troubles.append(f"page error: {error}"))
        page.on("requestfailed", lambda r: self.troubles.append(f"failed: {r.url} {r.failure}"))
        page.on("console", lambda m: self.troubles.append(m.text) if m.type == "error" else None)

    def _seen(self, url: str) -> None:
        parts = urlparse(url)
        if parts.scheme in ("http", "https", "ws", "wss") and parts.hostname not in LOOPBACK:
            self.outside.append(url)

    def open(self, path: str) -> None:
        """Open a page and wait until its mathematics is set."""
        self.page.goto(f"{self.base}/{path}", wait_until="load")
        self.page.wait_for_function("!window.MathJax || window.MathJax.startup?.promise")
        self.page.evaluate("window.MathJax?.startup?.promise")

    def shot(self, name: str) -> None:
        SHOTS.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=str(SHOTS / f"site-{name}.png"))

    def found(self, word: str) -> list[str]:
        """Addresses that the site's search gives for a word."""
        self.page.goto(f"{self.base}/search.html?q={quote(word)}")
        self.page.locator("#search-results li a").first.wait_for()
        links = self.page.locator("#search-results li a")
        return links.evaluate_all("all => all.map(link => link.href)")


@contextmanager
def opened(browser: Browser, base: str, scheme: str = "light", width: int = 1280):
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    context.set_default_timeout(15_000)
    yield SitePage(context.new_page(), base)
    context.close()


@pytest.mark.parametrize("path", PAGES)
def test_a_page_is_whole_and_asks_nobody(browser: Browser, served: str, path: str) -> None:
    with opened(browser, served) as site:
        site.open(path)
        site.shot(Path(path).stem)
        assert site.page.locator("mjx-merror").count() == 0
        maths = site.page.locator("mjx-container").count()
        assert maths > 3 if path in (LESSON, "cheatsheet.html") else maths == 0
        broken = (
            "all => all.filter(i => i.complete && !i.naturalWidth).map(i => i.src.slice(0, 99))"
        )
        assert site.page.locator("img").evaluate_all(broken) == []
        assert site.outside == []
        assert site.troubles == []


def test_a_detail_opens_and_the_next_lesson_follows(browser: Browser, served: str) -> None:
    with opened(browser, served) as site:
        site.open("lessons/01_roofline.html")
        answer = site.page.locator("article details:not(.predict):not(.hide)").first
        answer.scroll_into_view_if_needed()
        assert not answer.locator("p").first.is_visible()
        answer.locator("summary").click()
        assert answer.locator("p").first.is_visible()
        site.page.locator("a.right-next").click()
        assert site.page.url.endswith(LESSON)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("path", PAGES)
def test_everybody_can_read_it(browser: Browser, served: str, path: str, scheme: str) -> None:
    """axe-core finds nothing, in either colour scheme."""
    with opened(browser, served, scheme) as site:
        site.open(path)
        assert site.page.locator("html").get_attribute("data-theme") == scheme
        site.shot(f"{Path(path).stem}-{scheme}")
        assert axe(site.page)[0] == []


def test_search_works_on_a_server(browser: Browser, served: str) -> None:
    with opened(browser, served) as site:
        assert any(LESSON in link for link in site.found("ring"))
        assert any("glossary" in link for link in site.found("uptraining"))
        assert site.troubles == []


def test_search_works_from_a_plain_folder(browser: Browser, html: Path) -> None:
    """Without a server. Such a page may not read others, so there are no excerpts."""
    with opened(browser, html.as_uri()) as site:
        assert any(LESSON in link for link in site.found("ring"))
        assert site.outside == []


def test_on_a_narrow_page_nothing_hangs_over(browser: Browser, served: str) -> None:
    with opened(browser, served, width=800) as site:
        for path in PAGES:
            site.open(path)
            site.shot(f"{Path(path).stem}-800")
            over = "() => document.documentElement.scrollWidth - innerWidth"
            assert site.page.evaluate(over) <= 0, path


def test_the_cheat_sheet_prints_on_two_pages(browser: Browser, served: str) -> None:
    with opened(browser, served) as site:
        site.open("cheatsheet.html")
        site.shot("cheatsheet")
        pdf = site.page.pdf(prefer_css_page_size=True)
        (SHOTS / "cheatsheet.pdf").write_bytes(pdf)
        assert len(re.findall(rb"/Type\s*/Page\b(?!s)", pdf)) == 2
        boxes = set(re.findall(rb"/MediaBox\s*\[([^\]]+)\]", pdf))
        assert {tuple(round(float(x)) for x in box.split()) for box in boxes} == {(0, 0, 595, 842)}
