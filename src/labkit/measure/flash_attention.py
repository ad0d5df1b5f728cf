"""What the lesson on attention in tiles measures: peak memory, time, and a real model's heads."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

import inferlab.attention
from inferlab import device as devices
from inferlab.device import Timing
from inferlab.model import Model

Attend = Callable[[np.ndarray, np.ndarray, np.ndarray, np.ndarray], np.ndarray]


@contextmanager
def engine_attention(attend: Attend) -> Iterator[None]:
    """The NumPy engine uses attend(q, k, v, visible) in all its layers while the body runs."""
    kept = inferlab.attention.attention
    inferlab.attention.attention = attend  # type: ignore[assignment]
    try:
        yield
    finally:
        inferlab.attention.attention = kept


def captured_heads(model: Model, tokens: Sequence[int], layer: int) -> tuple[np.ndarray, ...]:
    """q, k, v and the attention output of one layer, as the engine has them for these tokens.

    q, out: (n_heads, T, d_head); k, v: (n_kv_heads, T, d_head)
    """
    attend, calls = inferlab.attention.attention, []

    def recording(q: np.ndarray, k: np.ndarray, v: np.ndarray, visible: np.ndarray) -> np.ndarray:
        out = attend(q, k, v, visible)
        calls.append((q[0], k[0], v[0], out[0]))
        return out

    with engine_attention(recording):
        model.next_logits(tokens)
    if not 0 <= layer < len(calls):
        raise ValueError(f"layer must be 0 to {len(calls) - 1}, given {layer}")
    return calls[layer]


@dataclass(frozen=True)
class Attended:
    """PyTorch's attention on one device: its time, and the most memory it held at once.

    peak_bytes: beyond the inputs; None on a device that does not tell (MPS).
    """

    time: Timing
    peak_bytes: int | None


def torch_attention(
    S: int, d_head: int, n_heads: int = 1, fused: bool = True, device: str | None = None
) -> Attended:
    """Causal attention over S tokens in PyTorch, float32: fused, or plain with all its scores."""
    torch = devices.torch_module()
    device = device or devices.pick(torch)
    q, k, v = torch.randn(3, 1, n_heads, S, d_head, device=device)
    hidden = torch.ones(S, S, dtype=torch.bool, device=device).triu(1)

    def plain() -> Any:
        scores = (q @ k.mT / d_head**0.5).masked_fill(hidden, -torch.inf)
        return torch.softmax(scores, -1) @ v

    def one_kernel() -> Any:
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    work = one_kernel if fused else plain
    with torch.inference_mode():
        work()
        peak = peak_bytes(work, device, torch)
        time = devices.measure(work, repeat=3, device=device, torch=torch)
    return Attended(time, peak)


def peak_bytes(work: Callable[[], Any], device: str, torch: Any) -> int | None:
    """The most that PyTorch had allocated at once while work ran, beyond what was there before."""
    if device == "mps":
        return None
    if device == "cuda":
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        work()
        torch.cuda.synchronize()
        return int(torch.cuda.max_memory_allocated() - before)
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # else it writes lines into the notebook
    with torch.autograd.profiler.profile(use_kineto=False, profile_memory=True) as profile:
        work()
    held = peak = 0
    for event in profile.kineto_results.events():
        if event.name() == "[memory]":
            held += event.nbytes()
            peak = max(peak, held)
    return peak
