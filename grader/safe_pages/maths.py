r"""TeX in a page becomes MathML, which a browser draws by itself: no script, no font to fetch.

The rules for what is maths are those of JupyterLab: $…$ and \(…\) in a line, $$…$$, \[…\] and
\begin{…}…\end{…} apart, never inside code.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

import nh3
from bs4 import BeautifulSoup, NavigableString
from latex2mathml.converter import convert
from markupsafe import Markup

LONGEST = 4000  # characters of TeX; nobody writes more, and converting takes time
SPANS = re.compile(
    r"""(?<!\\)(?:
        \$\$(?P<block>.+?)(?<!\\)\$\$
      | \\\[(?P<bracket>.+?)\\\]
      | (?P<environment>\\begin\{(?P<name>[a-z]+\*?)\}.+?\\end\{(?P=name)\})
      | \\\((?P<paren>.+?)\\\)
      | \$(?P<line>[^$]+?)(?<!\\)\$
    )""",
    re.S | re.X,
)
ESCAPED = re.compile(r"\\([_#%&$ {}])")  # in words, which the converter leaves as they are
NOT_MATHS = {"code", "pre", "kbd", "samp", "tt", "math", "a"}

TAGS = {
    "math", "mrow", "mi", "mo", "mn", "mtext", "mspace", "msup", "msub", "msubsup", "munder",
    "mover", "munderover", "mfrac", "msqrt", "mroot", "mtable", "mtr", "mtd", "mstyle", "mpadded",
    "mphantom", "menclose", "mmultiscripts", "mprescripts", "none",
}  # fmt: skip
ON_ANY_TAG = {
    "accent", "accentunder", "alttext", "columnalign", "columnlines", "columnspacing", "depth",
    "display", "displaystyle", "fence", "form", "height", "largeop", "linethickness", "lspace",
    "mathcolor", "mathvariant", "maxsize", "minsize", "movablelimits", "notation", "rowlines",
    "rowspacing", "rspace", "scriptlevel", "separator", "stretchy", "symmetric", "voffset", "width",
}  # fmt: skip


def typeset(html: Markup) -> Markup:
    """Safe HTML with its maths as MathML; what cannot be read as maths stays as it was typed."""
    if not any(sign in html for sign in ("$", "\\(", "\\[", "\\begin")):
        return html
    soup = BeautifulSoup(str(html), "html.parser")
    for text in soup.find_all(string=SPANS):
        if not any(parent.name in NOT_MATHS for parent in text.parents):
            _typeset_text(text)
    return Markup(str(soup))


def _typeset_text(text: NavigableString) -> None:
    pieces: list[Any] = []
    end = 0
    for match in SPANS.finditer(text):
        formula = mathml(*_tex_of(match))
        if formula:
            pieces.append(NavigableString(_plain(text[end : match.start()])))
            pieces.extend(BeautifulSoup(formula, "html.parser").contents)
            end = match.end()
    pieces.append(NavigableString(_plain(text[end:])))
    text.replace_with(*pieces)


def _tex_of(match: re.Match) -> tuple[str, bool]:
    """(TeX, whether it stands apart)"""
    for kind in ("block", "bracket", "environment"):
        if match[kind]:
            return match[kind], True
    return match["paren"] or match["line"], False


def _plain(text: str) -> str:
    r"""\$ is a dollar, once maths has been found."""
    return text.replace("\\$", "$")


@lru_cache(maxsize=4096)
def mathml(tex: str, apart: bool) -> str:
    """One formula as <math> with its TeX as text alternative, or "" where it cannot be read."""
    if len(tex) > LONGEST:
        return ""
    try:
        formula = convert(tex.strip(), display="block" if apart else "inline")
    except Exception:  # the converter raises what its parser stumbles over: many kinds
        return ""
    clean = nh3.clean(formula, tags=TAGS, attributes={"*": ON_ANY_TAG})
    soup = BeautifulSoup(clean, "html.parser")
    if soup.math is None:
        return ""
    for words in soup.find_all("mtext"):
        words.string = ESCAPED.sub(r"\1", words.get_text())
    soup.math["alttext"] = tex.strip()
    return str(soup)
