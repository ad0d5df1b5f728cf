"""Lesson 12: what a token costs, what to rent."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

import numpy as np

from grader.checks.capacity.drawn import EIGHT, SEVENTY, SUMS, draw_deployment
from grader.checks.capacity.lesson import LESSON
from grader.judging.exercise import Exercise, Inputs, given
from inferlab.planner import choose_offer, cost_per_million_tokens

# ---- cost_per_million_tokens -------------------------------------------------------------------


def _draw_cost(rng: np.random.Generator) -> Inputs:
    return {
        "deployment": draw_deployment(rng),
        "n_sequences": int(rng.integers(3, 300)),
        "tpot_s": float(rng.uniform(0.008, 0.09)),
        "usd_per_device_hour": float(rng.uniform(0.5, 9)),
        "busy_share": float(rng.uniform(0.2, 0.9)),
    }


def _cost(change: Callable[[Any, int, float, float, float], float]) -> Callable:
    def cost(deployment, n_sequences, tpot_s, usd_per_device_hour, busy_share=1.0):
        return change(deployment, n_sequences, tpot_s, usd_per_device_hour, busy_share)

    return cost


def _usd(d: Any, s: int, t: float, usd: float, busy: float) -> float:
    return d.n_devices * usd / (s / t * 3600 * busy) * 1e6


COST = Exercise(
    id="cost_per_million_tokens",
    reference=cost_per_million_tokens,
    lesson=LESSON,
    points=1,
    minutes=5,
    difficulty=1,
    comparison=SUMS,
    hints=(
        "Dollars of one hour over tokens of one hour, times a million.",
        "Every tpot_s seconds each of n_sequences users gets a token: n_sequences / tpot_s tokens "
        "a second, 3600 times as many an hour, less where it is not busy.",
        "n_devices * usd_per_device_hour / (n_sequences / tpot_s * 3600 * busy_share) * 1e6",
    ),
    cases=(
        given(
            "2,000 tokens a second for 2.50 an hour",
            deployment=EIGHT,
            n_sequences=50,
            tpot_s=0.025,
            usd_per_device_hour=2.5,
        ),
        given(
            "4 devices, busy a quarter of the time",
            deployment=SEVENTY,
            n_sequences=171,
            tpot_s=0.04,
            usd_per_device_hour=2.5,
            busy_share=0.25,
        ),
    ),
    draw=_draw_cost,
    wrong={
        "n_devices times too little: all are rented, and n_sequences is of all together": _cost(
            lambda d, s, t, usd, busy: _usd(d, s, t, usd, busy) / d.n_devices
        ),
        "one user's tokens: all n_sequences get theirs": _cost(
            lambda d, s, t, usd, busy: _usd(d, 1, t, usd, busy)
        ),
        "busy_share is ignored: idle hours are paid too": _cost(
            lambda d, s, t, usd, busy: _usd(d, s, t, usd, 1.0)
        ),
        "idle hours make tokens cheaper: they make them dearer": _cost(
            lambda d, s, t, usd, busy: _usd(d, s, t, usd, 1.0) * busy
        ),
        "3600 forgotten: the price is per hour, the tokens per second": _cost(
            lambda d, s, t, usd, busy: _usd(d, s, t, usd, busy) * 3600
        ),
        "minutes taken for hours": _cost(lambda d, s, t, usd, busy: _usd(d, s, t, usd, busy) * 60),
        "the price of one token": _cost(lambda d, s, t, usd, busy: _usd(d, s, t, usd, busy) / 1e6),
        "of a thousand tokens, or tpot_s in milliseconds": _cost(
            lambda d, s, t, usd, busy: _usd(d, s, t, usd, busy) / 1e3
        ),
        "upside down: dollars over tokens is asked": _cost(
            lambda d, s, t, usd, busy: 1 / _usd(d, s, t, usd, busy)
        ),
        "tpot_s taken for tokens a second": _cost(
            lambda d, s, t, usd, busy: _usd(d, s, 1 / t, usd, busy)
        ),
    },
    right={
        "the time of a million tokens": _cost(
            lambda d, s, t, usd, busy: 1e6 / s * t / busy / 3600 * d.n_devices * usd
        ),
        "in fractions": _cost(
            lambda d, s, t, usd, busy: float(
                Fraction(d.n_devices)
                * Fraction(usd)
                * Fraction(t)
                * 10**6
                / (3600 * s * Fraction(busy))
            )
        ),
    },
)

# ---- choose_offer ------------------------------------------------------------------------------


def offer(name: str, users: int, usd: float, obstacle: str | None = None) -> dict[str, Any]:
    return {"name": name, "users": users, "usd_per_hour": float(usd), "obstacle": obstacle}


def _draw_offers(rng: np.random.Generator) -> Inputs:
    """Four offers, one of them impossible and cheap, one that serves nobody."""
    names = rng.permutation(["one", "two", "three", "four", "five"]).tolist()
    offers = [
        offer(name, int(rng.integers(20, 200)), int(rng.integers(4, 40)) / 2) for name in names[:3]
    ]
    offers.append(
        offer(names[3], int(rng.integers(300, 900)), 0.5, str(rng.choice(["ttft", "tpot"])))
    )
    offers.append(offer(names[4], 0, 0.25))
    return {
        "offers": [offers[int(i)] for i in rng.permutation(5)],
        "n_users": int(rng.integers(201, 700)),
    }


def _drive(answer: Callable, inputs: Inputs) -> Any:
    """The bill; or, refused, whether the text names each offer with its obstacle."""
    reasons = {o["name"]: o["obstacle"] or "users" for o in inputs["offers"]}
    try:
        return answer(inputs["offers"], inputs["n_users"])
    except ValueError as error:
        # what stands from an offer's name to the next name is said of that offer
        parts = re.split(f"({'|'.join(map(re.escape, reasons))})", str(error))
        said = list(zip(parts[1::2], parts[2::2], strict=True))
        named = [
            any(n == name and why in text for n, text in said) for name, why in reasons.items()
        ]
        return {"refused": True, "named": named}


def _choose(
    copies: Callable[[int, int], float] = lambda n, users: math.ceil(n / users),
    out: Callable[[Mapping[str, Any]], bool] = lambda o: o["obstacle"] is None and o["users"] > 0,
    key: Callable[[float, float], Any] = lambda usd, n: (usd, n),
    bill: Callable[[float, float], float] = lambda usd, n: usd * n,
    nothing: Callable[[Any], Any] | None = None,
) -> Callable:
    def choose(offers, n_users):
        found = []
        for o in offers:
            if out(o):
                n = copies(n_users, o["users"]) if o["users"] else 1
                found.append(
                    (key(o["usd_per_hour"] * n, n), o["name"], n, bill(o["usd_per_hour"], n))
                )
        if not found:
            if nothing is not None:
                return nothing(offers)
            raise ValueError("; ".join(f"{o['name']}: {o['obstacle'] or 'users'}" for o in offers))
        _, name, n, usd = min(found, key=lambda f: f[0])
        return {"name": name, "copies": n, "usd_per_hour": usd}

    return choose


def _refuse_shortly(offers: Any) -> Any:
    raise ValueError("nothing will do")


def _refuse_in_a_heap(offers: Any) -> Any:
    names = ", ".join(o["name"] for o in offers)
    raise ValueError(f"none of {names} will do: memory, ttft, tpot or users")


def _by_price_of_a_user(offers: Any, n_users: int) -> Any:
    able = [o for o in offers if o["obstacle"] is None and o["users"] > 0]
    best = min(able, key=lambda o: o["usd_per_hour"] / o["users"], default=None)
    return choose_offer([best] if best else offers, n_users)


AB = [offer("a", 60, 10), offer("b", 35, 7)]

CHOOSE = Exercise(
    id="choose_offer",
    reference=choose_offer,
    lesson=LESSON,
    points=2,
    minutes=9,
    difficulty=2,
    drive=_drive,
    comparison=SUMS,
    hints=(
        "First keep the offers that can serve anybody. For each: how many copies, and what do "
        "they cost together?",
        "math.ceil(n_users / users) copies. Compare pairs (dollars, copies); min takes the first "
        "of equals.",
        "bills.append((copies * offer['usd_per_hour'], copies, offer['name'])); the least by its "
        "first two; if there is none, raise ValueError with '; '.join of 'name: obstacle'",
    ),
    cases=(
        given(
            "two of a, or three of b", offers=[offer("a", 60, 10), offer("b", 35, 7)], n_users=100
        ),
        given(
            "the cheapest cannot do it",
            offers=[offer("small", 90, 1, "tpot"), offer("large", 90, 12)],
            n_users=90,
        ),
        given(
            "one user a copy",
            offers=[offer("single", 1, 2), offer("pair", 2, 9)],
            n_users=3,
        ),
        given(
            "equally dear: fewer copies",
            offers=[offer("many", 25, 5), offer("few", 50, 10)],
            n_users=100,
        ),
        given(
            "equal in both: the first listed",
            offers=[offer("zeta", 50, 10), offer("alpha", 50, 10)],
            n_users=100,
        ),
        given(
            "cheaper for each user, dearer for these",
            offers=[offer("wide", 1000, 40), offer("narrow", 30, 3)],
            n_users=100,
        ),
        given(
            "nothing will do: every reason is named",
            offers=[
                offer("laptop", 0, 0.1, "memory"),
                offer("card", 0, 1, "tpot"),
                offer("rack", 0, 90, "ttft"),
                offer("queue", 0, 5),
            ],
            n_users=10,
        ),
        given("one user", offers=AB, n_users=1),
    ),
    draw=_draw_offers,
    n_draws=40,
    wrong={
        "the cheapest copy: several may be needed": _choose(key=lambda usd, n: (usd / n, n)),
        "rounded down: the last users need a copy too": _choose(
            copies=lambda n, users: max(1, n // users)
        ),
        "parts of a copy: copies are whole": _choose(copies=lambda n, users: n / users),
        "one copy too many where they divide evenly": _choose(
            copies=lambda n, users: n // users + 1
        ),
        "obstacles are ignored: such an offer serves nobody within the limits": _choose(
            out=lambda o: o["users"] > 0
        ),
        "an offer for 0 users is taken: it serves nobody": _choose(
            out=lambda o: o["obstacle"] is None
        ),
        "the dearest": _choose(key=lambda usd, n: (-usd, n)),
        "the fewest copies, whatever they cost": _choose(key=lambda usd, n: (n, usd)),
        "of equally cheap ones the one with more copies": _choose(key=lambda usd, n: (usd, -n)),
        "the price of one copy: what they cost together is asked": _choose(bill=lambda usd, n: usd),
        "None where nothing will do: refuse, and say why": _choose(nothing=lambda offers: None),
        "the refusal does not name the offers and their obstacles": _choose(
            nothing=_refuse_shortly
        ),
        "the refusal does not say which obstacle is whose": _choose(nothing=_refuse_in_a_heap),
        "the cheapest by user: copies are whole": _by_price_of_a_user,
        "rounded to the nearest: half a copy is a whole one more": _choose(
            copies=lambda n, users: max(1, round(n / users))
        ),
        "only one copy of an offer may be bought": _choose(copies=lambda n, users: 1),
    },
    right={
        "sorted": _choose(),
        "dollars in cents": _choose(key=lambda usd, n: (round(100 * usd), n)),
        "copies counted up": _choose(
            copies=lambda n, users: next(k for k in range(1, 10**6) if k * users >= n)
        ),
    },
)
