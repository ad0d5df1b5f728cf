"""Lesson 08: every number in its text is computed; the law is kept exactly; greedy tokens too."""

import argparse
import itertools
from functools import partial

import numpy as np
import pytest
from drawn_models import TINY, tiny_model
from hypothesis import given
from hypothesis import strategies as st
from lesson_text import stated_numbers

from grader.checks.speculative_sampling.quiz import RIDGE_8B_H100, switched_off
from grader.checks.speculative_sampling.toy import toy_pair
from grader.judging import registry
from grader.judging.law import Law
from inferlab.commands import speculate as speculate_cli
from inferlab.commands.generate import run_generate
from inferlab.data import ROOT, load_devices, load_models
from inferlab.engines.pytorch.model import TorchModel
from inferlab.generate import Stop, generate_cached
from inferlab.model import load_model
from inferlab.prompt_lookup import LookupStats, TrackRecord, lookup_rounds
from inferlab.sampling import (
    draw_token,
    keep_top_p,
    prefilled,
    sampled_tokens,
    sampling_law,
    temperature_law,
)
from inferlab.speculative_sampling import (
    acceptance_probability,
    acceptance_rate,
    best_gamma,
    expected_tokens,
    kept_law,
    require_same_vocab,
    residual_law,
    speculative_generate,
    speculative_rounds,
    speedup,
    verify_cost,
    verify_draft,
)

TARGET, DRAFT = np.array([0.2, 0.5, 0.3]), np.array([0.6, 0.3, 0.1])
GREEDY = partial(sampling_law, temperature=0.0)

# ---- the text -----------------------------------------------------------------------------------


def computed() -> set[str]:
    """Every number that the lesson's text states as a result, as it is written there."""
    powers = [0.8**i for i in range(2, 5)]
    from_target = TARGET[0] * 1 + (1 - acceptance_rate(TARGET, DRAFT)) * TARGET[0]
    share = (expected_tokens(0.8, 4) - 1) / 4
    five_one = sampling_law(np.log([0.3, 0.5, 0.05, 0.15]), top_p=0.7)
    return {
        *(f"{p:.4g}" for p in powers), f"{expected_tokens(0.8, 4):.4f}",
        f"{expected_tokens(0.8, 4):.2f}", f"{expected_tokens(0.5, 4):.4f}",
        f"{1 + 4 * 0.05:g}", f"{speedup(0.8, 4, 0.05):.2f}", f"{speedup(0.8, 4, 0.05):.1f}",
        f"{speedup(0.5, 4, 0.05):.2f}", f"{share:.4f}", f"{share:.2f}", f"{100 * share:.0f}",
        f"{expected_tokens(share, 4):.2f}",
        f"{(expected_tokens(0.6, 4) + expected_tokens(1.0, 4)) / 2:.2f}",
        *(f"{switched_off(B):.2f}" for B in (16, 64, 128, 256)),
        f"{RIDGE_8B_H100:.0f}", f"{256 * 5:,}", str(int(RIDGE_8B_H100 // 5)),
        f"{600 * 5:,}", f"{120 * 5}", f"{speedup(0.8, best_gamma(0.8, 0.05), 0.05):.2f}",
        *(str(best_gamma(a, 0.05)) for a in (0.9, 0.95, 0.99)),
        f"{acceptance_rate(TARGET, DRAFT):g}", f"{(TARGET * DRAFT).sum():.2f}",
        f"{from_target:.2f}", f"{five_one[0]:g}", f"{five_one[1]:g}", f"{4 / 7:.3f}",
        f"{(0.5 * 0.5 / 20_000) ** 0.5:.4f}", repr(sum([0.1] * 10)),
        f"{load_model('tiny-target').n_params / 1e6:.1f}",
        f"{load_model('tiny-draft').n_params / 1e6:.1f}",
        "10", "12", "13", "11", "14",  # the worked example of the caches, tested below
    }  # fmt: skip


# What the text takes as given: probabilities and uniforms of its examples, settings, sizes.
GIVEN = {
    "01", "04", "07", "08", "0.05", "0.1", "0.125", "0.13", "0.15", "0.2", "0.25", "0.3", "0.4",
    "0.5", "0.55", "0.7", "0.75", "0.8", "0.9", "0.95", "0.99", "0.6", "1.0", "15", "16", "20",
    "30", "64", "120", "128", "256", "300", "480", "600", "20,000", "3.35", "989.4", "151,936",
    "152,064",
}  # fmt: skip


def test_every_number_in_the_text_is_computed():
    assert stated_numbers("08_speculative_sampling") - computed() - GIVEN == set()


def test_the_sources_of_those_numbers_are_right():
    """Against closed forms and published figures that this project did not compute."""
    assert expected_tokens(0.8, 4) == pytest.approx(3.3616)
    assert expected_tokens(1.0, 4) == expected_tokens(1, 4) == 5
    assert [round(switched_off(B), 2) for B in (16, 64, 128, 256)] == [2.8, 2.62, 1.42, 0.74]
    found = {a: best_gamma(a, 0.05) for a in (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99)}
    assert found == {0.5: 3, 0.6: 4, 0.7: 6, 0.8: 8, 0.9: 13, 0.95: 21, 0.99: 55}
    assert speedup(0.6, 4, 0.05) == pytest.approx(1.92133, abs=1e-5)
    assert speedup(0.9, 13, 0.05) == pytest.approx(4.67413, abs=1e-5)
    assert (expected_tokens(0.6, 4) + 5) / 2 == pytest.approx(3.6528)
    models = load_models()
    assert models["qwen2.5-7b"]["vocab_size"] == 152_064
    assert {models[m]["vocab_size"] for m in ("qwen3-8b", "qwen3-0.6b")} == {151_936}


def test_the_ridge_is_that_of_the_device():
    h100 = load_devices()["h100-sxm"]
    peak, bandwidth = 1e12 * h100["peak_dense_tflops"]["bf16"], 1e9 * h100["bandwidth_gb_s"]
    assert pytest.approx(peak / bandwidth) == RIDGE_8B_H100


def test_predictions_have_an_answer():
    answers = {p.id: p.answer() for p in registry.predictions("08_speculative_sampling")}
    assert 2 <= len(answers) <= 4
    assert answers["sp_tokens"] == pytest.approx(3.3616)
    assert answers["sp_equal"] == 5
    assert answers["sp_batch"] < 1


# ---- laws ---------------------------------------------------------------------------------------


def test_the_order_of_the_filters_is_that_of_transformers():
    torch = pytest.importorskip("torch")
    from transformers import (
        LogitsProcessorList,
        MinPLogitsWarper,
        TemperatureLogitsWarper,
        TopKLogitsWarper,
        TopPLogitsWarper,
    )

    rng = np.random.default_rng(0)
    for _ in range(40):
        logits, t = 2 * rng.normal(size=30), float(rng.uniform(0.4, 2))
        k, p, m = (
            int(rng.integers(2, 25)),
            float(rng.uniform(0.3, 0.99)),
            float(rng.uniform(0, 0.3)),
        )
        chain = LogitsProcessorList(
            [TemperatureLogitsWarper(t), TopKLogitsWarper(k), TopPLogitsWarper(p),
             MinPLogitsWarper(m)]
        )  # fmt: skip
        theirs = torch.softmax(chain(None, torch.from_numpy(logits)[None]), -1)[0].numpy()
        assert sampling_law(logits, t, k, p, m) == pytest.approx(theirs, abs=1e-12)


@given(st.lists(st.integers(0, 6), min_size=2, max_size=8), st.floats(0.01, 1))
def test_top_p_keeps_the_smallest_sufficient_set(weights, top_p):
    weights = np.array(weights, float)
    if weights.sum() == 0:
        weights[0] = 1
    law = weights / weights.sum()
    kept = keep_top_p(law, top_p)
    assert kept.sum() == pytest.approx(1)
    mass = law[kept > 0]
    assert mass.sum() >= top_p - 1e-9
    if top_p < 1 and len(mass) > 1:
        assert mass.sum() - mass.min() < top_p + 1e-9


@given(st.lists(st.floats(0, 1), min_size=2, max_size=9), st.floats(0, 1, exclude_max=True))
def test_a_token_without_probability_is_never_drawn(weights, uniform):
    law = np.array(weights)
    if law.sum() <= 0:
        law = law + 1
    law /= law.sum()
    token = draw_token(law, uniform)
    assert law[token] > 0
    assert law[:token].sum() <= uniform + 1e-9


# ---- the exact law of a round -------------------------------------------------------------------


def _pieces(thresholds):
    ends = np.unique(np.clip([0.0, *np.ravel(thresholds), 1.0], 0, 1))
    return [(b - a, (a + b) / 2) for a, b in itertools.pairwise(ends) if b - a > 1e-13]


@pytest.mark.parametrize("gamma", [0, 1, 2, 3])
def test_the_law_of_what_a_round_writes_is_the_target_s(gamma):
    """By enumeration: every draft, every outcome of the uniforms; laws that depend on the text."""
    rng, n = np.random.default_rng(gamma), 3
    prefixes = [x for k in range(gamma + 1) for x in itertools.product(range(n), repeat=k)]
    target = {x: rng.dirichlet(np.ones(n)) for x in prefixes}
    draft = {x: rng.dirichlet(np.ones(n)) for x in prefixes}
    found: dict[tuple, float] = {}
    for drafted in itertools.product(range(n), repeat=gamma):
        t = [target[drafted[:i]] for i in range(gamma + 1)]
        d = [draft[drafted[:i]] for i in range(gamma)]
        proposed = np.prod([law[x] for law, x in zip(d, drafted, strict=True)])
        tests = [_pieces(min(1, t[i][x] / d[i][x])) for i, x in enumerate(drafted)]
        left = [np.maximum(t[i] - d[i], 0) for i in range(gamma)]
        ends = [np.cumsum(law / law.sum()) for law in (*left, t[-1])]
        for cell in itertools.product(*tests, _pieces(ends)):
            weight = proposed * np.prod([size for size, _ in cell])
            out = tuple(verify_draft(t, d, list(drafted), [middle for _, middle in cell]))
            for rest in itertools.product(range(n), repeat=gamma + 1 - len(out)):
                text = out + rest  # what the round left open comes from the target later
                open_ = [target[text[:i]][text[i]] for i in range(len(out), gamma + 1)]
                found[text] = found.get(text, 0.0) + weight * np.prod(open_)
    for text in itertools.product(range(n), repeat=gamma + 1):
        right = np.prod([target[text[:i]][x] for i, x in enumerate(text)])
        assert found[text] == pytest.approx(right, abs=1e-10)


@given(st.integers(0, 10_000), st.integers(2, 7))
def test_acceptance_and_residual_add_up_to_the_target(seed, n):
    target, draft = np.random.default_rng(seed).dirichlet(np.ones(n), size=2)
    kept = np.array([draft[x] * acceptance_probability(target, draft, x) for x in range(n)])
    assert kept.sum() == pytest.approx(acceptance_rate(target, draft))
    assert kept + (1 - kept.sum()) * residual_law(target, draft) == pytest.approx(target)


@given(st.floats(0, 1), st.integers(0, 12))
def test_the_expected_tokens_are_the_mean_of_the_geometric_law(acceptance, gamma):
    law = kept_law(acceptance, gamma)
    assert law.sum() == pytest.approx(1)
    assert 1 + law @ np.arange(gamma + 1) == pytest.approx(expected_tokens(acceptance, gamma))


@pytest.mark.parametrize("acceptance", [0.1, 0.35, 0.6, 0.82, 0.93])
@pytest.mark.parametrize("cost", [0.02, 0.07, 0.2, 0.5])
def test_the_best_gamma_obeys_the_mediant_rule(acceptance, cost):
    """Go on while the next token's chance over its cost is above the speed-up so far."""
    gamma = 0
    while acceptance ** (gamma + 1) / cost > speedup(acceptance, gamma, cost):
        gamma += 1
    assert best_gamma(acceptance, cost) == gamma
    assert (gamma > 0) == (acceptance > cost)


def test_verification_costs_what_the_tokens_of_a_pass_cost():
    for gamma, B in itertools.product((0, 1, 4, 9), (1, 16, 64, 128, 300, 900)):
        step, verify = (max(1 / 295, n / 295**2) for n in (B, B * (gamma + 1)))
        assert verify_cost(gamma, B, 295) == pytest.approx(verify / step)
    assert [best_gamma(0.8, 0.05, B, 295) for B in (64, 256, 300)] == [4, 1, 0]


# ---- two models ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", TINY)
@pytest.mark.parametrize("engine", [lambda model: model, TorchModel.from_model])
@pytest.mark.parametrize("gamma", [0, 1, 4])
def test_greedy_tokens_are_those_of_the_target_alone(kind, engine, gamma):
    model, other = tiny_model(kind, np.float32), tiny_model(kind, np.float32, seed=5)
    prompt = np.random.default_rng(gamma).integers(0, 20, 9).tolist()
    plain = generate_cached(model, prompt, 40)
    for draft in (other, model):  # a bad draft, and a perfect one
        rng = np.random.default_rng(0)
        got = speculative_generate(engine(model), engine(draft), prompt, 40, gamma, GREEDY, rng)
        assert got == plain


def test_a_perfect_draft_takes_the_fewest_passes():
    model = tiny_model()
    rounds = speculative_rounds(model, model, [1, 2, 3], 20, 4, GREEDY, np.random.default_rng(0))
    assert [len(new) for new in rounds] == [5, 5, 5, 5]


class Remembering:
    """A model that keeps the caches it makes."""

    def __init__(self, model):
        self.model, self.config, self.caches = model, model.config, []
        self.forward, self.next_logits = model.forward, model.next_logits

    def new_cache(self, capacity=16, n_sequences=1):
        self.caches.append(self.model.new_cache(capacity, n_sequences))
        return self.caches[-1]


def test_after_each_round_both_caches_hold_a_beginning_of_the_text_and_nothing_else():
    target, draft = (Remembering(tiny_model(seed=seed)) for seed in (0, 5))
    text = [3, 1, 4, 1, 5]
    sample = partial(sampling_law, temperature=0.3)
    rng = np.random.default_rng(0)
    lengths = set()
    for new in speculative_rounds(target, draft, list(text), 40, 3, sample, rng):
        text += new
        lengths.add(len(new))
        for model in (target, draft):
            (cache,) = model.caches
            n = cache.n_tokens
            assert 0 < n < len(text)
            assert set(cache.lengths) == {n}
            fresh = model.model.new_cache()
            model.model.forward(np.array([text[:n]]), fresh)
            for side in ("keys", "values"):
                kept, right = (getattr(c, side)[:, :, :, :n] for c in (cache, fresh))
                assert kept == pytest.approx(right, abs=1e-9)
        assert target.caches[0].n_tokens == len(text) - 1
    assert {1, 2} <= lengths


def test_the_worked_example_of_the_caches():
    """A text of 10, gamma 3: 12 in the draft's cache and 13 in the target's before the rollback."""
    target, draft = (Remembering(tiny_model()) for _ in range(2))
    rng = np.random.default_rng(0)
    rounds = speculative_rounds(target, draft, list(range(10)), 9, 3, GREEDY, rng)
    assert len(next(rounds)) == 4  # the draft is perfect: all three kept, the text has 14
    assert (target.caches[0].n_tokens, draft.caches[0].n_tokens) == (13, 12)


def test_sampled_text_has_the_law_of_the_target():
    """Three tokens from a vocabulary of three: 27 outcomes, computed from the target alone."""
    target, draft = toy_pair(np.random.default_rng(11), 3, 1.0)
    law_of = partial(sampling_law, temperature=0.9, top_p=0.95)
    prompt, right = [0, 2], np.zeros((3, 3, 3))
    for text in itertools.product(range(3), repeat=3):
        laws = [law_of(target.next_logits([*prompt, *text[:i]])) for i in range(3)]
        right[text] = np.prod([law[x] for law, x in zip(laws, text, strict=True)])
    rng, counts = np.random.default_rng(1), np.zeros((3, 3, 3), int)
    plain, looked_up = counts.copy(), counts.copy()
    for _ in range(4000):
        counts[tuple(speculative_generate(target, draft, prompt, 3, 2, law_of, rng))] += 1
        plain[tuple(sampled_tokens(target, prompt, 3, law_of, rng))] += 1
    eager = {"n_right": 0, "first": 2, "largest": 2}
    stats = LookupStats()
    for _ in range(4000):
        rounds = lookup_rounds(target, [0, 0, 2, 0, 0, 2], 3, law_of, rng,
                               record=TrackRecord(**eager), stats=stats)  # fmt: skip
        looked_up[tuple(token for new in rounds for token in new)] += 1
    assert stats.n_drafted > 1000
    for found in (counts, plain):
        assert Law().difference(right.ravel(), found.ravel(), {}) is None
    other = np.zeros((3, 3, 3))
    for text in itertools.product(range(3), repeat=3):
        laws = [law_of(target.next_logits([0, 0, 2, 0, 0, 2, *text[:i]])) for i in range(3)]
        other[text] = np.prod([law[x] for law, x in zip(laws, text, strict=True)])
    assert Law().difference(other.ravel(), looked_up.ravel(), {}) is None


def test_models_of_other_vocabularies_are_refused_with_both_sizes():
    with pytest.raises(ValueError, match=r"67 tokens, the draft's 50"):
        require_same_vocab(tiny_model("gqa"), tiny_model("mha, untied"))
    with pytest.raises(ValueError, match="at least 1"):
        prefilled(tiny_model(), [])


def test_on_the_shipped_pair_greedy_is_unchanged_and_acceptance_is_as_computed():
    target, draft = load_model("tiny-target"), load_model("tiny-draft")
    text = target.tokenizer.encode((ROOT / "data/tiny/heldout.txt").read_text())[:300]
    rng = np.random.default_rng(0)
    tokens = speculative_generate(target, draft, text[:30], 50, 4, GREEDY, rng)
    assert tokens == generate_cached(target, text[:30], 50)
    sample = partial(sampling_law, temperature=1.0)
    laws = [[sample(row) for row in m.forward(np.array([text]))[0]] for m in (target, draft)]
    rate = np.mean([acceptance_rate(t, d) for t, d in zip(*laws, strict=True)])
    assert 0.65 < rate < 0.8
    rounds = speculative_rounds(target, draft, text[:30], 300, 4, sample, rng)
    kept = [len(new) - 1 for new in rounds][:-1]
    n_tested = sum(k + (k < 4) for k in kept)
    assert abs(sum(kept) / n_tested - rate) < 5 * (0.25 / n_tested) ** 0.5


# ---- judging by the law -------------------------------------------------------------------------


def test_a_law_inside_a_dict_is_judged_by_its_law_and_the_rest_exactly():
    law, right = Law(), {"tokens": np.array([0.5, 0.5]), "n": 3}
    assert law.difference(right, {"tokens": np.array([490, 510]), "n": 3}, {}) is None
    assert law.difference(right, {"tokens": np.array([490, 510]), "n": 4}, {}) is not None
    assert law.difference(right, {"tokens": np.array([300, 700]), "n": 3}, {}) is not None


# ---- the command line ---------------------------------------------------------------------------


def _args(**options) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    speculate_cli.add_arguments(parser)
    plain = {"text": "KING HENRY:", "model": "tiny-target", "max_new_tokens": 24, "raw": True}
    plain |= {"engine": "numpy", "device": "cpu", "dtype": "float32"}
    return argparse.Namespace(**(vars(parser.parse_args([])) | plain | options))


def _said(capsys, **options) -> tuple[str, str]:
    code = run_generate(_args(**options))
    out, err = capsys.readouterr()
    assert code == 0, err
    return out, err


def test_a_draft_on_the_command_line_changes_no_greedy_token(capsys):
    plain, _ = _said(capsys)
    drafted, err = _said(capsys, draft="tiny-draft")
    looked_up, _ = _said(capsys, draft="lookup")
    assert drafted == looked_up == plain
    assert "passes of the model" in err


@pytest.mark.parametrize("draft", [None, "tiny-draft", "lookup"])
def test_a_seed_gives_the_same_sample_again(capsys, draft):
    options = {"temperature": 0.9, "top_k": 40, "top_p": 0.9, "min_p": 0.02, "draft": draft}
    first, again, other = (_said(capsys, seed=seed, **options)[0] for seed in (1, 1, 2))
    assert first == again != other


@pytest.mark.parametrize(
    ("options", "needed"),
    [
        ({"temperature": -1.0}, "temperature must be 0 or more, given -1"),
        ({"temperature": 1.0, "top_p": 0.0}, "top_p must be above 0"),
        ({"temperature": 1.0, "top_k": 0}, "k must be at least 1"),
        ({"draft": "tiny-draft", "draft_tokens": -1}, "--draft-tokens -1"),
        ({"draft": "no such model"}, "no model at"),
    ],
)
def test_impossible_settings_are_refused_in_one_line(capsys, options, needed):
    assert run_generate(_args(**options)) == 1
    assert needed in capsys.readouterr().err


def test_the_stream_ends_where_the_context_is_full():
    model = tiny_model()  # a context of 64
    args = _args(max_new_tokens=100, temperature=1.0, seed=0)
    *tokens, stop = speculate_cli.stream_tokens(model, [5] * 60, args)
    assert isinstance(stop, Stop)
    if stop != "end of text":
        assert len(tokens) == 5
        assert stop == "the context of 64 tokens is full"
    with pytest.raises(ValueError, match="65 tokens; needed: 1 to 64"):
        list(speculate_cli.stream_tokens(model, [5] * 65, args))
    assert temperature_law(np.zeros(2), 1.0) == pytest.approx([0.5, 0.5])
