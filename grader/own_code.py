"""Where the course's own packages lie: side by side in an environment, or in a repository."""

from __future__ import annotations

from pathlib import Path

import inferlab
import labkit
import sandbox

PACKAGES = ("inferlab", "labkit", "sandbox", "grader")

FOLDERS = (
    *(Path(package.__path__[0]).resolve() for package in (inferlab, labkit, sandbox)),
    Path(__file__).resolve().parent,
)
"""The folders of PACKAGES, in that order."""


def search_path() -> list[str]:
    """What Python has to search for modules to find all of them."""
    return list(dict.fromkeys(str(folder.parent) for folder in FOLDERS))
