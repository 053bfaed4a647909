from __future__ import annotations

from pathlib import Path

from tests.cli.running import invoke, json_of, one_line_error, run
from tests.inspect.written_logs import START, damage, logs_of, write_log


def test_lookup_of_an_offset_shows_every_chapter(tmp_path: Path) -> None:
    result = invoke("lookup", write_log(tmp_path / "orders-0", 400), 397)
    assert result.exit_code == 0
    chapters = [line.split("  ")[0] for line in result.stdout.splitlines() if not line.startswith(" ")]
    assert chapters[1:] == ["segment", "offset index", "log", "record", "cost"]
    assert '"key-397"' in result.stdout
    assert "comparisons" in result.stdout


def test_lookup_of_a_timestamp_shows_both_indexes(tmp_path: Path) -> None:
    path = write_log(tmp_path / "orders-0", 400)
    by_number = invoke("lookup", path, "--timestamp", START + 250)
    assert by_number.exit_code == 0
    assert "time index" in by_number.stdout
    assert "offset 250" in by_number.stdout
    by_name = invoke("lookup", path, "-t", "2023-11-14T22:13:20.250Z")
    assert "offset 250" in by_name.stdout


def test_json_ends_with_the_result(tmp_path: Path) -> None:
    *steps, result = json_of("lookup", write_log(tmp_path / "orders-0", 400), 397)
    assert {step["step"] for step in steps} == {
        "segment_compared",
        "segment_chosen",
        "entry_compared",
        "floor_entry",
        "scanned",
    }
    assert (result["type"], result["record"]["offset"], result["record"]["key"]) == ("result", 397, "key-397")
    assert result["cost"]["comparisons"] == sum("compared" in step["step"] for step in steps)


def test_end_of_the_log_is_no_error(tmp_path: Path) -> None:
    path = write_log(tmp_path / "orders-0", 10)
    result = invoke("lookup", path, 10)
    assert (result.exit_code, "none yet" in result.stdout) == (0, True)
    result = invoke("lookup", path, "-t", "2099-01-01")
    assert (result.exit_code, "every record is older" in result.stdout) == (0, True)


def test_offset_out_of_range_names_the_range(tmp_path: Path) -> None:
    result = invoke("lookup", write_log(tmp_path / "orders-0", 10), 11)
    assert "which has offsets 0 to 9" in one_line_error(result)


def test_offset_and_timestamp_are_needed_alternatively(tmp_path: Path) -> None:
    assert "either an OFFSET or --timestamp" in one_line_error(invoke("lookup", tmp_path))
    assert "either an OFFSET or --timestamp" in one_line_error(invoke("lookup", tmp_path, 1, "-t", 1))


def test_other_directories_are_refused(tmp_path: Path) -> None:
    assert "has no segments" in one_line_error(invoke("lookup", tmp_path, 1))
    assert "check the path" in one_line_error(invoke("lookup", tmp_path / "missing", 1))
    (tmp_path / "file").touch()
    assert "directory" in one_line_error(invoke("lookup", tmp_path / "file", 1))


def test_corrupt_batch_is_exit_code_1(tmp_path: Path) -> None:
    path = write_log(tmp_path / "orders-0", 100, segment_bytes=2**20, index_interval_bytes=2**20)
    damage(logs_of(path)[0], 0, (50).to_bytes(8, "big"))
    result = invoke("lookup", path, 10)
    assert result.exit_code == 1
    assert "stratalog verify" in result.stderr


def test_lookup_fits_80_columns_on_a_terminal(tmp_path: Path) -> None:
    path = write_log(tmp_path / "orders-0", 400)
    for arguments in (["397"], ["-t", str(START + 250)]):
        done = run("lookup", path, *arguments, FORCE_COLOR="1", COLUMNS="80", TERM="dumb")
        lines = done.stdout.splitlines()[1:]  # the first names the directory, which may be long
        assert max(map(len, lines)) <= 80
