"""The cache as a data structure: making room and storing (lesson 04)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from grader.checks.kv_cache.lesson import LESSON
from grader.judging.compare import raised
from grader.judging.exercise import Exercise, Inputs
from inferlab.kv_cache import KVCache

# ---- KVCache: the part under judgement is the learner's, the other methods are the reference's --


def with_method(**methods: Callable) -> type:
    """KVCache with some methods replaced: one wrong or right answer."""
    return type("KVCache", (KVCache,), methods)


def only(part: str, answer: type) -> type:
    """The reference with only `part` taken from the answer, so that each part is judged alone."""
    if not isinstance(answer, type):
        raise TypeError("KVCache must be a class with the methods reserve, append and truncate")
    return type(
        "KVCache",
        (answer,),
        {
            name: getattr(KVCache, name)
            for name in ("reserve", "append", "truncate")
            if name != part
        },
    )


def contents(cache: Any) -> dict[str, Any]:
    """What the cache holds, layer by layer, without the unused slots."""
    held = {"lengths": list(cache.lengths)}
    for layer, n in enumerate(cache.lengths):
        held[f"keys of layer {layer}"] = cache.keys[layer, :, :, :n].copy()
        held[f"values of layer {layer}"] = cache.values[layer, :, :, :n].copy()
    return held


def raised_by(action: Callable[[], Any]) -> Any:
    """What a call raised, as data; None when it raised nothing."""
    try:
        action()
    except NotImplementedError:
        raise
    except Exception as error:
        return raised(error)
    return None


def cache_inputs(rng: np.random.Generator) -> Inputs:
    sizes = {"n_layers": 3, "n_kv_heads": int(rng.integers(4, 6)), "n_sequences": 2}
    return {**sizes, "d_head": int(rng.integers(3, 6)), "seed": int(rng.integers(1000))}


def new_cache(
    kind: type, inputs: Inputs, capacity: int, dtype: type = np.float32
) -> tuple[Any, Callable[[int], np.ndarray]]:
    """An empty cache of these sizes, and a source of (B, n_kv_heads, T, d_head) rows for it."""
    rng = np.random.default_rng(inputs["seed"])
    sizes = (inputs["n_layers"], inputs["n_kv_heads"], inputs["d_head"], inputs["n_sequences"])
    cache = kind(*sizes, capacity=capacity, dtype=dtype)

    def rows(T: int) -> np.ndarray:
        shape = (inputs["n_sequences"], inputs["n_kv_heads"], T, inputs["d_head"])
        return rng.normal(size=shape).astype(np.float32)

    return cache, rows


def fill(cache: Any, rows: Callable, *lengths: int) -> None:
    for T in lengths:
        for layer in range(len(cache.lengths)):
            cache.append(layer, rows(T), rows(T))


def _drive_reserve(answer: type, inputs: Inputs) -> dict[str, Any]:
    cache, rows = new_cache(only("reserve", answer), inputs, capacity=3, dtype=np.float16)
    fill(cache, rows, 2)
    cache.append(0, rows(1), rows(1))  # layer 0 is ahead, as in the middle of a pass
    seen: dict[str, Any] = {}
    before = cache.keys
    cache.reserve(3)
    seen["capacity 3, 3 tokens fit: the array is kept"] = cache.keys is before
    for n in (4, 12, 40):  # between two doublings, exactly one, more than one
        cache.reserve(n)
        seen[f"capacity after reserve({n})"] = cache.capacity
        seen[f"values have room for, after reserve({n})"] = cache.values.shape[3]
        seen |= {f"after reserve({n}), {name}": held for name, held in contents(cache).items()}
    seen["number type"] = f"{cache.keys.dtype}, {cache.values.dtype}"
    return seen


def _regrow(capacity_for: Callable, held=None, names=("keys", "values"), dtype=None):
    """reserve with another capacity, copying held(self) tokens, of some arrays, in any dtype."""

    def reserve(self, n_tokens):
        capacity = capacity_for(self.capacity, n_tokens)
        if capacity == self.capacity:
            return
        for name in names:
            old = getattr(self, name)
            new = np.zeros((*old.shape[:3], capacity, old.shape[4]), dtype or old.dtype)
            n = held(self) if held else old.shape[3]
            new[:, :, :, :n] = old[:, :, :, :n]
            setattr(self, name, new)

    return reserve


def _reserve_copying(copied: str):
    """reserve that copies one of the two arrays only."""

    def reserve(self, n_tokens):
        if n_tokens <= self.capacity:
            return
        capacity = _doubled(self.capacity, n_tokens)
        for name in ("keys", "values"):
            old = getattr(self, name)
            new = np.zeros((*old.shape[:3], capacity, old.shape[4]), old.dtype)
            if name == copied:
                new[:, :, :, : old.shape[3]] = old
            setattr(self, name, new)

    return reserve


def _doubled(capacity: int, n_tokens: int) -> int:
    while capacity < n_tokens:
        capacity *= 2
    return capacity


def _reserve_concatenate(self, n_tokens):
    while self.keys.shape[3] < n_tokens:
        self.keys = np.concatenate([self.keys, np.zeros_like(self.keys)], axis=3)
        self.values = np.concatenate([self.values, np.zeros_like(self.values)], axis=3)


def _reserve_pad(self, n_tokens):
    if n_tokens > self.capacity:
        factor = 2 ** int(np.ceil(np.log2(n_tokens / self.capacity)))
        extra = ((0, 0), (0, 0), (0, 0), (0, self.capacity * (factor - 1)), (0, 0))
        self.keys, self.values = np.pad(self.keys, extra), np.pad(self.values, extra)


RESERVE = Exercise(
    id="KVCache.reserve",
    reference=KVCache,
    lesson=LESSON,
    points=2,
    minutes=10,
    difficulty=3,
    hints=(
        "Leave at once when n_tokens <= self.capacity. Else find the new capacity: a while loop "
        "that doubles.",
        "self.keys.shape is (n_layers, B, n_kv_heads, capacity, d_head): the fourth number is the "
        "one that changes. Keep the dtype of the old array.",
        "new = np.zeros((*old.shape[:3], capacity, old.shape[4]), old.dtype); "
        "new[:, :, :, : old.shape[3]] = old; do it for self.keys and for self.values.",
    ),
    draw=cache_inputs,
    n_draws=3,
    drive=_drive_reserve,
    wrong={
        "grows to exactly what is needed: then every append copies everything again": with_method(
            reserve=_regrow(lambda capacity, n: max(capacity, n))
        ),
        "doubles once only, which is not always enough": with_method(
            reserve=_regrow(lambda capacity, n: capacity * 2 if n > capacity else capacity)
        ),
        "the larger of twice the capacity and what is needed: double until they fit": with_method(
            reserve=_regrow(lambda capacity, n: max(2 * capacity, n) if n > capacity else capacity)
        ),
        "n_tokens on top of the capacity: it is what must fit in all": with_method(
            reserve=_regrow(
                lambda capacity, n: capacity if n <= capacity else _doubled(capacity, capacity + n)
            )
        ),
        "doubles once too often where the tokens just fit": with_method(
            reserve=_regrow(
                lambda capacity, n: _doubled(capacity, n + 1) if n > capacity else capacity
            )
        ),
        "the keys are copied over, the values are not": with_method(
            reserve=_reserve_copying("keys")
        ),
        "the values are copied over, the keys are not": with_method(
            reserve=_reserve_copying("values")
        ),
        "allocates anew although the tokens fit": with_method(
            reserve=_regrow(lambda capacity, n: _doubled(capacity * 2, n))
        ),
        "what was held is not copied over": with_method(
            reserve=_regrow(_doubled, held=lambda self: 0)
        ),
        "copies self.n_tokens tokens, as many as the shortest layer holds": with_method(
            reserve=_regrow(_doubled, held=lambda self: self.n_tokens)
        ),
        "the next power of two: double the capacity that there is": with_method(
            reserve=_regrow(lambda capacity, n: capacity if n <= capacity else _doubled(1, n))
        ),
        "grows the keys but not the values": with_method(
            reserve=_regrow(_doubled, names=("keys",))
        ),
        "the new arrays are float64: keep the dtype of the old ones": with_method(
            reserve=_regrow(_doubled, dtype=np.float64)
        ),
    },
    right={
        "joins zeros behind, again and again": with_method(reserve=_reserve_concatenate),
        "np.pad by a power of two": with_method(reserve=_reserve_pad),
    },
)


def _drive_append(answer: type, inputs: Inputs) -> dict[str, Any]:
    """A prefill of 3 tokens, a step of 1, chunks of 2 and 5; two steps of layer 0 before layer 1
    has its own; then a step of a wrong shape."""
    cache, rows = new_cache(only("append", answer), inputs, capacity=4)
    seen: dict[str, Any] = {}
    calls = [(0, 3), (1, 3), (2, 3), (0, 1), (0, 2), (1, 1), (2, 2), (1, 1), (2, 5)]
    for i, (layer, T) in enumerate(calls, start=1):
        pair = cache.append(layer, rows(T), rows(T))
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            pair = (pair, None)
        for name, array in zip(("keys", "values"), pair, strict=True):
            copy = array.copy() if isinstance(array, np.ndarray) else array
            seen[f"call {i}: {name} returned to layer {layer} after {T} new"] = copy
        seen[f"call {i}: capacity"] = cache.capacity
    good = rows(11)  # one token more than there is room for: who makes room too early is seen
    for what, bad in {
        "one KV head in place of all": good[:, :1],
        "one sequence in place of all": good[:1],
        "one number a head": good[..., :1],
    }.items():
        for side, pair in {"k": (bad, good), "v": (good, bad)}.items():
            refused = raised_by(partial(cache.append, 0, *pair))
            seen[f"{what} in {side} is refused with"] = refused and refused.kind
    return {**seen, **contents(cache), "capacity after the refusals": cache.capacity}


def _appender(start=None, store=None, result=None, check=True, length=None, room=None):
    """append with one step replaced."""

    def append(self, layer, k, v):
        if check:
            self.require_fit(k, v)
        begin = start(self, layer) if start else self.lengths[layer]
        end = begin + k.shape[2]
        self.reserve(room(begin) if room else end)
        stored_k, stored_v = store(k, v) if store else (k, v)
        self.keys[layer, :, :, begin:end] = stored_k
        self.values[layer, :, :, begin:end] = stored_v
        self.lengths[layer] = length(self, layer, end) if length else end
        if result:
            return result(self, layer, begin, end)
        return self.keys[layer, :, :, :end], self.values[layer, :, :, :end]

    return with_method(append=append)


def _append_sets_all(self, layer, k, v):
    both = KVCache.append(self, layer, k, v)
    self.lengths = [self.lengths[layer]] * len(self.lengths)
    return both


def _append_reserves_first(self, layer, k, v):
    self.reserve(self.lengths[layer] + k.shape[2])
    return KVCache.append(self, layer, k, v)


def _append_by_token(self, layer, k, v):
    self.require_fit(k, v)
    for t in range(k.shape[2]):
        n = self.lengths[layer]
        self.reserve(n + 1)
        self.keys[layer, :, :, n], self.values[layer, :, :, n] = k[:, :, t], v[:, :, t]
        self.lengths[layer] += 1
    n = self.lengths[layer]
    return self.keys[layer, :, :, :n].copy(), self.values[layer, :, :, :n].copy()


def _append_concatenate(self, layer, k, v):
    self.require_fit(k, v)
    n = self.lengths[layer]
    both = [
        np.concatenate([kept[layer, :, :, :n], new], axis=2)
        for kept, new in ((self.keys, k), (self.values, v))
    ]
    self.reserve(n + k.shape[2])
    self.keys[layer, :, :, : n + k.shape[2]], self.values[layer, :, :, : n + k.shape[2]] = both
    self.lengths[layer] = n + k.shape[2]
    return tuple(both)


APPEND = Exercise(
    id="KVCache.append",
    reference=KVCache,
    lesson=LESSON,
    points=3,
    minutes=15,
    difficulty=3,
    hints=(
        "The new tokens go to slots start … end-1 of this layer, where start is "
        "self.lengths[layer] and end = start + k.shape[2].",
        "After self.require_fit(k, v) and self.reserve(end), one assignment stores all sequences "
        "and heads at once: self.keys[layer, :, :, start:end] = k.",
        "Set self.lengths[layer] = end, and return self.keys[layer, :, :, :end] and the same part "
        "of self.values: everything this layer holds, nothing beyond.",
    ),
    draw=cache_inputs,
    n_draws=3,
    drive=_drive_append,
    wrong={
        "every append writes at slot 0, over what was stored before": _appender(
            start=lambda self, layer: 0
        ),
        "returns the whole buffer: unused slots would get attention too": _appender(
            result=lambda self, layer, begin, end: (self.keys[layer], self.values[layer])
        ),
        "returns the new tokens only, not all that the layer holds": _appender(
            result=lambda self, layer, begin, end: (
                self.keys[layer, :, :, begin:end],
                self.values[layer, :, :, begin:end],
            )
        ),
        "one length for all layers: the second layer lands behind the first": _appender(
            start=lambda self, layer: max(self.lengths)
        ),
        "starts at self.n_tokens, the shortest layer: use this layer's own length": _appender(
            start=lambda self, layer: self.n_tokens
        ),
        "no room was made: call self.reserve(end) before storing": _appender(room=lambda begin: 0),
        "room for one token only: a prompt or a chunk brings T of them": _appender(
            room=lambda begin: begin + 1
        ),
        "starts at the length of layer 0: each layer has its own": _appender(
            start=lambda self, layer: self.lengths[0]
        ),
        "returns self.n_tokens tokens, what the shortest layer holds": _appender(
            result=lambda self, layer, begin, end: (
                self.keys[layer, :, :, : self.n_tokens],
                self.values[layer, :, :, : self.n_tokens],
            )
        ),
        "the length grows by 1, however many tokens came": _appender(
            length=lambda self, layer, end: self.lengths[layer] + 1
        ),
        "the lengths of all layers are set: only this one has the new tokens": with_method(
            append=_append_sets_all
        ),
        "the length is never updated": _appender(length=lambda self, layer, end: 0),
        "the keys are stored as values too": _appender(store=lambda k, v: (k, k)),
        "all sequences get the first one's keys and values": _appender(
            store=lambda k, v: (k[:1], v[:1])
        ),
        "room is made before require_fit: an append that is refused must change nothing": (
            with_method(append=_append_reserves_first)
        ),
        "no call of require_fit: a single head is silently spread over all heads": _appender(
            check=False
        ),
        "returns nothing": _appender(result=lambda self, layer, begin, end: None),
    },
    right={
        "token by token, copies returned": with_method(append=_append_by_token),
        "joined arrays": with_method(append=_append_concatenate),
    },
)
