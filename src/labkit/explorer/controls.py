"""The explorer's controls, the same for notebook and page: names, groups, and what each offers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from inferlab.data import load_devices, model_preset
from labkit.explorer.setting import (
    CACHES,
    MOST_GAMMA,
    WEIGHTS,
    Setting,
    kind,
    model_names,
    variants,
)

Options = tuple[tuple[str, Any], ...]  # (what is read, value)


@dataclass(frozen=True)
class Control:
    """One control. slides: a slider over its options, else a list to choose from."""

    name: str
    label: str
    group: str
    options: Options
    slides: bool = False


def _model_label(name: str) -> str:
    config = model_preset(name)
    n_params = config.n_params / 1e9
    shown = {"8b-style": "8B-style", "70b-style": "70B-style", "small-mha": "Small MHA"}.get(
        name, name
    )
    size = f"{n_params:,.0f}" if n_params >= 10 else f"{n_params:.2g}"
    return f"{shown} ({size} B, {kind(config).split(',')[0]})"


def _device_label(record: Mapping[str, Any]) -> str:
    """ "H100 SXM (80 GB)": the short name, and the memory where the name does not say it."""
    name = record["name"].partition(",")[0].replace(" accelerator of the worked examples", "")
    name = re.sub(r"NVIDIA | \(.*?\)", "", name)
    return re.sub(r" (\d+)GB", "", name) + f" ({record['memory_gb']:g} GB)"


def _batches() -> Options:
    """1 to 1,024: every number up to 64, then in steps that grow."""
    counts = [*range(1, 65)]
    for first, last, step in ((64, 128, 2), (128, 256, 4), (256, 512, 8), (512, 1024, 16)):
        counts += range(first + step, last + 1, step)
    return tuple((f"{n:,}", n) for n in counts)


def _contexts() -> Options:
    """128 to 131,072 tokens: powers of two, and the middle between them."""
    counts = [n * 2**i for i in range(7, 17) for n in (1, 1.5)] + [2**17]
    return tuple((f"{n:,.0f}", int(n)) for n in counts)


def _percent(steps: range) -> Options:
    return tuple((f"{n} %", n / 100) for n in steps)


def attention_options(model: str) -> Options:
    """The kinds of attention that this model can have."""
    return tuple((v.label, name) for name, v in variants(model).items() if v.config is not None)


def attention_refused(model: str) -> Options:
    """The kinds that it cannot have."""
    return tuple((v.label, name) for name, v in variants(model).items() if v.config is None)


def controls() -> tuple[Control, ...]:
    """All of them, in the order of the form."""
    models = tuple((_model_label(name), name) for name in model_names())
    devices = tuple((_device_label(record), name) for name, record in load_devices().items())
    weights = tuple((one.label, name) for name, one in WEIGHTS.items())
    caches = tuple((label, name) for name, (label, _) in CACHES.items())
    drafts = tuple((f"{n}" if n else "0 (off)", n) for n in range(MOST_GAMMA + 1))
    costs = tuple((f"{n / 100:.2f}", n / 100) for n in range(0, 51))
    return (
        Control("model", "model", "Model", models),
        Control("attention", "attention", "Model", attention_options(Setting.model)),
        Control("device", "device", "Device", devices),
        Control("headroom", "headroom", "Device", _percent(range(0, 35, 5)), slides=True),
        Control("n_sequences", "batch (sequences)", "Load", _batches(), slides=True),
        Control("n_tokens", "context (tokens)", "Load", _contexts(), slides=True),
        Control("weights", "weights", "Precision", weights),
        Control("cache", "KV cache", "Precision", caches),
        Control("gamma", "draft length γ", "Speculation", drafts, slides=True),
        Control(
            "acceptance", "acceptance α", "Speculation", _percent(range(0, 101, 5)), slides=True
        ),
        Control("draft_cost", "draft cost c (steps)", "Speculation", costs, slides=True),
    )


def read(values: Mapping[str, str]) -> dict[str, Any]:
    """Values as they come in an address, each turned into the type of its field."""
    kinds = {"int": int, "float": float, "str": str}
    known = {field.name: kinds[str(field.type)] for field in fields(Setting)}
    found: dict[str, Any] = {}
    for name, text in values.items():
        if name not in known:
            raise ValueError(f"no control is called {name!r}; there are: {', '.join(known)}")
        try:
            found[name] = known[name](text)
        except ValueError:
            raise ValueError(f"{name}={text!r} must be a number") from None
    return found


# ---- what each lesson opens with ---------------------------------------------------------------


@dataclass(frozen=True)
class Focus:
    """What a lesson begins with, and which controls are its topic: those are shown first."""

    start: Setting
    first: tuple[str, ...]


FOCUS = {
    "": Focus(Setting(), tuple(field.name for field in fields(Setting))),
    "01": Focus(
        Setting(model="llama-3-8b", device="h100-sxm", n_sequences=1, n_tokens=512),
        ("model", "device", "n_sequences", "n_tokens"),
    ),
    "04": Focus(Setting(), ("model", "device", "n_sequences", "n_tokens", "cache")),
    "05": Focus(
        Setting(model="llama-3-70b", device="h200-sxm", weights="fp8"),
        ("model", "attention", "n_sequences", "n_tokens"),
    ),
    "07": Focus(
        Setting(model="llama-3-8b", device="h100-sxm", n_sequences=8),
        ("model", "device", "weights", "cache", "n_sequences"),
    ),
    "08": Focus(
        Setting(model="llama-3-8b", device="h100-sxm", n_sequences=16, n_tokens=256, gamma=4),
        ("gamma", "acceptance", "draft_cost", "n_sequences", "n_tokens"),
    ),
    "09": Focus(
        Setting(model="mixtral-8x7b", device="h200-sxm", n_tokens=1024),
        ("model", "device", "n_sequences", "weights"),
    ),
    "12": Focus(
        Setting(model="llama-3-70b", device="b200-sxm", weights="fp8", n_tokens=1536, headroom=0.1),
        ("model", "device", "n_sequences", "n_tokens", "weights", "cache", "headroom"),
    ),
}


def focus(lesson: str) -> Focus:
    """What a lesson opens with; ValueError for one that has no explorer."""
    if lesson not in FOCUS:
        known = ", ".join(name for name in FOCUS if name)
        raise ValueError(f"lesson {lesson!r} opens no explorer; these do: {known}")
    return FOCUS[lesson]
