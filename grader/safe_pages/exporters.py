"""The two pages that show a student's notebook: formgrader's, and the feedback.

Their templates are nbgrader's own, rendered with autoescape: whatever is not HTML that `sanitize`
has seen comes out as text. A policy in the page's head is the second wall: were some markup to
slip through, the browser would still run no script but the page's own, and ask nobody outside.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from jinja2 import ChoiceLoader, Environment, FileSystemLoader, PrefixLoader, pass_context
from markupsafe import Markup
from nbconvert.exporters import HTMLExporter
from nbconvert.filters import strip_files_prefix
from nbformat import NotebookNode
from nbgrader.server_extensions import formgrader
from traitlets import Bool, List, Unicode

from grader.judging.isolated.notebook import is_check
from grader.notebooks.release import given_text
from grader.safe_pages.maths import typeset
from grader.safe_pages.notebook import make_safe
from grader.safe_pages.policy import STILL, OwnScripts, with_policy
from grader.safe_pages.sanitize import safe_html, safe_terminal

OURS = Path(__file__).parent / "templates"
STOCK = Path(formgrader.__file__).parent / "templates"
BOOTSTRAP = STOCK.parent / "static" / "node_modules" / "bootstrap" / "dist" / "css"
MARKS = "[]()*_`<>!$\\~&|#"
MAX_CHARACTERS, MAX_MARKS = 100_000, 4_000  # a lesson's longest text has some thousands, and 300


def html_of(source: str) -> Markup:
    """A student's HTML as a page may show it."""
    return typeset(safe_html(source))


def too_much(source: str) -> str:
    """Why a text is shown as typed, "" for one of a length that people write.

    The time that rendering takes grows with the square of the marks in it, such as brackets.
    """
    n_marks = sum(map(source.count, MARKS))
    if len(source) <= MAX_CHARACTERS and n_marks <= MAX_MARKS:
        return ""
    return (
        f"This text has {len(source):,} characters, {n_marks:,} of them marks of Markdown, and is "
        f"shown as it was typed: at most {MAX_CHARACTERS:,} and {MAX_MARKS:,} are rendered."
    )


class SafeHTMLExporter(HTMLExporter):
    """nbconvert's exporter, for notebooks by people whom the reader need not trust."""

    # No settings: a course's nbgrader_config.py cannot switch these by accident.
    sanitize_html = Bool(True)
    skip_svg_encoding = Bool(False)
    embed_images = Bool(False)  # it would read any file that the grader may read
    exclude_anchor_links = Bool(True)
    extra_template_basedirs = List(Unicode(), [str(STOCK)]).tag(affects_environment=True)
    extra_template_paths = List(Unicode(), [str(BOOTSTRAP)]).tag(affects_environment=True)

    def policy(self) -> str:
        """The page's Content-Security-Policy."""
        return STILL

    def maths_script(self) -> Markup:
        """What a page's own scripts need in place of MathJax."""
        return Markup()

    def default_filters(self) -> Iterator[tuple[str, Any]]:
        """nbconvert's filters; those that make HTML say so, all others are escaped."""
        filters = dict(super().default_filters())
        filters["markdown2html"] = self.markdown2html
        filters["clean_html"] = html_of
        filters["ansi2html"] = safe_terminal
        filters["strip_files_prefix"] = lambda text: Markup(strip_files_prefix(text))
        for name in ("escape_html", "escape_html_keep_quotes"):
            filters[name] = as_markup(filters[name])
        yield from filters.items()

    @pass_context
    def markdown2html(self, context: Any, source: str) -> Markup:
        """Markdown as HTML that a page may show; as it was typed, where it cannot be rendered."""
        if why := too_much(source):
            return Markup("<p><em>{}</em></p><pre>{}</pre>").format(why, source)
        try:
            rendered = super().markdown2html(context, source)
        except Exception:  # nested without end, a picture that is not there: one cell, not the page
            return Markup("<pre>{}</pre>").format(source)
        return html_of(rendered)

    def register_filter(self, name: str, jinja_filter: Any) -> Any:
        """The one that colours code is registered for each notebook; it escapes by itself."""
        made = as_markup(jinja_filter) if name == "highlight_code" else jinja_filter
        return super().register_filter(name, made)

    def _create_environment(self) -> Environment:
        environment = super()._create_environment()
        environment.autoescape = True
        stock = PrefixLoader({"stock": FileSystemLoader(STOCK / "formgrade")})
        environment.loader = ChoiceLoader([FileSystemLoader(OURS), stock, environment.loader])
        environment.globals["maths_script"] = self.maths_script
        return environment

    def _preprocess(
        self, nb: NotebookNode, resources: dict[str, Any]
    ) -> tuple[NotebookNode, dict[str, Any]]:
        nb, resources = super()._preprocess(nb, resources)
        inlining = resources.get("inlining", {})  # made by nbconvert, from the colours of code
        inlining["css"] = [Markup(css) for css in inlining.get("css", [])]
        for cell in nb.cells:
            if cell.cell_type == "code" and cell.execution_count is None:
                cell.execution_count = Markup("&nbsp;")  # between the brackets of In [ ]:
        return nb, resources

    def from_notebook_node(  # type: ignore[override]
        self, nb: NotebookNode, resources: Any = None, **kw: Any
    ) -> tuple[str, Any]:
        """The page, with its policy in its head."""
        page, resources = super().from_notebook_node(make_safe(nb), resources, **kw)
        return with_policy(page, self.policy()), resources


class FeedbackExporter(SafeHTMLExporter):
    """The page that a student gets back: one file, no script in it, nothing fetched."""

    export_from_notebook = None  # type: ignore[assignment]  # not in the menus of JupyterLab
    template_name = Unicode("feedback").tag(affects_environment=True)

    def _preprocess(
        self, nb: NotebookNode, resources: dict[str, Any]
    ) -> tuple[NotebookNode, dict[str, Any]]:
        """Grading puts the hidden tests back; the student is shown what they were given."""
        nb, resources = super()._preprocess(nb, resources)
        for cell in nb.cells:
            if is_check(cell):
                cell.source = given_text(cell).rstrip()
        return nb, resources


class FormgradeExporter(SafeHTMLExporter):
    """The page on which a person grades: nbgrader's own scripts, and no others."""

    export_from_notebook = None  # type: ignore[assignment]
    template_name = Unicode("formgrade").tag(affects_environment=True)

    def from_notebook_node(  # type: ignore[override]
        self, nb: NotebookNode, resources: Any = None, **kw: Any
    ) -> tuple[str, Any]:
        """The page; its scripts carry a word that is drawn afresh each time."""
        self._own = OwnScripts()
        return super().from_notebook_node(nb, resources, **kw)

    def policy(self) -> str:
        return self._own.policy()

    def maths_script(self) -> Markup:
        """formgrade.js waits for MathJax to say that it has ended: say so at once."""
        return self._own.mark(Markup((OURS / "no_mathjax.html").read_text(encoding="utf-8")))

    def _create_environment(self) -> Environment:
        environment = super()._create_environment()
        environment.filters["own_scripts"] = lambda markup: self._own.mark(markup)
        return environment


def as_markup(filter_: Callable[..., str]) -> Callable[..., Markup]:
    """A filter that escapes what it is given, and now says so."""

    def made(*args: Any, **kwargs: Any) -> Markup:
        return Markup(filter_(*args, **kwargs))

    return made
