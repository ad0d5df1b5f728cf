"""Choose an engine: the NumPy reference or PyTorch, on which device, in which number format."""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike
from typing import TYPE_CHECKING

import numpy as np

from inferlab import device as devices
from inferlab.cache_sizes import layer_cache_numbers
from inferlab.engines.fast_numpy.model import FastModel
from inferlab.engines.options import ENGINES
from inferlab.model import Model, load_model
from inferlab.roofline import forward_flops

if TYPE_CHECKING:
    from inferlab.engines.pytorch.model import TorchModel


@dataclass(frozen=True)
class Engine:
    """A model that runs, and where and as what it runs. name: one of ENGINES, but for "auto"."""

    model: Model | FastModel | TorchModel
    name: str
    device: str
    dtype: str

    @property
    def where(self) -> str:
        """In words: device and number format."""
        return f"{self.device}, {self.dtype}"

    def bandwidth(self) -> float:
        """Bytes a second that this engine's library reads on this device, measured now."""
        torch = devices.torch_module() if self.name == "torch" else None
        return devices.read_bandwidth(device=self.device, torch=torch)

    def peak(self) -> float:
        """FLOP a second of a matrix product in the dtype of the activations, measured now."""
        torch = devices.torch_module() if self.name == "torch" else None
        dtype = devices.compute_dtype(self.device, self.dtype)
        return devices.matmul_peak(device=self.device, dtype=dtype, torch=torch)

    def step_bytes(self, n_cached: int, n_sequences: int = 1) -> int:
        """Bytes that one decode step reads: every weight once, and the keys and values.

        0 where that depends on the text: with experts, each token reads only some of them.
        """
        config = self.model.config
        if config.n_experts:
            return 0
        # A sliding window hides old tokens here, but they are kept: every layer holds all of them.
        numbers = n_sequences * n_cached * config.n_layers * layer_cache_numbers(config)
        if isinstance(self.model, FastModel):
            return 4 * numbers + self.model.weight_bytes
        if isinstance(self.model, Model):
            weights = self.model.weights
            tied = np.may_share_memory(weights.head, weights.embedding)
            return 4 * numbers + weights.n_bytes - (0 if tied else weights.embedding.nbytes)
        return self.model.cache_dtype.itemsize * numbers + self.model.step_bytes

    def step_flops(self, n_cached: int, n_sequences: int = 1) -> int:
        """FLOPs of one decode step."""
        return n_sequences * forward_flops(self.model.config, 1, n_cached)


def load_engine(
    name_or_path: str | PathLike[str],
    engine: str = "auto",
    device: str = "cpu",
    dtype: str = "float32",
) -> Engine:
    """Load a model (see model.load_model) into an engine.

    engine "auto": NumPy for float32 on the CPU, PyTorch for everything else; "fast": NumPy
    arranged for speed, plain Llamas only.
    Raises ValueError for a device or dtype that is not here, or one that NumPy does not have.
    """
    if engine not in ENGINES:
        raise ValueError(f"engine {engine!r} is not one of {', '.join(ENGINES)}")
    on_numpy = engine in ("numpy", "fast")
    if on_numpy and device == "auto":
        device = "cpu"
    device, dtype = devices.resolve(device, dtype)
    plain = (device, dtype) == ("cpu", "float32")
    if on_numpy and not plain:
        raise ValueError(f"the NumPy engine runs on cpu in float32, not {device} in {dtype}")
    model = load_model(name_or_path)
    if engine == "fast":
        return Engine(FastModel.of(model), "fast", device, dtype)
    if engine == "numpy" or (engine == "auto" and plain):
        return Engine(model, "numpy", device, dtype)
    from inferlab.engines.pytorch.model import TorchModel

    return Engine(TorchModel.from_model(model, device, dtype), "torch", device, dtype)
