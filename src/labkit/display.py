"""Put a result before the reader: rich in a notebook, plain text elsewhere."""

from __future__ import annotations

import html
import re
import sys
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


def box(text: str) -> str:
    """A note in a frame, as HTML."""
    frame = "border:2px dashed #717581;padding:0.5em 0.9em;margin:0.4em 0;max-width:46em"
    return f'<div role="note" style="{frame}">{inline_html(text)}</div>'
