"""From tokens to text as they come: whole characters, and nothing beyond a stop text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from inferlab.tokenizer import StreamDecoder, Tokenizer


@dataclass
class StopScanner:
    """Lets text through until one of the stop texts appears; holds back what may begin one."""

    stops: Sequence[str]
    held: str = ""
    found: bool = False

    def push(self, text: str) -> str:
        """-> what may be shown now. After a stop text was found: nothing any more."""
        if self.found:
            return ""
        self.held += text
        places = [at for stop in self.stops if (at := self.held.find(stop)) >= 0]
        if places:
            self.found = True
            shown, self.held = self.held[: min(places)], ""
            return shown
        keep = self._beginning()
        shown, self.held = self.held[: len(self.held) - keep], self.held[len(self.held) - keep :]
        return shown

    def flush(self) -> str:
        """What was held back, at the end of the text."""
        shown, self.held = self.held, ""
        return shown

    def _beginning(self) -> int:
        """Length of the longest end of the text that a stop text begins with."""
        longest = max((len(stop) for stop in self.stops), default=1) - 1
        for n in range(min(longest, len(self.held)), 0, -1):
            if any(stop.startswith(self.held[-n:]) for stop in self.stops):
                return n
        return 0


@dataclass
class TextStream:
    """The text of one answer, token by token. An end-of-text token adds nothing to it."""

    tokenizer: Tokenizer
    stops: Sequence[str] = ()
    silent: Sequence[int] = ()
    decoder: StreamDecoder = field(init=False)
    scanner: StopScanner = field(init=False)

    def __post_init__(self) -> None:
        self.decoder, self.scanner = StreamDecoder(self.tokenizer), StopScanner(self.stops)

    @property
    def stopped(self) -> bool:
        """Whether a stop text has appeared: the answer ends before it."""
        return self.scanner.found

    def push(self, token: int, is_last: bool) -> str:
        """The text that may be shown after this token; all that is left after the last one."""
        text = "" if token in self.silent else self.decoder.push(token)
        if not is_last:
            return self.scanner.push(text)
        return self.scanner.push(text + self.decoder.flush()) + self.scanner.flush()
