"""Loading GGUF files: whole, damaged and foreign."""

import os
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
import transformers
from drawn_models import TINY, tiny_model
from tokenizer_fields import gguf_fields

from inferlab.checkpoints.gguf_file import unpermute
from inferlab.model import Model, load_model
from inferlab.sizes import InvalidModelFile, UnsupportedModel
from inferlab.weights import layer_shapes, random_weights

TOKENS = np.array([[3, 17, 5, 60, 2, 2, 31], [1, 0, 9, 8, 7, 44, 12]])


def permute(w: np.ndarray, n_heads: int) -> np.ndarray:
    """What llama.cpp's converter does to query and key matrices (d_out, d_in)."""
    return w.reshape(n_heads, 2, w.shape[0] // n_heads // 2, -1).swapaxes(1, 2).reshape(w.shape)


def write_gguf(
    path: Path,
    model: Model,
    architecture: str = "llama",
    permuted: bool | None = None,
    tokenizer: bool = False,
    **more: int,
) -> None:
    """A GGUF as llama.cpp's converter writes it: names, (d_out, d_in).

    permuted: reorder the rows of q and k, as is done for Llama only. more: further header keys.
    """
    permuted = architecture == "llama" if permuted is None else permuted
    c, w = model.config, model.weights
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(c.n_layers)
    writer.add_context_length(c.max_context)
    writer.add_embedding_length(c.d_model)
    writer.add_feed_forward_length(c.d_ff)
    writer.add_head_count(c.n_heads)
    writer.add_head_count_kv(c.n_kv_heads)
    writer.add_key_length(c.d_head)
    writer.add_rope_freq_base(c.rope_theta)
    writer.add_layer_norm_rms_eps(c.norm_eps)
    writer.add_vocab_size(c.vocab_size)
    for key, number in more.items():
        writer.add_uint32(f"{architecture}.{key}", number)
    if tokenizer:
        for key, value in gguf_fields(c.vocab_size).items():
            add = {list: writer.add_array, str: writer.add_string, int: writer.add_uint32}
            add[type(value)](key, value)
    names = {
        "attention_gain": "attn_norm.weight",
        "w_q": "attn_q.weight",
        "w_k": "attn_k.weight",
        "w_v": "attn_v.weight",
        "b_q": "attn_q.bias",
        "b_k": "attn_k.bias",
        "b_v": "attn_v.bias",
        "q_gain": "attn_q_norm.weight",
        "k_gain": "attn_k_norm.weight",
        "w_o": "attn_output.weight",
        "mlp_gain": "ffn_norm.weight",
        "w_gate": "ffn_gate.weight",
        "w_up": "ffn_up.weight",
        "w_down": "ffn_down.weight",
    }
    writer.add_tensor("token_embd.weight", w.embedding)
    writer.add_tensor("output_norm.weight", w.final_gain)
    if not c.tied_embeddings:
        writer.add_tensor("output.weight", np.ascontiguousarray(w.head.T))
    for i, layer in enumerate(w.layers):
        for field, array in layer.arrays().items():
            matrix = np.ascontiguousarray(array.T)
            if permuted and field in ("w_q", "w_k"):
                matrix = permute(matrix, c.n_heads if field == "w_q" else c.n_kv_heads)
            writer.add_tensor(f"blk.{i}.{names[field]}", np.ascontiguousarray(matrix))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.parametrize("kind", ["gqa", "mha, untied"])
def test_a_gguf_gives_back_the_model_that_was_written(tmp_path, kind):
    model = tiny_model(kind, np.float32)
    write_gguf(tmp_path / "a model.gguf", model)
    loaded = load_model(tmp_path / "a model.gguf")
    assert loaded.config.tied_embeddings == model.config.tied_embeddings
    tokens = TOKENS % model.config.vocab_size
    np.testing.assert_allclose(loaded.forward(tokens), model.forward(tokens), rtol=0, atol=1e-5)
    for name in layer_shapes(model.config):
        np.testing.assert_array_equal(
            getattr(loaded.weights.layers[1], name), getattr(model.weights.layers[1], name)
        )


def test_a_misshapen_tensor_of_a_gguf_is_named(tmp_path):
    model = tiny_model("gqa", np.float32)
    first = replace(model.weights.layers[0], w_q=np.zeros((32, 30), np.float32))
    layers = (first, *model.weights.layers[1:])
    wrong = replace(model, weights=replace(model.weights, layers=layers))
    write_gguf(tmp_path / "m.gguf", wrong, permuted=False)
    with pytest.raises(
        InvalidModelFile, match=r"blk\.0\.attn_q\.weight .*\(30, 32\); needed: \(32, 32\)"
    ):
        load_model(tmp_path / "m.gguf")


def test_forgetting_the_row_order_of_q_and_k_changes_the_logits(tmp_path):
    """The claim behind unpermute: a file without llama.cpp's reordering must not pass."""
    model = tiny_model("gqa", np.float32)
    write_gguf(tmp_path / "m.gguf", model, permuted=False)
    wrong = load_model(tmp_path / "m.gguf").forward(TOKENS)
    assert np.abs(wrong - model.forward(TOKENS)).max() > 0.1


def test_unpermute_by_its_definition():
    rows = np.arange(2 * 6)[:, None]  # 2 heads of 6 rows, as they should be
    stored = [0, 3, 1, 4, 2, 5, 6, 9, 7, 10, 8, 11]
    np.testing.assert_array_equal(unpermute(rows[stored], 2), rows)


@pytest.mark.parametrize("share", [0.001, 0.02, 0.5, 0.99])
def test_a_truncated_gguf_is_refused(tmp_path, share):
    path = tmp_path / "m.gguf"
    write_gguf(path, tiny_model("gqa", np.float32))
    os.truncate(path, max(8, int(path.stat().st_size * share)))
    with pytest.raises(InvalidModelFile, match=r"cut short or damaged \([\d,]+ bytes"):
        load_model(path)


QWEN = {
    "qwen2": replace(TINY["gqa"], attention_bias=True, vocab_size=300),
    "qwen3": replace(TINY["mqa, d_head != d_model / n_heads"], qk_norm=True, vocab_size=300),
}


@pytest.mark.parametrize("family", QWEN)
def test_a_gguf_of_qwen_equals_the_same_model_from_its_hugging_face_folder(tmp_path, family):
    """Both files by other people's writers: safetensors by transformers, the GGUF by gguf."""
    c = QWEN[family]
    torch.manual_seed(0)
    kind = {"qwen2": transformers.Qwen2Config, "qwen3": transformers.Qwen3Config}[family]
    sizes = kind(
        hidden_size=c.d_model,
        intermediate_size=c.d_ff,
        num_hidden_layers=c.n_layers,
        num_attention_heads=c.n_heads,
        num_key_value_heads=c.n_kv_heads,
        head_dim=c.d_head,
        vocab_size=c.vocab_size,
        max_position_embeddings=c.max_context,
        rms_norm_eps=c.norm_eps,
        tie_word_embeddings=c.tied_embeddings,
        rope_parameters={"rope_type": "default", "rope_theta": c.rope_theta},
        initializer_range=0.3,
    )
    theirs = transformers.AutoModelForCausalLM.from_config(sizes).eval()
    with torch.no_grad():  # biases and gains are drawn too, so that a forgotten one shows
        for name, tensor in theirs.named_parameters():
            if tensor.dim() == 1:
                tensor.copy_(torch.rand(tensor.shape) + (0.5 if "norm" in name else -0.5))
        expected = theirs(torch.from_numpy(TOKENS)).logits.numpy()
    theirs.save_pretrained(tmp_path / "folder")
    from_folder = load_model(tmp_path / "folder")
    write_gguf(tmp_path / "m.gguf", from_folder, family, tokenizer=True)
    from_gguf = load_model(tmp_path / "m.gguf")
    np.testing.assert_array_equal(from_gguf.forward(TOKENS), from_folder.forward(TOKENS))
    np.testing.assert_allclose(from_gguf.forward(TOKENS), expected, rtol=0, atol=2e-4)
    eps = float(np.float32(c.norm_eps))  # a header holds it in float32
    assert from_gguf.config == replace(from_folder.config, bos_id=None, eos_ids=(2,), norm_eps=eps)
    write_gguf(tmp_path / "m.gguf", from_folder, family, permuted=True)
    assert np.abs(load_model(tmp_path / "m.gguf").forward(TOKENS) - expected).max() > 0.1


@pytest.mark.parametrize("family", ["gemma3", "qwen2moe", "qwen35", "phi3", "mamba"])
def test_another_architecture_in_a_gguf_is_refused_by_name(tmp_path, family):
    write_gguf(tmp_path / "m.gguf", tiny_model("gqa", np.float32), architecture=family)
    with pytest.raises(UnsupportedModel, match=f"'{family}'; implemented are: 'llama', 'qwen2'"):
        load_model(tmp_path / "m.gguf")


@pytest.mark.parametrize(
    ("key", "number", "message"),
    [
        ("expert_count", 8, "8 experts; only dense"),
        ("attention.sliding_window", 32, "sliding window of 32 tokens"),
        ("rope.dimension_count", 4, "RoPE turns 4 of d_head=8"),
    ],
)
@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_options_of_a_gguf_that_are_not_here_are_refused(tmp_path, family, key, number, message):
    model = tiny_model("gqa", np.float32)
    write_gguf(tmp_path / "m.gguf", model, family, **{key: number})
    with pytest.raises(UnsupportedModel, match=message):
        load_model(tmp_path / "m.gguf")


def test_a_qwen2_gguf_without_its_biases_names_the_first_that_is_missing(tmp_path):
    write_gguf(tmp_path / "m.gguf", tiny_model("gqa", np.float32), "qwen2")
    with pytest.raises(InvalidModelFile, match=r"6 tensor\(s\) missing.*blk\.0\.attn_k\.bias"):
        load_model(tmp_path / "m.gguf")


def test_a_gguf_brings_its_tokenizer_if_it_has_one(tmp_path):
    write_gguf(tmp_path / "without.gguf", tiny_model("gqa", np.float32))
    assert load_model(tmp_path / "without.gguf").tokenizer is None
    config = replace(TINY["gqa"], vocab_size=300)
    model = Model(config, random_weights(config, np.random.default_rng(0)))
    write_gguf(tmp_path / "with.gguf", model, tokenizer=True)
    loaded = load_model(tmp_path / "with.gguf")
    assert loaded.config.eos_ids == (2,)
    assert loaded.tokenizer is not None
    assert loaded.tokenizer.decode(loaded.tokenizer.encode("naïve 🤖")) == "naïve 🤖"


def test_what_is_no_gguf_is_refused(tmp_path):
    wrong = tmp_path / "picture.gguf"
    wrong.write_bytes(b"\x89PNG....")
    with pytest.raises(InvalidModelFile, match=r"begins with b'\\x89PNG'"):
        load_model(wrong)
    wrong.write_bytes(b"")
    with pytest.raises(InvalidModelFile, match="no GGUF file"):
        load_model(wrong)
