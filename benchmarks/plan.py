"""What is measured: the variants, the sizes, and the texts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

BASELINE = "transformers-fp32"


@dataclass(frozen=True)
class Variant:
    """One engine in one format. family says which class of runners.py makes it."""

    name: str
    label: str
    family: str  # "transformers", "numpy", "fast", "torch" or "llama.cpp"
    dtype: str = "float32"

    @property
    def batches(self) -> bool:
        """Whether it generates for several sequences at once."""
        return self.family in ("transformers", "torch")

    @property
    def on_torch(self) -> bool:
        """Whether PyTorch computes; else OpenBLAS or llama.cpp does."""
        return self.family in ("transformers", "torch")


VARIANTS = (
    Variant(BASELINE, "transformers, float32", "transformers"),
    Variant("transformers-bf16", "transformers, bfloat16", "transformers", "bfloat16"),
    Variant("numpy-reference", "inferlab NumPy, the readable one", "numpy"),
    Variant("numpy-fast", "inferlab NumPy, arranged for speed", "fast"),
    Variant("torch-fp32", "inferlab PyTorch, float32", "torch"),
    Variant("torch-bf16", "inferlab PyTorch, bfloat16", "torch", "bfloat16"),
    Variant("torch-int8", "inferlab PyTorch, int8 weights", "torch", "int8"),
    Variant("torch-int4", "inferlab PyTorch, int4 weights, int8 head", "torch", "int4"),
    Variant("llama.cpp-fp32", "llama.cpp, float32", "llama.cpp"),
    Variant("llama.cpp-q4_1", "llama.cpp, as stored: Q4_1, Q8_0 head", "llama.cpp", "as stored"),
)


@dataclass(frozen=True)
class Sizes:
    """How much a round does. A sample of decode is (n_new + 1 tokens) minus (1 token)."""

    rounds: int = 5
    load_rounds: int = 3
    prompt: int = 64
    n_new: int = 24
    prefill: int = 512
    batch: int = 16
    prompt_batch: int = 32  # every sample runs it twice, for each of the sequences
    n_new_batch: int = 12
    n_new_lookup: int = 80
    check: int = 48  # tokens whose logits are compared with those of the readable engine
    bandwidth_bytes: int = 538_000_000
    gemm: int = 2048


FULL = Sizes()
QUICK = Sizes(
    rounds=1,
    load_rounds=1,
    prompt=8,
    n_new=4,
    prefill=32,
    batch=2,
    prompt_batch=8,
    n_new_batch=3,
    n_new_lookup=10,
    check=12,
    bandwidth_bytes=16_000_000,
    gemm=256,
)

LETTER = (
    "Dear Ms Lindqvist, thank you for your order of 12 oak shelves and 3 brass lamps. The shelves "
    "left our workshop in Gothenburg on Tuesday and should reach you by Friday. The lamps are "
    "delayed: our supplier in Lyon has had a fire in the polishing hall, and nobody was hurt, but "
    "the machines stand still. We expect the lamps in two weeks. If you would rather have your "
    "money back, tell us by Monday and we shall return it on the same day."
)
COPY = f"Correct the spelling of this letter and write out the whole letter:\n\n{LETTER}"
OPEN = "Write a short story about a lighthouse keeper who is afraid of the dark."


def random_tokens(vocab_size: int, shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    """Token ids that are no text: speed does not depend on what they say."""
    return np.random.default_rng(seed).integers(vocab_size // 2, vocab_size, shape)
