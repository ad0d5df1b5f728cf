"""The server's live page in a real browser: batch and page map are seen to move.

A server of the shipped model in a process of its own; Chromium opens its page while requests run.
No request may leave this machine. A screenshot is left in test-artifacts/browser/.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
from live_page import LivePage
from places import ROOT
from playwright.sync_api import Browser

from inferlab.serve.load_client import Sample, load
from inferlab.serve.process import running_server

pytestmark = pytest.mark.browser

N_USERS, N_TOKENS = 5, 180


@pytest.fixture(scope="module")
def address(browser: Browser) -> Iterator[str]:
    """No server is started where there is no browser."""
    with running_server("--pages", "192", "--page-size", "8", "--max-running", "4") as url:
        yield url


@pytest.fixture
def live(browser: Browser, address: str) -> Iterator[LivePage]:
    context = browser.new_context(viewport={"width": 1200, "height": 900})
    context.set_default_timeout(15_000)
    found = LivePage(context.new_page())
    found.page.goto(address)
    yield found
    context.close()


def wait_for(live: LivePage, condition, what: str, seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, what
        live.page.wait_for_timeout(60)


def answered(row: list[str]) -> int:
    """Tokens of the answer so far: the fourth cell is "17 of 180"."""
    return int(row[3].split(" of ")[0])


def test_batch_and_page_map_move_while_requests_run(live: LivePage, address: str) -> None:
    wait_for(live, lambda: live.text("model") == "tiny-target", "the page does not come alive")
    assert live.text("running") == "0 of 4"
    assert live.page.locator("#map i").count() == 192
    before = live.filled()

    samples: list[Sample] = []
    prompts = [f"user {i} says: what news from the court today, my lord?" for i in range(N_USERS)]
    users = threading.Thread(
        target=lambda: samples.extend(
            load(address, prompts, arrivals_s=[0.0] * N_USERS, max_tokens=N_TOKENS)
        )
    )
    users.start()
    wait_for(live, lambda: live.text("running") == "4 of 4", "the batch does not fill")
    assert live.text("waiting") == "1"  # five users, room for four
    seen = {row[0]: answered(row) for row in live.rows()}
    assert len(seen) == 4
    filled = live.filled()
    assert filled > before
    wait_for(
        live,
        lambda: any(
            answered(row) > seen[row[0]] + 5 for row in live.rows() if row[0] in seen
        ) and live.filled() > filled,
        "nothing moves: neither an answer nor the page map grows",
    )  # fmt: skip
    shots = ROOT / "test-artifacts" / "browser"
    shots.mkdir(parents=True, exist_ok=True)
    live.page.screenshot(path=str(shots / "live-page.png"))

    users.join(60)
    assert [s.failed for s in samples] == [""] * N_USERS
    wait_for(live, lambda: live.text("running") == "0 of 4", "the batch does not empty")
    assert live.rows() == []
    assert "0 in use" in live.text("pages")
    assert "/" in live.text("itl")  # median and p95
    label = live.page.locator("#map").get_attribute("aria-label")
    assert label == live.text("pages")
    assert live.outside == [], "requests left this machine"
    assert live.troubles == []


def test_the_page_says_when_the_server_is_gone(browser: Browser) -> None:
    page = browser.new_page()
    page.set_default_timeout(15_000)
    with running_server("--pages", "64") as url:
        page.goto(url)
        page.locator("#running", has_text="0 of 16").wait_for()
        assert page.locator("#lost").inner_text() == ""
    page.locator("#lost", has_text="does not answer").wait_for()
    page.close()
