"""Loading Hugging Face folders: whole, damaged and foreign."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from their_models import their_model
from transformers import LlamaConfig, LlamaForCausalLM

from inferlab.checkpoints.read_config import read_config
from inferlab.model import TINY_MODELS, load_model
from inferlab.sizes import InvalidModelFile, UnsupportedModel, require_runnable

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


EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"architectures": ["Gemma2ForCausalLM"]},
            "family 'gemma2' .engines here run: deepseek",
        ),
        ({"architectures": ["LlamaForCausalLM", "Other"]}, "LlamaForCausalLM, Other"),
        ({"architectures": None, "model_type": "mamba"}, "mamba"),
        ({"architectures": ["Qwen3MoeForCausalLM"], **EXPERTS}, "the family 'qwen3_moe'"),
        ({"attention_bias": True}, "attention_bias"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 8.0}}, "yarn"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, r"partial_rotary_factor=0\.5"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
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
    config = read_config(
        {**raw, "rope_theta": 7e4, "rope_scaling": None, "eos_token_id": [2, 5], "head_dim": None}
    )
    assert (config.d_head, config.n_kv_heads, config.rope_theta) == (8, 4, 7e4)
    assert config.eos_ids == (2, 5)
    with pytest.raises(InvalidModelFile, match="hidden_size"):
        read_config({**raw, "hidden_size": None})


MLA_RAW = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 12,
    "qk_nope_head_dim": 6,
    "qk_rope_head_dim": 8,
    "v_head_dim": 10,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 10,
}
MIXED = {"layer_types": ["full_attention", "sliding_attention"], "sliding_window": 4}


@pytest.mark.parametrize(
    ("family", "options", "message"),
    [
        ("Mistral", MIXED, "a sliding window in only 1 of 2 layers"),
        ("Qwen2", {**MIXED, "use_sliding_window": True}, "a sliding window in only 1 of 2 layers"),
        (
            "Qwen3",
            {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1},
            "a sliding window in only 1 of 2 layers",
        ),
        ("Qwen3", {"attention_bias": True}, "attention_bias=True"),
        ("Olmoe", {"num_experts": 4, "num_experts_per_tok": 2, "clip_qkv": 8.0}, r"clip_qkv=8\.0"),
        ("DeepseekV2", {**MLA_RAW, "topk_method": "group_limited_greedy"}, "group_limited_greedy"),
        ("DeepseekV2", {**MLA_RAW, "routed_scaling_factor": 16.0}, "routed_scaling_factor=16"),
        ("DeepseekV2", {**MLA_RAW, "norm_topk_prob": True}, "norm_topk_prob=True"),
    ],
)
def test_options_of_other_families_are_refused_by_name(hf_folder, family, options, message):
    raw = json.loads((hf_folder / "config.json").read_text())
    config = read_config({**raw, "architectures": [f"{family}ForCausalLM"], **options})
    with pytest.raises(UnsupportedModel, match=message):
        require_runnable(config)


def test_windows_of_qwen_are_read_from_both_forms(hf_folder):
    raw = json.loads((hf_folder / "config.json").read_text())
    qwen = {**raw, "architectures": ["Qwen2ForCausalLM"], "sliding_window": 4}
    read = read_config
    assert read(qwen).sliding_window is None
    assert read({**qwen, "use_sliding_window": True}).sliding_window is None  # from layer 28 on
    on = {**qwen, "use_sliding_window": True, "max_window_layers": 0}
    assert read(on).sliding_window == 4
    assert read({**on, "layer_types": ["full_attention"] * 2}).sliding_window is None
    assert read({**on, "layer_types": ["sliding_attention"] * 2}).sliding_window == 4


def test_a_model_type_stands_in_for_a_missing_architecture(hf_folder):
    raw = {**json.loads((hf_folder / "config.json").read_text()), "architectures": None}
    assert read_config({**raw, "model_type": "qwen2"}).attention_bias
    assert read_config({**raw, **MLA_RAW, "model_type": "deepseek_v2"}).mla


@pytest.mark.parametrize("kind", ["llama", "mixtral"])
def test_a_missing_rope_base_is_the_one_that_transformers_takes(tmp_path, kind):
    original = their_model(kind)
    original.save_pretrained(tmp_path)
    edit_config(tmp_path, rope_parameters=None)
    theirs = type(original).from_pretrained(tmp_path).config.rope_parameters["rope_theta"]
    assert load_model(tmp_path).config.rope_theta == theirs


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
        (lambda t: t.update({K_PROJ: t[K_PROJ].to(torch.int8)}), f"{K_PROJ} .* is I8; needed: F32"),
    ],
)
def test_a_wrong_tensor_is_named(hf_folder, edit, message):
    edit_tensors(hf_folder, edit)
    with pytest.raises(InvalidModelFile, match=message):
        load_model(hf_folder)


EXPERT = "model.layers.1.mlp.experts.3.up_proj.weight"
LATENT = "model.layers.1.self_attn.kv_b_proj.weight"
ROUTER = "model.layers.1.mlp.gate.weight"
SHARED = "model.layers.1.mlp.shared_experts.down_proj.weight"


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda t: t.pop(EXPERT), f"1 tensor.s. missing, the first: {EXPERT}"),
        (lambda t: t.pop(LATENT), f"missing, the first: {LATENT}"),
        (
            lambda t: t.update({EXPERT.replace("s.3", "s.4"): t[EXPERT].clone()}),
            r"unexpected .* the first: model\.layers\.1\.mlp\.experts\.4\.up_proj",
        ),
        (
            lambda t: t.update({EXPERT: t[EXPERT].T.contiguous()}),
            rf"{EXPERT} has the shape \(32, 10\); needed: \(10, 32\)",
        ),
        (
            lambda t: t.update({LATENT: t[LATENT][1:].contiguous()}),
            rf"{LATENT} has the shape \(63, 12\); needed: \(64, 12\)",
        ),
        (lambda t: t[EXPERT].__setitem__((0, 0), float("nan")), f"{EXPERT} holds NaN"),
        (lambda t: t[ROUTER].__setitem__((0, 0), float("inf")), f"{ROUTER} holds NaN"),
        (lambda t: t[SHARED].__setitem__((0, 0), float("nan")), f"{SHARED} holds NaN"),
        (lambda t: t[LATENT].__setitem__((0, 0), float("nan")), f"{LATENT} holds NaN"),
    ],
)
def test_a_wrong_tensor_of_experts_or_a_latent_is_named(tmp_path, edit, message):
    their_model("deepseek-v2, experts").save_pretrained(tmp_path)
    edit_tensors(tmp_path, edit)
    with pytest.raises(InvalidModelFile, match=message):
        load_model(tmp_path)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("qwen2", "model.layers.1.self_attn.k_proj.bias"),
        ("qwen3", "model.layers.0.self_attn.q_norm.weight"),
        ("olmoe", "model.layers.0.self_attn.k_norm.weight"),
        ("mixtral", "model.layers.1.block_sparse_moe.experts.5.w2.weight"),
        ("mixtral", "model.layers.1.block_sparse_moe.gate.weight"),
        ("deepseek-v2, dense", "model.layers.1.self_attn.kv_a_layernorm.weight"),
        ("llama", "lm_head.weight"),
    ],
)
def test_every_family_names_what_is_missing_or_damaged(tmp_path, kind, name):
    their_model(kind).save_pretrained(tmp_path)
    whole = load_file(tmp_path / "model.safetensors")
    for edit, message in (
        (lambda t: t.pop(name), f"missing, the first: {name}"),
        (lambda t: t[name].flatten().__setitem__(0, float("nan")), f"{name} holds NaN"),
        (lambda t: t.update({name: t[name][1:].clone()}), f"{name} has the shape"),
    ):
        save_file(whole, tmp_path / "model.safetensors")
        edit_tensors(tmp_path, edit)
        with pytest.raises(InvalidModelFile, match=message):
            load_model(tmp_path)


@pytest.mark.parametrize("n_bytes", [0, 5, 100, 5000, -1])
def test_a_truncated_safetensors_file_is_refused(hf_folder, n_bytes):
    file = hf_folder / "model.safetensors"
    os.truncate(file, n_bytes % file.stat().st_size)
    with pytest.raises(InvalidModelFile, match="no whole safetensors file"):
        load_model(hf_folder)


def with_header(raw: bytes) -> bytes:
    return len(raw).to_bytes(8, "little") + raw


@pytest.mark.parametrize(
    "content",
    [
        with_header(b"{not json"),
        with_header(b"[1, 2]"),
        with_header(b'{"a": {"dtype": "F32", "shape": [2]}}'),
        with_header(b'{"a": {"dtype": "F32", "shape": [-2], "data_offsets": [0, 8]}}') + bytes(8),
        with_header(b'{"a": {"dtype": "F32", "shape": [2], "data_offsets": [8, 0]}}') + bytes(8),
        with_header(b'{"a": {"dtype": "F32", "shape": [2], "data_offsets": [4, 12]}}') + bytes(8),
        b"\xff" * 64,
    ],
)
def test_a_damaged_header_of_safetensors_is_refused(hf_folder, content):
    (hf_folder / "model.safetensors").write_bytes(content)
    with pytest.raises(InvalidModelFile, match="no whole safetensors file"):
        load_model(hf_folder)


def test_bytes_unlike_the_shape_are_refused_by_name(hf_folder):
    file = hf_folder / "model.safetensors"
    raw = file.read_bytes()
    assert raw.count(b'"shape":[16,32]') == 4
    file.write_bytes(raw.replace(b'"shape":[16,32]', b'"shape":[16,31]'))
    with pytest.raises(InvalidModelFile, match=r"k_proj.* takes 2048 bytes, not those of"):
        load_model(hf_folder)


def test_an_index_that_points_astray_is_refused(tmp_path):
    tiny_llama().save_pretrained(tmp_path, max_shard_size="20KB")
    index = tmp_path / "model.safetensors.index.json"
    whole = json.loads(index.read_text())
    elsewhere = {name: max(whole["weight_map"].values()) for name in whole["weight_map"]}
    index.write_text(json.dumps({"weight_map": elsewhere}))
    with pytest.raises(InvalidModelFile, match=r"places tensor .* which lacks it"):
        load_model(tmp_path)
    index.write_text("[]")
    with pytest.raises(InvalidModelFile, match="no index of tensors"):
        load_model(tmp_path)
    index.unlink()
    with pytest.raises(FileNotFoundError, match=r"no model\.safetensors"):
        load_model(tmp_path)


@pytest.mark.parametrize("name", TINY_MODELS)
def test_a_missing_tiny_model_says_how_to_get_it(tmp_path, monkeypatch, name):
    monkeypatch.setattr("inferlab.data.ROOT", tmp_path)
    with pytest.raises(FileNotFoundError, match=f"{name} is missing.*make train-tiny"):
        load_model(name)


def test_a_tiny_model_is_the_folder_of_its_name(tmp_path, monkeypatch):
    monkeypatch.setattr("inferlab.data.ROOT", tmp_path)
    their_model("mixtral").save_pretrained(tmp_path / "data" / "tiny" / "moe")
    assert load_model("tiny-moe").config.n_experts == 6


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
