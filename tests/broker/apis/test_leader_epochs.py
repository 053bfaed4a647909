from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from kio.schema.errors import ErrorCode

from stratalog.protocol.api_keys import ApiKey
from tests.broker.apis.admin_lab import AdminLab, versions
from tests.storage.hand_made import START_MS, batch_of


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[AdminLab]:
    """Return a lab whose log has offsets from 0 of leader epoch 2, from 3 of 5, and from 5 to 8 of 7, the current
    one."""
    with AdminLab(tmp_path) as lab:
        lab.topics.create("orders", 2, {})
        log = lab.append("orders")
        for epoch, count in ((2, 3), (5, 2), (7, 4)):
            for _ in range(count):
                log.append(batch_of(START_MS), leader_epoch=epoch)
    with AdminLab(tmp_path) as lab:
        yield lab


def ask(
    lab: AdminLab, epoch: int, *, current: int = -1, name: str = "orders", index: int = 0, version: int | None = None
) -> tuple[ErrorCode, int, int]:
    partition = {"partition": index, "current_leader_epoch": current, "leader_epoch": epoch}
    topics = [{"topic": name, "partitions": [partition]}]
    answer = lab.answer(ApiKey.OFFSET_FOR_LEADER_EPOCH, version, replica_id=-1, topics=topics)
    [topic] = answer.topics
    [result] = topic.partitions
    assert (topic.topic, result.partition) == (name, index)
    return result.error_code, result.leader_epoch, result.end_offset


@pytest.mark.parametrize("version", versions(ApiKey.OFFSET_FOR_LEADER_EPOCH))
@pytest.mark.parametrize(
    ("epoch", "answer"),
    [
        (2, (2, 3)),
        (5, (5, 5)),
        (7, (7, 9)),
        (3, (2, 3)),  # has no records
        (6, (5, 5)),
        (0, (0, 0)),  # before all remaining leader epochs
        (8, (-1, -1)),  # never existed
        (2**31 - 1, (-1, -1)),
        (-1, (-1, -1)),
        (-2, (-1, -1)),
    ],
)
def test_epoch_ends_where_the_next_begins(lab: AdminLab, version: int, epoch: int, answer: tuple[int, int]) -> None:
    assert ask(lab, epoch, version=version) == (ErrorCode.none, *answer)


def test_epoch_whose_records_were_deleted_ends_where_the_log_begins(lab: AdminLab) -> None:
    lab.append("orders").advance_start(4)
    assert ask(lab, 2) == (ErrorCode.none, 2, 4)


def test_current_epoch_of_an_empty_log_ends_at_the_log_end_offset(lab: AdminLab) -> None:
    assert ask(lab, 0, index=1) == (ErrorCode.none, 0, 0)
    assert ask(lab, 1, index=1) == (ErrorCode.none, -1, -1)


def test_client_with_another_current_epoch_gets_an_error(lab: AdminLab) -> None:
    assert ask(lab, 2, current=7) == (ErrorCode.none, 2, 3)
    assert ask(lab, 2, current=6) == (ErrorCode.fenced_leader_epoch, -1, -1)
    assert ask(lab, 2, current=8) == (ErrorCode.unknown_leader_epoch, -1, -1)


@pytest.mark.parametrize(("name", "index"), [("nope", 0), ("orders", 2), ("orders", -1)])
def test_unknown_partitions_are_told(lab: AdminLab, name: str, index: int) -> None:
    assert ask(lab, 2, name=name, index=index) == (ErrorCode.unknown_topic_or_partition, -1, -1)
