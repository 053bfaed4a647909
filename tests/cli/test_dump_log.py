from __future__ import annotations

from pathlib import Path

from tests.cli.running import invoke, json_of, one_line_error
from tests.inspect.written_logs import GOLDEN, damage, logs_of, write_log, write_transactions


def test_batches_and_records_are_shown(tmp_path: Path) -> None:
    log = logs_of(write_log(tmp_path / "orders-0", 7))[0]
    result = invoke("dump-log", "--records", log)
    assert result.exit_code == 0
    assert "0..4  5 records" in result.stdout
    assert "crc ok" in result.stdout
    assert '"key-6" = "vvv' in result.stdout
    assert '[origin="test"]' in result.stdout


def test_markers_are_named(tmp_path: Path) -> None:
    result = invoke("dump-log", "-r", logs_of(write_transactions(tmp_path / "orders-0"))[0])
    assert "COMMIT  coordinator epoch 3" in result.stdout
    assert "ABORT  coordinator epoch 3" in result.stdout
    assert "producer 7 epoch 0 sequence 2..3, transactional" in result.stdout


def test_every_header_field_is_in_the_json(tmp_path: Path) -> None:
    batch, first, *_ = json_of("dump-log", "--records", logs_of(write_log(tmp_path / "orders-0", 7))[0])
    assert {"position", "crc", "crc_valid", "attributes", "leader_epoch", "base_sequence", "producer_id"} <= set(batch)
    assert (batch["type"], batch["base_offset"], batch["record_count"]) == ("batch", 0, 5)
    assert (first["type"], first["key"], first["key_encoding"]) == ("record", "key-0", "utf-8")
    assert first["headers"] == [{"key": "origin", "value": "test", "value_encoding": "utf-8"}]


def test_every_kind_of_file_of_a_real_broker_is_shown() -> None:
    files = [path for path in sorted((GOLDEN / "java-transactional").iterdir()) if path.suffix != ".json"]
    text = invoke("dump-log", *files)
    assert text.exit_code == 0
    assert all(str(path) in text.stdout for path in files)
    kinds = {row["type"] for row in json_of("dump-log", *files, *(GOLDEN / "data-directory").glob("*-checkpoint"))}
    assert kinds == {
        "batch",
        "offset_entry",
        "time_entry",
        "aborted_transaction",
        "producer",
        "leader_epoch",
        "partition_metadata",
        "partition_offset",
    }


def test_legacy_messages_are_shown() -> None:
    for name in ("magic0-gzip", "magic1-none"):
        result = invoke("dump-log", "-r", *logs_of(GOLDEN / name))
        assert result.exit_code == 0
        assert f"magic {name[5]}" in result.stdout
        assert '"value only"' in result.stdout


def test_damage_is_exit_code_1_with_position_reason_and_bytes_left(tmp_path: Path) -> None:
    log = logs_of(write_log(tmp_path / "orders-0", 7))[0]
    size = log.stat().st_size
    with log.open("ab") as file:
        file.write(bytes(33))
    result = invoke("dump-log", log)
    assert result.exit_code == 1
    assert f"DAMAGED: at position {size}: batch length is 0" in result.stdout
    assert "33 bytes are left" in result.stdout
    assert json_of("dump-log", log)[-1]["bytes_left"] == 33


def test_wrong_checksum_is_exit_code_1(tmp_path: Path) -> None:
    log = logs_of(write_log(tmp_path / "orders-0", 7))[0]
    damage(log, 80, b"\xff")
    result = invoke("dump-log", log)
    assert result.exit_code == 1
    assert "crc WRONG" in result.stdout


def test_limit_cuts_the_rows_and_says_so(tmp_path: Path) -> None:
    log = logs_of(write_log(tmp_path / "orders-0", 50))[0]
    result = invoke("dump-log", "--limit", 2, log)
    assert result.stdout.count("crc ok") == 2
    assert "raise --limit" in result.stdout
    assert len(json_of("dump-log", "--limit", 2, log)) == 2
    assert len(json_of("dump-log", "--max-bytes", 1000, log)) == 2


def test_long_values_are_shortened_without_full(tmp_path: Path) -> None:
    from stratalog.records.builder import build_batch
    from stratalog.storage import Log

    with Log.open(tmp_path / "orders-0") as log:
        log.append(build_batch([(b"key", b"x" * 5000)]))
    file = logs_of(tmp_path / "orders-0")[0]
    assert "(5,000 bytes)" in invoke("dump-log", "-r", file).stdout
    assert "x" * 5000 in invoke("dump-log", "-r", "--full", file).stdout


def test_unknown_file_does_not_hide_the_others(tmp_path: Path) -> None:
    log = logs_of(write_log(tmp_path / "orders-0", 7))[0]
    (tmp_path / "notes.txt").touch()
    result = invoke("dump-log", tmp_path / "notes.txt", log)
    assert "known are *.log" in one_line_error(result)
    assert "crc ok" in result.stdout


def test_directory_is_refused_with_advice(tmp_path: Path) -> None:
    assert "/*.log" in one_line_error(invoke("dump-log", tmp_path))


def test_empty_checkpoint_has_no_entries(tmp_path: Path) -> None:
    (tmp_path / "recovery-point-offset-checkpoint").touch()
    assert "no entries" in invoke("dump-log", tmp_path / "recovery-point-offset-checkpoint").stdout


def test_missing_file_is_reported_as_missing(tmp_path: Path) -> None:
    assert one_line_error(invoke("dump-log", tmp_path / "nofile")).endswith("nofile: no such file; check the path\n")
