"""Text that somebody else wrote, as it may be shown: no character in it does anything but appear.

A terminal obeys some characters: it clears, renames its window, writes over what stands there.
Others turn the direction of writing round, so that a name reads as another. All of them are shown
as what they are, "\\x1b" for one, and the rest of the text stays.
"""

from __future__ import annotations

import re

# C0 and C1 controls, marks of direction, line and paragraph ends of Unicode, halves of characters.
# Joiners stay: letters of several scripts need them.
_ACTING = "\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff"
_ALL = re.compile(f"[{_ACTING}]")
_BUT_LINES = re.compile(f"(?![\n\t])[{_ACTING}]")


def shown(text: object, lines: bool = False) -> str:
    """The text with every character that acts written out. lines: ends of lines and tabs stay."""
    pattern = _BUT_LINES if lines else _ALL
    return pattern.sub(lambda found: _written_out(found[0]), str(text))


def acts(text: str) -> bool:
    """Whether a character in it would do anything but appear."""
    return _ALL.search(text) is not None


def _written_out(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"
