"""Choosing a deployment: what a change buys, what a token costs, what stops a plan, what to rent.

Everything here compares deployments that capacity.py has sized.

Source: Pope et al. 2022 (arXiv 2211.05102), section 2; Leviathan et al. 2023 (arXiv 2211.17192).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from inferlab.capacity import Deployment, pass_seconds, sequences_that_fit
from inferlab.speculative_sampling import speedup


def lever_gain(
    before: Deployment, after: Deployment, n_tokens: int, n_sequences: int
) -> dict[str, float]:
    """What one change buys: how many times as many users fit, and as fast a step becomes.

    - "users": sequences_that_fit(after, n_tokens) over the same of before (pages of 16)
    - "speed": the seconds of a decode step of n_sequences sequences at n_tokens tokens before, over
      those after; a step takes the longer of its reading and computing (pass_seconds)

    Example: Llama-3-70B on 4 H100 with 7.5 GB of overhead, bf16 weights made FP8, 1,500 tokens, 310
    sequences: {"users": 1.473, "speed": 1.313}. Half the bytes, but neither becomes 2.
    Where none fits after, users is 0.0. Raises ValueError where not one sequence fits before.
    """
    fit_before, fit_after = (sequences_that_fit(d, n_tokens) for d in (before, after))
    if fit_before == 0:
        raise ValueError(f"no sequence of {n_tokens:,} tokens fits before the change")
    slow, fast = (max(pass_seconds(d, 1, n_tokens, n_sequences)) for d in (before, after))
    return {"users": fit_after / fit_before, "speed": slow / fast}


def speculation_gain(
    deployment: Deployment,
    n_tokens: int,
    n_sequences: int,
    acceptance: float,
    gamma: int,
    draft_cost: float,
) -> float:
    """How many times as fast tokens come with speculation, for n_sequences at n_tokens tokens.

    A round drafts gamma tokens, each in draft_cost of a decode step's time, and verifies them in
    one pass of gamma + 1 new tokens. It gives 1 + a + a² + … + a^gamma tokens on average, with a
    the acceptance (so gamma + 1 where a is 1). Without speculation a decode step gives 1 token. A
    pass takes the longer of reading and computing (pass_seconds). gamma 0 gives 1.0.
    speedup(acceptance, gamma, draft_cost, verify_cost) of lesson 08 is there for the rest. (The
    logits of all gamma + 1 tokens are needed; forward_flops has one's. A few per cent, left out.)

    Example: 8B-style in bf16, one H100, no context, acceptance 0.8, gamma 4, draft_cost 0.05:
    2.80 for 1 sequence, 0.78 for 256: there the pass that verifies is bound by computing.
    Source: Leviathan et al. 2023 (arXiv 2211.17192), theorem 3.8, there with verifying at cost 1.
    """
    step_s = max(pass_seconds(deployment, 1, n_tokens, n_sequences))
    verify_s = max(pass_seconds(deployment, gamma + 1, n_tokens, n_sequences))
    return speedup(acceptance, gamma, draft_cost, verify_s / step_s)


def cost_per_million_tokens(
    deployment: Deployment,
    n_sequences: int,
    tpot_s: float,
    usd_per_device_hour: float,
    busy_share: float = 1.0,
) -> float:
    """US dollars for a million output tokens.

    All n_devices are paid for every hour. While busy, they give n_sequences tokens every tpot_s
    seconds; they are busy for busy_share of the time (0 to 1) and paid for all of it.

    Example: 1 device at 2.50 an hour, 50 sequences, 0.025 s: 2,000 tokens/s, 7.2 million an hour
    -> 0.347. Busy a quarter of the time: 1.389.
    """
    tokens_per_hour = n_sequences / tpot_s * 3600 * busy_share
    return deployment.n_devices * usd_per_device_hour / tokens_per_hour * 1e6


def first_obstacle(
    deployment: Deployment, n_prompt: int, n_output: int, ttft_limit_s: float, tpot_limit_s: float
) -> str | None:
    """What stops even a single user of this deployment: "memory", "ttft", "tpot", or None.

    Look in this order, and name the first that fails:
    - "memory": not one sequence of n_prompt + n_output tokens fits (sequences_that_fit, pages
      of 16)
    - "ttft": the prefill of n_prompt tokens takes longer than ttft_limit_s
    - "tpot": a decode step of 1 sequence, with n_prompt + n_output // 2 tokens cached, takes longer
      than tpot_limit_s: a lone user waits for nobody's prefill
    A pass takes the longer of reading and computing (pass_seconds). Exactly the limit is allowed.

    Example: Llama-3-70B in bf16 on one H100: "memory". On 4, 1,024 in, 500 out, 0.5 s and 0.040 s:
    None; with 0.030 s to the first token: "ttft"; with 0.010 s a token: "tpot".
    """
    if sequences_that_fit(deployment, n_prompt + n_output) < 1:
        return "memory"
    if max(pass_seconds(deployment, n_prompt, 0)) > ttft_limit_s:
        return "ttft"
    if max(pass_seconds(deployment, 1, n_prompt + n_output // 2)) > tpot_limit_s:
        return "tpot"
    return None


def choose_offer(offers: Sequence[Mapping[str, Any]], n_users: int) -> dict[str, Any]:
    """The cheapest way to serve n_users at once.

    Each offer is one deployment that may be bought several times: "name"; "users", how many one
    copy serves within the limits; "usd_per_hour" of one copy; and "obstacle", what stops even one
    user ("memory", "ttft", "tpot"), or None. An offer with an obstacle, or for 0 users, is out.
    Copies are whole. Of equally cheap offers take the one with fewer copies, then the first listed.

    -> {"name", "copies", "usd_per_hour"}: the offer, how many, and what they cost together
    Example: 100 users; "a" serves 60 for 10, "b" serves 35 for 7: two of a cost 20, three of b 21
    -> {"name": "a", "copies": 2, "usd_per_hour": 20}.
    Raises ValueError where no offer will do; its text names every offer with its obstacle ("users"
    for one that serves 0 without an obstacle), such as "a: memory; b: tpot".
    """
    bills = []
    for offer in offers:
        if offer["obstacle"] is None and offer["users"] > 0:
            copies = math.ceil(n_users / offer["users"])
            bills.append((copies * offer["usd_per_hour"], copies, offer["name"]))
    if not bills:
        reasons = "; ".join(f"{o['name']}: {o['obstacle'] or 'users'}" for o in offers)
        raise ValueError(f"no offer serves even one user: {reasons}")
    usd, copies, name = min(bills, key=lambda bill: bill[:2])
    return {"name": name, "copies": copies, "usd_per_hour": usd}
