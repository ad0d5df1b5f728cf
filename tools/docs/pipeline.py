"""Draw docs/pipeline.svg: what the course builds, part by part.

Run: python -m tools.docs.pipeline
"""

from __future__ import annotations

import sys
from pathlib import Path

from tools import DOCS
from tools.docs.boxes import arrow, box, note, picture

ALT = (
    "A request enters an HTTP server, waits in a scheduler, becomes tokens, is prefilled once and "
    "then decoded token by token; keys and values go into a paged KV cache that every decode step "
    "reads. Lessons 1 to 12 each build one of these parts."
)

# text, lesson, x, y, width, kind
BOXES = (
    ("HTTP server", "12", 0.0, 3.0, 1.7, "flow"),
    ("scheduler,\nbatching", "10", 2.2, 3.0, 1.7, "flow"),
    ("tokenizer", "", 4.4, 3.0, 1.5, "flow"),
    ("prefill", "3", 6.4, 3.0, 1.5, "flow"),
    ("decode step", "3", 8.4, 3.0, 1.7, "flow"),
    ("sampler,\nspeculation", "8", 10.6, 3.0, 1.7, "flow"),
    ("forward pass", "2", 7.2, 4.6, 1.9, "flow"),
    ("attention:\nGQA, MLA", "5", 9.5, 4.6, 1.7, "flow"),
    ("tiles:\nFlashAttention", "6", 11.6, 4.6, 1.8, "flow"),
    ("experts:\nMoE", "9", 5.1, 4.6, 1.7, "flow"),
    ("KV cache", "4", 7.2, 1.4, 1.9, "memory"),
    ("pages,\nshared prefixes", "10", 4.6, 1.4, 2.0, "memory"),
    ("weights,\nquantized", "7", 9.7, 1.4, 1.8, "memory"),
    ("roofline:\nwhat it must cost", "1", 0.4, 0.0, 2.4, "measure"),
    ("latency metrics:\nwhat users feel", "11", 5.4, 0.0, 2.4, "measure"),
    ("capacity:\nhow many GPUs", "12", 10.0, 0.0, 2.4, "measure"),
)

# from (x, y) to (x, y)
ARROWS = (
    ((1.7, 3.475), (2.2, 3.475)),
    ((3.9, 3.475), (4.4, 3.475)),
    ((5.9, 3.475), (6.4, 3.475)),
    ((7.9, 3.475), (8.4, 3.475)),
    ((10.1, 3.475), (10.6, 3.475)),
    ((7.3, 3.0), (7.9, 2.35)),
    ((8.5, 2.35), (9.1, 3.0)),
    ((10.3, 2.35), (9.6, 3.0)),
    ((7.2, 1.875), (6.6, 1.875)),
    ((7.2, 3.95), (7.7, 4.6)),
    ((9.0, 3.95), (8.6, 4.6)),
    ((9.1, 5.075), (9.5, 5.075)),
    ((11.2, 5.075), (11.6, 5.075)),
    ((7.2, 5.075), (6.8, 5.075)),
)


def draw(path: Path) -> None:
    """Write the picture; the same bytes each time."""
    title = "What you will build (numbers are lessons)"
    with picture(path, title, ALT, width=13.7, top=6.4) as axes:
        for one in BOXES:
            box(axes, *one)
        for start, end in ARROWS:
            arrow(axes, start, end)
        # The new token goes back into the next decode step, until the text ends.
        arrow(axes, (11.8, 3.0), (9.95, 3.0), bend=-0.45)
        note(axes, 11.9, 2.62, "each new token,\nuntil the end", ha="left")


if __name__ == "__main__":
    draw(Path(sys.argv[1]) if len(sys.argv) > 1 else DOCS / "pipeline.svg")
