"""Fixtures that several test files share: a real model, a built site, a forking process."""

import os
import sys

# Both are read when the library is first imported. OpenBLAS's threads wait busily for each other:
# on two cores with anything else running, one thread is up to twenty times as fast as two.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from long_files import LongestFirst, is_quick
from site_build import Site, build_site

from grader.judging.isolated.students import Isolation, Zygote
from inferlab.checkpoints.fetch import FetchFailed, NotFetched, fetch, fetched_path
from inferlab.model import Model, load_model
from sandbox import walls

# As far as this computer lets student code be kept in; what needs more says NOT TESTED.
os.environ.setdefault("INFERLAB_ISOLATION", walls.level()[0])


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in filter(is_quick, items):
        item.add_marker(pytest.mark.quick)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LongestFirst | None:
    return LongestFirst(config, log) if config.getoption("dist") == "loadfile" else None


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
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    """The static site of two lessons, in a folder with a space in its name; nobody changes it."""
    into = tmp_path_factory.mktemp("a site")
    return Site(into, build_site(into, "1", "04"))


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
