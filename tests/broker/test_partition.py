"""A partition: how far its readers may read, and which leader epoch its batches get."""

from __future__ import annotations

from pathlib import Path

from stratalog.records.builder import build_batch
from stratalog.records.format import ControlType
from tests.broker.data_lab import DataLab, end_transaction


def test_the_high_watermark_is_the_end_of_the_log(data_lab: DataLab) -> None:
    data_lab.create("topic")
    partition = data_lab.partition("topic")
    assert partition.high_watermark == partition.last_stable_offset == 0
    data_lab.append("topic", b"one", b"two")
    assert partition.high_watermark == partition.last_stable_offset == 2


def test_committed_readers_stop_at_the_oldest_open_transaction(data_lab: DataLab) -> None:
    data_lab.create("topic")
    partition = data_lab.partition("topic")
    data_lab.append("topic", b"before")
    for producer_id in (1, 2):
        producer = {"producer_id": producer_id, "producer_epoch": 0, "base_sequence": 0, "is_transactional": True}
        data_lab.append("topic", b"open", **producer)
    assert (partition.last_stable_offset, partition.high_watermark) == (1, 3)
    for producer_id, stable in ((1, 2), (2, 5)):
        end_transaction(data_lab, producer_id, ControlType.COMMIT)
        assert partition.last_stable_offset == stable


def test_committed_readers_stop_no_earlier_than_the_log_starts(data_lab: DataLab) -> None:
    data_lab.create("topic")
    partition = data_lab.partition("topic")
    producer = {"producer_id": 1, "producer_epoch": 0, "base_sequence": 0, "is_transactional": True}
    data_lab.append("topic", b"open", **producer)
    data_lab.append("topic", b"one", b"two")
    partition.log.advance_start(2)
    assert (partition.last_stable_offset, partition.high_watermark) == (2, 3)
    end_transaction(data_lab, 1, ControlType.COMMIT)
    assert partition.last_stable_offset == partition.high_watermark == 4


def test_batches_get_the_leader_epoch_of_the_partition(data_lab: DataLab) -> None:
    data_lab.create("topic")
    partition = data_lab.partition("topic")
    partition.leader_epoch = 7
    partition.append(memoryview(build_batch([(None, b"value")])))
    assert partition.log.leader_epochs.latest == 7


def test_the_leader_epoch_survives_a_restart(tmp_path: Path) -> None:
    with DataLab(tmp_path) as lab:
        lab.create("topic")
        lab.partition("topic").leader_epoch = 7
        lab.append("topic", b"value")
    with DataLab(tmp_path) as lab:
        assert lab.partition("topic").leader_epoch == 7
