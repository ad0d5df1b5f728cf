"""Small random models of transformers, as oracles."""

from typing import Any

import numpy as np
import torch

B, T = 2, 13

TOKENS = np.random.default_rng(5).integers(0, 67, (B, T))

SIZES = {
    "hidden_size": 32,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 67,
    "max_position_embeddings": 64,
    "initializer_range": 0.3,
    "rms_norm_eps": 1e-5,
    "bos_token_id": None,
    "eos_token_id": 2,
    "pad_token_id": None,
}

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 1e4,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}

LATENT = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 12,
    "qk_nope_head_dim": 6,
    "qk_rope_head_dim": 8,
    "v_head_dim": 10,
    "moe_intermediate_size": 10,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
}

# name -> (family in transformers, options beside SIZES)
ARCHITECTURES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {"head_dim": 8}),
    "llama, tied head": ("Llama", {"tie_word_embeddings": True}),
    "llama, wide heads": ("Llama", {"head_dim": 12, "num_key_value_heads": 1}),
    "llama 3 rope": ("Llama", {"rope_parameters": LLAMA3}),
    "mistral": ("Mistral", {"sliding_window": 4}),
    "mistral without window": ("Mistral", {"sliding_window": None}),
    "qwen2": ("Qwen2", {}),
    "qwen2, window": (
        "Qwen2",
        {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 0},
    ),
    "qwen3": ("Qwen3", {"head_dim": 12}),
    "mixtral": ("Mixtral", {"num_local_experts": 6, "num_experts_per_tok": 2}),
    "mixtral, window": ("Mixtral", {"num_local_experts": 3, "sliding_window": 4}),
    "olmoe": ("Olmoe", {"num_experts": 6, "num_experts_per_tok": 3}),
    "olmoe, top-k normed": (
        "Olmoe",
        {"num_experts": 6, "num_experts_per_tok": 3, "norm_topk_prob": True},
    ),
    "deepseek-v2, dense": (
        "DeepseekV2",
        {**LATENT, "q_lora_rank": None, "first_k_dense_replace": 2},
    ),
    "deepseek-v2, experts": (
        "DeepseekV2",
        {**LATENT, "q_lora_rank": 20, "first_k_dense_replace": 1, "n_shared_experts": 2},
    ),
}


def their_model(kind: str) -> Any:
    """A random model of transformers, with gains and biases that show when they are forgotten."""
    import transformers

    family, options = ARCHITECTURES[kind]
    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**{**SIZES, **options})
    model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    model.set_experts_implementation("eager")  # the fast one knows no float64
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.uniform_(0.5, 1.5)
            elif name.endswith("bias"):
                parameter.normal_()
    return model


def their_logits(model: Any, tokens: np.ndarray) -> np.ndarray:
    with torch.no_grad():
        return model(torch.from_numpy(tokens)).logits.numpy()
