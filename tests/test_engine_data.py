"""The data files are the ones their README describes, and presets agree with published counts."""

import hashlib
import re

import pytest

from inferlab.data import ROOT, load_devices, load_models, model_preset
from inferlab.kv_cache import kv_bytes_per_token


def test_the_readme_lists_every_file_with_its_sha256():
    rows = re.findall(
        r"^\| `([^`]+)` .*\| `([0-9a-f]{64})` \|$", (ROOT / "data/README.md").read_text(), re.M
    )
    listed = dict(rows)
    for file in (ROOT / "data").glob("*.json"):
        assert listed[file.name] == hashlib.sha256(file.read_bytes()).hexdigest(), file.name


PLAIN = ["llama-2-7b", "llama-3-8b", "llama-3-70b", "llama-3.2-1b", "mistral-7b-v0.1"]


@pytest.mark.parametrize("name", [*PLAIN, "smollm2-135m", "smollm2-1.7b", "phi-3-mini-4k"])
def test_presets_count_the_published_parameters(name):
    record = load_models()[name]
    assert model_preset(name).n_params == record["published"]["params_total"]


@pytest.mark.parametrize("name", [m for m, r in load_models().items() if not r["mla"]])
def test_presets_give_the_recorded_cache_size(name):
    record = load_models()[name]
    if record["moe"]:
        with pytest.raises(ValueError, match="mixture of experts"):
            model_preset(name)
    else:
        expected = record["computed"]["kv_bytes_per_token_bf16"]
        assert kv_bytes_per_token(model_preset(name)) == expected


def test_styles_and_unknown_names():
    assert model_preset("8b-style").n_params == model_preset("llama-3-8b").n_params
    assert model_preset("70b-style").n_params == model_preset("llama-3-70b").n_params
    with pytest.raises(ValueError, match=r"'gpt5'; known: 8b-style"):
        model_preset("gpt5")
    with pytest.raises(ValueError, match="latent"):
        model_preset("deepseek-v3")
    assert load_devices()["synthetic"]["bandwidth_gb_s"] == 3000
