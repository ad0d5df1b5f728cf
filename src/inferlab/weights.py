"""A model's weights in the course's own layout, whatever file they came from.

Matrices are (d_in, d_out), so a projection is `x @ w`. Files store them as (d_out, d_in);
`weights_from_tensors` checks every name, shape and number, and turns each matrix round once.
"""

import json
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, fields
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from inferlab.config import InvalidModelFile, ModelConfig


@dataclass(frozen=True)
class LayerWeights:
    """One decoder block: gains of its two norms, four attention and three MLP matrices."""

    attention_gain: np.ndarray  # (d_model,)
    w_q: np.ndarray  # (d_model, n_heads * d_head)
    w_k: np.ndarray  # (d_model, n_kv_heads * d_head)
    w_v: np.ndarray  # (d_model, n_kv_heads * d_head)
    w_o: np.ndarray  # (n_heads * d_head, d_model)
    mlp_gain: np.ndarray  # (d_model,)
    w_gate: np.ndarray  # (d_model, d_ff)
    w_up: np.ndarray  # (d_model, d_ff)
    w_down: np.ndarray  # (d_ff, d_model)


@dataclass(frozen=True)
class Weights:
    """All weights of a model. With a tied head, head is a view: embedding turned round."""

    embedding: np.ndarray  # (vocab_size, d_model)
    layers: tuple[LayerWeights, ...]
    final_gain: np.ndarray  # (d_model,)
    head: np.ndarray  # (d_model, vocab_size)

    @property
    def n_bytes(self) -> int:
        """Memory of all weights; a tied head costs nothing of its own."""
        tied = np.may_share_memory(self.head, self.embedding)
        layers = sum(getattr(layer, f.name).nbytes for layer in self.layers for f in fields(layer))
        head = 0 if tied else self.head.nbytes
        return self.embedding.nbytes + layers + self.final_gain.nbytes + head


@dataclass(frozen=True)
class TensorNames:
    """How one file format names the tensors; layer maps a field of LayerWeights to a pattern."""

    embedding: str
    final_gain: str
    head: str
    layer: Mapping[str, str]  # with {} for the number of the layer

    def of(self, index: int, field: str) -> str:
        """Name of one tensor of layer `index`."""
        return self.layer[field].format(index)

    def all(self, config: ModelConfig) -> set[str]:
        """Every tensor that a file of this model must hold."""
        layers = {self.of(index, field) for index in range(config.n_layers) for field in self.layer}
        head = set() if config.tied_embeddings else {self.head}
        return layers | head | {self.embedding, self.final_gain}


HF_NAMES = TensorNames(
    embedding="model.embed_tokens.weight",
    final_gain="model.norm.weight",
    head="lm_head.weight",
    layer={
        "attention_gain": "model.layers.{}.input_layernorm.weight",
        "w_q": "model.layers.{}.self_attn.q_proj.weight",
        "w_k": "model.layers.{}.self_attn.k_proj.weight",
        "w_v": "model.layers.{}.self_attn.v_proj.weight",
        "w_o": "model.layers.{}.self_attn.o_proj.weight",
        "mlp_gain": "model.layers.{}.post_attention_layernorm.weight",
        "w_gate": "model.layers.{}.mlp.gate_proj.weight",
        "w_up": "model.layers.{}.mlp.up_proj.weight",
        "w_down": "model.layers.{}.mlp.down_proj.weight",
    },
)


def layer_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """The shape that each field of LayerWeights must have."""
    d_model, d_ff = config.d_model, config.d_ff
    d_queries = config.n_heads * config.d_head
    d_keys = config.n_kv_heads * config.d_head
    return {
        "attention_gain": (d_model,),
        "w_q": (d_model, d_queries),
        "w_k": (d_model, d_keys),
        "w_v": (d_model, d_keys),
        "w_o": (d_queries, d_model),
        "mlp_gain": (d_model,),
        "w_gate": (d_model, d_ff),
        "w_up": (d_model, d_ff),
        "w_down": (d_ff, d_model),
    }


def random_weights(
    config: ModelConfig, rng: np.random.Generator, dtype: Any = np.float32
) -> Weights:
    """Random weights for tests, scaled so that activations and logits are as in a trained model.

    Matrices have the deviation 1/sqrt(d_in), so each projection keeps the size of its input; gains
    lie round 1, so that a forgotten gain shows.
    """

    def draw(shape: tuple[int, ...]) -> np.ndarray:
        if len(shape) == 1:
            return rng.uniform(0.5, 1.5, shape).astype(dtype)
        return (rng.standard_normal(shape) / np.sqrt(shape[0])).astype(dtype)

    def draw_layer() -> LayerWeights:
        return LayerWeights(**{name: draw(shape) for name, shape in layer_shapes(config).items()})

    embedding = draw((config.vocab_size, config.d_model)) * np.asarray(
        np.sqrt(config.vocab_size / config.d_model), dtype
    )
    layers = tuple(draw_layer() for _ in range(config.n_layers))
    head = embedding.T if config.tied_embeddings else draw((config.d_model, config.vocab_size))
    return Weights(embedding, layers, draw((config.d_model,)), head)


def weights_from_tensors(
    config: ModelConfig,
    names: TensorNames,
    held: Collection[str],
    read: Callable[[str], np.ndarray],
    dtype: Any = np.float32,
) -> Weights:
    """Build Weights from a file's tensors, whose matrices are (d_out, d_in) there.

    held: the names of all tensors of the file; read(name) gives one as an array. Nothing is read
    before the names are complete.

    Raises InvalidModelFile naming the tensor that is missing, unexpected, misshapen, or holds NaN
    or infinity.
    """
    _check_names(config, names, held)

    def take(name: str, shape: tuple[int, ...]) -> np.ndarray:
        tensor = read(name)
        if tensor.shape != shape:
            raise InvalidModelFile(f"tensor {name} has the shape {tensor.shape}; needed: {shape}")
        tensor = np.array(tensor, dtype=dtype, order="C")  # a copy: the file may be a memory map
        if not np.isfinite(tensor).all():
            raise InvalidModelFile(f"tensor {name} holds NaN or infinity: the file is damaged")
        return tensor

    def take_layer(index: int) -> LayerWeights:
        arrays = {
            # .T turns (d_out, d_in) into (d_in, d_out) without a copy, and leaves a gain as it is.
            field: take(names.of(index, field), shape[::-1]).T
            for field, shape in layer_shapes(config).items()
        }
        return LayerWeights(**arrays)

    vocabulary = (config.vocab_size, config.d_model)
    embedding = take(names.embedding, vocabulary)
    layers = tuple(take_layer(index) for index in range(config.n_layers))
    final_gain = take(names.final_gain, (config.d_model,))
    head = embedding if config.tied_embeddings else take(names.head, vocabulary)
    return Weights(embedding, layers, final_gain, head.T)


def _check_names(config: ModelConfig, names: TensorNames, held: Collection[str]) -> None:
    needed = names.all(config)
    # Some exporters repeat a tied head, and old ones store RoPE's frequencies: both follow from
    # the configuration.
    redundant = {name for name in held if name.endswith("rotary_emb.inv_freq")} | {names.head}
    missing = sorted(needed - set(held))
    extra = sorted(set(held) - needed - redundant)
    if missing:
        raise InvalidModelFile(f"{len(missing)} tensor(s) missing, the first: {missing[0]}")
    if extra:
        raise InvalidModelFile(f"{len(extra)} unexpected tensor(s), the first: {extra[0]}")


def load_hf_weights(
    folder: str | PathLike[str], config: ModelConfig, dtype: Any = np.float32
) -> Weights:
    """Read the *.safetensors of a Hugging Face folder, one file or sharded with an index.

    float32, float16 and bfloat16 tensors become `dtype`.

    Raises FileNotFoundError for a missing file, InvalidModelFile for a damaged one.
    """
    where = dict(_tensor_files(Path(folder)))
    return weights_from_tensors(
        config, HF_NAMES, where, lambda name: _read_tensor(where[name], name), dtype
    )


def _tensor_files(folder: Path) -> Iterator[tuple[str, Path]]:
    """Pairs of tensor name and the file that holds it."""
    index = folder / "model.safetensors.index.json"
    single = folder / "model.safetensors"
    if not single.exists() and index.exists():
        try:
            weight_map = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        except (ValueError, KeyError, TypeError) as error:
            raise InvalidModelFile(f"{index} is no index of tensors ({error!r})") from None
        yield from ((name, folder / file) for name, file in weight_map.items())
        return
    if not single.exists():
        raise FileNotFoundError(
            f"no model.safetensors (nor model.safetensors.index.json) in {folder}"
        )
    with _open_safetensors(single) as tensors:
        yield from ((name, single) for name in list(tensors.keys()))


def _open_safetensors(path: Path) -> Any:
    from safetensors import SafetensorError, safe_open

    try:
        # Through torch, because NumPy has no bfloat16.
        return safe_open(str(path), framework="pt")
    except FileNotFoundError:
        raise FileNotFoundError(f"the index names {path.name}, which is missing: {path}") from None
    except (SafetensorError, OSError) as error:
        raise InvalidModelFile(
            f"{path} is no whole safetensors file ({error}); fetch it again"
        ) from None


def _read_tensor(path: Path, name: str) -> np.ndarray:
    import torch

    with _open_safetensors(path) as tensors:
        if name not in tensors.keys():  # noqa: SIM118 (a safe_open is no mapping)
            raise InvalidModelFile(f"the index places tensor {name} in {path}, which lacks it")
        tensor = tensors.get_tensor(name)
    if not tensor.dtype.is_floating_point or tensor.dtype.itemsize < 2:
        raise InvalidModelFile(
            f"tensor {name} in {path} is {tensor.dtype}; needed: float32, float16 or bfloat16"
        )
    return tensor.to(torch.float64 if tensor.dtype == torch.float64 else torch.float32).numpy()
