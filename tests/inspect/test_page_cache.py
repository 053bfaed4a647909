from __future__ import annotations

import os
from pathlib import Path

import pytest

from stratalog.inspect import page_cache
from stratalog.inspect.page_cache import PAGE, regular_files, residency


def written(path: Path, pages: int, extra: int = 0) -> Path:
    """Write a file and sync it, so that its pages can be dropped from RAM."""
    with path.open("wb") as file:
        file.write(b"x" * (pages * PAGE + extra))
        file.flush()
        os.fsync(file.fileno())
    return path


def drop(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)


def touch_page(path: Path, page: int) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)  # without readahead
        os.pread(fd, 1, page * PAGE)
    finally:
        os.close(fd)


def test_freshly_written_file_is_all_in_ram(tmp_path: Path) -> None:
    result = residency(written(tmp_path / "a", 10, 1), parts=4)
    assert (result.size, result.pages, result.resident_pages) == (10 * PAGE + 1, 11, 11)
    assert result.parts == (1.0, 1.0, 1.0, 1.0)
    assert (result.share, result.resident_bytes) == (1.0, result.size)


def test_empty_file_has_no_pages(tmp_path: Path) -> None:
    result = residency(written(tmp_path / "a", 0))
    assert (result.pages, result.parts, result.share) == (0, (), 0.0)


def test_dropped_pages_are_reported_and_stay_dropped(tmp_path: Path) -> None:
    path = written(tmp_path / "a", 64)
    drop(path)
    if residency(path).resident_pages == 64:
        pytest.skip("this file system keeps its pages in RAM")
    for _ in range(3):
        assert residency(path).resident_pages == 0
    touch_page(path, 40)
    result = residency(path, parts=64)
    assert result.parts[40] == 1.0
    assert result.resident_pages < 64


@pytest.mark.parametrize("window", [1, 3, 7, 64])
def test_windows_of_any_size_give_the_same_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, window: int) -> None:
    path = written(tmp_path / "a", 50, 17)
    drop(path)
    for page in (0, 13, 14, 49, 50):
        touch_page(path, page)
    whole = residency(path, parts=9)
    monkeypatch.setattr(page_cache, "WINDOW_PAGES", window)
    assert residency(path, parts=9) == whole


def test_large_sparse_file_is_mapped_in_windows(tmp_path: Path) -> None:
    path = tmp_path / "a"
    with path.open("wb") as file:
        file.truncate(3 * page_cache.WINDOW_PAGES * PAGE + 5)
    result = residency(path, parts=10)
    assert (result.pages, result.resident_pages, len(result.parts)) == (3 * page_cache.WINDOW_PAGES + 1, 0, 10)


def test_only_regular_files_without_the_lock_are_listed(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    for name in ("z", "b/y", "a", ".lock"):
        (tmp_path / name).touch()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "a")
    listed = [str(path.relative_to(tmp_path)) for path in regular_files([tmp_path])]
    assert listed == ["a", "z", "b/y"]
