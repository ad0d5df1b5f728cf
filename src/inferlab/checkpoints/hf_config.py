"""Read the config.json of a Hugging Face model: the sizes of any family in hf_families.py.

Arithmetic works with all of them. An engine here computes less: what it would get almost right,
and so write almost good text, is listed in the sizes' `not_run`, and require_runnable refuses it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from inferlab.checkpoints.hf_families import FAMILIES, SAME_AS
from inferlab.checkpoints.hf_parts import Family, Raw
from inferlab.config import ModelConfig
from inferlab.sizes import InvalidModelFile, RopeScaling, UnsupportedModel, default_d_head, need

RUNNABLE = sorted(name for name, family in FAMILIES.items() if family.runs)


def read_hf_config(source: Raw | str | PathLike[str]) -> ModelConfig:
    """Read a config.json: the parsed mapping, the file, or its folder.

    Raises UnsupportedModel for another architecture or an option that cannot be counted, naming
    it; InvalidModelFile for an unreadable file or a missing field.
    """
    name, raw = language_part(read_json(source))
    family = FAMILIES[name]
    raw = _fields(raw, family)
    sizes = {**_common_sizes(raw, family), **family.sizes(raw)}
    if not sizes["d_ff"]:
        need(raw, "intermediate_size")
    return ModelConfig(**sizes, not_run=_not_run(name, raw, sizes))


def read_json(source: Raw | str | PathLike[str]) -> dict[str, Any]:
    """The fields of a config.json: parsed already, or of this file or folder."""
    if isinstance(source, Mapping):
        return dict(source)
    path = Path(source)
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


def language_part(raw: Raw) -> tuple[str, dict[str, Any]]:
    """(family, its fields). A model that also sees or hears keeps them in text_config.

    Raises UnsupportedModel for a family that nobody has described here.
    """
    inner = raw.get("text_config")
    if isinstance(inner, Mapping):
        outer = ("tie_word_embeddings", "quantization_config", "torch_dtype", "dtype")
        own = {key: value for key, value in inner.items() if value is not None}
        raw = {**{key: raw[key] for key in outer if key in raw}, **own}
    stated = [str(name) for name in raw.get("architectures") or [raw.get("model_type")]]
    found = {_BY_SPELLING.get(_plain(name)) for name in stated}
    if found == {None} and len(stated) == 1:
        found = {_BY_SPELLING.get(_plain(str(raw.get("model_type"))))}
    (name, *others) = found
    if name is None or others:
        raise UnsupportedModel(
            f"this config.json is of {', '.join(stated)}; needed is one of these families: "
            f"{', '.join(sorted(FAMILIES))}"
        )
    return name, dict(raw)


def _plain(name: str) -> str:
    """One spelling for "Qwen3MoeForCausalLM", "qwen3_moe" and "qwen3_moe_text"."""
    for ending in ("ForCausalLM", "ForConditionalGeneration", "LMHeadModel", "_text"):
        name = name.removesuffix(ending)
    return name.lower().replace("_", "")


_BY_SPELLING = {_plain(name): name for name in FAMILIES}
_BY_SPELLING |= {_plain(name): family for name, family in SAME_AS.items()}

_WINDOWS = ("sliding_window", "attention_chunk_size")
_NEEDED = (
    "num_hidden_layers",
    "hidden_size",
    "num_attention_heads",
    "vocab_size",
    "rms_norm_eps",
)


def _fields(raw: Raw, family: Family) -> dict[str, Any]:
    """The file's fields under a Llama's names, with the family's defaults where it has none.

    null means missing, but for a window: there it means that there is none.
    """
    said = {k: v for k, v in raw.items() if v is not None or k in _WINDOWS}
    renamed = {ours: said[theirs] for ours, theirs in family.names.items() if theirs in said}
    fields = {**family.defaults, **said, **renamed}
    for name in _NEEDED:
        need(fields if name in fields else said, family.names.get(name, name))
    return fields


def _common_sizes(raw: Raw, family: Family) -> dict[str, Any]:
    """What a Llama's config.json says, and most families' in the same words."""
    n_heads, d_model = raw["num_attention_heads"], raw["hidden_size"]
    eos = raw.get("eos_token_id")
    return {
        "n_layers": raw["num_hidden_layers"],
        "d_model": d_model,
        "n_heads": n_heads,
        "n_kv_heads": raw.get("num_key_value_heads") or n_heads,
        "d_head": raw.get("head_dim") or default_d_head(d_model, n_heads),
        "d_ff": raw.get("intermediate_size"),
        "vocab_size": raw["vocab_size"],
        "max_context": raw.get("max_position_embeddings") or 2048,
        "rope_theta": float(_rope(raw).get("rope_theta") or raw.get("rope_theta") or family.theta),
        "rope_scaling": _rope_scaling(raw),
        "norm_eps": float(raw["rms_norm_eps"]),
        "tied_embeddings": bool(raw.get("tie_word_embeddings", family.tied)),
        "bos_id": raw.get("bos_token_id"),
        "eos_ids": () if eos is None else tuple(eos) if isinstance(eos, list) else (eos,),
    }


# ---- what no engine here computes --------------------------------------------------------------

PLAIN = {
    # Llama, Qwen3, OLMoE and DeepSeek-V2 would put a bias on the output projection too. Qwen2,
    # which never does, has no such key.
    "attention_bias": (None, False),
    "mlp_bias": (None, False),
    "hidden_act": (None, "silu"),
    "partial_rotary_factor": (None, 1.0),
    "quantization_config": (None,),
}
"""Options that several families have, and the values with which an engine here runs them."""


def _not_run(name: str, raw: Raw, sizes: Mapping[str, Any]) -> tuple[str, ...]:
    """What of this file an engine here would not compute, each in a few words."""
    family = FAMILIES[name]
    if not family.runs:
        return (f"the family {name!r} (engines here run: {', '.join(RUNNABLE)})",)
    found = [f"{key}={raw[key]!r}" for key in _other_than({**PLAIN, **family.plain}, raw)]
    rope = _rope(raw)
    found += [f"{k}={rope[k]!r}" for k in _other_than({"partial_rotary_factor": (None, 1.0)}, rope)]
    if (kind := _rope_kind(raw)) not in ("default", "llama3"):
        found.append(f"RoPE scaling {kind!r}")
    if sizes.get("n_window_layers"):
        found.append(
            f"a sliding window in only {sizes['n_window_layers']} of {sizes['n_layers']} layers"
        )
    return tuple(found)


def _other_than(plain: Mapping[str, tuple[Any, ...]], raw: Raw) -> Iterable[str]:
    return [key for key, values in plain.items() if raw.get(key) not in values]


def _rope(raw: Raw) -> Raw:
    """transformers 5 writes rope_parameters, earlier ones rope_scaling."""
    return raw.get("rope_parameters") or raw.get("rope_scaling") or {}


def _rope_kind(raw: Raw) -> str:
    rope = _rope(raw)
    return str(rope.get("rope_type") or rope.get("type") or "default")


def _rope_scaling(raw: Raw) -> RopeScaling | None:
    rope = _rope(raw)
    if _rope_kind(raw) != "llama3":
        return None
    return RopeScaling(
        factor=float(need(rope, "factor")),
        low_freq_factor=float(need(rope, "low_freq_factor")),
        high_freq_factor=float(need(rope, "high_freq_factor")),
        original_context=need(rope, "original_max_position_embeddings"),
    )
