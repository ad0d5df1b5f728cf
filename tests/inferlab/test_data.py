"""The data files are the ones their README describes, and presets agree with published counts."""

import hashlib
import math
import re

import pytest

from inferlab.cache_sizes import grow_and_cap_bytes
from inferlab.checkpoints.read_config import read_config
from inferlab.data import ROOT, load_config, load_devices, load_models, model_preset
from inferlab.kv_cache import kv_bytes_per_token
from inferlab.params import any_attention_params, count_params
from inferlab.sizes import UnsupportedModel, require_runnable
from inferlab.weights import layer_shapes


def test_the_readme_lists_every_file_with_its_sha256():
    rows = re.findall(
        r"^\| `([^`]+)` .*\| `([0-9a-f]{64})` \|$", (ROOT / "data/README.md").read_text(), re.M
    )
    listed = dict(rows)
    for file in (ROOT / "data").glob("*.json"):
        assert listed[file.name] == hashlib.sha256(file.read_bytes()).hexdigest(), file.name


ALL = list(load_models())


@pytest.mark.parametrize("name", [m for m in ALL if load_models()[m]["published"]["exact"]])
def test_presets_count_the_published_parameters(name):
    """d_head apart from d_model / n_heads, tied heads, biases, norms, experts and latents."""
    assert model_preset(name).n_params == load_models()[name]["published"]["params_total"]


@pytest.mark.parametrize("name", ALL)
def test_presets_count_the_recorded_active_parameters(name):
    config, record = model_preset(name), load_models()[name]["computed"]
    assert count_params(config) == record["params_total"]
    assert count_params(config, config.n_experts_per_token) == record["params_active"]
    assert any_attention_params(config) == record["params_attention_per_layer"]


@pytest.mark.parametrize("name", [m for m, r in load_models().items() if not r["mla"]])
def test_presets_give_the_recorded_cache_size(name):
    expected = load_models()[name]["computed"]["kv_bytes_per_token_bf16"]
    assert kv_bytes_per_token(model_preset(name)) == expected


@pytest.mark.parametrize("name", ["gpt2", "gemma-2-2b", "falcon-7b", "gpt-oss-20b"])
def test_a_model_that_is_only_counted_is_refused_by_the_engine(name):
    with pytest.raises(UnsupportedModel, match="is counted but not run here"):
        layer_shapes(model_preset(name))


@pytest.mark.parametrize(
    "name", ["llama-3-8b", "mistral-7b-v0.1", "qwen2.5-7b", "qwen3-0.6b", "olmoe-1b-7b",
             "deepseek-v2", "deepseek-v2-lite"]
)  # fmt: skip
def test_the_count_is_that_of_the_arrays_that_the_engine_wants(name):
    config = model_preset(name)
    layers = [layer_shapes(config, i).values() for i in range(config.n_layers)]
    in_layers = sum(math.prod(shape) for layer in layers for shape in layer)
    tables = (1 if config.tied_embeddings else 2) * config.vocab_size * config.d_model
    assert count_params(config) == in_layers + tables + config.d_model


def test_styles_and_unknown_names():
    assert model_preset("8b-style").n_params == model_preset("llama-3-8b").n_params
    assert model_preset("70b-style").n_params == model_preset("llama-3-70b").n_params
    with pytest.raises(ValueError, match=r"'gpt5'; known: 8b-style"):
        model_preset("gpt5")
    assert load_devices()["synthetic"]["bandwidth_gb_s"] == 3000


FAMILY_TYPES = ("llama", "mistral", "qwen2", "qwen3", "mixtral", "olmoe", "deepseek_v2")
CONFIGS = sorted(path.stem for path in (ROOT / "data" / "configs").glob("*.json"))
RUNS = [name for name in CONFIGS if load_config(name)["model_type"] in FAMILY_TYPES]


@pytest.mark.parametrize("name", CONFIGS)
def test_a_kept_config_has_the_recorded_sizes(name):
    raw, record = load_config(name), load_models()[name]
    fields = {
        "hidden_size": "hidden_size",
        "num_hidden_layers": "layers",
        "num_attention_heads": "num_heads",
        "num_key_value_heads": "num_kv_heads",
        "vocab_size": "vocab_size",
        "max_position_embeddings": "max_context",
    }
    assert {k: raw[k] for k in fields} == {k: record[field] for k, field in fields.items()}
    if raw.get("head_dim"):
        assert raw["head_dim"] == record["head_dim"]


@pytest.mark.parametrize("name", CONFIGS)
def test_reading_a_kept_config_gives_the_preset(name):
    """Two roads to the same sizes: the hub's file, and the compiled record."""
    read, preset = read_config(load_config(name)), model_preset(name)
    assert read.n_params == preset.n_params
    assert grow_and_cap_bytes(read) == grow_and_cap_bytes(preset)
    assert (read.d_head, read.mla, read.sliding_window) == (
        preset.d_head, preset.mla, preset.sliding_window
    )  # fmt: skip


def test_the_engine_reads_most_kept_configs_and_refuses_the_others_by_name():
    assert len(RUNS) >= 9
    for name in set(CONFIGS) - set(RUNS):
        with pytest.raises(UnsupportedModel, match="the family"):
            require_runnable(read_config(load_config(name)))
    with pytest.raises(ValueError, match=r"no config.json of 'gpt5' is kept; known: deepseek"):
        load_config("gpt5")
