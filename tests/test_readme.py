"""What the documents say is there, is there."""

import re
import runpy
from pathlib import Path

import pytest

from grader import cli

ROOT = Path(__file__).parent.parent
DOCUMENTS = ["README.md", "CONTRIBUTING.md", "docs/architecture.md"]
README = (ROOT / "README.md").read_text(encoding="utf-8")
# Made by building, fetching or working, so absent from a fresh clone.
MADE = {"work/", "work/.inferlab/base/", ".venv", ".venv/bin/activate", "test-artifacts/"}


def documents() -> str:
    return "\n".join((ROOT / name).read_text(encoding="utf-8") for name in DOCUMENTS)


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))


def inferlab_verbs() -> set[str]:
    (verbs,) = [a for a in cli.parser()._actions if a.choices and "lab" in a.choices]
    return set(verbs.choices)


def test_every_make_command_in_the_documents_exists() -> None:
    named = set(re.findall(r"(?:`|^)make ([a-z-]+)", documents(), flags=re.MULTILINE))
    assert {"lab", "test", "build"} <= named
    assert named <= make_targets()


def test_every_inferlab_command_in_the_documents_exists() -> None:
    named = set(re.findall(r"`inferlab ([a-z]+)", documents()))
    assert {"lab", "check", "doctor"} <= named
    assert named <= inferlab_verbs()


@pytest.mark.parametrize("line", re.findall(r"^\| `inferlab ([^`]+)` \|", README, re.MULTILINE))
def test_every_inferlab_line_of_the_readme_is_understood(line: str) -> None:
    import shlex

    assert cli.parser().parse_args(shlex.split(line)).run


def test_every_path_of_the_tree_exists() -> None:
    (tree,) = [b for b in re.findall(r"```text\n(.*?)```", README, re.DOTALL) if "Makefile" in b]
    paths = [line.split()[0] for line in tree.splitlines() if line.strip()]
    assert len(paths) > 10
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_every_path_in_the_text_exists() -> None:
    """Words in backquotes with a slash in them, patterns and commands aside."""
    words = set(re.findall(r"`([\w./-]+/[\w./-]*)`", documents())) - MADE
    assert len(words) > 10
    assert [word for word in words if not (ROOT / word).exists()] == []


def test_every_link_leads_somewhere() -> None:
    for name in DOCUMENTS:
        text = (ROOT / name).read_text(encoding="utf-8")
        for target in re.findall(r"\]\(([^)#]+)\)", text):
            if not target.startswith("https://"):
                assert (ROOT / name).parent.joinpath(target).exists(), f"{name}: {target}"


def test_the_lesson_table_is_up_to_date() -> None:
    made = runpy.run_path(str(ROOT / "docs" / "readme_table.py"))["with_table"](README)
    assert made == README, "run: python docs/readme_table.py"


def test_the_picture_is_up_to_date_and_has_a_text_alternative(tmp_path: Path) -> None:
    picture = runpy.run_path(str(ROOT / "docs" / "pipeline.py"))
    picture["draw"](tmp_path / "pipeline.svg")
    kept = (ROOT / "docs" / "pipeline.svg").read_bytes()
    assert (tmp_path / "pipeline.svg").read_bytes() == kept, "run: python docs/pipeline.py"
    (alt,) = re.findall(r"!\[(.*?)\]\(docs/pipeline.svg\)", README, re.DOTALL)
    assert " ".join(alt.split()) == picture["ALT"]
    assert f"<title>{picture['ALT']}</title>".encode() in kept


def test_the_map_of_the_contributing_guide_names_things_that_exist() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    rows = [row.split("|")[1:4] for row in re.findall(r"^\|.*\|$", text, re.MULTILINE)][2:]
    assert len(rows) > 10
    for _, files, _ in rows:
        for pattern in re.findall(r"`([^`]+)`", files):
            found = list(ROOT.glob(re.sub(r"<[^>]+>", "*", pattern)))
            assert found, f"{pattern} matches nothing"


def test_the_verdict_in_the_readme_is_a_real_one() -> None:
    from grader import registry
    from grader.judge import judge

    exercise = registry.exercise("kv_cache_bytes")
    verdicts = [judge(exercise, wrong).text().splitlines() for wrong in exercise.wrong.values()]
    (shown,) = re.findall(r"```text\n(kv_cache_bytes.*?)\n```", README, re.DOTALL)
    assert any(set(shown.splitlines()) <= set(lines) for lines in verdicts), verdicts


def test_the_licences_are_named_and_there() -> None:
    assert "Apache License" in (ROOT / "LICENSE").read_text()
    text = (ROOT / "LICENSE-TEXT").read_text()
    assert "CC-BY-4.0" in text
    assert "https://creativecommons.org/licenses/by/4.0/" in text
    assert "LICENSE-TEXT" in README


def test_the_performance_table_is_made_from_the_records():
    made = runpy.run_path(str(ROOT / "docs" / "performance_table.py"))["with_tables"](README)
    assert made == README, "run: python docs/performance_table.py"
