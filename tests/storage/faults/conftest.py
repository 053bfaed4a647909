"""The directory of these tests: in memory if possible, because they open thousands of logs and sync none of them."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

MEMORY = Path("/dev/shm")


@pytest.fixture
def scratch(tmp_path: Path) -> Iterator[Path]:
    if not os.access(MEMORY, os.W_OK):
        yield tmp_path
        return
    path = Path(tempfile.mkdtemp(prefix="stratalog-faults-", dir=MEMORY))
    yield path
    shutil.rmtree(path)
