"""One set of packages, described three times: pyproject.toml, constraints.txt, environment.yml.

Oracles: packaging (pip's own parser), rattler.MatchSpec in strict mode (conda's parser), and the
metadata of what is installed.
"""

import re
import tomllib
from importlib import metadata

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version
from places import ROOT
from setuptools import find_packages

CONDA_NAMES = {
    "matplotlib-base": "matplotlib",
    "ml_dtypes": "ml-dtypes",
    "prometheus_client": "prometheus-client",
}
# A torch build for GPUs brings these, each pinned by torch itself; a CPU build has none of them.
TORCH_OWN = re.compile(r"^(nvidia|cuda|triton)")


def project_requirements() -> dict[str, Requirement]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = project["dependencies"] + project["optional-dependencies"]["dev"]
    return {canonicalize_name(r.name): r for r in map(Requirement, lines)}


def pins() -> dict[str, Version]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    found = {}
    for line in filter(None, (line.split("#")[0].strip() for line in lines)):
        requirement = Requirement(line)
        (spec,) = requirement.specifier
        assert spec.operator == "==", f"constraints.txt pins nothing by {line!r}"
        assert canonicalize_name(requirement.name) not in found, f"{line!r} is there twice"
        found[canonicalize_name(requirement.name)] = Version(spec.version)
    return found


def conda_file() -> dict:
    return yaml.safe_load((ROOT / "environment.yml").read_text())


def conda_lines() -> list[str]:
    return [line for line in conda_file()["dependencies"] if isinstance(line, str)]


def pip_lines() -> list[str]:
    (section,) = [d["pip"] for d in conda_file()["dependencies"] if isinstance(d, dict)]
    return section


@pytest.mark.parametrize("name", sorted(project_requirements()))
def test_each_requirement_of_the_project_admits_the_pinned_version(name: str) -> None:
    assert name in pins(), f"{name} is in pyproject.toml and not in constraints.txt"
    assert project_requirements()[name].specifier.contains(pins()[name])


def test_everything_that_the_project_brings_in_is_pinned_at_the_version_tested_here() -> None:
    todo, seen = [Requirement("inferlab[dev]")], set()
    wrong = []
    while todo:
        requirement = todo.pop()
        key = (canonicalize_name(requirement.name), frozenset(requirement.extras))
        if key in seen or TORCH_OWN.match(key[0]):
            continue
        seen.add(key)
        installed = metadata.distribution(requirement.name)
        if key[0] != "inferlab" and pins().get(key[0]) != Version(
            Version(installed.version).public
        ):
            wrong.append(f"{key[0]}: installed {installed.version}, pinned {pins().get(key[0])}")
        for line in installed.requires or []:
            child = Requirement(line)
            extras = [*requirement.extras, ""]
            if not child.marker or any(child.marker.evaluate({"extra": e}) for e in extras):
                todo.append(child)
    assert len(seen) > 100, "the walk over the installed packages stopped early"
    assert not wrong


def test_every_pin_installs_on_the_oldest_python_that_the_project_admits() -> None:
    """The newest of a package may ask for a later 3.11 than the one that a system brings."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (bound,) = SpecifierSet(project["requires-python"])
    oldest = f"{bound.version}.0"
    seen, wrong = 0, []
    for name, version in pins().items():
        try:
            found = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue  # of an extra that is not installed here
        assert Version(Version(found.version).public) == version
        asked = found.metadata.get("Requires-Python") or ""
        seen += 1
        wrong += [] if SpecifierSet(asked).contains(oldest) else [f"{name} {version}: {asked}"]
    assert seen > 100
    assert wrong == []


@pytest.mark.parametrize("line", conda_lines())
def test_each_conda_line_parses_strictly_and_admits_the_pinned_version(line: str) -> None:
    from rattler import MatchSpec, VersionSpec
    from rattler import Version as CondaVersion

    spec = MatchSpec(line, strict=True)
    name = CONDA_NAMES.get(spec.name.normalized, spec.name.normalized)
    if name in ("python", "pip"):
        return
    assert VersionSpec(str(spec.version)).matches(CondaVersion(str(pins()[name])))


def test_strict_parsing_refuses_the_usual_slips() -> None:
    """The test above would be empty if the parser took anything."""
    from rattler import MatchSpec

    for slip in ("jupyterlab>=4.2<5", "python=>3.11"):
        with pytest.raises(Exception, match=r".+"):
            MatchSpec(slip, strict=True)


def test_conda_bounds_are_those_of_the_project() -> None:
    requirements = project_requirements()
    for line in conda_lines():
        name, _, bounds = line.partition(" ")
        name = CONDA_NAMES.get(name, name)
        if name not in ("python", "pip"):
            assert set(bounds.split(",")) == set(str(requirements[name].specifier).split(",")), line


def test_conda_asks_for_the_same_python_as_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert f"python {project['requires-python']}" in conda_lines()


def test_pip_part_of_the_conda_file() -> None:
    requirements = [line for line in pip_lines() if not line.startswith("-")]
    assert [str(r) for r in map(Requirement, requirements)] == [f"torch=={pins()['torch']}"]
    assert [line for line in pip_lines() if line.startswith("-")] == [
        "-c constraints.txt",
        "-e .[dev]",
    ]
    assert (ROOT / "constraints.txt").is_file()


def test_no_package_is_asked_of_both_conda_and_pip() -> None:
    assert not {line.split()[0] for line in conda_lines()} & {"torch", "pytorch", "pytorch-cpu"}


def test_command_line_and_packages_are_declared() -> None:
    setup = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert setup["project"]["scripts"] == {"inferlab": "grader.cli:main"}
    found = setup["tool"]["setuptools"]["packages"]["find"]
    packages = {name for folder in found["where"] for name in find_packages(ROOT / folder)}
    assert packages >= {"inferlab", "labkit", "grader", "grader.checks.kv_cache"}
    wanted = tuple(pattern.rstrip("*") for pattern in found["include"])
    ours = [p.relative_to(ROOT).parts for p in ROOT.glob("src/*/__init__.py")]
    assert all(parts[1].startswith(wanted) for parts in ours)
