"""One token of one sequence through FastModel: a decode step, arranged for speed.

Read transformer.py first: it says what is done. A step is bound by reading 4 bytes a weight, so the
aim is few calls, each of which reads memory as fast as it comes. Rows are made once for all steps,
views of the cache once a step: an index costs 0.2 µs, a ufunc of 576 numbers 1. The products with
the matrices may be shared out among processes: see team.py.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from threading import Lock
from time import perf_counter
from typing import Any

import numpy as np

from inferlab.config import ModelConfig
from inferlab.engines.fast_numpy.layer import FastLayer
from inferlab.engines.fast_numpy.team import Product, Team, TeamLost, one_blas_thread, shared_rows
from inferlab.kv_cache import KVCache

KEYS = 256  # keys that the query of a decode step is multiplied with at once


class FastStep:
    """Runs one token of one sequence, n_members processes together; one call at a time.

    A team adds up in another order than one process: the last digit of a logit may differ, and
    which steps are the team's depends on what else the machine does. See Turns.
    """

    def __init__(
        self, config: ModelConfig, layers: Sequence[FastLayer], head: np.ndarray, n_members: int
    ) -> None:
        c = self.config = config
        n_heads = c.n_heads + 2 * c.n_kv_heads
        sizes = [c.d_model, n_heads * c.d_head, c.n_heads * c.d_head, c.d_model]
        rows = shared_rows(*sizes, 2 * c.d_ff, c.d_ff, c.vocab_size)
        self.normed, qkv, mixed, self.added, gate_up, self.inner, self.logits = rows
        self.gate, self.up = gate_up[: c.d_ff], gate_up[c.d_ff :]
        heads = qkv.reshape(n_heads, c.d_head)
        n_turned = c.n_heads + c.n_kv_heads
        self.pairs = heads[:n_turned].view(np.complex64)  # (n_turned, d_head // 2)
        self.q = heads[: c.n_heads].reshape(c.n_kv_heads, -1, c.d_head)
        self.k, self.v = heads[c.n_heads : n_turned], heads[n_turned:]  # (n_kv_heads, d_head)
        self.mixed = mixed.reshape(self.q.shape)
        self.products = [
            product
            for layer in layers
            for product in (
                Product(self.normed, layer.w_qkv, qkv),
                Product(mixed, layer.w_o, self.added),
                Product(self.normed, layer.w_gate_up, gate_up),
                Product(self.inner, layer.w_down, self.added),
            )
        ] + [Product(self.normed, head, self.logits)]
        self.n_members, self._lock = n_members, Lock()
        self._team: Team | None = None
        self._turns = Turns()

    def __call__(
        self, row: np.ndarray, turn: np.ndarray, final_gain: np.ndarray, cache: KVCache
    ) -> np.ndarray:
        """Logits (vocab_size,) after one more token, for which the cache has room.

        row: its embedding, (d_model,); turn: RoPE's of its position, (d_head // 2,) complex
        """
        step = row, turn, final_gain, cache
        with self._lock:
            if self.n_members < 2:
                return self._run(self.products, *step)
            together, start = self._turns.together(), perf_counter()
            logits = (self._run_as_team if together else self._run_alone)(*step)
            self._turns.note(together, perf_counter() - start)
            return logits

    def _run_as_team(self, *step: Any) -> np.ndarray:
        try:
            if self._team is None or not self._team.close.alive:
                self._team = Team(self.products, self.n_members)
            with self._team.step() as products:
                return self._run(products, *step)
        except (TeamLost, OSError) as error:
            self.n_members = 1
            warnings.warn(f"decoding goes on in one process: {error}", stacklevel=4)
            return self._run(self.products, *step)

    def _run_alone(self, *step: Any) -> np.ndarray:
        with one_blas_thread():
            return self._run(self.products, *step)

    def _run(
        self,
        products: Sequence[Callable[[], object]],
        row: np.ndarray,
        turn: np.ndarray,
        final_gain: np.ndarray,
        cache: KVCache,
    ) -> np.ndarray:
        x, eps, normed = row.astype(np.float32), self.config.norm_eps, self.normed
        attend = self._attention(cache)
        multiply = iter(products)
        for i in range(self.config.n_layers):
            normed_row(x, eps, normed)
            next(multiply)()
            self.pairs *= turn
            attend(i)
            next(multiply)()
            x += self.added
            normed_row(x, eps, normed)
            next(multiply)()
            silu_times(self.gate, self.up, self.inner)
            next(multiply)()
            x += self.added
        cache.lengths = [cache.n_tokens + 1] * self.config.n_layers
        normed_row(x, eps, normed)
        normed *= final_gain
        next(multiply)()
        return self.logits.copy()

    def _attention(self, cache: KVCache) -> Callable[[int], None]:
        """Store the new key and value of a layer, and mix the values. Views are made here, once."""
        position, q, mixed = cache.n_tokens, self.q, self.mixed
        keys = cache.keys[:, 0, :, : position + 1]  # (n_layers, n_kv_heads, S, d_head)
        values = cache.values[:, 0, :, : position + 1]
        new_keys, new_values = keys[:, :, position], values[:, :, position]
        scores = np.empty((*q.shape[:2], position + 1), np.float32)  # (n_kv_heads, n_shared, S)

        def attend(i: int) -> None:
            new_keys[i], new_values[i] = self.k, self.v
            sums = exp_of_rows(scores_of_row(q, keys[i], scores))
            np.matmul(scores, values[i], out=mixed)
            np.divide(mixed, sums, out=mixed)

        return attend


class Turns:
    """Whose turn it is, the team's or one process's alone: whichever is faster just now.

    Members that wait busily for one another are lost on a machine that has no free cores for them.
    So the first step is done alone, to know what that takes, and after two steps of the team that
    took longer a number of steps are: 8, then twice as many each time, until the team is faster
    again. One slow step is nothing: after a prefill OpenBLAS's threads may still wait busily (see
    inferlab/__init__.py).
    """

    MOST_ALONE = 512

    def __init__(self) -> None:
        self._alone_s = math.inf
        self._left, self._next = 1, 8
        self._was_slow = False

    def together(self) -> bool:
        """Whether the next step is the team's."""
        return self._left == 0

    def note(self, together: bool, seconds: float) -> None:
        """What a step took."""
        if not together:
            self._alone_s = seconds
            self._left -= 1
        elif seconds < self._alone_s:
            self._next, self._was_slow = 8, False
        elif self._was_slow:
            self._left, self._next = self._next, min(2 * self._next, self.MOST_ALONE)
            self._was_slow = False
        else:
            self._was_slow = True


def scores_of_row(q: np.ndarray, keys: np.ndarray, out: np.ndarray) -> np.ndarray:
    """q @ keys.T into out: (n_kv_heads, n_shared, d_head) by (n_kv_heads, S, d_head).

    KEYS at a time: OpenBLAS has a kernel for small products, and without it 512 keys of SmolLM2
    take 58 µs, not 11.
    """
    for first in range(0, keys.shape[1], KEYS):
        block = slice(first, first + KEYS)
        np.matmul(q, keys[:, block].swapaxes(1, 2), out=out[:, :, block])
    return out


def exp_of_rows(scores: np.ndarray) -> np.ndarray:
    """Replace scores (..., S) by exp(score - largest of its row) -> the sums of the rows."""
    scores -= scores.max(axis=-1, keepdims=True)
    np.exp(scores, out=scores)
    return scores.sum(axis=-1, keepdims=True)


def silu_times(gate: np.ndarray, up: np.ndarray, out: np.ndarray) -> np.ndarray:
    """silu(gate) * up into out, without another array."""
    np.negative(gate, out=out)
    np.exp(out, out=out)
    out += 1
    np.divide(gate, out, out=out)
    out *= up
    return out


def normed_row(x: np.ndarray, eps: float, out: np.ndarray) -> np.ndarray:
    """RMSNorm without a gain of one row, (d_model,), into out: a dot product and a multiple."""
    return np.multiply(x, 1 / math.sqrt(float(np.dot(x, x)) / len(x) + eps), out=out)
