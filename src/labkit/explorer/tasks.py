"""Four things to try: predict, lodge, and only then turn the control and see.

A prediction is kept like those of the lessons (labkit.predictions): the first one counts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from labkit.explorer.setting import Setting
from labkit.explorer.state import State, compute
from labkit.predictions import Answer, Prediction


@dataclass(frozen=True)
class Task:
    """A question about the explorer.

    start: where the controls stand before; moves: what to turn once a prediction is lodged, each
    under the words of its button.
    """

    id: str
    title: str
    story: str
    start: Setting
    predictions: tuple[Prediction, ...]
    moves: tuple[tuple[str, Setting], ...]
    lessons: tuple[str, ...]


EIGHT_B = Setting()
SEVENTY_B = Setting(model="70b-style", n_sequences=8)
ONE_USER = Setting(n_sequences=1)
SMALL = Setting(model="small-mha")
_MHA = replace(EIGHT_B, attention="mha")
_INT4 = replace(SEVENTY_B, weights="int4")
_INT8_BOTH = replace(SEVENTY_B, weights="int8", cache="fp8")
_INT4_BOTH = replace(_INT4, cache="fp8")
_64 = replace(ONE_USER, n_sequences=64)


def _is_enough() -> Answer:
    """Which of the steps is the first after which the 70B model fits."""
    steps = zip(_FIT_CHOICES, (_INT8_BOTH, _INT4, _INT4_BOTH), strict=False)
    return next((text for text, setting in steps if compute(setting).fits), _FIT_CHOICES[-1])


_FIT_CHOICES = (
    "INT8 weights and an 8-bit cache are enough",
    "it takes INT4 weights; the cache may stay at 16 bit",
    "it takes INT4 weights and an 8-bit cache",
    "not even both are enough",
)


def _rises_and_falls() -> Answer:
    one, many = compute(ONE_USER), compute(_64)
    all_rises, user_falls = many.all_per_s > one.all_per_s, many.user_per_s < one.user_per_s
    return _RISE_CHOICES[0 if all_rises and user_falls else 1 if all_rises else 2]


_RISE_CHOICES = (
    "all together get more tokens a second, each user fewer",
    "both numbers rise",
    "each user gets more, all together fewer",
)


def _larger_cache() -> Answer:
    small, large = compute(SMALL), compute(EIGHT_B)
    return _CACHE_CHOICES[0 if small.grow_bytes > large.grow_bytes else 1]


_CACHE_CHOICES = (
    "the small one: every one of its query heads keeps a key and a value",
    "the 8B-style one: it has several times the weights",
    "neither: they keep the same",
)


def _n_bytes(of: Callable[[State], float], setting: Setting) -> Callable[[], Answer]:
    return lambda: float(of(compute(setting)))


TASKS = (
    Task(
        id="mha",
        title="MHA in place of GQA",
        story="The 8B-style model shares 8 KV heads among 32 query heads. 16 users with 8,192 "
        "tokens each fit well beside the weights on 80 GB.",
        start=EIGHT_B,
        predictions=(
            Prediction(
                id="ex_mha_cache",
                question="Switch the attention to **MHA**, one KV head for every query head. How "
                "large does the KV cache of the 16 users become?",
                unit="GB",
                answer=_n_bytes(lambda state: state.cache_bytes, _MHA),
                because="32 KV heads in place of 8: four times 17.18 GB. The weights grow too, by "
                "the wider key and value projections, and the whole no longer fits.",
            ),
        ),
        moves=(("switch to MHA", _MHA), ("back to GQA", EIGHT_B)),
        lessons=("04", "12"),
    ),
    Task(
        id="int4",
        title="70B on one device",
        story="The 70B-style model on a single device of 80 GB, with 8 users of 8,192 tokens. At "
        "16 bit the weights alone take more than 140 GB.",
        start=SEVENTY_B,
        predictions=(
            Prediction(
                id="ex_70b_fits",
                question="What is the mildest step after which weights **and** cache fit on the "
                "80 GB?",
                choices=_FIT_CHOICES,
                answer=_is_enough,
                because="INT4 with a scale for every 128 weights takes 36.4 GB, and 21.5 GB of "
                "cache lie beside it. INT8 with an 8-bit cache misses by a hair: 70.6 and "
                "10.7 GB. An 8-bit cache on top of INT4 buys users, not the fit.",
            ),
        ),
        moves=(
            ("INT8 weights, 8-bit cache", _INT8_BOTH),
            ("INT4 weights", _INT4),
            ("INT4 weights, 8-bit cache", _INT4_BOTH),
        ),
        lessons=("07", "12"),
    ),
    Task(
        id="batch",
        title="1 user, then 64",
        story="One user of the 8B-style model, with 8,192 tokens of context. Raise the batch to "
        "64, the context stays.",
        start=ONE_USER,
        predictions=(
            Prediction(
                id="ex_batch_speeds",
                question="Which number rises, and which falls?",
                choices=_RISE_CHOICES,
                answer=_rises_and_falls,
                because="A step reads the weights once for everybody, so all together gain; but it "
                "also reads every user's cache, so each step takes longer. A batch never makes "
                "one user faster.",
            ),
            Prediction(
                id="ex_batch_ends",
                question="And how many such users fit into the memory?",
                unit="seq",
                answer=_n_bytes(lambda state: state.fits_sequences, ONE_USER),
                because="80 GB less 16.06 GB of weights, over 1.074 GB a user, is 59.5: a half "
                "user does not fit. At 64 the memory has long ended.",
            ),
        ),
        moves=(
            ("batch of 64", _64),
            ("the last that fits", replace(_64, n_sequences=59)),
            ("one more", replace(_64, n_sequences=60)),
        ),
        lessons=("01", "12"),
    ),
    Task(
        id="small",
        title="Small model, large cache?",
        story="The small model has 24 layers and 32 heads of 64 numbers, each with keys and values "
        "of its own (MHA), and less than a quarter of the weights of the 8B-style one. That one "
        "has 32 layers and 8 KV heads of 128 numbers (GQA).",
        start=EIGHT_B,
        predictions=(
            Prediction(
                id="ex_small_cache",
                question="Which of the two keeps more bytes of cache for every token, and why?",
                choices=_CACHE_CHOICES,
                answer=_larger_cache,
                because="What counts is layers times KV heads times head size: 24 · 32 · 64 is "
                "1.5 times 32 · 8 · 128. The number of weights is not in that product.",
            ),
        ),
        moves=(("the small model", SMALL), ("the 8B-style model", EIGHT_B)),
        lessons=("04", "05"),
    ),
)


def task(task_id: str) -> Task:
    """The task with this id; ValueError names those that exist."""
    found = {task.id: task for task in TASKS}
    if task_id not in found:
        raise ValueError(f"no task {task_id!r}; there are: {', '.join(found)}")
    return found[task_id]
