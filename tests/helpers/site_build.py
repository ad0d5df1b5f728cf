"""Build a small site for a test: measuring cells are skipped, so a lesson runs in seconds."""

import os
import subprocess
import sys
from pathlib import Path

from lesson_text import ROOT


def build_site(into: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """`python -m tools.book WORDS` into a folder of the test's own."""
    command = [sys.executable, "-m", "tools.book", *words, "--into", str(into)]
    env = os.environ | {"INFERLAB_CHECK_ONLY": "1"}
    return subprocess.run(
        command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=300, check=False
    )
