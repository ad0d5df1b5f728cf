"""Things to turn and look at: how a device's memory is shared by weights and KV cache.

The bytes of the cache are computed by the function that is handed in, so it is the learner's own
function that draws.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from labkit.device import grading
from labkit.display import box, in_kernel, put
from labkit.figures import COLOURS, INK, axes, show
from labkit.units import format_bytes

KvBytes = Callable[[Any, int, int, int], float]
CONTEXTS = tuple(1024 * 2**i for i in range(8))  # 1k … 128k tokens
MEMORIES_GB = (24, 80, 141)
PRESETS = ("8b-style", "70b-style", "llama-2-7b", "qwen3-8b", "llama-3.2-1b", "smollm2-135m")
_KINDS: dict[str, Any] = {
    "weights": {"facecolor": COLOURS[0], "edgecolor": INK},
    "KV cache": {"facecolor": "#f7b27a", "edgecolor": INK, "hatch": ".."},
    "room left": {"facecolor": "white", "edgecolor": "#717581"},
    "does not fit": {"facecolor": "white", "edgecolor": COLOURS[1], "hatch": "////"},
}


@dataclass(frozen=True)
class Setting:
    """What is asked for: a model by name, and how it is served."""

    model: str = "8b-style"
    n_tokens: int = 8192
    n_sequences: int = 16
    bytes_per_number: int = 2
    memory_gb: int = 80


@dataclass(frozen=True)
class Memory:
    """Bytes of the weights and of the KV cache, beside the bytes that the device has."""

    setting: Setting
    weights: float
    kv: float

    @property
    def limit(self) -> float:
        return self.setting.memory_gb * 1e9

    @property
    def left(self) -> float:
        """Bytes that stay free; negative by what is missing."""
        return self.limit - self.weights - self.kv

    @property
    def fits(self) -> bool:
        return self.left >= 0

    def line(self) -> str:
        """The numbers in one sentence."""
        s = self.setting
        state = (
            f"fits, {_gb(self.left)} left"
            if self.fits
            else f"does not fit: {_gb(-self.left)} short"
        )
        return (
            f"{s.model}, {_sequences(s.n_sequences)} of {s.n_tokens:,} tokens, "
            f"{s.bytes_per_number} byte{'s' if s.bytes_per_number != 1 else ''} per cached number: "
            f"weights {format_bytes(self.weights)} + KV cache {format_bytes(self.kv)} "
            f"on a device of {s.memory_gb} GB: {state}."
        )


def memory(setting: Setting, configs: Mapping[str, Any], kv_bytes: KvBytes) -> Memory:
    """The memory of one setting; weights at 2 bytes each (bf16).

    configs: name -> ModelConfig; kv_bytes(config, n_tokens, n_sequences, bytes_per_number).
    Raises ValueError if kv_bytes gives no number of bytes; what it raises itself comes through.
    """
    config = configs[setting.model]
    kv = kv_bytes(config, setting.n_tokens, setting.n_sequences, setting.bytes_per_number)
    if not isinstance(kv, Real) or not 0 <= kv < float("inf"):
        raise ValueError(f"the KV cache's bytes must be a number of 0 or more; got {kv!r}")
    return Memory(setting, 2.0 * config.n_params, float(kv))


def presets() -> dict[str, Any]:
    """The models offered: name -> ModelConfig."""
    from inferlab.data import model_preset

    return {name: model_preset(name) for name in PRESETS}


# ---- the picture -------------------------------------------------------------------------------


def memory_figure(rows: Sequence[Memory]) -> Figure:
    """One bar a row, all of one device: weights, KV cache, room left, and what does not fit."""
    setting, limit = rows[0].setting, rows[0].limit / 1e9
    title = f"{setting.model}, {_sequences(setting.n_sequences)}: the memory of one device"
    figure, plot = axes(
        title, "memory (GB)", "context (tokens)", size=(7.6, 2.1 + 0.55 * len(rows))
    )
    most = max((r.weights + r.kv) / 1e9 for r in rows)
    edge = 1.06 * min(max(limit, most), 2 * limit)
    for position, row in enumerate(rows):
        _bar(plot, position, row, edge)
    plot.axvline(limit, color=INK, linestyle="--", linewidth=2, marker="")
    plot.text(limit, -0.62, f"{setting.memory_gb} GB ", ha="right", va="center", weight="bold")
    plot.set_yticks(range(len(rows)), [f"{row.setting.n_tokens:,}" for row in rows])
    plot.set_ylim(len(rows) - 0.5, -0.85)
    plot.set_xlim(0, edge)
    plot.grid(False, axis="y")
    _legend(figure, rows)
    return figure


def _bar(plot: Axes, position: int, row: Memory, edge: float) -> None:
    """Stack the parts up to the limit, then what lies past it, and say how much is needed."""
    limit, weights, total = row.limit / 1e9, row.weights / 1e9, (row.weights + row.kv) / 1e9
    parts = [
        ("weights", 0.0, min(weights, limit)),
        ("KV cache", min(weights, limit), min(total, limit)),
        ("room left", min(total, limit), limit),
        ("does not fit", limit, min(total, edge)),
    ]
    for kind, start, stop in parts:
        if stop > start:
            plot.barh(position, stop - start, left=start, height=0.62, linewidth=1, **_KINDS[kind])
    if not row.fits:
        _label(plot, position, f"does not fit: needs {total:,.0f} GB", total, edge)


def _label(plot: Axes, position: int, text: str, total: float, edge: float) -> None:
    """Behind the end of a bar where there is room, else at the picture's edge, on the bar."""
    frame = {"boxstyle": "round,pad=0.25", "facecolor": "white", "edgecolor": COLOURS[1]}
    look: dict[str, Any] = {"va": "center", "fontsize": 11, "bbox": frame}
    if total < 0.6 * edge:
        plot.text(total + 0.02 * edge, position, text, ha="left", **look)
    else:
        text += " →" if total > edge else ""
        plot.text(edge * 0.985, position, text, ha="right", **look)


def _legend(figure: Figure, rows: Sequence[Memory]) -> None:
    kinds = ["weights", "KV cache", "room left"]
    kinds += ["does not fit"] if any(not row.fits for row in rows) else []
    handles = [Patch(label=kind, linewidth=1, **_KINDS[kind]) for kind in kinds]
    figure.legend(
        handles=handles, loc="outside lower left", ncols=4, handlelength=2.2, handleheight=1.2
    )


def alt_text(rows: Sequence[Memory]) -> str:
    """The picture in words."""
    return "Bars of memory. " + " ".join(row.line() for row in rows)


def static_view(
    kv_bytes: KvBytes, configs: Mapping[str, Any] | None = None, setting: Setting | None = None
) -> str | None:
    """The default setting at four context lengths, as a picture that needs no kernel."""
    known = configs or presets()
    start = setting or Setting(model=next(iter(known)))
    rows = [
        memory(Setting(**{**vars(start), "n_tokens": n}), known, kv_bytes)
        for n in (1024, 8192, 32768, 131072)
    ]
    return show(memory_figure(rows), alt=alt_text(rows))


# ---- the widget --------------------------------------------------------------------------------


def kv_explorer(kv_bytes: KvBytes, configs: Mapping[str, Any] | None = None) -> None:
    """Show the memory bars of a served model, with controls for model, context and sequences.

    kv_bytes(config, n_tokens, n_sequences, bytes_per_number) -> bytes is the function that draws;
    configs: name -> ModelConfig (the course's presets). A static picture stands above the controls,
    so that something is seen without a kernel. A kv_bytes that is not written yet is said, not
    raised.
    """
    known = configs or presets()
    try:
        static_view(kv_bytes, known)
    except Exception as error:
        return _say(_trouble(kv_bytes, error))
    if in_kernel() and not grading():
        from IPython.display import display

        data = kv_widget(kv_bytes, known)._repr_mimebundle_()
        text = "the controls need a notebook with widgets; the picture above needs none"
        display({**(data[0] if isinstance(data, tuple) else data), "text/plain": text}, raw=True)
    return None


def kv_widget(kv_bytes: KvBytes, configs: Mapping[str, Any]) -> Any:
    """The controls and the bar they draw, as one widget."""
    import ipywidgets as w

    controls = _controls(list(configs))

    def draw(**values: Any) -> None:
        try:
            row = memory(Setting(**values), configs, kv_bytes)
        except Exception as error:
            return _say(_trouble(kv_bytes, error))
        show(memory_figure([row]), alt=alt_text([row]))
        return put(f'<p role="status">{html.escape(row.line())}</p>', row.line())

    picture = w.interactive_output(draw, controls)
    picture.layout.min_height = "330px"  # no jump while it is redrawn
    return w.VBox([*controls.values(), picture])


def _controls(models: list[str]) -> dict[str, Any]:
    import ipywidgets as w

    start = Setting(model=models[0])
    look: dict[str, Any] = {
        "style": {"description_width": "11em"},
        "layout": w.Layout(width="34em", max_width="98%"),
    }
    contexts = [(f"{n:,}", n) for n in CONTEXTS]
    memories = [(f"{n} GB (10^9 bytes each)", n) for n in MEMORIES_GB]
    return {
        "model": w.Dropdown(options=models, description="model", **look),
        "n_tokens": w.SelectionSlider(
            options=contexts,
            value=start.n_tokens,
            description="context (tokens)",
            continuous_update=False,
            **look,
        ),
        "n_sequences": w.IntSlider(
            value=start.n_sequences,
            min=1,
            max=64,
            description="sequences",
            continuous_update=False,
            **look,
        ),
        "bytes_per_number": w.Dropdown(
            options=[("2 (bf16)", 2), ("1 (8-bit)", 1)],
            description="bytes per KV number",
            **look,
        ),
        "memory_gb": w.Dropdown(
            options=memories, value=start.memory_gb, description="device memory", **look
        ),
    }


def _trouble(kv_bytes: KvBytes, error: Exception) -> str:
    name = getattr(kv_bytes, "__name__", "the function")
    if isinstance(error, NotImplementedError):
        return f"`{name}` is not written yet: write it above, check it, then run this cell again."
    return f"`{name}` could not be drawn: {type(error).__name__}: {error}"


def _say(text: str) -> None:
    put(box(text), text)


def _gb(n_bytes: float) -> str:
    return f"{n_bytes / 1e9:,.1f} GB"


def _sequences(n: int) -> str:
    return f"{n} sequence{'s' if n != 1 else ''}"
