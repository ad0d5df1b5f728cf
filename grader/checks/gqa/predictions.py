"""Lesson 05: what is predicted before it is built or measured."""

from __future__ import annotations

from inferlab.attention import kv_head_of
from inferlab.cache_sizes import cache_bytes
from inferlab.config import ModelConfig
from inferlab.data import model_preset
from labkit.predictions import Prediction

SHARES = ("75 %", "about 30 %", "about 10 %", "less than 1 %")


def kv_weights_saved(config: ModelConfig) -> int:
    """Weights of K and V projections that multi-head attention would have beyond these."""
    heads = config.n_heads - config.n_kv_heads
    return 2 * config.n_layers * config.d_model * heads * config.d_head  # 2: K and V


def _share_saved() -> str:
    config = model_preset("8b-style")
    share = kv_weights_saved(config) / config.n_params
    return min(SHARES, key=lambda text: abs(float(text.split()[-2]) / 100 - share))


def _larger() -> str:
    names = {"DeepSeek-V3": "deepseek-v3", "Qwen2.5-7B": "qwen2.5-7b"}
    return max(names, key=lambda name: cache_bytes(model_preset(names[name]), 1))


PREDICTIONS = (
    Prediction(
        id="gq_head_six",
        question="9 query heads share 3 KV heads; both are counted from 0. **Which KV head does "
        "query head 6 read?**",
        answer=lambda: f"KV head {kv_head_of(6, 9, 3)}",
        because="Neighbours share: heads 0, 1, 2 read KV head 0, heads 3, 4, 5 KV head 1, heads 6, "
        "7, 8 KV head 2. Dealing out in turn (6 mod 3) would give 0.",
        choices=("KV head 0", "KV head 1", "KV head 2"),
    ),
    Prediction(
        id="gq_weights_saved",
        question="An 8B-style model has 32 query heads and 8 KV heads, so its cache is a quarter "
        "of what 32 KV heads would need. **How much did that save of its weights**, as a share of "
        "those it has?",
        answer=_share_saved,
        because="Only the key and the value projections shrink: 0.81 of 8.03 billion. Query and "
        "output projections, MLPs and embeddings stay as they are.",
        choices=SHARES,
    ),
    Prediction(
        id="gq_larger_cache",
        question="DeepSeek-V3 has latent attention, made for a small cache; Qwen2.5-7B has grouped "
        "heads. **Which of the two keeps more bytes for a token?**",
        answer=_larger,
        because="A layer of V3 keeps 576 numbers, one of Qwen2.5-7B 1,024. But V3 has 61 layers "
        "and the other 28: 70,272 bytes a token against 57,344.",
        choices=("DeepSeek-V3", "Qwen2.5-7B"),
    ),
    Prediction(
        id="gq_attention_ratio",
        question="One layer, 32 query heads, 8,192 tokens cached, one new token. **How many times "
        "as long does its attention take with 32 KV heads as with 8**, on your machine?",
        answer=lambda: 32 / 8,
        because="The bytes to read differ by 4, the arithmetic not at all. Where reading is the "
        "bound the time follows the bytes; where arithmetic comes near, the gain is smaller.",
        unit="x",
    ),
)
