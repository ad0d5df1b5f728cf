"""Text written by a model: for the draft to learn from, and for the model cards."""

import os
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from .model import Decoder
from .recipes import Recipe


@torch.no_grad()
def continue_windows(
    model: Decoder, first: Tensor, n_tokens: int, rng: torch.Generator, temperature: float = 1.0
) -> Tensor:
    """Sample n_tokens more for each row: (B, T) -> (B, T + n_tokens). Temperature 0 is greedy."""
    past = model.empty_past(len(first))
    for t in range(first.shape[1]):  # one by one: a prompt is short here
        logits = model(first[:, t : t + 1], past)[:, -1]
    rows = [first]
    for _ in range(n_tokens):
        rows.append(_draw(logits, temperature, rng))
        logits = model(rows[-1], past)[:, -1]
    return torch.cat(rows, dim=1)


def _draw(logits: Tensor, temperature: float, rng: torch.Generator) -> Tensor:
    if temperature == 0:
        return logits.argmax(dim=-1, keepdim=True)
    return torch.multinomial((logits / temperature).softmax(dim=-1), 1, generator=rng)


def write_windows(teacher: Decoder, recipe: Recipe, file: Path, at_once: int = 64) -> np.ndarray:
    """recipe.n_written windows sampled at temperature 1, each from the end-of-text token on.

    -> (n_written, context + 1). Kept in `file`, so that a resumed run reads the same.
    """
    if file.exists():
        return np.load(file)
    rng = torch.Generator().manual_seed(recipe.seed)
    batches = []
    n_batches = -(-recipe.n_written // at_once)
    for _ in tqdm(range(n_batches), desc=f"{recipe.teacher} writes", unit="batch"):
        first = torch.zeros(min(at_once, recipe.n_written), 1, dtype=torch.int64)
        # The last token is drawn from a full context, so one more is never fed.
        batches.append(continue_windows(teacher, first, recipe.context, rng))
    written = torch.cat(batches)[: recipe.n_written].numpy().astype(np.uint16)
    part = file.with_suffix(".part.npy")
    np.save(part, written)
    os.replace(part, file)
    return written
