"""The device a measurement runs on, in words, and whether to measure at all."""

from __future__ import annotations

import os
import platform
from typing import Any

import numpy as np

from labkit.display import box, put


def torch_module() -> Any:
    """PyTorch, imported when first asked for: it takes a second."""
    import torch

    return torch


def pick(torch: Any = None) -> str:
    """The best device here: "cuda", then "mps", then "cpu"."""
    torch = torch or torch_module()
    if torch.cuda.is_available():
        return "cuda"
    if torch.backends.mps.is_available():
        return "mps"
    return "cpu"


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


def grading() -> bool:
    """True while a notebook is graded or validated: measurements are then skipped, and say so."""
    return any(os.environ.get(key) for key in ("NBGRADER_EXECUTION", "INFERLAB_CHECK_ONLY"))


def not_measured(reason: str) -> None:
    """Say, so that nobody overlooks it, that nothing was measured and what it would need."""
    if not reason.strip():
        raise ValueError("reason is empty: say what the measurement needs")
    text = f"not measured here: {reason}"
    put(box(text), text)
