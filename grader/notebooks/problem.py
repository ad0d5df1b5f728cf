"""What was wrong with a notebook that somebody handed in, in plain words."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Problem:
    """kind: one word for tests and tables; what: the finding; cure: what repairing does."""

    kind: str
    cell: str
    what: str
    cure: str
