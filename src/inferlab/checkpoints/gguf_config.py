"""Read the sizes of a model from a GGUF's header: the families that run here, the rest by name.

Keys begin with the architecture, as in "llama.block_count". What else differs is little: llama.cpp
turns neighbouring pairs of numbers in RoPE for "llama" files, and the half-split pairs of the
original checkpoints for Qwen; Qwen2 has biases on queries, keys and values, Qwen3 norms of queries
and keys.
"""

from collections.abc import Mapping
from typing import Any

from inferlab.config import ModelConfig
from inferlab.sizes import InvalidModelFile, UnsupportedModel, default_d_head, need

FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {"attention_bias": True},
    "qwen3": {"qk_norm": True},
}
"""What sets a family apart, by the architecture's name in the file."""

NEIGHBOURS_TURN = ("llama",)
"""The architectures whose query and key rows the converter reorders: see gguf_file.unpermute."""


def read_gguf_config(metadata: Mapping[str, Any], *, tied_embeddings: bool) -> ModelConfig:
    """Read the key-value header of a GGUF file, whose keys are like "llama.block_count".

    Raises UnsupportedModel for another architecture or RoPE scaling, InvalidModelFile for a
    missing key.
    """
    family = architecture(metadata)

    def get(key: str, default: Any = None) -> Any:
        return metadata.get(f"{family}.{key}", default)

    def must(key: str) -> Any:
        return need(metadata, f"{family}.{key}")

    _refuse_options(metadata, family)
    n_heads, d_model = must("attention.head_count"), must("embedding_length")
    d_head = get("attention.key_length") or default_d_head(d_model, n_heads)
    _refuse_partial_rope(get("rope.dimension_count", d_head), d_head)
    eos = metadata.get("tokenizer.ggml.eos_token_id")
    return ModelConfig(
        n_layers=must("block_count"),
        d_model=d_model,
        n_heads=n_heads,
        n_kv_heads=get("attention.head_count_kv", n_heads),
        d_head=d_head,
        d_ff=must("feed_forward_length"),
        vocab_size=_vocab_size(metadata, family),
        max_context=must("context_length"),
        rope_theta=float(get("rope.freq_base", 10_000.0)),
        norm_eps=float(must("attention.layer_norm_rms_epsilon")),
        tied_embeddings=tied_embeddings,
        bos_id=metadata.get("tokenizer.ggml.bos_token_id"),
        eos_ids=() if eos is None else (eos,),
        **FAMILIES[family],
    )


def architecture(metadata: Mapping[str, Any]) -> str:
    """The family of the file, one of FAMILIES; raises UnsupportedModel for another."""
    name = metadata.get("general.architecture")
    if name not in FAMILIES:
        known = ", ".join(map(repr, FAMILIES))
        raise UnsupportedModel(
            f"this GGUF holds the architecture {name!r}; implemented are: {known}"
        )
    return str(name)


def _refuse_options(metadata: Mapping[str, Any], family: str) -> None:
    """Options that a header may switch on and nothing here does."""
    scaling = metadata.get(f"{family}.rope.scaling.type", "none")
    if scaling not in ("none", None):
        raise UnsupportedModel(f"RoPE scaling {scaling!r} is not implemented; needed: none")
    n_experts = metadata.get(f"{family}.expert_count", 0)
    if n_experts:
        raise UnsupportedModel(f"this GGUF has {n_experts} experts; only dense is implemented")
    window = metadata.get(f"{family}.attention.sliding_window", 0)
    if window:
        raise UnsupportedModel(
            f"this GGUF has a sliding window of {window} tokens; a GGUF's is not implemented"
        )


def _refuse_partial_rope(turned: int, d_head: int) -> None:
    if turned != d_head:
        raise UnsupportedModel(
            f"RoPE turns {turned} of d_head={d_head} numbers; only all of them is implemented"
        )


def _vocab_size(metadata: Mapping[str, Any], family: str) -> int:
    tokens = metadata.get("tokenizer.ggml.tokens")
    size = metadata.get(f"{family}.vocab_size") or (len(tokens) if tokens else None)
    if size is None:
        raise InvalidModelFile(f"the header has neither {family}.vocab_size nor a list of tokens")
    return int(size)
