"""Load weights and tokenizer once, in a fresh process: python -m benchmarks.load WHO PATH

WHO is inferlab or transformers; PATH a .gguf file or a Hugging Face folder. Prints seconds to
import, seconds to load, and the peak memory.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from time import perf_counter
from typing import Any


def by_inferlab(path: Path) -> tuple[float, float]:
    """Import and load with this course's own reader."""
    start = perf_counter()
    from inferlab.model import load_model

    imported = perf_counter()
    model = load_model(path)
    assert model.weights.embedding.size
    return imported - start, perf_counter() - imported


def by_transformers(path: Path) -> tuple[float, float]:
    """Import and load with transformers, float32, as its documentation says."""
    start = perf_counter()
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

    imported = perf_counter()
    where: dict[str, Any] = {"pretrained_model_name_or_path": path}
    if path.suffix == ".gguf":
        where = {"pretrained_model_name_or_path": path.parent, "gguf_file": path.name}
    model = AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32)
    if path.suffix == ".gguf" or (path / "tokenizer.json").exists():
        AutoTokenizer.from_pretrained(**where)
    assert isinstance(model, LlamaForCausalLM)
    return imported - start, perf_counter() - imported


def peak_bytes() -> int:
    """The most memory this process has had. On Linux from its own record: the other call's answer
    includes the process that started it."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
        return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
    except (OSError, StopIteration):
        import resource

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else 1024 * peak


if __name__ == "__main__":
    who, path = sys.argv[1:]
    load = {"inferlab": by_inferlab, "transformers": by_transformers}[who]
    import_s, load_s = load(Path(path))
    print(json.dumps({"import_s": import_s, "load_s": load_s, "peak_bytes": peak_bytes()}))
