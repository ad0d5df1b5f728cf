"""How many trained numbers a model has, from its sizes alone, part by part.

Checked against the published counts of every model in data/models.json and against the arrays of
the models that run here.
"""

from __future__ import annotations

from dataclasses import replace

from inferlab.sizes import MlaConfig
from inferlab.sizes import (
    ModelSizes as ModelConfig,  # the same fields; it counts by these functions
)


def attention_params(config: ModelConfig) -> int:
    """Trained numbers in the attention of one layer.

    - Four matrices: queries d_model x (n_heads * d_head), keys and values d_model x
      (n_kv_heads * d_head) each, and the output (n_heads * d_head) x d_model.
    - With attention_bias, one bias for each number of a query, key and value row; with
      output_bias, one for each of the d_model numbers that come out.
    - With qk_norm, a gain for each number of a query and of a key: d_head each, shared by all
      heads, where qk_norm_per_head holds; else one for each number of all heads together.

    config has n_heads, n_kv_heads, d_head, d_model and the switches above; d_head is a number of
    its own, not always d_model / n_heads.

    Example: d_model 10, 4 query heads and 2 KV heads of 3 numbers, no switch on:
    10 * 12 + 2 * 10 * 6 + 12 * 10 -> 360. With attention_bias 12 + 6 + 6 more -> 384.
    Raises ValueError if config.mla is set: latent attention is counted in lesson 05.
    """
    if config.mla is not None:
        raise ValueError(
            "config.mla is set: latent attention is counted by latent_attention_params"
        )
    d_query, d_kv = config.n_heads * config.d_head, config.n_kv_heads * config.d_head
    projections = config.d_model * (2 * d_query + 2 * d_kv)  # queries and output, keys and values
    biases = config.attention_bias * (d_query + 2 * d_kv) + config.output_bias * config.d_model
    gains = 2 * config.d_head if config.qk_norm_per_head else d_query + d_kv
    return projections + biases + config.qk_norm * gains


def latent_attention_params(config: ModelConfig, mla: MlaConfig) -> int:
    """Trained numbers in one layer's multi-head latent attention, the latents' norms included."""
    d_query = config.n_heads * (mla.d_nope + mla.d_rope)
    if mla.d_query_latent is None:
        queries = config.d_model * d_query
    else:
        queries = mla.d_query_latent * (config.d_model + d_query + 1)  # 1: the latent's norm
    latent = config.d_model * (mla.d_latent + mla.d_rope) + mla.d_latent
    keys_and_values = mla.d_latent * config.n_heads * (mla.d_nope + mla.d_value)
    return queries + latent + keys_and_values + config.n_heads * mla.d_value * config.d_model


def any_attention_params(config: ModelConfig) -> int:
    """Trained numbers in one layer's attention, of whatever kind, its sinks included."""
    if config.mla is not None:
        return latent_attention_params(config, config.mla)
    return attention_params(config) + config.attention_sinks * config.n_heads


def mlp_params(config: ModelConfig) -> int:
    """Trained numbers in one dense MLP.

    - Two matrices, up d_model x d_ff and down d_ff x d_model; with mlp_is_gated a third, the
      gate, of the same size as up.
    - With mlp_bias, each matrix has a bias for each number that comes out of it.

    Example: d_model 10, d_ff 7: gated 3 * 70 -> 210; not gated, with biases 2 * 70 + 7 + 10 -> 157.
    """
    d_model, d_ff = config.d_model, config.d_ff
    n_matrices = 3 if config.mlp_is_gated else 2
    biases = config.mlp_bias * ((n_matrices - 1) * d_ff + d_model)
    return n_matrices * d_model * d_ff + biases


def dense_params(config: ModelConfig) -> int:
    """Trained numbers in a whole model whose layers all have attention_params and mlp_params.

    - The embedding: a row of d_model numbers for each of vocab_size tokens.
    - The head, of the same size. With tied_embeddings it is the same array: it counts once.
    - n_learned_positions rows of d_model numbers (0 in most models).
    - n_layers layers, each with one attention, one MLP and norms_per_layer norms.
    - One more norm behind the last layer. A norm has a gain for each of d_model numbers, and
      with layer_norm a bias for each as well.

    Example: d_model 10, vocab_size 50, tied, 3 layers with 360 numbers of attention and 210 of
    MLP, 2 norms each, no layer_norm: 500 + 3 * (360 + 210 + 20) + 10 -> 2,280.
    """
    norm = config.d_model * (2 if config.layer_norm else 1)
    n_tables = 1 if config.tied_embeddings else 2
    tables = (n_tables * config.vocab_size + config.n_learned_positions) * config.d_model
    layer = attention_params(config) + mlp_params(config) + config.norms_per_layer * norm
    return tables + config.n_layers * layer + norm


def expert_params(config: ModelConfig) -> int:
    """Numbers in one expert: gate, up and down, and their biases."""
    return 3 * config.d_model * config.d_expert + config.expert_bias * (
        2 * config.d_expert + config.d_model
    )


def router_params(config: ModelConfig) -> int:
    """Numbers in one layer's router, and the bias of its scores."""
    return config.d_model * config.n_experts + config.router_bias * config.n_experts


def count_params(config: ModelConfig, n_experts_counted: int | None = None) -> int:
    """Numbers in any model: the dense count, with what differs put in its place.

    n_experts_counted: routed experts to count a layer; None counts all, n_experts_per_token the
    active ones of a token.
    """
    counted = config.n_experts if n_experts_counted is None else n_experts_counted
    n_moe_layers = sum(config.has_experts(layer) for layer in range(config.n_layers))
    moe = (counted + config.n_shared_experts) * expert_params(config) + router_params(config)
    plain = replace(config, mla=None)
    return (
        dense_params(plain)
        + config.n_layers * (any_attention_params(config) - attention_params(plain))
        + n_moe_layers * (moe - mlp_params(config))
        + config.n_other_params
    )
