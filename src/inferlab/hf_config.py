"""Read the config.json of a Hugging Face model: one function for each family that runs here.

Only what the forward pass computes may pass. Everything else is refused by name, since a model
that is read almost rightly writes almost good text.
"""

import json
from collections.abc import Callable, Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from inferlab.config import (
    InvalidModelFile,
    MlaConfig,
    ModelConfig,
    RopeScaling,
    UnsupportedModel,
    default_d_head,
    need,
)

Raw = Mapping[str, Any]


def read_hf_config(source: Raw | str | PathLike[str]) -> ModelConfig:
    """Read a config.json: the parsed mapping, the file, or its folder.

    Raises UnsupportedModel for another architecture or an option that is not implemented, naming
    it; InvalidModelFile for an unreadable file or a missing field.
    """
    raw = source if isinstance(source, Mapping) else _read_json(Path(source))
    family = FAMILIES[_architecture(raw)]
    _refuse_options(raw)
    sizes = {**_common_sizes(raw), **family(raw)}
    return ModelConfig(**sizes)


def _common_sizes(raw: Raw) -> dict[str, Any]:
    """The fields that every family has."""
    n_heads = need(raw, "num_attention_heads")
    d_model = need(raw, "hidden_size")
    eos = raw.get("eos_token_id")
    return {
        "n_layers": need(raw, "num_hidden_layers"),
        "d_model": d_model,
        "n_heads": n_heads,
        "n_kv_heads": raw.get("num_key_value_heads") or n_heads,
        "d_head": raw.get("head_dim") or default_d_head(d_model, n_heads),
        "d_ff": need(raw, "intermediate_size"),
        "vocab_size": need(raw, "vocab_size"),
        "max_context": raw.get("max_position_embeddings") or 2048,
        "rope_theta": _rope_theta(raw),
        "rope_scaling": _rope_scaling(raw),
        "norm_eps": float(need(raw, "rms_norm_eps")),
        "tied_embeddings": bool(raw.get("tie_word_embeddings", False)),
        "bos_id": raw.get("bos_token_id"),
        "eos_ids": () if eos is None else tuple(eos) if isinstance(eos, list) else (eos,),
    }


def _llama(raw: Raw) -> dict[str, Any]:
    return {}


def _mistral(raw: Raw) -> dict[str, Any]:
    return {"sliding_window": _window(raw, raw.get("sliding_window", 4096))}


def _qwen2(raw: Raw) -> dict[str, Any]:
    return {"attention_bias": True, "sliding_window": _qwen_window(raw)}


def _qwen3(raw: Raw) -> dict[str, Any]:
    # Qwen3 says its head size; where the key is absent, transformers takes 128.
    d_head = raw.get("head_dim") or 128
    return {"qk_norm": True, "d_head": d_head, "sliding_window": _qwen_window(raw)}


def _mixtral(raw: Raw) -> dict[str, Any]:
    return {
        "sliding_window": _window(raw, raw.get("sliding_window")),
        "n_experts": need(raw, "num_local_experts"),
        "n_experts_per_token": need(raw, "num_experts_per_tok"),
        "d_expert": need(raw, "intermediate_size"),
    }


def _olmoe(raw: Raw) -> dict[str, Any]:
    _refuse_unless(raw, "clip_qkv", (None,))
    return {
        "qk_norm": True,
        "qk_norm_per_head": False,
        "n_experts": need(raw, "num_experts"),
        "n_experts_per_token": need(raw, "num_experts_per_tok"),
        "d_expert": need(raw, "intermediate_size"),
        "norm_topk": bool(raw.get("norm_topk_prob", False)),
    }


def _deepseek_v2(raw: Raw) -> dict[str, Any]:
    _refuse_unless(raw, "topk_method", (None, "greedy"))
    _refuse_unless(raw, "scoring_func", (None, "softmax"))
    _refuse_unless(raw, "routed_scaling_factor", (None, 1.0))
    _refuse_unless(raw, "norm_topk_prob", (None, False))
    _refuse_unless(raw, "moe_layer_freq", (None, 1))
    mla = MlaConfig(
        d_latent=need(raw, "kv_lora_rank"),
        d_nope=need(raw, "qk_nope_head_dim"),
        d_rope=need(raw, "qk_rope_head_dim"),
        d_value=need(raw, "v_head_dim"),
        d_query_latent=raw.get("q_lora_rank"),
    )
    sizes = {"mla": mla, "d_head": mla.d_nope + mla.d_rope}
    n_dense = raw.get("first_k_dense_replace") or 0
    if n_dense >= need(raw, "num_hidden_layers") or not raw.get("n_routed_experts"):
        return sizes
    return sizes | {
        "n_experts": need(raw, "n_routed_experts"),
        "n_experts_per_token": need(raw, "num_experts_per_tok"),
        "d_expert": need(raw, "moe_intermediate_size"),
        "norm_topk": False,
        "n_shared_experts": raw.get("n_shared_experts") or 0,
        "n_dense_layers": n_dense,
    }


FAMILIES: dict[str, Callable[[Raw], dict[str, Any]]] = {
    "LlamaForCausalLM": _llama,
    "MistralForCausalLM": _mistral,
    "Qwen2ForCausalLM": _qwen2,
    "Qwen3ForCausalLM": _qwen3,
    "MixtralForCausalLM": _mixtral,
    "OlmoeForCausalLM": _olmoe,
    "DeepseekV2ForCausalLM": _deepseek_v2,
}

MODEL_TYPES = {
    name.removesuffix("ForCausalLM").lower().replace("v2", "_v2"): name for name in FAMILIES
}
"""What config.json calls the families where it names no architecture: llama, deepseek_v2, ..."""


def _architecture(raw: Raw) -> str:
    named = list(raw.get("architectures") or [MODEL_TYPES.get(str(raw.get("model_type")))])
    if len(named) != 1 or named[0] not in FAMILIES:
        given = raw.get("architectures") or [raw.get("model_type")]
        raise UnsupportedModel(
            f"this checkpoint holds {', '.join(map(str, given))}; "
            f"implemented are: {', '.join(FAMILIES)}"
        )
    return str(named[0])


def _refuse_options(raw: Raw) -> None:
    """Options that several families have and none of them has here."""
    # Llama, Qwen3, OLMoE and DeepSeek-V2 would put a bias on the output projection too. Qwen2,
    # which never does, has no such key.
    for key in ("attention_bias", "mlp_bias"):
        _refuse_unless(raw, key, (None, False))
    _refuse_unless(raw, "hidden_act", (None, "silu"))
    _refuse_unless(raw, "partial_rotary_factor", (None, 1.0))
    _refuse_unless(raw, "quantization_config", (None,))


def _refuse_unless(raw: Raw, key: str, allowed: tuple[Any, ...]) -> None:
    if raw.get(key) not in allowed:
        raise UnsupportedModel(f"{key}={raw[key]!r} is not implemented; needed: {allowed[-1]!r}")


def _window(raw: Raw, window: int | None) -> int | None:
    """The window of all layers; models in which only some layers have one are refused."""
    kinds = set(raw.get("layer_types") or ())
    if kinds == {"full_attention"}:
        return None
    if window is not None and kinds - {"sliding_attention"}:
        raise UnsupportedModel(
            f"layer_types={sorted(kinds)} is not implemented; needed: one kind in all layers"
        )
    return window


def _qwen_window(raw: Raw) -> int | None:
    """Qwen gives a window to the layers from max_window_layers on, if it is switched on."""
    window = raw.get("sliding_window") if raw.get("use_sliding_window") else None
    if window is None or raw.get("layer_types"):
        return _window(raw, window)
    n_full = min(raw.get("max_window_layers", 28), need(raw, "num_hidden_layers"))
    n_windowed = need(raw, "num_hidden_layers") - n_full
    if n_full and n_windowed:
        raise UnsupportedModel(
            f"max_window_layers={n_full}: a sliding window in only {n_windowed} of "
            f"{n_full + n_windowed} layers is not implemented; needed: in all or none"
        )
    return window if n_windowed else None


def _rope(raw: Raw) -> Raw:
    """transformers 5 writes rope_parameters, earlier ones rope_scaling."""
    return raw.get("rope_parameters") or raw.get("rope_scaling") or {}


def _rope_scaling(raw: Raw) -> RopeScaling | None:
    rope = _rope(raw)
    _refuse_unless(rope, "partial_rotary_factor", (None, 1.0))
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if kind == "default":
        return None
    if kind != "llama3":
        raise UnsupportedModel(
            f"RoPE scaling {kind!r} is not implemented; needed: none, or 'llama3'"
        )
    return RopeScaling(
        factor=float(need(rope, "factor")),
        low_freq_factor=float(need(rope, "low_freq_factor")),
        high_freq_factor=float(need(rope, "high_freq_factor")),
        original_context=need(rope, "original_max_position_embeddings"),
    )


def _rope_theta(raw: Raw) -> float:
    given = _rope(raw).get("rope_theta") or raw.get("rope_theta")
    # transformers' default, but for Mixtral.
    default = 1e6 if _architecture(raw) == "MixtralForCausalLM" else 10_000.0
    return float(given or default)


def _read_json(path: Path) -> dict[str, Any]:
    file = path / "config.json" if path.is_dir() else path
    try:
        raw = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise FileNotFoundError(
            f"no {file.name} in {file.parent}; a Hugging Face model folder holds config.json, "
            "tokenizer.json and *.safetensors"
        ) from None
    except ValueError as error:
        raise InvalidModelFile(f"{file} is not valid JSON ({error})") from None
    if not isinstance(raw, dict):
        raise InvalidModelFile(f"{file} holds a {type(raw).__name__}; needed: a JSON object")
    return raw
