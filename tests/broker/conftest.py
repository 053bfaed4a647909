from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.broker.data_lab import DataLab


@pytest.fixture
def data_lab(tmp_path: Path) -> Iterator[DataLab]:
    with DataLab(tmp_path / "data") as lab:
        yield lab
