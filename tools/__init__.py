"""Programs for those who write the course; nothing here is installed. Run each as a module:

python -m tools.docs.pipeline
"""

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
"""The repository."""

DOCS = ROOT / "docs"
TINY = ROOT / "data" / "tiny"
HELPERS = ROOT / "tests" / "helpers"
