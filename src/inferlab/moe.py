"""A mixture of experts in place of the MLP: many gated MLPs, of which each token takes a few.

A router scores the experts for each token; the token goes through the best few, and their outputs
are added up, weighted by how well the router liked them. How evenly they are used, and what happens
to a token whose expert is full, is in the second half; what it all costs is in moe_sizes.py.

Source: Shazeer et al. 2017 (arXiv 1701.06538), section 2; Jiang et al. 2024, "Mixtral of Experts"
(arXiv 2401.04088), section 2.1.
"""

import math
from collections.abc import Callable

import numpy as np

from inferlab.config import ModelConfig
from inferlab.operators import softmax, swiglu
from inferlab.weights import LayerWeights, present

# ---- the router ---------------------------------------------------------------------------------


def router_weights(
    scores: np.ndarray, n_chosen: int, norm_topk: bool = True
) -> tuple[np.ndarray, np.ndarray]:
    """Choose each token's best experts, and say how much each of them counts.

    - Chosen are the n_chosen experts with the largest scores; of equal scores the lower number.
    - The weight of an expert is its softmax over all experts: softmax(scores) gives them, row by
      row. With norm_topk the weights of a token's chosen experts are then divided by their sum.

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


def biased_router_weights(
    scores: np.ndarray, choice_bias: np.ndarray, n_chosen: int, scale: float = 1.0
) -> tuple[np.ndarray, np.ndarray]:
    """Choose as DeepSeek-V3 does: a bias has a say in the choice, and none in the weights.

    - An expert's affinity is the sigmoid of its score, 1 / (1 + exp(-score)), for itself alone.
    - Chosen are the n_chosen experts with the largest affinity + choice_bias; of equal sums the
      lower number.
    - The weights are the affinities of the chosen, without the bias, divided by their sum (for each
      token), times scale.

    scores: (n_tokens, n_experts), choice_bias: (n_experts,) -> experts (n_tokens, n_chosen) whole
    numbers, the largest sum first, and their weights (n_tokens, n_chosen)
    Example: scores [0, 0, log 3], bias [0.1, 0.5, 0], 2 chosen: affinities [0.5, 0.5, 0.75], with
    the bias [0.6, 1, 0.75] -> experts [1, 2], weights [0.5/1.25, 0.75/1.25] = [0.4, 0.6].
    Raises ValueError unless 1 <= n_chosen <= n_experts.
    Source: DeepSeek-AI 2024, "DeepSeek-V3" (arXiv 2412.19437), section 2.1.2.
    """
    n_experts = scores.shape[-1]
    if not 1 <= n_chosen <= n_experts:
        raise ValueError(f"n_chosen={n_chosen} must be in 1..{n_experts} (n_experts)")
    affinities = np.exp(-np.logaddexp(0, -scores))  # the sigmoid, with no exp that overflows
    experts = np.argsort(-(affinities + choice_bias), axis=-1, kind="stable")[:, :n_chosen]
    weights = np.take_along_axis(affinities, experts, axis=-1)
    return experts, scale * weights / weights.sum(axis=-1, keepdims=True)


# ---- the experts --------------------------------------------------------------------------------


def route(experts: np.ndarray, n_experts: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Turn "which experts does a token take" round: which tokens does an expert get?

    experts: (n_tokens, n_chosen) -> a list with one pair for each of n_experts experts: the numbers
    of its tokens, ascending, and at which place of their choice it stood; two arrays of whole
    numbers of one length, which is 0 for an expert that nobody chose
    Example: experts [[2, 0], [0, 1]], n_experts 4 -> expert 0 gets tokens [0, 1] at places [1, 0],
    expert 1 token [1] at [1], expert 2 token [0] at [0], expert 3 none: [] and [].
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
    """Each token's weighted sum of its chosen experts, one pass for each expert that has tokens.

    - Scores are rows @ w_router, where rows are the tokens of all sequences, one below the other.
    - router_weights(scores, n_chosen, norm_topk) chooses; route(experts, n_experts) says who gets
      whom.
    - The rows of an expert are gathered and sent together through its gated MLP,
      swiglu(rows, w_gate[e], w_up[e], w_down[e]); each answer is multiplied by its weight and added
      (scattered) to the row it came from.
    - An expert without tokens is not touched, and no row goes through an expert it did not choose.

    x: (B, T, d_model); w_router: (d_model, n_experts); w_gate, w_up: (n_experts, d_model, d_ff);
    w_down: (n_experts, d_ff, d_model) -> (B, T, d_model), a new array
    Example: a token that takes experts 2 and 1 with weights 5/7 and 2/7 gets
    5/7 * swiglu(row, expert 2) + 2/7 * swiglu(row, expert 1).
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
    """The whole mixture of a layer: the experts that the router chose, and those all tokens take.

    - The routed ones: moe_forward with the arrays weights.w_router, weights.w_gate, weights.w_up
      and weights.w_down, and with config.n_experts_per_token and config.norm_topk.
    - With config.n_shared_experts above 0, every token also goes through the shared experts. They
      lie side by side in memory as one wider gated MLP, weights.w_shared_gate, weights.w_shared_up
      and weights.w_shared_down, so one swiglu runs them all. The router has no say: weight 1.
    - The result is the sum of both. The residual stream is added elsewhere, by the layer.

    x: (B, T, d_model) -> (B, T, d_model)
    Example: with one shared expert, moe_forward(x, ...) + swiglu(x, shared gate, up, down).
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


def dense_mixture(
    x: np.ndarray,
    w_router: np.ndarray,
    w_gate: np.ndarray,
    w_up: np.ndarray,
    w_down: np.ndarray,
    n_chosen: int,
    norm_topk: bool = True,
) -> np.ndarray:
    """The same as moe_forward the slow way: every token through every expert, most weights 0."""
    experts, chosen = router_weights(x.reshape(-1, x.shape[-1]) @ w_router, n_chosen, norm_topk)
    weights = np.zeros((len(experts), w_router.shape[-1]), chosen.dtype)
    np.put_along_axis(weights, experts, chosen, axis=-1)
    mixed = np.zeros_like(x)
    for expert, (gate, up, down) in enumerate(zip(w_gate, w_up, w_down, strict=True)):
        mixed += weights[:, expert].reshape(*x.shape[:-1], 1) * swiglu(x, gate, up, down)
    return mixed


# ---- balance and capacity -----------------------------------------------------------------------


def load_balance_loss(probabilities: np.ndarray, experts: np.ndarray, alpha: float = 1.0) -> float:
    """The term that training adds to keep the experts evenly used: alpha * n_experts * sum(f * P).

    - f, one number for each expert: its share of all choices, how often it stands in experts
      divided by how many entries experts has. A count: no gradient flows through it.
    - P, one number for each expert: its probability, averaged over the tokens. The gradient flows
      through this one.
    Both sum to 1, so even use gives alpha, whatever n_experts and n_chosen are.

    probabilities: (n_tokens, n_experts), each row a softmax over all experts;
    experts: (n_tokens, n_chosen), the numbers chosen -> one float
    Example: probabilities [[0.7, 0.3], [0.6, 0.4]], experts [[0], [0]]: f = [1, 0],
    P = [0.65, 0.35] -> 2 * 0.65 = 1.3 times alpha.
    Source: Fedus et al. 2021, "Switch Transformers" (arXiv 2101.03961), equations 4 to 6, there
    with one choice a token.
    """
    n_experts = probabilities.shape[-1]
    f = np.bincount(experts.ravel(), minlength=n_experts) / experts.size
    return float(alpha * n_experts * np.sum(f * probabilities.mean(axis=0)))


def expert_capacity(
    n_tokens: int, n_experts: int, n_chosen: int, capacity_factor: float = 1.0
) -> int:
    """How many rows each expert takes at the most, where every expert gets the same room.

    Even use would give each expert n_chosen * n_tokens / n_experts rows. The room is
    capacity_factor times that, rounded up.

    Example: 10 tokens, 4 experts, 1 chosen, factor 1.25: 1.25 * 10 / 4 = 3.125 -> 4.
    Source: Lepikhin et al. 2020, "GShard" (arXiv 2006.16668), section 2.2; Fedus et al. 2021
    (arXiv 2101.03961), equation 3.
    """
    return math.ceil(capacity_factor * n_chosen * n_tokens / n_experts)


def within_capacity(experts: np.ndarray, capacity: int) -> np.ndarray:
    """Which choices are served, when an expert takes `capacity` rows and no more.

    The tokens' first choices come before all second choices, those before all third ones; within
    one place of the choice, the earlier token comes first. A choice is served if its expert has
    served fewer than capacity so far.

    experts: (n_tokens, n_chosen) -> (n_tokens, n_chosen) bool, True where served
    Example: experts [[0, 1], [0, 2], [2, 0]], capacity 1: first choices 0, 0, 2: tokens 0 and 2 are
    served. Second choices 1, 2, 0: expert 1 is free, 2 and 0 are full
    -> [[True, True], [False, False], [True, False]].
    """
    served = np.zeros(experts.shape, dtype=bool)
    n_served = np.zeros(int(experts.max(initial=0)) + 1, dtype=int)
    for place in range(experts.shape[1]):
        for token, expert in enumerate(experts[:, place]):
            served[token, place] = n_served[expert] < capacity
            n_served[expert] += served[token, place]
    return served


def add_served(
    stream: np.ndarray,
    normed: np.ndarray,
    experts: np.ndarray,
    weights: np.ndarray,
    served: np.ndarray,
    run_expert: Callable[[int, np.ndarray], np.ndarray],
) -> np.ndarray:
    """Add to the residual stream what the experts answer, for the choices that are served.

    - run_expert(e, rows) sends rows (n, d_model) through expert number e and returns their answers
      (n, d_model). Call it once for each expert that serves somebody, with the rows of `normed`
      whose choice of e is served.
    - Each answer, times its weight, is added to the row of `stream` it belongs to. The weights stay
      as they are: what is lost to a full expert is not given to the others.
    - A choice that is not served adds nothing: the token's row of the stream goes on as it is.

    stream, normed: (n_tokens, d_model); experts, weights, served: (n_tokens, n_chosen)
    -> (n_tokens, d_model), a new array
    Example: stream [[3, 4]], its one choice not served -> [[3, 4]]; served with weight 1 and the
    answer [10, 20] -> [[13, 24]].
    """
    out = stream.copy()
    for expert in np.unique(experts[served]):
        tokens, places = np.nonzero((experts == expert) & served)
        answer = run_expert(int(expert), normed[tokens])
        out[tokens] += weights[tokens, places, None] * answer
    return out
