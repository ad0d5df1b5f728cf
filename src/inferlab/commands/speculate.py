"""`inferlab generate` with sampling and speculation: its options, and the tokens they give."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from inferlab.prompt_lookup import lookup_rounds
from inferlab.sampling import LawOf, sampled_tokens, sampling_law
from inferlab.speculative_sampling import require_same_vocab, speculative_rounds

if TYPE_CHECKING:
    from inferlab.generate import Stop

LOOKUP = "lookup"


def add_arguments(sub: argparse.ArgumentParser) -> None:
    """--temperature, --top-k, --top-p, --min-p, --seed, --draft and --draft-tokens."""
    sub.add_argument(
        "--temperature", type=float, default=0.0, metavar="T", help="default: 0, which is greedy"
    )
    sub.add_argument("--top-k", type=int, metavar="K", help="keep the K most probable tokens")
    sub.add_argument(
        "--top-p", type=float, default=1.0, metavar="P", help="keep the mass P (default: 1, all)"
    )
    sub.add_argument(
        "--min-p",
        type=float,
        default=0.0,
        metavar="P",
        help="keep P times the largest (default: 0)",
    )
    sub.add_argument("--seed", type=int, metavar="N", help="the same tokens each time")
    sub.add_argument(
        "--draft",
        metavar="NAME",
        help=f'a small model of the same vocabulary that drafts, or "{LOOKUP}" in the text so far',
    )
    sub.add_argument(
        "--draft-tokens", type=int, default=4, metavar="N", help="a round, at most (default: 4)"
    )


def asked_for(args: argparse.Namespace) -> bool:
    """True where an option needs more than plain greedy decoding."""
    return bool(getattr(args, "draft", None)) or getattr(args, "temperature", 0) != 0


def law_of(args: argparse.Namespace) -> LawOf:
    """Logits -> the law to sample from. Raises ValueError for a setting that cannot be."""
    law = partial(
        sampling_law,
        temperature=args.temperature,
        top_k=args.top_k,
        top_p=args.top_p,
        min_p=args.min_p,
    )
    law(np.zeros(1))
    return law


def stream_tokens(
    model: Any, prompt: Sequence[int], args: argparse.Namespace
) -> Iterator[int | Stop]:
    """What generate.stream_tokens yields, with the sampling and the draft that args ask for.

    Tokens come as they are certain; at the end one Stop that says why. The text ends at the
    latest where the context of the model, or of its draft, is full. args.speculation is set to a
    line for people: rounds and accepted tokens.

    Raises ValueError for an empty or too long prompt, a setting that cannot be, or a draft model
    of another vocabulary (both sizes are named).
    """
    from inferlab.generate import Stop

    draft = _draft_model(model, args)
    contexts = [m.config.max_context for m in (model, draft) if m is not None]
    room = min(contexts) + 1 - len(prompt)  # the last token is not run
    if len(prompt) == 0 or room < 1:
        raise ValueError(
            f"the prompt has {len(prompt):,} tokens; needed: 1 to {min(contexts):,}, the context"
        )
    n_new = min(args.max_new_tokens, room)
    eos_ids = model.tokenizer.eos_ids if model.tokenizer else model.config.eos_ids
    n_rounds = n_tokens = 0
    for new in _rounds(model, draft, prompt, n_new, args):
        n_rounds, n_tokens = n_rounds + 1, n_tokens + len(new)
        if args.draft:
            args.speculation = f"{n_tokens} tokens in {n_rounds} passes of the model"
        for token in new:
            if token in eos_ids:
                yield Stop("end of text")
                return
            yield token
    full = n_new < args.max_new_tokens
    yield Stop(f"the context of {min(contexts):,} tokens is full" if full else "max_new_tokens")


def _draft_model(model: Any, args: argparse.Namespace) -> Any:
    """The draft in the engine of the target; None for the look-up and where none is asked for."""
    from inferlab.engines.choose import load_engine

    if args.draft_tokens < 0:
        raise ValueError(f"--draft-tokens {args.draft_tokens} must be 0 or more")
    if not args.draft or args.draft == LOOKUP:
        return None
    draft = load_engine(args.draft, args.engine, args.device, args.dtype).model
    require_same_vocab(model, draft)
    return draft


def _rounds(
    model: Any, draft: Any, prompt: Sequence[int], n_new: int, args: argparse.Namespace
) -> Iterator[list[int]]:
    """The new tokens, those of one pass together."""
    law, rng = law_of(args), np.random.default_rng(args.seed)
    if draft is not None:
        return speculative_rounds(model, draft, prompt, n_new, args.draft_tokens, law, rng)
    if args.draft:
        greedy = args.temperature == 0
        return lookup_rounds(model, prompt, n_new, None if greedy else law, rng)
    return ([token] for token in sampled_tokens(model, prompt, n_new, law, rng))
