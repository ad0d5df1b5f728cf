"""Where things are, for every test."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
"""The repository."""

SHOTS = ROOT / "test-artifacts" / "browser"
"""Where browser tests leave their screenshots."""

HELPERS = ROOT / "tests" / "helpers"
