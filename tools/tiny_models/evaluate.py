"""What a model card states: held-out loss, acceptance of the draft, use of the experts."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812 (torch's own abbreviation)
from torch import Tensor

from .model import Decoder


def cut(tokens: list[int], length: int) -> Tensor:
    """Whole windows of a text, one after the other, (n_windows, length); the rest is left out.

    Every token of a window but its first is predicted, from the earlier tokens of that window.
    """
    n_windows = len(tokens) // length
    return torch.tensor(tokens[: n_windows * length]).view(n_windows, length)


def _groups(windows: Tensor) -> Iterator[Tensor]:
    yield from windows.split(8)


@torch.no_grad()
def nats_per_token(model: Decoder, windows: Tensor) -> float:
    """Mean cross-entropy of the windows' tokens."""
    total = sum(
        F.cross_entropy(
            model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten(), reduction="sum"
        ).item()
        for rows in _groups(windows)
    )
    return total / windows[:, 1:].numel()


@torch.no_grad()
def acceptance(target: Decoder, draft: Decoder, windows: Tensor) -> float:
    """Chance that a token drawn from the draft is kept, at temperature 1: mean of sum min(.,.).

    Source: Leviathan et al. 2023, section 3.3.
    """
    total = 0.0
    for rows in _groups(windows):
        pair = [m(rows[:, :-1]).softmax(dim=-1) for m in (target, draft)]
        total += torch.minimum(*pair).sum().item()
    return total / windows[:, 1:].numel()


@dataclass(frozen=True)
class Use:
    """How one layer's experts share the text."""

    shares: tuple[float, ...]  # of all choices, one number an expert

    @property
    def max_over_min(self) -> float:
        return max(self.shares) / min(self.shares)

    @property
    def entropy_bits(self) -> float:
        """log2 of the number of experts where all are used alike."""
        return -sum(s * float(torch.tensor(s).log2()) for s in self.shares)


@torch.no_grad()
def expert_use(model: Decoder, windows: Tensor) -> list[Use]:
    """The use of each layer's experts on the windows' tokens (but each window's last)."""
    counts = [torch.zeros_like(mlp.counts) for mlp in model.moe_mlps()]
    for rows in _groups(windows):
        model(rows[:, :-1])
        for count, mlp in zip(counts, model.moe_mlps(), strict=True):
            count += mlp.counts.to(count.dtype)
    return [Use(tuple((count / count.sum()).tolist())) for count in counts]
