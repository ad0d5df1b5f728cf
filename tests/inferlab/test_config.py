"""Sizes that do not fit together are refused, with both numbers."""

from dataclasses import replace

import numpy as np
import pytest
from lattice_models import KINDS, model_of

from inferlab.sizes import MlaConfig, RopeScaling
from inferlab.weights import layer_shapes


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        ("GQA", {"sliding_window": 0}, "sliding_window=0"),
        ("GQA", {"n_experts": -1}, "n_experts=-1 must be a whole number of at least 0"),
        ("GQA", {"n_experts_per_token": 2}, "n_experts_per_token=2 needs experts"),
        ("GQA", {"n_shared_experts": 1}, "n_shared_experts=1 needs experts"),
        ("MoE", {"n_experts_per_token": 0}, "n_experts_per_token=0"),
        ("MoE", {"n_experts_per_token": 6}, "n_experts_per_token=6 must be at most n_experts=5"),
        ("MoE", {"d_expert": 0}, "d_expert=0"),
        ("MoE", {"n_dense_layers": 4}, "n_dense_layers=4 must be at most n_layers=3"),
        ("MLA", {"d_head": 8}, "d_head=8 must be d_nope=6 . d_rope=4"),
        ("MLA", {"n_kv_heads": 2}, "n_kv_heads=2 must be n_heads=4"),
        ("MLA", {"sliding_window": 4}, "sliding_window=4 is not implemented together with MLA"),
        ("MLA", {"qk_norm": True}, "qk_norm=True is not implemented together with MLA"),
        ("MLA", {"attention_bias": True}, "attention_bias=True"),
    ],
)
def test_a_config_refuses_what_does_not_fit(kind, changes, message):
    with pytest.raises(ValueError, match=message):
        replace(KINDS[kind], **changes)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"d_latent": 0}, "d_latent=0"),
        ({"d_rope": 3}, "d_rope=3 must be even"),
        ({"d_query_latent": 0}, "d_query_latent=0"),
        ({"d_value": 2.0}, r"d_value=2\.0"),
    ],
)
def test_mla_widths_are_checked(sizes, message):
    with pytest.raises(ValueError, match=message):
        MlaConfig(**{"d_latent": 8, "d_nope": 4, "d_rope": 2, "d_value": 4, **sizes})


@pytest.mark.parametrize(
    ("scaling", "message"),
    [
        ({"factor": 0.5}, r"factor=0\.5 must be at least 1"),
        ({"factor": float("nan")}, "factor=nan"),
        ({"low_freq_factor": 4.0}, r"low_freq_factor=4\.0 must be below high_freq_factor=4\.0"),
        ({"original_context": 0}, "original_context=0"),
    ],
)
def test_rope_scaling_is_checked(scaling, message):
    with pytest.raises(ValueError, match=message):
        RopeScaling(**scaling)


@pytest.mark.parametrize("kind", KINDS)
def test_parameters_are_counted_as_they_lie_in_memory(kind):
    model = model_of(kind)
    assert model.weight_bytes == 8 * model.n_params
    for index, layer in enumerate(model.weights.layers):
        held = {name: array.shape for name, array in layer.arrays().items()}
        assert held == layer_shapes(model.config, index)


def test_weights_of_another_model_are_refused_in_plain_words():
    model = replace(model_of("GQA"), config=KINDS["MoE"])
    with pytest.raises(ValueError, match="lack an array"):
        model.forward(np.array([[1, 2]]))
