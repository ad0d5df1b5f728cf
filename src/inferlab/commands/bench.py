"""Decode speed against the batch, beside what memory and arithmetic allow on the same machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from inferlab.device import Timing, once
from inferlab.engines.choose import Engine
from inferlab.engines.fast_numpy.model import FastModel
from inferlab.model import Model


@dataclass(frozen=True)
class BenchRow:
    """One batch: seconds of a decode step, and the bound of a step.

    bound_s is the larger of bytes / bandwidth and FLOPs / peak, both measured just before.
    """

    engine: str
    device: str
    dtype: str
    batch: int
    n_prompt: int
    step: Timing
    step_bytes: int
    step_flops: int
    bytes_per_s: float
    flops_per_s: float

    @property
    def tokens_per_s(self) -> float:
        """Of all sequences together."""
        return self.batch / self.step.median_s

    @property
    def bound_s(self) -> float:
        """The least time of a step, if reading and computing overlapped perfectly."""
        return max(self.step_bytes / self.bytes_per_s, self.step_flops / self.flops_per_s)

    @property
    def bound_tokens_per_s(self) -> float:
        """The roofline at this batch."""
        return self.batch / self.bound_s

    @property
    def fraction(self) -> float:
        """How much of the bound is reached."""
        return self.bound_s / self.step.median_s

    def record(self) -> dict[str, Any]:
        """Everything, for a JSON file."""
        derived = ("tokens_per_s", "bound_tokens_per_s", "fraction")
        return vars(self) | {name: getattr(self, name) for name in derived}

    def line(self) -> str:
        """One line for people."""
        return (
            f"{self.engine} {self.dtype} on {self.device}, batch {self.batch:3d}: "
            f"{self.tokens_per_s:8.1f} tokens/s, {self.fraction:4.0%} of the bound "
            f"({self.step} a step)"
        )


def bench(
    engine: Engine, batches: Sequence[int], n_prompt: int = 64, n_steps: int = 24
) -> Iterator[BenchRow]:
    """Time decode steps at each batch, after a prompt of n_prompt tokens in every sequence.

    Two steps are run before and not counted. Raises ValueError for a size below 1, a context that
    is too short, or a model whose bound is not known (experts, latent attention).
    """
    if not batches or min(*batches, n_prompt, n_steps) < 1:
        raise ValueError(f"{batches=}, {n_prompt=}, {n_steps=} must all be 1 or more")
    config = engine.model.config
    longest = n_prompt + n_steps + WARM_UP
    if longest > config.max_context:
        raise ValueError(f"{longest} tokens are more than max_context={config.max_context}")
    if config.mla is not None:
        raise ValueError("the FLOPs of a step are not known for latent attention (mla)")
    if not engine.step_bytes(1):
        raise ValueError("how much a step reads depends on the text for this kind of model")
    bandwidth, peak = engine.bandwidth(), engine.peak()
    n_cached = n_prompt + WARM_UP + n_steps // 2  # at the middle step
    for batch in batches:
        step = _stepper(engine, batch, n_prompt, longest)
        for _ in range(WARM_UP):
            step()
        seconds = [once(step, engine.device) for _ in range(n_steps)]
        yield BenchRow(
            engine.name,
            engine.device,
            engine.dtype,
            batch,
            n_prompt,
            Timing.of(seconds),
            engine.step_bytes(n_cached, batch),
            engine.step_flops(n_cached, batch),
            bandwidth,
            peak,
        )


WARM_UP = 2  # steps


def _stepper(engine: Engine, batch: int, n_prompt: int, capacity: int) -> Callable[[], None]:
    """A function that decodes one token for every sequence of a batch, greedily."""
    model = engine.model
    cache: Any = model.new_cache(capacity, batch)
    rng = np.random.default_rng(0)
    prompt = rng.integers(0, model.config.vocab_size, (batch, n_prompt))
    logits = model.forward(prompt, cache, last_only=True)
    newest: Any = logits.argmax(axis=-1)  # (B, 1)

    def step() -> None:
        nonlocal newest
        if isinstance(model, Model | FastModel):
            newest = model.forward(newest, cache).argmax(axis=-1)
        else:
            newest = model.run(newest, cache).argmax(dim=-1).cpu().numpy()

    return step
