"""Formgrader with pages that show a student's work, names and files safely.

nbgrader names its exporter and its templates in code, not in settings, so this module takes their
places. Each request is looked at by itself: a folder that holds this course gets the safe pages,
whatever settings nbgrader has read; another course in the same environment gets nbgrader's own.
Where the pages cannot be had, or the course is not where nbgrader looks, one page says so.

What the pages need is imported with the first of them: every student's server loads this module.
"""

from __future__ import annotations

import html
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, FileSystemLoader
from jupyter_core.paths import jupyter_config_dir
from jupyter_server.utils import ensure_async
from nbgrader.server_extensions.formgrader import base, handlers
from sqlalchemy.exc import SQLAlchemyError

from grader.safe_pages import whose
from grader.safe_pages.policy import CLOSED, FILE_POLICY, OwnScripts, with_policy

if TYPE_CHECKING:
    from grader.safe_pages.exporters import FormgradeExporter

_stock_prepare = base.BaseHandler.prepare
_stock_exporter = base.BaseHandler.exporter
_stock_render = base.BaseHandler.render
_stock_file_policy = handlers.SubmissionFilesHandler.content_security_policy
_stock_extra_headers = handlers.SubmissionFilesHandler.set_extra_headers


def install() -> None:
    """Put the safe pages in place of nbgrader's own; doing it again changes nothing."""
    base.BaseHandler.prepare = prepare
    base.BaseHandler.exporter = property(
        lambda handler: exporter() if is_ours(handler) else _stock_exporter.fget(handler)
    )
    base.BaseHandler.render = render
    handlers.SubmissionFilesHandler.content_security_policy = property(
        lambda handler: FILE_POLICY if is_ours(handler) else _stock_file_policy.fget(handler)
    )
    handlers.SubmissionFilesHandler.set_extra_headers = set_extra_headers


def is_ours(handler: base.BaseHandler) -> bool:
    """Whether the course that formgrader has open is this one."""
    root = Path(handler.coursedir.root)
    return whose.holds_course(root) or whose.holds_course(root, in_gradebook(handler))


def in_gradebook(handler: base.BaseHandler) -> list[str]:
    """The assignments in the gradebook; none where it cannot be read, and so shows nothing."""
    try:
        return [assignment.name for assignment in handler.gradebook.assignments]
    except SQLAlchemyError:
        return []


async def prepare(handler: base.BaseHandler) -> None:
    """Before any page or action of formgrader: refuse it where it would mislead or do harm."""
    await ensure_async(_stock_prepare(handler))
    if handler._finished or handler.current_user is None:
        return
    if isinstance(handler, handlers.FormgraderHandler):
        return  # it shows nothing: it opens a course and leads to its first page
    why = refusal(handler)
    if why:
        handler.set_status(409)
        shown = (
            f"<!DOCTYPE html><html><head><title>Formgrader</title></head><body>{why}</body></html>"
        )
        handler.finish(with_policy(shown, CLOSED))


def refusal(handler: base.BaseHandler) -> str:
    """Why formgrader does not work here, as HTML; "" where it does."""
    root = Path(handler.coursedir.root)
    if is_empty(handler):
        return elsewhere(root, whose.courses_below(root))
    if not is_ours(handler):
        return ""
    try:
        exporter()
    except Exception as trouble:
        words = html.escape(f"{type(trouble).__name__}: {trouble}")
        return f"<p>What makes these pages safe to open cannot be loaded ({words}).</p>"
    return ""


def is_empty(handler: base.BaseHandler) -> bool:
    """Whether there is no course at all; looking must not make a gradebook here."""
    course = handler.coursedir
    sources = Path(course.format_path(course.source_directory, ".", "."))
    if whose.holds_course(Path(course.root)) or any(sources.glob("*/")):
        return False
    return not (Path(course.root) / "gradebook.db").is_file() or not in_gradebook(handler)


def elsewhere(root: Path, courses: list[Path]) -> str:
    """That the course lies in another folder, and the line that leads nbgrader to it."""
    if not courses:
        return ""
    settings = Path(jupyter_config_dir()) / "nbgrader_config.py"
    lines = "".join(
        f"<pre>load_subconfig({html.escape(repr(str(course / 'nbgrader_config.py')))})</pre>"
        for course in courses
    )
    return (
        f"<p>The folder {html.escape(str(root))}, which nbgrader works in, is no course; there is "
        f"one further down. Write this line in {html.escape(str(settings))} and start the server "
        f"again:</p>{lines}"
    )


@lru_cache(maxsize=1)
def exporter() -> FormgradeExporter:
    """Makes the page of a submission."""
    from grader.safe_pages.exporters import FormgradeExporter

    return FormgradeExporter()


@lru_cache(maxsize=1)
def templates() -> Environment:
    """nbgrader's templates, with the names of people and files escaped."""
    return Environment(loader=FileSystemLoader(handlers.template_path), autoescape=True)


def render(handler: base.BaseHandler, name: str, **values: Any) -> str:
    """One of formgrader's other pages: the safe one, or nbgrader's for another course."""
    return page(name, **values) if is_ours(handler) else _stock_render(handler, name, **values)


def page(name: str, **values: Any) -> str:
    """A page made of a template of nbgrader's, which fills in its tables by script."""
    own = OwnScripts()
    rendered = own.mark(templates().get_template(name).render(**values))
    return with_policy(rendered, own.policy())


def set_extra_headers(handler: handlers.SubmissionFilesHandler, path: str) -> None:
    """A browser must not take a text for a page."""
    _stock_extra_headers(handler, path)
    if is_ours(handler):
        handler.set_header("X-Content-Type-Options", "nosniff")
