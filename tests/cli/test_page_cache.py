from __future__ import annotations

import os
from pathlib import Path

from stratalog.cli.page_cache import bar
from tests.cli.running import invoke, json_of, one_line_error
from tests.inspect.written_logs import write_log


def test_each_file_and_the_total_are_shown(tmp_path: Path) -> None:
    path = write_log(tmp_path / "orders-0", 10)
    result = invoke("page-cache", path)
    assert result.exit_code == 0
    names = [line.split()[0] for line in result.stdout.splitlines()]
    assert names == ["file", *sorted(file.name for file in path.iterdir()), "total"]
    assert "█" in result.stdout


def test_json_has_pages_and_parts(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(bytes(100_000))
    file_row, total = json_of("page-cache", file)
    assert (file_row["size"], file_row["resident_bytes"], set(file_row["parts"])) == (100_000, 100_000, {1.0})
    assert (total["type"], total["files"], total["size"]) == ("total", 1, 100_000)


def test_files_are_sorted(tmp_path: Path) -> None:
    for name, size in (("a", 10), ("b", 5000), ("c", 300)):
        (tmp_path / name).write_bytes(bytes(size))
    by_name = [row["file"] for row in json_of("page-cache", tmp_path)[:-1]]
    by_size = [Path(row["file"]).name for row in json_of("page-cache", "--sort", "size", tmp_path)[:-1]]
    assert by_name == [str(tmp_path / name) for name in "abc"]
    assert by_size == ["b", "c", "a"]


def test_bar_is_full_or_empty_only_for_all_or_nothing() -> None:
    assert bar((0.0, 0.001, 0.5, 0.999, 1.0), 80) == "·░▒▓█"
    assert bar((1.0,) * 80, 4) == "████"
    assert bar((1.0, 1.0, 0.0, 1.0), 2) == "█▒"
    assert bar((), 10) == ""


def test_paths_without_files_are_refused(tmp_path: Path) -> None:
    assert "has no files" in one_line_error(invoke("page-cache", tmp_path))
    os.mkfifo(tmp_path / "pipe")
    assert "not a regular file" in one_line_error(invoke("page-cache", tmp_path / "pipe"))
