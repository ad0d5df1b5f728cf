"""The list of long test files is one of files that there are."""

import pytest
from long_files import ALONE, QUICK, SECONDS
from places import ROOT


@pytest.mark.parametrize("path", [*SECONDS, *(name.partition("::")[0] for name in (*QUICK, ALONE))])
def test_a_long_file_is_there(path):
    assert (ROOT / path).is_file()
