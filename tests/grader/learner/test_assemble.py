"""The learner's own engine: what is taken, what is not, and that it really runs."""

import copy
import subprocess
import sys
import time

import pytest
from drawn_models import tiny_model
from places import ROOT

from grader.judging import registry
from grader.learner import assemble
from grader.learner.lab import read_notebook

LESSON = "04_kv_cache"


@pytest.fixture(scope="module")
def filled():
    return read_notebook(ROOT / "solutions" / LESSON / f"{LESSON}.ipynb")


@pytest.fixture
def engine(monkeypatch):
    """Undo what a test installs."""
    kept = {
        (module, name): value
        for module in list(sys.modules.values())
        if getattr(module, "__name__", "").startswith("inferlab")
        for name, value in vars(module).items()
    }
    yield
    for (module, name), value in kept.items():
        setattr(module, name, value)


def changed(notebook, old, new):
    """The notebook with one piece of text replaced, which must be there."""
    found = copy.deepcopy(notebook)
    for cell in found["cells"]:
        source = "".join(cell["source"])
        if old in source:
            cell["source"] = source.replace(old, new)
            return found
    raise AssertionError(f"{old!r} is in no cell")


def by_id(parts):
    return {part.exercise.id: part for part in parts}


def test_a_filled_notebook_gives_every_part(filled):
    parts = assemble.parts_of(LESSON, filled)
    assert [p.exercise.id for p in parts] == [e.id for e in registry.exercises(LESSON)]
    assert {p.whose for p in parts} == {"yours"}
    assert "12 of 12 parts are yours" in assemble.table(parts)


def test_an_untouched_notebook_gives_none():
    release = read_notebook(ROOT / "notebooks" / LESSON / f"{LESSON}.ipynb")
    parts = assemble.parts_of(LESSON, release)
    assert {p.whose for p in parts} == {"reference"}
    assert {p.why for p in parts} == {"not written yet"}


def test_what_does_not_pass_stays_the_reference_and_says_why(filled):
    wrong = changed(
        filled, "2 * config.n_layers * config.n_kv_heads", "2 * config.n_layers * config.n_heads"
    )
    part = by_id(assemble.parts_of(LESSON, wrong))["kv_bytes_per_token"]
    assert part.whose == "reference"
    assert "KV heads" in part.why


def test_a_cell_that_measures_is_not_run_and_one_that_is_broken_is_skipped(filled):
    noisy = copy.deepcopy(filled)
    noisy["cells"].insert(0, {"cell_type": "code", "source": "raise SystemExit(3)"})
    noisy["cells"].insert(1, {"cell_type": "code", "source": "def broken(:"})
    assert {p.whose for p in assemble.parts_of(LESSON, noisy)} == {"yours"}


def test_a_lesson_without_a_notebook_is_the_references(tmp_path):
    parts = assemble.read_parts(tmp_path)
    assert {p.whose for p in parts} == {"reference"}
    assert {p.why for p in parts} == {"no notebook"}


def test_installed_parts_are_the_ones_that_run(filled, engine):
    """A cache that counts its own appends: the engine's cache is the learner's class."""
    import inferlab.model
    from inferlab.generate import generate_uncached

    marked = changed(
        filled, "self.require_fit(k, v)", "self.require_fit(k, v)\n        SEEN.append(layer)"
    )
    marked = changed(marked, "class KVCache", "SEEN = []\n\n\nclass KVCache")
    parts = assemble.parts_of(LESSON, marked)
    expected = generate_uncached(tiny_model(), [1, 2, 3], 4)
    assemble.install(parts)
    cache = inferlab.model.Model.new_cache(tiny_model())
    seen = type(cache).append.__wrapped__.__globals__["SEEN"]
    seen.clear()
    own = by_id(parts)["generate_cached"].written
    assert own(tiny_model(), [1, 2, 3], 4) == expected
    assert len(seen) == 2 * 4  # layers, passes


def test_a_part_that_raises_is_reported_by_its_name():
    def attend(q):
        return q[7]

    with pytest.raises(assemble.PartFailed, match="your attend_one raised IndexError"):
        assemble.guarded(attend, "attend_one")([1, 2])

    def refuse(q):
        raise ValueError("q is empty")

    with pytest.raises(ValueError, match="q is empty") as caught:
        assemble.guarded(refuse, "attend_one")([])
    assert caught.value.__notes__ == ["raised by your attend_one"]


def test_the_table_on_the_command_line(tmp_path, capsys):
    from grader.cli import main
    from labkit.files import write_whole

    path = tmp_path / LESSON / f"{LESSON}.ipynb"
    path.parent.mkdir()
    write_whole(path, (ROOT / "solutions" / LESSON / f"{LESSON}.ipynb").read_text())
    assert main(["assemble", "--work", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "attend_one" in shown
    assert f"12 of {len(registry.exercises())} parts are yours" in shown


def work_with(tmp_path, old, new):
    """A work folder with lesson 02 filled, one piece of it replaced."""
    import json

    notebook = read_notebook(ROOT / "solutions" / FORWARD / f"{FORWARD}.ipynb")
    path = tmp_path / FORWARD / f"{FORWARD}.ipynb"
    path.parent.mkdir()
    path.write_text(json.dumps(changed(notebook, old, new)))
    return tmp_path


FORWARD = "02_forward_pass"
RAISES = {
    "an error": ("IndexError('no such row')", "your rms_norm raised IndexError: no such row"),
    "a refusal": ("ValueError('no such row')", "no such row (raised by your rms_norm)"),
}


@pytest.mark.parametrize(("raised", "said"), RAISES.values(), ids=RAISES)
def test_a_part_that_raises_in_service_is_named_to_the_client_and_in_the_log(
    tmp_path, raised, said
):
    """`serve --mine` with a rms_norm that passes its checks and raises on 13 rows."""
    import json
    import urllib.error
    import urllib.request

    from inferlab.serve.process import free_port, stop

    body = "mean_square = np.mean"
    fails = f"if x.ndim > 1 and x.shape[-2] == 13:\n        raise {raised}\n    {body}"
    work = work_with(tmp_path, body, fails)
    assert by_id(assemble.read_parts(work, [FORWARD]))["rms_norm"].whose == "yours"

    port, log = free_port(), tmp_path / "server.log"
    command = [sys.executable, "-m", "grader.cli", "serve", "--mine", "--work", str(work)]
    with log.open("w") as out:
        server = subprocess.Popen(
            [*command, "--model", "tiny-target", "--port", str(port)], stdout=out, stderr=out
        )
    try:
        url = f"http://127.0.0.1:{port}"

        def ask(n_tokens, **more):
            asked = {"prompt": [5] * n_tokens, "max_tokens": 2, "temperature": 0, **more}
            request = urllib.request.Request(
                f"{url}/v1/completions", json.dumps(asked).encode(),
                {"Content-Type": "application/json"},
            )  # fmt: skip
            try:
                with urllib.request.urlopen(request, timeout=30) as response:
                    return response.status, response.read().decode()
            except urllib.error.HTTPError as error:
                return error.code, error.read().decode()

        end = time.monotonic() + 60
        while "serving" not in log.read_text() and time.monotonic() < end:
            time.sleep(0.1)
        time.sleep(0.5)
        assert ask(7)[0] == 200
        status, answer = ask(13)
        assert status == 500
        assert said in json.loads(answer)["error"]["message"]
        assert ask(13, stream=True)[0] == 500  # before any byte of the stream
        assert ask(9)[0] == 200  # the server goes on
    finally:
        stop(server)
    written = log.read_text()
    assert said in written
    assert f"of {len(registry.exercises())} parts are yours" in written
