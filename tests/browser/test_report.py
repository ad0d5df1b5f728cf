"""The report of interview practice in a real browser: one printed page, readable by all.

Screenshots are left in test-artifacts/browser/.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from axe_page import axe
from interview_candidate import Candidate, Time, sit, whole_bank
from places import SHOTS

from labkit.interview.history import History
from labkit.interview.page import page
from labkit.interview.summary import report

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> Path:
    """The report of somebody who believes everything wrong that there is: the longest one."""
    bank, history, time = whole_bank(), History.in_memory(), Time()
    everything = Candidate(frozenset(bank.catalogue.by_id), pace=1.7)
    sit(everything, bank, history, list(bank.items.values()), time)
    sure = [
        type(a)(**{**vars(a), "confidence": 0.9 if a.score else 0.6}) for a in history.answers()
    ]
    ratios = {f"{i}": 2.0 ** (i % 7 - 3) for i in range(40)}
    found = report(sure, history.cards(), bank, time.date, 3, ratios)
    path = tmp_path_factory.mktemp("a report") / "report.html"
    path.write_text(page(found, time.date), encoding="utf-8")
    return path


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 800, 400])
def test_it_reads_well_at_every_width(written, browser, scheme, width):
    sheet = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    asked: list[str] = []
    sheet.on("request", lambda request: asked.append(request.url))
    sheet.goto(written.as_uri())
    SHOTS.mkdir(parents=True, exist_ok=True)
    sheet.screenshot(path=SHOTS / f"report-{width}-{scheme}.png", full_page=True)
    assert sheet.evaluate("document.documentElement.scrollWidth") <= width
    assert asked == [written.as_uri()]
    assert axe(sheet)[0] == []


def test_it_prints_on_one_page(written, browser):
    sheet = browser.new_page()
    sheet.goto(written.as_uri())
    printed = sheet.pdf(prefer_css_page_size=True)
    assert len(re.findall(rb"/Type\s*/Page[^s]", printed)) == 1
