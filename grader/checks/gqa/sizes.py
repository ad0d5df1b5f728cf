"""Lesson 05: what any model's cache weighs."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np

from grader.checks.gqa.lesson import LESSON
from grader.judging.exercise import Exercise, Inputs, given
from inferlab.cache_sizes import cache_bytes, grow_and_cap_bytes, layer_cache_numbers
from inferlab.config import ModelConfig
from inferlab.data import model_preset
from inferlab.sizes import MlaConfig

EIGHT_B, FALCON, QWEN = (model_preset(n) for n in ("8b-style", "falcon-7b", "qwen3-0.6b"))
V3, V2_LITE, KIMI = (model_preset(n) for n in ("deepseek-v3", "deepseek-v2-lite", "kimi-k2"))
GPT_OSS, GEMMA, MISTRAL = (
    model_preset(n) for n in ("gpt-oss-20b", "gemma-3-27b", "mistral-7b-v0.1")
)


def draw_plain(rng: np.random.Generator, **windows: Any) -> ModelConfig:
    """A model without MLA whose sizes all differ, and d_head is not d_model / n_heads."""
    n_kv_heads = int(rng.choice([2, 4, 5, 6]))
    n_heads = n_kv_heads * int(rng.choice([3, 7]))
    d_head = int(rng.choice([64, 80, 96]))
    d_model, n_layers = n_heads * d_head * 3 // 4, int(rng.integers(20, 60))
    return ModelConfig(
        n_layers, d_model, n_heads, n_kv_heads, d_head, 4 * d_model, 32_000, **windows
    )


def draw_mla(rng: np.random.Generator) -> ModelConfig:
    n_heads = int(rng.choice([12, 20, 48]))
    d_latent, d_nope, d_value = (int(n) for n in rng.choice([320, 96, 144, 160], 3, replace=False))
    mla = MlaConfig(d_latent, d_nope, int(rng.choice([32, 48])), d_value, d_query_latent=768)
    d_head = mla.d_nope + mla.d_rope
    return ModelConfig(
        int(rng.integers(20, 60)), 3072, n_heads, n_heads, d_head, 8192, 32_000, mla=mla
    )


def draw_windowed(rng: np.random.Generator) -> ModelConfig:
    """Some layers with a window, and never half of them or all but one."""
    n_window = int(rng.integers(5, 9))
    return draw_plain(rng, sliding_window=int(rng.choice([96, 160])), n_window_layers=n_window)


def drive_each(answer: Callable, inputs: Inputs) -> Any:
    """Call the answer on the config of a named case, or on each of several drawn models."""
    if "models" not in inputs:
        return answer(**inputs)
    rest = {name: value for name, value in inputs.items() if name != "models"}
    return {kind: answer(**{**rest, **sizes}) for kind, sizes in inputs["models"].items()}


def draw_both(rng: np.random.Generator) -> Inputs:
    """One model without MLA, one with it."""
    kinds = {"without MLA": {"config": draw_plain(rng)}, "with MLA": {"config": draw_mla(rng)}}
    return {"models": kinds}


# ---- layer_cache_numbers -----------------------------------------------------------------------


def _numbers(plain: Callable | None = None, mla: Callable | None = None) -> Callable:
    """layer_cache_numbers with another formula for plain(config) or mla(config.mla, config)."""

    def answer(config):
        if config.mla is None:
            return plain(config) if plain else 2 * config.n_kv_heads * config.d_head
        widths = config.mla
        return mla(widths, config) if mla else widths.d_latent + widths.d_rope

    return answer


LAYER_NUMBERS = Exercise(
    id="layer_cache_numbers",
    reference=layer_cache_numbers,
    lesson=LESSON,
    points=1,
    minutes=6,
    difficulty=1,
    hints=(
        "Two cases: with config.mla and without. Ask in each what one token stores in one layer.",
        "Without MLA a key and a value for each KV head. With it, exactly what "
        "compress_to_latent returns for a token.",
        "config.mla.d_latent + config.mla.d_rope where config.mla is not None; else "
        "2 * config.n_kv_heads * config.d_head.",
    ),
    cases=(
        given("8B-style: 8 KV heads of 128", config=EIGHT_B),
        given("Falcon-7B: 71 query heads, 1 KV head", config=FALCON),
        given("Qwen3-0.6B: d_head is not d_model / n_heads", config=QWEN),
        given("DeepSeek-V3: MLA with 128 heads", config=V3),
        given("DeepSeek-V2-Lite: MLA with 16 heads", config=V2_LITE),
    ),
    draw=draw_both,
    drive=drive_each,
    wrong={
        "n_heads in place of n_kv_heads: only KV heads are cached": _numbers(
            lambda c: 2 * c.n_heads * c.d_head
        ),
        "the factor 2 is missing: keys and values are both kept": _numbers(
            lambda c: c.n_kv_heads * c.d_head
        ),
        "d_model / n_heads in place of d_head: a config may say otherwise": _numbers(
            lambda c: 2 * c.n_kv_heads * (c.d_model // c.n_heads)
        ),
        "assumes 8 KV heads: read n_kv_heads": _numbers(lambda c: 2 * 8 * c.d_head),
        "the size of a group in place of n_kv_heads, the number of groups": _numbers(
            lambda c: 2 * (c.n_heads // c.n_kv_heads) * c.d_head
        ),
        "all layers together: one layer is asked": _numbers(
            lambda c: c.n_layers * 2 * c.n_kv_heads * c.d_head,
            lambda w, c: c.n_layers * (w.d_latent + w.d_rope),
        ),
        "bytes of bf16: numbers are asked": _numbers(
            lambda c: 4 * c.n_kv_heads * c.d_head, lambda w, c: 2 * (w.d_latent + w.d_rope)
        ),
        "MLA is treated as 2 * n_kv_heads * d_head: it keeps no head's keys or values": _numbers(
            mla=lambda w, c: 2 * c.n_kv_heads * c.d_head
        ),
        "a factor 2 for MLA: one latent serves keys and values alike": _numbers(
            mla=lambda w, c: 2 * (w.d_latent + w.d_rope)
        ),
        "MLA's latent is counted twice: it serves keys and values alike": _numbers(
            mla=lambda w, c: 2 * w.d_latent + w.d_rope
        ),
        "MLA is counted for every head: all heads share the latent and the rotated key": _numbers(
            mla=lambda w, c: c.n_heads * (w.d_latent + w.d_rope)
        ),
        "a rotated key for every head: all heads share one": _numbers(
            mla=lambda w, c: w.d_latent + c.n_heads * w.d_rope
        ),
        "d_value is counted in place of d_rope: values come out of the latent": _numbers(
            mla=lambda w, c: w.d_latent + w.d_value
        ),
        "MLA's rotated key is forgotten: it is cached beside the latent": _numbers(
            mla=lambda w, c: w.d_latent
        ),
        "the queries' latent is counted: queries are never cached": _numbers(
            mla=lambda w, c: w.d_latent + w.d_rope + (w.d_query_latent or 0)
        ),
        "what a head expands to is counted; only the latent and the rotated key are kept": _numbers(
            mla=lambda w, c: w.d_nope + w.d_rope + w.d_value
        ),
    },
    right={
        "from the group size": _numbers(
            lambda c: c.n_heads // (c.n_heads // c.n_kv_heads) * sum((c.d_head, c.d_head))
        ),
        "from the bytes of the whole model": lambda config: (
            cache_bytes(config, 1, 1, 1) // config.n_layers
        ),
        "counted in NumPy": _numbers(lambda c: np.zeros((2, c.n_kv_heads, c.d_head)).size),
    },
)

# ---- grow_and_cap_bytes ------------------------------------------------------------------------


def parts(config: ModelConfig, b: int = 2) -> tuple[int, int, int, int]:
    """Bytes of a token in a layer, layers without a window, layers with one, the window (or 0)."""
    widths = config.mla
    numbers = 2 * config.n_kv_heads * config.d_head if widths is None else 0
    numbers += 0 if widths is None else widths.d_latent + widths.d_rope
    if config.sliding_window is None:
        return numbers * b, config.n_layers, 0, 0
    n = config.n_layers if config.n_window_layers is None else config.n_window_layers
    return numbers * b, config.n_layers - n, n, config.sliding_window


def _split(formula: Callable[..., Any]) -> Callable:
    """grow_and_cap_bytes by formula(layer bytes, full layers, window layers, window, config)."""

    def answer(config, bytes_per_number=2):
        return formula(*parts(config, bytes_per_number), config)

    return answer


def _layer_by_layer(config, bytes_per_number=2):
    growing = cap = 0
    for layer in range(config.n_layers):
        n = layer_cache_numbers(config) * bytes_per_number
        n_window = 0 if config.sliding_window is None else config.n_window_layers or config.n_layers
        if layer < n_window:
            cap += n * config.sliding_window
        else:
            growing += n
    return growing, cap


def _draw_split(rng: np.random.Generator) -> Inputs:
    kinds = {"windows": draw_windowed(rng), "no window": draw_plain(rng), "MLA": draw_mla(rng)}
    models = {kind: {"config": config} for kind, config in kinds.items()}
    return {"models": models, "bytes_per_number": int(rng.choice([1, 4]))}


GROW_AND_CAP = Exercise(
    id="grow_and_cap_bytes",
    reference=grow_and_cap_bytes,
    lesson=LESSON,
    points=2,
    minutes=10,
    difficulty=2,
    uses=("layer_cache_numbers",),
    hints=(
        "Count the layers of both kinds first. Three situations: no window at all, a window in all "
        "layers, a window in n_window_layers of them.",
        "One token takes layer_cache_numbers(config) * bytes_per_number in any layer. Layers "
        "without a window add that for every token; one with a window stops at "
        "config.sliding_window times that.",
        "n_window = 0 without a window, n_layers where n_window_layers is None; then "
        "((n_layers - n_window) * layer_bytes, n_window * sliding_window * layer_bytes).",
    ),
    cases=(
        given("gpt-oss-20b: every second layer has a window", config=GPT_OSS),
        given("Gemma 3 27B: 52 of 62 layers, 8-bit cache", config=GEMMA, bytes_per_number=1),
        given("Mistral 7B v0.1: all layers, so nothing grows for ever", config=MISTRAL),
        given("8B-style: no window, nothing is capped", config=EIGHT_B),
        given("DeepSeek-V3: MLA, no window", config=V3),
    ),
    draw=_draw_split,
    drive=drive_each,
    wrong={
        "windows are ignored: every layer grows": _split(lambda b, f, n, w, c: ((f + n) * b, 0)),
        "the layers with a window are counted as growing, too": _split(
            lambda b, f, n, w, c: ((f + n) * b, n * w * b)
        ),
        "all layers get the window: n_window_layers of them have it": _split(
            lambda b, f, n, w, c: (0 if w else f * b, (f + n) * w * b)
        ),
        "the two kinds of layers are exchanged: n_window_layers have the window": _split(
            lambda b, f, n, w, c: (n * b, f * w * b) if w and f else (f * b, n * w * b)
        ),
        "one layer's window: all layers with one hold as much": _split(
            lambda b, f, n, w, c: (f * b, w * b)
        ),
        "the cap of one token: a full window holds sliding_window of them": _split(
            lambda b, f, n, w, c: (f * b, n * b)
        ),
        "n_window_layers None is read as no layer: it means all of them": _split(
            lambda b, f, n, w, c: (
                ((f + n) * b, 0) if c.n_window_layers is None else (f * b, n * w * b)
            )
        ),
        "assumes that every second layer has the window: read n_window_layers": _split(
            lambda b, f, n, w, c: (
                ((f + n) // 2 * b, (f + n - (f + n) // 2) * w * b)
                if w and f
                else (f * b, n * w * b)
            )
        ),
        "the growth of one layer: all layers without a window grow": _split(
            lambda b, f, n, w, c: (min(f, 1) * b, n * w * b)
        ),
        "the cap comes first: return (growth, cap)": _split(
            lambda b, f, n, w, c: (n * w * b, f * b)
        ),
        "bytes_per_number is ignored: 2 is only the default": lambda config, bytes_per_number=2: (
            grow_and_cap_bytes(config, 2)
        ),
        "n_heads in place of n_kv_heads: only KV heads are cached": _split(
            lambda b, f, n, w, c: tuple(
                x * (1 if c.mla else c.n_heads // c.n_kv_heads) for x in (f * b, n * w * b)
            )
        ),
        "the cap is a number of tokens: bytes are asked": _split(lambda b, f, n, w, c: (f * b, w)),
        "the window is one token too long: a token sees sliding_window tokens, itself included": (
            _split(lambda b, f, n, w, c: (f * b, n * (w + 1) * b if w else 0))
        ),
    },
    right={
        "layer by layer": _layer_by_layer,
        "a list of the layers' windows": _split(
            lambda b, f, n, w, c: [
                b * sum(size is None for size in [None] * f + [w] * n),
                sum(b * size for size in [w] * n),
            ]
        ),
        "in NumPy": _split(lambda b, f, n, w, c: np.array([f, n * w]) * b),
    },
)

# ---- cache_bytes -------------------------------------------------------------------------------


def _sized(formula: Callable[..., Any]) -> Callable:
    """cache_bytes by formula(*parts(config, bytes_per_number), n_tokens, n_sequences)."""

    def answer(config, n_tokens, n_sequences=1, bytes_per_number=2):
        return formula(*parts(config, bytes_per_number), n_tokens, n_sequences)

    return answer


def _draw_bytes(rng: np.random.Generator) -> Inputs:
    """Texts shorter than the window and far longer."""
    short, long = int(rng.integers(20, 90)), int(rng.integers(170, 3000))
    config = draw_windowed(rng)
    models = {
        "windows, not full": {"config": config, "n_tokens": short},
        "windows, full": {"config": config, "n_tokens": long},
        "no window": {"config": draw_plain(rng), "n_tokens": long},
        "MLA": {"config": draw_mla(rng), "n_tokens": short},
    }
    more = {"n_sequences": int(rng.integers(3, 12)), "bytes_per_number": int(rng.choice([1, 4]))}
    return {"models": models, **more}


def _token_by_token(config, n_tokens, n_sequences=1, bytes_per_number=2):
    b, full, n_window, window = parts(config, bytes_per_number)
    held = sum(full + (n_window if t < window else 0) for t in range(n_tokens))
    return n_sequences * held * b


def _fraction_full(b, f, n, w, t, s):
    share = Fraction(min(t, w), w) if w else Fraction(0)
    return int(s * (f * b * t + share * n * w * b))


BYTES = Exercise(
    id="cache_bytes",
    reference=cache_bytes,
    lesson=LESSON,
    points=2,
    minutes=10,
    difficulty=2,
    uses=("grow_and_cap_bytes",),
    hints=(
        "One sequence first: what grows, times its tokens, plus what the windows hold. Then all "
        "sequences.",
        "A window that is not full yet holds n_tokens, a full one config.sliding_window tokens: "
        "min of the two. The cap divided by config.sliding_window is what one token takes there.",
        "n_sequences * (growing * n_tokens + cap // window * min(n_tokens, window)), without the "
        "second term where config.sliding_window is None.",
    ),
    cases=(
        given("gpt-oss-20b at 131,072 tokens", config=GPT_OSS, n_tokens=131_072),
        given(
            "gpt-oss-20b, 2 sequences of 100 tokens: windows not full yet",
            config=GPT_OSS,
            n_tokens=100,
            n_sequences=2,
        ),
        given("Gemma 3 27B at 32,768 tokens", config=GEMMA, n_tokens=32_768),
        given("Mistral 7B v0.1 at 8,192 tokens: all windows full", config=MISTRAL, n_tokens=8192),
        given(
            "DeepSeek-V3, 3 sequences of 1,000 tokens, 8-bit",
            config=V3,
            n_tokens=1000,
            n_sequences=3,
            bytes_per_number=1,
        ),
        given("one token more than the window", config=GPT_OSS, n_tokens=129, n_sequences=2),
    ),
    draw=_draw_bytes,
    drive=drive_each,
    wrong={
        "layers with a window are counted at full length: they keep sliding_window tokens": _sized(
            lambda b, f, n, w, t, s: s * (f + n) * b * t
        ),
        "the windows are always full: a short text has not filled them": _sized(
            lambda b, f, n, w, t, s: s * (f * b * t + n * w * b)
        ),
        "all layers stop at the window: some have none": _sized(
            lambda b, f, n, w, t, s: s * (f + n) * b * (min(t, w) if w else t)
        ),
        "max in place of min: a window never holds more than sliding_window tokens": _sized(
            lambda b, f, n, w, t, s: s * (f * b * t + (n * b * max(t, w) if w else 0))
        ),
        "one token too many in a window: it holds sliding_window tokens, the newest included": (
            _sized(lambda b, f, n, w, t, s: s * (f * b * t + n * b * min(t, w + 1) * bool(w)))
        ),
        "one window for all sequences: each has its own": _sized(
            lambda b, f, n, w, t, s: s * f * b * t + n * b * min(t, w)
        ),
        "the tokens of all sequences share one window: each sequence has its own": _sized(
            lambda b, f, n, w, t, s: f * b * t * s + n * b * min(t * s, w)
        ),
        "n_sequences is forgotten: each sequence has its own cache": _sized(
            lambda b, f, n, w, t, s: f * b * t + n * b * min(t, w)
        ),
        "layers without a window grow only once the windows are full: they grow from the start": (
            _sized(lambda b, f, n, w, t, s: s * (f * b * max(t - w, 0) + n * b * min(t, w)))
        ),
        "the larger of both parts: growing layers and windows are held together": _sized(
            lambda b, f, n, w, t, s: s * max(f * b * t, n * b * min(t, w))
        ),
        "the windows are left out: they hold something, too": _sized(
            lambda b, f, n, w, t, s: s * f * b * t
        ),
        "windows that are not full yet are left out: until then they hold n_tokens": _sized(
            lambda b, f, n, w, t, s: s * (f * b * t + n * b * w * (t >= w))
        ),
        "the windows alone, where there are any: the other layers keep all n_tokens": _sized(
            lambda b, f, n, w, t, s: s * b * (n * min(t, w) if w else f * t)
        ),
        "bytes_per_number is ignored: 2 is only the default": (
            lambda config, n_tokens, n_sequences=1, bytes_per_number=2: cache_bytes(
                config, n_tokens, n_sequences, 2
            )
        ),
        "a float: cap / window gives one, // does not": _sized(
            lambda b, f, n, w, t, s: float(s * (f * b * t + n * b * min(t, w)))
        ),
    },
    right={
        "token by token": _token_by_token,
        "the share of the window that is filled": _sized(_fraction_full),
        "before and after the windows are full": _sized(
            lambda b, f, n, w, t, s: s * b * (f + n) * t if t < w else s * b * (f * t + n * w)
        ),
    },
)
