"""The bytes that somebody handed in -> a notebook of format 4.5, or one plain reason why not.

Reading mends what costs a learner nothing to mend: encodings, old formats, odd metadata. It never
guesses what a learner wrote: a file that is cut off, or holds both sides of a merge, is refused.
"""

from __future__ import annotations

import json
import re
from typing import Any

from grader.classroom.form import NotANotebook, well_formed
from grader.notebooks.merge import Notebook, parsed
from grader.notebooks.problem import Problem

__all__ = ["MAX_BYTES", "NotANotebook", "read_bytes"]

MAX_BYTES = 50_000_000  # a notebook of this course is under 1 MB with its pictures
MAX_VALUES = 2_000_000  # numbers, words, lists: 50 MB of "[]," would fill gigabytes of memory
LONG = 4_000_000  # characters from which on the values are counted

AGAIN = "Open your own copy in JupyterLab, save it (Ctrl+S), and hand that file in"
CLEAR = "clear the outputs (Edit, Clear Outputs of All Cells), save, and hand it in again"
THE_NOTEBOOK = "Hand in the notebook itself, the file that ends in .ipynb"

_BINARY = (
    (b"%PDF", "a PDF"),
    (b"PK\x03\x04", "a zip archive, or a document of an office program"),
    (b"PK\x05\x06", "an empty zip archive"),
    (b"\x1f\x8b", "a gz archive"),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive"),
    (b"Rar!", "a rar archive"),
    (b"\x89PNG", "a picture"),
    (b"\xff\xd8\xff", "a picture"),
    (b"{\\rtf", "a document of an office program"),
)
_HALF = re.compile(r"\\u[dD][89a-fA-F]")  # maybe half a character: a surrogate
_MARKS = (
    (b"\xff\xfe\0\0", "utf-32-le", "UTF-32"),
    (b"\0\0\xfe\xff", "utf-32-be", "UTF-32"),
    (b"\xef\xbb\xbf", "utf-8", "UTF-8 with a byte order mark"),
    (b"\xff\xfe", "utf-16-le", "UTF-16"),
    (b"\xfe\xff", "utf-16-be", "UTF-16"),
)


def read_bytes(data: bytes) -> tuple[Notebook, tuple[Problem, ...]]:
    """A valid notebook of format 4.5, and what was mended to make it one.

    Raises NotANotebook, whose text is what its author should read, for anything else.
    """
    if len(data) > MAX_BYTES:
        size, most = f"{len(data) / 1e6:,.0f} MB", f"{MAX_BYTES / 1e6:.0f} MB"
        raise NotANotebook(f"the file is {size}, and at most {most} are read; {CLEAR}")
    for start, kind in _BINARY:
        if data.startswith(start):
            raise NotANotebook(f"the file is {kind}, not a notebook. {THE_NOTEBOOK}")
    text, found = _decoded(data)
    notebook, more = well_formed(_parsed(text))
    return notebook, (*found, *more)


# ---- bytes to text -----------------------------------------------------------------------------


def _decoded(data: bytes) -> tuple[str, list[Problem]]:
    encoding, name = _encoding(data)
    try:
        text = data.decode(encoding, errors="strict" if encoding == "utf-8" else "replace")
    except UnicodeDecodeError as trouble:
        # A program for Windows saved it; only letters beyond ASCII are at stake.
        name = f"not UTF-8 (at byte {trouble.start:,})"
        text = data.decode("cp1252", errors="replace")
    text = text.lstrip("\ufeff").rstrip("\0 \t\r\n")
    if not text:
        size = "is empty (0 bytes)" if not data else f"holds nothing but blanks ({len(data)} bytes)"
        raise NotANotebook(f"the file {size}. {AGAIN}")
    if not name:
        return text, []
    return text, [Problem("encoding", "", f"the file is {name}", "it becomes plain UTF-8")]


def _encoding(data: bytes) -> tuple[str, str]:
    """The encoding, and its name where it is not plain UTF-8."""
    for mark, encoding, name in _MARKS:
        if data.startswith(mark):
            return encoding, name
    # JSON begins with an ASCII character; in UTF-16 a zero stands beside it.
    if data[1:2] == b"\0" and data[:1] != b"\0":
        return "utf-16-le", "UTF-16"
    if data[:1] == b"\0" and data[1:2] not in (b"\0", b""):
        return "utf-16-be", "UTF-16"
    return "utf-8", ""


# ---- text to JSON ------------------------------------------------------------------------------


def _parsed(text: str) -> Any:
    if len(text) > LONG and _n_values(text) > MAX_VALUES:
        raise NotANotebook(f"the file holds more than {MAX_VALUES:,} values; {CLEAR}")
    try:
        # strict=False: some programs leave line breaks and tabs as they are inside strings
        raw = json.loads(text, strict=False, parse_constant=lambda name: None)
        return _writable(raw) if _HALF.search(text) else raw
    except RecursionError:
        raise NotANotebook("the file is nested too deeply to be a notebook") from None
    except json.JSONDecodeError as trouble:
        raise NotANotebook(_why_not_json(text, trouble)) from None
    except ValueError:  # Python refuses numbers of thousands of digits
        raise NotANotebook(
            "the file holds a number of thousands of digits; it is not read"
        ) from None


def _n_values(text: str) -> int:
    """How many values JSON text holds, without building one; what stands in strings is no value."""
    bare = text.replace("\\\\", "").replace('\\"', "").split('"')[::2]
    return sum(part.count(",") + part.count("[") + part.count("{") for part in bare)


def _writable(raw: Any) -> Any:
    """raw without half characters (lone surrogates), which no file can hold."""
    return json.loads(json.dumps(raw, ensure_ascii=False).encode(errors="replace"))


def _why_not_json(text: str, trouble: json.JSONDecodeError) -> str:
    conflicts = _conflicts(text)
    if conflicts:
        return (
            f"the file holds both sides of an unfinished merge, in {conflicts}. Keep one side: "
            "git checkout --ours FILE (or --theirs), see that it opens in JupyterLab, and hand it "
            "in again"
        )
    if not text.startswith("{"):
        return f"the file is {_kind_of_text(text)}, not a notebook. {THE_NOTEBOOK}"
    place = f"line {trouble.lineno:,}"
    if _cut_off(text, trouble):
        n_cells = text.count('"cell_type"')
        cell = f", in cell {n_cells}" if n_cells else ""
        return (
            f"the file breaks off in {place}{cell}, after {len(text):,} characters: it was cut "
            f"off while it was saved or sent. {AGAIN}"
        )
    return (
        f"the file is damaged in {place}, column {trouble.colno:,} ({trouble.msg}), and no "
        f"program can open it. {AGAIN}"
    )


def _conflicts(text: str) -> str:
    """ "lines 12 to 31 and lines 40 to 52", "" where no merge is left unfinished."""
    if not re.search(r"^[<>]{7} ", text, re.MULTILINE):
        return ""
    spans: list[list[int]] = []
    for number, line in enumerate(text.splitlines(), 1):
        if re.match(r"<{7}( |$)", line):
            spans.append([number, number])
        elif re.match(r"(={7}|>{7}|\|{7})( |$)", line):
            spans = spans or [[number, number]]
            spans[-1][1] = number
    shown = [f"lines {first} to {last}" for first, last in spans]
    return " and ".join([*shown[:3], "others"] if len(shown) > 3 else shown)


def _kind_of_text(text: str) -> str:
    start = text[:2000].lstrip().lower()
    if start.startswith(("<!doctype html", "<html")) or "<html" in start:
        return "a web page (HTML)"
    if start.startswith("<"):
        return "an XML file"
    if start[:1] == "[" or start[:1] == '"':
        return "damaged JSON"
    if any(word in text for word in ("import ", "def ", " = ", "# %%")):
        python = len(text) < 1_000_000 and parsed(text) is not None
        return "Python source" if python else "source code"
    return "text, or of a kind that only its own program can read"


def _cut_off(text: str, trouble: json.JSONDecodeError) -> bool:
    """Whether the end of the text is what the parser stumbled over."""
    if trouble.msg.startswith("Unterminated string"):
        return True
    rest = text[trouble.pos :]
    half = any(word.startswith(rest) for word in ("true", "false", "null", "NaN"))
    return half or (len(rest) < 6 and rest.startswith(("\\", "-", "u")))
