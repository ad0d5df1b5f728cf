"""Any published config.json is counted right: transformers builds the same, without weights."""

import json
from dataclasses import replace

import pytest
import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM

from inferlab.cache_sizes import cache_bytes, grow_and_cap_bytes
from inferlab.checkpoints.hf_config import read_hf_config
from inferlab.checkpoints.hf_families import FAMILIES
from inferlab.checkpoints.hf_stored import read_stored
from inferlab.checkpoints.read_config import read_config
from inferlab.data import ROOT, load_config, load_models, model_preset
from inferlab.moe_sizes import total_and_active_params
from inferlab.sizes import InvalidModelFile, UnsupportedModel, require_runnable

transformers.logging.set_verbosity_error()

SMALL = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 6, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 96, "bos_token_id": 1, "eos_token_id": 2,
    "pad_token_id": 0,
}  # fmt: skip
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 24}
ROUTED = {**EXPERTS, "n_routed_experts": 4, "n_shared_experts": 1, "first_k_dense_replace": 2}
LATENT = {
    "kv_lora_rank": 12, "q_lora_rank": 20, "qk_nope_head_dim": 6, "qk_rope_head_dim": 4,
    "v_head_dim": 10, "num_key_value_heads": 4,
}  # fmt: skip
GPT = {
    "n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 40, "vocab_size": 96,
    "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip

CASES: dict[str, list[dict]] = {
    "llama": [
        {"head_dim": 16},
        {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
    ],
    "mistral": [{"sliding_window": 16}, {"sliding_window": None}],
    "qwen2": [{}, {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 2}],
    "qwen3": [{"attention_bias": True}],
    "mixtral": [{"num_local_experts": 4, "num_experts_per_tok": 2}],
    "olmoe": [{"num_experts": 4, "num_experts_per_tok": 2}],
    "deepseek_v2": [{**ROUTED, **LATENT}, {**ROUTED, **LATENT, "q_lora_rank": None}],
    "arcee": [{}],
    "cohere": [{"use_qk_norm": True}, {}],
    "cohere2": [{"sliding_window": 16}],
    "deepseek_v3": [{**ROUTED, **LATENT}, {**ROUTED, **LATENT, "attention_bias": True}],
    "dots1": [ROUTED],
    "exaone4": [{"sliding_window": 16}],
    "falcon": [
        {"multi_query": True},
        {"new_decoder_architecture": True, "num_kv_heads": 2},
        {"multi_query": False, "bias": True, "parallel_attn": False},
    ],
    "gemma": [{}, {"head_dim": 16}],
    "gemma2": [{"sliding_window": 16, "head_dim": 16}],
    "gemma3_text": [{"sliding_window": 16, "head_dim": 16}],
    "glm": [{"attention_bias": True}],
    "glm4": [{"attention_bias": True}],
    "glm4_moe": [{**ROUTED, "attention_bias": True, "use_qk_norm": True}, ROUTED],
    "glm4_moe_lite": [{**ROUTED, **LATENT}],
    "gpt2": [GPT, {**GPT, "n_inner": 100}],
    "gpt_bigcode": [GPT, {**GPT, "multi_query": False}],
    "gpt_neox": [{}, {"attention_bias": False}],
    "gpt_oss": [{"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 16}],
    "granite": [{"tie_word_embeddings": True}],
    "granitemoe": [{"num_local_experts": 4, "num_experts_per_tok": 2}],
    "granitemoeshared": [
        {"num_local_experts": 4, "num_experts_per_tok": 2, "shared_intermediate_size": 96}
    ],
    "llama4_text": [
        {"num_local_experts": 4, "intermediate_size_mlp": 64, "interleave_moe_layer_step": step}
        for step in (1, 2)
    ],
    "minicpm3": [LATENT],
    "ministral": [{"sliding_window": 16, "head_dim": 16}],
    "ministral3": [{"sliding_window": None}],
    "nemotron": [{}],
    "olmo": [{}],
    "olmo2": [{}],
    "olmo3": [{"sliding_window": 16}],
    "phi": [{}, {"qk_layernorm": True}],
    "phi3": [{"sliding_window": 16}],
    "phimoe": [
        {"num_local_experts": 4, "num_experts_per_tok": 2, "lm_head_bias": True,
         "attention_bias": True},
    ],
    "qwen2_moe": [
        {**EXPERTS, "num_experts": 4, "shared_expert_intermediate_size": 48},
        {**EXPERTS, "num_experts": 4, "shared_expert_intermediate_size": 24,
         "decoder_sparse_step": 2, "mlp_only_layers": [1]},
    ],
    "qwen3_moe": [{**EXPERTS, "num_experts": 4}],
    "seed_oss": [{"attention_bias": True}],
    "smollm3": [{}],
    "starcoder2": [{"sliding_window": 16}, {"use_bias": False}],
}  # fmt: skip
NOT_THERE = {"minicpm"}
"""Families that transformers has only as code that comes with the model."""


def theirs(model_type: str, **fields):
    """(their config, trained numbers of their model), built without any weights."""
    config = AutoConfig.for_model(model_type, **fields)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    return config, sum(parameter.numel() for parameter in model.parameters())


def as_file(config) -> dict:
    return json.loads(json.dumps(config.to_dict(), default=str))


@pytest.mark.parametrize(
    ("model_type", "fields"),
    [
        pytest.param(name, fields, id=f"{name}-{i}")
        for name, several in CASES.items()
        for i, fields in enumerate(several)
    ],
)
def test_a_small_model_of_each_family_is_counted_as_it_lies_in_memory(model_type, fields):
    config, n_params = theirs(model_type, **(fields if "n_embd" in fields else SMALL | fields))
    ours = read_hf_config(as_file(config))
    assert ours.n_params == n_params
    if hasattr(config, "layer_types") and config.layer_types:
        n_windowed = sum(kind != "full_attention" for kind in config.layer_types)
        kept = ours.sliding_window and (ours.n_window_layers or ours.n_layers)
        assert (kept or 0) == n_windowed


def test_every_family_has_a_case():
    assert {name.removesuffix("_text") for name in CASES} | NOT_THERE == set(FAMILIES)


@pytest.mark.parametrize("model_type", CASES)
def test_a_missing_field_means_what_transformers_takes_it_for(model_type):
    config = AutoConfig.for_model(model_type)
    family = FAMILIES[model_type.removesuffix("_text")]
    assert family.tied == config.tie_word_embeddings
    for name, value in family.defaults.items():
        if value is not None and name not in ("intermediate_size", "rms_norm_eps"):
            assert getattr(config, name) == value, name


# ---- published models, whole -------------------------------------------------------------------


def fields(d, ff, layers, heads, kv_heads, vocab, **more):
    return {
        "hidden_size": d, "intermediate_size": ff, "num_hidden_layers": layers,
        "num_attention_heads": heads, "num_key_value_heads": kv_heads, "vocab_size": vocab, **more,
    }  # fmt: skip


def routed(n, per_token, width, shared=1, dense=1):
    return {
        "n_routed_experts": n, "num_experts_per_tok": per_token, "moe_intermediate_size": width,
        "n_shared_experts": shared, "first_k_dense_replace": dense,
    }  # fmt: skip


PUBLISHED = {
    # name: (model_type, the fields of its config.json, trained numbers as its maker says)
    "phi-2": ("phi", fields(2560, 10240, 32, 32, 32, 51200), 2_779_683_840),
    "phi-4": ("phi3", fields(5120, 17920, 40, 40, 10, 100352, pad_token_id=0), 14_659_507_200),
    "starcoder2-3b": (
        "starcoder2", fields(3072, 12288, 30, 24, 2, 49152, bos_token_id=0, eos_token_id=0),
        3_030_371_328,
    ),
    "gemma-7b": ("gemma", fields(3072, 24576, 28, 16, 16, 256000, head_dim=256), 8_537_680_896),
    "granite-3.1-8b": (
        "granite", fields(4096, 12800, 40, 32, 8, 49155, tie_word_embeddings=True), 8_170_848_256
    ),
    "smollm3-3b": ("smollm3", fields(2048, 11008, 36, 16, 4, 128256), 3_075_098_624),
    "olmo-7b": ("olmo", fields(4096, 11008, 32, 32, 32, 50304), 6_888_095_744),
    "olmo-2-7b": ("olmo2", fields(4096, 11008, 32, 32, 32, 100352), 7_298_617_344),
    "command-r": ("cohere", fields(8192, 22528, 40, 64, 64, 256000), 34_980_831_232),
    "pythia-6.9b": ("gpt_neox", fields(4096, 16384, 32, 32, 32, 50432), 6_857_302_016),
    "glm-4-9b": (
        "glm", fields(4096, 13696, 40, 32, 2, 151552, head_dim=128, attention_bias=True),
        9_399_951_360,
    ),
    "mistral-small-24b": (
        "mistral", fields(5120, 32768, 40, 32, 8, 131072, head_dim=128, sliding_window=None),
        23_572_403_200,
    ),
}  # fmt: skip
ROUNDED = {
    # name: (model_type, fields, billions in all, billions a token)
    "glm-4.5": (
        "glm4_moe",
        fields(5120, 12288, 92, 96, 8, 151552, head_dim=128, attention_bias=True, use_qk_norm=True)
        | routed(160, 8, 1536, dense=3),
        355, 32,
    ),
    "glm-4.5-air": (
        "glm4_moe",
        fields(4096, 10944, 46, 96, 8, 151552, head_dim=128, attention_bias=True)
        | routed(128, 8, 1408),
        106, 12,
    ),
    "llama-4-scout": (
        "llama4_text",
        fields(5120, 8192, 48, 40, 8, 202048, intermediate_size_mlp=16384, num_local_experts=16,
               num_experts_per_tok=1),
        109, 17,
    ),
    "llama-4-maverick": (
        "llama4_text",
        fields(5120, 8192, 48, 40, 8, 202048, intermediate_size_mlp=16384, num_local_experts=128,
               num_experts_per_tok=1, interleave_moe_layer_step=2),
        400, 17,
    ),
    "qwen1.5-moe-a2.7b": (
        "qwen2_moe",
        fields(2048, 5632, 24, 16, 16, 151936, moe_intermediate_size=1408, num_experts=60,
               num_experts_per_tok=4, shared_expert_intermediate_size=5632),
        14.3, 2.7,
    ),
    "phi-3.5-moe": (
        "phimoe",
        fields(4096, 6400, 32, 32, 8, 32064, num_local_experts=16, num_experts_per_tok=2,
               attention_bias=True, lm_head_bias=True),
        41.9, 6.6,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_model_has_as_many_numbers_as_its_maker_says(name):
    model_type, sizes, published = PUBLISHED[name]
    config, n_params = theirs(model_type, **sizes)
    assert read_hf_config(as_file(config)).n_params == n_params == published


@pytest.mark.parametrize("name", ROUNDED)
def test_total_and_active_are_those_of_the_model_card(name):
    model_type, sizes, total_billion, active_billion = ROUNDED[name]
    config, n_params = theirs(model_type, **sizes)
    total, active = total_and_active_params(ours := read_hf_config(as_file(config)))
    assert total == ours.n_params == n_params
    assert total / 1e9 == pytest.approx(total_billion, rel=0.02)  # cards round, and some count more
    assert active / 1e9 == pytest.approx(active_billion, rel=0.12)  # some without the embedding


@pytest.mark.parametrize("path", sorted((ROOT / "data" / "configs").glob("*.json")), ids=str)
def test_every_kept_file_gives_the_recorded_counts(path):
    read, record = read_config(path), load_models()[path.stem]["computed"]
    assert read.n_params == record["params_total"]
    grow, cap = grow_and_cap_bytes(read)
    assert grow == record["kv_bytes_growing_per_token_bf16"]
    assert cap == record["kv_bytes_sliding_cap_bf16"]
    if read.n_experts:
        assert total_and_active_params(read)[1] == record["params_active"]
    assert grow_and_cap_bytes(read) == grow_and_cap_bytes(model_preset(path.stem))


def test_kimi_k2_is_a_deepseek_v3_of_other_sizes():
    raw = load_config("deepseek-v3") | {
        "model_type": "kimi_k2", "num_attention_heads": 64, "num_key_value_heads": 64,
        "n_routed_experts": 384, "first_k_dense_replace": 1, "vocab_size": 163840,
        "bos_token_id": 163584, "eos_token_id": 163585,
    }  # fmt: skip
    read = read_hf_config(raw)
    assert read.n_params == load_models()["kimi-k2"]["computed"]["params_total"]
    assert read_hf_config({**raw, "architectures": None}) == read


# ---- files as they are met ---------------------------------------------------------------------


def test_a_model_that_sees_keeps_its_language_part_in_text_config():
    text: dict = {
        "hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text",
        "num_hidden_layers": 34, "sliding_window": 1024,
    }  # fmt: skip
    whole = {
        "architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3",
        "text_config": text, "torch_dtype": "bfloat16", "vision_config": {"hidden_size": 1152},
    }  # fmt: skip
    stored = read_stored(whole)
    assert (stored.config.n_heads, stored.config.n_kv_heads, stored.config.d_head) == (8, 4, 256)
    assert stored.config.n_params == theirs(**text)[1]
    assert (stored.config.n_window_layers, stored.config.sliding_window) == (29, 1024)
    assert "what sees or hears comes on top" in stored.notes[0]
    flat = {**load_config("qwen2.5-7b"), "architectures": ["Qwen2VLForConditionalGeneration"]}
    assert read_hf_config({**flat, "model_type": "qwen2_vl"}).n_params == 7_615_616_512


def test_chunks_and_windows_bound_what_a_cache_grows_by():
    sizes = ROUNDED["llama-4-scout"][1]
    scout = read_hf_config({"model_type": "llama4_text", "rms_norm_eps": 1e-5, **sizes})
    assert (scout.n_window_layers, scout.sliding_window) == (36, 8192)
    one = 2 * 8 * 128 * 2
    assert cache_bytes(scout, 8192) == 48 * one * 8192
    assert cache_bytes(scout, 100_000) == one * (12 * 100_000 + 36 * 8192)
    deep = read_config(load_config("deepseek-v3"))
    assert cache_bytes(deep, 1) == 61 * 576 * 2


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"architectures": None, "model_type": "mamba"}, UnsupportedModel, "of mamba; needed is"),
        ({"architectures": ["JambaForCausalLM"], "model_type": "jamba"}, UnsupportedModel, "Jamba"),
        ({"architectures": ["A", "B"]}, UnsupportedModel, "of A, B; needed"),
        ({"architectures": None, "model_type": None}, UnsupportedModel, "of None; needed"),
        ({"hidden_size": None}, InvalidModelFile, "no 'hidden_size'"),
        ({"rms_norm_eps": None}, InvalidModelFile, "no 'rms_norm_eps'"),
        ({"intermediate_size": None}, InvalidModelFile, "no 'intermediate_size'"),
        (
            {"layer_types": ["linear_attention", "full_attention"]},
            UnsupportedModel, "holds linear_attention, which cannot be counted here; needed: full",
        ),
        (
            {"layer_types": ["sliding_attention"] * 32, "sliding_window": None},
            UnsupportedModel, "32 layers have a window; needed: its sliding_window",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_counted_is_refused_with_what_is_needed(changes, error, message):
    raw = load_config("mistral-7b-v0.1")
    with pytest.raises(error, match=message):
        read_hf_config({**raw, **changes})


def test_a_field_is_named_as_its_family_names_it():
    raw = {"model_type": "gpt2", "n_layer": 2, "n_head": 2, "vocab_size": 9, "n_positions": 8}
    with pytest.raises(InvalidModelFile, match="no 'n_embd'"):
        read_hf_config(raw)
    experts = {k: v for k, v in load_config("mixtral-8x7b").items() if k != "num_local_experts"}
    with pytest.raises(InvalidModelFile, match="no 'num_local_experts'"):
        read_hf_config(experts)
    moe = {**as_file(AutoConfig.for_model("qwen2_moe")), "shared_expert_intermediate_size": 1000}
    with pytest.raises(
        UnsupportedModel, match=r"=1000 cannot be counted; needed: a multiple.*1408"
    ):
        read_hf_config(moe)


def test_what_is_counted_only_is_never_run():
    for name in ("deepseek-v3", "gemma-3-1b", "gpt-oss-20b", "qwen3-30b-a3b"):
        with pytest.raises(UnsupportedModel, match="counted, but not run here"):
            require_runnable(read_config(load_config(name)))
    yarn = {**load_config("qwen2.5-7b"), "rope_scaling": {"type": "yarn", "factor": 4.0}}
    assert read_hf_config(yarn).not_run == ("RoPE scaling 'yarn'",)
    require_runnable(read_config(load_config("qwen2.5-7b")))


# ---- as it is stored ---------------------------------------------------------------------------

LLAMA_2 = load_config("llama-2-7b")


@pytest.mark.parametrize(
    ("quantization", "gigabytes"),
    [
        # sizes of files on the hub: TheBloke's 4-bit ones with groups of 128, and a plain one
        ({"quant_method": "gptq", "bits": 4, "group_size": 128}, 3.90),
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, 3.89),
        (None, 13.48),
    ],
)
def test_the_stored_bytes_are_those_of_the_files(quantization, gigabytes):
    stored = read_stored({**LLAMA_2, "quantization_config": quantization})
    assert stored.weight_bytes / 1e9 == pytest.approx(gigabytes, rel=0.005)
    assert stored.bytes_per_weight == stored.weight_bytes / 6_738_415_616


def test_gpt_oss_is_stored_in_four_bits_and_deepseek_in_eight():
    small = read_stored(load_config("gpt-oss-20b"))
    assert small.weight_bytes == pytest.approx(13_761_264_768, rel=1e-3)  # of its files
    assert small.format == "mxfp4 (4.25 bits a weight) where quantized, else bfloat16"
    large = read_stored(
        load_config("gpt-oss-20b")
        | {"num_hidden_layers": 36, "num_local_experts": 128, "layer_types": None}
    )
    assert large.config.n_params == load_models()["gpt-oss-120b"]["computed"]["params_total"]
    assert large.weight_bytes == pytest.approx(65_248_815_744, rel=1e-3)
    deep = read_stored(load_config("deepseek-v3"))
    assert 1.0 < deep.bytes_per_weight < 1.01
    assert any("not exact" in note for note in deep.notes)


@pytest.mark.parametrize(
    ("quantization", "message"),
    [
        ({"quant_method": "quip"}, "quant_method='quip'; needed: one of fp8, mxfp4"),
        ({"quant_method": "gptq"}, "does not say its bits"),
        ({"quant_method": "compressed-tensors", "config_groups": {}}, "does not say its bits"),
    ],
)
def test_an_unknown_way_of_storing_is_refused(quantization, message):
    with pytest.raises(UnsupportedModel, match=message):
        read_stored({**LLAMA_2, "quantization_config": quantization})


@pytest.mark.parametrize(
    ("quantization", "bits"),
    [
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, 8),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, 4.5),
        (
            {"quant_method": "bitsandbytes", "load_in_4bit": True,
             "bnb_4bit_use_double_quant": True}, 4.127,
        ),
        (
            {"quant_method": "compressed-tensors",
             "config_groups": {"group_0": {"weights": {"num_bits": 4, "group_size": 32}}}}, 4.5,
        ),
    ],
)  # fmt: skip
def test_bits_of_other_methods(quantization, bits):
    """The layers' 6.476 billion matrix weights at so many bits, the rest at 16."""
    stored = read_stored({**LLAMA_2, "quantization_config": quantization})
    matrices = 32 * (4 * 4096**2 + 3 * 4096 * 11008)
    rest = 2 * (stored.config.n_params - matrices)
    assert 8 * (stored.weight_bytes - rest) / matrices == pytest.approx(bits, abs=1e-3)


def test_only_the_experts_are_small_where_attention_is_spared():
    raw = load_config("qwen3-30b-a3b")
    groups = {"group_0": {"weights": {"num_bits": 4, "group_size": 32}}}
    method = {"quant_method": "compressed-tensors", "config_groups": groups}
    all_of_it = read_stored({**raw, "quantization_config": method})
    spared = read_stored({**raw, "quantization_config": {**method, "ignore": ["re:.*self_attn.*"]}})
    d = 48 * 2 * 2048 * 128 * (32 + 4)  # the matrices of attention
    assert spared.weight_bytes - all_of_it.weight_bytes == pytest.approx(d * (2 - 4.5 / 8))


def test_what_a_count_rests_on_is_said():
    bare = {k: v for k, v in LLAMA_2.items() if k not in ("tie_word_embeddings", "torch_dtype")}
    notes = " ".join(read_stored({**bare, "num_nextn_predict_layers": 1}).notes)
    for words in ("(MTP)", "embedding and head taken as two arrays", "bfloat16 taken"):
        assert words in notes
    with pytest.raises(UnsupportedModel, match="dtype='int3'; needed: one of float32"):
        read_stored({**LLAMA_2, "torch_dtype": "int3"})
    assert read_stored({**LLAMA_2, "torch_dtype": "float32"}).bytes_per_weight == 4
    assert read_stored(LLAMA_2).notes == ()
    assert replace(read_stored(LLAMA_2), notes=("x",)).format == "float16"
