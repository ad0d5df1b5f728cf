"""The performance table says what the record says."""

import json
import re
import runpy

import pytest

from benchmarks.plan import FULL
from benchmarks.record import Record

MACHINE = {
    "cpu": "A Processor",
    "n_cores": 8,
    "n_threads": 2,
    "memory_bytes": 16_000_000_000,
    "system": "Linux x86_64",
    "python": "3.11.7",
    "packages": {"inferlab": "0.1.0", "numpy": "2.4.6", "torch": "2.13.0"},
}


def sample_record() -> Record:
    record = Record(MACHINE, "smollm2", FULL, started="2031-05-06T07:08:09+00:00")
    for baseline, fast in ((20.0, 50.0), (25.0, 60.0), (10.0, 40.0)):
        record.add("decode", "transformers-fp32", baseline)
        record.add("decode", "numpy-fast", fast)
    record.add("prefill", "transformers-fp32", 500.0)
    record.add("prefill", "numpy-fast", 450.0)
    record.add("batch", "transformers-fp32", None)
    record.bytes_per_token = {"transformers-fp32": 500_000_000, "numpy-fast": 500_000_000}
    record.bounds = {"a_bytes_per_s": [25e9, 31e9], "numpy_gemm_fp32_flop_per_s": [2e11]}
    record.agreement = {"numpy-fast": {"kl": 0.00123}, "transformers-fp32": {"kl": 1e-9}}
    answer = {"speedup": 2.5, "acceptance": 0.8, "identical": True}
    record.lookup = {"copy": [answer], "open": [{**answer, "identical": False}]}
    record.load = {
        "inferlab": [{"import_s": 0.1, "load_s": 0.5, "peak_bytes": 6e8}],
        "transformers": [{"import_s": 3.0, "load_s": 10.0, "peak_bytes": 1.2e9}],
    }
    record.complete = True
    return record


@pytest.fixture
def page() -> dict:
    return runpy.run_module("tools.docs.performance_table")


def test_what_is_switched_off_in_llama_cpp_is_said_where_it_is_compared(page, tmp_path):
    record = sample_record()
    record.write(tmp_path / "r.json")
    assert "AMX" not in page["tables"](tmp_path)
    record.bytes_per_token["llama.cpp-fp32"] = 500_000_000
    record.samples["decode"]["llama.cpp-fp32"] = [30.0, 31.0, 32.0]
    record.write(tmp_path / "r.json")
    assert "without AMX and repacked weights" in page["tables"](tmp_path)


def test_the_table_shows_medians_spread_ratios_and_shares(page, tmp_path):
    sample_record().write(tmp_path / "cpu-2-threads.json")
    table = page["tables"](tmp_path)
    rows = [line for line in table.splitlines() if line.startswith("| ")]
    assert [row.split(" | ")[0] for row in rows[1:]] == [
        "| transformers, float32",
        "| inferlab NumPy, arranged for speed",
    ]
    # Ratios by round 2.5, 2.4, 4: 2.5. Read per second 50 * 0.5 GB of 28 GB: 89 %.
    expected = "50.0 (40.0–60.0) | **2.50** | 89 % | 450 (450–450) | **0.90** |  |  | 0.0012 |"
    assert rows[2].endswith(expected)
    assert "| **1** |" in rows[1]
    assert rows[1].endswith("|  |  | below 1e-6 |")
    for words in (
        "A Processor, 2 threads of 8 cores, 2031-05-06; medians of 3 interleaved rounds",
        "numpy 2.4.6, torch 2.13.0.",
        "2.50 times plain decoding (tokens identical, 80 % of the drafted ones accepted)",
        "(tokens NOT identical,",
        "0.50 s, 0.60 GB at most; transformers 10.0 s, 1.20 GB (20 times as fast, 50 % of the",
        "at the 28.0 GB/s measured in the same run; GEMM peaks in GFLOP/s: numpy fp32 200",
    ):
        assert words in table
    assert len({line.count("|") for line in rows}) == 1


def test_the_readme_gets_the_tables_between_its_markers_and_nothing_else_changes(page, tmp_path):
    sample_record().write(tmp_path / "cpu-2-threads.json")
    text = f"before\n{page['BEGIN']}\nold\n{page['END']}\nafter\n"
    made = page["with_tables"](text, tmp_path)
    assert made.startswith(f"before\n{page['BEGIN']}\nA Processor")
    assert made.endswith(f"{page['END']}\nafter\n")
    assert "old" not in made
    assert page["with_tables"](made, tmp_path) == made
    with pytest.raises(ValueError, match="needed once each"):
        page["with_tables"]("no markers", tmp_path)


def test_quick_and_incomplete_runs_are_not_shown(page, tmp_path):
    record = sample_record()
    for name in ("quick.json", "cpu-2-threads.partial.json"):
        record.write(tmp_path / name)
    assert page["results"](tmp_path) == []
    with pytest.raises(FileNotFoundError, match="make bench"):
        page["tables"](tmp_path)
    record.write(tmp_path / "cpu-1-threads.json")
    record.write(tmp_path / "cpu-2-threads.json")
    assert page["tables"](tmp_path).count("A Processor") == 2


def test_a_record_is_read_back_as_it_was_written(tmp_path):
    record = sample_record()
    record.write(tmp_path / "r.json")
    assert json.loads((tmp_path / "r.json").read_text()) == json.loads(json.dumps(record.as_json()))
    assert [p.name for p in tmp_path.iterdir()] == ["r.json"]


def test_every_committed_record_can_be_shown(page):
    for path in page["results"]():
        table = page["performance_table"](json.loads(path.read_text()))
        assert re.search(r"\| \*\*1\*\* \|", table), path
