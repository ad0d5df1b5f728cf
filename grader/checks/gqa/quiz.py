"""Lesson 05: the knowledge check, with numbers of the learner's own."""

from __future__ import annotations

from typing import Any

import numpy as np

from grader.checks.gqa.lesson import LESSON
from grader.checks.gqa.predictions import kv_weights_saved
from inferlab.cache_sizes import cache_bytes, cache_bytes_per_device, decode_attention_intensity
from inferlab.config import ModelConfig
from inferlab.sizes import MlaConfig
from labkit.interview.questions import Question

Params = dict[str, Any]


def _draw_head(rng: np.random.Generator) -> Params:
    """Drawn until every slip gives another head."""
    while True:
        n_kv_heads, n_sharing = int(rng.integers(3, 9)), int(rng.choice([3, 4, 5, 6, 7]))
        p = {"n_heads": n_kv_heads * n_sharing, "n_kv_heads": n_kv_heads, "n_sharing": n_sharing}
        p["head"] = int(rng.integers(n_sharing, p["n_heads"]))
        slips = {p["head"] % n_kv_heads, p["head"] % n_sharing, p["head"] // n_kv_heads}
        if p["head"] // n_sharing not in slips:
            return p


def _draw_groups(rng: np.random.Generator) -> Params:
    n_kv_heads = int(rng.choice([2, 4, 8]))
    n_sharing = int(rng.choice([n for n in (3, 5, 6, 7) if n != n_kv_heads]))
    return {
        "n_layers": int(rng.choice([24, 28, 32, 36, 48])),
        "n_kv_heads": n_kv_heads,
        "n_sharing": n_sharing,
        "n_heads": n_kv_heads * n_sharing,
        "d_head": int(rng.choice([64, 96, 128])),
    }


def _config(p: Params, **more: Any) -> ModelConfig:
    d_model = p.get("d_model", p["n_heads"] * p["d_head"])
    sizes = (p["n_layers"], d_model, p["n_heads"], p["n_kv_heads"], p["d_head"])
    return ModelConfig(*sizes, 4 * d_model, 32_000, **more)


def _sizes(p: Params) -> str:
    return (
        f"{p['n_layers']} layers, {p['n_heads']} query heads, {p['n_kv_heads']} KV heads, "
        f"d_head {p['d_head']}"
    )


def _draw_weights(rng: np.random.Generator) -> Params:
    return {**_draw_groups(rng), "d_model": int(rng.choice([2048, 3072, 5120]))}


def _draw_mla(rng: np.random.Generator) -> Params:
    return {
        "n_layers": int(rng.integers(24, 70)),
        "n_heads": int(rng.choice([16, 32, 64])),
        "d_latent": int(rng.choice([256, 384, 512, 768])),
        "d_rope": int(rng.choice([32, 64])),
    }


def _mla_config(p: Params) -> ModelConfig:
    mla = MlaConfig(p["d_latent"], 128, p["d_rope"], 128)
    heads = (p["n_heads"], p["n_heads"], 128 + p["d_rope"])
    return ModelConfig(p["n_layers"], 4096, *heads, 8192, 32_000, mla=mla)


def _draw_windows(rng: np.random.Generator) -> Params:
    n_full = int(rng.choice([4, 6, 8]))
    return {
        **_draw_groups(rng),
        "n_layers": n_full * int(rng.choice([4, 5, 6])),
        "n_full": n_full,
        "window": int(rng.choice([512, 1024])),
        "n_tokens": int(rng.choice([8192, 16384, 32768])),
    }


def _windowed_bytes(p: Params, n_window: int | None = None) -> int:
    n = p["n_layers"] - p["n_full"] if n_window is None else n_window
    config = _config(p, sliding_window=p["window"], n_window_layers=n)
    return cache_bytes(config, p["n_tokens"])


def _draw_devices(rng: np.random.Generator) -> Params:
    n_kv_heads = int(rng.choice([2, 4]))
    return {
        **_draw_groups(rng),
        "n_kv_heads": n_kv_heads,
        "n_heads": 64,
        "n_devices": n_kv_heads * int(rng.choice([2, 4])),
    }


QUESTIONS = (
    Question(
        id="gq_q_head",
        lesson=LESSON,
        points=1,
        draw=_draw_head,
        text=lambda p: (
            f"{p['n_heads']} query heads share {p['n_kv_heads']} KV heads, both counted from 0. "
            f"Which KV head does query head {p['head']} read?"
        ),
        answer=lambda p: float(p["head"] // p["n_sharing"]),
        tolerance=1e-6,
        slips={
            "head mod n_kv_heads: neighbours share a KV head, they are not dealt out in turn": (
                lambda p: float(p["head"] % p["n_kv_heads"])
            ),
            "head mod group size: that is the place within the group": lambda p: float(
                p["head"] % p["n_sharing"]
            ),
            "divided by the number of KV heads: divide by the size of a group": lambda p: float(
                p["head"] // p["n_kv_heads"]
            ),
        },
        why=lambda p: (
            f"Groups of {p['n_heads']} // {p['n_kv_heads']} = {p['n_sharing']} heads: "
            f"{p['head']} // {p['n_sharing']} = {p['head'] // p['n_sharing']}."
        ),
    ),
    Question(
        id="gq_q_ratio",
        lesson=LESSON,
        points=1,
        draw=_draw_groups,
        text=lambda p: (
            f"A model has {_sizes(p)}. How many times as large would its cache be with multi-head "
            "attention?"
        ),
        answer=lambda p: float(p["n_sharing"]),
        unit="x",
        slips={
            "groups of 8 are common, but this model has others: n_heads / n_kv_heads": (
                lambda p: 8.0
            ),
            "that is how much smaller it would be with one KV head": lambda p: float(
                p["n_kv_heads"]
            ),
            "multi-query attention is the reference here, not multi-head": lambda p: float(
                p["n_heads"]
            ),
        },
        why=lambda p: f"{p['n_heads']} / {p['n_kv_heads']} = {p['n_sharing']}.",
    ),
    Question(
        id="gq_q_weights",
        lesson=LESSON,
        points=1,
        draw=_draw_weights,
        text=lambda p: (
            f"A model has d_model {p['d_model']:,} and {_sizes(p)}. How many weights fewer is that "
            "than with multi-head attention? (A plain number.)"
        ),
        answer=lambda p: float(kv_weights_saved(_config(p))),
        slips={
            "keys or values alone: both projections shrink": lambda p: (
                kv_weights_saved(_config(p)) / 2
            ),
            "queries and outputs were counted too: these keep all their heads": lambda p: (
                kv_weights_saved(_config(p)) * 2.0
            ),
            "all heads of keys and values: those that remain are not saved": lambda p: (
                kv_weights_saved(_config(p)) * p["n_heads"] / (p["n_heads"] - p["n_kv_heads"])
            ),
            "one layer only": lambda p: kv_weights_saved(_config(p)) / p["n_layers"],
        },
        why=lambda p: (
            f"2 · {p['n_layers']} · {p['d_model']:,} · ({p['n_heads']} − {p['n_kv_heads']}) · "
            f"{p['d_head']} = {kv_weights_saved(_config(p)):,}. The first 2 is for K and V."
        ),
    ),
    Question(
        id="gq_q_mla",
        lesson=LESSON,
        points=1,
        draw=_draw_mla,
        text=lambda p: (
            f"MLA with {p['n_layers']} layers, {p['n_heads']} heads, a latent of {p['d_latent']} "
            f"numbers and a rotated key of {p['d_rope']}. How many bytes does a token keep in bf16?"
        ),
        answer=lambda p: cache_bytes(_mla_config(p), 1),
        unit="B",
        slips={
            "a factor 2 for keys and values: one latent serves both": lambda p: (
                cache_bytes(_mla_config(p), 1) * 2.0
            ),
            "counted for every head: all heads share the latent and the rotated key": lambda p: (
                cache_bytes(_mla_config(p), 1) * float(p["n_heads"])
            ),
            "the rotated key is forgotten": lambda p: 2.0 * p["n_layers"] * p["d_latent"],
            "one layer only": lambda p: 2.0 * (p["d_latent"] + p["d_rope"]),
        },
        why=lambda p: (
            f"{p['n_layers']} · ({p['d_latent']} + {p['d_rope']}) · 2 B = "
            f"{cache_bytes(_mla_config(p), 1):,} B. No factor for K and V, none for heads."
        ),
    ),
    Question(
        id="gq_q_equal",
        lesson=LESSON,
        points=1,
        draw=lambda rng: {**_draw_mla(rng), "d_head": int(rng.choice([64, 128]))},
        text=lambda p: (
            f"MLA keeps a latent of {p['d_latent']} numbers and a rotated key of {p['d_rope']} in "
            f"each layer. To how many KV heads of {p['d_head']} numbers is that equal? (It need "
            "not be a whole number.)"
        ),
        answer=lambda p: (p["d_latent"] + p["d_rope"]) / (2 * p["d_head"]),
        slips={
            "a KV head keeps a key and a value, 2 · d_head numbers": lambda p: (
                (p["d_latent"] + p["d_rope"]) / p["d_head"]
            ),
            "the rotated key is forgotten": lambda p: p["d_latent"] / (2 * p["d_head"]),
        },
        why=lambda p: (
            f"({p['d_latent']} + {p['d_rope']}) / (2 · {p['d_head']}) = "
            f"{(p['d_latent'] + p['d_rope']) / (2 * p['d_head']):g}."
        ),
    ),
    Question(
        id="gq_q_window",
        lesson=LESSON,
        points=1,
        draw=_draw_windows,
        text=lambda p: (
            f"{_sizes(p)}. {p['n_full']} of the layers see everything, the others only the last "
            f"{p['window']:,} tokens. How many MiB does one sequence of {p['n_tokens']:,} tokens "
            "take in bf16? (MB is fine if you write MB.)"
        ),
        answer=_windowed_bytes,
        unit="MiB",
        slips={
            "every layer at full length: a window stops at its size": lambda p: cache_bytes(
                _config(p), p["n_tokens"]
            ),
            "every layer with the window: some see everything": lambda p: _windowed_bytes(
                p, p["n_layers"]
            ),
            "the two kinds of layers are exchanged": lambda p: _windowed_bytes(p, p["n_full"]),
            "the windows hold something, too": lambda p: (
                cache_bytes(_config(p), p["n_tokens"]) * p["n_full"] / p["n_layers"]
            ),
        },
        why=lambda p: (
            f"2 · {p['n_kv_heads']} · {p['d_head']} · 2 B a layer and token, times "
            f"({p['n_full']} · {p['n_tokens']:,} + {p['n_layers'] - p['n_full']} · "
            f"{p['window']:,}): {_windowed_bytes(p):,} B."
        ),
    ),
    Question(
        id="gq_q_intensity",
        lesson=LESSON,
        points=1,
        draw=lambda rng: {
            **_draw_groups(rng),
            "bits": int(rng.choice([16, 32])),
            "batch": int(rng.choice([4, 9, 16])),
        },
        text=lambda p: (
            f"{_sizes(p)}; the cache has {p['bits']} bits a number; {p['batch']} sequences decode "
            "together. What is the arithmetic intensity of attention alone, in FLOP/B?"
        ),
        answer=lambda p: decode_attention_intensity(_config(p), p["bits"] // 8),
        unit="FLOP/B",
        slips={
            "each sequence has its own cache: more of them bring more bytes as well": lambda p: (
                p["batch"] * decode_attention_intensity(_config(p), p["bits"] // 8)
            ),
            "the bytes of a number divide: fewer bytes, more FLOPs on each": lambda p: (
                2.0 * p["n_sharing"] * p["bits"] / 8
            ),
            "all query heads on each byte: only those of one group read a KV head": lambda p: (
                16.0 * p["n_heads"] / p["bits"]
            ),
            "counted in bits": lambda p: 2.0 * p["n_sharing"] / p["bits"],
            "a multiply-add is counted once: it is 2 FLOPs": lambda p: (
                8.0 * p["n_sharing"] / p["bits"]
            ),
        },
        why=lambda p: (
            f"2 · {p['n_sharing']} / {p['bits'] // 8} = "
            f"{decode_attention_intensity(_config(p), p['bits'] // 8):g}: 2 FLOPs on each number, "
            "for each of the query heads that share it."
        ),
    ),
    Question(
        id="gq_q_devices",
        lesson=LESSON,
        points=1,
        draw=_draw_devices,
        text=lambda p: (
            f"{_sizes(p)}, bf16, spread over {p['n_devices']} devices by tensor parallelism. How "
            "many bytes of cache does each device hold for one token?"
        ),
        answer=lambda p: cache_bytes_per_device(_config(p), 1, p["n_devices"]),
        unit="B",
        slips={
            "divided by all devices: a KV head cannot be cut, so some hold copies": lambda p: (
                cache_bytes(_config(p), 1) / p["n_devices"]
            ),
            "nothing was divided: a device holds only the heads it reads": lambda p: cache_bytes(
                _config(p), 1
            ),
        },
        why=lambda p: (
            f"One KV head of {p['n_kv_heads']}: {cache_bytes(_config(p), 1):,} B / "
            f"{p['n_kv_heads']} = {cache_bytes_per_device(_config(p), 1, p['n_devices']):,} B, on "
            f"each; {p['n_devices'] // p['n_kv_heads']} devices hold the same head."
        ),
    ),
    Question(
        id="gq_q_flops",
        lesson=LESSON,
        points=1,
        text=lambda p: (
            "32 query heads; the KV heads go from 32 to 8. What becomes of the FLOPs of attention "
            "(scores and mixing)?"
        ),
        choices=(
            "they stay: each query head scores every key",
            "a quarter: only 8 heads have scores left",
            "a half: keys are shared, values are not",
            "a sixteenth: both of its factors shrink",
        ),
        notes={
            "a quarter: only 8 heads have scores left": "the bytes become a quarter; all 32 query "
            "heads still compute scores of their own",
        },
        why=lambda p: "Sharing saves bytes, not arithmetic: 4 query heads use each key read.",
    ),
    Question(
        id="gq_q_rope",
        lesson=LESSON,
        points=1,
        text=lambda p: "Why does MLA keep a rotated key beside the latent?",
        choices=(
            "a rotation between query and latent could not be absorbed",
            "a latent is too small to hold positions of a long text",
            "rotating a latent would double the numbers kept of it",
            "each of the heads needs a rotated key that is its own",
        ),
        notes={
            "each of the heads needs a rotated key that is its own": "all heads share one rotated "
            "key; that is why it costs so little",
        },
        why=lambda p: (
            "q · R(position) (latent @ w_k): the rotation depends on both positions and stands "
            "between q and w_k, so that no fixed matrix could be moved to the query."
        ),
    ),
    Question(
        id="gq_q_falcon",
        lesson=LESSON,
        points=1,
        text=lambda p: "Which of these models is multi-query: one KV head for all query heads?",
        choices=(
            "Falcon-7B, with 71 query heads",
            "Falcon-40B, with 128 query heads",
            "Falcon-180B, with 232 query heads",
            "Llama-2-70B, with 64 query heads",
        ),
        notes={
            "Falcon-40B, with 128 query heads": "only the smallest Falcon has a single KV head",
            "Falcon-180B, with 232 query heads": "only the smallest Falcon has a single KV head",
        },
        why=lambda p: "The two larger Falcons have 8 KV heads, and so has Llama-2-70B.",
    ),
)
