"""Write the generated part of README.md: measured speed.

Run: python -m tools.docs.performance_table
It shows benchmarks/results/*.json, which `make bench` writes.
"""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.table import performance_table
from labkit.files import write_whole
from tools import ROOT

README = ROOT / "README.md"
RESULTS = ROOT / "benchmarks" / "results"
BEGIN = "<!-- performance: begin (python -m tools.docs.performance_table) -->"
END = "<!-- performance: end -->"


def results(folder: Path = RESULTS) -> list[Path]:
    """Records of complete runs, by name."""
    left_out = (".partial.json", "quick.json")
    return sorted(p for p in folder.glob("*.json") if not p.name.endswith(left_out))


def tables(folder: Path = RESULTS) -> str:
    """Every record as a table. Raises FileNotFoundError where there is none."""
    found = results(folder)
    if not found:
        raise FileNotFoundError(f"no record in {folder}; run: make bench")
    records = (json.loads(path.read_text(encoding="utf-8")) for path in found)
    return "\n\n".join(performance_table(record) for record in records)


def with_tables(text: str, folder: Path = RESULTS) -> str:
    """The README's text with its generated part made anew. Raises ValueError without markers."""
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        raise ValueError(f"needed once each: {BEGIN} and {END}")
    before, rest = text.split(BEGIN)
    return f"{before}{BEGIN}\n{tables(folder)}\n{END}{rest.split(END)[1]}"


if __name__ == "__main__":
    write_whole(README, with_tables(README.read_text(encoding="utf-8")))
