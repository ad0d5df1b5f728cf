"""A model's weights in the course's own layout, whatever file they came from.

Matrices are (d_in, d_out), so a projection is `x @ w`. Files store them as (d_out, d_in);
`weights_from_tensors` checks every name, shape and number, and turns each matrix round once.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

import numpy as np

from inferlab.config import ModelConfig
from inferlab.sizes import InvalidModelFile, require_runnable

Value = TypeVar("Value")


@dataclass(frozen=True)
class LayerWeights:
    """One decoder block: gains of its two norms, four attention and three MLP matrices.

    In a layer with experts w_gate, w_up and w_down have an axis of n_experts before the others,
    and d_expert in place of d_ff. Under multi-head latent attention w_k and w_v read the latent:
    (d_latent, n_heads * d_nope) and (d_latent, n_heads * d_value), w_q the latent of the queries,
    if they have one, and w_o is (n_heads * d_value, d_model). What a model does not have is None.
    """

    attention_gain: np.ndarray  # (d_model,)
    w_q: np.ndarray  # (d_model, n_heads * d_head)
    w_k: np.ndarray  # (d_model, n_kv_heads * d_head)
    w_v: np.ndarray  # (d_model, n_kv_heads * d_head)
    w_o: np.ndarray  # (n_heads * d_head, d_model)
    mlp_gain: np.ndarray  # (d_model,)
    w_gate: np.ndarray  # (d_model, d_ff)
    w_up: np.ndarray  # (d_model, d_ff)
    w_down: np.ndarray  # (d_ff, d_model)

    # Qwen2's biases; the gains of query and key norms: (d_head,), or all heads for OLMoE.
    b_q: np.ndarray | None = None  # (n_heads * d_head,)
    b_k: np.ndarray | None = None  # (n_kv_heads * d_head,)
    b_v: np.ndarray | None = None  # (n_kv_heads * d_head,)
    q_gain: np.ndarray | None = None
    k_gain: np.ndarray | None = None

    # A mixture of experts: its router, and the experts that every token takes, side by side.
    w_router: np.ndarray | None = None  # (d_model, n_experts)
    w_shared_gate: np.ndarray | None = None  # (d_model, n_shared_experts * d_expert)
    w_shared_up: np.ndarray | None = None  # (d_model, n_shared_experts * d_expert)
    w_shared_down: np.ndarray | None = None  # (n_shared_experts * d_expert, d_model)

    # Multi-head latent attention.
    w_latent: np.ndarray | None = None  # (d_model, d_latent + d_rope)
    latent_gain: np.ndarray | None = None  # (d_latent,)
    w_q_latent: np.ndarray | None = None  # (d_model, d_query_latent)
    q_latent_gain: np.ndarray | None = None  # (d_query_latent,)

    def arrays(self) -> dict[str, np.ndarray]:
        """All arrays that this layer has, by name."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return {name: array for name, array in values.items() if array is not None}


def present(value: Value | None) -> Value:
    """A weight that this kind of model always has.

    Raises ValueError if it is None: the weights do not belong to the configuration.
    """
    if value is None:
        raise ValueError("the weights lack an array that the model's configuration asks for")
    return value


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
        layers = sum(array.nbytes for layer in self.layers for array in layer.arrays().values())
        head = 0 if tied else self.head.nbytes
        return self.embedding.nbytes + layers + self.final_gain.nbytes + head


@dataclass(frozen=True)
class TensorNames:
    """How one file format names the tensors; layer maps a field of LayerWeights to a pattern.

    expert does the same for the fields of which a layer with experts has one for each expert.
    """

    embedding: str
    final_gain: str
    head: str
    layer: Mapping[str, str]  # with {} for the number of the layer
    expert: Mapping[str, str] = field(default_factory=dict)  # and a second {} for the expert

    def of(self, index: int, name: str) -> str:
        """Name of one tensor of layer `index`."""
        return self.layer[name].format(index)

    def of_expert(self, index: int, name: str, expert: int) -> str:
        """Name of one tensor of one expert of layer `index`."""
        return self.expert[name].format(index, expert)

    def all(self, config: ModelConfig) -> set[str]:
        """Every tensor that a file of this model must hold."""
        needed = {self.embedding, self.final_gain}
        if not config.tied_embeddings:
            needed.add(self.head)
        for index in range(config.n_layers):
            for name, shape in file_shapes(config, index).items():
                if len(shape) == 3:
                    needed |= {self.of_expert(index, name, e) for e in range(shape[0])}
                else:
                    needed.add(self.of(index, name))
        return needed


def layer_shapes(config: ModelConfig, layer: int = 0) -> dict[str, tuple[int, ...]]:
    """The shape that each field of LayerWeights must have in layer number `layer`.

    Fields that the model does not have are left out. Raises UnsupportedModel for a model that no
    engine here runs.
    """
    require_runnable(config)
    shapes = _attention_shapes(config) if config.mla is None else _latent_shapes(config)
    return {
        "attention_gain": (config.d_model,),
        **shapes,
        "mlp_gain": (config.d_model,),
        **_mlp_shapes(config, layer),
    }


def _attention_shapes(c: ModelConfig) -> dict[str, tuple[int, ...]]:
    d_queries, d_keys = c.n_heads * c.d_head, c.n_kv_heads * c.d_head
    shapes: dict[str, tuple[int, ...]] = {
        "w_q": (c.d_model, d_queries),
        "w_k": (c.d_model, d_keys),
        "w_v": (c.d_model, d_keys),
        "w_o": (d_queries, c.d_model),
    }
    if c.attention_bias:
        shapes |= {"b_q": (d_queries,), "b_k": (d_keys,), "b_v": (d_keys,)}
    if c.qk_norm and c.qk_norm_per_head:
        shapes |= {"q_gain": (c.d_head,), "k_gain": (c.d_head,)}
    elif c.qk_norm:
        shapes |= {"q_gain": (d_queries,), "k_gain": (d_keys,)}
    return shapes


def _latent_shapes(c: ModelConfig) -> dict[str, tuple[int, ...]]:
    mla = present(c.mla)
    shapes: dict[str, tuple[int, ...]] = {
        "w_q": (mla.d_query_latent or c.d_model, c.n_heads * c.d_head),
        "w_k": (mla.d_latent, c.n_heads * mla.d_nope),
        "w_v": (mla.d_latent, c.n_heads * mla.d_value),
        "w_o": (c.n_heads * mla.d_value, c.d_model),
        "w_latent": (c.d_model, mla.d_latent + mla.d_rope),
        "latent_gain": (mla.d_latent,),
    }
    if mla.d_query_latent is not None:
        shapes["w_q_latent"] = (c.d_model, mla.d_query_latent)
        shapes["q_latent_gain"] = (mla.d_query_latent,)
    return shapes


def _mlp_shapes(c: ModelConfig, layer: int) -> dict[str, tuple[int, ...]]:
    if not c.has_experts(layer):
        into, out = (c.d_model, c.d_ff), (c.d_ff, c.d_model)
        return {"w_gate": into, "w_up": into, "w_down": out}
    experts = (c.n_experts, c.d_model, c.d_expert)
    shapes: dict[str, tuple[int, ...]] = {
        "w_gate": experts,
        "w_up": experts,
        "w_down": (c.n_experts, c.d_expert, c.d_model),
        "w_router": (c.d_model, c.n_experts),
    }
    if c.n_shared_experts:
        d_shared = c.n_shared_experts * c.d_expert
        shapes |= {"w_shared_gate": (c.d_model, d_shared), "w_shared_up": (c.d_model, d_shared)}
        shapes["w_shared_down"] = (d_shared, c.d_model)
    return shapes


def random_weights(
    config: ModelConfig, rng: np.random.Generator, dtype: Any = np.float32
) -> Weights:
    """Random weights for tests, scaled so that activations and logits are as in a trained model.

    Matrices have the deviation 1/sqrt(d_in), so each projection keeps the size of its input; gains
    lie round 1 and biases round 0, so that a forgotten one shows.
    """

    def draw(shape: tuple[int, ...], is_bias: bool = False) -> np.ndarray:
        if is_bias:
            return (rng.standard_normal(shape) / 4).astype(dtype)
        if len(shape) == 1:
            return rng.uniform(0.5, 1.5, shape).astype(dtype)
        return (rng.standard_normal(shape) / np.sqrt(shape[-2])).astype(dtype)

    def draw_layer(layer: int) -> LayerWeights:
        shapes = layer_shapes(config, layer).items()
        return LayerWeights(**{name: draw(shape, name in BIASES) for name, shape in shapes})

    embedding = draw((config.vocab_size, config.d_model)) * np.asarray(
        np.sqrt(config.vocab_size / config.d_model), dtype
    )
    layers = tuple(draw_layer(layer) for layer in range(config.n_layers))
    head = embedding.T if config.tied_embeddings else draw((config.d_model, config.vocab_size))
    return Weights(embedding, layers, draw((config.d_model,)), head)


BIASES = ("b_q", "b_k", "b_v")


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
        return checked(name, read(name), shape, dtype)

    def take_field(index: int, name: str, shape: tuple[int, ...]) -> np.ndarray:
        if len(shape) == 3:  # one matrix for each expert
            turned = [take(names.of_expert(index, name, e), shape[:0:-1]) for e in range(shape[0])]
            return np.stack(turned).swapaxes(-1, -2)
        # .T turns (d_out, d_in) into (d_in, d_out) without a copy, and leaves a gain as it is.
        return take(names.of(index, name), shape[::-1]).T

    def take_layer(index: int) -> LayerWeights:
        shapes = file_shapes(config, index).items()
        arrays = {name: take_field(index, name, shape) for name, shape in shapes}
        return LayerWeights(**(arrays if config.mla is None else unpack_latent(arrays, config)))

    vocabulary = (config.vocab_size, config.d_model)
    embedding = take(names.embedding, vocabulary)
    layers = tuple(take_layer(index) for index in range(config.n_layers))
    final_gain = take(names.final_gain, (config.d_model,))
    head = embedding if config.tied_embeddings else take(names.head, vocabulary)
    return Weights(embedding, layers, final_gain, head.T)


def checked(name: str, tensor: np.ndarray, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """A copy of a file's tensor as `dtype`; raises InvalidModelFile, naming it, if it is wrong."""
    if tensor.shape != shape:
        raise InvalidModelFile(f"tensor {name} has the shape {tensor.shape}; needed: {shape}")
    tensor = np.array(tensor, dtype=dtype, order="C")  # a copy: the file may be a memory map
    if not np.isfinite(tensor).all():
        raise InvalidModelFile(f"tensor {name} holds NaN or infinity: the file is damaged")
    return tensor


def file_shapes(config: ModelConfig, layer: int) -> dict[str, tuple[int, ...]]:
    """layer_shapes as files have them: under MLA they keep w_k and w_v together, as "w_kv"."""
    shapes = layer_shapes(config, layer)
    if config.mla is not None:
        d_latent, d_keys = shapes.pop("w_k")
        shapes["w_kv"] = (d_latent, d_keys + shapes.pop("w_v")[1])
    return shapes


def unpack_latent(arrays: dict[str, np.ndarray], config: ModelConfig) -> dict[str, np.ndarray]:
    """Take apart what DeepSeek's files keep together, and order the rotated numbers our way.

    A head of "w_kv" is its d_nope key columns, then its d_value value columns. Of what is rotated
    the files pair neighbours, 2i and 2i + 1; this engine pairs i and i + d_rope/2. Queries and
    keys are reordered alike, so their dot products stay.

    arrays: fields of file_shapes -> fields of layer_shapes
    """
    mla = present(config.mla)
    pairs = np.arange(mla.d_rope).reshape(-1, 2).T.ravel()  # 0, 2, 4, ..., 1, 3, 5, ...
    w_q, w_kv, w_latent = (arrays[name] for name in ("w_q", "w_kv", "w_latent"))
    q_order = np.concatenate([np.arange(mla.d_nope), mla.d_nope + pairs])
    latent_order = np.concatenate([np.arange(mla.d_latent), mla.d_latent + pairs])
    q_heads = w_q.reshape(len(w_q), config.n_heads, -1)[:, :, q_order]
    k_heads, v_heads = np.split(w_kv.reshape(len(w_kv), config.n_heads, -1), [mla.d_nope], axis=-1)
    unpacked = {name: array for name, array in arrays.items() if name != "w_kv"}
    return unpacked | {
        "w_q": q_heads.reshape(w_q.shape),
        "w_k": k_heads.reshape(len(w_kv), -1),
        "w_v": v_heads.reshape(len(w_kv), -1),
        "w_latent": w_latent[:, latent_order],
    }


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
