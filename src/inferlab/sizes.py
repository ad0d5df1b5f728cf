"""The sizes of a decoder, checked once: records that know no file and count nothing.

Configs are made as `inferlab.config.ModelConfig`, which adds the count of its numbers.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any


class UnsupportedModel(ValueError):
    """The checkpoint is sound, but it needs something that this engine does not implement."""


class InvalidModelFile(ValueError):
    """The file is not the model that its name promises: wrong format, cut short or damaged."""


@dataclass(frozen=True)
class RopeScaling:
    """How Llama 3.1 stretches RoPE for contexts longer than it was first trained on.

    Pairs that turn less than low_freq_factor times within original_context tokens are slowed down
    by factor; those that turn more than high_freq_factor times are left alone; between the two the
    change is gradual.

    Raises ValueError, with both numbers, for factors in the wrong order.
    """

    factor: float = 8.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_context: int = 8192

    def __post_init__(self) -> None:
        _require_counts(self, ("original_context",))
        _require_positive(self, ("factor", "low_freq_factor", "high_freq_factor"))
        if self.factor < 1:
            raise ValueError(f"factor={self.factor} must be at least 1: RoPE is slowed down by it")
        if self.low_freq_factor >= self.high_freq_factor:
            raise ValueError(
                f"low_freq_factor={self.low_freq_factor} must be below "
                f"high_freq_factor={self.high_freq_factor}"
            )


@dataclass(frozen=True)
class MlaConfig:
    """The widths of multi-head latent attention (MLA), which caches one small latent per token.

    d_latent numbers stand for the keys and values of all heads. Of the d_head = d_nope + d_rope
    numbers of a query or key, d_nope come from the latent and are not rotated; the d_rope rotated
    ones of the key are shared by all heads. A value has d_value numbers. Queries may go through a
    latent of their own, of d_query_latent numbers.
    """

    d_latent: int
    d_nope: int
    d_rope: int
    d_value: int
    d_query_latent: int | None = None

    def __post_init__(self) -> None:
        _require_counts(self, ("d_latent", "d_nope", "d_rope", "d_value"))
        if self.d_query_latent is not None:
            _require_counts(self, ("d_query_latent",))
        if self.d_rope % 2:
            raise ValueError(f"d_rope={self.d_rope} must be even: RoPE turns numbers in pairs")


@dataclass(frozen=True)
class ModelSizes:
    """Everything a forward pass must know besides the weights.

    n_layers decoder blocks; d_model numbers per token between them; n_heads query heads and
    n_kv_heads key/value heads of d_head numbers each; d_ff numbers inside the gated MLP.
    max_context is in tokens. eos_ids end a generation, bos_id (if any) begins a prompt.

    The rest is off in a Llama: attention_bias adds a bias to queries, keys and values (Qwen2);
    qk_norm norms queries and keys, head by head (Qwen3) or, without qk_norm_per_head, over all
    heads together (OLMoE); sliding_window lets a token see only that many tokens, itself among
    them (Mistral). With n_experts, each token takes n_experts_per_token of them, of d_expert
    numbers inside, beside n_shared_experts that every token takes; the router's weights of the
    chosen ones sum to 1 with norm_topk; the first n_dense_layers have a plain MLP of d_ff.

    The last group serves arithmetic only (params.py, lessons 01, 05 and 09); an engine refuses
    it (weights.layer_shapes). mlp_is_gated is False for up and down alone; layer_norm gives each
    norm a bias beside its gain; n_window_layers of the layers have the sliding_window and the
    rest see everything (None: all have it); attention_sinks is one number a head; n_other_params
    are numbers that no field says (a head's bias), below 0 where there are fewer. not_run lists,
    in words, what of a config.json no engine here computes.

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
    attention_bias: bool = False
    qk_norm: bool = False
    qk_norm_per_head: bool = True
    sliding_window: int | None = None
    rope_scaling: RopeScaling | None = None
    n_experts: int = 0
    n_experts_per_token: int = 0
    d_expert: int = 0
    norm_topk: bool = True
    n_shared_experts: int = 0
    n_dense_layers: int = 0
    mla: MlaConfig | None = None

    mlp_is_gated: bool = True
    output_bias: bool = False
    mlp_bias: bool = False
    layer_norm: bool = False
    norms_per_layer: int = 2
    n_learned_positions: int = 0
    n_window_layers: int | None = None
    attention_sinks: bool = False
    router_bias: bool = False
    expert_bias: bool = False
    n_other_params: int = 0
    not_run: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _require_counts(self, _COUNTS)
        _require_counts(self, ("n_learned_positions",), least=0)
        _require_positive(self, ("rope_theta", "norm_eps"))
        if self.sliding_window is not None:
            _require_counts(self, ("sliding_window",))
        _check_windows(self)
        if self.n_heads % self.n_kv_heads:
            raise ValueError(
                f"n_heads={self.n_heads} must be a multiple of n_kv_heads={self.n_kv_heads}"
            )
        if self.d_head % 2:
            raise ValueError(f"d_head={self.d_head} must be even: RoPE turns numbers in pairs")
        for token in (*self.eos_ids, *(() if self.bos_id is None else (self.bos_id,))):
            if not 0 <= token < self.vocab_size:
                raise ValueError(f"token id {token} must be below vocab_size={self.vocab_size}")
        _check_experts(self)
        _check_mla(self)

    def has_experts(self, layer: int) -> bool:
        """Whether the MLP of layer number `layer` is a mixture of experts."""
        return self.n_experts > 0 and layer >= self.n_dense_layers

    @property
    def d_rotated(self) -> int:
        """Numbers of a query or key head that RoPE turns: all of them, but for MLA."""
        return self.d_head if self.mla is None else self.mla.d_rope


_COUNTS = (
    "n_layers",
    "d_model",
    "n_heads",
    "n_kv_heads",
    "d_head",
    "d_ff",
    "vocab_size",
    "max_context",
    "norms_per_layer",
)

RUNS_ONLY_WITH = {
    "mlp_is_gated": True,
    "output_bias": False,
    "mlp_bias": False,
    "layer_norm": False,
    "norms_per_layer": 2,
    "n_learned_positions": 0,
    "n_window_layers": None,
    "attention_sinks": False,
    "router_bias": False,
    "expert_bias": False,
    "n_other_params": 0,
}
"""What each field that serves arithmetic only must be in a model that an engine here runs."""


def require_runnable(config: ModelSizes) -> None:
    """Raises UnsupportedModel, naming the field, for a model that no engine here runs."""
    if config.not_run:
        raise UnsupportedModel(f"{'; '.join(config.not_run)}: counted, but not run here")
    for name, needed in RUNS_ONLY_WITH.items():
        if getattr(config, name) != needed:
            raise UnsupportedModel(
                f"{name}={getattr(config, name)} is counted but not run here; needed: {needed}"
            )


_MOE_COUNTS = ("n_experts", "n_experts_per_token", "d_expert")


def _require_counts(sizes: object, names: Iterable[str], least: int = 1) -> None:
    for name in names:
        value = getattr(sizes, name)
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise ValueError(f"{name}={value!r} must be a whole number of at least {least}")


def _require_positive(sizes: object, names: Iterable[str]) -> None:
    for name in names:
        value = getattr(sizes, name)
        if not 0 < value < float("inf"):
            raise ValueError(f"{name}={value!r} must be a positive, finite number")


def _check_windows(c: ModelSizes) -> None:
    if c.n_window_layers is None:
        return
    _require_counts(c, ("n_window_layers",))
    if c.sliding_window is None or c.n_window_layers > c.n_layers:
        raise ValueError(
            f"n_window_layers={c.n_window_layers} needs a sliding_window and at most "
            f"n_layers={c.n_layers}; given: sliding_window={c.sliding_window}"
        )


def _check_experts(c: ModelSizes) -> None:
    _require_counts(c, (*_MOE_COUNTS, "n_shared_experts", "n_dense_layers"), least=0)
    if c.n_experts == 0:
        for name in (*_MOE_COUNTS, "n_shared_experts", "n_dense_layers"):
            if getattr(c, name):
                raise ValueError(f"{name}={getattr(c, name)} needs experts; given: n_experts=0")
        return
    _require_counts(c, _MOE_COUNTS)
    if c.n_experts_per_token > c.n_experts:
        raise ValueError(
            f"n_experts_per_token={c.n_experts_per_token} must be at most n_experts={c.n_experts}"
        )
    if c.n_dense_layers > c.n_layers:
        raise ValueError(f"n_dense_layers={c.n_dense_layers} must be at most n_layers={c.n_layers}")


def _check_mla(c: ModelSizes) -> None:
    if c.mla is None:
        return
    if c.d_head != c.mla.d_nope + c.mla.d_rope:
        raise ValueError(
            f"d_head={c.d_head} must be d_nope={c.mla.d_nope} + d_rope={c.mla.d_rope} under MLA"
        )
    if c.n_kv_heads != c.n_heads:
        raise ValueError(
            f"n_kv_heads={c.n_kv_heads} must be n_heads={c.n_heads} under MLA: the latent gives "
            "each head keys and values of its own"
        )
    for name in ("attention_bias", "qk_norm", "sliding_window"):
        if getattr(c, name):
            raise ValueError(f"{name}={getattr(c, name)} is not implemented together with MLA")


def need(raw: Mapping[str, Any], key: str) -> Any:
    """raw[key], or InvalidModelFile naming the key that the model lacks."""
    if raw.get(key) is None:
        raise InvalidModelFile(f"the model's configuration has no {key!r}")
    return raw[key]


def default_d_head(d_model: int, n_heads: int) -> int:
    """Numbers of a head where the file does not say: the heads share d_model equally."""
    if d_model % n_heads:
        raise ValueError(
            f"d_model={d_model} must be a multiple of n_heads={n_heads} where no head size is given"
        )
    return d_model // n_heads
