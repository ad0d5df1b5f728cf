"""Formgrader with pages that show a student's work, names and files safely.

nbgrader names its exporter and its templates in code, not in settings, so this module takes their
places. `nbgrader_config.py` calls `install`, and formgrader serves no course before it has read
that file.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from jinja2 import Environment, FileSystemLoader
from nbgrader.server_extensions.formgrader import base, handlers

from grader.safe_pages.exporters import CLOSED, STOCK, FormgradeExporter, OwnScripts, with_policy

# A file of a student's, opened by itself: shown, if it is a picture or a text, and nothing more.
FILE_POLICY = f"sandbox; {CLOSED}; img-src 'self' data:; style-src 'unsafe-inline'"


def install() -> None:
    """Put the safe pages in place of nbgrader's own; doing it again changes nothing."""
    base.BaseHandler.exporter = property(lambda handler: exporter())
    base.BaseHandler.render = render
    handlers.SubmissionFilesHandler.content_security_policy = property(lambda _: FILE_POLICY)
    handlers.SubmissionFilesHandler.set_extra_headers = never_guess


@lru_cache(maxsize=1)
def exporter() -> FormgradeExporter:
    """Makes the page of a submission."""
    return FormgradeExporter()


@lru_cache(maxsize=1)
def templates() -> Environment:
    """nbgrader's templates, with the names of people and files escaped."""
    return Environment(loader=FileSystemLoader(STOCK), autoescape=True)


def render(handler: base.BaseHandler, name: str, **values: Any) -> str:
    """One of formgrader's other pages, which fill in their tables by script."""
    own = OwnScripts()
    page = own.mark(templates().get_template(name).render(**values))
    return with_policy(page, own.policy())


def never_guess(handler: handlers.SubmissionFilesHandler, path: str) -> None:
    """A browser must not take a text for a page."""
    handler.set_header("X-Content-Type-Options", "nosniff")
