"""What was wrong with a notebook that somebody handed in, in plain words."""

from dataclasses import dataclass

from labkit.shown import shown


@dataclass(frozen=True)
class Problem:
    """kind: one word for tests and tables; what: the finding; cure: what repairing does."""

    kind: str
    cell: str
    what: str
    cure: str

    def __post_init__(self) -> None:
        """It quotes what a student wrote, and goes to terminals, tables and pages."""
        object.__setattr__(self, "what", shown(self.what))
        object.__setattr__(self, "cure", shown(self.cure))
