"""Build a small site for a test: measuring cells are skipped, so a lesson runs in seconds."""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from places import ROOT

SITE_LESSONS = ("01_roofline", "04_kv_cache")


@dataclass(frozen=True)
class Site:
    """A site of SITE_LESSONS, and what its build said."""

    into: Path
    built: subprocess.CompletedProcess[str]

    @property
    def html(self) -> Path:
        assert self.built.returncode == 0, self.built.stderr
        return self.into / "html"


def build_site(into: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """`python -m tools.book WORDS` into a folder of the test's own."""
    command = [sys.executable, "-m", "tools.book", *words, "--into", str(into)]
    env = os.environ | {"INFERLAB_CHECK_ONLY": "1"}
    return subprocess.run(
        command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=300, check=False
    )
