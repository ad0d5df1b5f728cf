"""Lesson 12: what to predict before any code, and the knowledge check after it."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from grader.checks.capacity.drawn import SEVENTY
from grader.checks.capacity.lesson import LESSON
from inferlab.capacity import Deployment, pass_seconds, users_within
from inferlab.checkpoints.read_config import read_config
from inferlab.data import ROOT
from inferlab.planner import lever_gain
from labkit.interview.questions import Question
from labkit.predictions import Prediction

N_USERS = 4  # in the load test of the lesson
N_CACHED = 80  # tokens that one of them has cached, about


def users_at_70_percent() -> float:
    """The flagship sizing: 40 ms, phases in turn, 70 % of the data sheet's rates."""
    return float(users_within(replace(SEVENTY, efficiency=0.7), 1024, 500, 0.040))


@lru_cache(maxsize=1)
def batch_ratio_bound() -> float:
    """Bound of a step of N_USERS over that of one user, on this machine, for the shipped model."""
    from labkit.measure.timing import matmul_peak, read_bandwidth

    config = read_config(ROOT / "data" / "tiny" / "target")
    here = Deployment(config, 1, 8e9, read_bandwidth(2**26), matmul_peak(768), 4, 4)  # float32
    many, one = (max(pass_seconds(here, 1, N_CACHED, n)) for n in (N_USERS, 1))
    return many / one


PREDICTIONS = (
    Prediction(
        id="ca_users",
        question="Llama-3-70B in bf16 on four H100, prompts of 1,024 tokens, answers of 500. "
        "Memory holds 295 users at once. How many of them get a token every **40 ms**, if "
        "prefills and decode steps take turns and 70 % of the data sheet's rates is reached?",
        unit="users",
        answer=users_at_70_percent,
        because="Every user who leaves is replaced, and the new one's prompt must be read: 171 "
        "users need 171 prefills every 499 steps, 17.5 ms a step beside the 22.4 ms of the step "
        "itself.",
    ),
    Prediction(
        id="ca_fp8",
        question="The same four devices serve 310 sequences of 1,500 tokens. The weights are "
        "stored in FP8: **half the bytes**. How many times as fast does a decode step become?",
        unit="x",
        answer=lambda: lever_gain(SEVENTY, replace(SEVENTY, bytes_per_weight=1), 1500, 310)[
            "speed"
        ],
        because="A step reads 139 GB of weights and 152 GB of keys and values. Only the first "
        "part is halved: 291 / 222 = 1.31.",
    ),
    Prediction(
        id="ca_gpus",
        question="Four sequences of 32,768 tokens of Llama-3-70B in bf16, on 80 GB devices with "
        "10 % headroom: 184 GB in all. How many devices must share the model?",
        choices=("2", "3", "4", "8"),
        answer=lambda: "4",
        because="184 GB over 72 GB is 2.6, so three could hold it. But three cannot share 64 query "
        "heads and 8 KV heads evenly. The next number that can is four.",
    ),
    Prediction(
        id="ca_batch",
        question=f"Your server runs the course's small model. Each token takes some time while one "
        f"user is there. How many times as long does it take while **{N_USERS}** are there?",
        unit="x",
        answer=batch_ratio_bound,
        because="The weights are read once for all of them, so the bound hardly moves. What is "
        "measured is more: in a model this small most of a step is Python and HTTP, and part of "
        "that is done for each user.",
    ),
)


def _draw_node(rng: np.random.Generator) -> dict[str, Any]:
    """A group of devices on which the weights fit."""
    n_devices = int(rng.choice([2, 4, 8]))
    params = float(rng.choice([13, 34, 70]))
    share = 2 * params / n_devices
    memory = next(m for m in (24, 48, 80, 141) if m > 1.5 * share or m == 141)
    overhead = int(rng.choice([3, 4, 5]))
    return {"n_devices": n_devices, "params": params, "memory": memory, "overhead": overhead}


def _room_gb(p: dict[str, Any]) -> float:
    return p["memory"] * 0.9 - p["overhead"] - 2 * p["params"] / p["n_devices"]


def _draw_users(rng: np.random.Generator) -> dict[str, Any]:
    """Where rounding matters, and each slip gives another number."""
    while True:
        p = {
            "room": int(rng.integers(120, 400)),
            "n_layers": int(rng.choice([48, 64, 80])),
            "n_kv_heads": 8,
            "n_heads": int(rng.choice([40, 64])),
            "n_tokens": int(rng.choice([4096, 8192])),
        }
        exact = p["room"] * 1e9 / _sequence(p)
        answers = [math.floor(exact), *(math.floor(v) for v in _user_slips(p, exact))]
        if 0.55 < exact % 1 < 0.95 and exact > 40 and len(set(answers)) == len(answers):
            return p


def _sequence(p: dict[str, Any]) -> int:
    return 2 * p["n_layers"] * p["n_kv_heads"] * 128 * 2 * p["n_tokens"]


def _user_slips(p: dict[str, Any], exact: float) -> tuple[float, ...]:
    kb = round(_sequence(p) / p["n_tokens"] / 1024) * 1e3
    short = p["room"] * 1e9 / (kb * p["n_tokens"] // 1024 * 1000)
    return (short, exact * p["n_kv_heads"] / p["n_heads"], 2 * exact, exact + 1)


def _users_of(p: dict[str, Any], which: int) -> float:
    exact = p["room"] * 1e9 / _sequence(p)
    return float(math.floor((exact, *_user_slips(p, exact))[which]))


def _draw_gpus(rng: np.random.Generator) -> dict[str, Any]:
    """Weights fit on fewer than are needed, and what is needed cannot share the heads."""
    while True:
        p = {"weights": int(rng.integers(90, 250)), "cache": int(rng.integers(30, 140))}
        few, fair = math.ceil(p["weights"] / 80), math.ceil((p["weights"] + p["cache"]) / 80)
        usable = _usable(p)
        clear = p["weights"] % 80 and (p["weights"] + p["cache"]) % 80 > 3
        if few < fair < usable and clear:
            return p


def _usable(p: dict[str, Any]) -> int:
    fair = math.ceil((p["weights"] + p["cache"]) / 80)
    return next(n for n in (1, 2, 4, 8, 16) if n >= fair)


def _speed(p: dict[str, Any]) -> float:
    return (p["weights"] + p["cache"]) / (p["weights"] / 2 + p["cache"])


def _steady_ms(p: dict[str, Any]) -> float:
    return p["step"] + p["users"] / (p["n_output"] - 1) * p["prefill"]


def _cost(p: dict[str, Any]) -> float:
    return p["n_devices"] * p["usd"] / (p["users"] / p["tpot"] * 1e3 * 3600) * 1e6


QUESTIONS = (
    Question(
        id="ca_q_room",
        lesson=LESSON,
        points=1,
        draw=_draw_node,
        text=lambda p: (
            f"A model of {p['params']:g} billion weights in bf16 is shared by {p['n_devices']} "
            f"devices of {p['memory']} GB. On each, 10 % of the memory stays free and "
            f"{p['overhead']} GB go to activations. How much is left on **one** device for keys "
            "and values? Write GB."
        ),
        answer=lambda p: _room_gb(p) * 1e9,
        unit="GB",
        slips={
            "headroom taken from what is left; it is a share of the whole memory": lambda p: (
                (p["memory"] - p["overhead"] - 2 * p["params"] / p["n_devices"]) * 0.9e9
            ),
            "the overhead is shared out: each device has its own": lambda p: (
                (_room_gb(p) + p["overhead"] * (1 - 1 / p["n_devices"])) * 1e9
            ),
            "all devices together: one is asked": lambda p: _room_gb(p) * p["n_devices"] * 1e9,
        },
        why=lambda p: (
            f"{p['memory']} · 0.9 − {p['overhead']} − 2 · {p['params']:g} / {p['n_devices']} = "
            f"{_room_gb(p):.2f} GB."
        ),
    ),
    Question(
        id="ca_q_users",
        lesson=LESSON,
        points=1,
        draw=_draw_users,
        text=lambda p: (
            f"{p['room']} GB (10⁹ B each) are left for keys and values. The model has "
            f"{p['n_layers']} layers, {p['n_heads']} query heads and {p['n_kv_heads']} KV heads of "
            f"128 numbers; the cache is bf16. How many sequences of {p['n_tokens']:,} tokens fit?"
        ),
        answer=lambda p: _users_of(p, 0),
        tolerance=1e-6,
        slips={
            "kB times thousands: a KiB is 1,024 bytes, and 8k tokens are 8,192": lambda p: (
                _users_of(p, 1)
            ),
            "n_heads in place of n_kv_heads: only KV heads are cached": lambda p: _users_of(p, 2),
            "the factor 2 is missing: keys and values are both kept": lambda p: _users_of(p, 3),
            "rounded up: what fits by half does not fit": lambda p: _users_of(p, 4),
        },
        why=lambda p: (
            f"2 · {p['n_layers']} · {p['n_kv_heads']} · 128 · 2 · {p['n_tokens']:,} = "
            f"{_sequence(p):,} B a sequence; {p['room']} · 10⁹ over that, rounded down: "
            f"{_users_of(p, 0):.0f}."
        ),
    ),
    Question(
        id="ca_q_gpus",
        lesson=LESSON,
        points=1,
        draw=_draw_gpus,
        text=lambda p: (
            f"The weights take {p['weights']} GB, the cache {p['cache']} GB. The model has 64 "
            "query heads and 8 KV heads, a device 80 GB; nothing is kept free. How many devices "
            "does tensor parallelism need?"
        ),
        answer=lambda p: float(_usable(p)),
        tolerance=1e-6,
        slips={
            "from the weights alone: the cache must fit too": lambda p: float(
                math.ceil(p["weights"] / 80)
            ),
            "that many could hold it, but cannot share 64 heads evenly": lambda p: float(
                math.ceil((p["weights"] + p["cache"]) / 80)
            ),
        },
        why=lambda p: (
            f"({p['weights']} + {p['cache']}) / 80 = {(p['weights'] + p['cache']) / 80:.2f}; the "
            f"next number that divides 64 is {_usable(p)}."
        ),
    ),
    Question(
        id="ca_q_split",
        lesson=LESSON,
        points=1,
        draw=lambda rng: {
            "cache": int(rng.integers(20, 200)),
            "n_kv_heads": int(rng.choice([2, 4, 8])),
            "times": int(rng.choice([2, 4])),
        },
        text=lambda p: (
            f"The caches of a model with {p['n_kv_heads']} KV heads take {p['cache']} GB in all. "
            f"{p['n_kv_heads'] * p['times']} devices share the model by tensor parallelism. How "
            "many GB of cache does each hold?"
        ),
        answer=lambda p: p["cache"] / p["n_kv_heads"] * 1e9,
        unit="GB",
        slips={
            "divided by all devices: a KV head cannot be cut, several hold the same": lambda p: (
                p["cache"] / p["n_kv_heads"] / p["times"] * 1e9
            ),
            "the whole cache on each: KV heads are shared out first": lambda p: p["cache"] * 1e9,
        },
        why=lambda p: (
            f"Each device holds one of {p['n_kv_heads']} KV heads: {p['cache']} / "
            f"{p['n_kv_heads']} = {p['cache'] / p['n_kv_heads']:g} GB."
        ),
    ),
    Question(
        id="ca_q_speed",
        lesson=LESSON,
        points=1,
        draw=lambda rng: {
            "weights": int(rng.choice([16, 28, 70, 140])),
            "cache": int(rng.integers(10, 160)),
        },
        text=lambda p: (
            f"A decode step reads {p['weights']} GB of bf16 weights and {p['cache']} GB of cache, "
            "and reading bounds it. The weights are stored in FP8 instead. How many times as fast "
            "can the step become?"
        ),
        answer=_speed,
        unit="x",
        slips={
            "half the weights is not half the step: the cache is read as before": lambda p: 2.0,
            "the gain is bytes before over bytes after": lambda p: 1 / _speed(p),
        },
        why=lambda p: (
            f"({p['weights']} + {p['cache']}) / ({p['weights'] / 2:g} + {p['cache']}) = "
            f"{_speed(p):.3f}."
        ),
    ),
    Question(
        id="ca_q_int4",
        lesson=LESSON,
        points=1,
        draw=lambda rng: {
            "params": int(rng.choice([7, 8, 13, 34, 70])),
            "group": int(rng.choice([32, 64, 128])),
        },
        text=lambda p: (
            f"{p['params']} billion weights in 4 bits, with one 16-bit scale for every "
            f"{p['group']} of them. How many GB?"
        ),
        answer=lambda p: p["params"] * 1e9 * (4 + 16 / p["group"]) / 8,
        unit="GB",
        slips={
            "half a byte each: the scales are forgotten": lambda p: p["params"] * 0.5e9,
            "the scale's 16 bits taken for 16 bytes": lambda p: (
                p["params"] * 1e9 * (0.5 + 16 / p["group"])
            ),
        },
        why=lambda p: (
            f"4 + 16 / {p['group']} = {4 + 16 / p['group']:g} bits a weight: "
            f"{p['params'] * (4 + 16 / p['group']) / 8:.4g} GB."
        ),
    ),
    Question(
        id="ca_q_steady",
        lesson=LESSON,
        points=1,
        draw=lambda rng: {
            "step": int(rng.integers(12, 30)),
            "prefill": int(rng.integers(25, 90)),
            "users": int(rng.integers(30, 90)),
            "n_output": int(rng.choice([201, 401, 601])),
        },
        text=lambda p: (
            f"{p['users']} users, answers of {p['n_output']} tokens. A decode step of all takes "
            f"{p['step']} ms, the prefill of one prompt {p['prefill']} ms; they take turns. Who "
            "leaves is replaced at once. How many ms pass from one token to the next, on average?"
        ),
        answer=lambda p: _steady_ms(p) / 1e3,
        unit="ms",
        slips={
            "the prefills are forgotten: whoever leaves is replaced by a new prompt": lambda p: (
                p["step"] / 1e3
            ),
            "one prefill for every step": lambda p: (p["step"] + p["prefill"]) / 1e3,
            "one user's prefill: all of them are replaced": lambda p: (
                (p["step"] + p["prefill"] / (p["n_output"] - 1)) / 1e3
            ),
        },
        why=lambda p: (
            f"In {p['n_output'] - 1} steps there are {p['users']} prefills: {p['step']} + "
            f"{p['users']} · {p['prefill']} / {p['n_output'] - 1} = {_steady_ms(p):.2f} ms."
        ),
    ),
    Question(
        id="ca_q_cost",
        lesson=LESSON,
        points=1,
        draw=lambda rng: {
            "n_devices": int(rng.choice([2, 4, 8])),
            "usd": float(rng.choice([1.9, 2.5, 3.2])),
            "users": int(rng.integers(40, 300)),
            "tpot": int(rng.integers(15, 45)),
        },
        text=lambda p: (
            f"{p['n_devices']} devices cost {p['usd']:.2f} dollars an hour **each** and serve "
            f"{p['users']} users, all the time, a token every {p['tpot']} ms to each. What do a "
            "million output tokens cost? (in dollars, a plain number)"
        ),
        answer=_cost,
        slips={
            "one device's price: all are rented": lambda p: _cost(p) / p["n_devices"],
            "one user's tokens: all get theirs": lambda p: _cost(p) * p["users"],
            "tokens of a second, dollars of an hour": lambda p: _cost(p) * 3600,
        },
        why=lambda p: (
            f"{p['users']} / {p['tpot'] / 1e3:g} s · 3,600 = "
            f"{p['users'] / p['tpot'] * 3.6e6:,.0f} tokens an hour for "
            f"{p['n_devices'] * p['usd']:.2f} dollars: {_cost(p):.4g} a million."
        ),
    ),
    Question(
        id="ca_q_moe",
        lesson=LESSON,
        points=1,
        draw=lambda rng: {
            "shared": int(rng.integers(2, 7)),
            "expert": int(rng.choice([2, 3, 5])),
            "n_experts": int(rng.choice([8, 16])),
            "taken": 2,
        },
        text=lambda p: (
            f"A mixture of experts has {p['shared']} billion shared weights and {p['n_experts']} "
            f"experts of {p['expert']} billion; a token takes {p['taken']}. How many GB of bf16 "
            "weights must be resident?"
        ),
        answer=lambda p: 2e9 * (p["shared"] + p["n_experts"] * p["expert"]),
        unit="GB",
        slips={
            "only what a token takes: the next token takes other experts": lambda p: (
                2e9 * (p["shared"] + p["taken"] * p["expert"])
            ),
            "one byte a weight: bf16 takes two": lambda p: (
                1e9 * (p["shared"] + p["n_experts"] * p["expert"])
            ),
        },
        why=lambda p: (
            f"2 · ({p['shared']} + {p['n_experts']} · {p['expert']}) = "
            f"{2 * (p['shared'] + p['n_experts'] * p['expert'])} GB: every expert is resident."
        ),
    ),
    Question(
        id="ca_q_levers",
        lesson=LESSON,
        points=1,
        text=lambda p: (
            "A server is full: memory is used up, TPOT is well inside its limit. Which change lets "
            "in the most users?"
        ),
        choices=(
            "a cache of FP8 numbers, where it was bf16",
            "speculative decoding by a small draft model",
            "devices of the same memory, twice as fast",
            "a larger batch limit in the engine's flags",
        ),
        notes={
            "speculative decoding by a small draft model": "it makes tokens come sooner, and the "
            "draft model takes memory of its own",
            "devices of the same memory, twice as fast": "speed is not what they lack",
            "a larger batch limit in the engine's flags": "there is no page left for one more",
        },
        why=lambda p: "Half the bytes a token: twice the sequences in the same room.",
    ),
    Question(
        id="ca_q_bound",
        lesson=LESSON,
        points=1,
        text=lambda p: (
            "You measure 31 ms a token where your bound says 20 ms. What does that tell you?"
        ),
        choices=(
            "65 % of what the device could do at best",
            "the bound is wrong: it must be above 31 ms",
            "the batch should be made larger at once",
            "the model computes more than was assumed",
        ),
        notes={
            "the bound is wrong: it must be above 31 ms": "a lower bound on time lies below what "
            "is measured; one above it would be wrong",
        },
        why=lambda p: (
            "20 / 31 = 65 %. The bound has no launches, no communication and no Python in it; "
            "plan with the share that you measured."
        ),
    ),
)
