"""A question as it stands in data/interview/, turned into a Question; what is wrong is refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from labkit import units
from labkit.interview.formula import Formula, functions
from labkit.interview.misconceptions import Catalogue
from labkit.interview.questions import Params, Question

LEVELS = ("screen", "engineer", "senior", "design")
KINDS = ("numeric", "choice", "open")
TOLERANCE = 0.03  # an interview has no calculator
N_DRAWS = 500
_COMMON = {"id", "level", "kind", "text", "why", "follow_up", "seconds"}
_FIELDS = {
    "numeric": {"draw", "given", "where", "functions", "answer", "unit", "tolerance", "slips"},
    "choice": {"choices", "notes", "misconceptions"},
    "open": {"rubric"},
}
_SECONDS = {
    "choice": (45, 60, 75, 90),
    "numeric": (60, 120, 180, 240),
    "open": (90, 150, 210, 600),
}


@dataclass(frozen=True)
class Item:
    """A question with what a drill needs to choose it and to judge how well it was known.

    seconds: what a practised reader takes. met_by: slip or choice -> id of its misconception.
    scenario: id of the system-design case that it belongs to, or "".
    """

    question: Question
    level: str
    kind: str
    seconds: float
    met_by: Mapping[str, str]
    scenario: str = ""

    @property
    def id(self) -> str:
        return self.question.id

    @property
    def topic(self) -> str:
        return self.question.lesson


def expected_seconds(kind: str, level: str) -> float:
    return float(_SECONDS[kind][LEVELS.index(level)])


class Numbers:
    """Draws the numbers of a question (or of a whole case), and computes from them.

    draw: name -> a list to choose from, or {"low", "high", "step"}. given: name -> formula, in
    order. where: formulas that must hold. Numbers are drawn again until they do, and until each
    right answer and its slips are all different: added by need().
    """

    def __init__(self, spec: Mapping[str, Any]) -> None:
        self._functions = functions(spec.get("functions", ()))
        self._draws = {name: _values(name, wanted) for name, wanted in spec.get("draw", {}).items()}
        self._given = {name: self.formula(text) for name, text in spec.get("given", {}).items()}
        self._where = [self.formula(text) for text in spec.get("where", ())]
        self._apart: list[Callable[[Params], bool]] = []

    def formula(self, text: str) -> Formula:
        return Formula(text, self._functions)

    @property
    def function_names(self) -> set[str]:
        return set(self._functions)

    def need(self, apart: Callable[[Params], bool]) -> None:
        self._apart.append(apart)

    def draw(self, rng: np.random.Generator) -> Params:
        """Numbers that will do. Raises ValueError where there seem to be none."""
        for _ in range(N_DRAWS):
            params: Params = {
                name: values[int(rng.integers(len(values)))] for name, values in self._draws.items()
            }
            for name, formula in self._given.items():
                params[name] = formula(params)
            if all(f(params) for f in self._where) and all(apart(params) for apart in self._apart):
                return params
        raise ValueError(f"no numbers will do for {self._draws}: too many slips coincide")


def _values(name: str, wanted: Any) -> list[Any]:
    if isinstance(wanted, dict):
        if set(wanted) != {"low", "high", "step"} or wanted["low"] >= wanted["high"]:
            raise ValueError(f"draw {name!r} needs low < high and a step, given {wanted}")
        n_steps = int((wanted["high"] - wanted["low"]) / wanted["step"] + 1e-9)
        return [round(wanted["low"] + i * wanted["step"], 10) for i in range(n_steps + 1)]
    if not isinstance(wanted, list) or not wanted:
        raise ValueError(f"draw {name!r} needs a list or low, high and step, given {wanted!r}")
    return wanted


class _Shown(float):
    """The answer in a text: {answer} with its unit, {answer:.1f} as a bare number."""

    kind = ""

    def __format__(self, spec: str) -> str:
        return super().__format__(spec) if spec else units.format_quantity(float(self), self.kind)


def numeric(spec: Mapping[str, Any], lesson: str, numbers: Numbers, known: Catalogue) -> Question:
    """The Question of a numeric entry."""
    require(numbers.function_names, spec, "names no function: answers are computed by inferlab's")
    right = numbers.formula(spec["answer"])
    wrong = {known.by_id[i].text: numbers.formula(f) for i, f in spec.get("slips", {}).items()}
    tolerance = float(spec.get("tolerance", TOLERANCE))
    kind = units.unit(spec.get("unit") or "")[1]

    def answer(params: Params) -> float:
        return float(right(params))

    def slip(formula: Formula) -> Callable[[Params], float]:
        return lambda params: float(formula({**params, "answer": answer(params)}))

    slips = {name: slip(formula) for name, formula in wrong.items()}

    def shown(params: Params) -> dict[str, Any]:
        value = _Shown(answer(params))
        value.kind = kind
        return {**params, "answer": value}

    numbers.need(lambda p: all_apart([answer(p), *(s(p) for s in slips.values())], tolerance))
    return Question(
        id=spec["id"],
        lesson=lesson,
        points=1,
        text=lambda params: spec["text"].format_map(params),
        why=lambda params: full_why(spec).format_map(shown(params)),
        draw=numbers.draw,
        answer=answer,
        unit=spec.get("unit"),
        tolerance=tolerance,
        slips=slips,
    )


def all_apart(values: Sequence[float], tolerance: float) -> bool:
    """True if no two can be taken for each other, or for each other's GB in place of GiB."""
    return all(
        abs(a - b) > 2 * tolerance * max(abs(a), abs(b))
        for i, a in enumerate(values)
        for b in values[i + 1 :]
    )


def choice(spec: Mapping[str, Any], lesson: str) -> Question:
    """The Question of a multiple-choice entry: the right choice stands first."""
    return Question(
        id=spec["id"],
        lesson=lesson,
        points=1,
        text=lambda params: spec["text"],
        why=lambda params: full_why(spec),
        choices=tuple(spec["choices"]),
        notes=spec.get("notes", {}),
    )


def open_ended(
    spec: Mapping[str, Any], lesson: str, draw: Callable[[np.random.Generator], Params]
) -> Question:
    """The Question of an open entry. Its rubric has a mechanism, a number and a limit."""
    rubric = spec["rubric"]
    fits = list(rubric) == ["mechanism", "number", "limit"]
    require(fits, spec, "needs a rubric of mechanism, number, limit")
    return Question(
        id=spec["id"],
        lesson=lesson,
        points=3,
        text=lambda params: spec["text"].format_map(params),
        why=lambda params: full_why(spec).format_map(params),
        draw=draw,
        rubric=rubric,
    )


def full_why(spec: Mapping[str, Any]) -> str:
    """The explanation, and what an interviewer may ask next."""
    further = spec.get("follow_up")
    if further is None:
        return spec["why"]
    return f"{spec['why']}\n\nThey may go on: *{further['ask']}* {further['say']}"


def item(spec: Mapping[str, Any], lesson: str, known: Catalogue) -> Item:
    """One entry of a topic's file. Raises ValueError that names the entry and what is wrong."""
    check_fields(spec)
    if spec["kind"] == "numeric":
        question = numeric(spec, lesson, Numbers(spec), known)
    elif spec["kind"] == "choice":
        question = choice(spec, lesson)
    else:
        question = open_ended(spec, lesson, lambda rng: {})
    return as_item(spec, question, known)


def as_item(
    spec: Mapping[str, Any], question: Question, known: Catalogue, scenario: str = ""
) -> Item:
    """The Item of an entry whose Question is made."""
    met_by = {known.by_id[i].text: i for i in spec.get("slips", {})}
    met_by |= spec.get("misconceptions", {})
    require(set(met_by.values()) <= set(known.by_id), spec, "names an unknown misconception")
    strays = set(spec.get("misconceptions", {})) - set(question.choices[1:])
    require(not strays, spec, f"misconceptions on no wrong choice: {sorted(strays)}")
    seconds = spec.get("seconds", expected_seconds(spec["kind"], spec["level"]))
    return Item(question, spec["level"], spec["kind"], float(seconds), met_by, scenario)


def check_fields(spec: Mapping[str, Any], shared: Sequence[str] = ()) -> None:
    """Raises ValueError for a missing or unknown field, level, kind or misconception."""
    require(spec.get("kind") in KINDS, spec, f"kind must be one of {', '.join(KINDS)}")
    require(spec.get("level") in LEVELS, spec, f"level must be one of {', '.join(LEVELS)}")
    allowed = (_COMMON | _FIELDS[spec["kind"]]) - set(shared)
    require(set(spec) <= allowed, spec, f"unknown fields {sorted(set(spec) - allowed)}")
    heart = {"numeric": "answer", "choice": "choices", "open": "rubric"}[spec["kind"]]
    missing = {"id", "text", "why", heart} - set(spec)
    require(not missing, spec, f"misses {sorted(missing)}")


def require(holds: Any, spec: Mapping[str, Any], trouble: str) -> None:
    if not holds:
        raise ValueError(f"question {spec.get('id', spec)!r}: {trouble}")
