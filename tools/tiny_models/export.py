"""Writes a trained model as a Hugging Face folder with its model card."""

import hashlib
import json
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tokenizers
import torch
from safetensors.torch import save

from . import evaluate
from .corpus import END, HELD_OUT, PACKAGE
from .model import Decoder, Sizes
from .recipes import Recipe
from .sampling import continue_rows

PROMPT = "KING HENRY:\nMy lords,"
N_SAMPLE_TOKENS = 120

TITLES = {
    "target": "a small Llama-style decoder",
    "draft": "a draft model for speculative sampling with `target`",
    "moe": "a small Mixtral-style mixture of experts",
}


@dataclass(frozen=True)
class Finished:
    """A trained model, as it is after its numbers were rounded to float16."""

    recipe: Recipe
    model: Decoder
    n_steps: int
    seconds: float


def rounded(model: Decoder) -> Decoder:
    """The same model with every number rounded to float16, held as float32."""
    copy = Decoder(model.sizes)
    copy.load_state_dict({k: v.half().float() for k, v in model.state_dict().items()})
    return copy


def hf_config(s: Sizes, end: int) -> dict[str, Any]:
    """config.json in the form of Llama, or of Mixtral where there are experts."""
    moe = s.n_experts > 0
    config = {
        "architectures": ["MixtralForCausalLM" if moe else "LlamaForCausalLM"],
        "model_type": "mixtral" if moe else "llama",
        "vocab_size": s.vocab_size,
        "hidden_size": s.d_model,
        "intermediate_size": s.d_ff,
        "num_hidden_layers": s.n_layers,
        "num_attention_heads": s.n_heads,
        "num_key_value_heads": s.n_kv_heads,
        "head_dim": s.d_head,
        "hidden_act": "silu",
        "max_position_embeddings": s.max_context,
        "rms_norm_eps": s.norm_eps,
        "rope_theta": s.rope_theta,
        "rope_parameters": {"rope_type": "default", "rope_theta": s.rope_theta},
        "attention_bias": False,
        "tie_word_embeddings": True,
        "bos_token_id": None,
        "eos_token_id": end,
        "torch_dtype": "float16",
    }
    if moe:
        config |= {
            "num_local_experts": s.n_experts,
            "num_experts_per_tok": s.n_experts_per_token,
            "sliding_window": None,
        }
    return config


def write_model(
    out: Path, done: Finished, tokenizer: tokenizers.Tokenizer, facts: dict[str, str]
) -> None:
    """Write out/<name>/: config.json, model.safetensors, tokenizer.json, README.md."""
    folder = out / done.recipe.name
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {k: v.half().contiguous() for k, v in done.model.state_dict().items()}
    config = hf_config(done.model.sizes, tokenizer.encode(END).ids[0])
    weights = save(tensors, metadata={"format": "pt"})
    _replace(folder / "model.safetensors", lambda part: part.write_bytes(weights))
    write_text(folder / "config.json", json.dumps(config, indent=2) + "\n")
    write_text(folder / "tokenizer.json", tokenizer.to_str(pretty=False) + "\n")
    write_text(folder / "README.md", card(folder, done, tokenizer, facts))


def _replace(path: Path, write: Callable[[Path], object]) -> None:
    part = path.with_name(path.name + ".part")
    write(part)
    os.replace(part, path)


def write_text(path: Path, text: str) -> None:
    """Write a text file in one go."""
    _replace(path, lambda part: part.write_text(text, encoding="utf-8"))


def measure(
    done: Finished, tokenizer: tokenizers.Tokenizer, held_out: str, target: Decoder | None
) -> dict[str, str]:
    """The numbers of a card, as they are printed there."""
    windows = evaluate.cut(tokenizer.encode(held_out).ids, done.recipe.context)
    nats = evaluate.nats_per_token(done.model, windows)
    facts = {
        "held_out_predictions": f"{windows[:, 1:].numel()}",
        "held_out_nats_per_token": f"{nats:.4f}",
        "held_out_perplexity_per_token": f"{math.exp(nats):.2f}",
    }
    if target is not None:
        facts["acceptance_by_target"] = f"{evaluate.acceptance(target, done.model, windows):.4f}"
    for i, use in enumerate(evaluate.expert_use(done.model, windows)):
        facts[f"layer_{i}_expert_shares"] = " ".join(f"{share:.4f}" for share in use.shares)
        facts[f"layer_{i}_max_over_min"] = f"{use.max_over_min:.2f}"
        facts[f"layer_{i}_entropy_bits"] = f"{use.entropy_bits:.3f}"
    return facts


def card(
    folder: Path, done: Finished, tokenizer: tokenizers.Tokenizer, facts: dict[str, str]
) -> str:
    """The model card; its first lines are key: value, so that tests can read them."""
    recipe, sizes = done.recipe, done.model.sizes
    kinds = (f", {sizes.n_experts} experts, {sizes.n_experts_per_token} a token", "")
    files = ("config.json", "model.safetensors", "tokenizer.json")
    hashes = {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in files}
    head = {"license": "apache-2.0", "language": "en", "n_params": str(done.model.n_params)}
    samples = [
        f"At temperature {temperature}:\n\n```\n{_sample(done, tokenizer, temperature)}\n```\n"
        for temperature in (0, 0.8)
    ]
    return "\n".join(
        [
            "---",
            *(f"{key}: {value}" for key, value in (head | facts).items()),
            "---",
            f"# tiny-{recipe.name}: {TITLES[recipe.name]}",
            "",
            f"{done.model.n_params:,} parameters in float16: {sizes.n_layers} layers, "
            f"d_model {sizes.d_model}, {sizes.n_heads} query heads, {sizes.n_kv_heads} key/value "
            f"heads of {sizes.d_head}, d_ff {sizes.d_ff}{kinds[sizes.n_experts == 0]}, "
            f"{sizes.vocab_size} tokens (byte-level BPE), tied embeddings, RoPE, "
            f"context {sizes.max_context}.",
            "It writes in the manner of its one source and knows nothing else: for lessons and",
            "tests, not for use.",
            "",
            *_origin(done),
            *_measured(recipe, facts),
            "## Samples",
            "",
            f"{N_SAMPLE_TOKENS} tokens after the prompt `{PROMPT!r}`, seed {recipe.seed}.",
            "",
            *samples,
            "## sha256",
            "",
            *(f"- `{name}`: `{digest}`" for name, digest in hashes.items()),
            "",
        ]
    )


def _origin(done: Finished) -> list[str]:
    recipe = done.recipe
    n_tokens = done.n_steps * recipe.batch * recipe.context
    how = (
        f"It learnt the probabilities of `{recipe.teacher}` (KL divergence), on the plays and, for "
        f"{recipe.teacher_text:.0%} of every batch, on text that `{recipe.teacher}` wrote."
        if recipe.teacher
        else "Next-token training on the plays."
    )
    return [
        "## Origin",
        "",
        f"Text: Shakespeare's plays, public domain, from the Python package `{PACKAGE}` (MIT),",
        f"without {' and '.join(HELD_OUT)}, which are held out. Weights and tokenizer",
        "were made for this course and bear its licence, Apache-2.0.",
        "",
        how,
        "",
        f'Made by `make train-tiny ARGS="{recipe.name} --threads {torch.get_num_threads()}"` from '
        f"seed {recipe.seed}: {done.n_steps} steps, {n_tokens:,} tokens,",
        f"in {done.seconds / 60:.1f} minutes by the clock, other work of the processor included.",
        "Other processors and numbers of threads round differently, so a new run gives a model",
        "alike, not the same bytes.",
        "",
    ]


def _measured(recipe: Recipe, facts: dict[str, str]) -> list[str]:
    lines = [
        "## Measured",
        "",
        f"On `data/tiny/heldout.txt`, cut into whole windows of {recipe.context} tokens; every "
        "token but a window's first is",
        "predicted from the earlier ones of its window.",
        "",
        "| what | value |",
        "|---|---|",
    ]
    rows = [f"| {key.replace('_', ' ')} | {value} |" for key, value in facts.items()]
    notes = []
    if recipe.teacher:
        notes = [
            "",
            "Acceptance: mean over positions of the sum over tokens of min(draft, target), "
            "temperature 1.",
            "The draft's size and steps were chosen by this number on this text (see recipes.py).",
        ]
    return [*lines, *rows, *notes, ""]


def _sample(done: Finished, tokenizer: tokenizers.Tokenizer, temperature: float) -> str:
    first = torch.tensor([tokenizer.encode(PROMPT).ids])
    rng = torch.Generator().manual_seed(done.recipe.seed)
    n_tokens = min(N_SAMPLE_TOKENS, done.model.sizes.max_context - first.shape[1])
    row = continue_rows(done.model, first, n_tokens, rng, temperature)[0].tolist()
    return tokenizer.decode(row).strip()
