"""Muon: momentum whose every step is made orthogonal, for the weight matrices.

Source: Jordan et al. 2024, "Muon: an optimizer for hidden layers in neural networks". torch has it
too, but reckons in bfloat16, which is slow on processors without bfloat16 units.
"""

from collections import defaultdict
from collections.abc import Iterable

import torch
from torch import Tensor

QUINTIC = (3.4445, -4.7750, 2.0315)
"""Coefficients of the paper: five rounds bring every singular value to about 0.7 to 1.2."""


def orthogonal(matrices: Tensor, rounds: int = 5) -> Tensor:
    """Make the rows (or columns) of each matrix nearly orthonormal: (n, rows, columns) -> same.

    For U S V^T of each matrix, about U V^T, by Newton-Schulz steps: only matrix products.
    """
    a, b, c = QUINTIC
    tall = matrices.shape[1] > matrices.shape[2]
    x = matrices.transpose(1, 2) if tall else matrices
    x = x / (x.flatten(1).norm(dim=1)[:, None, None] + 1e-7)
    for _ in range(rounds):
        square = x @ x.transpose(1, 2)
        x = a * x + (b * square + c * square @ square) @ x
    return x.transpose(1, 2) if tall else x


class Muon(torch.optim.Optimizer):
    """Steps of the size that AdamW's would have (a root mean square of 0.2 times the rate)."""

    def __init__(self, parameters: Iterable[Tensor], lr: float, weight_decay: float) -> None:
        super().__init__(parameters, {"lr": lr, "weight_decay": weight_decay, "momentum": 0.95})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            alike = defaultdict(list)
            for parameter in group["params"]:
                alike[parameter.shape].append(parameter)
            for parameters in alike.values():
                self._step_together(parameters, group)

    def _step_together(self, parameters: list[Tensor], group: dict) -> None:
        directions = []
        for p in parameters:
            gradient = torch.zeros_like(p) if p.grad is None else p.grad
            velocity = self.state[p].setdefault("velocity", torch.zeros_like(p))
            velocity.lerp_(gradient, 1 - group["momentum"])
            directions.append(gradient.lerp(velocity, group["momentum"]))  # Nesterov's look ahead
        size = 0.2 * max(parameters[0].shape) ** 0.5
        for p, step in zip(parameters, orthogonal(torch.stack(directions)), strict=True):
            p.mul_(1 - group["lr"] * group["weight_decay"])
            p.add_(step, alpha=-group["lr"] * size)
