"""Modules whose names have changed since an earlier release: a notebook of that time still runs.

Each old name stands for the new module, and says so once. Nothing of the course uses them.
"""

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import warnings
from collections.abc import Mapping, Sequence
from types import ModuleType

MOVED = {
    "grader.counting": "inferlab.counted_memory",
    "inferlab.cost": "inferlab.roofline",
    "inferlab.fetch": "inferlab.checkpoints.fetch",
    "inferlab.flash": "inferlab.flash_attention",
    "inferlab.flash_triton": "inferlab.kernels.flash_attention",
    "inferlab.gguf_read": "inferlab.checkpoints.gguf_read",
    "inferlab.hf_stored": "inferlab.checkpoints.hf_stored",
    "inferlab.load_client": "inferlab.serve.load_client",
    "inferlab.load_guidellm": "inferlab.serve.load_guidellm",
    "inferlab.metrics": "inferlab.latency_metrics",
    "inferlab.phases": "inferlab.prefill_decode",
    "inferlab.quantize": "inferlab.quantization",
    "inferlab.serving": "inferlab.serve.engine",
    "inferlab.speculate_lookup": "inferlab.prompt_lookup",
    "inferlab.speculative": "inferlab.speculative_sampling",
    "inferlab.torch_engine": "inferlab.engines.pytorch.model",
}
"""Name in release 0.1 -> name now, of every module that a notebook of that release imports.

labkit adds its own.
"""


class _OldNames(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Asked last, for what nobody else has found."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """A spec for an old name, after a word on the new one."""
        if fullname not in MOVED:
            return None
        warnings.warn(f"{fullname} is now {MOVED[fullname]}", FutureWarning, stacklevel=2)
        return importlib.util.spec_from_loader(fullname, self)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        """The new module itself."""
        module = importlib.import_module(MOVED[spec.name])
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """It has run already; it keeps its own spec, which Python has just put another over."""
        spec = module.__spec__
        if spec is not None and spec.loader_state is not None:
            module.__spec__ = spec.loader_state


def keep_old_names(more: Mapping[str, str] | None = None) -> None:
    """Let Python find the modules of MOVED, and more; doing it again changes nothing."""
    MOVED.update(more or {})
    if not any(isinstance(finder, _OldNames) for finder in sys.meta_path):
        sys.meta_path.append(_OldNames())
