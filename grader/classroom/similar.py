"""Pairs of submissions that share unusual code. A reason to look at both, never a verdict.

Exercises have right answers, and right answers look alike. So what is compared is what is left
when the release, the course's solution and whatever many students wrote are taken away.

Source: Schleimer, Wilkerson and Aiken, "Winnowing: local algorithms for document fingerprinting"
(2003), as in the package copydetect, which does the fingerprints.
"""

from __future__ import annotations

import io
import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from copydetect import CodeFingerprint, compare_files

from grader.notebooks.merge import Notebook, text

N_GRAM = 25  # characters of code, with names blanked: shorter agreements are noise
WINDOW = 20
COMMON = 0.2  # what this share of the class has written is common knowledge
ENOUGH = 0.4  # of the rarer code of either, to be worth a look
LEAST_CHARACTERS = 150  # of code in common, with names blanked


@dataclass(frozen=True)
class Pair:
    """Two students, and how much of each one's unusual code the other has too."""

    one: str
    other: str
    share_of_one: float
    share_of_other: float
    n_characters: int

    @property
    def larger(self) -> float:
        return max(self.share_of_one, self.share_of_other)


def written_code(notebook: Notebook, release: Notebook) -> str:
    """The code cells of a notebook that are not as released, in order."""
    given = {text(cell).strip() for cell in release["cells"]}
    cells = (c for c in notebook["cells"] if c["cell_type"] == "code")
    return "\n\n".join(text(c) for c in cells if text(c).strip() not in given)


def pairs(codes: Mapping[str, str], known: Sequence[str] = ()) -> list[Pair]:
    """Pairs worth a look, the longest agreement first.

    codes: student -> code; known: code that everybody has been given.
    """
    given = [hash_ for code in known for hash_ in _fingerprint("known", code).hashes]
    first = {student: _fingerprint(student, code, given) for student, code in codes.items()}
    seen = Counter(itertools.chain.from_iterable(set(f.hashes) for f in first.values()))
    n_common = max(3, COMMON * len(codes))
    common = [hash_ for hash_, n in seen.items() if n >= n_common]
    rare = {s: _fingerprint(s, code, [*given, *common]) for s, code in codes.items()}
    found = [pair for a, b in itertools.combinations(rare, 2) if (pair := _pair(rare[a], rare[b]))]
    return sorted(found, key=lambda pair: -pair.n_characters)


def _pair(a: Any, b: Any) -> Pair | None:
    if not a.token_coverage or not b.token_coverage or set(a.hashes).isdisjoint(b.hashes):
        return None
    n_shared, shares, _ = compare_files(a, b)
    pair = Pair(a.filename, b.filename, float(shares[0]), float(shares[1]), int(n_shared))
    return pair if pair.larger >= ENOUGH and n_shared >= LEAST_CHARACTERS else None


def _fingerprint(name: str, code: str, known: Sequence[int] = ()) -> Any:
    given: Any = np.array(sorted(set(known)), dtype=np.int64) if known else []
    file = io.StringIO(_plain(code))
    return CodeFingerprint(name, N_GRAM, WINDOW, given, language="python", fp=file)


def _plain(code: str) -> str:
    """Without blank lines and comments at a line's start, which cost nothing to change."""
    lines = [line for line in code.splitlines() if line.strip()]
    return "\n".join(line for line in lines if not line.lstrip().startswith("#")) + "\n"
