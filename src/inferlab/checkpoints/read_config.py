"""The sizes of a model from whatever file says them."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from inferlab.checkpoints.gguf_config import read_gguf_config
from inferlab.checkpoints.gguf_read import read_gguf
from inferlab.checkpoints.hf_config import read_hf_config
from inferlab.config import ModelConfig

GGUF_HEAD = "output.weight"
"""The tensor that a GGUF lacks where the head is the embedding."""


def read_config(source: Mapping[str, Any] | str | PathLike[str]) -> ModelConfig:
    """The sizes of a model: of a Hugging Face config.json (its fields, the file, or its folder), or
    of a .gguf file.

    The families of hf_families.py and gguf_config.py. Not every such model runs here: not_run says
    why, and require_runnable refuses it.

    Raises UnsupportedModel (a ValueError), naming it, for another family or what cannot be
    counted; InvalidModelFile for an unreadable file or a missing field.
    """
    if not isinstance(source, Mapping) and Path(source).suffix == ".gguf":
        metadata, tensors = read_gguf(source)
        return read_gguf_config(metadata, tied_embeddings=GGUF_HEAD not in tensors)
    return read_hf_config(source)
