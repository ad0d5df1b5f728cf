"""The course's data: published sizes of models and figures of devices."""

import functools
import json
from pathlib import Path
from typing import Any

from inferlab.config import ModelConfig

ROOT = Path(__file__).resolve().parents[2]
"""The course's own folder."""

STYLES = {
    "8b-style": ModelConfig(32, 4096, 32, 8, 128, 14336, 128256, 8192, 500_000.0, 1e-5, False),
    "70b-style": ModelConfig(80, 8192, 64, 8, 128, 28672, 128256, 8192, 500_000.0, 1e-5, False),
}
"""Sizes of the two models that most worked examples use."""


def load_models() -> dict[str, dict[str, Any]]:
    """The records of data/models.json by id; data/README.md says where they come from."""
    return {model["id"]: model for model in _read("models.json")["models"]}


def load_devices() -> dict[str, dict[str, Any]]:
    """The records of data/devices.json by id; data/README.md says where they come from."""
    return {device["id"]: device for device in _read("devices.json")["devices"]}


def model_preset(name: str) -> ModelConfig:
    """Sizes of a named model: "8b-style", "70b-style", or the id of a dense one in models.json.

    They serve for arithmetic on caches and costs. Biases, query/key norms and sliding windows are
    no part of a ModelConfig, and its n_params assumes a gated MLP: models with such things (the
    record says so) have a few more or fewer.

    Raises ValueError for an unknown name, and for mixtures of experts and MLA.
    """
    if name in STYLES:
        return STYLES[name]
    models = load_models()
    if name not in models:
        raise ValueError(f"no model is called {name!r}; known: {', '.join([*STYLES, *models])}")
    record = models[name]
    if record["mla"] or record["moe"]:
        kind = "multi-head latent attention" if record["mla"] else "a mixture of experts"
        raise ValueError(f"{name} has {kind}; a preset needs a dense model without it")
    return ModelConfig(
        n_layers=record["layers"],
        d_model=record["hidden_size"],
        n_heads=record["num_heads"],
        n_kv_heads=record["num_kv_heads"],
        d_head=record["head_dim"],
        d_ff=record["ffn_size"],
        vocab_size=record["vocab_size"],
        max_context=record["max_context"],
        tied_embeddings=record["tied_embeddings"],
    )


@functools.cache
def _read(file: str) -> Any:
    path = ROOT / "data" / file
    if not path.exists():
        raise FileNotFoundError(f"{path} is missing: inferlab needs its whole repository beside it")
    return json.loads(path.read_text(encoding="utf-8"))
