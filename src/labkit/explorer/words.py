"""What the explorer says beside its pictures: the figures on top, one sentence, all formulas."""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence
from typing import Any

from labkit.explorer.formulas import Section, sections
from labkit.explorer.pictures import gigabytes, limits_said, verdict
from labkit.explorer.state import State
from labkit.units import format_seconds

KvBytes = Callable[[Any, int, int, int], float]


def figures(state: State) -> list[tuple[str, str]]:
    """The numbers that one looks for first: (what it is, how much)."""
    held = (state.weight_bytes + state.cache_bytes) / 1e9
    limit = state.memory_bytes / 1e9
    return [
        ("memory" if state.fits else "does not fit", f"{held:,.4g} of {limit:,.4g} GB"),
        ("cache for a token", gigabytes(state.grow_bytes)),
        ("users that fit", f"{state.fits_sequences:,}"),
        ("for each user", f"{state.user_per_s:,.0f} tok/s" if state.user_per_s >= 1000 else
                          f"{state.user_per_s:,.3g} tok/s"),
        ("for all users", f"{state.all_per_s:,.0f} tok/s"),
        ("to the first token", format_seconds(state.prefill.seconds)),
    ]  # fmt: skip


def status(state: State) -> str:
    """The outcome in a sentence: what a screen reader hears after every change."""
    s = state.setting
    said = (
        f"{s.model}, {s.n_sequences:,} × {s.n_tokens:,} tokens on {state.memory_bytes / 1e9:,.0f} "
        f"GB: {verdict(state)}. Each user at most {state.user_per_s:,.1f} tokens/s, all together "
        f"{state.all_per_s:,.0f}. {limits_said(state)}"
    )
    return " ".join([said, *s.notes()])


def formula_table(all_sections: Sequence[Section]) -> str:
    """Every number with its formula, as an HTML table: one body for each section."""
    bodies = "".join(
        f'<tbody><tr><th colspan="3" scope="rowgroup">{html.escape(one.title)}</th></tr>'
        + "".join(
            f'<tr><th scope="row">{html.escape(line.name)}</th>'
            f"<td>{_formula(line.formula, line.filled, line.instead)}</td>"
            f"<td><b>{html.escape(line.result)}</b></td></tr>"
            for line in one.lines
        )
        + "</tbody>"
        for one in all_sections
    )
    head = "".join(f'<th scope="col">{name}</th>' for name in ("number", "formula", "result"))
    return (
        '<table class="x-formulas"><caption>Every number, its formula, and the formula with the '
        f"values filled in</caption><thead><tr>{head}</tr></thead>{bodies}</table>"
    )


def _formula(symbols: str, filled: str, instead: str) -> str:
    if not symbols:
        return html.escape(instead)
    return f"<i>{html.escape(symbols)}</i><br><code>{html.escape(filled)}</code>"


NOTEBOOK_STYLE = """<style>
.jp-RenderedHTMLCommon .x-formulas, .x-formulas { border-collapse: collapse; width: 100%;
  table-layout: auto; margin: 0; }
.x-formulas caption { text-align: left; padding: .3em 0; }
.jp-RenderedHTMLCommon .x-formulas th, .jp-RenderedHTMLCommon .x-formulas td,
.x-formulas th, .x-formulas td { text-align: left; vertical-align: top; padding: .25em .7em;
  white-space: normal; max-width: none; }
.x-formulas td:last-child { white-space: nowrap; }
.x-explorer .jupyter-widget-Collapse-header { color: var(--jp-ui-font-color0, #000);
  background: var(--jp-layout-color2, #eee); }
</style>"""


def notebook_table(state: State) -> str:
    """The table within a frame of its own height, for a notebook."""
    frame = "max-height:21em;overflow:auto;border:1px solid #8a8f98;padding:0 .4em"
    return (
        f'{NOTEBOOK_STYLE}<div style="{frame}" tabindex="0" role="region" '
        f'aria-label="formulas">{formula_table(sections(state))}</div>'
    )


def comparison(state: State, kv_bytes: KvBytes) -> str:
    """What the learner's own function says of the cache, beside what is drawn."""
    name = getattr(kv_bytes, "__name__", "your function")
    s = state.setting
    try:
        yours = kv_bytes(s.config, s.n_tokens, s.n_sequences, s.bytes_per_number)
        same = yours == state.cache_bytes
        says = f"{yours:,} bytes"
    except Exception as error:  # it is the learner's, and may raise anything
        return f"Your `{name}` could not say: {type(error).__name__}: {error}"
    if same:
        return f"Your `{name}` says {says} for this cache: the same."
    why = ""
    if s.config.mla:
        why = " This model keeps latents, not keys and values (lesson 05)."
    elif s.config.sliding_window:
        why = " Layers of this model have a window and keep less (lesson 05)."
    return f"Your `{name}` says {says} for this cache, the picture {state.cache_bytes:,}.{why}"
