"""Outputs of a cell as nbformat has them: nothing but text in them, and not too much of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MAX_OUTPUT_BYTES = 1_000_000  # of one cell; the rest is cut off, and the cell says so
MAX_OUTPUTS = 1000


def plain_output(output: Any) -> dict[str, Any] | None:
    """The output with its texts only; None for what is no output."""
    if not isinstance(output, Mapping):
        return None
    make = _KINDS.get(str(output.get("output_type")))
    return make(output) if make else None


def _stream(output: Mapping[str, Any]) -> dict[str, Any]:
    name = "stderr" if output.get("name") == "stderr" else "stdout"
    return {"output_type": "stream", "name": name, "text": _text(output.get("text"))}


def _display(output: Mapping[str, Any]) -> dict[str, Any]:
    data = output.get("data")
    data = data if isinstance(data, Mapping) else {}
    texts = {k: v for k, v in data.items() if type(k) is str and type(v) is str}
    return {"output_type": "display_data", "data": texts, "metadata": {}}


def _error(output: Mapping[str, Any]) -> dict[str, Any]:
    lines = output.get("traceback")
    return {
        "output_type": "error",
        "ename": _text(output.get("ename")),
        "evalue": _text(output.get("evalue")),
        "traceback": [_text(line) for line in lines] if isinstance(lines, list) else [],
    }


_KINDS = {"stream": _stream, "display_data": _display, "error": _error}


def _text(value: Any) -> str:
    return value if type(value) is str else ""


def short_enough(outputs: list[dict[str, Any]], max_bytes: int) -> list[dict[str, Any]]:
    """The first ones that fit; of one that is text, as much as fits; and how much is left out."""
    kept: list[dict[str, Any]] = []
    left, lost = max_bytes, 0
    for output in outputs:
        size = output_bytes(output)
        if size > left or len(kept) >= MAX_OUTPUTS:
            lost += size
            if output["output_type"] == "stream" and left > 0 and len(kept) < MAX_OUTPUTS:
                begun = output["text"].encode()[:left].decode(errors="ignore")
                kept.append({**output, "text": begun + "\n"})
                lost -= left
            left = 0
            continue
        kept.append(output)
        left -= size
    if lost:
        text = f"[{lost:,} bytes more are left out]\n"
        kept.append({"output_type": "stream", "name": "stderr", "text": text})
    return kept


def output_bytes(output: Any) -> int:
    """Bytes of all the text in it."""
    if isinstance(output, str):
        return len(output.encode(errors="replace"))
    parts = output.values() if isinstance(output, Mapping) else output
    return sum(map(output_bytes, parts))
