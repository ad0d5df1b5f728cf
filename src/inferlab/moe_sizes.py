"""What a mixture of experts costs: parameters held and used, experts read by a batch, bytes.

Three counts that a dense model does not tell apart: memory holds all experts, arithmetic uses those
that a token takes, and a decode step reads those that anybody in the batch takes.

Source: Jiang et al. 2024, "Mixtral of Experts" (arXiv 2401.04088), section 2.1, total and active.
"""

from __future__ import annotations

from itertools import combinations, product

from inferlab.config import ModelConfig
from inferlab.params import count_params, expert_params, router_params

# ---- parameters ---------------------------------------------------------------------------------


def moe_layer_params(config: ModelConfig) -> tuple[int, int]:
    """Trained numbers in the mixture of one layer: all of them, and those that one token uses.

    - An expert is a gated MLP with d_expert numbers inside: 3 * d_model * d_expert; with
      expert_bias 2 * d_expert + d_model more.
    - The router has d_model * n_experts; with router_bias n_experts more.
    - n_experts counts the routed experts, of which a token uses n_experts_per_token. The
      n_shared_experts come on top: they are not among the n_experts, and every token uses all of
      them. So does every token use the whole router.

    expert_params(config) and router_params(config) count the first two, if you like.

    -> (all, used by one token)
    Example: d_model 10, d_expert 7, no biases: an expert has 210. 6 experts, 2 a token, 1 shared,
    a router of 60: (7 * 210 + 60, 3 * 210 + 60) = (1530, 690).
    """
    expert, router = expert_params(config), router_params(config)
    always = config.n_shared_experts * expert + router
    total = config.n_experts * expert + always
    return total, config.n_experts_per_token * expert + always


def other_params(config: ModelConfig) -> int:
    """Trained numbers of everything but the mixtures: embedding, head, attention, norms, and the
    plain MLPs of the first n_dense_layers."""
    always = config.n_shared_experts * expert_params(config) + router_params(config)
    return count_params(config, 0) - (config.n_layers - config.n_dense_layers) * always


def total_and_active_params(config: ModelConfig) -> tuple[int, int]:
    """Trained numbers of a whole model with experts: all, and those that one token uses.

    - The first n_dense_layers of the n_layers layers have a plain MLP; each of the others has a
      mixture, which moe_layer_params(config) counts.
    - other_params(config) counts all the rest: embedding, head, attention, norms, and those plain
      MLPs. Every token uses it, by the convention of model cards (which counts the embedding whole,
      although a token looks up one row).

    -> (total, active)
    Example: 5 layers of which the first 2 are plain, mixtures of (1530, 690), 4000 numbers of all
    else: (4000 + 3 * 1530, 4000 + 3 * 690) = (8590, 6070).
    """
    n_moe_layers = config.n_layers - config.n_dense_layers
    in_layer, used_in_layer = moe_layer_params(config)
    rest = other_params(config)
    return rest + n_moe_layers * in_layer, rest + n_moe_layers * used_in_layer


def resident_bytes(
    config: ModelConfig,
    bytes_per_number: float = 2,
    bytes_per_expert_weight: float | None = None,
) -> float:
    """Memory that the weights of a model with experts take: all of them must be there.

    Which experts the next token takes is not known before its layer is reached, so every expert
    stays in memory. Often the routed experts alone are stored in fewer bits: their matrices, 3 *
    d_model * d_expert numbers an expert, take bytes_per_expert_weight each (None means
    bytes_per_number). All the rest takes bytes_per_number each: routers, the experts' biases,
    shared experts, attention, norms, embeddings.

    total_and_active_params(config) counts the numbers. A mixture stands in each layer but the first
    n_dense_layers.

    Example: 8590 numbers, of which 3 * 6 experts of 210 are matrices of routed experts: at 2 bytes
    17180; with half a byte for those, 2 * 4810 + 0.5 * 3780 = 11510.
    """
    total, _ = total_and_active_params(config)
    n_moe_layers = config.n_layers - config.n_dense_layers
    matrices = n_moe_layers * config.n_experts * 3 * config.d_model * config.d_expert
    per_weight = bytes_per_number if bytes_per_expert_weight is None else bytes_per_expert_weight
    return float((total - matrices) * bytes_per_number + matrices * per_weight)


# ---- what a batch reads -------------------------------------------------------------------------


def touched_experts(n_experts: int, n_chosen: int, n_tokens: int) -> float:
    """How many different experts n_tokens tokens take together in one layer, on average.

    Each token takes n_chosen different experts; every such set is equally likely, and the tokens
    choose independently. A given expert is missed by one token with probability
    1 - n_chosen / n_experts, and by all of them with that to the power of n_tokens.

    Example: 16 experts, 2 chosen: 2 for one token, 3.75 for two, 14.11 for 16.
    Raises ValueError unless 1 <= n_chosen <= n_experts and n_tokens >= 0.
    """
    if not 1 <= n_chosen <= n_experts or n_tokens < 0:
        raise ValueError(
            f"n_chosen={n_chosen} must be in 1..{n_experts} (n_experts) and n_tokens={n_tokens} "
            "at least 0"
        )
    return n_experts * (1 - (1 - n_chosen / n_experts) ** n_tokens)


def touched_by_enumeration(n_experts: int, n_chosen: int, n_tokens: int) -> float:
    """The same by trying everything: the mean over all choices that the tokens can make.

    For small cases: there are comb(n_experts, n_chosen) ** n_tokens of them.
    """
    choices = list(combinations(range(n_experts), n_chosen))
    counts = [len(set().union(*taken)) for taken in product(choices, repeat=n_tokens)]
    return sum(counts) / len(counts)


def moe_step_bytes(
    n_always: float,
    n_per_expert: float,
    n_experts: int,
    n_chosen: int,
    batch: int,
    bytes_per_weight: float = 2,
) -> float:
    """Bytes of weights that one decode step reads, for a batch of sequences, on average.

    Each of `batch` sequences runs one token. The n_always weights that every token uses are read
    once; of the routed experts, those that somebody takes: touched_experts(n_experts, n_chosen,
    batch) of them, each with n_per_expert weights (one expert of every layer with a mixture, added
    up). Keys and values come on top and are left out.

    Example: 4e9 weights for all, 16 experts of 2e9, 2 chosen, 2 bytes each: 16e9 bytes for one
    sequence, 2 * (4e9 + 14.11 * 2e9) = 64.4e9 for 16.
    """
    touched = touched_experts(n_experts, n_chosen, batch)
    return bytes_per_weight * (n_always + touched * n_per_expert)
