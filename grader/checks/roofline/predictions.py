"""Lesson 01: what to predict before any code."""

from __future__ import annotations

from functools import lru_cache

from inferlab.data import load_devices, model_preset
from inferlab.roofline import device_rates, matmul_bytes, matmul_flops, step_bound_s
from labkit.predictions import Prediction

D_IN, D_OUT = 4096, 8192  # float32 weights of 134 MB: more than most processors' caches hold
N_ROWS = 64


def prefill_ratio() -> float:
    """Bound of a prefill of 2,000 tokens over that of the decode step behind it."""
    llama, h100 = model_preset("llama-3-8b"), device_rates(load_devices()["h100-sxm"], "bf16")
    return step_bound_s(llama, 2000, 0, *h100, 2) / step_bound_s(llama, 1, 2000, *h100, 2)


@lru_cache(maxsize=1)
def rows_ratio_bound() -> float:
    """Bound of a product of 64 rows over that of one row, on this machine, in float32."""
    from labkit.measure.timing import matmul_peak, read_bandwidth

    bandwidth, peak = read_bandwidth(), matmul_peak()

    def bound_s(n_rows: int) -> float:
        moved = matmul_bytes(n_rows, D_IN, D_OUT, 4)
        return max(moved / bandwidth, matmul_flops(n_rows, D_IN, D_OUT) / peak)

    return bound_s(N_ROWS) / bound_s(1)


PREDICTIONS = (
    Prediction(
        id="rl_prefill_ratio",
        question="A model of 8 billion parameters on one H100 first reads a prompt of 2,000 tokens "
        "in one pass, then writes an answer, one token a pass. Each device limit is used "
        "perfectly. How many times as long as **one** token of the answer does the whole prompt "
        "take?",
        unit="x",
        answer=prefill_ratio,
        because="The prompt does 2,000 times the arithmetic, but both passes read the same "
        "weights once. One token waits for that reading and leaves the arithmetic units idle; "
        "the prompt keeps them busy.",
    ),
    Prediction(
        id="rl_twice_flops",
        question="The device is replaced by one that computes **twice as fast**, with the same "
        "memory. One user chats with the model. What happens to the speed at which the answer's "
        "words appear?",
        choices=(
            "it doubles",
            "it grows by about a half",
            "it stays as it was",
        ),
        answer=lambda: "it stays as it was",
        because="At one token a pass the time is that of reading the weights. Faster arithmetic "
        "shortens the wait for the first word (the prompt), not the stream behind it.",
    ),
    Prediction(
        id="rl_rows_ratio",
        question="On **this machine**: a row of 4,096 numbers is multiplied by a matrix of "
        "4,096 × 8,192 (134 MB in float32). Then 64 such rows at once: 64 times the arithmetic. "
        "How many times as long does it take?",
        unit="x",
        answer=rows_ratio_bound,
        because="One row waits for 134 MB to arrive. 64 rows use the same bytes, so their "
        "arithmetic hides behind the reading, as far as it fits. The computed number is the ratio "
        "of the two bounds on this machine.",
    ),
    Prediction(
        id="rl_never",
        question="Many users are served in one pass: the weights are read once for all of them. "
        "Each has a conversation of 8,192 tokens. From how many users on are the arithmetic units "
        "of an H100 the limit, and no longer the memory? (8 billion parameters; suppose all users "
        "fit.)",
        choices=(
            "from about 300 users on",
            "from about 5,000 users on",
            "at no number of users",
        ),
        answer=lambda: "at no number of users",
        because="Every user also brings a cache of keys and values that must be read at each step. "
        "At 8,192 tokens reading it takes longer than computing this user's token, so more users "
        "never turn the balance.",
    ),
)
