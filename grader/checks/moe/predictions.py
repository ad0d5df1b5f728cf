"""Lesson 09: what to predict before any code."""

from __future__ import annotations

from inferlab.data import ROOT
from inferlab.moe_sizes import moe_step_bytes, touched_experts
from labkit.predictions import Prediction

EXAMPLE = {"n_always": 4e9, "n_per_expert": 2e9, "n_experts": 16, "n_chosen": 2}
"""The example of the whole lesson: 4 billion weights for every token, 16 experts of 2 billion."""

N_EXPERTS = 8  # of tiny-moe


def example_params() -> tuple[float, float]:
    """Total and active weights of the example."""
    total = EXAMPLE["n_always"] + EXAMPLE["n_experts"] * EXAMPLE["n_per_expert"]
    return total, EXAMPLE["n_always"] + EXAMPLE["n_chosen"] * EXAMPLE["n_per_expert"]


def example_step_bytes(batch: int) -> float:
    """Bytes of weights that a decode step of the example reads, in bf16."""
    return moe_step_bytes(
        EXAMPLE["n_always"], EXAMPLE["n_per_expert"], int(EXAMPLE["n_experts"]),
        int(EXAMPLE["n_chosen"]), batch,
    )  # fmt: skip


def card_shares(layer: int) -> list[float]:
    """Shares of tiny-moe's experts on the held-out text, as its model card states them."""
    card = (ROOT / "data" / "tiny" / "moe" / "README.md").read_text(encoding="utf-8")
    start = f"layer_{layer}_expert_shares:"
    line = next(line for line in card.splitlines() if line.startswith(start))
    return [float(share) for share in line.removeprefix(start).split()]


PREDICTIONS = (
    Prediction(
        id="me_touched",
        question="16 users are served together, and each user's token takes 2 of 16 experts. How "
        "many **different** experts does the step read in a layer, on average, if all choices are "
        "equally likely?",
        unit="",
        answer=lambda: touched_experts(16, 2, 16),
        because="An expert is missed by one token with probability 14/16, by all 16 with "
        "(14/16)¹⁶ = 0.118. So 16 · (1 − 0.118) = 14.11: not all, and far more than 2.",
    ),
    Prediction(
        id="me_step_ratio",
        question="A model has 4 billion weights that every token uses and 16 experts of 2 billion "
        "each, of which a token takes 2. How many times the bytes of one user's decode step does a "
        "step for 16 users read? (Weights only. For a dense model it is 1.)",
        unit="x",
        answer=lambda: example_step_bytes(16) / example_step_bytes(1),
        because="One user: 2 · (4 + 2 · 2) = 16 GB. Sixteen: 2 · (4 + 14.11 · 2) = 64.4 GB. The "
        "batch still helps, 16 tokens for four times the bytes, but it is not free.",
    ),
    Prediction(
        id="me_batch",
        question="The same model. A matrix in bf16 is compute-bound on an H100 from 295 rows on: "
        "in a dense model that takes 295 users. How many users does it take here until the experts "
        "are, if they are evenly used?",
        unit="",
        answer=lambda: 295 * EXAMPLE["n_experts"] / EXAMPLE["n_chosen"],
        because="n users send n · 2/16 rows to each expert, so 295 rows take 8 times as many "
        "users: 2,360. To add experts is to thin out the rows that each of them gets.",
    ),
    Prediction(
        id="me_busiest",
        question="`tiny-moe` was trained to use its 8 experts evenly. In its last layer, on a play "
        "that it never saw, how many times an even share does the busiest expert get?",
        unit="x",
        answer=lambda: N_EXPERTS * max(card_shares(3)),
        because="It gets 34 % of the choices, where 12.5 % would be even. A balancing loss pulls "
        "towards even use; it does not enforce it, and a text is not made of independent tokens.",
    ),
)
