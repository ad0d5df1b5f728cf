"""Every formula that the explorer shows, computed from its text: it gives the number beside it."""

import math
import re

import pytest
from explorer_settings import MODELS, SETTINGS
from hypothesis import given
from hypothesis import settings as hypothesis_settings

from labkit.explorer.formulas import Line, sections, written
from labkit.explorer.setting import Setting
from labkit.explorer.state import compute
from labkit.units import parse

RAISED = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-")
SIGNS = {"×": "*", "÷": "/", "−": "-", "^": "**"}


def computed(filled: str) -> float:
    """A filled-in formula as a number; nothing but numbers, signs and four functions is let in."""
    text = re.sub(r"·10([⁰¹²³⁴⁵⁶⁷⁸⁹⁻]+)", lambda m: "e" + m[1].translate(RAISED), filled)
    text = re.sub(r"(?<=\d),(?=\d{3})", "", text)
    for sign, operator in SIGNS.items():
        text = text.replace(sign, operator)
    left = re.sub(r"\b(floor|ceil|min|max)\b|e-?\d+|[\d.+*/(), -]", "", text)
    assert left == "", f"{left!r} is left in {filled!r}"
    functions = {"floor": math.floor, "ceil": math.ceil, "min": min, "max": max}
    return float(eval(text, {"__builtins__": {}}, functions))


def largest_term(line: Line) -> float:
    """What a rounded value may be wrong by goes with the largest number in the formula."""
    return max(map(abs, line.values.values()))


def require_right(line: Line) -> None:
    if line.value is None:
        assert line.instead
        return
    if not line.formula:
        assert line.instead
        return
    got = computed(line.filled)
    if "floor" in line.formula or "ceil" in line.formula:
        assert abs(got - line.value) <= 1e-5 * abs(line.value) + (line.value > 1e6), line
    elif "− weights" in line.formula:  # what is left: a small difference of large numbers
        assert got == pytest.approx(line.value, abs=2e-6 * largest_term(line)), line
    else:
        assert got == pytest.approx(line.value, rel=3e-5), line


@pytest.mark.parametrize("device", ["synthetic", "t4", "b300-sxm", "laptop-cpu"])
def test_every_formula_gives_its_number_for_every_model(device):
    for name in MODELS:
        for section in sections(compute(Setting(model=name, device=device, gamma=4))):
            for line in section.lines:
                require_right(line)


@hypothesis_settings(max_examples=150, deadline=None, derandomize=True)
@given(SETTINGS)
def test_every_formula_gives_its_number_for_every_setting(setting):
    for section in sections(compute(setting)):
        for line in section.lines:
            require_right(line)


def test_the_test_sees_a_wrong_formula():
    wrong = Line("weights", 16.0, "B", "n × b", {"n": 8, "b": 1})
    with pytest.raises(AssertionError):
        require_right(wrong)
    with pytest.raises(AssertionError, match="is left in"):
        computed("n × 2")


def test_symbols_are_replaced_whole():
    line = Line("x", 6.0, "", "n_sequences × n", {"n": 2, "n_sequences": 3})
    assert line.filled == "3 × 2"


@pytest.mark.parametrize(
    ("value", "text"),
    [(131072, "131,072"), (0.515625, "0.515625"), (3.35e12, "3.35·10¹²"), (1e15, "1·10¹⁵"),
     (8.03e9, "8,030,000,000"), (0.00001, "1·10⁻⁵"), (0, "0"), (2.8013, "2.8013"),
     (131_944_593_489_920, "131,944,593,489,920"), (80e9, "80,000,000,000")],
)  # fmt: skip
def test_numbers_are_written_to_be_read(value, text):
    assert written(value) == text
    assert computed(text) == pytest.approx(value)


def test_the_result_is_the_number_with_its_unit():
    state = compute(Setting())
    lines = {line.name: line for section in sections(state) for line in section.lines}
    assert lines["the batch"].result == "17.18 GB (16.00 GiB)"
    assert lines["each token"].filled == "32 × 2 × 8 × 128 × 2"
    assert lines["sequences that fit"].result == "59 sequences"
    assert lines["arithmetic intensity"].result.endswith("FLOP/byte")
    assert parse(lines["each user"].result).value == pytest.approx(state.user_per_s, rel=1e-3)
    short = compute(Setting(attention="mha"))
    text = next(li.result for s in sections(short) for li in s.lines if li.name.startswith("short"))
    assert text.startswith("−6.391 GB")


def test_every_number_of_the_state_has_a_line():
    state = compute(Setting(gamma=4))
    shown = {line.value for section in sections(state) for line in section.lines}
    assert {
        state.weight_bytes, state.cache_bytes, state.sequence_bytes, state.grow_bytes,
        state.left_bytes, state.fits_sequences, state.longest_context, state.compute_from,
        state.ridge, state.decode.seconds, state.decode.intensity, state.prefill.seconds,
        state.prefill.intensity, state.gain, state.user_per_s, state.all_per_s,
    } <= shown  # fmt: skip
