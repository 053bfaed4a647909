from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from stratalog.protocol.api_keys import ApiKey
from tests.broker.apis.admin_lab import AdminLab, versions
from tests.storage.hand_made import START_MS, batch_of


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[AdminLab]:
    with AdminLab(tmp_path) as lab:
        lab.topics.create("orders", 2, {})
        lab.topics.create("events", 1, {})
        lab.append("orders", batch_of(START_MS), partition=1)
        yield lab


def sizes(result: Any) -> dict[str, dict[int, int]]:
    return {
        topic.name: {each.partition_index: each.partition_size for each in topic.partitions} for topic in result.topics
    }


@pytest.mark.parametrize("version", versions(ApiKey.DESCRIBE_LOG_DIRS))
def test_sizes_of_all_partitions(lab: AdminLab, tmp_path: Path, version: int) -> None:
    answer = lab.answer(ApiKey.DESCRIBE_LOG_DIRS, version, topics=None)
    [result] = answer.results
    size = len(batch_of(START_MS))
    assert (tmp_path / "orders-1" / "00000000000000000000.log").stat().st_size == size
    assert sizes(result) == {"events": {0: 0}, "orders": {0: 0, 1: size}}
    assert (result.error_code, result.log_dir) == (ErrorCode.none, str(tmp_path))
    assert {(each.offset_lag, each.is_future_key) for topic in result.topics for each in topic.partitions} == {
        (0, False)
    }
    if version >= 3:
        assert answer.error_code is ErrorCode.none
    if version >= 4:
        assert result.total_bytes == shutil.disk_usage(tmp_path).total
        assert 0 < result.usable_bytes <= result.total_bytes


def test_only_requested_partitions_that_exist_are_returned(lab: AdminLab) -> None:
    wanted = [
        {"topic": "orders", "partitions": [1, 1, 7, -1]},
        {"topic": "nope", "partitions": [0]},
        {"topic": "events", "partitions": []},
        {"topic": "orders", "partitions": [0]},
    ]
    [result] = lab.answer(ApiKey.DESCRIBE_LOG_DIRS, topics=wanted).results
    assert {name: sorted(partitions) for name, partitions in sizes(result).items()} == {"orders": [0, 1]}


def test_disk_space_is_returned_without_topics(lab: AdminLab) -> None:
    [result] = lab.answer(ApiKey.DESCRIBE_LOG_DIRS, topics=[]).results
    assert (list(result.topics), result.total_bytes > 0) == ([], True)


def test_unreadable_data_directory_gets_a_storage_error(lab: AdminLab, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(path: Path) -> Any:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(shutil, "disk_usage", fail)
    [result] = lab.answer(ApiKey.DESCRIBE_LOG_DIRS, topics=None).results
    assert (result.error_code, result.total_bytes, list(result.topics)) == (ErrorCode.kafka_storage_error, -1, [])
