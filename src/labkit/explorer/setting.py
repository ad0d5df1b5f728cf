"""What the explorer can be set to: a model and its attention, a device, a load, the precisions.

A Setting is checked when it is made; a combination that does not exist is refused with the reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any

from inferlab.capacity import Deployment
from inferlab.config import ModelConfig
from inferlab.data import STYLES, load_devices, load_models, model_preset
from inferlab.quantization import quantized_bytes

OWN = "own"  # the attention that the model was published with
MOST_GQA_HEADS = 8  # KV heads of a grouped variant of a model that has none: the usual number
MOST_TOKENS, MOST_SEQUENCES, MOST_GAMMA = 1_000_000, 4096, 16


@dataclass(frozen=True)
class WeightFormat:
    """How weights are stored, and what the device then computes in: the first that it has."""

    label: str
    bytes_per_weight: float
    computes_in: tuple[str, ...]


_SIXTEEN = ("bf16", "fp16")
_INT4 = quantized_bytes(128, 4, 128) / 128  # with one 16-bit scale for every 128 weights
WEIGHTS = {
    "bf16": WeightFormat("16 bit", 2, _SIXTEEN),
    "fp8": WeightFormat("FP8, computed in FP8", 1, ("fp8", *_SIXTEEN)),
    "int8": WeightFormat("INT8, computed in 16 bit", 1, _SIXTEEN),
    "int4": WeightFormat("INT4 (4.125 bits with scales)", _INT4, _SIXTEEN),
}
CACHES = {"bf16": ("16 bit", 2), "fp8": ("8 bit (FP8 or INT8)", 1)}
PRECISIONS = {"bf16": "bf16", "fp16": "fp16", "fp8": "FP8"}


# ---- models and their attention ----------------------------------------------------------------


@dataclass(frozen=True)
class Variant:
    """A model with one kind of attention: its sizes, or why it cannot be had."""

    label: str
    config: ModelConfig | None = None
    why_not: str = ""


def model_names() -> list[str]:
    """Every model on offer, the round ones of the lessons first."""
    return [*STYLES, *load_models()]


@lru_cache(maxsize=64)
def variants(model: str) -> dict[str, Variant]:
    """Kind of attention -> the model with it. OWN is always there; some kinds have a reason."""
    config = model_preset(model)
    plain = _without_mla(config)
    group = _group_heads(config)
    found = {OWN: Variant(f"own: {kind(config)}", config)}
    found["mha"] = Variant(f"MHA: {config.n_heads} KV heads", _shared(plain, config.n_heads))
    if group:
        found["gqa"] = Variant(f"GQA: {group} KV heads", _shared(plain, group))
    else:
        why = f"the {config.n_heads} query heads of {model} cannot be split into equal groups"
        found["gqa"] = Variant("GQA: no equal groups", why_not=why)
    found["mqa"] = Variant("MQA: 1 KV head", _shared(plain, 1))
    if config.mla:
        found["mla"] = Variant(f"MLA: {config.mla.d_latent} + {config.mla.d_rope} numbers", config)
    else:
        why = f"{model} was not made with MLA; its latents would have to be trained"
        found["mla"] = Variant("MLA: not in this model", why_not=why)
    return found


def kind(config: ModelConfig) -> str:
    """The kind of attention in a few words: "GQA, 8 KV heads"."""
    if config.mla:
        return f"MLA, {config.mla.d_latent} + {config.mla.d_rope} numbers"
    n = config.n_kv_heads
    name = "MHA" if n == config.n_heads else "MQA" if n == 1 else "GQA"
    return f"{name}, {n} KV head{'s' if n != 1 else ''}"


def _without_mla(config: ModelConfig) -> ModelConfig:
    """MLA's heads as ordinary ones of d_nope numbers, as DeepSeek-V2 (2405.04434) compares them."""
    return replace(config, mla=None, d_head=config.mla.d_nope) if config.mla else config


def _shared(config: ModelConfig, n_kv_heads: int) -> ModelConfig:
    return replace(config, n_kv_heads=n_kv_heads)


def _group_heads(config: ModelConfig) -> int | None:
    """KV heads of the grouped variant: the model's own, or the largest divisor up to 8."""
    n_heads, own = config.n_heads, config.n_kv_heads
    if 1 < own < n_heads:
        return own
    most = min(MOST_GQA_HEADS, n_heads - 1)
    return next((n for n in range(most, 1, -1) if n_heads % n == 0), None)


# ---- the setting -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Setting:
    """One position of all the controls.

    n_tokens: the context of each sequence, and the prompt of the prefill; n_sequences: the batch;
    headroom: the share of the memory that stays free; gamma: drafted tokens a round, 0 for no
    speculation; acceptance and draft_cost as in inferlab.speculative_sampling.
    Raises ValueError, with what is needed, for what cannot be had.
    """

    model: str = "8b-style"
    attention: str = OWN
    device: str = "synthetic"
    n_sequences: int = 16
    n_tokens: int = 8192
    weights: str = "bf16"
    cache: str = "bf16"
    headroom: float = 0.0
    gamma: int = 0
    acceptance: float = 0.8
    draft_cost: float = 0.05

    def __post_init__(self) -> None:
        known = {
            "model": model_names(), "device": load_devices(), "weights": WEIGHTS, "cache": CACHES,
            "attention": variants(self.model) if self.model in model_names() else [],
        }  # fmt: skip
        for name, names in known.items():
            if getattr(self, name) not in names:
                raise ValueError(
                    f"{name}={getattr(self, name)!r} must be one of {', '.join(names)}"
                )
        variant = variants(self.model)[self.attention]
        if variant.config is None:
            raise ValueError(f"attention={self.attention!r} cannot be had: {variant.why_not}")
        for name, least, most in _COUNTS:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
                raise ValueError(f"{name}={value!r} must be a whole number from {least} to {most}")
        for name, largest in _SHARES:
            if not 0 <= getattr(self, name) <= largest:
                raise ValueError(f"{name}={getattr(self, name)!r} must be from 0 to {largest}")

    @property
    def config(self) -> ModelConfig:
        config = variants(self.model)[self.attention].config
        assert config is not None  # looked at in __post_init__
        return config

    @property
    def record(self) -> dict[str, Any]:
        """The device's entry in data/devices.json."""
        return load_devices()[self.device]

    @property
    def precision(self) -> str:
        """What the device computes in."""
        peaks = self.record["peak_dense_tflops"]
        return next(name for name in WEIGHTS[self.weights].computes_in if peaks.get(name))

    @property
    def bytes_per_weight(self) -> float:
        return WEIGHTS[self.weights].bytes_per_weight

    @property
    def bytes_per_number(self) -> int:
        return CACHES[self.cache][1]

    def deployment(self) -> Deployment:
        """One device of this kind, at its data sheet's full rates."""
        return Deployment.on(
            self.record,
            self.config,
            precision=self.precision,
            bytes_per_weight=self.bytes_per_weight,
            bytes_per_number=self.bytes_per_number,
            headroom=self.headroom,
        )

    def notes(self) -> list[str]:
        """What one should know of this combination."""
        said = []
        wanted = WEIGHTS[self.weights].computes_in[0]
        if self.precision != wanted:
            said.append(
                f"{self.record['name']} does not compute in {PRECISIONS[wanted]}: "
                f"{PRECISIONS[self.precision]} here."
            )
        if self.n_tokens > self.config.max_context and self.model not in STYLES:
            said.append(
                f"{self.model} was made for contexts of up to {self.config.max_context:,} tokens."
            )
        if self.attention != OWN and self.config != model_preset(self.model):
            made = "" if self.model in STYLES else f" {self.model} was not trained like this."
            said.append(f"Another attention changes the weights as well as the cache.{made}")
        return said


_COUNTS = (
    ("n_sequences", 1, MOST_SEQUENCES),
    ("n_tokens", 1, MOST_TOKENS),
    ("gamma", 0, MOST_GAMMA),
)
_SHARES = (("headroom", 0.9), ("acceptance", 1), ("draft_cost", 10))


def adapted(values: Mapping[str, Any]) -> tuple[Setting, str]:
    """A setting from values of which the attention may not go with the model.

    -> (the setting, why the model's own attention was taken in place of the one asked for; or "")
    """
    unknown = set(values) - {field.name for field in fields(Setting)}
    if unknown:
        raise ValueError(f"no control is called {', '.join(sorted(unknown))}")
    model, attention = values.get("model", Setting.model), values.get("attention", OWN)
    variant = variants(model).get(attention) if model in model_names() else None
    if variant is not None and variant.config is None:
        why = f"{attention.upper()} cannot be had: {variant.why_not}. Its own attention is shown."
        return Setting(**{**values, "attention": OWN}), why
    return Setting(**values), ""
