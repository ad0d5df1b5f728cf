"""Over an exercise's visible cases everything that it is given changes at least once.

A parameter that never changes may be ignored, a default that is never relied on may be another, and
a field of a record that never changes may be left out: no case would tell.
"""

import warnings

import pytest
from what_varies import over_visible_cases

from grader.judging import registry

HANDED_ON = "body_params, which is given, reads it; the answer only hands the config on"
JUDGED_BELOW = "read by a function of the lesson that is judged with experts by itself"
ONE_KIND = "read of the one layer that has experts; what is done with it is judged in lesson 09"
EMPTY = "a plain Llama has none of it, and the layer with it is another case's"
COUNTED = "read by the count of all numbers, which is tested by itself (config.n_params)"

EXPERTS = ("d_expert", "mlp_is_gated", "n_experts", "n_experts_per_token", "n_shared_experts")
NO_MATTER = (
    "bos_id", "eos_ids", "norm_eps", "norm_topk", "not_run", "rope_scaling", "rope_theta",
    "layer_norm", "mlp_bias", "mlp_is_gated", "n_learned_positions", "n_other_params",
    "norms_per_layer", "qk_norm", "qk_norm_per_head",
)  # fmt: skip


def of_config(reason: str, *names: str) -> dict[str, str]:
    return {f"config.{name}": reason for name in names}


WITH_EXPERTS = of_config(HANDED_ON, "mla", "n_dense_layers")
WITHOUT = of_config(JUDGED_BELOW, *EXPERTS) | of_config(HANDED_ON, "mla")
LAYER = of_config(ONE_KIND, "n_dense_layers", "n_experts_per_token", "n_shared_experts",
                  "norm_topk")  # fmt: skip
STAYS: dict[str, dict[str, str]] = {
    "online_normalizer": {"score_blocks": "a generator: the scores that it gives change"},
    "add_served": {"run_expert": "a function of the check; the rows that it gets change"},
    "self_attention": of_config("to_heads reads it, and is judged with it", "norm_eps",
                                "qk_norm_per_head"),
    "decoder_block": LAYER
    | of_config("cases of latent attention have one kind of it", "mla", "n_heads")
    | {f"weights.{name}": EMPTY for name in
       ("b_k", "b_q", "b_v", "k_gain", "q_gain", "w_router", "latent_gain", "w_latent",
        "w_q_latent")},
    "forward": LAYER | of_config("decoder_block is judged with it", "mla"),
    "total_and_active_params": of_config(COUNTED, *NO_MATTER),
    "resident_bytes": of_config(COUNTED, *NO_MATTER),
    "dense_params": of_config(
        "attention_params reads it, and is judged with it", "mla", "qk_norm_per_head"
    ),
    "speculative_token": {"rng": "one generator gives all the draws"},
    **dict.fromkeys(
        ("token_flops", "forward_flops", "step_bytes", "phase_flops", "pass_read_bytes"),
        WITH_EXPERTS,
    ),
    **dict.fromkeys(
        ("step_bound_s", "compute_bound_batch", "pass_intensity", "prefill_knee", "ttft_bound_s",
         "tpot_bound_s", "prefill_share", "decode_speeds"),
        WITHOUT,
    ),
}  # fmt: skip
"""What never changes, by exercise, and why no case is needed for it."""


@pytest.mark.parametrize("exercise", registry.exercises(), ids=lambda e: e.id)
def test_what_an_exercise_is_given_changes_over_its_visible_cases(exercise):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = over_visible_cases(exercise).never_vary()
    assert [name for name in found if name not in STAYS.get(exercise.id, {})] == []


def test_every_reason_belongs_to_an_exercise():
    assert set(STAYS) <= {e.id for e in registry.exercises()}


def test_a_parameter_that_never_changes_is_found():
    from dataclasses import replace

    from grader.judging.exercise import given

    (exercise,) = (e for e in registry.exercises("01_roofline") if e.id == "matmul_bytes")
    cases = [given(str(n), n_rows=n, d_in=4, d_out=5, bytes_per_number=4) for n in (1, 2)]
    poor = replace(exercise, cases=tuple(cases), draw=None)
    assert over_visible_cases(poor).never_vary() == [
        "bytes_per_number", "bytes_per_weight", "d_in", "d_out"
    ]  # fmt: skip
