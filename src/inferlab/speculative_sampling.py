"""Speculative sampling: a cheap draft proposes several tokens, the target verifies them at once.

The output has exactly the law of the target, whatever the draft. `target` and `draft` are laws:
probabilities over the vocabulary, after temperature and filters, that sum to 1. (The papers call
them p and q, and not both papers the same way round; here they have their names.)

Source: Leviathan et al. 2023 (arXiv 2211.17192); Chen et al. 2023 (arXiv 2302.01318).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from inferlab.sampling import Engine, LawOf, draw_token, prefilled


def acceptance_probability(target: np.ndarray, draft: np.ndarray, token: int) -> float:
    """The probability with which a token that the draft proposed is kept.

    Where the target likes the token at least as much as the draft does, always; else in
    proportion: min(1, target[token] / draft[token]).

    target, draft: (vocab_size,), each sums to 1 -> between 0 and 1
    Example: target 0.2, 0.5, 0.3, draft 0.6, 0.3, 0.1: token 0 -> 1/3, token 1 -> 1.
    Raises ValueError if draft[token] is 0: such a token cannot have been proposed.
    Source: Leviathan et al. 2023 (arXiv 2211.17192), section 2.3.
    """
    if draft[token] == 0:
        raise ValueError(f"draft[{token}] is 0; a proposed token has a probability above 0")
    return min(1.0, float(target[token] / draft[token]))


def residual_law(target: np.ndarray, draft: np.ndarray) -> np.ndarray:
    """The law of the token that takes the place of a rejected one.

    It is what the target wants beyond what the draft has offered: max(target - draft, 0),
    renormalised. Where nothing is left (the two laws are equal; then nothing is rejected
    either), return the target.

    target, draft: (vocab_size,), each sums to 1 -> (vocab_size,), sums to 1
    Example: target 0.2, 0.5, 0.3, draft 0.6, 0.3, 0.1 -> 0, 0.5, 0.5.
    Source: Leviathan et al. 2023 (arXiv 2211.17192), section 2.3.
    """
    left = np.maximum(target - draft, 0)
    return left / left.sum() if left.sum() > 0 else target.copy()


def speculative_token(
    target: np.ndarray, draft: np.ndarray, rng: np.random.Generator
) -> tuple[int, bool]:
    """One token by speculation: the draft proposes, the target's rule keeps or replaces it.

    Draw a token from the draft. Keep it with its acceptance probability; otherwise draw another
    from the residual law. draw_token(law, rng.random()) draws from a law. Each decision needs a
    fresh random number; how many you draw is not judged, the law of what comes out is.

    target, draft: (vocab_size,), each sums to 1 -> (token, was the proposed token kept?)
    The token has exactly the law of the target.
    """
    token = draw_token(draft, rng.random())
    if rng.random() < acceptance_probability(target, draft, token):
        return token, True
    return draw_token(residual_law(target, draft), rng.random()), False


def acceptance_rate(target: np.ndarray, draft: np.ndarray) -> float:
    """The probability that a token drawn from the draft is kept: the mean over what it proposes.

    Each token is proposed with probability draft[i] and then kept with min(1, target[i] /
    draft[i]); the sum of the products is the overlap of the two laws, the sum of min(target,
    draft).

    target, draft: (vocab_size,), each sums to 1 -> between 0 and 1
    Example: target 0.2, 0.5, 0.3, draft 0.6, 0.3, 0.1 -> 0.2 + 0.3 + 0.1 = 0.6.
    Source: Leviathan et al. 2023 (arXiv 2211.17192), corollary 3.6.
    """
    return float(np.minimum(target, draft).sum())


def verify_draft(
    target_laws: Sequence[np.ndarray],
    draft_laws: Sequence[np.ndarray],
    drafted: Sequence[int],
    uniforms: Sequence[float] | np.ndarray,
) -> list[int]:
    """The tokens of one round: the drafted ones that are kept, and one more.

    Let gamma = len(drafted). target_laws[i] and draft_laws[i] are the laws that drafted[i] is
    judged by; target_laws has one more row, for the position after the last drafted token. From
    left to right: keep drafted[i] if uniforms[i] < acceptance_probability. At the first one that
    is not kept, draw a token from the residual law of this position with uniforms[gamma], and
    stop. If all are kept, draw one from the last target law with uniforms[gamma]: the bonus.

    target_laws: gamma + 1 laws (vocab_size,); draft_laws: gamma laws (vocab_size,)
    drafted: gamma token ids; uniforms: gamma + 1 numbers in [0, 1)
    -> 1 to gamma + 1 token ids: so many were kept, and one more
    Example: drafted 1, 1; the first is accepted with probability 1, the second with 0.25.
    Uniforms 0.9, 0.3, 0.6: the first is kept (0.9 < 1), the second is not (0.3 >= 0.25); the
    residual law of its position and 0.6 give the last token. drafted empty: one token, from
    target_laws[0].
    Source: Chen et al. 2023 (arXiv 2302.01318), algorithm 2.
    """
    for i, token in enumerate(drafted):
        if uniforms[i] >= acceptance_probability(target_laws[i], draft_laws[i], token):
            replacement = draw_token(residual_law(target_laws[i], draft_laws[i]), uniforms[-1])
            return [*drafted[:i], replacement]
    return [*drafted, draw_token(target_laws[-1], uniforms[-1])]


def greedy_match(drafted: Sequence[int], chosen: Sequence[int]) -> list[int]:
    """The tokens of one round at temperature 0, where both laws are one-hot and no chance is left.

    chosen[i] is the target's most probable token at the position of drafted[i]; chosen has one
    entry more, for the position after the draft. Keep drafted tokens as long as they are the
    chosen ones; at the first that is not, the chosen one takes its place and the round ends. If
    all agree, the last chosen token comes on top.

    drafted: gamma token ids, chosen: gamma + 1 -> 1 to gamma + 1 token ids
    Example: drafted 5, 9, 7 and chosen 5, 3, 7, 1 -> 5, 3. What follows a wrong token was judged
    after a wrong text, so the 7 that agrees is worth nothing.
    """
    n_kept = 0
    while n_kept < len(drafted) and drafted[n_kept] == chosen[n_kept]:
        n_kept += 1
    return list(chosen[: n_kept + 1])


# ---- does it pay? ------------------------------------------------------------------------------


def expected_tokens(acceptance: float, gamma: int) -> float:
    """Tokens that a round gives on average, if each draft token is accepted with the same chance.

    A round gives at least 1 token (the replacement or the bonus), a second one if the first draft
    token is accepted, a third if the first two are, ...: 1 + a + a² + ... + a^gamma with a =
    acceptance. For a < 1 that is (1 - a^(gamma + 1)) / (1 - a); for a = 1 it is gamma + 1.

    0 <= acceptance <= 1; gamma >= 0 drafted tokens a round -> between 1 and gamma + 1
    Example: acceptance 0.8, gamma 4 -> 3.3616; acceptance 1, gamma 4 -> 5.
    Source: Leviathan et al. 2023 (arXiv 2211.17192), equation 1.
    """
    return float(sum(acceptance**i for i in range(gamma + 1)))


def speedup(acceptance: float, gamma: int, draft_cost: float, verify_cost: float = 1.0) -> float:
    """How many times as fast a speculating engine gives tokens, compared with one that does not.

    The unit of time is one decode step of the target, which gives 1 token. A round gives
    expected_tokens; it takes gamma draft steps of draft_cost each and one pass of the target over
    gamma + 1 tokens, which takes verify_cost. Both costs are ratios of measured times, not of
    parameters.

    Example: acceptance 0.8, gamma 4, draft_cost 0.05 -> 3.3616 / (1 + 4 · 0.05) = 2.80.
    Source: Leviathan et al. 2023 (arXiv 2211.17192), theorem 3.8, where verify_cost is 1.
    """
    return expected_tokens(acceptance, gamma) / (verify_cost + gamma * draft_cost)


def verify_cost(gamma: int, n_sequences: int, ridge_tokens: float) -> float:
    """Time of a pass that verifies gamma tokens for every sequence, over that of a decode step.

    A pass over n tokens takes max(1, n / ridge_tokens) times the time of reading the weights
    once: up to ridge_tokens tokens the reading decides (the pass is memory-bound), beyond that
    the arithmetic. A decode step runs 1 token for each of n_sequences, a verifying pass gamma + 1.

    n_sequences >= 1: the batch; ridge_tokens > 0: where the device's arithmetic becomes the bound
    -> at least 1
    Example: gamma 4, ridge_tokens 300: 16 sequences -> 80 tokens, 1.0; 120 -> 600 tokens, 2.0;
    600 sequences -> 3,000 tokens against 600: 10 / 2 = 5.0.
    """
    decode = max(1.0, n_sequences / ridge_tokens)
    return max(1.0, n_sequences * (gamma + 1) / ridge_tokens) / decode


def best_gamma(
    acceptance: float,
    draft_cost: float,
    n_sequences: int = 1,
    ridge_tokens: float = math.inf,
    largest: int = 64,
) -> int:
    """The number of draft tokens a round, 0 to `largest`, that gives the largest speed-up.

    The speed-up of a gamma is speedup(acceptance, gamma, draft_cost, verify_cost(gamma,
    n_sequences, ridge_tokens)). gamma = 0 is plain decoding: its speed-up is 1, and where nothing
    beats it the answer is 0: switch speculation off. Of several equally good, the smallest.

    Example: draft_cost 0.05: acceptance 0.8 -> 8, acceptance 0.95 -> 21. Acceptance 0.04 -> 0.
    Acceptance 0.8, ridge_tokens 295: 64 sequences -> 4, 256 -> 1, 300 -> 0.
    Source: Leviathan et al. 2023 (arXiv 2211.17192), section 3.5.
    """
    speeds = [
        speedup(acceptance, gamma, draft_cost, verify_cost(gamma, n_sequences, ridge_tokens))
        for gamma in range(largest + 1)
    ]
    return int(np.argmax(speeds))


def kept_law(acceptance: float, gamma: int) -> np.ndarray:
    """Probabilities of 0, 1, ..., gamma drafted tokens kept, if each is kept independently.

    Geometric: k kept and the next rejected, a^k (1 - a); all of them kept, a^gamma.
    """
    powers = acceptance ** np.arange(gamma + 1)
    return powers * np.where(np.arange(gamma + 1) < gamma, 1 - acceptance, 1)


# ---- with two models ---------------------------------------------------------------------------


def require_same_vocab(target_model: Engine, draft_model: Engine) -> None:
    """Raise ValueError, with both sizes, unless the two models have vocabularies of one size.

    Models of one family may differ: Qwen2.5-7B has 152,064 entries, Qwen2.5-0.5B 151,936.
    """
    sizes = target_model.config.vocab_size, draft_model.config.vocab_size
    if sizes[0] != sizes[1]:
        raise ValueError(
            f"the target's vocabulary has {sizes[0]:,} tokens, the draft's {sizes[1]:,}; "
            "both must be the same"
        )


def laws_after(
    model: Engine, cache: Any, tokens: Sequence[int], drafted: Sequence[int], law_of: LawOf
) -> list[np.ndarray]:
    """The laws of what follows `tokens`, and of what follows each drafted token after them.

    One pass: of `tokens` it runs those that the cache does not hold yet (at least the last one),
    then the drafted ones. All of them are in the cache afterwards.

    -> len(drafted) + 1 laws (vocab_size,)
    """
    new = [*tokens[cache.n_tokens :], *drafted]
    logits = model.forward(np.array([new]), cache, last_only=not drafted)[0]
    return [law_of(row) for row in logits[-len(drafted) - 1 :]]


def speculative_rounds(
    target_model: Engine,
    draft_model: Engine,
    prompt: Sequence[int],
    n_new: int,
    gamma: int,
    law_of: LawOf,
    rng: np.random.Generator,
) -> Iterator[list[int]]:
    """Generate n_new tokens by speculation; yield round by round the tokens that were added.

    prefilled(model, prompt) gives a cache that holds the prompt but for its last token; both
    models get one. A round drafts n_draft tokens, the smaller of gamma and (tokens still needed -
    1), so that the last round gives no token too many:

    1. n_draft times: laws_after(draft_model, its cache, tokens so far and drafted, [], law_of)
       gives one law, in a list; draw the next draft token from it, with rng.random().
    2. laws_after(target_model, its cache, tokens so far, drafted, law_of): all laws in one pass.
    3. verify_draft with n_draft + 1 fresh uniforms gives the new tokens. Yield them.
    4. Roll back: each cache may hold the text so far but for its last token, and nothing else.
       cache.n_tokens says how many it holds, cache.truncate(n) keeps the first n. The draft's
       may hold fewer than it may: truncate refuses to lengthen a cache, so leave that one alone.

    tokens so far: the prompt and all that was added. law_of: logits -> law, as sampling_law with
    its settings. With laws of temperature 0 the tokens are those of greedy decoding.
    Yields lists of 1 to gamma + 1 token ids, n_new in all. (A function that collects the lists
    and returns them all is as good.)
    Raises ValueError if the vocabularies of the two models differ in size, before anything is run:
    require_same_vocab(target_model, draft_model), which is given, does it.
    """
    require_same_vocab(target_model, draft_model)
    tokens, end = list(prompt), len(prompt) + n_new
    target_cache, draft_cache = prefilled(target_model, prompt), prefilled(draft_model, prompt)
    while len(tokens) < end:
        drafted: list[int] = []
        draft_laws: list[np.ndarray] = []
        for _ in range(min(gamma, end - len(tokens) - 1)):
            draft_laws += laws_after(draft_model, draft_cache, tokens + drafted, [], law_of)
            drafted.append(draw_token(draft_laws[-1], rng.random()))
        target_laws = laws_after(target_model, target_cache, tokens, drafted, law_of)
        new = verify_draft(target_laws, draft_laws, drafted, rng.random(len(drafted) + 1))
        tokens += new
        for cache in (target_cache, draft_cache):
            cache.truncate(min(cache.n_tokens, len(tokens) - 1))
        yield new


def speculative_generate(
    target_model: Engine,
    draft_model: Engine,
    prompt: Sequence[int],
    n_new: int,
    gamma: int,
    law_of: LawOf,
    rng: np.random.Generator,
) -> list[int]:
    """The n_new tokens of speculative_rounds in one list: their law is that of the target alone."""
    rounds = speculative_rounds(target_model, draft_model, prompt, n_new, gamma, law_of, rng)
    return [token for new in rounds for token in new]
