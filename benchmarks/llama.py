"""llama.cpp through llama-cpp-python: an extra (pip install ".[llama]"), which compiles it.

It runs without its "extra buffer types", the paths that repack weights or use AMX. The AMX one has
crashed in the first decode on some CPUs (ggml-org/llama.cpp, issue 20824), and one run should
measure one thing on every machine. Where such a path works, llama.cpp is faster than shown here.
"""

from __future__ import annotations

import ctypes
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

NOTE = (
    "llama.cpp runs without AMX and repacked weights (its extra buffer types are off); where those "
    "work, it is faster than this"
)


class LlamaCpp:
    """A GGUF in llama.cpp: its numbers as stored, or turned into float32 first."""

    def __init__(self, path: str, dtype: str, n_threads: int) -> None:
        with tempfile.TemporaryDirectory() as folder:
            if dtype == "float32":
                path = float32_copy(path, Path(folder), n_threads)
            self.bytes_per_token = os.path.getsize(path)  # as good as all of it is weights
            self.model = open_model(path, n_threads)
        self.vocab_size = self.model.n_vocab()
        self.tokenizer: Any = None

    def generate(self, prompt: Sequence[int], n_new: int) -> list[int]:
        self.model.reset()
        stream = self.model.generate([int(t) for t in prompt], temp=0.0, reset=True)
        return [token for token, _ in zip(stream, range(n_new), strict=False)]

    def prefill(self, tokens: Sequence[int]) -> None:
        self.model.reset()
        self.model.eval([int(t) for t in tokens])
        self._newest()

    def logits(self, tokens: Sequence[int]) -> np.ndarray:
        """One token a pass, as in decoding."""
        self.model.reset()
        rows = []
        for token in tokens:
            self.model.eval([int(token)])
            rows.append(self._newest())
        return np.stack(rows)

    def _newest(self) -> np.ndarray:
        """Logits after the last token that was run; waits until they are there."""
        logits = self.model._ctx.get_logits()
        return np.ctypeslib.as_array(logits, shape=(self.vocab_size,)).copy()


def open_model(path: str, n_threads: int) -> Any:
    """The file in memory, read and not mapped: it may be deleted afterwards."""
    import llama_cpp

    with _plain_buffers():
        return llama_cpp.Llama(
            path,
            n_ctx=1024,
            n_threads=n_threads,
            n_threads_batch=n_threads,
            use_mmap=False,
            verbose=False,
        )


@contextmanager
def _plain_buffers() -> Iterator[None]:
    """Models opened meanwhile get no extra buffer types; the package has no argument for it."""
    from llama_cpp import llama_cpp as bindings

    real = bindings.llama_model_default_params

    def plain() -> Any:
        params = real()
        params.use_extra_bufts = False
        return params

    bindings.llama_model_default_params = plain
    try:
        yield
    finally:
        bindings.llama_model_default_params = real


def float32_copy(path: str, folder: Path, n_threads: int) -> str:
    """The same model with every number in float32, written by llama.cpp itself."""
    from llama_cpp import llama_cpp as bindings

    params = bindings.llama_model_quantize_default_params()
    params.ftype, params.allow_requantize = bindings.LLAMA_FTYPE_ALL_F32, True
    params.nthread = n_threads
    copy = str(folder / "float32.gguf")
    failed = bindings.llama_model_quantize(path.encode(), copy.encode(), ctypes.byref(params))
    if failed:
        raise RuntimeError(f"llama.cpp could not turn {path} into float32 (code {failed})")
    return copy
