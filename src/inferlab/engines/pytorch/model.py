"""The engine on PyTorch: the structure of the NumPy reference, on any device, in any format.

    from inferlab.model import load_model
    from inferlab.engines.pytorch.model import TorchModel
    model = TorchModel.from_model(load_model("smollm2"), device="auto", dtype="bfloat16")

It offers what inferlab.model.Model offers (config, tokenizer, new_cache, forward, next_logits), so
generate.stream and kv_cache.generate_cached run on it as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from inferlab.config import ModelConfig
from inferlab.device import compute_dtype, resolve
from inferlab.engines.pytorch.cache import Places, TorchCache
from inferlab.engines.pytorch.layers import Block, Format, lay_side_by_side, rms_norm
from inferlab.engines.pytorch.paged import PagedPlaces, TorchPagePool
from inferlab.engines.pytorch.step import RowStep
from inferlab.operators import stretched_angles
from inferlab.paged_forward import Chunk, rows_of
from inferlab.paging import PagePool
from inferlab.sizes import UnsupportedModel
from inferlab.transformer import check_tokens
from inferlab.weights import Weights

if TYPE_CHECKING:
    from inferlab.model import Model
    from inferlab.tokenizer import Tokenizer

PREFILL_CHUNK = 512  # tokens a pass: bounds activations and masks, however long the prompt


class TorchModel:
    """A decoder on a device: "cpu", "cuda", "mps" or "auto".

    dtype: "float32", "bfloat16", "float16", or weight-only "int8" and "int4" (4-bit layers, an
    8-bit head), beside which what is multiplied is rounded to 16-bit floats. The cache holds those
    too, but float32 beside 8- and 4-bit weights on a CPU.

    Raises ValueError for a device or dtype that is not here, UnsupportedModel (a ValueError) for
    a model with experts or multi-head latent attention.
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: Weights,
        tokenizer: Tokenizer | None = None,
        device: str = "cpu",
        dtype: str = "float32",
    ) -> None:
        _refuse_what_is_missing(config)
        self.config, self.tokenizer = config, tokenizer
        self.device, self.dtype = resolve(device, dtype)
        self.compute = getattr(torch, compute_dtype(self.device, self.dtype))
        to = Format(self.device, self.dtype, self.compute)
        with torch.inference_mode():
            self.layers = [Block(config, layer, to) for layer in weights.layers]
            self.residual = to.residual
            self.final_gain = to.gain(weights.final_gain)
            self.head, self.embedding = to.head_and_embedding(weights)
            lay_side_by_side([*(p for layer in self.layers for p in layer.projections), self.head])
            self.turn = _rope_table(config, to)
            self.cache_dtype = to.cache
            self.step = RowStep(self) if RowStep.fits(self) else None

    @classmethod
    def from_model(cls, model: Model, device: str = "cpu", dtype: str = "float32") -> TorchModel:
        """The same model on PyTorch; the float32 weights of `model` are read, not changed."""
        return cls(model.config, model.weights, model.tokenizer, device, dtype)

    # ---- what every engine offers ----------------------------------------------------------

    def new_cache(self, capacity: int = 16, n_sequences: int = 1) -> TorchCache:
        """An empty cache of this model's sizes, with room for `capacity` tokens before it grows."""
        return TorchCache(self.config, n_sequences, capacity, self.cache_dtype, self.device)

    def new_pool(self, n_pages: int, page_size: int = 16) -> TorchPagePool:
        """Empty pages of this model's sizes, for a serving engine."""
        return TorchPagePool(self.config, n_pages, page_size, self.compute, self.device)

    def forward(
        self, tokens: Any, cache: TorchCache | None = None, last_only: bool = False
    ) -> np.ndarray:
        """Logits after each token, (B, T) -> (B, T, vocab_size) float32: see transformer.forward.

        The sequences of a cache may have different lengths: each goes on from its own.
        """
        return self.run(tokens, cache, last_only).float().cpu().numpy()

    def next_logits(
        self, tokens: Sequence[int], cache: TorchCache | None = None, chunk: int = PREFILL_CHUNK
    ) -> np.ndarray:
        """Logits after the last of `tokens`, one sequence: -> (vocab_size,) float32.

        With a cache, only `tokens` are run, on top of what it holds, `chunk` of them a pass.
        """
        if cache is not None and cache.n_sequences != 1:
            raise ValueError(f"the cache holds {cache.n_sequences} sequences; needed: 1")
        if cache is None:
            cache = self.new_cache(max(1, len(tokens)))
        return self.prefill(tokens, cache, 0, chunk).float().cpu().numpy()

    # ---- on the device ---------------------------------------------------------------------

    def prefill(
        self, tokens: Sequence[int], cache: TorchCache, row: int = 0, chunk: int = PREFILL_CHUNK
    ) -> Tensor:
        """Run one sequence's tokens into one row of a cache, `chunk` tokens a pass.

        -> logits after the last token, (vocab_size,), on the device
        """
        if chunk < 1:
            raise ValueError(f"chunk={chunk} must be at least 1")
        if not 0 <= row < cache.n_sequences:
            raise ValueError(f"row={row} must be in 0..{cache.n_sequences - 1}")
        batch = np.asarray(tokens, dtype=np.int64 if len(tokens) == 0 else None)[None]
        batch = check_tokens(batch, self.config, cache.lengths[row])  # all, before any is stored
        cache.reserve(cache.lengths[row] + batch.shape[1])
        for start in range(0, batch.shape[1], chunk):
            part = batch[:, start : start + chunk]
            logits = self.run(part, cache, last_only=True, row=row)
        return logits[0, 0]

    def decode(self, tokens: Sequence[int], cache: TorchCache) -> Tensor:
        """One token more for each sequence of the cache, together: (B,) -> (B, vocab_size).

        Sequences may have different lengths; nothing is padded.
        """
        return self.run(np.asarray(tokens)[:, None], cache)[:, 0]

    @torch.inference_mode()
    def run(
        self,
        tokens: Any,
        cache: TorchCache | None = None,
        last_only: bool = False,
        row: int | None = None,
    ) -> Tensor:
        """forward, with the logits left on the device; row: the one sequence that is meant."""
        tokens = check_tokens(tokens, self.config, self._n_cached(cache, row))
        B, T = tokens.shape
        self._check_batch(B, cache, row)
        if cache is not None:
            cache.reserve(self._n_cached(cache, row) + T)
        if self.step is not None and cache is not None and B * T == 1:
            return self.step(self, int(tokens[0, 0]), cache, row or 0).view(1, 1, -1)
        ids = torch.as_tensor(tokens, dtype=torch.int64).to(self.device)
        places = Places(T, ids.device, cache, row, self.config.sliding_window)
        turn = self._turn_at(places)
        x = self.embedding.rows(ids.view(-1)).to(self.residual)  # (B * T, d_model)
        for layer, block in enumerate(self.layers):
            x = block(x, turn, places, layer)
        places.advance()
        if last_only:
            x = x.view(B, T, -1)[:, -1]
        x = rms_norm(x, self.final_gain, self.config.norm_eps)
        return self.head(x.to(self.compute)).view(B, -1, self.config.vocab_size)

    @torch.inference_mode()
    def paged_forward(self, pool: PagePool, chunks: Sequence[Chunk]) -> np.ndarray:
        """Logits after the last token of each chunk, over pages: see paged_forward.py.

        -> (n_chunks, vocab_size) float32
        """
        assert isinstance(pool, TorchPagePool)
        tokens, _, _ = rows_of(chunks, pool.page_size)
        ids = torch.as_tensor(tokens, dtype=torch.int64).to(self.device)
        places = PagedPlaces(pool, chunks, ids.device, self.config.sliding_window)
        turn = self._turn_at(places)
        x = self.embedding.rows(ids).to(self.residual)  # (N, d_model)
        for layer, block in enumerate(self.layers):
            x = block(x, turn, places, layer)
        last = torch.as_tensor(np.cumsum([len(c.tokens) for c in chunks]) - 1, device=ids.device)
        x = rms_norm(x[last], self.final_gain, self.config.norm_eps)
        return self.head(x.to(self.compute)).float().cpu().numpy()

    def _turn_at(self, places: Places | PagedPlaces) -> tuple[Tensor, Tensor]:
        """Cosines and signed sines of the new positions, (T, d_head) or (B, 1, T, d_head)."""
        if isinstance(places, Places) and places.even:  # a slice costs nothing
            cos, sin = (table[places.start : places.start + places.T] for table in self.turn)
            return cos, sin
        cos, sin = (table[places.positions][:, None] for table in self.turn)
        return cos, sin

    @staticmethod
    def _n_cached(cache: TorchCache | None, row: int | None) -> int:
        if cache is None:
            return 0
        return cache.n_tokens if row is None else cache.lengths[row]

    @staticmethod
    def _check_batch(B: int, cache: TorchCache | None, row: int | None) -> None:
        held = B if cache is None else cache.n_sequences if row is None else 1
        if held != B:
            raise ValueError(f"the cache holds {held} sequences, given tokens of B={B}")

    # ---- sizes -----------------------------------------------------------------------------

    @property
    def n_params(self) -> int:
        """Trained numbers in all weights; a tied head is counted once."""
        return self.config.n_params

    @property
    def step_bytes(self) -> int:
        """Bytes of weights that a decode step reads, whatever the batch."""
        return sum(layer.n_bytes for layer in self.layers) + self.head.n_bytes


def generate_batch(
    model: TorchModel, prompts: Sequence[Sequence[int]], n_new: int
) -> list[list[int]]:
    """Greedy generation for several prompts of any lengths at once: -> n_new ids for each.

    Each prompt is run alone into its row of one cache; then all rows decode together, every step
    reading the weights once for all of them.
    """
    if not prompts or n_new < 1:
        raise ValueError(f"{len(prompts)} prompts and n_new={n_new}: both must be at least 1")
    cache = model.new_cache(max(map(len, prompts)) + n_new, len(prompts))
    first = [model.prefill(prompt, cache, row) for row, prompt in enumerate(prompts)]
    newest = torch.stack(first).argmax(dim=-1)
    steps = [newest.tolist()]
    for _ in range(n_new - 1):
        newest = model.decode(steps[-1], cache).argmax(dim=-1)
        steps.append(newest.tolist())
    return [list(row) for row in zip(*steps, strict=True)]


def _rope_table(config: ModelConfig, to: Format) -> tuple[Tensor, Tensor]:
    """(cos, cos) and (-sin, sin) of every position: two tables (max_context, d_head)."""
    positions = np.arange(config.max_context)
    angles = stretched_angles(positions, config.d_head, config.rope_theta, config.rope_scaling)
    cos, sin = np.cos(angles), np.sin(angles)
    return to.tensor(np.hstack([cos, cos])), to.tensor(np.hstack([-sin, sin]))


def _refuse_what_is_missing(config: ModelConfig) -> None:
    if config.n_experts:
        raise UnsupportedModel(
            f"the PyTorch engine has no experts, the model has n_experts={config.n_experts}; "
            "use --engine numpy"
        )
    if config.mla is not None:
        raise UnsupportedModel(
            "the PyTorch engine has no multi-head latent attention (mla); use --engine numpy"
        )
