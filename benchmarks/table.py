"""A record as a markdown table."""

from __future__ import annotations

from typing import Any

from benchmarks.llama import NOTE
from benchmarks.plan import BASELINE
from benchmarks.record import label


def performance_table(record: dict[str, Any]) -> str:
    """The lines of one record: a heading, a table of engines, and what is no engine's.

    record: what benchmarks/record.py writes.
    """
    s, sizes = record["summary"], record["sizes"]
    lines = [
        _heading(record),
        "",
        "| engine | decode, tokens/s | vs transformers fp32 | of its bound | "
        f"prefill {sizes['prefill']}, tokens/s | vs fp32 | batch {sizes['batch']}, tokens/s | "
        "vs fp32 | KL to fp32 |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    names = [name for name in record["bytes_per_token"] if name in s.get("decode", {})]
    lines += [_row(name, record) for name in names]
    notes = [*_lookup_lines(s["lookup"]), *_load_lines(s["load"]), _bound_line(s)]
    if any(name.startswith("llama.cpp") for name in names):
        notes.append(NOTE)
    return "\n".join([*lines, "", *(f"- {note}" for note in notes if note)])


def _heading(record: dict[str, Any]) -> str:
    m, packages = record["machine"], record["machine"]["packages"]
    versions = ", ".join(f"{name} {packages[name]}" for name in packages if name != "inferlab")
    n = max((v["n"] for v in record["summary"].get("decode", {}).values()), default=0)
    state = "" if record["complete"] else " Not complete."
    return (
        f"{m['cpu']}, {m['n_threads']} threads of {m['n_cores']} cores, {record['started'][:10]}; "
        f"medians of {n} interleaved rounds, in brackets lowest and highest; Python {m['python']}, "
        f"{versions}.{state}"
    )


def _row(name: str, record: dict[str, Any]) -> str:
    s = record["summary"]
    decode = s["decode"][name]
    share = decode.get("share_of_bandwidth")
    kl = record["agreement"].get(name, {}).get("kl")
    cells = [
        label(name),
        *_rate(decode, name),
        f"{100 * share:.0f} %" if share else "",
        *_rate(s.get("prefill", {}).get(name), name),
        *_rate(s.get("batch", {}).get(name), name),
        "" if kl is None else "below 1e-6" if kl < 1e-6 else f"{kl:.2g}",
    ]
    return "| " + " | ".join(cells) + " |"


def _rate(found: dict[str, float] | None, name: str) -> tuple[str, str]:
    """Tokens a second with their spread, and the ratio to the baseline."""
    if found is None:
        return "", ""
    low, median, high = (_digits(found[key]) for key in ("low", "median", "high"))
    ratio = "1" if name == BASELINE else f"{found['ratio']:.2f}" if "ratio" in found else ""
    return f"{median} ({low}–{high})", f"**{ratio}**" if ratio else ""


def _digits(value: float) -> str:
    """Three significant digits, and no more than there are."""
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}"


def _lookup_lines(lookup: dict[str, Any]) -> list[str]:
    words = {"copy": "text that copies its prompt", "open": "open-ended text"}
    return [
        f"Prompt lookup, inferlab NumPy, {words[kind]}: {found['speedup']:.2f} times plain decoding"
        f" (tokens {'identical' if found['identical'] else 'NOT identical'}, "
        f"{100 * found['acceptance']:.0f} % of the drafted ones accepted)"
        for kind, found in lookup.items()
    ]


def _load_lines(load: dict[str, Any]) -> list[str]:
    if "times_as_fast" not in load:
        return []
    ours, theirs = load["inferlab"], load["transformers"]
    return [
        f"Loading weights and tokenizer: {ours['load_s']:.2f} s, {ours['peak_bytes'] / 1e9:.2f} GB "
        f"at most; transformers {theirs['load_s']:.1f} s, {theirs['peak_bytes'] / 1e9:.2f} GB "
        f"({load['times_as_fast']:.0f} times as fast, {100 * load['share_of_memory']:.0f} % of the "
        "memory)"
    ]


def _bound_line(summary: dict[str, Any]) -> str:
    bandwidth, bounds = summary["bandwidth_bytes_per_s"], summary["bounds"]
    if not bandwidth:
        return ""
    peaks = ", ".join(
        f"{name.split('_')[0]} {name.split('_')[2]} {value / 1e9:.0f}"
        for name, value in bounds.items()
        if "gemm" in name
    )
    return (
        f"The bound of decoding is reading all weights once a token, at the {bandwidth / 1e9:.1f} "
        f"GB/s measured in the same run; GEMM peaks in GFLOP/s: {peaks}"
    )
