"""Knowledge checks: questions whose numbers are the learner's own, judged with their units."""

from __future__ import annotations

import difflib
import hashlib
import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from labkit import units
from labkit.display import put

Params = dict[str, Any]
LETTERS = "abcdefgh"


@dataclass(frozen=True)
class Question:
    """One question: numeric (answer, and unit where it has one), of choices (right one first), or
    open (rubric), which the reader marks.

    draw: a generator -> the learner's parameters; text: parameters -> Markdown.
    answer: parameters -> the right value in base units (bytes, seconds, FLOP …).
    unit: what is asked for ("B", "MB", "tok/s", "x"), None for a plain number.
    choices: the right one first; they are shuffled for each learner. notes: a wrong choice -> what
    it confuses. slips: a named misconception -> the wrong value it gives. rubric: what a full
    answer to an open question has -> what earns the mark for it, of 0, ½ and 1.
    why: parameters -> the explanation, shown after a right answer.
    """

    id: str
    lesson: str
    points: int
    text: Callable[[Params], str]
    why: Callable[[Params], str]
    draw: Callable[[np.random.Generator], Params] = lambda rng: {}
    answer: Callable[[Params], float] | None = None
    unit: str | None = None
    choices: tuple[str, ...] = ()
    tolerance: float = 0.005
    slips: Mapping[str, Callable[[Params], float]] = field(default_factory=dict)
    notes: Mapping[str, str] = field(default_factory=dict)
    rubric: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if [self.answer is not None, bool(self.choices), bool(self.rubric)].count(True) != 1:
            raise ValueError(f"question {self.id!r} needs either an answer or choices or a rubric")
        if self.choices and not 2 <= len(set(self.choices)) == len(self.choices) <= len(LETTERS):
            raise ValueError(f"question {self.id!r} needs 2 to {len(LETTERS)} different choices")
        if stray := set(self.notes) - set(self.choices[1:]):
            raise ValueError(f"question {self.id!r}: notes on no wrong choice: {sorted(stray)}")
        units.unit(self.unit or "")

    @property
    def kind(self) -> str:
        """The kind of the unit asked for: "B" for "MB"."""
        return units.unit(self.unit or "")[1]


@dataclass(frozen=True)
class Result:
    """How one answer was judged. outcome: "passed", "failed" or "not run".

    score: 0 to 1; half for a number that a known slip explains, the mean mark of an open answer.
    """

    question: str
    outcome: str
    message: str
    points: int
    why: str = ""
    slips: tuple[str, ...] = ()
    score: float = 0.0

    @property
    def passed(self) -> bool:
        return self.outcome == "passed"


class Answers(MutableMapping[str, Any]):
    """One learner's answers: answers["kv_bytes"] = "12.5 MB"; answers.judge("kv_bytes").

    learner decides the numbers in the questions: the same name (in any case, spaces round it
    ignored) always gives the same ones. A question not answered yet reads as Ellipsis.
    on_result is called with every Result.
    """

    def __init__(
        self,
        learner: str,
        questions: Mapping[str, Question],
        on_result: Callable[[Result], None] | None = None,
    ) -> None:
        self.learner = _normal(learner)
        self.questions = dict(questions)
        self._on_result = on_result
        self._given: dict[str, Any] = {}
        self._drawn: dict[str, Params] = {}

    def __getitem__(self, question_id: str) -> Any:
        return self._given.get(self.question(question_id).id, ...)

    def __setitem__(self, question_id: str, answer: Any) -> None:
        self._given[self.question(question_id).id] = answer

    def __delitem__(self, question_id: str) -> None:
        self._given.pop(self.question(question_id).id, None)

    def __iter__(self) -> Iterator[str]:
        return iter(self.questions)

    def __len__(self) -> int:
        return len(self.questions)

    def __contains__(self, question_id: object) -> bool:
        return question_id in self.questions

    def question(self, question_id: str) -> Question:
        """The question of that id. Raises ValueError that names the nearest ones."""
        if question_id not in self.questions:
            near = difflib.get_close_matches(str(question_id), self.questions, n=2)
            rest = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(self)}"
            raise ValueError(f"there is no question {question_id!r}; {rest}")
        return self.questions[question_id]

    def params(self, question_id: str) -> Params:
        """The numbers that this learner gets."""
        question = self.question(question_id)
        if question.id not in self._drawn:
            rng = _generator(self.learner, question.id, "draw")
            self._drawn[question.id] = question.draw(rng)
        return dict(self._drawn[question.id])

    def choices(self, question_id: str) -> dict[str, str]:
        """letter -> choice, in this learner's order; empty for a numeric question."""
        question = self.question(question_id)
        order = _generator(self.learner, question.id, "order").permutation(len(question.choices))
        return {LETTERS[i]: question.choices[j] for i, j in enumerate(order)}

    def text(self, question_id: str) -> str:
        """The question as Markdown, with this learner's numbers."""
        question = self.question(question_id)
        points = f"{question.points} point{'s' if question.points != 1 else ''}"
        lines = [f"**{question.id}** ({points})", "", question.text(self.params(question_id)), ""]
        options = self.choices(question_id)
        lines += [f"- **{letter})** {choice}" for letter, choice in options.items()]
        lines += [
            *([""] if options else []),
            f'Answer: `answers["{question.id}"] = {_form(question)}`',
        ]
        if not self.learner:
            lines += ["", "*No name is given, so these are the numbers that everybody gets.*"]
        return "\n".join(lines)

    def ask(self, question_id: str) -> None:
        """Display the question."""
        text = self.text(question_id)
        put(text, text, kind="text/markdown")

    def worked(self, question_id: str) -> str:
        """The right answer for this learner, as it would be typed."""
        question = self.question(question_id)
        if question.rubric:
            return " ".join("1" for _ in question.rubric)
        if question.answer is None:
            options = self.choices(question_id)
            return next(a for a, choice in options.items() if choice == question.choices[0])
        right = float(question.answer(self.params(question_id)))
        text = units.format_quantity(right, question.kind, 6)
        if _near(units.parse(text).value, right, question.tolerance / 10):
            return text
        return f"{right!r} {question.kind}".strip()

    def judge(self, question_id: str) -> Result:
        """Judge the answer given. Never raises for what was answered, however odd."""
        question = self.question(question_id)
        given = sayable(self[question_id])
        if given is ... or given is None or (isinstance(given, str) and not given.strip()):
            outcome: _Found = ("not run", "not answered yet", ())
        elif question.rubric:
            outcome = _judge_open(question, given)
        elif question.choices:
            outcome = _judge_choice(question, self.choices(question_id), given)
        else:
            outcome = _judge_number(question, self.params(question_id), given)
        state, message, slips = outcome
        points = question.points if state == "passed" else 0
        why = question.why(self.params(question_id)) if state == "passed" else ""
        result = Result(
            question_id, state, message, points, why, slips, _score(question, given, state, slips)
        )
        if self._on_result is not None:
            self._on_result(result)
        return result


_Found = tuple[str, str, tuple[str, ...]]  # outcome, message, names of slips
MIXED_PREFIXES = "GB and GiB mixed: 1 GB = 10^9 B, 1 GiB = 2^30 B"


def sayable(given: Any) -> Any:
    """The answer if it is text, a number or nothing; of anything else, what it is.

    An object may raise anything when it is looked at, and Python prints no number of thousands of
    digits.
    """
    kind = type(given)
    if given is ... or given is None or kind in (str, bool, float):
        return given
    if isinstance(given, np.generic) and given.dtype.kind in "biufU":
        return given
    if kind is int:
        return given if given.bit_length() < 2000 else "a number of hundreds of digits"
    try:
        return given if len(repr(given)) < 500 and str(given) else f"({kind.__name__})"
    except Exception:
        return f"({kind.__name__})"


def _normal(learner: str) -> str:
    if not isinstance(learner, str):
        raise ValueError(f'the learner\'s name must be text, such as "ada"; given {learner!r}')
    return " ".join(unicodedata.normalize("NFKC", learner).split()).casefold()


def _generator(learner: str, question_id: str, purpose: str) -> np.random.Generator:
    digest = hashlib.sha256("\n".join((learner, question_id, purpose)).encode()).digest()
    return np.random.default_rng(int.from_bytes(digest[:16], "big"))


def _form(question: Question) -> str:
    if question.rubric:
        return f'"{" ".join("½" for _ in question.rubric)}"'
    if question.choices:
        return '"a"'
    if question.kind in units.NO_UNIT_NEEDED:
        return '"4x"' if question.kind == "x" else "1234"
    return f'"12.5 {question.unit}"'


# ---- judging -----------------------------------------------------------------------------------


def marks(question: Question, given: Any) -> list[float] | None:
    """The marks of an open answer, as "1 ½ 0" or "1, 0.5, 0"; None where they cannot be read."""
    read = {"0": 0.0, "0.5": 0.5, ".5": 0.5, "½": 0.5, "1/2": 0.5, "1": 1.0}
    words = re.split(r"[\s,;]+", str(given).strip())
    if len(words) != len(question.rubric) or not all(word in read for word in words):
        return None
    return [read[word] for word in words]


def _judge_open(question: Question, given: Any) -> _Found:
    found = marks(question, given)
    if found is None:
        parts = ", ".join(question.rubric)
        return "failed", f"{given!r} is not a mark of 0, ½ or 1 for each of: {parts}", ()
    total = f"{sum(found):g} of {len(found)}"
    return ("passed" if min(found) == 1 else "failed"), total, ()


def _score(question: Question, given: Any, state: str, slips: tuple[str, ...]) -> float:
    if question.rubric and state != "not run":
        found = marks(question, given) or [0.0]
        return sum(found) / len(found)
    return 1.0 if state == "passed" else 0.5 if slips and not question.choices else 0.0


def _judge_choice(question: Question, options: dict[str, str], given: Any) -> _Found:
    said = str(given).strip().casefold().strip("().: ")
    chosen = options.get(said)
    if chosen is None:
        chosen = next((text for text in options.values() if text.casefold() == said), None)
    if chosen is None:
        return "failed", f"{given!r} is not one of {', '.join(options)}: answer with one letter", ()
    if chosen == question.choices[0]:
        return "passed", "right", ()
    note = question.notes.get(chosen, "")
    return "failed", f"not {said!r}" + (f": {note}" if note else ""), ((note,) if note else ())


def _judge_number(question: Question, params: Params, given: Any) -> _Found:
    assert question.answer is not None
    try:
        quantity = units.parse(_without_noun(question, given))
    except ValueError as error:
        return "failed", str(error), ()
    if trouble := _unit_trouble(question, quantity, given):
        return "failed", trouble, ()
    right = float(question.answer(params))
    if _near(quantity.value, right, question.tolerance):
        return "passed", "right", ()
    if trouble := _si_for_binary(question, quantity, right):
        return "failed", trouble, (MIXED_PREFIXES,)
    slips = {name: float(wrong(params)) for name, wrong in question.slips.items()}
    named = tuple(
        n for n, value in slips.items() if _near(quantity.value, value, question.tolerance)
    )
    if named:
        return "failed", "likely cause: " + "; or: ".join(named), named
    return "failed", _size_trouble(question, quantity.value, right), ()


def _without_noun(question: Question, given: Any) -> Any:
    """A plain number may be followed by a word for what is counted: "34 sequences"."""
    counted = (
        re.fullmatch(r"(.*\d)\s+([a-z]{3,})", given.strip()) if isinstance(given, str) else None
    )
    if question.kind or counted is None or units.known(counted[2]):
        return given
    return counted[1]


def _unit_trouble(question: Question, quantity: units.Quantity, given: Any) -> str:
    if quantity.kind == question.kind:
        return ""
    kinds = {quantity.kind, question.kind}
    if "" in kinds and kinds <= units.NO_UNIT_NEEDED:
        return ""
    asked = f'such as "12.5 {question.unit}"' if question.kind else "such as 1234"
    if quantity.kind == "":
        return f"{given!r} has no unit; this answer needs one, {asked}"
    wanted = f"asks for {question.kind}" if question.kind else "asks for a plain number"
    return f"{given!r} is in {quantity.kind}; the question {wanted}, {asked}"


def _si_for_binary(question: Question, quantity: units.Quantity, right: float) -> str:
    """The number is right in GiB and was written in GB, or the other way round."""
    written = re.fullmatch(r"([kmgtp])(i?)b(ytes?)?(/.*| per .*)?", quantity.unit, re.IGNORECASE)
    if not written:
        return ""
    prefix, is_binary, rest = written[1].upper(), bool(written[2]), written[4] or ""
    here, there = (f"{prefix}{'i' * i}B" for i in (is_binary, not is_binary))
    if not _near(quantity.number * units.unit(there + rest)[0], right, question.tolerance):
        return ""
    sizes = [f"1 {name} = {units.unit(name)[0]:,.0f} B" for name in (here, there)]
    return f"the number is right in {there}, but you wrote {here}: {', '.join(sizes)}"


def _size_trouble(question: Question, value: float, right: float) -> str:
    for base in (1000, 1024):
        for power in (1, 2, 3, 4):
            for factor in (base**power, 1 / base**power):
                if _near(value, right * factor, question.tolerance):
                    size = "large" if factor > 1 else "small"
                    return f"the digits are right, but {base**power:,}x too {size}: see the prefix"
    if value * right < 0:
        return "the sign is wrong"
    size = "large" if abs(value) > abs(right) else "small"
    room = (
        "must be exact" if question.tolerance < 1e-4 else f"may be off by {question.tolerance:.1%}"
    )
    return f"too {size} (the answer {room})"


def _near(value: float, right: float, tolerance: float) -> bool:
    return abs(value - right) <= tolerance * abs(right)


# ---- the question itself, checked --------------------------------------------------------------


def equal_length(question: Question) -> bool:
    """True if no choice stands out by its length: all within 12 characters, or within 25 %."""
    lengths = [len(choice) for choice in question.choices]
    if not lengths:
        return True
    spread = max(lengths) - min(lengths)
    return spread <= 12 or spread <= 0.25 * max(lengths)


def faults(question: Question, n_draws: int = 200) -> list[str]:
    """What is wrong with a question, over many learners; empty when nothing is.

    The worked answer must pass, and every slip must be rejected by its own name.
    """
    found = [] if equal_length(question) else ["its choices differ too much in length"]
    for number in range(n_draws):
        answers = Answers(f"learner {number}", {question.id: question})
        found += [f"{answers.learner}: {trouble}" for trouble in _faults_of_one(answers, question)]
    return found


def _faults_of_one(answers: Answers, question: Question) -> Iterator[str]:
    params = answers.params(question.id)
    answers[question.id] = answers.worked(question.id)
    judged = answers.judge(question.id)
    if not judged.passed or not judged.why.strip() or not question.text(params).strip():
        yield f"worked answer {answers[question.id]!r}: {judged.message}; or no text, or no why"
    for name, wrong in question.slips.items():
        answers[question.id] = units.Quantity(float(wrong(params)), question.kind)
        judged = answers.judge(question.id)
        if judged.passed or name not in judged.slips:
            yield f"slip {name!r} ({answers[question.id]}) is judged: {judged.message}"
