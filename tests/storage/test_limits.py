from __future__ import annotations

import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from stratalog.storage import limits
from stratalog.storage.disk import Disk
from stratalog.storage.file_slice import FileSlice, LogFile


@pytest.fixture(autouse=True)
def nothing_remembered() -> Iterator[None]:
    limits.first_scarce_descriptor.cache_clear()
    yield
    limits.first_scarce_descriptor.cache_clear()


def with_limits(monkeypatch: pytest.MonkeyPatch, descriptors: int, mappings: int = 65_530) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (descriptors, descriptors))
    monkeypatch.setattr(limits, "most_mappings", lambda: mappings)


@pytest.mark.parametrize(
    ("descriptors", "mappings", "sealed", "active"),
    [
        (1024, 65_530, 256, 256),  # half of the descriptors is left to clients
        (1_048_576, 65_530, 4096, 16_382),  # half of the mappings is left to the program
        (1_048_576, 1000, 125, 250),
        (resource.RLIM_INFINITY, 1_000_000, 4096, 250_000),
        (2, 65_530, 1, 1),
    ],
)
def test_segments_leave_half_of_all_descriptors_and_mappings(
    monkeypatch: pytest.MonkeyPatch, descriptors: int, mappings: int, sealed: int, active: int
) -> None:
    with_limits(monkeypatch, descriptors, mappings)
    assert (limits.sealed_segments(4096), limits.active_segments()) == (sealed, active)


def test_slice_to_send_keeps_no_descriptor_when_half_of_them_are_in_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_bytes(b"0123456789")
    piece = FileSlice(LogFile(Disk(), tmp_path / "file"), 2, 3)
    with_limits(monkeypatch, piece.fileno() * 2)
    assert piece.sendable() == b"234"
    limits.first_scarce_descriptor.cache_clear()
    with_limits(monkeypatch, piece.fileno() * 2 + 2)
    assert piece.sendable() is piece
