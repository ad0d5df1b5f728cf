"""Where a forward pass first leaves the right way: which layer, which part, by how much.

Both passes are recorded, call by call, as trees. From the top, the first call that differs is
followed downwards while its inputs are right: that ends at the part that makes the first mistake,
or hands on a wrong argument.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from inferlab.model import Model
from inferlab.weights import Weights
from labkit.measure.rewire import REFERENCE, Part, parts_of, wired

TRACED = (
    "rope_angles", "causal_mask", "window_mask", "rms_norm", "project", "split_heads", "rotate",
    "softmax", "attention", "merge_heads", "self_attention", "silu", "swiglu", "decoder_block",
    "forward",
)  # fmt: skip


@dataclass
class Call:
    """One call of a part. layer: the decoder block it happened in, None outside of them."""

    part: str
    layer: int | None
    inputs: dict[str, Any]
    output: np.ndarray = field(default_factory=lambda: np.zeros(0))
    children: list[Call] = field(default_factory=list)

    @property
    def where(self) -> str:
        return self.part if self.layer is None else f"{self.part} of layer {self.layer}"


@dataclass(frozen=True)
class Divergence:
    """The first place where a pass differs from the right one, and what became of it.

    part, layer: the part that makes the mistake, and its decoder block (None: outside of them)
    trouble: what it does wrong, in a sentence; error: the largest difference there
    by_layer: behind each block, the largest error as a share of the largest right number
    logits_error: the largest error of a logit; n_same_top of n_positions keep their top token
    """

    part: str
    layer: int | None
    trouble: str
    error: float
    by_layer: tuple[float, ...] = ()
    logits_error: float = float("nan")
    n_same_top: int = 0
    n_positions: int = 0

    def __str__(self) -> str:
        place = "outside the blocks" if self.layer is None else f"layer {self.layer}"
        lines = [f"first difference: {place}, {self.part}", f"  {self.trouble}"]
        if np.isfinite(self.logits_error):
            lines.append(
                f"  in the end: logits off by up to {self.logits_error:.3g}; the top token is the "
                f"right one at {self.n_same_top} of {self.n_positions} positions"
            )
        return "\n".join(lines)


def first_divergence(
    namespace: Mapping[str, Any], model: Model, tokens: Any, right: Model | None = None
) -> Divergence | None:
    """Run a notebook's own forward and the course's, and find where they part; None: they agree.

    namespace: globals() of the notebook, or `globals() | {"rotate": another}` to try a change (one
    that does not call `rotate` itself: that name means the new one then).
    tokens: (B, T) ids, or one sequence (T,). right: the model for the course's pass, where the one
    under test has other weights.
    """
    batch = np.atleast_2d(np.asarray(tokens))
    expected, _ = record(REFERENCE, right or model, batch)
    parts = parts_of(namespace)
    root, trouble = record(parts, model, batch)
    if trouble is not None:
        call = _last_open(root)
        text = f"it raises {type(trouble).__name__}: {trouble}"
        return Divergence(call.part, call.layer, text, float("nan"))
    if _same(expected.output, root.output):
        return None
    part, layer, text, error = _descend(expected, root)
    same_shape = expected.output.shape == root.output.shape
    top = expected.output.argmax(-1) == root.output.argmax(-1) if same_shape else np.zeros(0)
    return Divergence(
        part,
        layer,
        text,
        error,
        tuple(_by_layer(expected, root)),
        _error(expected.output, root.output),
        int(top.sum()),
        int(top.size),
    )


def calls(namespace: Mapping[str, Any], model: Model, tokens: Any, part: str) -> list[Call]:
    """Every call of one part while a notebook's own forward runs, in order: inputs and outputs.

    Raises ValueError for a part that is not recorded, and what the notebook's functions raise.
    """
    if part not in TRACED:
        raise ValueError(f"{part!r} is not recorded; recorded are {', '.join(TRACED)}")
    root, trouble = record(parts_of(namespace), model, np.atleast_2d(np.asarray(tokens)))
    if trouble is not None:
        raise trouble
    return [call for call in _walk(root) if call.part == part]


def _walk(call: Call) -> Iterator[Call]:
    yield call
    for child in call.children:
        yield from _walk(child)


# ---- recording ---------------------------------------------------------------------------------


def record(
    parts: Mapping[str, Part], model: Model, tokens: np.ndarray
) -> tuple[Call, Exception | None]:
    """The tree of calls of parts["forward"] on tokens, and the error that ended it, if one did."""
    root = Call("nothing", None, {})
    stack, n_blocks = [root], 0
    weights = {id(array) for array in _arrays(model.weights)}

    def kept(value: Any) -> Any:
        if id(value) in weights or not hasattr(value, "__array__"):
            return value
        return np.array(value)  # a copy: a learner's part may change it later

    def wrap(name: str, part: Part) -> Part:
        if name not in TRACED:
            return part

        def recorded(*args: Any, **kwargs: Any) -> Any:
            nonlocal n_blocks
            layer = n_blocks if name == "decoder_block" else stack[-1].layer
            bound = _bound(name, args, kwargs)
            call = Call(name, layer, {key: kept(value) for key, value in bound.items()})
            stack[-1].children.append(call)
            stack.append(call)
            output = part(*args, **kwargs)
            stack.pop()
            n_blocks += name == "decoder_block"
            call.output = np.array(output)
            return output

        return recorded

    forward = wired(parts, wrap)["forward"]
    try:
        forward(model.weights, model.config, tokens)
    except Exception as error:  # the learner's: it is reported
        return root.children[0] if root.children else root, error
    return root.children[0], None


def _bound(name: str, args: tuple, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Arguments by the names that the course's part gives them, defaults filled in."""
    try:
        bound = inspect.signature(REFERENCE[name]).bind(*args, **kwargs)
    except TypeError:
        return {}
    bound.apply_defaults()
    return dict(bound.arguments)


def _arrays(weights: Weights) -> list[np.ndarray]:
    layers = [array for layer in weights.layers for array in layer.arrays().values()]
    return [weights.embedding, weights.final_gain, weights.head, *layers]


def _last_open(call: Call) -> Call:
    """The call that was running when the pass ended early: its output never came."""
    while call.children and call.children[-1].output.size == 0:
        call = call.children[-1]
    return call


# ---- comparing ---------------------------------------------------------------------------------


def _descend(right: Call, mine: Call) -> tuple[str, int | None, str, float]:
    """Part, layer, trouble and error of the first mistake inside a call whose output differs."""
    used: set[int] = set()
    missing = []
    for child in right.children:
        candidates = [c for c in mine.children if c.part == child.part and id(c) not in used]
        if not candidates:
            n = sum(c.part == child.part for c in right.children)
            found = sum(c.part == child.part for c in mine.children)
            missing += [f"{child.part} ({found} of {n} calls)"]
            continue
        twin = next((c for c in candidates if _same(child.output, c.output)), candidates[0])
        used.add(id(twin))
        if _same(child.output, twin.output):
            continue
        wrong = [key for key, value in child.inputs.items() if _differs(value, twin.inputs, key)]
        if not wrong:
            return _descend(child, twin)
        text = f"it hands a wrong `{wrong[0]}` to {child.part}{_never(missing)}"
        error = _error(child.inputs[wrong[0]], twin.inputs.get(wrong[0]))
        return right.part, right.layer, text + _size(error, child.inputs[wrong[0]]), error
    error = _error(right.output, mine.output)
    text = "its inputs are right, its output is not" + _never(missing)
    if right.output.shape != mine.output.shape:
        text += f": shape {mine.output.shape} in place of {right.output.shape}"
    return right.part, right.layer, text + _size(error, right.output), error


def _never(missing: list[str]) -> str:
    names = list(dict.fromkeys(missing))
    return f" (not called as often as in the course's: {', '.join(names)})" if names else ""


def _size(error: float, right: Any) -> str:
    if not np.isfinite(error) or np.asarray(right).dtype.kind != "f":
        return ""
    return f": off by up to {error:.3g}, the largest right number is {_largest(right):.3g}"


def _differs(value: Any, inputs: Mapping[str, Any], key: str) -> bool:
    """Whether an input that can be compared (numbers, arrays) differs; objects cannot."""
    if not isinstance(value, (np.ndarray, bool, int, float)):
        return False
    other = inputs.get(key)
    return value is not other and not _same(np.asarray(value), other)


def _same(right: np.ndarray, mine: Any) -> bool:
    """Equal up to half the digits that the number type has: far above rounding, far below a bug."""
    other = np.asarray(mine)
    if right.shape != other.shape or other.dtype.kind not in "biuf":
        return False
    if right.dtype.kind != "f":
        return bool((right == other).all())
    finite = np.isfinite(right)
    if not ((finite == np.isfinite(other)) | ((right == other) & ~finite)).all():
        return False
    allowed = np.sqrt(np.finfo(right.dtype).eps) * max(_largest(right), 1e-30)
    return _error(right, other) <= allowed


def _largest(array: Any) -> float:
    finite = np.asarray(array, dtype=np.float64)
    finite = finite[np.isfinite(finite)]
    return float(np.abs(finite).max()) if finite.size else 0.0


def _error(right: Any, mine: Any) -> float:
    """The largest difference where both are finite; nan where they cannot be compared."""
    a, b = np.asarray(right), np.asarray(mine)
    if a.shape != b.shape or a.dtype.kind not in "biuf" or b.dtype.kind not in "biuf":
        return float("nan")
    both = np.isfinite(a) & np.isfinite(b)
    if not both.any():
        return float("nan")
    return float(np.abs(a[both].astype(np.float64) - b[both]).max())


def _by_layer(right: Call, mine: Call) -> list[float]:
    blocks = [[c for c in call.children if c.part == "decoder_block"] for call in (right, mine)]
    pairs = zip(*blocks, strict=False)
    return [_error(a.output, b.output) / max(_largest(a.output), 1e-30) for a, b in pairs]
