"""The page's server: what it answers, what it refuses, and that it speaks to nobody else."""

import json
import re
import signal
import subprocess
import sys
import time
from importlib.resources import files

import pytest
from starlette.testclient import TestClient

from grader import cli
from labkit import store
from labkit.explorer.server import app
from labkit.explorer.setting import Setting
from labkit.explorer.state import compute


@pytest.fixture
def client(monkeypatch, tmp_path) -> TestClient:
    monkeypatch.setenv("INFERLAB_HOME", str(tmp_path))
    return TestClient(app(), base_url="http://127.0.0.1")


def test_a_state_has_the_numbers_of_inferlab(client):
    found = client.get("/state", params={"n_sequences": 60, "headroom": "0.1"}).json()
    state = compute(Setting(n_sequences=60, headroom=0.1))
    assert found["setting"] == vars(state.setting)
    assert found["fits"] is state.fits is False
    shown = dict(found["figures"])
    assert shown["users that fit"] == str(state.fits_sequences)
    assert shown["for all users"] == f"{state.all_per_s:,.0f} tok/s"
    assert shown["does not fit"] == "80.49 of 80 GB"
    assert "does not fit" in found["status"]
    assert set(found["pictures"]) == {"memory", "roofline", "speed"}
    for picture in found["pictures"].values():
        assert picture["svg"].startswith("<svg")
        assert len(picture["alt"]) > 60
    assert "n_params × bytes_per_weight" in found["formulas"]


def test_a_narrow_page_gets_a_narrow_bar(client):
    wide, narrow = (
        client.get("/state", params={"narrow": width}).json()["pictures"]["memory"]["svg"]
        for width in ("false", "true")
    )
    widths = [float(re.search(r'width="([\d.]+)pt"', one)[1]) for one in (wide, narrow)]
    assert widths[0] > 1.5 * widths[1]


def test_an_attention_that_the_model_cannot_have_is_offered_but_off(client):
    found = client.get("/state", params={"model": "falcon-7b", "attention": "gqa"}).json()
    assert found["setting"]["attention"] == "own"
    assert "71 query heads" in " ".join(found["notes"])
    off = [value for _, value, *more in found["attention"] if more]
    assert off == ["gqa", "mla"]


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/state?n_sequences=many", "n_sequences='many' must be a number"),
        ("/state?n_sequences=0", "n_sequences=0 must be a whole number from 1"),
        ("/state?model=gpt5", "model='gpt5' must be one of 8b-style"),
        ("/state?colour=red", "no control is called 'colour'"),
        ("/controls?lesson=02", "lesson '02' opens no explorer"),
    ],
)
def test_what_cannot_be_answered_is_refused_with_the_reason(client, path, said):
    answer = client.get(path)
    assert answer.status_code == 400
    assert answer.json()["trouble"].startswith(said)


def test_the_form_of_a_lesson_has_its_controls_first(client):
    found = client.get("/controls", params={"lesson": "08"}).json()
    first = [control["name"] for control in found["controls"] if control["first"]]
    assert set(first) == {"gamma", "acceptance", "draft_cost", "n_sequences", "n_tokens"}
    assert found["start"]["gamma"] == 4
    assert all(control["label"] for control in found["controls"])


# ---- predictions -------------------------------------------------------------------------------


def lodge(client, task: str, prediction: str, value: str):
    body = {"task_id": task, "prediction_id": prediction, "value": value}
    return client.post("/lodge", json=body)


def test_nothing_is_told_before_all_predictions_are_lodged(client):
    tasks = {task["id"]: task for task in client.get("/tasks").json()}
    assert list(tasks) == ["mha", "int4", "batch", "small"]
    assert all(task["seen"] == task["moves"] == [] for task in tasks.values())
    assert "because" not in json.dumps(list(tasks.values()))
    first, second = tasks["batch"]["questions"]
    half = lodge(client, "batch", first["id"], first["choices"][0]).json()
    assert half["seen"] == half["moves"] == []
    assert half["questions"][0]["lodged"] == first["choices"][0]
    whole = lodge(client, "batch", second["id"], "64").json()
    assert "as you said" in whole["seen"][0]
    assert "59" in whole["seen"][1]
    assert [text for text, _ in whole["moves"]] == ["batch of 64", "the last that fits", "one more"]
    assert store.prediction(second["id"]).value == "64 seq"


def test_the_first_prediction_is_the_one_that_counts(client):
    lodge(client, "mha", "ex_mha_cache", "20 GB")
    again = lodge(client, "mha", "ex_mha_cache", "68.7 GB").json()
    assert again["questions"][0]["lodged"] == "20 GB"
    assert "3.44x too small" in again["seen"][0]


@pytest.mark.parametrize(
    ("value", "said"),
    [("", "nothing is entered yet"), ("68", "has no unit"), ("3 s", "is measured in s"),
     ("lots", "does not start with a number")],
)  # fmt: skip
def test_a_slip_is_said_and_nothing_is_kept(client, value, said):
    answer = lodge(client, "mha", "ex_mha_cache", value)
    assert answer.status_code == 200
    assert said in answer.json()["trouble"]
    assert answer.json()["seen"] == []
    assert store.prediction("ex_mha_cache") is None


def test_a_prediction_that_is_not_asked_is_refused(client):
    assert lodge(client, "mha", "ex_small_cache", "a").status_code == 400
    assert lodge(client, "none", "ex_mha_cache", "a").status_code == 400


# ---- speaking to nobody else -------------------------------------------------------------------


def test_the_page_forbids_itself_every_other_address(client):
    answer = client.get("/")
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "connect-src 'self'" in policy
    text = files("labkit.explorer").joinpath("page.html").read_text("utf-8")
    assert re.findall(r"https?://", text) == []
    assert re.findall(r'\b(src|href)="', text) == []


def test_another_name_for_this_computer_is_refused(client):
    assert client.get("/tasks", headers={"host": "evil.example"}).status_code == 400


def test_the_command_serves_until_it_is_told_to_stop(tmp_path):
    command = [sys.executable, "-m", "grader.cli", "explore", "kv_cache", "--no-browser"]
    log = tmp_path / "log"
    with log.open("w") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)
    try:
        end = time.monotonic() + 60
        while not (found := re.search(r"http://127\.0\.0\.1:(\d+)/\?lesson=04", log.read_text())):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < end, "no address is printed"
            time.sleep(0.1)
        assert int(found[1]) > 0
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(20) in (0, 130), log.read_text()


def test_a_lesson_without_an_explorer_is_refused_by_the_command(capsys):
    assert cli.main(["explore", "02", "--no-browser"]) == 2
    assert "opens no explorer" in capsys.readouterr().err
