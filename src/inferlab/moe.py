"""A mixture of experts in place of the MLP: many gated MLPs, of which each token takes a few.

A router scores the experts for each token; the token goes through the best few, and their outputs
are added up, weighted by how well the router liked them.

Source: Shazeer et al. 2017 (arXiv 1701.06538), section 2; Jiang et al. 2024, "Mixtral of Experts"
(arXiv 2401.04088), section 2.1.
"""

import numpy as np

from inferlab.config import ModelConfig
from inferlab.operators import softmax, swiglu
from inferlab.weights import LayerWeights, present


def router_weights(
    scores: np.ndarray, n_chosen: int, norm_topk: bool = True
) -> tuple[np.ndarray, np.ndarray]:
    """Choose each token's best experts, and say how much each of them counts.

    The weight of an expert is its softmax over all experts. With norm_topk the weights of the
    chosen ones are divided by their sum (Mixtral): the same as a softmax over the chosen scores
    alone. Without, they sum to less than 1 (OLMoE, DeepSeek-V2).

    scores: (n_tokens, n_experts) -> experts (n_tokens, n_chosen) whole numbers, the best first
    (of equal scores the lower number first), and their weights (n_tokens, n_chosen)
    Example: scores [log 1, log 2, log 5], 2 chosen -> experts [2, 1], weights [5/7, 2/7], or
    [5/8, 2/8] without norm_topk.
    Raises ValueError unless 1 <= n_chosen <= n_experts.
    """
    n_experts = scores.shape[-1]
    if not 1 <= n_chosen <= n_experts:
        raise ValueError(f"n_chosen={n_chosen} must be in 1..{n_experts} (n_experts)")
    experts = np.argsort(-scores, axis=-1, kind="stable")[:, :n_chosen]
    weights = np.take_along_axis(softmax(scores), experts, axis=-1)
    if norm_topk:
        weights = weights / weights.sum(axis=-1, keepdims=True)
    return experts, weights


def route(experts: np.ndarray, n_experts: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Turn "which experts does a token take" round: which tokens does an expert get?

    experts: (n_tokens, n_chosen) -> for each expert the numbers of its tokens, and at which place
    of their choice it stood; two arrays of one length, which may be 0
    Example: experts [[2, 0], [0, 1]] -> expert 0 gets tokens [0, 1] at places [1, 0].
    """
    return [np.nonzero(experts == expert) for expert in range(n_experts)]  # type: ignore[misc]


def moe_forward(
    x: np.ndarray,
    w_router: np.ndarray,
    w_gate: np.ndarray,
    w_up: np.ndarray,
    w_down: np.ndarray,
    n_chosen: int,
    norm_topk: bool = True,
) -> np.ndarray:
    """Each token's weighted sum of its chosen experts, one pass per expert that has tokens.

    The rows of an expert are gathered, sent through its gated MLP together, weighted, and added
    back (scattered) to the rows they came from. An expert without tokens is not touched.

    x: (B, T, d_model); w_router: (d_model, n_experts); w_gate, w_up: (n_experts, d_model, d_ff);
    w_down: (n_experts, d_ff, d_model) -> (B, T, d_model)
    """
    rows = x.reshape(-1, x.shape[-1])  # (B * T, d_model)
    experts, weights = router_weights(rows @ w_router, n_chosen, norm_topk)
    mixed = np.zeros_like(rows)
    for expert, (tokens, places) in enumerate(route(experts, w_router.shape[-1])):
        if len(tokens) == 0:
            continue
        answer = swiglu(rows[tokens], w_gate[expert], w_up[expert], w_down[expert])
        # A token takes an expert once at most, so no row is named twice.
        mixed[tokens] += weights[tokens, places, None] * answer
    return mixed.reshape(x.shape)


def mixture_of_experts(x: np.ndarray, weights: LayerWeights, config: ModelConfig) -> np.ndarray:
    """The experts of one layer: those that the router chose, and those that every token takes.

    Shared experts side by side are one wider MLP, which is how they are stored.

    x: (B, T, d_model) -> (B, T, d_model)
    Source of shared experts: Dai et al. 2024, "DeepSeekMoE" (arXiv 2401.06066), section 3.2.
    """
    mixed = moe_forward(
        x,
        present(weights.w_router),
        weights.w_gate,
        weights.w_up,
        weights.w_down,
        config.n_experts_per_token,
        config.norm_topk,
    )
    if config.n_shared_experts == 0:
        return mixed
    shared = (weights.w_shared_gate, weights.w_shared_up, weights.w_shared_down)
    return mixed + swiglu(x, *map(present, shared))
