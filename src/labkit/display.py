"""Put a result before the reader: rich in a notebook, plain text elsewhere."""

from __future__ import annotations

import html
import re
import sys
from collections.abc import Container, Iterable, Sequence
from typing import Any


def ipython() -> Any:
    """The running IPython shell, or None; IPython is not imported to find out."""
    module = sys.modules.get("IPython")
    return module.get_ipython() if module is not None else None


def in_kernel() -> bool:
    """True in a Jupyter kernel: front ends there show HTML and, mostly, widgets."""
    return getattr(ipython(), "kernel", None) is not None


def put(markup: str, text: str, *, kind: str = "text/html") -> None:
    """Display markup (HTML or Markdown); front ends without it show the plain text."""
    if ipython() is None:
        print(text)
        return
    from IPython.display import display

    display({kind: markup, "text/plain": text}, raw=True)


def inline_html(text: str) -> str:
    """Escaped text with `code` and **bold** turned into HTML."""
    safe = html.escape(text, quote=False)
    safe = re.sub(r"`([^`]+)`", r"<code>\1</code>", safe)
    return re.sub(r"\*\*(.+?)\*\*", r"<b>\1</b>", safe)


def table(
    caption: str,
    heads: Sequence[str],
    rows: Iterable[Sequence[str]],
    right: Container[int] = (),
) -> str:
    """A table as HTML: its first column names the rows. Texts as for inline_html.

    right: columns of numbers, set to the right and never broken. A cell that only draws a bar of
    ■ and □ is kept from screen readers: the number stands beside it.
    """

    def look(column: int) -> str:
        if column in right:
            return 'style="text-align:right;white-space:nowrap;padding:0.2em 0.7em"'
        return 'style="text-align:left;padding:0.2em 0.7em"'

    def cell(column: int, text: str) -> str:
        hidden = ' aria-hidden="true"' if text and not text.strip("■□") else ""
        inside = f"<span{hidden}>{text}</span>" if hidden else inline_html(text)
        if column == 0:
            return f'<th scope="row" {look(0)}>{inside}</th>'
        return f"<td {look(column)}>{inside}</td>"

    head = "".join(
        f'<th scope="col" {look(i)}>{inline_html(name)}</th>' if name else f"<td {look(i)}></td>"
        for i, name in enumerate(heads)
    )
    body = "".join(
        f"<tr>{''.join(cell(i, text) for i, text in enumerate(row))}</tr>" for row in rows
    )
    title = f'<caption style="text-align:left">{inline_html(caption)}</caption>'
    return f"<table>{title}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def box(text: str) -> str:
    """A note in a frame, as HTML."""
    frame = "border:2px dashed #717581;padding:0.5em 0.9em;margin:0.4em 0;max-width:46em"
    return f'<div role="note" style="{frame}">{inline_html(text)}</div>'
