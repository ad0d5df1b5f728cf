"""The sizes of a Llama-family model, read from its checkpoint and checked once."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any


class UnsupportedModel(ValueError):
    """The checkpoint is sound, but it needs something that this engine does not implement."""


class InvalidModelFile(ValueError):
    """The file is not the model that its name promises: wrong format, cut short or damaged."""


@dataclass(frozen=True)
class ModelConfig:
    """Everything a forward pass must know besides the weights.

    n_layers decoder blocks; d_model numbers per token between them; n_heads query heads and
    n_kv_heads key/value heads of d_head numbers each; d_ff numbers inside the gated MLP.
    max_context is in tokens. eos_ids end a generation, bos_id (if any) begins a prompt.

    Raises ValueError, with both numbers, for sizes that do not fit together.
    """

    n_layers: int
    d_model: int
    n_heads: int
    n_kv_heads: int
    d_head: int
    d_ff: int
    vocab_size: int
    max_context: int = 2048
    rope_theta: float = 10_000.0
    norm_eps: float = 1e-5
    tied_embeddings: bool = True
    bos_id: int | None = None
    eos_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for name in _COUNTS:
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(f"{name}={value!r} must be a whole number of at least 1")
        if self.n_heads % self.n_kv_heads:
            raise ValueError(
                f"n_heads={self.n_heads} must be a multiple of n_kv_heads={self.n_kv_heads}"
            )
        if self.d_head % 2:
            raise ValueError(f"d_head={self.d_head} must be even: RoPE turns numbers in pairs")
        for name in ("rope_theta", "norm_eps"):
            value = getattr(self, name)
            if not 0 < value < float("inf"):
                raise ValueError(f"{name}={value!r} must be a positive, finite number")
        for token in (*self.eos_ids, *(() if self.bos_id is None else (self.bos_id,))):
            if not 0 <= token < self.vocab_size:
                raise ValueError(f"token id {token} must be below vocab_size={self.vocab_size}")

    @property
    def n_params(self) -> int:
        """Trained numbers in all weights; a tied head is counted once."""
        attention = 2 * self.d_model * self.d_head * (self.n_heads + self.n_kv_heads)
        mlp = 3 * self.d_model * self.d_ff  # gate, up, down
        gains = 2 * self.d_model
        n_embeddings = 1 if self.tied_embeddings else 2
        return (
            n_embeddings * self.vocab_size * self.d_model
            + self.n_layers * (attention + mlp + gains)
            + self.d_model
        )

    @classmethod
    def from_hf_config(cls, source: Mapping[str, Any] | str | PathLike[str]) -> "ModelConfig":
        """Read a Hugging Face config.json: the parsed mapping, the file, or its folder.

        Raises UnsupportedModel (a ValueError) for another architecture, RoPE scaling, biases or
        another activation; InvalidModelFile for an unreadable file or a missing field.
        """
        raw = source if isinstance(source, Mapping) else _read_json(Path(source))
        _refuse_other_than_llama(raw)
        n_heads = _need(raw, "num_attention_heads")
        d_model = _need(raw, "hidden_size")
        eos = raw.get("eos_token_id")
        return cls(
            n_layers=_need(raw, "num_hidden_layers"),
            d_model=d_model,
            n_heads=n_heads,
            n_kv_heads=raw.get("num_key_value_heads") or n_heads,
            d_head=raw.get("head_dim") or _default_d_head(d_model, n_heads),
            d_ff=_need(raw, "intermediate_size"),
            vocab_size=_need(raw, "vocab_size"),
            max_context=raw.get("max_position_embeddings") or 2048,
            rope_theta=_rope_theta(raw),
            norm_eps=float(raw.get("rms_norm_eps") or 1e-6),
            tied_embeddings=bool(raw.get("tie_word_embeddings", False)),
            bos_id=raw.get("bos_token_id"),
            eos_ids=() if eos is None else tuple(eos) if isinstance(eos, list) else (eos,),
        )

    @classmethod
    def from_gguf_metadata(
        cls, metadata: Mapping[str, Any], *, tied_embeddings: bool
    ) -> "ModelConfig":
        """Read the key-value header of a GGUF file, whose keys are like "llama.block_count".

        Raises UnsupportedModel for another architecture or RoPE scaling, InvalidModelFile for a
        missing key.
        """
        architecture = metadata.get("general.architecture")
        if architecture != "llama":
            raise UnsupportedModel(
                f"this GGUF holds the architecture {architecture!r}; only 'llama' is implemented"
            )
        scaling = metadata.get("llama.rope.scaling.type", "none")
        if scaling not in ("none", None):
            raise UnsupportedModel(f"RoPE scaling {scaling!r} is not implemented; needed: none")
        if metadata.get("llama.expert_count", 0):
            raise UnsupportedModel(
                f"this GGUF has {metadata['llama.expert_count']} experts; only dense is implemented"
            )
        n_heads = _need(metadata, "llama.attention.head_count")
        d_model = _need(metadata, "llama.embedding_length")
        d_head = metadata.get("llama.attention.key_length") or _default_d_head(d_model, n_heads)
        turned = metadata.get("llama.rope.dimension_count", d_head)
        if turned != d_head:
            raise UnsupportedModel(
                f"RoPE turns {turned} of d_head={d_head} numbers; only all of them is implemented"
            )
        tokens = metadata.get("tokenizer.ggml.tokens")
        vocab_size = metadata.get("llama.vocab_size") or (len(tokens) if tokens else None)
        if vocab_size is None:
            raise InvalidModelFile("the header has neither llama.vocab_size nor a list of tokens")
        eos = metadata.get("tokenizer.ggml.eos_token_id")
        return cls(
            n_layers=_need(metadata, "llama.block_count"),
            d_model=d_model,
            n_heads=n_heads,
            n_kv_heads=metadata.get("llama.attention.head_count_kv", n_heads),
            d_head=d_head,
            d_ff=_need(metadata, "llama.feed_forward_length"),
            vocab_size=vocab_size,
            max_context=_need(metadata, "llama.context_length"),
            rope_theta=float(metadata.get("llama.rope.freq_base", 10_000.0)),
            norm_eps=float(_need(metadata, "llama.attention.layer_norm_rms_epsilon")),
            tied_embeddings=tied_embeddings,
            bos_id=metadata.get("tokenizer.ggml.bos_token_id"),
            eos_ids=() if eos is None else (eos,),
        )


_COUNTS = (
    "n_layers",
    "d_model",
    "n_heads",
    "n_kv_heads",
    "d_head",
    "d_ff",
    "vocab_size",
    "max_context",
)


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


def _need(raw: Mapping[str, Any], key: str) -> Any:
    if raw.get(key) is None:
        raise InvalidModelFile(f"the model's configuration has no {key!r}")
    return raw[key]


def _default_d_head(d_model: int, n_heads: int) -> int:
    if d_model % n_heads:
        raise ValueError(
            f"d_model={d_model} must be a multiple of n_heads={n_heads} where no head size is given"
        )
    return d_model // n_heads


def _refuse_other_than_llama(raw: Mapping[str, Any]) -> None:
    """Only what the forward pass of transformer.py computes may pass."""
    names = list(raw.get("architectures") or [])
    named = names or [raw.get("model_type")]
    if named not in (["LlamaForCausalLM"], ["llama"]):
        raise UnsupportedModel(
            f"this checkpoint holds {', '.join(map(str, named))}; "
            "only LlamaForCausalLM is implemented"
        )
    for key in ("attention_bias", "mlp_bias"):
        if raw.get(key):
            raise UnsupportedModel(f"{key}=true is not implemented; needed: projections, no bias")
    activation = raw.get("hidden_act", "silu")
    if activation != "silu":
        raise UnsupportedModel(f"hidden_act={activation!r} is not implemented; needed: 'silu'")
    rotated = raw.get("partial_rotary_factor", 1.0)
    if rotated not in (None, 1.0):
        raise UnsupportedModel(f"partial_rotary_factor={rotated} is not implemented; needed: 1.0")
    kind = _rope_kind(raw)
    if kind != "default":
        raise UnsupportedModel(f"RoPE scaling {kind!r} is not implemented; needed: none")


def _rope_kind(raw: Mapping[str, Any]) -> str:
    """transformers 5 writes rope_parameters, earlier ones rope_scaling (type or rope_type)."""
    for key in ("rope_parameters", "rope_scaling"):
        rope = raw.get(key)
        if rope:
            return str(rope.get("rope_type") or rope.get("type") or "default")
    return "default"


def _rope_theta(raw: Mapping[str, Any]) -> float:
    rope = raw.get("rope_parameters") or {}
    return float(rope.get("rope_theta") or raw.get("rope_theta") or 10_000.0)
