"""The course's data: published sizes of models and figures of devices."""

import functools
import json
from pathlib import Path
from typing import Any

from inferlab.config import ModelConfig
from inferlab.sizes import MlaConfig

_CARRIED = Path(__file__).resolve().parent / "course"  # put there when a wheel is built: setup.py
IS_INSTALLED = _CARRIED.is_dir()
"""Whether this is a wheel's copy of the course, which nobody writes in; else a repository's."""

ROOT = _CARRIED if IS_INSTALLED else Path(__file__).resolve().parents[2]
"""The course's own folder: it holds data/ and notebooks/."""

IS_FOR_STUDENTS = (ROOT / "for-students").is_file()
"""Whether this is the edition without worked notebooks and hidden named cases."""

STYLES = {
    "8b-style": ModelConfig(32, 4096, 32, 8, 128, 14336, 128256, 8192, 500_000.0, 1e-5, False),
    "70b-style": ModelConfig(80, 8192, 64, 8, 128, 28672, 128256, 8192, 500_000.0, 1e-5, False),
    "small-mha": ModelConfig(24, 2048, 32, 32, 64, 8192, 32000, 8192, tied_embeddings=False),
}
"""Sizes of the models of most worked examples, and of a small one whose heads share nothing."""


def load_models() -> dict[str, dict[str, Any]]:
    """The records of data/models.json by id; data/README.md says where they come from."""
    return {model["id"]: model for model in _read("models.json")["models"]}


def load_config(name: str) -> dict[str, Any]:
    """The config.json of a published model, as on the Hugging Face hub: the fields of its sizes.

    Raises ValueError for a model of which no copy is kept in data/configs.
    """
    known = sorted(path.stem for path in (ROOT / "data" / "configs").glob("*.json"))
    if name not in known:
        raise ValueError(f"no config.json of {name!r} is kept; known: {', '.join(known)}")
    return dict(_read(f"configs/{name}.json"))


def load_devices() -> dict[str, dict[str, Any]]:
    """The records of data/devices.json by id; data/README.md says where they come from."""
    return {device["id"]: device for device in _read("devices.json")["devices"]}


def model_preset(name: str) -> ModelConfig:
    """Sizes of a named model: one of STYLES, such as "8b-style", or the id of one in models.json.

    They serve arithmetic on parameters, caches and costs. Not every such model runs here.

    Raises ValueError for an unknown name.
    """
    if name in STYLES:
        return STYLES[name]
    models = load_models()
    if name not in models:
        raise ValueError(f"no model is called {name!r}; known: {', '.join([*STYLES, *models])}")
    record = models[name]
    latent, sliding, experts = record["mla"], record["sliding"], record["moe"]
    sizes = {field: record[key] for field, key in _SAME.items()}
    sizes["d_ff"] = record["ffn_size"] or experts["expert_ffn_size"]  # no dense layer: never used
    return ModelConfig(
        **{**sizes, **(_experts(experts) if experts else {})},
        qk_norm=record["qk_norm"] is not None,
        qk_norm_per_head=record["qk_norm"] != "full",
        layer_norm=record["norm"] == "layernorm",
        sliding_window=sliding and sliding["window"],
        n_window_layers=sliding["sliding_layers"] if sliding and sliding["full_layers"] else None,
        mla=MlaConfig(**{ours: latent[theirs] for ours, theirs in _LATENT.items()})
        if latent
        else None,
    )


_SAME = {
    "n_layers": "layers",
    "d_model": "hidden_size",
    "n_heads": "num_heads",
    "n_kv_heads": "num_kv_heads",
    "d_head": "head_dim",
    "d_ff": "ffn_size",
    "vocab_size": "vocab_size",
    "max_context": "max_context",
    "tied_embeddings": "tied_embeddings",
    "mlp_is_gated": "ffn_gated",
    "attention_bias": "qkv_bias",
    "output_bias": "o_bias",
    "mlp_bias": "mlp_bias",
    "norms_per_layer": "norms_per_layer",
    "n_learned_positions": "learned_positions",
    "attention_sinks": "attention_sinks",
}
_LATENT = {
    "d_latent": "kv_lora_rank",
    "d_nope": "qk_nope_head_dim",
    "d_rope": "qk_rope_head_dim",
    "d_value": "v_head_dim",
    "d_query_latent": "q_lora_rank",
}


def _experts(record: dict[str, Any]) -> dict[str, Any]:
    return {
        "n_experts": record["num_experts"],
        "n_experts_per_token": record["top_k"],
        "d_expert": record["expert_ffn_size"],
        "n_shared_experts": record["shared_experts"],
        "n_dense_layers": record["dense_layers_first"],
        "router_bias": record["router_bias"],  # a balancing bias is no trained number
        "expert_bias": record["expert_bias"],
    }


@functools.cache
def _read(file: str) -> Any:
    path = ROOT / "data" / file
    if not path.exists():
        raise FileNotFoundError(f"{path} is missing: install inferlab from a wheel, or whole")
    return json.loads(path.read_text(encoding="utf-8"))
