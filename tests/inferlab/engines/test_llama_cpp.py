"""llama.cpp reads the same file and goes on with the same tokens: an oracle that we did not write.

Needs the extra: pip install ".[llama]".
"""

import numpy as np
import pytest

from inferlab.generate import generate_cached

PROMPTS = (
    "The capital of France is",
    "def add_two_numbers(a, b):",
    "The sky is blue because",
)

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def llama(real_model_path):
    """The real model in llama.cpp, turned into float32 by it, on one thread."""
    pytest.importorskip(
        "llama_cpp", reason='NOT TESTED against llama.cpp: pip install ".[llama]" compiles it'
    )
    from benchmarks.llama import LlamaCpp

    return LlamaCpp(str(real_model_path), "float32", 1)


def test_logits_equal_ours(llama, real_model):
    tokens = real_model.tokenizer.encode(" ".join(PROMPTS))
    ours = real_model.forward(np.array([tokens]))[0]
    theirs = llama.logits(tokens)
    assert (ours.argmax(-1) == theirs.argmax(-1)).all()
    # llama.cpp keeps keys and values in 16-bit floats, so they are close and not equal.
    assert np.abs(ours - theirs).max() < 0.1  # of a range of 60


@pytest.mark.parametrize("prompt", PROMPTS)
def test_greedy_continuations_are_the_same(llama, real_model, prompt):
    tokens = real_model.tokenizer.encode(prompt)
    assert llama.generate(tokens, 24) == generate_cached(real_model, tokens, 24)
