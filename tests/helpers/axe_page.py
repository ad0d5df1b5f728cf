"""What axe-core, the judge of whether everybody can read a page, says of one."""

from __future__ import annotations

from collections.abc import Sequence

from axe_playwright_python.base import AXE_SCRIPT
from playwright.sync_api import Page

# Counted in the page: what axe tells of each place that it found sound fills a third of a megabyte.
RUN = """([context, options]) => axe.run(context, options).then(found => ({
    violations: found.violations.map(v => [v.id, v.nodes.map(n => n.html.slice(0, 160))]),
    passes: Object.fromEntries(found.passes.map(rule => [rule.id, rule.nodes.length])) }))"""


def axe(
    page: Page,
    inside: Sequence[str] = (),
    without: Sequence[str] = (),
    tags: Sequence[str] = (),
) -> tuple[list[tuple[str, list[str]]], dict[str, int]]:
    """What axe objects to inside these places, and how many places each rule found sound.

    All of the page where no place is named, and all of axe's rules where no tag is.
    """
    context = {"exclude": [[selector] for selector in without]}
    context["include"] = [[selector] for selector in inside] if inside else [["html"]]
    options = {"runOnly": {"type": "tag", "values": list(tags)}} if tags else {}
    page.evaluate(AXE_SCRIPT)
    found = page.evaluate(RUN, [context, options | {"selectors": False}])
    return [(name, places) for name, places in found["violations"]], found["passes"]
