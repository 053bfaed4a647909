"""`stratalog.records` has its public names, and imports pyarrow only with the column functions."""

from __future__ import annotations

import subprocess
import sys

import pytest

from stratalog import records

ONLY_WHEN_ASKED = """
import sys
from stratalog import records
assert "pyarrow" not in sys.modules, "imported with the package"
records.read_records(records.build_batch([(b"k", b"v")]))
assert "pyarrow" not in sys.modules, "imported with a reader of objects"
assert records.to_arrow(b"").num_rows == 0
assert "pyarrow" in sys.modules
"""


@pytest.mark.parametrize("name", records.__all__)
def test_every_public_name_exists(name: str) -> None:
    assert getattr(records, name) is not None


def test_missing_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'to_pandas'"):
        records.to_pandas  # noqa: B018


def test_pyarrow_is_imported_only_with_the_column_functions() -> None:
    result = subprocess.run([sys.executable, "-c", ONLY_WHEN_ASKED], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
