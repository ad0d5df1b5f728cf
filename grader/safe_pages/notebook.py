"""A notebook as far as a page shows it, in the shapes that templates expect and no others.

A submitted notebook is any JSON: nbformat warns of what does not fit and reads it all the same.
"""

from __future__ import annotations

import html
import re
from typing import Any

from nbformat import NotebookNode, from_dict

SHOWN = ("text/html", "text/markdown", "image/svg+xml", "image/png", "image/jpeg", "text/plain")
GRADE_ID = re.compile(r"[A-Za-z0-9_\-.]+")
BASE64 = re.compile(r"[A-Za-z0-9+/=\s]*")
PYTHON = {"name": "python", "pygments_lexer": "ipython3"}


def make_safe(nb: NotebookNode) -> NotebookNode:
    """A valid notebook with everything dropped that no page of ours shows, ids of cells too."""
    cells = [safe_cell(cell) for cell in nb.get("cells", []) if isinstance(cell, dict)]
    facts = {"metadata": {"language_info": PYTHON}, "nbformat": 4, "nbformat_minor": 4}
    return from_dict({"cells": cells, **facts})


def safe_cell(cell: dict[str, Any]) -> dict[str, Any]:
    """The cell's source, attachments, outputs and what nbgrader knows of it."""
    facts = nbgrader_facts(cell.get("metadata", {}))
    made: dict[str, Any] = {
        "cell_type": "raw",
        "source": joined(cell.get("source", "")),
        "metadata": {"nbgrader": facts} if facts else {},
    }
    if cell.get("cell_type") == "markdown":
        made["cell_type"] = "markdown"
        made["attachments"] = safe_attachments(cell.get("attachments", {}))
    elif cell.get("cell_type") == "code":
        count = cell.get("execution_count")
        made["cell_type"] = "code"
        made["execution_count"] = count if type(count) is int and count >= 0 else None
        made["outputs"] = safe_outputs(cell.get("outputs", []))
    return made


def joined(text: Any) -> str:
    """A text that a notebook may hold as a list of lines."""
    return "".join(map(str, text)) if isinstance(text, list) else str(text)


def nbgrader_facts(metadata: Any) -> dict[str, Any] | None:
    """What templates read of cell.metadata.nbgrader; None where there is nothing to trust."""
    facts = metadata.get("nbgrader") if isinstance(metadata, dict) else None
    if not isinstance(facts, dict) or not GRADE_ID.fullmatch(str(facts.get("grade_id", ""))):
        return None
    kept: dict[str, Any] = {"grade_id": str(facts["grade_id"])}
    for name in ("grade", "solution", "task", "locked"):
        kept[name] = facts.get(name) is True
    for name in ("points", "score"):
        kept[name] = number(facts.get(name))
    kept["comment"] = joined(facts.get("comment") or "")
    return kept


def number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else 0.0


def safe_attachments(attachments: Any) -> dict[str, Any]:
    """Pictures by name, in the form in which a notebook holds them."""
    kept: dict[str, Any] = {}
    for name, bundle in attachments.items() if isinstance(attachments, dict) else ():
        pictures = bundle.items() if isinstance(bundle, dict) else ()
        good = {m: d for m, d in pictures if m.startswith("image/") and is_base64(d)}
        if good:
            kept[name] = good
    return kept


def is_base64(data: Any) -> bool:
    return isinstance(data, str) and bool(BASE64.fullmatch(data))


def safe_outputs(outputs: Any) -> list[dict[str, Any]]:
    """Outputs whose data is of a kind that a page shows: text, safe HTML to be, pictures."""
    given = outputs if isinstance(outputs, list) else []
    made = (_output(output) for output in given if isinstance(output, dict))
    return [output for output in made if output is not None]


def _output(output: dict[str, Any]) -> dict[str, Any] | None:
    kind = output.get("output_type")
    if kind == "stream":
        name = "stderr" if output.get("name") == "stderr" else "stdout"
        return {"output_type": kind, "name": name, "text": joined(output.get("text", ""))}
    if kind == "error":
        lines = output.get("traceback", [])
        lines = [str(line) for line in lines] if isinstance(lines, list) else [str(lines)]
        return {"output_type": kind, "ename": "", "evalue": "", "traceback": lines}
    if kind in ("display_data", "execute_result"):
        data, sizes = _data(output.get("data", {})), _sizes(output.get("metadata", {}))
        return {"output_type": "display_data", "data": data, "metadata": sizes}
    return None


def _data(data: Any) -> dict[str, str]:
    """The representations that a page may choose from. A widget or a script has its text."""
    data = data if isinstance(data, dict) else {}
    shown = {m: joined(data[m]) for m in SHOWN if isinstance(data.get(m), str | list)}
    for kind in ("image/png", "image/jpeg"):
        if not is_base64(shown.get(kind, "")):
            del shown[kind]
    if isinstance(data.get("text/latex"), str) and "text/html" not in shown:
        shown["text/html"] = html.escape(data["text/latex"])  # its maths is found there
    if not shown:
        kinds = ", ".join(map(str, data)) or "nothing"
        shown["text/plain"] = f"[not shown: an output of {kinds}]"
    return shown


def _sizes(metadata: Any) -> dict[str, Any]:
    """Width, height and text alternative of pictures; templates write them unquoted."""
    kept: dict[str, Any] = {}
    for kind in ("image/png", "image/jpeg"):
        facts = metadata.get(kind) if isinstance(metadata, dict) else None
        if isinstance(facts, dict):
            sizes = {n: facts[n] for n in ("width", "height") if isinstance(facts.get(n), int)}
            kept[kind] = sizes | (
                {"alt": facts["alt"]} if isinstance(facts.get("alt"), str) else {}
            )
    return kept
