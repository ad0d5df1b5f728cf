"""Read a GGUF file: the sizes, the weights and the tokenizer's lists of one model.

GGUF is the single-file format of llama.cpp. gguf_read.py finds the tensors and turns their blocks
of 4 or 8 bits into float32; what is left to do here is to undo one trick. In a Llama, llama.cpp
turns neighbouring pairs of numbers in RoPE (2i and 2i + 1), so its converter reorders the rows of
the query and key matrices. This engine turns pair i and i + d_head/2, as the original checkpoints
do. Forget to undo it and the text still looks almost fluent, with logits that are wrong by 30.
"""

from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from inferlab.checkpoints.gguf_config import NEIGHBOURS_TURN, architecture, read_gguf_config
from inferlab.checkpoints.gguf_read import read_gguf
from inferlab.checkpoints.read_config import GGUF_HEAD
from inferlab.config import ModelConfig
from inferlab.sizes import UnsupportedModel
from inferlab.weights import TensorNames, Weights, weights_from_tensors

GGUF_NAMES = TensorNames(
    embedding="token_embd.weight",
    final_gain="output_norm.weight",
    head=GGUF_HEAD,
    layer={
        "attention_gain": "blk.{}.attn_norm.weight",
        "w_q": "blk.{}.attn_q.weight",
        "w_k": "blk.{}.attn_k.weight",
        "w_v": "blk.{}.attn_v.weight",
        "b_q": "blk.{}.attn_q.bias",
        "b_k": "blk.{}.attn_k.bias",
        "b_v": "blk.{}.attn_v.bias",
        "q_gain": "blk.{}.attn_q_norm.weight",
        "k_gain": "blk.{}.attn_k_norm.weight",
        "w_o": "blk.{}.attn_output.weight",
        "mlp_gain": "blk.{}.ffn_norm.weight",
        "w_gate": "blk.{}.ffn_gate.weight",
        "w_up": "blk.{}.ffn_up.weight",
        "w_down": "blk.{}.ffn_down.weight",
    },
)


def load_gguf(
    path: str | PathLike[str], dtype: Any = np.float32
) -> tuple[ModelConfig, Weights, dict[str, Any]]:
    """Read one file whole: -> (sizes, weights, metadata by key).

    Raises InvalidModelFile for what is no GGUF, cut short or damaged; UnsupportedModel for another
    architecture or quantization; FileNotFoundError.
    """
    path = Path(path)
    metadata, tensors = read_gguf(path)
    config = read_gguf_config(metadata, tied_embeddings=GGUF_NAMES.head not in tensors)
    if "rope_freqs.weight" in tensors:
        raise UnsupportedModel(f"{path.name} scales RoPE's frequencies, which is not implemented")

    reordered = architecture(metadata) in NEIGHBOURS_TURN

    def read(name: str) -> np.ndarray:
        numbers = tensors[name].dequantize()
        n_heads = {"attn_q": config.n_heads, "attn_k": config.n_kv_heads}.get(name.split(".")[-2])
        if not reordered or n_heads is None or len(numbers) != n_heads * config.d_head:
            return numbers  # a wrong shape is refused, by name, where all shapes are
        return unpermute(numbers, n_heads)

    return config, weights_from_tensors(config, GGUF_NAMES, tensors, read, dtype), metadata


def unpermute(w: np.ndarray, n_heads: int) -> np.ndarray:
    """Put the rows of a query or key matrix of a GGUF back into the half-split order of RoPE.

    Within a head the file has rows 0, d_head/2, 1, d_head/2 + 1, ...; afterwards 0, 1, 2, ...

    w: (n_heads * d_head, d_model) -> the same shape
    """
    n_rows, n_columns = w.shape
    pairs = w.reshape(n_heads, n_rows // n_heads // 2, 2, n_columns)
    return pairs.swapaxes(1, 2).reshape(n_rows, n_columns)
