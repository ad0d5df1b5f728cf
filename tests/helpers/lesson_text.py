"""What the tests of every lesson read in its script: its cells, and the numbers in its prose."""

import re
from functools import cache
from pathlib import Path

import jupytext
from nbformat import NotebookNode
from places import ROOT


def script(lesson: str) -> Path:
    return ROOT / "src" / "lessons" / f"{lesson}.py"


@cache
def cells(lesson: str) -> tuple[NotebookNode, ...]:
    return tuple(jupytext.read(script(lesson)).cells)


def prose(lesson: str) -> list[str]:
    return [c.source for c in cells(lesson) if c.cell_type == "markdown"]


def methods_to_write(lesson: str, name: str) -> list[str]:
    """The methods that a learner writes of a class."""
    written = [c.metadata["write"] for c in cells(lesson) if c.metadata.get("exercise") == name]
    return written[0].split()


NAMES = (
    r"SmolLM2-135M|Llama-\d[\d.]*-\d+B|Qwen[\d.]+-[\d.]+B|Gemma \d|GPT-\d|DeepSeek-V\d|\b\d+B\b|"
    r"bf16|fp\d+|float\d+|int\d+|arXiv \d{4}\.\d{5}|\bA100|\bH[12]00|\b(?:19|20)\d\d\b"
)


def numbers(text: str) -> set[str]:
    """Numbers of two digits or more, outside code, maths, links, names and reference lists."""
    text = text.split("**References**")[0]
    text = re.sub(r"`[^`]*`|\$\$.*?\$\$|\$[^$]*\$", " ", text, flags=re.DOTALL)
    text = re.sub(NAMES, " ", text)
    found = re.findall(r"(?<![\w.])\d[\d,]*(?:\.\d+)?(?![\w⁰¹²³])", text)
    return {n.rstrip(",") for n in found if len(n.rstrip(",")) > 1}


def stated_numbers(lesson: str) -> set[str]:
    """Every number that the lesson's prose states. Its test computes them one by one."""
    return set().union(*map(numbers, prose(lesson)))
