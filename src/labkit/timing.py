"""Measured time: synchronised, repeated, interleaved, and written down with the machine it ran on.

Time is shown and explained, never graded.
"""

from __future__ import annotations

import json
import platform
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from labkit import device as devices
from labkit.files import write_whole
from labkit.units import format_seconds

Work = Callable[[], Any]


@dataclass(frozen=True)
class Timing:
    """Seconds of one call: the median of n calls, the fastest and the slowest."""

    median_s: float
    low_s: float
    high_s: float
    n: int

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Timing:
        """Raises ValueError for no samples."""
        if not seconds:
            raise ValueError("a timing needs at least one sample; given none")
        return cls(statistics.median(seconds), min(seconds), max(seconds), len(seconds))

    def __str__(self) -> str:
        low, high = format_seconds(self.low_s), format_seconds(self.high_s)
        return f"{format_seconds(self.median_s)} ({low} to {high}, {self.n} runs)"


def once(fn: Work, device: str = "cpu", torch: Any = None) -> float:
    """Seconds of one call, from all earlier work finished to all of its own work finished.

    "cuda": two events on the current stream. "mps": synchronised before and after. "cpu": the
    process clock. Raises ValueError for another device.
    """
    if device == "cpu":
        return _by_clock(fn, lambda: None)
    torch = torch or devices.torch_module()
    if device == "cuda":
        return _by_events(fn, torch)
    if device == "mps":
        return _by_clock(fn, torch.mps.synchronize)
    raise ValueError(f'device {device!r} is not one of "cpu", "cuda", "mps"')


def _by_clock(fn: Work, synchronize: Callable[[], Any]) -> float:
    synchronize()
    start = perf_counter()
    fn()
    synchronize()
    return perf_counter() - start


def _by_events(fn: Work, torch: Any) -> float:
    start = torch.cuda.Event(enable_timing=True)
    stop = torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    start.record()
    fn()
    stop.record()
    torch.cuda.synchronize()
    return start.elapsed_time(stop) / 1e3  # events count milliseconds


def measure(
    fn: Work, *, repeat: int = 5, warmup: int = 1, device: str = "cpu", torch: Any = None
) -> Timing:
    """Time fn() repeat times, after warmup calls that are not counted."""
    if repeat < 1 or warmup < 0:
        raise ValueError(f"repeat={repeat} must be 1 or more, warmup={warmup} 0 or more")
    for _ in range(warmup):
        fn()
    return Timing.of([once(fn, device, torch) for _ in range(repeat)])


def interleaved(
    fns: Mapping[str, Work], rounds: int = 5, *, device: str = "cpu", torch: Any = None
) -> dict[str, Timing]:
    """Time several functions in turn, round after round, so that drift meets all of them alike.

    Each is called once before, uncounted. Compare their medians as a ratio.
    """
    if rounds < 1 or not fns:
        raise ValueError(f"rounds={rounds} must be 1 or more, and there must be functions")
    for fn in fns.values():
        fn()
    seconds: dict[str, list[float]] = {name: [] for name in fns}
    for _ in range(rounds):
        for name, fn in fns.items():
            seconds[name].append(once(fn, device, torch))
    return {name: Timing.of(samples) for name, samples in seconds.items()}


# ---- what this machine can do ------------------------------------------------------------------


def read_bandwidth(n_bytes: int = 268_435_456, repeat: int = 3) -> float:
    """Bytes a second that a matrix-vector product reads, by the fastest of a few runs.

    The float32 matrix (256 MiB) is far larger than a processor's cache, so each product reads it
    from memory once; that is what a decode step does with the weights. (np.sum would not do: it
    runs on one thread.)
    """
    n_columns = 4096
    matrix = np.ones((max(1, n_bytes // (4 * n_columns)), n_columns), dtype=np.float32)
    vector = np.ones(n_columns, dtype=np.float32)
    out = np.empty(matrix.shape[0], dtype=np.float32)
    timing = measure(lambda: np.dot(matrix, vector, out=out), repeat=repeat)
    return matrix.nbytes / timing.low_s


def matmul_peak(n: int = 1536, repeat: int = 3) -> float:
    """FLOP a second of a float32 product of two (n, n) matrices, by the fastest of a few runs."""
    left = np.ones((n, n), dtype=np.float32)
    right = np.ones((n, n), dtype=np.float32)
    out = np.empty((n, n), dtype=np.float32)
    timing = measure(lambda: np.matmul(left, right, out=out), repeat=repeat)
    return 2 * n**3 / timing.low_s


@dataclass(frozen=True)
class RecomputeCost:
    """Projecting keys and values of every row, beside those of the newest row alone."""

    all_rows: Timing
    one_row: Timing

    @property
    def ratio(self) -> float:
        """How many times longer all rows take: what a KV cache saves in this part of a step."""
        return self.all_rows.median_s / self.one_row.median_s


def recompute_cost(
    n_tokens: int,
    d_model: int,
    d_kv: int,
    device: str | None = None,
    dtype: str = "float32",
    rounds: int = 5,
) -> RecomputeCost:
    """Seconds to project keys and values for all n_tokens rows, and for one row, in PyTorch.

    rows (n_tokens, d_model) @ w (d_model, 2 * d_kv), K and V in one product. device: "cuda",
    "mps" or "cpu"; None picks. Raises ValueError for a size below 1 or an unknown dtype.
    """
    if min(n_tokens, d_model, d_kv) < 1:
        raise ValueError(f"{n_tokens=}, {d_model=}, {d_kv=} must all be 1 or more")
    if dtype not in ("float32", "float16", "bfloat16"):
        raise ValueError(f'dtype {dtype!r} is not one of "float32", "float16", "bfloat16"')
    torch = devices.torch_module()
    place = {"device": device or devices.pick(torch), "dtype": getattr(torch, dtype)}
    with torch.inference_mode():
        rows = torch.ones(n_tokens, d_model, **place)
        newest = rows[-1:].clone()
        w = torch.ones(d_model, 2 * d_kv, **place)
        times = interleaved(
            {"all": lambda: rows @ w, "one": lambda: newest @ w},
            rounds,
            device=place["device"],
            torch=torch,
        )
    return RecomputeCost(times["all"], times["one"])


# ---- writing it down ---------------------------------------------------------------------------


def write_record(path: str | Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    """Write measurements as JSON with the machine, the versions and the time; replaces path whole.

    rows: one mapping per measurement; a Timing inside becomes its four numbers.
    """
    path = Path(path)
    record = {
        "schema": 1,
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": _machine(),
        "versions": _versions(),
        "rows": [dict(row) for row in rows],
    }
    text = json.dumps(record, indent=2, ensure_ascii=False, default=_plain) + "\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, text)
    return path


def _machine() -> dict[str, Any]:
    return {
        "processor": devices.cpu_name(),
        "cores": devices.n_cores(),
        "system": f"{platform.system()} {platform.machine()}",
    }


def _versions() -> dict[str, str]:
    from importlib.metadata import PackageNotFoundError, version

    found = {"python": platform.python_version(), "numpy": np.__version__}
    for package in ("torch", "inferlab"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, (Timing, RecomputeCost)):
        return vars(value)
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return value.tolist()
    raise ValueError(f"{value!r} cannot be written as JSON: give numbers, text, lists or mappings")
