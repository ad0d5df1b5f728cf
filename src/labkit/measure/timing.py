"""Measured time: synchronised, repeated, interleaved, and written down with the machine it ran on.

Time is shown and explained, never graded.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from inferlab import device as devices
from inferlab.device import Timing, interleaved, matmul_peak, measure, once, read_bandwidth
from labkit.files import write_whole

__all__ = [
    "RecomputeCost",
    "Timing",
    "interleaved",
    "matmul_peak",
    "measure",
    "once",
    "read_bandwidth",
    "recompute_cost",
    "write_record",
]


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
