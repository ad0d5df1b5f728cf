"""Build the static site. Run: make site, or python -m tools.book [--with-solutions] [LESSON ...]"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import nbformat

from grader.judging import registry
from grader.learner import lab
from tools import ROOT
from tools.book import front, pages, run
from tools.docs import pipeline

BUILT = ROOT / "docs" / "_build"


def main(argv: Sequence[str] | None = None) -> int:
    """Build; the exit status."""
    args = parser().parse_args(argv)
    known = registry.lessons()
    try:
        lessons = [lab.find_lesson(word, known) for word in args.lesson] or list(known)
        return build(sorted(lessons), args.into, args.with_solutions)
    except (ValueError, OSError) as trouble:
        print(f"site: {trouble}", file=sys.stderr)
        return 1


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="python -m tools.book", description=__doc__)
    top.add_argument("lesson", nargs="*", help="only these (default: all)")
    top.add_argument(
        "--with-solutions", action="store_true", help="worked solutions folded in, for instructors"
    )
    top.add_argument("--into", type=Path, default=BUILT, metavar="DIR", help="default: docs/_build")
    return top


def build(lessons: list[str], into: Path, solutions: bool = False) -> int:
    """Run what was not run yet, write the pages' sources, and let Sphinx make the site."""
    name = "html-with-solutions" if solutions else "html"
    source = into / f"source-{name}"
    put_in_place(sources(lessons, into / "executed", solutions), source)
    print(f"site: making {len(lessons)} lessons and {len(front.names())} documents", flush=True)
    command = [sys.executable, "-m", "sphinx", "-b", "html", "--keep-going", "-q"]
    command += ["-c", str(Path(__file__).parent), "-d", str(into / f"doctrees-{name}")]
    status = subprocess.run([*command, str(source), str(into / name)], check=False).returncode
    for page in (into / name / "lessons").glob("*.html"):
        if page.stem not in lessons:  # of an earlier build
            page.unlink()
    if status == 0:
        print(f"site: ready; open {into / name / 'index.html'}")
    return status


def sources(lessons: list[str], executed: Path, solutions: bool) -> dict[str, bytes]:
    """Everything that Sphinx reads: name of a file -> its content."""
    texts = {"index.md": front.index(lessons, pipeline.ALT)}
    texts |= {f"{name}.md": front.document(name, lessons) for name in front.names()}
    shown = {picture for text in texts.values() for picture in front.pictures(text)}
    for lesson in lessons:
        worked = run.executed(lesson, executed, lambda line: print(f"site: {line}", flush=True))
        released = nbformat.read(lab.released_path(ROOT, lesson), as_version=4)
        page = pages.page(lesson, released, worked, solutions)
        texts[f"lessons/{lesson}.ipynb"] = nbformat.writes(page) + "\n"
    files = {name: text.encode("utf-8") for name, text in texts.items()}
    return files | {name: (ROOT / "docs" / name).read_bytes() for name in shown}


def put_in_place(files: dict[str, bytes], folder: Path) -> None:
    """Make the folder hold these files. One that would not change is left alone, so that Sphinx
    makes only what is new; one that no longer belongs there is deleted."""
    for path in folder.rglob("*.*"):
        if path.is_file() and path.relative_to(folder).as_posix() not in files:
            path.unlink()
    for name, content in files.items():
        path = folder / name
        if not path.exists() or path.read_bytes() != content:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)


if __name__ == "__main__":
    sys.exit(main())
