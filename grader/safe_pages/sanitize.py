"""What of a student's HTML may stay on a page: nh3 removes all else.

Kept: text, tables, links, pictures that bring their own bytes, <details>, alerts, code colours.
Gone: scripts, handlers, frames, forms, styles that cover other things, and every class or id that
nbgrader's own pages look for.
"""

from __future__ import annotations

import re

import nh3
from markupsafe import Markup
from nbconvert.filters.ansi import ansi2html
from pygments.token import STANDARD_TYPES

ID_PREFIX = "text-"  # before every id, so that none is one of the page's own

TAGS = {
    "a", "abbr", "b", "blockquote", "br", "caption", "code", "col", "colgroup", "dd", "del",
    "details", "div", "dl", "dt", "em", "figcaption", "figure", "h1", "h2", "h3", "h4", "h5",
    "h6", "hr", "i", "img", "ins", "kbd", "li", "mark", "ol", "p", "pre", "q", "s", "samp",
    "small", "span", "strong", "sub", "summary", "sup", "table", "tbody", "td", "tfoot", "th",
    "thead", "tr", "tt", "u", "ul", "var",
}  # fmt: skip
ATTRIBUTES = {
    "*": {"dir", "id", "lang", "style", "title"},
    "a": {"href"},
    "img": {"alt", "height", "src", "width"},
    "table": {"border"},
    "td": {"align", "colspan", "rowspan"},
    "th": {"align", "colspan", "rowspan", "scope"},
    "col": {"span"},
    "colgroup": {"span"},
    "ol": {"reversed", "start", "type"},
    "li": {"value"},
    "details": {"open"},
}
ALERTS = {"alert", "alert-info", "alert-success", "alert-warning", "alert-danger"}
CLASSES = {
    "div": {"highlight", "inferlab-verdict", *ALERTS},
    "p": ALERTS,
    "span": set(STANDARD_TYPES.values()) - {""},  # the short names of the colours of code
    "table": {"dataframe"},
}
# Nothing that moves a thing out of its place or makes it overflow, nothing that takes a url().
STYLES = {
    "background-color", "border", "border-bottom", "border-collapse", "border-left",
    "border-radius", "border-right", "border-top", "color", "font-family", "font-style",
    "font-weight", "max-width", "padding", "text-align", "text-decoration", "vertical-align",
    "white-space", "width",
}  # fmt: skip
PICTURE = re.compile(r"data:image/(png|jpeg|gif|webp|svg\+xml)[;,]", re.I)
# A file beside the notebook: no way up or out, nothing encoded, no scheme.
BESIDE = re.compile(r"(?!.*\.\.)[\w\-][\w\-. /]*", re.A)
LINK = re.compile(r"(https?://|mailto:)", re.I)


def safe_html(source: str) -> Markup:
    """The HTML with nothing in it that runs, loads, covers or imitates."""
    return Markup(_CLEANER.clean(source))


def _allowed(tag: str, name: str, value: str) -> str | None:
    """The value that an attribute may have, None to drop it."""
    if name == "src":
        picture = PICTURE.match(value) or _names_a_picture(value)
        return value if picture else None
    if name == "href":
        if value.startswith("#"):
            return f"#{ID_PREFIX}{value[1:]}"
        return value if LINK.match(value) or BESIDE.fullmatch(value) else None
    return value


def _names_a_picture(value: str) -> bool:
    ending = value.rpartition(".")[2].lower()
    return ending in ("png", "jpg", "jpeg", "gif", "webp", "svg") and bool(BESIDE.fullmatch(value))


_CLEANER = nh3.Cleaner(
    tags=TAGS,
    attributes=ATTRIBUTES,
    attribute_filter=_allowed,
    allowed_classes=CLASSES,
    filter_style_properties=STYLES,
    url_schemes={"http", "https", "mailto", "data"},
    link_rel="noopener noreferrer nofollow",
    id_prefix=ID_PREFIX,
    clean_content_tags={"script", "style", "iframe", "noscript", "template", "object"},
)


def safe_terminal(text: str) -> Markup:
    """Terminal output as HTML: its colours stay, everything else is text."""
    return Markup(ansi2html(text))
