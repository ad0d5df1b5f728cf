"""What each family of published decoders means by the fields of its config.json.

A family says how its sizes differ from a Llama's (Family.sizes), what it takes where a field is
missing, and whether an engine here runs it. Each row is checked against the parameters that
transformers gives the same file, and against published totals.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from inferlab.checkpoints.hf_parts import (
    Family,
    Raw,
    Sizes,
    all_but_every,
    every_bias,
    every_layer,
    expert_sizes,
    latent_sizes,
    llama_biases,
    norm_topk,
    shared_as_whole,
    window_sizes,
)
from inferlab.sizes import need

# ---- families that run here --------------------------------------------------------------------


def _qwen_windows(raw: Raw) -> Sizes:
    """Qwen gives a window to the layers from max_window_layers on, if it is switched on."""
    window = raw.get("sliding_window") if raw.get("use_sliding_window") else None
    if window is None:
        return {}
    first = raw.get("max_window_layers", 28)
    return window_sizes(raw, window, lambda layer: layer >= first)


def _mistral(raw: Raw) -> Sizes:
    return window_sizes(raw, raw.get("sliding_window"), every_layer)


def _qwen2(raw: Raw) -> Sizes:
    return {"attention_bias": True, **_qwen_windows(raw)}


def _qwen3(raw: Raw) -> Sizes:
    return {**llama_biases(raw), "qk_norm": True, **_qwen_windows(raw)}


def _mixtral(raw: Raw) -> Sizes:
    return {
        **window_sizes(raw, raw.get("sliding_window"), every_layer),
        **expert_sizes(raw, "num_local_experts", "intermediate_size"),
    }


def _olmoe(raw: Raw) -> Sizes:
    experts = expert_sizes(raw, "num_experts", "intermediate_size")
    return {
        **llama_biases(raw), **experts, **norm_topk(raw),
        "qk_norm": True, "qk_norm_per_head": False,
    }  # fmt: skip


def _deepseek_experts(raw: Raw) -> Sizes:
    first, every = raw.get("first_k_dense_replace") or 0, raw.get("moe_layer_freq") or 1
    if not raw.get("n_routed_experts"):  # null where all layers are plain
        return {}
    experts = expert_sizes(
        raw,
        "n_routed_experts",
        "moe_intermediate_size",
        lambda layer: layer >= first and layer % every == 0,
    )
    if not experts:
        return {}
    return experts | {
        "n_shared_experts": raw.get("n_shared_experts") or 0,
        **norm_topk(raw),
    }


def _deepseek(raw: Raw) -> Sizes:
    return {**latent_sizes(raw), **_deepseek_experts(raw)}


# ---- families that are counted only ------------------------------------------------------------


def _qwen_sparse(raw: Raw) -> Callable[[int], bool]:
    every, dense = raw.get("decoder_sparse_step") or 1, raw.get("mlp_only_layers") or ()
    return lambda layer: layer not in dense and (layer + 1) % every == 0


def _qwen2_moe(raw: Raw) -> Sizes:
    experts = expert_sizes(raw, "num_experts", "moe_intermediate_size", _qwen_sparse(raw))
    if experts:
        width = experts["d_expert"]
        n_sparse = raw["num_hidden_layers"] - experts["n_dense_layers"]
        shared = shared_as_whole(raw, "shared_expert_intermediate_size", width)
        # The shared expert's output passes a gate: a row of d_model numbers.
        gates = n_sparse * raw["hidden_size"]
        experts |= {"n_shared_experts": shared, "n_other_params": gates, **norm_topk(raw)}
    return {**_qwen2(raw), **experts}


def _qwen3_moe(raw: Raw) -> Sizes:
    # As published; transformers 5 writes the second one.
    count = "num_experts" if "num_experts" in raw else "num_local_experts"
    return {
        **_qwen3(raw),
        **expert_sizes(raw, count, "moe_intermediate_size", _qwen_sparse(raw)),
        **norm_topk(raw),
    }


def _gemma2(raw: Raw) -> Sizes:
    windows = window_sizes(raw, raw.get("sliding_window"), lambda layer: layer % 2 == 0)
    return {**llama_biases(raw), "norms_per_layer": 4, **windows}


def _gemma3(raw: Raw) -> Sizes:
    pattern = raw.get("sliding_window_pattern") or raw.get("_sliding_window_pattern") or 6
    windows = window_sizes(raw, raw.get("sliding_window"), all_but_every(pattern))
    return {**llama_biases(raw), "norms_per_layer": 4, "qk_norm": True, **windows}


def _llama4(raw: Raw) -> Sizes:
    moe_layers, every = raw.get("moe_layers"), raw.get("interleave_moe_layer_step") or 1

    def is_sparse(layer: int) -> bool:
        return (layer + 1) % every == 0 if moe_layers is None else layer in moe_layers

    rotated = raw.get("no_rope_layers") or ()
    period = raw.get("no_rope_layer_interval") or 4

    def is_chunked(layer: int) -> bool:
        return bool(rotated[layer]) if rotated else (layer + 1) % period != 0

    experts = expert_sizes(raw, "num_local_experts", "intermediate_size", is_sparse)
    return {
        **llama_biases(raw), **experts, **({"n_shared_experts": 1} if experts else {}),
        "d_ff": need(raw, "intermediate_size_mlp"),
        **window_sizes(raw, raw.get("attention_chunk_size"), is_chunked),
    }  # fmt: skip


def _gpt_oss(raw: Raw) -> Sizes:
    return {
        **expert_sizes(raw, "num_local_experts", "intermediate_size"),
        "attention_bias": True, "output_bias": True, "attention_sinks": True,
        "router_bias": True, "expert_bias": True,
        **window_sizes(raw, need(raw, "sliding_window"), lambda layer: layer % 2 == 0),
    }  # fmt: skip


def _glm4_moe(raw: Raw) -> Sizes:
    return {
        "attention_bias": bool(raw.get("attention_bias")),
        "qk_norm": bool(raw.get("use_qk_norm")),
        **_deepseek_experts(raw),
    }


def _glm(norms_per_layer: int) -> Callable[[Raw], Sizes]:
    return lambda raw: {
        "attention_bias": bool(raw.get("attention_bias")),
        "norms_per_layer": norms_per_layer,
    }


def _dots1(raw: Raw) -> Sizes:
    return {**llama_biases(raw), "qk_norm": True, **_deepseek_experts(raw)}


def _phi(raw: Raw) -> Sizes:
    """One norm for attention and MLP, which run side by side; the head has a bias too."""
    gains = 0
    if raw.get("qk_layernorm"):  # with biases, shared by all heads
        gains = raw["num_hidden_layers"] * 4 * (raw["hidden_size"] // raw["num_attention_heads"])
    return {
        **every_bias(), "layer_norm": True, "norms_per_layer": 1, "mlp_is_gated": False,
        "n_other_params": need(raw, "vocab_size") + gains,
    }  # fmt: skip


def _phimoe(raw: Raw) -> Sizes:
    head = raw["vocab_size"] if raw.get("lm_head_bias") else 0
    return {**_mixtral(raw), **llama_biases(raw), "layer_norm": True, "n_other_params": head}


def _olmo(raw: Raw) -> Sizes:
    """The norms of the first OLMo have nothing that is trained."""
    n_norms = 2 * need(raw, "num_hidden_layers") + 1
    return {**llama_biases(raw), "n_other_params": -n_norms * need(raw, "hidden_size")}


def _olmo2(raw: Raw) -> Sizes:
    windows = window_sizes(raw, raw.get("sliding_window"), all_but_every(4))
    return {**llama_biases(raw), "qk_norm": True, "qk_norm_per_head": False, **windows}


def _cohere(raw: Raw) -> Sizes:
    """One norm for attention and MLP; the window, where there is one, in three layers of four."""
    pattern = raw.get("sliding_window_pattern") or raw.get("_sliding_window_pattern") or 4
    return {
        **llama_biases(raw), "norms_per_layer": 1,
        "qk_norm": bool(raw.get("use_qk_norm")), "qk_norm_per_head": False,
        **window_sizes(raw, raw.get("sliding_window"), all_but_every(pattern)),
    }  # fmt: skip


def _falcon(raw: Raw) -> Sizes:
    new, parallel = raw.get("new_decoder_architecture"), raw.get("parallel_attn", True)
    n_kv_heads = raw["num_attention_heads"]
    if new:
        n_kv_heads = raw.get("num_kv_heads") or n_kv_heads
    elif raw.get("multi_query", True):
        n_kv_heads = 1
    one_norm = parallel and (not new or raw.get("num_ln_in_parallel_attn") == 1)
    return {
        **every_bias(bool(raw.get("bias"))), "mlp_is_gated": False, "layer_norm": True,
        "norms_per_layer": 1 if one_norm else 2, "n_kv_heads": n_kv_heads,
        "d_ff": raw.get("ffn_hidden_size") or 4 * raw["hidden_size"],
    }  # fmt: skip


def _gpt2(raw: Raw) -> Sizes:
    return {
        **every_bias(), "mlp_is_gated": False, "layer_norm": True,
        "n_learned_positions": need(raw, "max_position_embeddings"),
        "d_ff": raw.get("n_inner") or 4 * raw["hidden_size"],
        **({"n_kv_heads": 1} if raw.get("multi_query") else {}),
    }  # fmt: skip


def _gpt_neox(raw: Raw) -> Sizes:
    bias = bool(raw.get("attention_bias", True))
    return {**every_bias(), "attention_bias": bias, "output_bias": bias} | {
        "mlp_is_gated": False,
        "layer_norm": True,
        "n_kv_heads": need(raw, "num_attention_heads"),
    }


def _starcoder2(raw: Raw) -> Sizes:
    return {
        **every_bias(bool(raw.get("use_bias", True))), "mlp_is_gated": False, "layer_norm": True,
        **window_sizes(raw, raw.get("sliding_window"), every_layer),
    }  # fmt: skip


def _granite_moe(raw: Raw) -> Sizes:
    experts = expert_sizes(raw, "num_local_experts", "intermediate_size")
    if experts:
        experts["n_shared_experts"] = shared_as_whole(
            raw, "shared_intermediate_size", experts["d_expert"]
        )
    return {**llama_biases(raw), **experts}


def _exaone4(raw: Raw) -> Sizes:
    windows = window_sizes(raw, raw.get("sliding_window"), all_but_every(4))
    return {"qk_norm": True, **windows}


def _seed_oss(raw: Raw) -> Sizes:
    return llama_biases(raw) | {"output_bias": bool(raw.get("attention_out_bias"))}


def _ungated(raw: Raw) -> Sizes:
    return {**llama_biases(raw), "mlp_is_gated": False}


def _nemotron(raw: Raw) -> Sizes:
    return {**_ungated(raw), "layer_norm": True}


# ---- the table ---------------------------------------------------------------------------------

_LAYER_NORM = {"rms_norm_eps": "layer_norm_epsilon"}
_GPT_NAMES = {
    "hidden_size": "n_embd",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "max_position_embeddings": "n_positions",
    **_LAYER_NORM,
}
_COHERE_NAMES = {"rms_norm_eps": "layer_norm_eps"}
_GEMMA_HEADS: Raw = {"head_dim": 256}
_GEMMA3: Raw = {  # the published 4B file says none of these
    **_GEMMA_HEADS,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 262_208,
    "rms_norm_eps": 1e-6,
}
_MLA_PLAIN: Mapping[str, tuple[Any, ...]] = {
    "topk_method": (None, "greedy"),
    "scoring_func": (None, "softmax"),
    "routed_scaling_factor": (None, 1.0),
    "norm_topk_prob": (None, False),
    "moe_layer_freq": (None, 1),
}

FAMILIES: dict[str, Family] = {
    "llama": Family(llama_biases, runs=True),
    "mistral": Family(_mistral, runs=True, defaults={"sliding_window": 4096}),
    "qwen2": Family(_qwen2, runs=True),
    "qwen3": Family(_qwen3, runs=True, defaults={"head_dim": 128}),
    "mixtral": Family(_mixtral, runs=True, theta=1e6),
    "olmoe": Family(_olmoe, runs=True, plain={"clip_qkv": (None,)}),
    "deepseek_v2": Family(_deepseek, runs=True, plain=_MLA_PLAIN),
    # Counted only.
    "arcee": Family(_ungated),
    "cohere": Family(_cohere, tied=True, names=_COHERE_NAMES),
    "cohere2": Family(_cohere, tied=True, names=_COHERE_NAMES),
    "deepseek_v3": Family(_deepseek),
    "dots1": Family(_dots1),
    "exaone4": Family(_exaone4),
    "falcon": Family(_falcon, tied=True, names=_LAYER_NORM),
    "gemma": Family(llama_biases, tied=True, defaults=_GEMMA_HEADS),
    "gemma2": Family(_gemma2, tied=True, defaults={**_GEMMA_HEADS, "sliding_window": 4096}),
    "gemma3": Family(_gemma3, tied=True, defaults=_GEMMA3),
    "glm": Family(_glm(norms_per_layer=2)),
    "glm4": Family(_glm(norms_per_layer=4)),
    "glm4_moe": Family(_glm4_moe),
    "glm4_moe_lite": Family(_deepseek),
    "gpt2": Family(_gpt2, tied=True, names=_GPT_NAMES),
    "gpt_bigcode": Family(_gpt2, tied=True, names=_GPT_NAMES, defaults={"multi_query": True}),
    "gpt_neox": Family(_gpt_neox, names={"rms_norm_eps": "layer_norm_eps"}),
    "gpt_oss": Family(_gpt_oss, defaults={"head_dim": 64, "sliding_window": 128}),
    "granite": Family(llama_biases),
    "granitemoe": Family(_granite_moe),
    "granitemoeshared": Family(_granite_moe),
    "llama4": Family(_llama4, defaults={"head_dim": 128, "attention_chunk_size": 8192}),
    "minicpm": Family(llama_biases, tied=True),
    "minicpm3": Family(latent_sizes, tied=True),
    "ministral": Family(_mistral),
    "ministral3": Family(_mistral),
    "nemotron": Family(_nemotron, names={"rms_norm_eps": "norm_eps"}),
    "olmo": Family(_olmo, defaults={"rms_norm_eps": 1e-5}),
    "olmo2": Family(_olmo2),
    "olmo3": Family(_olmo2, defaults={"sliding_window": 4096}),
    "phi": Family(_phi, names={"rms_norm_eps": "layer_norm_eps"}),
    "phi3": Family(_mistral),
    "phimoe": Family(_phimoe),
    "qwen2_moe": Family(_qwen2_moe),
    "qwen3_moe": Family(_qwen3_moe),
    "seed_oss": Family(_seed_oss, defaults={"head_dim": 128}),
    "smollm3": Family(llama_biases, tied=True),
    "starcoder2": Family(_starcoder2, tied=True, names={"rms_norm_eps": "norm_epsilon"}),
}
"""By model_type, as config.json has it."""

SAME_AS = {
    "kimi_k2": "deepseek_v3",
    "qwen2_vl": "qwen2",
    "qwen2_5_vl": "qwen2",
    "qwen3_vl": "qwen3",
    "qwen3_vl_moe": "qwen3_moe",
}
"""Other names for the language part of a family above."""
