"""`inferlab plan`, and the rows that lesson 12 makes with a learner's functions."""

import json

import pytest

from grader import cli
from inferlab.capacity import Deployment, sequences_that_fit, users_within
from inferlab.checkpoints.hf_stored import read_stored
from inferlab.checkpoints.read_config import read_config
from inferlab.data import ROOT, load_config, load_devices, model_preset
from inferlab.planner import choose_offer
from labkit.figures.capacity import plan_rows
from labkit.plan import OVERHEAD_SHARE, REFERENCE, describe, plan
from labkit.plan_options import Workload

LLAMA_70B = model_preset("llama-3-70b")
CONFIGS = sorted(path.stem for path in (ROOT / "data" / "configs").glob("*.json"))


def test_a_row_is_what_the_planners_functions_say():
    rows = plan(LLAMA_70B, {"h100-sxm": 2.5}, Workload(), headroom=0.05)
    assert [row["name"] for row in rows] == [f"{n} x h100-sxm" for n in (1, 2, 4, 8)]
    overhead = OVERHEAD_SHARE * 80e9
    four = Deployment.on(
        load_devices()["h100-sxm"], LLAMA_70B, 4, overhead_bytes=overhead, headroom=0.05,
        efficiency=0.7,
    )  # fmt: skip
    assert rows[0]["obstacle"] == "memory"
    assert rows[2]["users"] == users_within(four, 1024, 500, 0.040) > 0
    assert rows[2]["usd_per_hour"] == 10
    assert choose_offer(rows, 200)["copies"] >= 1


def test_the_promise_that_is_asked_for_is_the_one_that_is_kept():
    """Users are those within the limit of this workload, not of another."""
    for limit in (0.020, 0.030, 0.060):
        row = plan(LLAMA_70B, {"h100-sxm": None}, Workload(tpot_limit_s=limit))[-1]
        assert row["tpot_s"] <= limit
        assert row["users"] > 0
    users = [
        plan(LLAMA_70B, {"h100-sxm": None}, Workload(tpot_limit_s=limit))[-1]["users"]
        for limit in (0.020, 0.060)
    ]
    assert users[0] < users[1]


def test_the_functions_handed_over_are_the_ones_used():
    seven = {**REFERENCE, "users_within": lambda *_, **__: 7, "steady_tpot_s": lambda *_, **__: 0.5}
    row = plan(LLAMA_70B, {"h100-sxm": 2.5}, Workload(), seven)[-1]
    assert (row["users"], row["tpot_s"]) == (7, 0.5)


@pytest.mark.parametrize("name", CONFIGS)
def test_any_kept_config_can_be_planned_on_any_device(name):
    stored = read_stored(load_config(name))
    rows = plan(
        stored.config, dict.fromkeys(load_devices()), Workload(2000, 300, 2.0, 0.1), largest=8,
        bytes_per_weight=stored.bytes_per_weight,
    )  # fmt: skip
    assert len(rows) >= len(load_devices())
    for row, cells in zip(rows, plan_rows(rows), strict=True):
        assert bool(row["users"]) == (cells[-1] == "")
        assert row["users"] == 0 or row["obstacle"] is None
    big = max(rows, key=lambda row: row["users"])
    assert big["users"] > 0 or name == "deepseek-v3"


def test_a_device_that_is_not_known_is_named():
    with pytest.raises(ValueError, match="no device is called 'h1000'; known: synthetic, t4"):
        plan(LLAMA_70B, {"h1000": None}, Workload())


def test_the_words_for_a_model_tell_what_it_weighs_and_keeps():
    lines = describe(read_stored(load_config("gpt-oss-20b")), 1524)
    assert lines[0].startswith("20,914,757,184 weights, 4,187,440,704 for one token; 13.76 GB")
    assert "mxfp4 (4.25 bits a weight)" in lines[0]
    grown = 24_576 * 1524 + 3_145_728
    assert lines[1].startswith("cache: 24,576 bytes for each token, and up to 3.146 MB (")
    assert "in 12 layers that keep 128 tokens; " in lines[1]
    assert f"{grown / 1e6:.2f} MB" in lines[1]
    assert lines[1].endswith(" for 1,524 tokens")
    assert any(line.startswith("note: no dtype is given") for line in lines)


# ---- the command -------------------------------------------------------------------------------


def test_the_command_prints_the_model_and_its_table(capsys):
    assert cli.main(["plan", "deepseek-v3", "--device", "h200-sxm,b200-sxm"]) == 0
    said = capsys.readouterr().out
    assert "671,026,404,352 weights, 37,552," in said
    assert "fp8 (8.002 bits a weight)" in said
    assert "$" not in said  # no prices are known
    assert len([line for line in said.splitlines() if " x h200-sxm" in line]) == 4
    assert "does not fit" in said


def test_a_plan_that_cannot_be_says_why_and_fails(tmp_path, capsys):
    file = tmp_path / "with space" / "config.json"
    file.parent.mkdir()
    file.write_text(json.dumps(load_config("llama-3-70b")))
    assert cli.main(["plan", str(file.parent), "--device", "l4", "--devices", "2"]) == 1
    said = capsys.readouterr().out
    assert "None of these serves even one user" in said
    assert said.count("does not fit") == 2
    assert cli.main(["plan", str(file), "--device", "h100-sxm", "--tpot", "0.002"]) == 1
    assert "tokens too slow" in capsys.readouterr().out
    assert cli.main(["plan", str(file), "--device", "h100-sxm", "--weight-bytes", "1"]) == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["plan", "/nowhere/config.json"], "no config.json in /nowhere"),
        (["plan", "llama-3-8b", "--device", "h1000"], "no device is called 'h1000'"),
        (["plan", "llama-3-8b", "--output", "1"], "--output 1 at least 2"),
        (["plan", "llama-3-8b", "--headroom", "1.5"], "headroom=1.5"),
    ],
)
def test_what_makes_no_sense_is_said_in_one_line(words, message, capsys):
    assert cli.main(words) == 2
    assert message in capsys.readouterr().err


def test_sequences_of_a_windowed_model_grow_beyond_its_window():
    """Mistral 7B keeps 4,096 tokens: from there on a longer context costs no user."""
    mistral = read_config(load_config("mistral-7b-v0.1"))
    one = Deployment.on(load_devices()["a10g"], mistral)
    assert sequences_that_fit(one, 4096) == sequences_that_fit(one, 30_000) > 0
