"""What the families of published decoders have in common, read from a config.json.

Each function gives fields of ModelConfig; hf_families.py puts a family together from them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from inferlab.sizes import MlaConfig, UnsupportedModel, default_d_head, need

Raw = Mapping[str, Any]
Sizes = dict[str, Any]


@dataclass(frozen=True)
class Family:
    """sizes: fields of ModelConfig that differ from a Llama's. names: ours -> this family's key.
    defaults: what transformers takes where the file says nothing, as for tied and theta. runs: an
    engine here computes it, with the options as in plain (and hf_config.PLAIN)."""

    sizes: Callable[[Raw], Sizes]
    runs: bool = False
    tied: bool = False
    theta: float = 10_000.0
    names: Mapping[str, str] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    plain: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)


def llama_biases(raw: Raw) -> Sizes:
    """Llama's own options: a bias on all four projections, and on the MLP."""
    attention = bool(raw.get("attention_bias"))
    return {
        "attention_bias": attention,
        "output_bias": attention,
        "mlp_bias": bool(raw.get("mlp_bias")),
    }


def every_bias(on: bool = True) -> Sizes:
    return {"attention_bias": on, "output_bias": on, "mlp_bias": on}


def window_sizes(raw: Raw, window: int | None, has_window: Callable[[int], bool]) -> Sizes:
    """A window in those layers that layer_types names or, where it is missing, has_window says."""
    kinds = raw.get("layer_types")
    strange = set(kinds or ()) - {"full_attention", "sliding_attention", "chunked_attention"}
    if strange:
        raise UnsupportedModel(
            f"layer_types holds {', '.join(sorted(strange))}, which cannot be counted here; "
            "needed: full_attention, sliding_attention, chunked_attention"
        )
    n_layers = raw["num_hidden_layers"]
    if kinds is None:
        n_windowed = sum(map(has_window, range(n_layers))) if window else 0
    else:
        n_windowed = sum(kind != "full_attention" for kind in kinds)
    if n_windowed and window is None:
        raise UnsupportedModel(f"{n_windowed} layers have a window; needed: its sliding_window")
    if not n_windowed:
        return {}
    return {
        "sliding_window": window,
        "n_window_layers": n_windowed if n_windowed < n_layers else None,
    }


def every_layer(layer: int) -> bool:
    return True


def all_but_every(pattern: int) -> Callable[[int], bool]:
    """Every pattern-th layer sees everything, the others have the window."""
    return lambda layer: (layer + 1) % pattern != 0


def expert_sizes(
    raw: Raw, n_experts: str, d_expert: str, is_sparse: Callable[[int], bool] = every_layer
) -> Sizes:
    """A mixture in the layers that is_sparse names. Which layers they are does not change a count:
    the plain ones are put first."""
    n_layers = need(raw, "num_hidden_layers")
    if kinds := raw.get("mlp_layer_types"):  # as transformers 5 writes some families
        n_sparse = list(kinds).count("sparse")
    else:
        n_sparse = sum(map(is_sparse, range(n_layers)))
    if not n_sparse:
        return {}
    return {
        "n_experts": need(raw, n_experts),
        "n_experts_per_token": need(raw, "num_experts_per_tok"),
        "d_expert": need(raw, d_expert),
        "n_dense_layers": n_layers - n_sparse,
    }


def norm_topk(raw: Raw) -> Sizes:
    return {"norm_topk": bool(raw.get("norm_topk_prob", False))}


def shared_as_whole(raw: Raw, key: str, d_expert: int) -> int:
    """How many routed experts wide the shared one is."""
    width = raw.get(key) or 0
    if width % d_expert:
        raise UnsupportedModel(
            f"{key}={width} cannot be counted; needed: a multiple of an expert's width {d_expert}"
        )
    return int(width // d_expert)


def latent_sizes(raw: Raw) -> Sizes:
    """Multi-head latent attention, as in DeepSeek-V2 and later."""
    d_model, n_heads = need(raw, "hidden_size"), need(raw, "num_attention_heads")
    mla = MlaConfig(
        d_latent=need(raw, "kv_lora_rank"),
        d_nope=need(raw, "qk_nope_head_dim"),
        d_rope=need(raw, "qk_rope_head_dim"),
        d_value=raw.get("v_head_dim") or default_d_head(d_model, n_heads),
        d_query_latent=raw.get("q_lora_rank"),
    )
    biases = (mla.d_query_latent or 0) + mla.d_latent + mla.d_rope + d_model
    on = bool(raw.get("attention_bias"))
    return {
        "mla": mla,
        "n_kv_heads": n_heads,
        "d_head": mla.d_nope + mla.d_rope,
        "n_other_params": on * need(raw, "num_hidden_layers") * biases,
    }
