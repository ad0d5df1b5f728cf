"""The live page of a server, in a browser."""

from __future__ import annotations

from urllib.parse import urlparse

from lab_page import LOOPBACK
from playwright.sync_api import ConsoleMessage, Page


class LivePage:
    """The page, and a record of everything that went wrong in it."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.outside: list[str] = []
        self.troubles: list[str] = []
        page.on("request", lambda request: self._seen(request.url))
        page.on("console", self._console)
        page.on("pageerror", lambda error: self.troubles.append(f"page error: {error}"))
        page.on("requestfailed", lambda r: self.troubles.append(f"failed: {r.url} {r.failure}"))

    def _seen(self, url: str) -> None:
        if urlparse(url).hostname not in LOOPBACK:
            self.outside.append(url)

    def _console(self, message: ConsoleMessage) -> None:
        # A page without an icon of its own: the browser asks for one, and is told there is none.
        if message.type == "error" and "favicon.ico" not in str(message.location):
            self.troubles.append(f"console: {message.text}")

    def text(self, element: str) -> str:
        return self.page.locator(f"#{element}").inner_text()

    def rows(self) -> list[list[str]]:
        script = "all => all.map(row => [...row.cells].map(cell => cell.textContent.trim()))"
        return self.page.locator("#requests tr").evaluate_all(script)

    def filled(self) -> int:
        """Squares of the page map that hold something."""
        return self.page.locator("#map i.used, #map i.shared, #map i.kept").count()
