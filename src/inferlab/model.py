"""A model ready to run: its sizes, its weights and its tokenizer."""

from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from inferlab.checkpoints.hf_folder import load_hf_weights
from inferlab.checkpoints.read_config import read_config
from inferlab.config import ModelConfig
from inferlab.kv_cache import KVCache
from inferlab.mla import LatentCache
from inferlab.paged_forward import Chunk, paged_forward
from inferlab.paging import PagePool
from inferlab.sizes import InvalidModelFile, require_runnable
from inferlab.transformer import forward
from inferlab.weights import Weights

if TYPE_CHECKING:
    from inferlab.attention import Cache
    from inferlab.tokenizer import Tokenizer


@dataclass(frozen=True)
class Model:
    """A decoder that can be run; tokenizer is None where only token ids are used."""

    config: ModelConfig
    weights: Weights
    tokenizer: "Tokenizer | None" = None

    def forward(
        self, tokens: np.ndarray, cache: "Cache | None" = None, last_only: bool = False
    ) -> np.ndarray:
        """Logits after each token, (B, T) -> (B, T, vocab_size): see transformer.forward."""
        return forward(self.weights, self.config, tokens, cache, last_only)

    def next_logits(self, tokens: Sequence[int], cache: "Cache | None" = None) -> np.ndarray:
        """Logits after the last of `tokens`, one sequence: -> (vocab_size,).

        With a cache, only `tokens` are run, on top of what it holds.
        """
        batch = np.asarray(tokens, dtype=np.int64 if len(tokens) == 0 else None)[None]
        return self.forward(batch, cache, last_only=True)[0, 0]

    def new_cache(self, capacity: int = 16, n_sequences: int = 1) -> "KVCache | LatentCache":
        """An empty cache of this model's sizes, with room for `capacity` tokens before it grows.

        A KVCache; under multi-head latent attention a LatentCache. Under a sliding window too a
        KVCache keeps all tokens, and the mask hides the old ones, so that truncate can go back to
        any of them; kv_cache.SlidingWindowCache is the memory that forgets.
        """
        c = self.config
        dtype = self.weights.embedding.dtype.type
        if c.mla is not None:
            return LatentCache(c.n_layers, c.mla, n_sequences, capacity, dtype)
        return KVCache(c.n_layers, c.n_kv_heads, c.d_head, n_sequences, capacity, dtype)

    def new_pool(self, n_pages: int, page_size: int = 16) -> PagePool:
        """Empty pages of this model's sizes, for a serving engine."""
        dtype = self.weights.embedding.dtype.type
        return PagePool(self.config, n_pages, page_size, dtype)

    def paged_forward(self, pool: PagePool, chunks: Sequence[Chunk]) -> np.ndarray:
        """Logits after the last token of each chunk, (n_chunks, vocab_size): see paged_forward."""
        return paged_forward(self.weights, self.config, pool, chunks)

    @property
    def n_params(self) -> int:
        """Trained numbers in all weights; a tied head is counted once."""
        return self.config.n_params

    @property
    def weight_bytes(self) -> int:
        """Memory that the weights take as they are held."""
        return self.weights.n_bytes


TINY_MODELS = {f"tiny-{name}": Path("data", "tiny", name) for name in ("target", "draft", "moe")}
"""The small trained models that come with the course, by name; their place in its folder."""


def load_model(name_or_path: str | PathLike[str] = "smollm2") -> Model:
    """Load a model: "smollm2" (once fetched), a .gguf file, or a Hugging Face folder.

    "tiny-target", "tiny-draft" and "tiny-moe" are the trained models that come with the course.
    Weights become float32.

    Raises FileNotFoundError where nothing is there (for "smollm2": NotFetched, which says how to
    fetch it), InvalidModelFile for a wrong or damaged file, UnsupportedModel for another
    architecture; the last two are ValueErrors.
    """
    from inferlab.checkpoints.fetch import MODEL_NAMES, fetched_path

    if isinstance(name_or_path, str) and name_or_path in MODEL_NAMES:
        return load_gguf_model(fetched_path(name_or_path))
    if isinstance(name_or_path, str) and name_or_path in TINY_MODELS:
        return load_hf_model(tiny_model_folder(name_or_path))
    path = Path(name_or_path).expanduser()
    if path.is_dir():
        return load_hf_model(path)
    if path.is_file():
        if path.suffix == ".safetensors":
            raise InvalidModelFile(f"{path} holds weights only; give its folder: {path.parent}")
        return load_gguf_model(path)
    names = ", ".join((*MODEL_NAMES, *TINY_MODELS))
    raise FileNotFoundError(
        f"no model at {path}; needed: a .gguf file, a Hugging Face folder, or a name ({names})"
    )


def tiny_model_folder(name: str) -> Path:
    """The folder of one of TINY_MODELS; raises FileNotFoundError where it is not complete."""
    from inferlab.data import ROOT

    folder = ROOT / TINY_MODELS[name]
    missing = [f for f in ("config.json", "model.safetensors") if not (folder / f).exists()]
    if missing:
        raise FileNotFoundError(
            f"{name} is missing: no {' and no '.join(missing)} in {folder}; it comes with the "
            "course's repository (git checkout data/tiny), and `make train-tiny` trains it anew"
        )
    return folder


def load_gguf_model(path: Path) -> Model:
    """Load weights, sizes and tokenizer from one GGUF file."""
    from inferlab.checkpoints.gguf_file import load_gguf
    from inferlab.tokenizer import Tokenizer

    config, weights, metadata = load_gguf(path)
    has_tokenizer = "tokenizer.ggml.model" in metadata
    tokenizer = Tokenizer.from_gguf_metadata(metadata) if has_tokenizer else None
    return Model(config, weights, tokenizer)


def load_hf_model(folder: Path) -> Model:
    """Load config.json, *.safetensors and tokenizer.json of one folder."""
    from inferlab.tokenizer import Tokenizer

    config = read_config(folder)
    require_runnable(config)
    file = folder / "tokenizer.json"
    tokenizer = Tokenizer.from_file(file, config.eos_ids) if file.exists() else None
    return Model(config, load_hf_weights(folder, config), tokenizer)
