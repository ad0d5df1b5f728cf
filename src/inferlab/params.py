"""How many trained numbers a model has, from its sizes alone, part by part.

Checked against the published counts of every model in data/models.json and against the arrays of
the models that run here.
"""

from __future__ import annotations

from inferlab.config import MlaConfig, ModelConfig


def attention_params(config: ModelConfig) -> int:
    """Numbers in one layer's attention: four projections, their biases, query and key norms."""
    if config.mla is not None:
        return _latent_attention_params(config, config.mla)
    d_query, d_kv = config.n_heads * config.d_head, config.n_kv_heads * config.d_head
    projections = config.d_model * (2 * d_query + 2 * d_kv)  # queries and output, keys and values
    biases = config.attention_bias * (d_query + 2 * d_kv) + config.output_bias * config.d_model
    norms = 2 * config.d_head if config.qk_norm_per_head else d_query + d_kv
    return projections + biases + config.qk_norm * norms + config.attention_sinks * config.n_heads


def _latent_attention_params(config: ModelConfig, mla: MlaConfig) -> int:
    d_query = config.n_heads * (mla.d_nope + mla.d_rope)
    if mla.d_query_latent is None:
        queries = config.d_model * d_query
    else:
        queries = mla.d_query_latent * (config.d_model + d_query + 1)  # 1: the latent's norm
    latent = config.d_model * (mla.d_latent + mla.d_rope) + mla.d_latent
    keys_and_values = mla.d_latent * config.n_heads * (mla.d_nope + mla.d_value)
    return queries + latent + keys_and_values + config.n_heads * mla.d_value * config.d_model


def mlp_params(config: ModelConfig) -> int:
    """Numbers in one dense MLP: up and down, and the gate where there is one."""
    d_model, d_ff = config.d_model, config.d_ff
    n_matrices = 3 if config.mlp_is_gated else 2
    biases = config.mlp_bias * ((n_matrices - 1) * d_ff + d_model)
    return n_matrices * d_model * d_ff + biases


def expert_params(config: ModelConfig) -> int:
    """Numbers in one expert: gate, up and down, and their biases."""
    return 3 * config.d_model * config.d_expert + config.expert_bias * (
        2 * config.d_expert + config.d_model
    )


def router_params(config: ModelConfig) -> int:
    """Numbers in one layer's router, and the bias of its scores."""
    return config.d_model * config.n_experts + config.router_bias * config.n_experts


def count_params(config: ModelConfig, n_experts_counted: int | None = None) -> int:
    """Numbers in the whole model; a tied head is counted once.

    n_experts_counted: routed experts to count a layer; None counts all, n_experts_per_token the
    active ones of a token.
    """
    counted = config.n_experts if n_experts_counted is None else n_experts_counted
    n_norm_layers = config.n_layers * config.norms_per_layer + 1  # 1: the final norm
    norms = n_norm_layers * config.d_model * (2 if config.layer_norm else 1)
    tables = (1 if config.tied_embeddings else 2) * config.vocab_size + config.n_learned_positions
    n_moe_layers = sum(config.has_experts(layer) for layer in range(config.n_layers))
    moe = (counted + config.n_shared_experts) * expert_params(config) + router_params(config)
    return (
        tables * config.d_model
        + config.n_layers * attention_params(config)
        + (config.n_layers - n_moe_layers) * mlp_params(config)
        + n_moe_layers * moe
        + norms
    )
