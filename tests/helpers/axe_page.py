"""What axe-core, the judge of whether everybody can read a page, says of one."""

from __future__ import annotations

from collections.abc import Sequence

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page


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
    context |= {"include": [[selector] for selector in inside]} if inside else {}
    options = {"runOnly": {"type": "tag", "values": list(tags)}} if tags else None
    found = Axe().run(page, context=context, options=options).response
    violations = [(v["id"], [n["html"][:160] for n in v["nodes"]]) for v in found["violations"]]
    return violations, {rule["id"]: len(rule["nodes"]) for rule in found["passes"]}
