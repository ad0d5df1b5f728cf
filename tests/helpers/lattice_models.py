"""Small random models of every kind that the engine runs."""

import numpy as np

from inferlab.config import ModelConfig
from inferlab.model import Model
from inferlab.sizes import MlaConfig, RopeScaling
from inferlab.weights import random_weights


def sizes(n_kv_heads: int = 2, **options) -> ModelConfig:
    base = {"n_layers": 3, "d_model": 32, "n_heads": 4, "n_kv_heads": n_kv_heads, "d_head": 8}
    rest = {"d_ff": 48, "vocab_size": 97, "max_context": 64, "tied_embeddings": False}
    return ModelConfig(**{**base, **rest, **options})


MLA = MlaConfig(d_latent=12, d_nope=6, d_rope=4, d_value=10)

EXPERTS = {"n_experts": 5, "n_experts_per_token": 2, "d_expert": 16}

KINDS = {
    "MHA": sizes(4),
    "GQA": sizes(2),
    "MQA": sizes(1),
    "MLA": sizes(4, d_head=10, mla=MLA),
    "MoE": sizes(2, **EXPERTS),
    "sliding window": sizes(2, sliding_window=4),
    "Qwen2 biases": sizes(2, attention_bias=True),
    "Qwen3 norms": sizes(2, qk_norm=True),
    "stretched RoPE": sizes(2, rope_scaling=RopeScaling(original_context=8)),
    "MLA with shared experts": sizes(
        4,
        d_head=10,
        mla=MlaConfig(12, 6, 4, 10, d_query_latent=14),
        **EXPERTS,
        n_shared_experts=2,
        n_dense_layers=1,
        norm_topk=False,
    ),
    "MoE with a window and full norms": sizes(
        2, **EXPERTS, sliding_window=4, qk_norm=True, qk_norm_per_head=False
    ),
}


def model_of(kind: str) -> Model:
    config = KINDS[kind]
    return Model(config, random_weights(config, np.random.default_rng(1), np.float64))
