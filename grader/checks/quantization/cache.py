"""Lesson 07: a cache of keys and values in whole numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from grader.checks.quantization.lesson import LESSON
from grader.judging.compare import Comparison
from grader.judging.exercise import Exercise, Inputs
from inferlab.quantization import dequantize, quantize_absmax
from inferlab.quantized_model import QuantizedKVCache

B, N_KV_HEADS, D_HEAD, N_LAYERS = 2, 3, 5, 2


def _draw_kv(rng: np.random.Generator) -> Inputs:
    """Three appends a layer; one token is a hundred times as large, one head of a token is 0."""
    lengths = [int(rng.integers(3, 6)), 1, int(rng.integers(2, 4))]
    k, v = rng.normal(size=(2, N_LAYERS, B, N_KV_HEADS, sum(lengths), D_HEAD)).astype(np.float32)
    k[:, :, :, 1] *= 100
    v[:, :, 1] *= 50
    k[1, 0, 2, -1] = v[1, 1, 0, 0] = 0
    return {"k": k, "v": v, "lengths": lengths, "bits": int(rng.choice([8, 4]))}


def _drive_kv(answer: Any, inputs: Inputs) -> dict[str, Any]:
    cache = type("QuantizedKVCache", (QuantizedKVCache,), {"append": answer.append})(
        N_LAYERS, N_KV_HEADS, D_HEAD, B, inputs["bits"]
    )
    seen: dict[str, Any] = {}
    start = 0
    for call, T in enumerate(inputs["lengths"], start=1):
        for layer in range(N_LAYERS):
            k, v = (inputs[name][layer, :, :, start : start + T].copy() for name in "kv")
            pair = cache.append(layer, k, v)
            if not isinstance(pair, (tuple, list)) or len(pair) != 2:
                pair = (pair, None)
            for name, held in zip(("keys", "values"), pair, strict=True):
                copy = held.copy() if isinstance(held, np.ndarray) else held
                seen[f"append {call}, layer {layer}: {name} returned"] = copy
            k[:] = v[:] = np.nan  # the caller uses its arrays again
        if call == 1:  # what is stored stays, even if its largest code is not the top one
            cache.key_codes = [codes // 2 for codes in cache.key_codes]
        start += T
    for name in ("key_codes", "key_scales", "value_codes", "value_scales"):
        for layer, array in enumerate(getattr(cache, name)):
            seen[f"{name}[{layer}]"] = array
    seen["number type of the codes"] = str(cache.key_codes[0].dtype)
    seen["n_tokens"] = cache.n_tokens
    seen["bytes in the object"] = _held_bytes(vars(cache))
    return seen


def _held_bytes(held: Any) -> int:
    """Bytes of all arrays in here: lists, tuples and dicts may lie in each other."""
    if isinstance(held, np.ndarray):
        return held.nbytes
    parts = held.values() if isinstance(held, dict) else held
    return sum(map(_held_bytes, parts)) if isinstance(held, (dict, list, tuple)) else 0


def _store(cache: Any, layer: int, *pair: tuple[np.ndarray, np.ndarray]) -> None:
    for side, (codes, scales) in zip(("key", "value"), pair, strict=True):
        for name, new in (("codes", codes), ("scales", scales)):
            held = getattr(cache, f"{side}_{name}")
            held[layer] = np.concatenate([held[layer], new], axis=2)


def _restored(cache: Any, layer: int) -> tuple[np.ndarray, np.ndarray]:
    return (
        dequantize(cache.key_codes[layer], cache.key_scales[layer]),
        dequantize(cache.value_codes[layer], cache.value_scales[layer]),
    )


def _appender(
    quantize: Callable = lambda cache, new: quantize_absmax(new, cache.bits, axis=-1),
    result: Callable = lambda cache, layer, k, v: _restored(cache, layer),
    swap: bool = False,
) -> Any:
    """append with one step replaced."""

    def append(self, layer, k, v):
        pair = quantize(self, k), quantize(self, v)
        _store(self, layer, *(pair[::-1] if swap else pair))
        return result(self, layer, k, v)

    return _with(append)


def _with(append: Callable) -> Any:
    return type("QuantizedKVCache", (QuantizedKVCache,), {"append": append})


def _spread(new: np.ndarray, bits: int, axis: Any) -> tuple[np.ndarray, np.ndarray]:
    """Codes with one scale over `axis`, the scales repeated to one a head and token."""
    codes, scales = quantize_absmax(new, bits, axis)
    return codes, np.broadcast_to(scales, (*new.shape[:3], 1)).copy()


def _append_channelwise(self, layer, k, v):
    out = []
    for new in (k, v):
        codes, scales = quantize_absmax(new, self.bits, axis=2)
        out.append((codes, dequantize(codes, scales)))
    _store(self, layer, *((codes, np.ones((*k.shape[:3], 1), k.dtype)) for codes, _ in out))
    return tuple(restored for _, restored in out)


def _append_requantizing(self, layer, k, v):
    """Restores everything and rounds it again with one scale for all tokens of a head."""
    both = []
    for old, new in zip(_restored(self, layer), (k, v), strict=True):
        joined = np.concatenate([old, new], axis=2)
        both.append(_spread(joined, self.bits, (2, 3)))
    (self.key_codes[layer], self.key_scales[layer]), values = both
    self.value_codes[layer], self.value_scales[layer] = values
    return _restored(self, layer)


def _append_rounding_again(self, layer, k, v):
    """Restores everything and rounds it again, each head of each token on its own."""
    for side, old, new in zip(("key", "value"), _restored(self, layer), (k, v), strict=True):
        codes, scales = quantize_absmax(np.concatenate([old, new], axis=2), self.bits, axis=-1)
        getattr(self, f"{side}_codes")[layer] = codes
        getattr(self, f"{side}_scales")[layer] = scales
    return _restored(self, layer)


def _append_with_copies(self, layer, k, v):
    _store(self, layer, *(quantize_absmax(new, self.bits, axis=-1) for new in (k, v)))
    kept = _restored(self, layer)
    self.restored = {**getattr(self, "restored", {}), layer: kept}
    return kept


def _exact_new(cache, layer, k, v):
    keys, values = _restored(cache, layer)
    keys[:, :, -k.shape[2] :], values[:, :, -v.shape[2] :] = k, v
    return keys, values


def _append_by_token(self, layer, k, v):
    for t in range(k.shape[2]):
        part = slice(t, t + 1)
        pair = (quantize_absmax(a[:, :, part], self.bits, axis=3) for a in (k, v))
        _store(self, layer, *pair)
    keys = self.key_codes[layer] * self.key_scales[layer]
    return keys, self.value_codes[layer] * self.value_scales[layer]


def _append_by_head(self, layer, k, v):
    top = 2 ** (self.bits - 1) - 1
    halves = []
    for new in (k, v):
        scales = np.max(np.abs(new), axis=-1, keepdims=True) / np.float32(top)
        scales = np.where(scales > 0, scales, np.float32(1))
        halves.append((np.rint(new / scales).astype(np.int8), scales))
    _store(self, layer, *halves)
    return list(_restored(self, layer))


KV = Exercise(
    id="QuantizedKVCache",
    reference=QuantizedKVCache,
    lesson=LESSON,
    points=3,
    minutes=14,
    difficulty=3,
    uses=("quantize_absmax", "dequantize"),
    hints=(
        "The same four steps for keys and for values: quantize the new ones, join the codes, join "
        "the scales, dequantize all that the layer now holds.",
        "codes, scales = quantize_absmax(k, self.bits, axis=-1): axis -1 is d_head, so each head "
        "of each token has its own scale, (B, n_kv_heads, T, 1).",
        "self.key_codes[layer] = np.concatenate([self.key_codes[layer], codes], axis=2), the same "
        "for the scales; return dequantize(codes, scales) of the joined ones, keys then values.",
    ),
    draw=_draw_kv,
    n_draws=3,
    drive=_drive_kv,
    comparison=Comparison(terms=lambda i: 4, why="a few roundings in float32"),
    wrong={
        "one scale for all tokens of an append: a large token ruins the others": _appender(
            lambda cache, new: _spread(new, cache.bits, (2, 3))
        ),
        "one scale for all heads of a token: each head has its own": _appender(
            lambda cache, new: _spread(new, cache.bits, (1, 3))
        ),
        "one scale for everything that is appended": _appender(
            lambda cache, new: _spread(new, cache.bits, None)
        ),
        "one scale a channel, over the tokens: here it is one a head and token": _with(
            _append_channelwise
        ),
        "what was stored is rounded again at every append: its error grows and its scale moves": (
            _with(_append_requantizing)
        ),
        "what was stored is restored and rounded again, token by token: it stays as it is": _with(
            _append_rounding_again
        ),
        "right numbers, but a floating-point copy is kept: then nothing is saved": _with(
            _append_with_copies
        ),
        "the new tokens come back exact, not as they were stored": _appender(result=_exact_new),
        "codes are returned: attention needs numbers, so dequantize": _appender(
            result=lambda cache, layer, k, v: (
                cache.key_codes[layer].astype(np.float32),
                cache.value_codes[layer].astype(np.float32),
            )
        ),
        "only the new tokens are returned, not all that the layer holds": _appender(
            result=lambda cache, layer, k, v: tuple(
                array[:, :, -k.shape[2] :] for array in _restored(cache, layer)
            )
        ),
        "keys and values are swapped": _appender(swap=True),
        "always 8 bits: self.bits is ignored": _appender(
            lambda cache, new: quantize_absmax(new, 8, axis=-1)
        ),
        "everything is stored in layer 0: each layer has its own keys and values": _with(
            lambda self, layer, k, v: _appender().append(self, 0, k, v)
        ),
        "the keys are stored as values too": _with(
            lambda self, layer, k, v: _appender().append(self, layer, k, k)
        ),
    },
    right={
        "token by token": _with(_append_by_token),
        "absmax written out": _with(_append_by_head),
    },
)
