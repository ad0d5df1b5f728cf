"""Quantities are read as a learner types them, and SI and binary are told apart."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit import units


@pytest.mark.parametrize(
    ("text", "value", "kind"),
    [
        ("12.5 MB", 12_500_000, "B"),
        ("12.5MiB", 12.5 * 2**20, "B"),
        ("1,234", 1234, ""),
        ("≈ 320 KiB", 327_680, "B"),
        ("320 KB", 320_000, "B"),
        ("320 kB", 320_000, "B"),
        ("85.9 GB", 85.9e9, "B"),
        ("80 GiB", 85_899_345_920, "B"),
        ("80 gb", 80e9, "B"),
        ("4x", 4, "x"),
        ("4 ×", 4, "x"),
        ("25 ms", 0.025, "s"),
        ("5 µs", 5e-6, "s"),
        ("187.5 tok/s", 187.5, "tok/s"),
        ("187.5 tokens per second", 187.5, "tok/s"),
        ("17179869184", 2**34, ""),
        ("17 179 869 184 bytes", 2**34, "B"),
        ("17_179_869_184 B", 2**34, "B"),
        ("17\u202f179\u202f869\u202f184 B", 2**34, "B"),
        ("1.5×10^9 B", 1.5e9, "B"),
        ("1.5e9 B", 1.5e9, "B"),
        ("−3 s", -3, "s"),
        (".5 s", 0.5, "s"),
        ("320 KiB/token", 327_680, "B/tok"),
        ("3.35 TB/s", 3.35e12, "B/s"),
        ("989 TFLOP/s", 989e12, "FLOP/s"),
        ("989 TFLOPS", 989e12, "FLOP/s"),
        ("16 GFLOPs", 16e9, "FLOP"),
        ("300 FLOP/B", 300, "FLOP/B"),
        ("50 %", 50, "%"),
        ("3 sequences", 3, "seq"),
        (12, 12, ""),
    ],
)
def test_what_learners_type_is_read(text, value, kind):
    quantity = units.parse(text)
    assert quantity.value == pytest.approx(value, rel=1e-12)
    assert quantity.kind == kind


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("12 parsecs", "unknown unit 'parsecs'. Known: B kB MB GB"),
        ("12,5 MB", "decimals with a point"),
        ("1,23,456", "a comma only groups thousands"),
        ("12.5 Mb", "means bits; write MB"),
        ("3 tflops", "write TFLOP or TFLOP/s"),
        ("1.2.3", "goes wrong at '.3'"),
        ("1_000_0", "goes wrong at '_0'"),
        ("about", "does not start with a number"),
        ("", "does not start with a number"),
        ("nan", "does not start with a number"),
        ("1e999", "not a finite number"),
        (10**400, "not a finite number"),
        (float("nan"), "not a finite number"),
        (True, "is not a quantity"),
        ([1], "is not a quantity"),
        ("1 GB/s/s", "unknown unit"),
    ],
)
def test_what_cannot_be_read_says_how_to_write_it(text, message):
    with pytest.raises(ValueError, match=message.replace(".", r"\.").replace("/", "/")):
        units.parse(text)


@pytest.mark.parametrize(
    ("n_bytes", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.000 kB (0.9766 KiB)"),
        (327_680, "327.7 kB (320.0 KiB)"),
        (2_684_354_560, "2.684 GB (2.500 GiB)"),
        (2**34, "17.18 GB (16.00 GiB)"),
        (999_999_999, "1.000 GB (953.7 MiB)"),
        (-5000, "-5.000 kB (-4.883 KiB)"),
    ],
)
def test_bytes_are_written_in_both_systems(n_bytes, text):
    assert units.format_bytes(n_bytes) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (25e-9, "25.0 ns"), (0.025, "25.0 ms"), (0.99999, "1.00 s"), (90, "90.0 s")],
)
def test_seconds_are_written_with_a_prefix(seconds, text):
    assert units.format_seconds(seconds) == text


@given(
    st.floats(1e-8, 1e15, allow_nan=False),
    st.sampled_from(["B", "s", "tok/s", "FLOP", "FLOP/s", "B/s", "B/tok", "x", "%", "tok", ""]),
)
def test_what_is_written_is_read_back(value, kind):
    text = units.format_quantity(value, kind, 6)
    again = units.parse(text)
    assert again.kind == kind
    assert again.value == pytest.approx(value, rel=1e-4)


FACTORS = {"B": 1, "kB": 1e3, "KiB": 2**10, "MB": 1e6, "MiB": 2**20, "GB": 1e9, "GiB": 2**30}
FACTORS |= {"TB": 1e12, "TiB": 2**40, "ms": 1e-3, "s": 1, "%": 1, "x": 1, "tok/s": 1, "": 1}
FACTORS |= {"TFLOP": 1e12, "GFLOP/s": 1e9, "GB/s": 1e9, "KiB/token": 2**10}


@given(
    st.decimals("0.001", "999999999", places=3),
    st.sampled_from(sorted(FACTORS)),
    st.sampled_from(["", "≈", "~", "about ", "= "]),
    st.sampled_from(["{:f}", "{:,f}", "{:.9e}", "{:_f}"]),
    st.sampled_from(["", " "]),
)
def test_a_number_is_read_however_people_write_it(number, unit, about, form, gap):
    """Thousands grouped or not, powers of ten, ≈ before it, any prefix, a blank or none."""
    value = float(number) if "_" in form else number  # a Decimal knows no underscores
    quantity = units.parse(f"{about}{form.format(value)}{gap}{unit}")
    assert quantity.value == pytest.approx(float(number) * FACTORS[unit], rel=1e-8)
    assert quantity.number == pytest.approx(float(number), rel=1e-8)
