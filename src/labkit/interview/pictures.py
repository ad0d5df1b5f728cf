"""The report's pictures as SVG: they take the page's colours, light or dark, and print sharp."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence

from labkit.interview.summary import Bin, Day
from labkit.predictions import is_near

WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 640, 248, 62, 46, 26
MANY = 28  # days shown


def history(days: Sequence[Day]) -> str:
    """The share of marks on each day that had answers; the number of answers below."""
    days = days[-MANY:]
    step = (WIDTH - LEFT - 20) / max(1, len(days))
    points = [(LEFT + step * (i + 0.5), _height(day.share)) for i, day in enumerate(days)]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    parts = [*_shares(), f'<polyline class="line" points="{line}"/>']
    every = math.ceil(len(days) / 7)
    for i, (day, (x, y)) in enumerate(zip(days, points, strict=True)):
        parts.append(f'<circle class="dot" cx="{x:.1f}" cy="{y:.1f}" r="5"/>')
        if i % every == 0:
            label = f"{day.day.day} {day.day:%b}"
            parts.append(_text(x, HEIGHT - 25, label) + _text(x, HEIGHT - 6, f"n = {day.n}"))
    alt = "Share of marks by day: " + "; ".join(
        f"{day.day.day} {day.day:%B} {day.share:.0%} of {day.n}" for day in days
    )
    return _svg(parts, alt)


def confidence(bins: Sequence[Bin]) -> str:
    """What was said against what was so; on the diagonal the two agree."""

    def x(share: float) -> float:
        return LEFT + 30 + share * (WIDTH - LEFT - 80)

    parts = [*_shares()]
    ends = f'x1="{x(0):.0f}" y1="{_height(0):.0f}" x2="{x(1):.0f}" y2="{_height(1):.0f}"'
    parts.append(f'<line class="ideal" {ends}/>')
    for share in (0, 0.25, 0.5, 0.75, 1):
        parts.append(_text(x(share), HEIGHT - 25, f"{share:.0%}"))
    parts.append(_text(x(0.5), HEIGHT - 6, "how sure you said you were"))
    for i, one in enumerate(bins):
        at = f'cx="{x(one.said):.1f}" cy="{_height(one.right):.1f}"'
        parts.append(f'<circle class="dot" {at} r="6"/>')
        low = i % 2 == 0 and one.right > 0.2  # in turn, so that neighbours do not meet
        below = 24 if low else -13
        parts.append(_text(x(one.said), _height(one.right) + below, f"n = {one.n}"))
    alt = "Right answers against stated confidence: " + "; ".join(
        f"said {one.said:.0%}, right {one.right:.0%} of {one.n}" for one in bins
    )
    return _svg(parts, alt)


def predictions(ratios: Mapping[str, float], over: str = "the computed answer") -> str:
    """Lodged over what was so, on a scale of factors; in the middle the two agree.

    Where the report's style is not at hand, in a notebook, it is drawn in the text's colour.
    """
    height, y = 104, 36

    def x(ratio: float) -> float:
        place = max(-4.0, min(4.0, math.log2(ratio)))
        return WIDTH / 2 + place * (WIDTH - 120) / 8

    ends = f'x1="40" y1="{y}" x2="{WIDTH - 40}" y2="{y}"'
    parts = [f'<line class="axis" stroke="currentColor" {ends}/>']
    middle = f'x1="{x(1)}" y1="10" x2="{x(1)}" y2="{y + 12}"'
    parts.append(f'<line class="ideal" stroke="currentColor" {middle}/>')
    for factor in (1 / 16, 1 / 4, 1, 4, 16):
        word = "as predicted" if factor == 1 else _factor(factor)
        parts.append(_text(x(factor), y + 30, word))
    spots: dict[int, int] = {}
    for ratio in sorted(r for r in ratios.values() if r > 0):
        column = round(x(ratio) / 11)
        spots[column] = spots.get(column, -1) + 1
        cy = y - 9 * spots[column] / 2
        at = f'cx="{x(ratio):.1f}" cy="{cy:.1f}"'
        parts.append(f'<circle class="dot" fill="currentColor" {at} r="5"/>')
    parts.append(_text(WIDTH / 2, height - 8, f"your prediction over {over}"))
    near = sum(is_near(r) for r in ratios.values())
    alt = f"{len(ratios)} lodged predictions over {over}; {near} within a quarter."
    return _svg(parts, alt, height)


def _factor(factor: float) -> str:
    return f"{factor:g} times" if factor > 1 else f"1/{1 / factor:g}"


def _height(share: float) -> float:
    return TOP + (1 - share) * (HEIGHT - BOTTOM - TOP)


def _shares() -> list[str]:
    """Lines across at 0, 50 and 100 %, labelled."""
    parts = []
    for share in (0, 0.5, 1):
        y = _height(share)
        parts.append(f'<line class="axis" x1="{LEFT}" y1="{y}" x2="{WIDTH - 20}" y2="{y}"/>')
        parts.append(_text(LEFT - 10, y + 5, f"{share:.0%}", "end"))
    return parts


def _text(x: float, y: float, words: str, anchor: str = "middle") -> str:
    look = f'text-anchor="{anchor}" fill="currentColor" font-size="16"'
    return f'<text x="{x:.1f}" y="{y:.1f}" {look}>{html.escape(words)}</text>'


def _svg(parts: Sequence[str], alt: str, height: int = HEIGHT) -> str:
    label = html.escape(alt, quote=True)
    body = "".join(parts)
    return (
        f'<svg role="img" aria-label="{label}" viewBox="0 0 {WIDTH} {height}" '
        f'preserveAspectRatio="xMidYMid meet"><title>{html.escape(alt)}</title>{body}</svg>'
    )
