"""Timing: synchronised on each device, interleaved, recorded with its machine."""

from __future__ import annotations

import json
import types

import numpy as np
import pytest

from inferlab import device as machine
from labkit.measure import device, timing
from labkit.measure.timing import Timing


class FakeTorch:
    """As much of torch as timing touches; it logs the order of calls. Its clock is in ms."""

    def __init__(self, cuda: bool = False, mps: bool = False) -> None:
        self.log: list[str] = []
        self.now_ms = 0.0
        fake = self

        class Event:
            def __init__(self, enable_timing: bool = False) -> None:
                assert enable_timing

            def record(self) -> None:
                fake.log.append("record")
                self.at = fake.now_ms

            def elapsed_time(self, later: Event) -> float:
                assert fake.log[-1] == "synchronize"
                return later.at - self.at

        def synchronize() -> None:
            fake.log.append("synchronize")

        self.cuda = types.SimpleNamespace(
            Event=Event,
            synchronize=synchronize,
            is_available=lambda: cuda,
            get_device_name=lambda: "Fake GPU 9000",
        )
        self.mps = types.SimpleNamespace(synchronize=synchronize)
        self.backends = types.SimpleNamespace(mps=types.SimpleNamespace(is_available=lambda: mps))
        self.__version__ = "9.9"

    def get_num_threads(self) -> int:
        return 3

    def work(self) -> None:
        self.log.append("work")
        self.now_ms += 7


def test_cuda_is_timed_by_events_around_the_work_and_read_after_it_finished():
    fake = FakeTorch(cuda=True)
    result = timing.measure(fake.work, repeat=3, warmup=2, device="cuda", torch=fake)
    assert fake.log == ["work"] * 2 + ["synchronize", "record", "work", "record", "synchronize"] * 3
    assert result == Timing(0.007, 0.007, 0.007, 3)


def test_mps_is_synchronised_before_and_after_the_work(monkeypatch):
    fake = FakeTorch(mps=True)
    ticks = iter([10.0, 10.5])
    monkeypatch.setattr(machine, "perf_counter", lambda: (fake.log.append("clock"), next(ticks))[1])
    result = timing.measure(fake.work, repeat=1, warmup=0, device="mps", torch=fake)
    assert fake.log == ["synchronize", "clock", "work", "synchronize", "clock"]
    assert result.median_s == 0.5


def test_the_cpu_is_timed_by_the_clock_without_torch(monkeypatch):
    monkeypatch.setattr(machine, "torch_module", lambda: pytest.fail("torch was loaded"))
    ticks = iter([0, 1, 10, 13, 20, 22.0])
    monkeypatch.setattr(machine, "perf_counter", lambda: next(ticks))
    calls = []
    assert timing.measure(lambda: calls.append(1), repeat=3, warmup=2) == Timing(2, 1, 3, 3)
    assert len(calls) == 5


def test_interleaving_goes_round(monkeypatch):
    log = []
    fns = {name: (lambda name=name: log.append(name)) for name in "ab"}
    result = timing.interleaved(fns, rounds=3)
    assert "".join(log) == "ab" + "ab" * 3
    assert {name: t.n for name, t in result.items()} == {"a": 3, "b": 3}


@pytest.mark.parametrize(
    "call",
    [
        lambda: timing.measure(int, repeat=0),
        lambda: timing.measure(int, warmup=-1),
        lambda: timing.interleaved({}, 3),
        lambda: timing.interleaved({"a": int}, 0),
        lambda: timing.measure(int, device="tpu", torch=FakeTorch()),
        lambda: Timing.of([]),
        lambda: timing.recompute_cost(0, 8, 8, "cpu"),
        lambda: timing.recompute_cost(8, 8, 8, "cpu", "int4"),
    ],
)
def test_what_cannot_be_timed_is_refused(call):
    with pytest.raises(ValueError, match=r"be 1 or more|is not one of|at least one"):
        call()


def test_a_timing_reads_in_one_line():
    assert str(Timing(0.025, 0.024, 0.03, 5)) == "25.0 ms (24.0 ms to 30.0 ms, 5 runs)"


def test_bandwidth_is_bytes_of_the_matrix_by_the_fastest_run(monkeypatch):
    monkeypatch.setattr(machine, "measure", lambda fn, repeat: (fn(), Timing(2, 0.5, 3, repeat))[1])
    assert timing.read_bandwidth(2**20) == 2**20 / 0.5
    assert timing.matmul_peak(64) == 2 * 64**3 / 0.5


def test_the_machines_rates_are_plausible():
    assert 1e8 < timing.read_bandwidth(2**24, repeat=2) < 1e13
    assert 1e8 < timing.matmul_peak(256, repeat=2) < 1e14


def test_projecting_every_row_costs_more_than_one_row():
    cost = timing.recompute_cost(1024, 256, 128, "cpu", rounds=3)
    assert cost.all_rows.n == cost.one_row.n == 3
    assert cost.ratio > 3  # 1024 times the arithmetic
    assert cost.ratio == cost.all_rows.median_s / cost.one_row.median_s


def test_a_record_holds_machine_versions_and_rows(tmp_path):
    rows = [{"what": "step", "time": Timing(1, 1, 1, 1), "n": np.int64(3), "a": np.arange(2)}]
    path = timing.write_record(tmp_path / "new folder" / "r.json", rows)
    record = json.loads(path.read_text(encoding="utf-8"))
    assert record["versions"]["numpy"] == np.__version__
    assert record["machine"]["cores"] >= 1
    assert record["rows"] == [
        {
            "what": "step",
            "time": {"median_s": 1, "low_s": 1, "high_s": 1, "n": 1},
            "n": 3,
            "a": [0, 1],
        }
    ]


def test_a_record_that_cannot_be_written_leaves_the_old_one(tmp_path):
    path = timing.write_record(tmp_path / "r.json", [{"a": 1}])
    before = path.read_bytes()
    with pytest.raises(ValueError, match="cannot be written as JSON"):
        timing.write_record(path, [{"a": object()}])
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["r.json"]


@pytest.mark.parametrize(
    ("cuda", "mps", "picked"),
    [(True, True, "cuda"), (False, True, "mps"), (False, False, "cpu")],
)
def test_the_best_device_is_picked(cuda, mps, picked):
    assert device.pick(FakeTorch(cuda, mps)) == picked


def test_a_device_is_described_in_one_line():
    text = device.describe("cuda", "bfloat16", FakeTorch(cuda=True))
    assert "cuda: Fake GPU 9000" in text
    assert (
        f"{device.n_cores()} cores, 3 threads, bfloat16, numpy {np.__version__}, torch 9.9" in text
    )
    assert "\n" not in text
    assert "torch" not in device.describe()


@pytest.mark.parametrize("name", ["NBGRADER_EXECUTION", "INFERLAB_CHECK_ONLY"])
def test_grading_is_known_from_the_environment(name, monkeypatch):
    for each in ("NBGRADER_EXECUTION", "INFERLAB_CHECK_ONLY"):
        monkeypatch.delenv(each, raising=False)
    assert not device.grading()
    monkeypatch.setenv(name, "validate")
    assert device.grading()


def test_a_missing_measurement_is_said(capsys):
    device.not_measured("needs a GPU")
    assert capsys.readouterr().out == "not measured here: needs a GPU\n"
    with pytest.raises(ValueError, match="reason is empty"):
        device.not_measured(" ")
