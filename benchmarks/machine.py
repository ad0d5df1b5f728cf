"""What this machine can do at most: python -m benchmarks.machine LIBRARY BYTES N THREADS

LIBRARY is numpy or torch: one process each, since two pools of threads disturb each other.
Every product is done once uncounted, then three times; the best counts, as a bound should.
"""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from time import perf_counter
from typing import Any

import numpy as np

from inferlab.device import cpu_name

PACKAGES = ("inferlab", "numpy", "torch", "transformers", "tokenizers", "gguf", "llama-cpp-python")


def describe(n_threads: int) -> dict[str, Any]:
    """The machine and the versions, as plain data."""
    return {
        "cpu": cpu_name(),
        "n_cores": os.cpu_count(),
        "n_threads": n_threads,
        "memory_bytes": _memory_bytes(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "packages": {name: v for name in PACKAGES if (v := _version(name))},
    }


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _memory_bytes() -> int:
    import psutil

    return int(psutil.virtual_memory().total)


def numpy_bounds(n_bytes: int, n: int) -> dict[str, float]:
    """Read bandwidth by a product of a row with a matrix of n_bytes, and the float32 GEMM peak."""
    n_rows = 576
    matrix = np.ones((n_rows, n_bytes // (4 * n_rows)), np.float32)
    row, out = np.ones(n_rows, np.float32), np.empty(matrix.shape[1], np.float32)
    columns, tall = matrix.reshape(-1, n_rows), np.empty(matrix.shape[1], np.float32)
    square, product = np.ones((n, n), np.float32), np.empty((n, n), np.float32)
    return {
        "numpy_row_by_matrix_bytes_per_s": matrix.nbytes
        / _best(lambda: np.dot(row, matrix, out=out)),
        "numpy_matrix_by_column_bytes_per_s": matrix.nbytes
        / _best(lambda: np.dot(columns, row, out=tall)),
        "numpy_gemm_fp32_flop_per_s": 2
        * n**3
        / _best(lambda: np.matmul(square, square, out=product)),
    }


def torch_bounds(n_bytes: int, n: int, n_threads: int) -> dict[str, float]:
    """The same by PyTorch, and the bfloat16 GEMM peak."""
    import torch

    torch.set_num_threads(n_threads)
    matrix, row = torch.ones(n_bytes // (4 * 576), 576), torch.ones(576)
    bounds = {"torch_mv_bytes_per_s": 4 * matrix.numel() / _best(lambda: torch.mv(matrix, row))}
    for name, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
        square = torch.ones(n, n, dtype=dtype)
        best = _best(lambda square=square: square @ square)  # type: ignore[misc]
        bounds[f"torch_gemm_{name}_flop_per_s"] = 2 * n**3 / best
    return bounds


def _best(work: Callable[[], object], repeat: int = 3) -> float:
    work()
    times = []
    for _ in range(repeat):
        start = perf_counter()
        work()
        times.append(perf_counter() - start)
    return min(times)


if __name__ == "__main__":
    library, n_bytes, n, n_threads = sys.argv[1], *map(int, sys.argv[2:])
    numpy_asked = library == "numpy"
    bounds = numpy_bounds(n_bytes, n) if numpy_asked else torch_bounds(n_bytes, n, n_threads)
    print(json.dumps(bounds))
