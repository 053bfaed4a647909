from __future__ import annotations

from pathlib import Path

import pytest

from stratalog.storage import Log
from tests.cli.running import invoke, json_of, one_line_error, run
from tests.inspect.written_logs import GOLDEN, compacted_batch, damage, logs_of, write_batches, write_log


def test_valid_data_directory_is_exit_code_0(tmp_path: Path) -> None:
    write_log(tmp_path / "orders-0", 10)
    write_log(tmp_path / "orders-1", 20)
    result = invoke("verify", tmp_path)
    assert result.exit_code == 0
    assert "no problems" in result.stdout
    assert [line.split()[0] for line in result.stdout.splitlines()][1:4] == ["orders-0", "orders-1", "total"]


def test_empty_partitions_of_internal_topics_are_one_line(tmp_path: Path) -> None:
    write_log(tmp_path / "orders-0", 10)
    for number in range(5):
        write_log(tmp_path / f"__consumer_offsets-{number}", 10 if number == 3 else 0)
    lines = invoke("verify", tmp_path).stdout.splitlines()
    assert [line.split()[0] for line in lines[1:3]] == ["__consumer_offsets-3", "orders-0"]
    assert lines[4] == "not listed: 4 partitions of internal topics, empty and valid"
    assert len(json_of("verify", tmp_path)) == 6 + 1  # JSON lists all of them


def test_damage_is_exit_code_1_with_file_position_and_advice(tmp_path: Path) -> None:
    path = write_log(tmp_path / "orders-0", 10)
    damage(logs_of(path)[0], 80, b"\xff")
    result = invoke("verify", tmp_path)
    assert result.exit_code == 1
    assert "ERROR   orders-0/00000000000000000000.log at position 0" in result.stdout
    assert "→ fetch the records again" in result.stdout
    assert "1 error, 0 warnings" in result.stdout


def test_json_has_findings_partitions_and_a_summary(tmp_path: Path) -> None:
    path = write_log(tmp_path / "orders-0", 10)
    damage(logs_of(path)[0], 80, b"\xff")
    finding, partition, summary = json_of("verify", path)
    assert (finding["type"], finding["severity"], finding["position"]) == ("finding", "error", 0)
    assert (partition["type"], partition["records"], partition["errors"]) == ("partition", 5, 1)
    assert (summary["type"], summary["errors"], summary["partitions"]) == ("summary", 1, 1)


@pytest.mark.parametrize(("option", "code"), [("--allow-gaps", 0), ("--strict", 1)])
def test_gaps_are_problems_only_when_strict(tmp_path: Path, option: str, code: int) -> None:
    batches = [compacted_batch(0, [0, 3]), compacted_batch(20, [0])]
    with Log.open(write_batches(tmp_path / "orders-0", {0: batches})):
        pass
    assert invoke("verify", option, tmp_path / "orders-0").exit_code == code


def test_no_deep_skips_the_records(tmp_path: Path) -> None:
    assert invoke("verify", "--no-deep", write_log(tmp_path / "orders-0", 10)).exit_code == 0


def test_partition_of_kafka_is_valid() -> None:
    assert invoke("verify", GOLDEN / "java-segments").exit_code == 0


def test_other_paths_are_refused(tmp_path: Path) -> None:
    assert "neither a partition nor a data directory" in one_line_error(invoke("verify", tmp_path))
    (tmp_path / "file").touch()
    assert "is not a directory" in one_line_error(invoke("verify", tmp_path / "file"))


def test_exit_code_in_its_own_process(tmp_path: Path) -> None:
    path = write_log(tmp_path / "orders-0", 10)
    assert run("verify", path).returncode == 0
    damage(logs_of(path)[0], 80, b"\xff")
    done = run("verify", path)
    assert (done.returncode, done.stderr) == (1, "")
