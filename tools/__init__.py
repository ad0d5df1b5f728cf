"""Programs for those who write the course; nothing here is installed.

Run each as a module: `python -m tools.docs.pipeline`. docs/ draws and writes what README and docs/
show, book/ makes the site, tiny_models/ trains the small models, mutants.py tries the checks.
"""

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
"""The repository."""

DOCS = ROOT / "docs"
TINY = ROOT / "data" / "tiny"
HELPERS = ROOT / "tests" / "helpers"
