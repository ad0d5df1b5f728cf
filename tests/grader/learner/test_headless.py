"""`inferlab check`: a finished function counts, though a part that it calls is not written."""

import nbformat
from nbformat.v4 import new_code_cell, new_notebook

from grader.learner import headless

STUB = (
    "from grader import check\n"
    "def kv_bytes_per_token(config, bytes_per_number=2):\n"
    '    raise NotImplementedError("write this")'
)
CALLER = (
    "def kv_cache_bytes(config, n_tokens, n_sequences=1, bytes_per_number=2):\n"
    "    return n_sequences * n_tokens * kv_bytes_per_token(config, bytes_per_number)"
)


def test_a_finished_function_is_right_though_its_part_is_not_written(tmp_path):
    path = tmp_path / "mine.ipynb"
    names = ("kv_bytes_per_token", "kv_cache_bytes")
    checks = [new_code_cell(f'check("{name}")') for name in names]
    nbformat.write(new_notebook(cells=[new_code_cell(STUB), new_code_cell(CALLER), *checks]), path)
    rows = headless.collect(path, names, keep_progress=False)
    assert [row.outcome for row in rows] == ["not run", "passed"]
    said = headless.table(rows)
    assert "1 of 2 passed the visible checks" in said
    assert (
        "kv_cache_bytes: right; it was judged with the reference's `kv_bytes_per_token`, since "
        "yours is not written yet" in said
    )
