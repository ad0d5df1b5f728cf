"""Fixtures that several test files share: small models, and the real one."""

import os
import sys

# Both are read when the library is first imported. OpenBLAS's threads wait busily for each other:
# on two cores with anything else running, one thread is up to twenty times as fast as two.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from grader.isolated.students import Isolation, Zygote
from inferlab.config import ModelConfig
from inferlab.fetch import FetchFailed, NotFetched, fetch, fetched_path
from inferlab.model import Model, load_model
from inferlab.weights import random_weights
from sandbox import walls

# As far as this computer lets student code be kept in; what needs more says NOT TESTED.
os.environ.setdefault("INFERLAB_ISOLATION", walls.level()[0])

TINY = {
    "gqa": ModelConfig(2, 32, 4, 2, 8, 48, 67, 64, 1e4, 1e-5, True, 1, (2,)),
    "mha, untied": ModelConfig(3, 24, 3, 3, 8, 40, 50, 64, 5e5, 1e-6, False, 1, (2,)),
    "mqa, d_head != d_model / n_heads": ModelConfig(2, 20, 6, 1, 10, 33, 41, 64, 1e5),
}


def tiny_model(kind: str = "gqa", dtype: type = np.float64, seed: int = 0) -> Model:
    """A random model of a few thousand numbers."""
    config = TINY[kind]
    return Model(config, random_weights(config, np.random.default_rng(seed), dtype))


@pytest.fixture(autouse=True)
def no_figure_stays_open() -> Iterator[None]:
    """pyplot keeps what it makes until it is closed."""
    yield
    if "matplotlib.pyplot" in sys.modules:
        sys.modules["matplotlib.pyplot"].close("all")


@pytest.fixture(scope="session")
def real_model_path() -> Path:
    """SmolLM2-135M-Instruct: from the cache, or fetched once.

    Where it cannot be fetched the tests fail in CI (CI=true) and skip elsewhere, saying so.
    """
    try:
        return fetched_path("smollm2")
    except (NotFetched, ValueError):
        pass
    try:
        return fetch("smollm2")
    except FetchFailed as error:
        if os.environ.get("CI", "").lower() in ("true", "1"):
            pytest.fail(f"CI needs the real model: {error}", pytrace=False)
        pytest.skip(f"NOT TESTED on the real model: {error}")


@pytest.fixture(scope="session")
def zygote() -> Iterator[Zygote]:
    """The process that forks students, with all the walls that this computer allows."""
    with Zygote(Isolation("full" if walls.level()[0] == "full" else "limits")) as found:
        yield found


@pytest.fixture(scope="session")
def real_model(real_model_path: Path) -> Model:
    """The real model in this engine, float32."""
    return load_model(real_model_path)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what was counted: exercises, wrong answers rejected, right accepted, students."""
    counts = Counter(
        name
        for report in terminalreporter.getreports("passed")
        for key, name in report.user_properties
        if key == "count" and report.when == "call"
    )
    if counts:
        terminalreporter.section("what the course proves")
        for name, n in sorted(counts.items()):
            terminalreporter.write_line(f"{name}: {n}")
