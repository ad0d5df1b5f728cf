"""What a published checkpoint weighs as it is stored, and what a count of it leaves out.

A config.json says in which dtype the weights lie and, under quantization_config, which of them are
stored in fewer bits. The matrices of the layers are what methods quantize; embedding, head, norms
and biases keep the dtype.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from os import PathLike

from inferlab.checkpoints.hf_config import language_part, read_hf_config, read_json
from inferlab.checkpoints.hf_families import FAMILIES
from inferlab.checkpoints.hf_parts import Raw
from inferlab.config import ModelConfig
from inferlab.roofline import body_params
from inferlab.sizes import UnsupportedModel

DTYPE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "float8_e4m3fn": 1}


@dataclass(frozen=True)
class Stored:
    """A checkpoint as it is published: sizes, bytes, in which numbers, and what to know."""

    config: ModelConfig
    weight_bytes: float
    format: str  # such as "bfloat16", or "mxfp4 (4.25 bits a weight), rest bfloat16"
    notes: tuple[str, ...]  # where the count is not the whole checkpoint, or rests on a default

    @property
    def bytes_per_weight(self) -> float:
        """On average, over all weights."""
        return self.weight_bytes / self.config.n_params


def read_stored(source: Raw | str | PathLike[str]) -> Stored:
    """Read a config.json: the parsed mapping, the file, or its folder.

    Raises ValueError as read_hf_config does, and for a dtype or quantization that is not known.
    """
    whole = read_json(source)
    config = read_hf_config(whole)
    _, raw = language_part(whole)
    dtype = str(raw.get("dtype") or raw.get("torch_dtype") or "bfloat16")
    if dtype not in DTYPE_BYTES:
        raise UnsupportedModel(f"dtype={dtype!r}; needed: one of {', '.join(DTYPE_BYTES)}")
    n_bytes, written = config.n_params * float(DTYPE_BYTES[dtype]), dtype
    if quantization := raw.get("quantization_config"):
        bits, few = _quantized(quantization, config)
        n_bytes += few * (bits / 8 - DTYPE_BYTES[dtype])
        method = quantization["quant_method"]
        written = f"{method} ({bits:.4g} bits a weight) where quantized, else {dtype}"
    return Stored(config, n_bytes, written, tuple(_notes(whole, raw)))


# ---- quantized checkpoints ---------------------------------------------------------------------


def layer_matrices(config: ModelConfig) -> int:
    """Weights in the matrices of all layers, every expert among them; routers are no part."""
    n_moe_layers = sum(map(config.has_experts, range(config.n_layers)))
    every_expert = replace(config, n_experts_per_token=config.n_experts)
    return body_params(every_expert) - n_moe_layers * config.d_model * config.n_experts


def expert_matrices(config: ModelConfig) -> int:
    """Weights in the matrices of all routed experts."""
    n_moe_layers = sum(map(config.has_experts, range(config.n_layers)))
    return n_moe_layers * config.n_experts * 3 * config.d_model * config.d_expert


def _fp8(q: Raw) -> float:
    rows, columns = q.get("weight_block_size") or (0, 0)
    return 8 + (32 / (rows * columns) if rows else 0)  # a float32 scale for each block


def _grouped(q: Raw) -> float:
    """A 16-bit scale for each group of weights along a row, and a zero of `bits` bits."""
    bits, size = int(q.get("bits") or q["w_bit"]), int(q.get("group_size") or q["q_group_size"])
    return bits + ((16 + bits) / size if size > 0 else 0)


def _bitsandbytes(q: Raw) -> float:
    if not q.get("load_in_4bit"):
        return 8
    # A float32 maximum for each 64 weights; twice quantized, 8 bits, and float32 for each 256.
    return 4 + (8 / 64 + 32 / (64 * 256) if q.get("bnb_4bit_use_double_quant") else 32 / 64)


def _compressed(q: Raw) -> float:
    weights = next(iter(q["config_groups"].values()))["weights"]
    size = int(weights.get("group_size") or 0)
    return int(weights["num_bits"]) + (16 / size if size > 0 else 0)


_BITS: dict[str, Callable[[Raw], float]] = {
    "fp8": _fp8,
    "mxfp4": lambda q: 4 + 8 / 32,  # an 8-bit scale for each 32
    "gptq": _grouped,
    "awq": _grouped,
    "bitsandbytes": _bitsandbytes,
    "compressed-tensors": _compressed,
}


def _quantized(q: Raw, config: ModelConfig) -> tuple[float, int]:
    """(bits a quantized weight, how many weights are quantized)"""
    method = str(q.get("quant_method"))
    if method not in _BITS:
        raise UnsupportedModel(f"quant_method={method!r}; needed: one of {', '.join(_BITS)}")
    try:
        bits = _BITS[method](q)
    except (KeyError, StopIteration, TypeError):
        raise UnsupportedModel(
            f"quantization_config={dict(q)!r} does not say its bits; needed for {method!r}: bits "
            "and group_size"
        ) from None
    spared = str(q.get("modules_to_not_convert") or q.get("ignore") or "")
    only_experts = bool(config.n_experts) and "self_attn" in spared
    return bits, expert_matrices(config) if only_experts else layer_matrices(config)


# ---- what a count leaves out -------------------------------------------------------------------


def _notes(whole: Raw, raw: Raw) -> list[str]:
    family = FAMILIES[language_part(whole)[0]]
    found = []
    if any(key in whole for key in ("vision_config", "audio_config")):
        found.append("the language model only: what sees or hears comes on top")
    if n := raw.get("num_nextn_predict_layers"):
        found.append(f"without the {n} extra layer(s) that predict further tokens (MTP)")
    if "tie_word_embeddings" not in raw:
        word = "shared" if family.tied else "two arrays"
        found.append(
            f"tie_word_embeddings is missing: embedding and head taken as {word}, as transformers "
            "does for this family"
        )
    if not (raw.get("dtype") or raw.get("torch_dtype")):
        found.append("no dtype is given: bfloat16 taken")
    if raw.get("quantization_config"):
        found.append("stored bytes are close, not exact: which matrices are spared differs")
    return found
