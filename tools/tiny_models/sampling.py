"""Text written by a model: for the draft to learn from, and for the model cards."""

import hashlib
import os
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from .model import Decoder
from .recipes import Recipe


@torch.no_grad()
def continue_rows(
    model: Decoder, first: Tensor, n_tokens: int, rng: torch.Generator, temperature: float = 1.0
) -> Tensor:
    """Sample n_tokens more for each row: (B, T) -> (B, T + n_tokens). Temperature 0 is greedy."""
    past = model.empty_past(len(first))
    rows = [first[:, :1]]
    for t in range(1, first.shape[1] + n_tokens):
        logits = model(rows[-1], past)[:, -1]
        given = t < first.shape[1]
        rows.append(first[:, t : t + 1] if given else _draw(logits, temperature, rng))
    return torch.cat(rows, dim=1)


def _draw(logits: Tensor, temperature: float, rng: torch.Generator) -> Tensor:
    if temperature == 0:
        return logits.argmax(dim=-1, keepdim=True)
    return torch.multinomial((logits / temperature).softmax(dim=-1), 1, generator=rng)


def write_windows(teacher: Decoder, recipe: Recipe, work: Path, at_once: int = 64) -> np.ndarray:
    """recipe.n_written windows sampled at temperature 1, each from the end-of-text token on.

    -> (n_written, context + 1). Each batch is kept in `work` under the hash of teacher and recipe,
    so that a run that was interrupted goes on with the next and then reads the same.
    """
    stem = f"{recipe.teacher}-wrote-{_fingerprint(teacher, recipe)}"
    starts = range(0, recipe.n_written, at_once)
    batches = []
    for start in tqdm(starts, desc=f"{recipe.teacher} writes for the draft", unit="batch"):
        file = work / f"{stem}-{start}.npy"
        if not file.exists():
            rng = torch.Generator().manual_seed(1_000_000 * recipe.seed + start)
            first = torch.zeros(min(at_once, recipe.n_written - start), 1, dtype=torch.int64)
            _save(file, continue_rows(teacher, first, recipe.context, rng))
        batches.append(np.load(file))
    return np.concatenate(batches)


def _save(file: Path, rows: Tensor) -> None:
    part = file.with_name(file.stem + ".part.npy")
    np.save(part, rows.numpy().astype(np.uint16))
    os.replace(part, file)


def _fingerprint(teacher: Decoder, recipe: Recipe) -> str:
    digest = hashlib.sha256(repr((recipe.seed, recipe.n_written, recipe.context)).encode())
    for parameter in teacher.parameters():
        digest.update(parameter.detach().numpy().tobytes())
    return digest.hexdigest()[:12]
