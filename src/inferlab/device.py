"""Which device, which number format, and how to time work on it.

Everything that knows about "cpu", "cuda" and "mps" is here: choosing one, refusing what it cannot
do, waiting until its work is finished, and measuring. PyTorch is imported when first needed.
"""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np

Work = Callable[[], Any]

DEVICES = ("cpu", "cuda", "mps")
DTYPES = ("float32", "bfloat16", "float16", "int8", "int4")


def torch_module() -> Any:
    """PyTorch, imported when first asked for: it takes a second."""
    import torch

    return torch


# ---- which device, which number format ---------------------------------------------------------


def pick(torch: Any = None) -> str:
    """The best device here: "cuda", then "mps", then "cpu"."""
    torch = torch or torch_module()
    if torch.cuda.is_available():
        return "cuda"
    if torch.backends.mps.is_available():
        return "mps"
    return "cpu"


def resolve(device: str = "auto", dtype: str = "float32", torch: Any = None) -> tuple[str, str]:
    """The device and the dtype to use, or ValueError saying what is not here and what is.

    device: "auto" (the best one here), "cpu", "cuda" or "mps"; dtype: one of DTYPES.
    """
    if dtype not in DTYPES:
        raise ValueError(f"dtype {dtype!r} is not one of {', '.join(DTYPES)}")
    if device not in ("auto", *DEVICES):
        raise ValueError(f"device {device!r} is not one of auto, {', '.join(DEVICES)}")
    if (device, dtype) == ("cpu", "float32"):
        return device, dtype  # nothing to ask PyTorch
    torch = torch or torch_module()
    if device == "auto":
        device = pick(torch)
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("device 'cuda' needs an NVIDIA or AMD GPU and a PyTorch built for it")
    if device == "mps" and not torch.backends.mps.is_available():
        raise ValueError("device 'mps' needs an Apple GPU and macOS 14 or newer")
    needed = compute_dtype(device, dtype)
    if device == "cuda" and needed == "bfloat16" and not torch.cuda.is_bf16_supported():
        raise ValueError(f"{name(device, torch)} has no bfloat16; use float16 or float32")
    return device, dtype


def compute_dtype(device: str, dtype: str) -> str:
    """The number format of activations and of the KV cache beside weights of `dtype`.

    8- and 4-bit weights go with bfloat16 (float16 on MPS): PyTorch's packed CPU kernels are fast
    for it only (for float32 they are about fifteen times as slow).
    """
    if dtype not in ("int8", "int4"):
        return dtype
    return "float16" if device == "mps" else "bfloat16"


def n_cores() -> int:
    """CPU cores that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # macOS
        return os.cpu_count() or 1


def cpu_name() -> str:
    """The processor's name as the system gives it."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            for line in file:
                if line.lower().startswith("model name"):
                    return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine() or "unknown processor"


def name(device: str, torch: Any = None) -> str:
    """What the device is called: the GPU's name, "Apple GPU", or the processor's name."""
    if device == "cuda":
        return str((torch or torch_module()).cuda.get_device_name())
    if device == "mps":
        return f"Apple GPU of {cpu_name()}"
    return cpu_name()


def describe(device: str = "cpu", dtype: str = "float32", torch: Any = None) -> str:
    """One line: device, cores, threads, number format, versions.

    PyTorch is only asked (and loaded) when it is given or the device is not the CPU.
    """
    if device != "cpu":
        torch = torch or torch_module()
    parts = [f"{device}: {name(device, torch)}", f"{n_cores()} cores"]
    if torch is not None:
        parts.append(f"{torch.get_num_threads()} threads")
    parts += [dtype, f"numpy {np.__version__}"]
    if torch is not None:
        parts.append(f"torch {torch.__version__}")
    return ", ".join(parts)


# ---- how long something takes ------------------------------------------------------------------


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
        median, low, high = map(_in_words, (self.median_s, self.low_s, self.high_s))
        return f"{median} ({low} to {high}, {self.n} runs)"


def _in_words(seconds: float) -> str:
    """0.025 -> "25.0 ms": three significant digits."""
    units = (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6))
    unit, size = next((pair for pair in units if seconds >= 0.9995 * pair[1]), units[-1])
    return f"{seconds / size:#.3g} {unit}".replace(". ", " ")


def synchronize(device: str, torch: Any = None) -> None:
    """Wait until all work given to the device is done."""
    if device == "cuda":
        (torch or torch_module()).cuda.synchronize()
    elif device == "mps":
        (torch or torch_module()).mps.synchronize()


def once(fn: Work, device: str = "cpu", torch: Any = None) -> float:
    """Seconds of one call, from all earlier work finished to all of its own work finished.

    "cuda": two events on the current stream. "mps": synchronised before and after. "cpu": the
    process clock. Raises ValueError for another device.
    """
    if device not in DEVICES:
        raise ValueError(f'device {device!r} is not one of "cpu", "cuda", "mps"')
    if device == "cuda":
        return _by_events(fn, torch or torch_module())
    synchronize(device, torch)
    start = perf_counter()
    fn()
    synchronize(device, torch)
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


def read_bandwidth(
    n_bytes: int = 268_435_456, repeat: int = 3, device: str = "cpu", torch: Any = None
) -> float:
    """Bytes a second that a matrix-vector product reads, by the fastest of a few runs.

    The float32 matrix (256 MiB) is far larger than a processor's cache, so each product reads it
    from memory once; that is what a decode step does with the weights. (np.sum would not do: it
    runs on one thread.) NumPy multiplies on the CPU, unless torch is given; PyTorch elsewhere.
    """
    n_columns = 4096
    shape = (max(1, n_bytes // (4 * n_columns)), n_columns)
    if device == "cpu" and torch is None:
        matrix, vector = np.ones(shape, dtype=np.float32), np.ones(n_columns, dtype=np.float32)
        out = np.empty(shape[0], dtype=np.float32)
        timing = measure(lambda: np.dot(matrix, vector, out=out), repeat=repeat)
    else:
        torch = torch or torch_module()
        rows, column = (torch.ones(size, device=device) for size in (shape, n_columns))
        timing = measure(lambda: torch.mv(rows, column), repeat=repeat, device=device, torch=torch)
    return 4 * shape[0] * shape[1] / timing.low_s


def matmul_peak(
    n: int = 1536,
    repeat: int = 3,
    device: str = "cpu",
    dtype: str = "float32",
    torch: Any = None,
) -> float:
    """FLOP a second of a product of two (n, n) matrices, by the fastest of a few runs.

    NumPy in float32 on the CPU, unless torch is given; PyTorch elsewhere and for other dtypes.
    """
    if (device, dtype) == ("cpu", "float32") and torch is None:
        left, right = (np.ones((n, n), dtype=np.float32) for _ in range(2))
        out = np.empty((n, n), dtype=np.float32)
        timing = measure(lambda: np.matmul(left, right, out=out), repeat=repeat)
    else:
        torch = torch or torch_module()
        place = {"device": device, "dtype": getattr(torch, dtype)}
        a, b = (torch.ones((n, n), **place) for _ in range(2))
        timing = measure(lambda: a @ b, repeat=repeat, device=device, torch=torch)
    return 2 * n**3 / timing.low_s
