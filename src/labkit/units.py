"""Quantities with units: read what a learner types, write what a text shows.

SI and binary prefixes are told apart: 1 GB = 10^9 B, 1 GiB = 2^30 B.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from numbers import Real

_SI = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
_BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40, "Pi": 2.0**50}
# Things one counts: a bare number says the same, so no unit is demanded for them.
COUNTS = {
    "tok": ("tok", "toks", "token", "tokens"),
    "seq": ("seq", "seqs", "sequence", "sequences"),
    "req": ("req", "reqs", "request", "requests"),
    "page": ("page", "pages"),
    "step": ("step", "steps"),
    "layer": ("layer", "layers"),
    "head": ("head", "heads"),
    "row": ("row", "rows"),
    "user": ("user", "users"),
    "GPU": ("GPU", "GPUs", "gpu", "gpus"),
}
NO_UNIT_NEEDED = {"", "x", *COUNTS}


@dataclass(frozen=True)
class Quantity:
    """value in the base unit of its kind ("B", "s", "tok/s", "FLOP", "x", "%", "tok", "" …).

    unit is the unit as written; number the number in front of it.
    """

    value: float
    kind: str
    unit: str = field(default="", compare=False)
    number: float = field(default=math.nan, compare=False)

    def __str__(self) -> str:
        return format_quantity(self.value, self.kind)


def _simple_units() -> dict[str, tuple[float, str]]:
    units: dict[str, tuple[float, str]] = {}
    for prefix, factor in (_SI | _BINARY).items():
        for name in {prefix, prefix.upper() if prefix == "k" else prefix}:
            units[name + "B"] = (factor, "B")
            units[name.lower() + "b"] = (factor, "B")  # gb, gib: nobody means bits
            units[name + "FLOP"] = units[name + "FLOPs"] = (factor, "FLOP")
            units[name + "FLOPS"] = (factor, "FLOP/s")
            units[name + "tok"] = (factor, "tok")
    del units["b"]
    units |= dict.fromkeys(("byte", "bytes", "Byte", "Bytes"), (1.0, "B"))
    units |= dict.fromkeys(("flop", "flops"), (1.0, "FLOP"))
    units |= dict.fromkeys(("s", "sec", "second", "seconds"), (1.0, "s"))
    units |= {"ms": (1e-3, "s"), "us": (1e-6, "s"), "µs": (1e-6, "s"), "μs": (1e-6, "s")}
    units |= {"ns": (1e-9, "s"), "min": (60.0, "s"), "h": (3600.0, "s")}
    units |= dict.fromkeys(("x", "X", "×", "times"), (1.0, "x"))
    units |= {"%": (1.0, "%"), "percent": (1.0, "%")}
    units |= {name: (1.0, kind) for kind, names in COUNTS.items() for name in names}
    return units


_UNITS = _simple_units()
_KNOWN = (
    "B kB MB GB TB, KiB MiB GiB TiB; s ms µs ns min h; FLOP GFLOP TFLOP; tok, seq, req; x, %; "
    "and rates of them, such as tok/s, GB/s, TFLOP/s, B/tok"
)
_SEPARATORS = ", _\u00a0\u2009\u202f"
_NUMBER = re.compile(
    rf"""^(?P<whole>[+-]?(?:\d{{1,3}}(?:(?P<sep>[{_SEPARATORS}])\d{{3}}(?:(?P=sep)\d{{3}})*)(?!\d)|\d+)?)
        (?P<fraction>\.\d+|\.)?(?P<power>[eE][+-]?\d+)?
        (?:\s*[×x*·]\s*10\s*(?:\^|\*\*)\s*(?P<ten>[+-]?\d+))?""",
    re.VERBOSE,
)


def unit(name: str) -> tuple[float, str]:
    """How many base units one of name is, and the kind: "MiB" -> (1048576.0, "B").

    Raises ValueError that names the known units.
    """
    written = re.sub(r"\s+per\s+|\s*/\s*", "/", name.strip())
    if written == "":
        return 1.0, ""
    if written in {"tps", "TPS"}:
        return 1.0, "tok/s"
    top, *bottom = written.split("/")
    if len(bottom) <= 1 and all(part in _UNITS for part in (top, *bottom)):
        return _ratio([_UNITS[part] for part in (top, *bottom)])
    raise ValueError(_unknown(name.strip(), (top, *bottom)))


def known(name: str) -> bool:
    """True for a unit that can be read."""
    try:
        unit(name)
    except ValueError:
        return False
    return True


def _ratio(parts: list[tuple[float, str]]) -> tuple[float, str]:
    if len(parts) == 1:
        return parts[0]
    (above, kind), (below, per) = parts
    return above / below, f"{kind}/{per}"


def _unknown(name: str, parts: tuple[str, ...]) -> str:
    for part in parts:
        if re.fullmatch(r"[KMGTk]?b(it|its|ps)?", part):
            size = re.sub("b(it|its|ps)?$", "B", part)
            return f"{name!r} means bits; write {size} for bytes (1 byte = 8 bits)"
        if re.fullmatch(r"[kmgtp]flops?", part):
            stem = part[0].upper() + "FLOP"
            return f"{name!r} can be a count or a rate: write {stem} or {stem}/s"
    return f"unknown unit {name!r}. Known: {_KNOWN}"


def parse(text: str | float | Quantity) -> Quantity:
    """Read "12.5 MB", "1,234", "≈ 320 KiB", "4x", "187.5 tok/s", 1.5e9 …

    Raises ValueError that says what could not be read and how to write it.
    """
    if isinstance(text, Quantity):
        return text
    if isinstance(text, bool) or not isinstance(text, (str, Real)):
        raise ValueError(f'{text!r} is not a quantity: write it as text, such as "12.5 MB"')
    if isinstance(text, Real):
        return _finite(_float(text), "", repr(text))
    tidy = text.strip().replace("−", "-")
    tidy = re.sub(r"^(≈|~|=|about\b|roughly\b)\s*", "", tidy)
    number, rest = _leading_number(tidy, text)
    return _finite(number, rest, text)


def _finite(number: float, rest: str, text: str) -> Quantity:
    if not math.isfinite(number):
        raise ValueError(f"{text!r} is not a finite number")
    factor, kind = unit(rest)
    return Quantity(number * factor, kind, rest.strip(), number)


def _leading_number(tidy: str, text: str) -> tuple[float, str]:
    match = _NUMBER.match(tidy)
    if match is None or not re.search(r"\d", match.group()):
        raise ValueError(f'{text!r} does not start with a number: write it as "12.5 MB"')
    rest = tidy[match.end() :]
    if re.match(r"[,]\d", rest):
        raise ValueError(
            f"{text!r}: a comma only groups thousands (1,234,567); "
            "write decimals with a point (12.5)"
        )
    if re.match(r"\s*[\d._]", rest):
        raise ValueError(f"{text!r}: the number goes wrong at {rest!r}")
    whole = re.sub(f"[{_SEPARATORS}]", "", match["whole"] or "")
    power = match["power"] or ""
    number = _float(f"{whole}{match['fraction'] or ''}{power}")
    return number * _float(f"1e{match['ten'] or 0}"), rest


def _float(number: str | Real) -> float:
    try:
        return float(number)
    except OverflowError:  # an int of more than 308 digits
        return math.inf


# ---- writing -----------------------------------------------------------------------------------


def _significant(number: float, digits: int) -> str:
    """A number with so many significant digits, thousands grouped, never in powers of ten."""
    if not math.isfinite(number):
        return str(number)
    exponent = int(f"{number:.{digits - 1}e}".split("e")[1])  # after rounding: 0.9999 has 0
    return f"{number:,.{max(0, digits - 1 - exponent)}f}" if number else "0"


def _scaled(value: float, steps: dict[str, float], name: str, digits: int) -> str:
    """With the largest prefix that leaves at least 1 in front of it."""
    rounded = float(f"{abs(value):.{digits - 1}e}")  # 999.99 MB is written 1.000 GB
    prefix = max((p for p in steps if steps[p] <= rounded), key=steps.__getitem__, default="")
    scale = steps.get(prefix, 1.0)
    return f"{_significant(value / scale, digits)} {prefix}{name}"


def format_bytes(n_bytes: float, digits: int = 4) -> str:
    """2684354560 -> "2.684 GB (2.500 GiB)"."""
    if abs(n_bytes) < 1000:
        return f"{n_bytes:g} B"
    binary = _scaled(max(abs(n_bytes), 2.0**10), _BINARY, "B", digits)
    if abs(n_bytes) < 2**10:
        binary = f"{_significant(abs(n_bytes) / 2**10, digits)} KiB"
    return f"{_scaled(n_bytes, _SI, 'B', digits)} ({'-' if n_bytes < 0 else ''}{binary})"


def format_seconds(seconds: float, digits: int = 3) -> str:
    """0.025 -> "25.0 ms"."""
    steps = {"n": 1e-9, "µ": 1e-6, "m": 1e-3, "": 1.0}
    if 0 < abs(seconds) < 1e-9:
        return f"{seconds / 1e-9:.3g} ns"
    return _scaled(seconds, steps, "s", digits)


def format_quantity(value: float, kind: str, digits: int = 4) -> str:
    """A value in base units as text that parse() reads back: (12.5e6, "B") -> "12.50 MB"."""
    if kind == "s":
        return format_seconds(value, digits)
    if kind in {"x", "%"}:
        return f"{value:.{digits}g}".replace("e+0", "e") + (kind if kind == "x" else " %")
    top, *_ = kind.split("/")
    if top in {"B", "FLOP"}:
        return _scaled(value, _SI, kind, digits)
    whole = float(value).is_integer() and abs(value) < 1e15
    number = f"{value:,.0f}" if whole else f"{_significant(value, digits)}"
    return f"{number} {kind}".strip()
