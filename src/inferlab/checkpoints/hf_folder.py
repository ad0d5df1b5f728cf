"""Read the weights of a Hugging Face folder: config.json says which, *.safetensors hold them."""

import json
from collections.abc import Collection
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from inferlab.checkpoints.safetensors_file import StoredTensor, stored_tensors
from inferlab.config import ModelConfig
from inferlab.sizes import InvalidModelFile
from inferlab.weights import TensorNames, Weights, weights_from_tensors

HF_NAMES = TensorNames(
    embedding="model.embed_tokens.weight",
    final_gain="model.norm.weight",
    head="lm_head.weight",
    layer={
        "attention_gain": "model.layers.{}.input_layernorm.weight",
        "w_q": "model.layers.{}.self_attn.q_proj.weight",
        "w_k": "model.layers.{}.self_attn.k_proj.weight",
        "w_v": "model.layers.{}.self_attn.v_proj.weight",
        "w_o": "model.layers.{}.self_attn.o_proj.weight",
        "b_q": "model.layers.{}.self_attn.q_proj.bias",
        "b_k": "model.layers.{}.self_attn.k_proj.bias",
        "b_v": "model.layers.{}.self_attn.v_proj.bias",
        "q_gain": "model.layers.{}.self_attn.q_norm.weight",
        "k_gain": "model.layers.{}.self_attn.k_norm.weight",
        "w_latent": "model.layers.{}.self_attn.kv_a_proj_with_mqa.weight",
        "latent_gain": "model.layers.{}.self_attn.kv_a_layernorm.weight",
        "w_kv": "model.layers.{}.self_attn.kv_b_proj.weight",
        "w_q_latent": "model.layers.{}.self_attn.q_a_proj.weight",
        "q_latent_gain": "model.layers.{}.self_attn.q_a_layernorm.weight",
        "mlp_gain": "model.layers.{}.post_attention_layernorm.weight",
        "w_gate": "model.layers.{}.mlp.gate_proj.weight",
        "w_up": "model.layers.{}.mlp.up_proj.weight",
        "w_down": "model.layers.{}.mlp.down_proj.weight",
        "w_router": "model.layers.{}.mlp.gate.weight",
        "w_shared_gate": "model.layers.{}.mlp.shared_experts.gate_proj.weight",
        "w_shared_up": "model.layers.{}.mlp.shared_experts.up_proj.weight",
        "w_shared_down": "model.layers.{}.mlp.shared_experts.down_proj.weight",
    },
    expert={
        "w_gate": "model.layers.{}.mlp.experts.{}.gate_proj.weight",
        "w_up": "model.layers.{}.mlp.experts.{}.up_proj.weight",
        "w_down": "model.layers.{}.mlp.experts.{}.down_proj.weight",
    },
)

MIXTRAL_NAMES = replace(
    HF_NAMES,
    layer={**HF_NAMES.layer, "w_router": "model.layers.{}.block_sparse_moe.gate.weight"},
    expert={
        "w_gate": "model.layers.{}.block_sparse_moe.experts.{}.w1.weight",
        "w_up": "model.layers.{}.block_sparse_moe.experts.{}.w3.weight",
        "w_down": "model.layers.{}.block_sparse_moe.experts.{}.w2.weight",
    },
)


def hf_names(config: ModelConfig, held: Collection[str]) -> TensorNames:
    """The names that this folder's tensors have, given those that it holds."""
    names = HF_NAMES
    if any(".block_sparse_moe." in name for name in held):
        names = MIXTRAL_NAMES
    if config.mla is not None and config.mla.d_query_latent is not None:
        queries = "model.layers.{}.self_attn.q_b_proj.weight"
        names = replace(names, layer={**names.layer, "w_q": queries})
    return names


def load_hf_weights(
    folder: str | PathLike[str], config: ModelConfig, dtype: Any = np.float32
) -> Weights:
    """Read the *.safetensors of a Hugging Face folder, one file or sharded with an index.

    float64, float32, float16 and bfloat16 tensors become `dtype`.

    Raises FileNotFoundError for a missing file, InvalidModelFile for a damaged one.
    """
    held = _folder_tensors(Path(folder))
    names = hf_names(config, held)
    return weights_from_tensors(config, names, held, lambda name: held[name].read(name), dtype)


def _folder_tensors(folder: Path) -> dict[str, StoredTensor]:
    """All tensors of a folder by name."""
    index = folder / "model.safetensors.index.json"
    single = folder / "model.safetensors"
    if single.exists():
        return stored_tensors(single)
    if not index.exists():
        raise FileNotFoundError(
            f"no model.safetensors (nor model.safetensors.index.json) in {folder}"
        )
    try:
        weight_map = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        files = {name: folder / file for name, file in weight_map.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidModelFile(f"{index} is no index of tensors ({error!r})") from None
    shards = {path: _shard(path) for path in sorted(set(files.values()))}
    for name, path in files.items():
        if name not in shards[path]:
            raise InvalidModelFile(f"the index places tensor {name} in {path}, which lacks it")
    return {name: shards[path][name] for name, path in files.items()}


def _shard(path: Path) -> dict[str, StoredTensor]:
    if not path.exists():
        raise FileNotFoundError(f"the index names {path.name}, which is missing: {path}")
    return stored_tensors(path)
