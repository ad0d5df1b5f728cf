"""The picture of `inferlab bench`: tokens a second against the batch, under the roofline."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from labkit.figures import show as figures

if TYPE_CHECKING:
    from inferlab.commands.bench import BenchRow


def draw(rows: Sequence[BenchRow], model: str) -> Figure:
    """Measured pace (filled markers) and bound (thin, dotted, hollow) of each engine and dtype.

    Raises ValueError for no rows.
    """
    if not rows:
        raise ValueError("there is nothing to draw: no measurement was given")
    where = rows[0].device
    figure, plot = figures.axes(
        f"{model} on {where}: decoding in batches",
        "sequences in the batch (count)",
        "all sequences together (tokens/s)",
        size=(9.6, 4.8),
    )
    kinds = list(dict.fromkeys((row.engine, row.dtype) for row in rows))
    for index, kind in enumerate(kinds):
        own = [row for row in rows if (row.engine, row.dtype) == kind]
        batches, look = [row.batch for row in own], _look(index)
        label = " ".join(kind)
        plot.plot(batches, [row.tokens_per_s for row in own], label=label, **look)
        thin = look | {"linewidth": 1, "linestyle": ":", "markersize": 4, "fillstyle": "none"}
        bound = [row.bound_tokens_per_s for row in own]
        plot.plot(batches, bound, label=f"{label}: bound", **thin)
    plot.set_xscale("log", base=2)
    plot.set_yscale("log")
    ticks = sorted({row.batch for row in rows})
    plot.set_xticks(ticks, [str(n) for n in ticks])
    plot.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    plot.legend(loc="center left", bbox_to_anchor=(1.01, 0.5))
    return figure


def alt(rows: Sequence[BenchRow]) -> str:
    """The picture in words."""
    return "; ".join(
        f"{row.engine} {row.dtype}, batch {row.batch}: {row.tokens_per_s:.0f} tokens/s, "
        f"{row.fraction:.0%} of the bound"
        for row in rows
    )


def save(figure: Figure, path: Path, text: str) -> Path:
    """Write a PNG with its description inside, whole or not at all, and close the figure."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    os.close(handle)
    try:
        figure.savefig(temporary, format="png", dpi=200, metadata={"Description": text})
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    finally:
        plt.close(figure)
        Path(temporary).unlink(missing_ok=True)
    return path


def _look(index: int) -> dict[str, Any]:
    """Colour, line and marker of one engine and dtype: to be told apart without colour too."""
    n = len(figures.COLOURS)
    solid = [line for line in figures.LINES if line != ":"]  # dotted are the bounds
    return {
        "color": figures.COLOURS[index % n],
        "linestyle": solid[index % len(solid)],
        "marker": figures.MARKERS[index % n],
    }
