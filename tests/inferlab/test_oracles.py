"""Every architecture that loads gives the logits of transformers, which we did not write.

Each model is random, saved by transformers to a folder, and loaded from there, so the reading of
config.json and the names, layouts and types of the tensors are tested with the forward pass.
"""

from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from safetensors.numpy import save_file as save_numpy
from safetensors.torch import load_file
from their_models import ARCHITECTURES, TOKENS, T, their_logits, their_model

from inferlab.checkpoints.hf_folder import load_hf_weights
from inferlab.checkpoints.safetensors_file import stored_tensors, widen_bfloat16
from inferlab.config import ModelConfig
from inferlab.data import load_models
from inferlab.model import Model, load_model
from inferlab.sizes import MlaConfig, RopeScaling


@pytest.fixture(scope="module", params=ARCHITECTURES)
def pair(request, tmp_path_factory) -> tuple[Any, Path]:
    """A model of transformers and the folder that it was saved to."""
    original = their_model(request.param)
    folder = tmp_path_factory.mktemp("a model with spaces")
    original.save_pretrained(folder)
    return original, folder


def test_float32_logits_are_those_of_transformers(pair):
    original, folder = pair
    expected = their_logits(original, TOKENS)
    assert expected.std() > 0.3, "logits near zero would agree with anything"
    np.testing.assert_allclose(load_model(folder).forward(TOKENS), expected, rtol=0, atol=1e-4)


def test_float64_logits_are_closer_still(pair):
    # transformers computes norms, RoPE and routers in float32 whatever the dtype, so not 1e-12.
    original, folder = pair
    expected = their_logits(deepcopy(original).double(), TOKENS)
    config = load_model(folder).config
    model = Model(config, load_hf_weights(folder, config, np.float64))
    logits = model.forward(TOKENS)
    assert logits.dtype == np.float64
    np.testing.assert_allclose(logits, expected, rtol=0, atol=1e-5)


def test_the_number_of_parameters_is_theirs(pair):
    original, folder = pair
    model = load_model(folder)
    assert model.n_params == original.num_parameters()
    assert model.weight_bytes == 4 * model.n_params


@pytest.mark.parametrize("kind", ["llama", "mixtral", "deepseek-v2, experts"])
def test_bfloat16_tensors_load_as_transformers_loads_them(tmp_path, kind):
    original = their_model(kind)
    original.bfloat16().save_pretrained(tmp_path)
    stored = load_file(tmp_path / "model.safetensors").values()
    assert {tensor.dtype for tensor in stored} == {torch.bfloat16}
    rounded = type(original).from_pretrained(tmp_path, dtype=torch.float32)
    rounded.set_experts_implementation("eager")
    np.testing.assert_allclose(
        load_model(tmp_path).forward(TOKENS), their_logits(rounded, TOKENS), rtol=0, atol=1e-4
    )


def test_every_bfloat16_is_what_ml_dtypes_says():
    bits = np.arange(2**16, dtype=np.uint16)
    np.testing.assert_array_equal(
        widen_bfloat16(bits), bits.view(ml_dtypes.bfloat16).astype(np.float32)
    )


@pytest.mark.parametrize(
    "dtype", [np.float64, np.float32, np.float16, ml_dtypes.bfloat16], ids=lambda d: d.__name__
)
def test_tensors_that_the_safetensors_package_wrote_are_read_exactly(tmp_path, dtype):
    rng = np.random.default_rng(0)
    written = {"a.b": rng.standard_normal((3, 5)).astype(dtype), "c": np.zeros((0, 2), dtype)}
    path = tmp_path / "a file.safetensors"
    save_numpy(written, path, metadata={"format": "np"})
    held = stored_tensors(path)
    assert set(held) == set(written)
    for name, array in written.items():
        read = held[name].read(name)
        assert read.shape == array.shape
        np.testing.assert_array_equal(read.astype(np.float64), array.astype(np.float64))


# Sizes that their owners publish, with the fields that data/models.json has no room for.
PUBLISHED = ("mixtral-8x7b", "olmoe-1b-7b", "deepseek-v2-lite", "deepseek-v2")


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_models_have_their_published_number_of_parameters(name):
    record = load_models()[name]
    moe, mla = record["moe"], record["mla"]
    latent = mla and MlaConfig(
        d_latent=mla["kv_lora_rank"],
        d_nope=mla["qk_nope_head_dim"],
        d_rope=mla["qk_rope_head_dim"],
        d_value=mla["v_head_dim"],
        d_query_latent=mla["q_lora_rank"],
    )
    config = ModelConfig(
        n_layers=record["layers"],
        d_model=record["hidden_size"],
        n_heads=record["num_heads"],
        n_kv_heads=record["num_kv_heads"],
        d_head=record["head_dim"],
        d_ff=record["ffn_size"] or moe["expert_ffn_size"],
        vocab_size=record["vocab_size"],
        tied_embeddings=record["tied_embeddings"],
        qk_norm=record["qk_norm"] is not None,
        qk_norm_per_head=record["qk_norm"] != "full",
        n_experts=moe["num_experts"],
        n_experts_per_token=moe["top_k"],
        d_expert=moe["expert_ffn_size"],
        n_shared_experts=moe["shared_experts"],
        n_dense_layers=moe["dense_layers_first"],
        mla=latent,
    )
    assert config.n_params == record["computed"]["params_total"]


def test_a_window_as_long_as_the_text_changes_nothing_and_a_shorter_one_does(tmp_path):
    their_model("mistral").save_pretrained(tmp_path)
    model = load_model(tmp_path)
    assert model.config.sliding_window == 4

    def logits(window: int | None) -> np.ndarray:
        return replace(model, config=replace(model.config, sliding_window=window)).forward(TOKENS)

    np.testing.assert_array_equal(logits(T), logits(None))
    np.testing.assert_array_equal(logits(4)[:, :4], logits(None)[:, :4])
    assert np.abs(logits(4)[:, 4:] - logits(None)[:, 4:]).max() > 0.1


@pytest.mark.parametrize("kind", ["llama", "mistral", "deepseek-v2, experts"])
def test_every_option_of_a_family_matters(tmp_path, kind):
    """What the oracle tests rest on: a changed option must show in the logits."""
    their_model(kind).save_pretrained(tmp_path)
    model = load_model(tmp_path)
    changes = {
        "rope_theta": {"rope_theta": 3e4},
        "norm_eps": {"norm_eps": 1e-2},
        "scaling": {"rope_scaling": RopeScaling(original_context=16)},
    }
    expected = model.forward(TOKENS)
    for name, change in changes.items():
        changed = replace(model, config=replace(model.config, **change)).forward(TOKENS)
        assert np.abs(changed - expected).max() > 1e-3, name
