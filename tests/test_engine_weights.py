"""Loading: Hugging Face folders and GGUF files, whole, damaged and foreign."""

import json
import os
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from conftest import TINY, tiny_model
from safetensors.torch import load_file, save_file
from test_engine_tokenizer import gguf_fields
from transformers import LlamaConfig, LlamaForCausalLM

from inferlab.config import InvalidModelFile, ModelConfig, UnsupportedModel
from inferlab.gguf_file import unpermute
from inferlab.model import Model, load_model
from inferlab.weights import layer_shapes, random_weights

TOKENS = np.array([[3, 17, 5, 60, 2, 2, 31], [1, 0, 9, 8, 7, 44, 12]])


def tiny_llama(kv_heads: int = 2, head_dim: int = 8, tied: bool = True) -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        vocab_size=67,
        max_position_embeddings=64,
        tie_word_embeddings=tied,
        rope_parameters={"rope_type": "default", "rope_theta": 5e5},
        initializer_range=0.3,
    )
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:  # transformers starts gains at 1, which hides a forgotten gain
                parameter.uniform_(0.5, 1.5)
    return model


def hf_logits(model: LlamaForCausalLM, tokens: np.ndarray) -> np.ndarray:
    with torch.no_grad():
        return model(torch.from_numpy(tokens)).logits.float().numpy()


@pytest.fixture
def hf_folder(tmp_path) -> Path:
    folder = tmp_path / "a model with spaces"
    tiny_llama().save_pretrained(folder)
    return folder


@pytest.mark.parametrize(
    ("kv_heads", "head_dim", "tied"), [(2, 8, True), (4, 8, False), (1, 12, True)]
)
def test_a_saved_transformers_llama_gives_the_same_logits(tmp_path, kv_heads, head_dim, tied):
    original = tiny_llama(kv_heads, head_dim, tied)
    folder = tmp_path / "a model with spaces"
    original.save_pretrained(folder)
    model = load_model(folder)
    assert model.config.d_head == head_dim
    assert model.config.rope_theta == 5e5
    expected = hf_logits(original, TOKENS)
    assert np.abs(expected).max() > 1
    np.testing.assert_allclose(model.forward(TOKENS), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_tensors_become_float32(tmp_path, dtype):
    tiny_llama().to(dtype).save_pretrained(tmp_path)
    assert {t.dtype for t in load_file(tmp_path / "model.safetensors").values()} == {dtype}
    rounded = LlamaForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    model = load_model(tmp_path)
    assert model.weights.layers[0].w_q.dtype == np.float32
    np.testing.assert_allclose(model.forward(TOKENS), hf_logits(rounded, TOKENS), rtol=0, atol=1e-4)


def test_a_sharded_folder_loads(tmp_path):
    original = tiny_llama()
    original.save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    logits = load_model(tmp_path).forward(TOKENS)
    np.testing.assert_allclose(logits, hf_logits(original, TOKENS), rtol=0, atol=1e-4)
    next(iter(tmp_path.glob("model-00002*.safetensors"))).unlink()
    with pytest.raises(FileNotFoundError, match="model-00002"):
        load_model(tmp_path)


def edit_config(folder: Path, **changes: object) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architectures": ["Qwen2ForCausalLM"]}, "Qwen2ForCausalLM"),
        ({"architectures": None, "model_type": "gpt2"}, "gpt2"),
        ({"attention_bias": True}, "attention_bias"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"rope_parameters": {"rope_type": "llama3", "factor": 8.0}}, "llama3"),
        ({"rope_parameters": None, "rope_scaling": {"type": "linear", "factor": 2}}, "linear"),
    ],
)
def test_unsupported_configurations_are_refused_by_name(hf_folder, changes, message):
    edit_config(hf_folder, **changes)
    with pytest.raises(UnsupportedModel, match=message):
        load_model(hf_folder)


def test_old_and_partial_configurations_are_understood(hf_folder):
    raw = json.loads((hf_folder / "config.json").read_text())
    del raw["head_dim"], raw["num_key_value_heads"], raw["rope_parameters"]
    config = ModelConfig.from_hf_config(
        {**raw, "rope_theta": 7e4, "rope_scaling": None, "eos_token_id": [2, 5], "head_dim": None}
    )
    assert (config.d_head, config.n_kv_heads, config.rope_theta) == (8, 4, 7e4)
    assert config.eos_ids == (2, 5)
    with pytest.raises(InvalidModelFile, match="hidden_size"):
        ModelConfig.from_hf_config({**raw, "hidden_size": None})


def edit_tensors(folder: Path, edit) -> None:
    file = folder / "model.safetensors"
    tensors = load_file(file)
    edit(tensors)
    save_file(tensors, file, metadata={"format": "pt"})


K_PROJ = "model.layers.1.self_attn.k_proj.weight"


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda t: t.pop(K_PROJ), f"missing, the first: {K_PROJ}"),
        (lambda t: t.update(stray=torch.zeros(2)), "unexpected .* the first: stray"),
        (
            lambda t: t.update({K_PROJ: t[K_PROJ].T.contiguous()}),
            rf"{K_PROJ} has the shape \(32, 16\); needed: \(16, 32\)",
        ),
        (lambda t: t[K_PROJ].__setitem__((3, 4), float("nan")), f"{K_PROJ} holds NaN"),
        (lambda t: t[K_PROJ].__setitem__((3, 4), float("inf")), f"{K_PROJ} holds NaN or infinity"),
        (lambda t: t.update({K_PROJ: t[K_PROJ].to(torch.int8)}), f"{K_PROJ} .* is torch.int8"),
    ],
)
def test_a_wrong_tensor_is_named(hf_folder, edit, message):
    edit_tensors(hf_folder, edit)
    with pytest.raises(InvalidModelFile, match=message):
        load_model(hf_folder)


def test_a_truncated_safetensors_file_is_refused(hf_folder):
    file = hf_folder / "model.safetensors"
    os.truncate(file, file.stat().st_size // 2)
    with pytest.raises(InvalidModelFile, match="no whole safetensors file"):
        load_model(hf_folder)


def test_what_is_no_model_is_refused(tmp_path, hf_folder):
    with pytest.raises(FileNotFoundError, match=r"\.gguf file, a Hugging Face folder, or a name"):
        load_model(tmp_path / "nothing here")
    with pytest.raises(FileNotFoundError, match=r"config\.json"):
        load_model(tmp_path)
    with pytest.raises(InvalidModelFile, match="give its folder"):
        load_model(hf_folder / "model.safetensors")
    (hf_folder / "config.json").write_text("{")
    with pytest.raises(InvalidModelFile, match="not valid JSON"):
        load_model(hf_folder)
    wrong = tmp_path / "picture.gguf"
    wrong.write_bytes(b"\x89PNG....")
    with pytest.raises(InvalidModelFile, match=r"begins with b'\\x89PNG'"):
        load_model(wrong)
    wrong.write_bytes(b"")
    with pytest.raises(InvalidModelFile, match="no GGUF file"):
        load_model(wrong)


def permute(w: np.ndarray, n_heads: int) -> np.ndarray:
    """What llama.cpp's converter does to query and key matrices (d_out, d_in)."""
    return w.reshape(n_heads, 2, w.shape[0] // n_heads // 2, -1).swapaxes(1, 2).reshape(w.shape)


def write_gguf(
    path: Path,
    model: Model,
    architecture: str = "llama",
    permuted: bool = True,
    tokenizer: bool = False,
) -> None:
    """A GGUF as llama.cpp's converter writes it: names, (d_out, d_in), rows of q and k permuted."""
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
    if tokenizer:
        for key, value in gguf_fields(c.vocab_size).items():
            add = {list: writer.add_array, str: writer.add_string, int: writer.add_uint32}
            add[type(value)](key, value)
    names = {
        "attention_gain": "attn_norm",
        "w_q": "attn_q",
        "w_k": "attn_k",
        "w_v": "attn_v",
        "w_o": "attn_output",
        "mlp_gain": "ffn_norm",
        "w_gate": "ffn_gate",
        "w_up": "ffn_up",
        "w_down": "ffn_down",
    }
    writer.add_tensor("token_embd.weight", w.embedding)
    writer.add_tensor("output_norm.weight", w.final_gain)
    if not c.tied_embeddings:
        writer.add_tensor("output.weight", np.ascontiguousarray(w.head.T))
    for i, layer in enumerate(w.layers):
        for field, name in names.items():
            matrix = np.ascontiguousarray(getattr(layer, field).T)
            if permuted and field in ("w_q", "w_k"):
                matrix = permute(matrix, c.n_heads if field == "w_q" else c.n_kv_heads)
            writer.add_tensor(f"blk.{i}.{name}.weight", np.ascontiguousarray(matrix))
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


def test_another_architecture_in_a_gguf_is_refused_by_name(tmp_path):
    write_gguf(tmp_path / "m.gguf", tiny_model("gqa", np.float32), architecture="qwen2")
    with pytest.raises(UnsupportedModel, match="'qwen2'"):
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
