"""Everything that one setting says, in numbers: each is computed by inferlab."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from inferlab.cache_sizes import cache_bytes, grow_and_cap_bytes
from inferlab.capacity import (
    Deployment,
    cache_room_bytes,
    compute_bound_from,
    max_context,
    pass_seconds,
    sequences_that_fit,
    weights_read,
)
from inferlab.planner import speculation_gain
from inferlab.roofline import attainable_flops_per_s, forward_flops, ridge_point
from labkit.explorer.setting import MOST_TOKENS, Setting

BATCHES = tuple(sorted({round(2 ** (i / 4)) for i in range(41)}))  # 1 … 1,024


@dataclass(frozen=True)
class Pass:
    """One pass of the model: what it reads and computes, and the least seconds of both."""

    read_bytes: float
    flops: float
    reading_s: float
    computing_s: float

    @property
    def seconds(self) -> float:
        return max(self.reading_s, self.computing_s)

    @property
    def intensity(self) -> float:
        return self.flops / self.read_bytes

    @property
    def bound(self) -> str:
        """ "memory" or "compute", whichever takes longer."""
        return "compute" if self.computing_s >= self.reading_s else "memory"


@dataclass(frozen=True)
class State:
    """A setting and what follows from it.

    grow_bytes: what each further token adds to a sequence's cache; cap_bytes: what its full windows
    hold. fits_sequences: how many sequences of this context fit; longest_context: how long this
    many may be; compute_from: the batch from which a decode step is bound by computing, or None.
    gain: how many times as fast tokens come with speculation (1.0 without).
    """

    setting: Setting
    deployment: Deployment
    weight_bytes: float
    grow_bytes: float
    cap_bytes: float
    sequence_bytes: float
    cache_bytes: float
    room_bytes: float
    fits_sequences: int
    longest_context: int
    compute_from: int | None
    ridge: float
    decode: Pass
    prefill: Pass
    gain: float

    @property
    def memory_bytes(self) -> float:
        return self.deployment.memory_bytes

    @property
    def headroom_bytes(self) -> float:
        return self.memory_bytes * self.deployment.headroom

    @property
    def needed_bytes(self) -> float:
        """Weights, cache, and what is to stay free."""
        return self.weight_bytes + self.cache_bytes + self.headroom_bytes

    @property
    def left_bytes(self) -> float:
        """What stays besides; negative by what is missing."""
        return self.memory_bytes - self.needed_bytes

    @property
    def fits(self) -> bool:
        return self.left_bytes >= 0

    @property
    def user_per_s(self) -> float:
        """Tokens a second that each user sees, at best."""
        return self.gain / self.decode.seconds

    @property
    def all_per_s(self) -> float:
        """Tokens a second of the whole batch, at best."""
        return self.setting.n_sequences * self.user_per_s


def one_pass(d: Deployment, n_new: int, n_cached: int, n_sequences: int = 1) -> Pass:
    """What n_sequences sequences, n_new tokens each on top of n_cached, read and compute."""
    read = weights_read(d.config, n_sequences * n_new) * d.bytes_per_weight
    read += cache_bytes(d.config, n_cached, n_sequences, d.bytes_per_number)
    flops = n_sequences * forward_flops(d.config, n_new, n_cached)
    return Pass(read, flops, *pass_seconds(d, n_new, n_cached, n_sequences))


def _gain(setting: Setting, d: Deployment, n_sequences: int) -> float:
    s = setting
    if s.gamma == 0:
        return 1.0
    return speculation_gain(d, s.n_tokens, n_sequences, s.acceptance, s.gamma, s.draft_cost)


@lru_cache(maxsize=64)
def compute(setting: Setting) -> State:
    """All numbers of a setting."""
    d, s = setting.deployment(), setting
    grow, cap = grow_and_cap_bytes(d.config, d.bytes_per_number)
    return State(
        setting=setting,
        deployment=d,
        weight_bytes=d.config.n_params * d.bytes_per_weight,
        grow_bytes=grow,
        cap_bytes=cap,
        sequence_bytes=cache_bytes(d.config, s.n_tokens, 1, d.bytes_per_number),
        cache_bytes=cache_bytes(d.config, s.n_tokens, s.n_sequences, d.bytes_per_number),
        room_bytes=cache_room_bytes(d),
        fits_sequences=sequences_that_fit(d, s.n_tokens, page_size=1),
        longest_context=max_context(d, s.n_sequences, MOST_TOKENS),
        compute_from=compute_bound_from(d, s.n_tokens),
        ridge=ridge_point(s.record, s.precision),
        decode=one_pass(d, 1, s.n_tokens, s.n_sequences),
        prefill=one_pass(d, s.n_tokens, 0),
        gain=_gain(setting, d, s.n_sequences),
    )


@dataclass(frozen=True)
class Curves:
    """Over batches: tokens a second of one user and of all, with and without speculation."""

    batches: Sequence[int]
    user_per_s: Sequence[float]
    all_per_s: Sequence[float]
    plain_user_per_s: Sequence[float]
    intensities: Sequence[float]
    attained: Sequence[float]


@lru_cache(maxsize=64)
def curves(setting: Setting) -> Curves:
    """The same setting at every batch of BATCHES, and at its own."""
    d = setting.deployment()
    batches = sorted({*BATCHES, setting.n_sequences})
    steps = [one_pass(d, 1, setting.n_tokens, n) for n in batches]
    gains = [_gain(setting, d, n) for n in batches]
    users = [gain / step.seconds for gain, step in zip(gains, steps, strict=True)]
    return Curves(
        batches=batches,
        user_per_s=users,
        all_per_s=[n * user for n, user in zip(batches, users, strict=True)],
        plain_user_per_s=[1 / step.seconds for step in steps],
        intensities=[step.intensity for step in steps],
        attained=[roof(d, step.intensity) for step in steps],
    )


def roof(d: Deployment, intensity: float) -> float:
    """FLOP/s that work of this intensity reaches on this device, at best."""
    return attainable_flops_per_s(intensity, d.bandwidth_bytes_per_s, d.peak_flops_per_s)
