"""Trains the small models that ship with the course, from a seed, resumably.

    python -m tools.tiny_models.train                     all: target, moe, draft
    python -m tools.tiny_models.train moe                 only one
    python -m tools.tiny_models.train --rehearsal ...     the same code at a size that takes seconds

Checkpoints go to data/tiny/.work; a run that was interrupted goes on from the last one and ends in
the same weights. A finished model is written by export.py and not trained again while its
checkpoint is there.
"""

import argparse
import math
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tokenizers
import torch
import torch.nn.functional as F  # noqa: N812 (torch's own abbreviation)
from torch import Tensor
from tqdm import tqdm

from tools import TINY

from .corpus import (
    encode_scenes,
    fetch_plays,
    held_out_slice,
    train_tokenizer,
    training_scenes,
)
from .export import Finished, measure, rounded, write_model, write_text
from .model import Decoder
from .muon import Muon
from .recipes import RECIPES, VOCAB_SIZE, Recipe, rehearsal
from .sampling import write_windows


@dataclass(frozen=True)
class Corpus:
    """What all models share: the tokenizer, the training tokens (n_tokens,), the held-out text."""

    tokenizer: tokenizers.Tokenizer
    tokens: np.ndarray
    held_out: str


def make_corpus(work: Path) -> Corpus:
    """Fetch the plays, train the tokenizer, encode."""
    plays = fetch_plays(work)
    scenes = training_scenes(plays)
    tokenizer = train_tokenizer(scenes, VOCAB_SIZE)
    return Corpus(tokenizer, encode_scenes(tokenizer, scenes), held_out_slice(plays))


def rehearsal_corpus() -> Corpus:
    """Without a download: the shipped held-out text serves as training text too."""
    text = (TINY / "heldout.txt").read_text(encoding="ascii")[:20_000]
    tokenizer = train_tokenizer([text], rehearsal(RECIPES["target"]).sizes.vocab_size)
    return Corpus(tokenizer, encode_scenes(tokenizer, [text]), text[:2_000])


def draw_batch(tokens: np.ndarray, recipe: Recipe, step: int, n: int) -> Tensor:
    """The n windows of one step, (n, context + 1): a function of the seed and the step alone.

    The text is cut into windows, shuffled anew for each pass over it, at a new offset.
    """
    length = recipe.context
    n_windows = (len(tokens) - 1) // length - 1
    rows = []
    for number in range(step * n, (step + 1) * n):
        epoch, index = divmod(number, n_windows)
        rng = np.random.default_rng([recipe.seed, epoch])
        start = int(rng.integers(length)) + int(rng.permutation(n_windows)[index]) * length
        rows.append(tokens[start : start + length + 1])
    return torch.from_numpy(np.stack(rows).astype(np.int64))


def text_loss(model: Decoder, recipe: Recipe, windows: Tensor) -> Tensor:
    """Nats per token, plus the weighted load-balance loss where there are experts."""
    logits = model(windows[:, :-1])
    loss = F.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())
    mlps = model.moe_mlps()
    return loss + recipe.balance * sum((mlp.balance for mlp in mlps), torch.zeros(())) / max(
        len(mlps), 1
    )


def distil_loss(model: Decoder, teacher: Decoder, windows: Tensor) -> Tensor:
    """KL(teacher || model) in nats per token."""
    with torch.no_grad():
        wanted = teacher(windows[:, :-1]).log_softmax(dim=-1)
    got = model(windows[:, :-1]).log_softmax(dim=-1)
    return F.kl_div(got.flatten(0, 1), wanted.flatten(0, 1), log_target=True, reduction="batchmean")


def make_optimizers(model: Decoder, recipe: Recipe) -> list[torch.optim.Optimizer]:
    """Muon for the matrices, AdamW for the embedding, the routers and the gains."""
    named = list(model.named_parameters())
    is_matrix = {n: p.ndim == 2 and "embed" not in n and "moe.gate" not in n for n, p in named}
    matrices = [p for n, p in named if is_matrix[n]]
    others = [p for n, p in named if not is_matrix[n]]
    return [
        Muon(matrices, lr=recipe.matrix_rate, weight_decay=recipe.weight_decay),
        torch.optim.AdamW(others, lr=recipe.other_rate, betas=(0.9, 0.95), weight_decay=0.0),
    ]


def rate_share(recipe: Recipe, step: int) -> float:
    """The share of the full rate at one step: a linear rise, then a cosine to 0.01."""
    rise = min(1.0, (step + 1) / recipe.warmup)
    return rise * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * step / recipe.n_steps)))


@dataclass
class Run:
    """A model in training: what a checkpoint holds."""

    recipe: Recipe
    model: Decoder
    optimizers: list[torch.optim.Optimizer]
    step: int = 0
    seconds: float = 0.0

    def save(self, path: Path) -> None:
        """Write the whole state beside `path`, then put it in place in one go."""
        state = {
            "recipe": repr(self.recipe),
            "model": self.model.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "step": self.step,
            "seconds": self.seconds,
        }
        torch.save(state, path.with_suffix(".part"))
        os.replace(path.with_suffix(".part"), path)

    def load(self, path: Path) -> None:
        """Raises ValueError for a checkpoint of another recipe."""
        state = torch.load(path, weights_only=True)
        if state["recipe"] != repr(self.recipe):
            raise ValueError(
                f"{path} was trained by another recipe ({state['recipe']}); needed: "
                f"{self.recipe!r}; delete it to begin anew"
            )
        self.model.load_state_dict(state["model"])
        for optimizer, held in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(held)
        self.step, self.seconds = state["step"], state["seconds"]


def train(
    recipe: Recipe, work: Path, loss_of: Callable[[Decoder, int], Tensor], stop_after: int | None
) -> Run:
    """Run or resume one training; stop_after ends it at that step without a checkpoint."""
    model = Decoder(recipe.sizes)
    model.initialise(recipe.seed)
    run = Run(recipe, model, make_optimizers(model, recipe))
    checkpoint = work / f"{recipe.name}.pt"
    if checkpoint.exists():
        run.load(checkpoint)
    full_rates = (recipe.matrix_rate, recipe.other_rate)
    steps = range(run.step, recipe.n_steps)
    bar = tqdm(steps, desc=recipe.name, initial=run.step, total=recipe.n_steps, unit="step")
    for step in bar:
        if step == stop_after:
            raise KeyboardInterrupt(f"{recipe.name} stopped after {step} steps, as asked")
        start = time.perf_counter()
        loss = take_step(run, full_rates, rate_share(recipe, step), lambda m: loss_of(m, step))  # noqa: B023
        run.step, run.seconds = step + 1, run.seconds + time.perf_counter() - start
        bar.set_postfix(loss=f"{loss:.3f}")
        if run.step % recipe.checkpoint_every == 0 or run.step == recipe.n_steps:
            run.save(checkpoint)
    return run


def take_step(
    run: Run, rates: Sequence[float], share: float, loss_of: Callable[[Decoder], Tensor]
) -> float:
    """One step of both optimizers; -> the loss before it."""
    loss = loss_of(run.model)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(run.model.parameters(), 1.0)
    for optimizer, rate in zip(run.optimizers, rates, strict=True):
        for group in optimizer.param_groups:
            group["lr"] = rate * share
        optimizer.step()
        optimizer.zero_grad()
    return loss.item()


def train_on_text(recipe: Recipe, corpus: Corpus, work: Path, stop_after: int | None) -> Run:
    """Next-token training on the plays."""

    def loss_of(model: Decoder, step: int) -> Tensor:
        return text_loss(model, recipe, draw_batch(corpus.tokens, recipe, step, recipe.batch))

    return train(recipe, work, loss_of, stop_after)


def train_on_teacher(
    recipe: Recipe, corpus: Corpus, work: Path, stop_after: int | None, teacher: Decoder
) -> Run:
    """Learn the teacher's probabilities, on the plays and on text that the teacher wrote."""
    written = write_windows(teacher, recipe, work)
    n_written = round(recipe.batch * recipe.teacher_text)

    def loss_of(model: Decoder, step: int) -> Tensor:
        read = draw_batch(corpus.tokens, recipe, step, recipe.batch - n_written)
        rng = np.random.default_rng([recipe.seed, step])
        rows = rng.choice(len(written), n_written, replace=False)
        windows = torch.cat([read, torch.from_numpy(written[rows].astype(np.int64))])
        return distil_loss(model, teacher, windows)

    return train(recipe, work, loss_of, stop_after)


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    torch.set_num_threads(options.threads)
    torch.use_deterministic_algorithms(True)
    options.work.mkdir(parents=True, exist_ok=True)
    corpus = rehearsal_corpus() if options.rehearsal else make_corpus(options.work)
    recipes = {n: rehearsal(r) if options.rehearsal else r for n, r in RECIPES.items()}
    for name in options.models:
        recipe = recipes[name]
        if recipe.teacher:
            teacher = train_on_text(recipes[recipe.teacher], corpus, options.work, None).model
            run = train_on_teacher(recipe, corpus, options.work, options.stop_after, teacher)
        else:
            run = train_on_text(recipe, corpus, options.work, options.stop_after)
        export(run, corpus, options, recipes)


def export(
    run: Run, corpus: Corpus, options: argparse.Namespace, recipes: dict[str, Recipe]
) -> None:
    """Write one finished model, and the held-out text that its card speaks of."""
    recipe = run.recipe
    done = Finished(recipe, rounded(run.model), run.step, run.seconds)
    target = None
    if recipe.teacher:
        trained = train_on_text(recipes[recipe.teacher], corpus, options.work, None)
        target = rounded(trained.model)
    facts = measure(done, corpus.tokenizer, corpus.held_out, target)
    write_model(options.out, done, corpus.tokenizer, facts)
    if not options.rehearsal:
        write_text(options.out / "heldout.txt", corpus.held_out)
    print(f"{recipe.name}: {run.step} steps in {run.seconds:.0f} s; {facts}")


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("models", nargs="*", help=f"of {', '.join(RECIPES)}; all by default")
    parser.add_argument("--rehearsal", action="store_true", help="tiny sizes, seconds, no download")
    parser.add_argument("--stop-after", type=int, metavar="STEP", help="end early, as if cut off")
    parser.add_argument("--work", type=Path, default=TINY / ".work", help="for checkpoints")
    parser.add_argument("--out", type=Path, default=TINY, help="for the finished models")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="all cores by default")
    options = parser.parse_args(arguments)
    options.models = options.models or list(RECIPES)
    if unknown := set(options.models) - set(RECIPES):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; known: {', '.join(RECIPES)}")
    return options


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("Interrupted. The same command goes on from the last checkpoint.")
