"""The formula of each number, with the values filled in: the table below the explorer's pictures.

The number itself comes from the State; the formula says how to get it by hand. A test computes
every filled-in formula and compares.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from inferlab.capacity import weights_read
from inferlab.config import ModelConfig
from inferlab.moe_sizes import touched_experts
from inferlab.params import any_attention_params, expert_params, mlp_params, router_params
from inferlab.roofline import body_params
from inferlab.speculative_sampling import expected_tokens
from labkit.explorer.setting import MOST_TOKENS
from labkit.explorer.state import Pass, State, one_pass
from labkit.units import format_bytes, format_quantity

_WORDS = {"FLOP/B": "FLOP/byte", "seq": "sequences", "tok": "tokens"}
_RAISED = str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻")


@dataclass(frozen=True)
class Line:
    """One number: its name, the formula in symbols, the values of the symbols, and the result.

    kind: of the unit, as in labkit.units ("B", "s", "tok/s", "" …). instead: what is said where
    there is no such number (value None), or no formula for it.
    """

    name: str
    value: float | None
    kind: str
    formula: str = ""
    values: Mapping[str, float] = field(default_factory=dict)
    instead: str = ""

    @property
    def filled(self) -> str:
        """The formula with every symbol replaced by its value."""
        names = "|".join(sorted(self.values, key=len, reverse=True))
        if not names:
            return self.formula
        return re.sub(rf"\b({names})\b", lambda m: written(self.values[m[1]]), self.formula)

    @property
    def result(self) -> str:
        if self.value is None:
            return "–"
        if self.kind == "B":
            return format_bytes(self.value) if self.value >= 0 else f"−{format_bytes(-self.value)}"
        if self.kind in _WORDS:
            digits = ",.0f" if self.value >= 1000 or float(self.value).is_integer() else ".4g"
            return f"{self.value:{digits}} {_WORDS[self.kind]}"
        return format_quantity(self.value, self.kind)


@dataclass(frozen=True)
class Section:
    title: str
    lines: tuple[Line, ...]


def written(value: float) -> str:
    """A value in a formula: 131,072; 0.515625; 3.35·10¹²."""
    rounded = f"{value:.6g}"
    if float(value).is_integer() and (abs(value) < 1e12 or float(rounded) != value):
        return f"{int(value):,}"
    if 1e6 <= abs(value) < 1e12:
        return f"{value:,.0f}"
    if 1 <= abs(value) < 1e6:
        return f"{value:,.6f}".rstrip("0").rstrip(".")
    if 1e-3 <= abs(value) < 1:
        return rounded
    mantissa, power = f"{value:.5e}".split("e")
    return f"{mantissa.rstrip('0').rstrip('.')}·10{str(int(power)).translate(_RAISED)}"


def sections(state: State) -> tuple[Section, ...]:
    """Every number of a state, in the order in which one would compute them."""
    found = [
        Section("Weights", _weights(state)),
        Section("KV cache", _cache(state)),
        Section("Memory", _memory(state)),
        Section("Decode step", _decode(state)),
        Section("Prefill", _prefill(state)),
    ]
    if state.setting.gamma:
        found.append(Section("Speculation", _speculation(state)))
    return (*found, Section("Tokens a second", _speed(state)))


# ---- weights and cache -------------------------------------------------------------------------


def _weights(state: State) -> tuple[Line, ...]:
    config, d = state.deployment.config, state.deployment
    values = {"n_params": config.n_params, "bytes_per_weight": d.bytes_per_weight}
    return (
        _parameters(config),
        Line("weights", state.weight_bytes, "B", "n_params × bytes_per_weight", values),
    )


def _parameters(config: ModelConfig) -> Line:
    n_moe = sum(map(config.has_experts, range(config.n_layers)))
    norm = config.d_model * (2 if config.layer_norm else 1)
    values: dict[str, float] = {
        "embedding": config.vocab_size * config.d_model,
        "n_layers": config.n_layers,
        "attention": any_attention_params(config),
        "norms": config.norms_per_layer * norm,
        "last_norm": norm,
    }
    formula = "embedding" if config.tied_embeddings else "2 × embedding"
    formula += " + n_layers × (attention + norms) + last_norm"
    if n_moe < config.n_layers:
        values |= {"n_dense_layers": config.n_layers - n_moe, "mlp": mlp_params(config)}
        formula += " + n_dense_layers × mlp"
    if n_moe:
        formula += " + n_moe_layers × (n_experts × expert + router)"
        values |= {
            "n_moe_layers": n_moe,
            "n_experts": config.n_experts + config.n_shared_experts,
            "expert": expert_params(config),
            "router": router_params(config),
        }
    if config.n_learned_positions:
        formula += " + positions"
        values["positions"] = config.n_learned_positions * config.d_model
    return Line("parameters", config.n_params, "", formula, values)


def _window_layers(config: ModelConfig) -> int:
    if config.sliding_window is None:
        return 0
    return config.n_layers if config.n_window_layers is None else config.n_window_layers


def _cache(state: State) -> tuple[Line, ...]:
    config, s = state.deployment.config, state.setting
    values: dict[str, float] = {"bytes_per_number": s.bytes_per_number, "n_layers": config.n_layers}
    if config.mla:
        values |= {"d_latent": config.mla.d_latent, "d_rope": config.mla.d_rope}
        layer = "(d_latent + d_rope)"
    else:
        values |= {"n_kv_heads": config.n_kv_heads, "d_head": config.d_head}
        layer = "2 × n_kv_heads × d_head"
    n_window = _window_layers(config)
    token = one = f"n_layers × {layer} × bytes_per_number"
    grow = state.grow_bytes
    if n_window:
        window = config.sliding_window or 0
        values |= {
            "n_full_layers": config.n_layers - n_window, "n_window_layers": n_window,
            "sliding_window": window,
        }  # fmt: skip
        token = f"n_full_layers × {layer} × bytes_per_number"
        one = (
            "(n_full_layers × n_tokens + n_window_layers × min(n_tokens, sliding_window)) × "
            f"{layer} × bytes_per_number"
        )
    else:
        one = f"n_tokens × {one}"
    name = "each token beyond the window" if n_window else "each token"
    return (
        Line(name, grow, "B", token, values),
        Line("one sequence", state.sequence_bytes, "B", one, {**values, "n_tokens": s.n_tokens}),
        Line(
            "the batch",
            state.cache_bytes,
            "B",
            "n_sequences × one_sequence",
            {"n_sequences": s.n_sequences, "one_sequence": state.sequence_bytes},
        ),
    )


# ---- memory ------------------------------------------------------------------------------------


def _memory(state: State) -> tuple[Line, ...]:
    s, d = state.setting, state.deployment
    values: dict[str, float] = {
        "weights": state.weight_bytes,
        "cache": state.cache_bytes,
        "memory": state.memory_bytes,
    }
    usable = "memory"
    if s.headroom:
        values["headroom"] = s.headroom
        usable = "memory × (1 − headroom)"
    room = f"max(0, {usable} − weights)"
    free = "left" if state.fits else "short"
    return (
        Line("weights and cache", state.weight_bytes + state.cache_bytes, "B",
             "weights + cache", values),
        Line(f"{free} of {d.memory_bytes / 1e9:,.0f} GB", state.left_bytes, "B",
             f"{usable} − weights − cache", values),
        Line("sequences that fit", state.fits_sequences, "seq", f"floor({room} ÷ one_sequence)",
             {**values, "one_sequence": state.sequence_bytes}),
        _longest(state, values, room),
    )  # fmt: skip


def _longest(state: State, values: dict[str, float], room: str) -> Line:
    """The longest context of this batch; windows that are full take a fixed part of the room."""
    name, config = "longest context of this batch", state.deployment.config
    found = state.longest_context
    if found >= MOST_TOKENS:
        return Line(name, None, "tok", instead=f"{MOST_TOKENS:,} tokens and more fit")
    n_window, window = _window_layers(config), config.sliding_window or 0
    values = {**values, "n_sequences": state.setting.n_sequences, "each_token": state.grow_bytes}
    formula = f"floor({room} ÷ (n_sequences × each_token))"
    if n_window and found < window:  # no window is full yet: all layers grow
        values["each_token"] = state.cap_bytes / window + state.grow_bytes
    elif n_window:
        values["full_windows"] = state.cap_bytes
        formula = f"floor(({room} ÷ n_sequences − full_windows) ÷ each_token)"
    return Line(name, found, "tok", formula, values)


# ---- passes ------------------------------------------------------------------------------------


def _decode(state: State) -> tuple[Line, ...]:
    s, d, config, step = state.setting, state.deployment, state.deployment.config, state.decode
    read = weights_read(config, s.n_sequences)
    values: dict[str, float] = {
        "n_sequences": s.n_sequences, "n_layers": config.n_layers, "n_heads": config.n_heads,
        "d_head": config.d_head, "n_tokens": s.n_tokens,
        "active": body_params(config) + config.d_model * config.vocab_size,
    }  # fmt: skip
    flops = "n_sequences × (2 × active + 4 × n_layers × n_heads × d_head × (n_tokens + 1))"
    moved = {"weights_read": read, "bytes_per_weight": d.bytes_per_weight,
             "cache": state.cache_bytes}  # fmt: skip
    return (
        _active(config),
        *_read_by_experts(state, read),
        Line("bytes read", step.read_bytes, "B", "weights_read × bytes_per_weight + cache", moved),
        Line("arithmetic", step.flops, "FLOP", flops, values),
        *_clocks(state, step),
        _compute_from(state),
    )


def _active(config: ModelConfig) -> Line:
    values = {
        "body": body_params(config),
        "d_model": config.d_model,
        "vocab_size": config.vocab_size,
    }
    name = "weights that multiply a token"
    total = body_params(config) + config.d_model * config.vocab_size
    return Line(name, total, "", "body + d_model × vocab_size", values)


def _read_by_experts(state: State, read: float) -> tuple[Line, ...]:
    """A mixture reads the experts that anybody takes: two more lines."""
    config, n = state.deployment.config, state.setting.n_sequences
    if not config.n_experts:
        return ()
    k = config.n_experts_per_token
    touched = touched_experts(config.n_experts, k, n)
    values: dict[str, float] = {"n_experts": config.n_experts, "k": k, "n_sequences": n}
    more: dict[str, float] = {
        "active": body_params(config) + config.d_model * config.vocab_size,
        "n_moe_layers": sum(map(config.has_experts, range(config.n_layers))),
        "d_model": config.d_model, "d_expert": config.d_expert, "touched": touched, "k": k,
    }  # fmt: skip
    return (
        Line("experts taken, a layer", touched, "",
             "n_experts × (1 − (1 − k ÷ n_experts)^n_sequences)", values),
        Line("weights read", read, "",
             "active + n_moe_layers × 3 × d_model × d_expert × (touched − k)", more),
    )  # fmt: skip


def _clocks(state: State, step: Pass) -> tuple[Line, ...]:
    """Intensity beside the ridge, and the two times of a pass."""
    d = state.deployment
    values = {
        "bytes": step.read_bytes, "flops": step.flops, "bandwidth": d.bandwidth_bytes_per_s,
        "peak": d.peak_flops_per_s,
    }  # fmt: skip
    return (
        Line("arithmetic intensity", step.intensity, "FLOP/B", "flops ÷ bytes", values),
        Line("ridge of the device", state.ridge, "FLOP/B", "peak ÷ bandwidth", values),
        Line("reading", step.reading_s, "s", "bytes ÷ bandwidth", values),
        Line("computing", step.computing_s, "s", "flops ÷ peak", values),
        Line(f"at least ({step.bound}-bound)", step.seconds, "s",
             "max(bytes ÷ bandwidth, flops ÷ peak)", values),
    )  # fmt: skip


def _compute_from(state: State) -> Line:
    """Where computing catches up with reading. A mixture has no closed form: tried out."""
    s, d = state.setting, state.deployment
    name, one = "compute-bound from batch", one_pass(d, 1, s.n_tokens)
    if state.compute_from is None:
        text = "never: each sequence adds more reading of its cache than computing"
        if d.config.n_experts:
            text = (
                "never: once all experts are read, each sequence adds more reading than computing"
            )
        return Line(name, None, "seq", instead=text)
    if d.config.n_experts:
        text = "found by trying: more sequences read more experts"
        return Line(name, state.compute_from, "seq", instead=text)
    values = {
        "weight_bytes": weights_read(d.config, 1) * d.bytes_per_weight,
        "bandwidth": d.bandwidth_bytes_per_s, "peak": d.peak_flops_per_s, "flops": one.flops,
        "one_sequence": state.sequence_bytes,
    }  # fmt: skip
    formula = "ceil(weight_bytes ÷ bandwidth ÷ (flops ÷ peak − one_sequence ÷ bandwidth))"
    return Line(name, state.compute_from, "seq", formula, values)


def _prefill(state: State) -> tuple[Line, ...]:
    config, d, s, step = state.deployment.config, state.deployment, state.setting, state.prefill
    values: dict[str, float] = {
        "body": body_params(config), "d_model": config.d_model, "vocab_size": config.vocab_size,
        "n_layers": config.n_layers, "n_heads": config.n_heads, "d_head": config.d_head,
        "n_tokens": s.n_tokens,
    }  # fmt: skip
    moved = {
        "weights_read": weights_read(config, s.n_tokens),
        "bytes_per_weight": d.bytes_per_weight,
    }
    flops = (
        "2 × body × n_tokens + 2 × d_model × vocab_size + "
        "2 × n_layers × n_heads × d_head × n_tokens × (n_tokens + 1)"
    )
    intensity, _, reading, computing, least = _clocks(state, step)
    return (
        Line("bytes read", step.read_bytes, "B", "weights_read × bytes_per_weight", moved),
        Line("arithmetic", step.flops, "FLOP", flops, values),
        intensity, reading, computing, least,
    )  # fmt: skip


# ---- tokens a second ---------------------------------------------------------------------------


def _speculation(state: State) -> tuple[Line, ...]:
    s, d = state.setting, state.deployment
    verify = one_pass(d, s.gamma + 1, s.n_tokens, s.n_sequences)
    tokens = expected_tokens(s.acceptance, s.gamma)
    a: dict[str, float] = {"acceptance": s.acceptance, "gamma": s.gamma}
    formula = "(1 − acceptance^(gamma + 1)) ÷ (1 − acceptance)" if s.acceptance < 1 else "gamma + 1"
    times = {"verifying": verify.seconds, "step": state.decode.seconds}
    gain = {"tokens": tokens, "verify_cost": verify.seconds / state.decode.seconds,
            "gamma": s.gamma, "draft_cost": s.draft_cost}  # fmt: skip
    return (
        Line("tokens a round", tokens, "", formula, a),
        Line("verifying, in decode steps", verify.seconds / state.decode.seconds, "",
             "verifying ÷ step", times),
        Line("times as fast", state.gain, "x", "tokens ÷ (verify_cost + gamma × draft_cost)", gain),
    )  # fmt: skip


def _speed(state: State) -> tuple[Line, ...]:
    values: dict[str, float] = {"step": state.decode.seconds, "gain": state.gain,
                                "n_sequences": state.setting.n_sequences}  # fmt: skip
    one, all_of_them = (
        ("gain", "n_sequences × gain") if state.setting.gamma else ("1", "n_sequences")
    )
    return (
        Line("each user", state.user_per_s, "tok/s", f"{one} ÷ step", values),
        Line("all together", state.all_per_s, "tok/s", f"{all_of_them} ÷ step", values),
    )
