from __future__ import annotations

import json
import uuid
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.broker.metadata.change_entries import (
    BrokersChanged,
    Change,
    KnownMetadata,
    PartitionChanged,
    SettingsChanged,
    TopicChanged,
    TopicDeleted,
    format_entry,
    parse_entry,
)
from stratalog.broker.metadata.cluster_view import ClusterTopic, PartitionId
from stratalog.broker.metadata.partition_state import PartitionState
from stratalog.broker.metadata.transaction_sizes import LARGEST_TRANSACTION, Sized, chunks
from stratalog.broker.metadata.znodes import UnreadableZnodeError

FIRST, SECOND = uuid.UUID(int=1), uuid.UUID(int=2)
STATE = PartitionState((0, 1), 0, 0, (0, 1), 5)


def created(topic_id: uuid.UUID, version: int = 0, partition_count: int = 1) -> TopicChanged:
    return TopicChanged(ClusterTopic("orders", topic_id, partition_count, {}, 1, version), partition_count)


def changed(topic_id: uuid.UUID, version: int, partition: int = 0) -> PartitionChanged:
    return PartitionChanged(PartitionId(topic_id, partition), replace(STATE, partition_epoch=version))


def test_an_entry_is_read_back_differently() -> None:
    changes: list[Change] = [
        TopicChanged(ClusterTopic("orders", FIRST, 3, {"a": "b"}, 2, 4), 1),
        TopicDeleted("orders", FIRST),
        changed(FIRST, 8, 2),
        SettingsChanged("", {"a": "b"}, 3),
        BrokersChanged(),
    ]
    assert parse_entry("/changes/c-0000000001", format_entry(changes)) == changes


@given(st.binary(max_size=40) | st.recursive(st.none() | st.integers(), st.lists).map(lambda v: json.dumps(v).encode()))
def test_rubbish_in_an_entry_is_accepted(data: bytes) -> None:
    with pytest.raises(UnreadableZnodeError, match="/changes/c-1"):
        parse_entry("/changes/c-1", data)


@pytest.mark.parametrize("content", [{"changes": [{"kind": "new"}]}, {"changes": [5]}, {"changes": {}}])
def test_an_entry_of_an_unknown_kind_is_skipped(content: object) -> None:
    assert isinstance(content, dict)
    with pytest.raises(UnreadableZnodeError):
        parse_entry("/changes/c-1", json.dumps({"version": 1, **content}).encode())


def test_an_old_entry_replaces_newer_content() -> None:
    known = KnownMetadata()
    for change in (created(FIRST, 1, 2), changed(FIRST, 5), created(FIRST, 0), changed(FIRST, 4)):
        known.apply(change)
    assert known.topics["orders"].version == 1
    assert known.states[PartitionId(FIRST, 0)].partition_epoch == 5
    for settings in (SettingsChanged("1", {"a": "new"}, 2), SettingsChanged("1", {"a": "old"}, 1)):
        known.apply(settings)
    assert known.settings["1"].settings == {"a": "new"}


def test_the_entry_of_a_deleted_topic_deletes_its_successor() -> None:
    known = KnownMetadata()
    for change in (created(FIRST), changed(FIRST, 0), TopicDeleted("orders", FIRST), created(SECOND)):
        known.apply(change)
    known.apply(TopicDeleted("orders", FIRST))
    known.apply(changed(FIRST, 9))
    assert known.topics["orders"].id == SECOND
    assert known.states == {}


def test_what_was_read_before_old_entries_is_lost_to_them() -> None:
    history: list[Change] = [
        created(FIRST),
        changed(FIRST, 0),
        TopicDeleted("orders", FIRST),
        created(SECOND),
        changed(SECOND, 0),
        changed(SECOND, 1),
    ]
    from_start, read_again = KnownMetadata(), KnownMetadata()
    for known in (from_start, read_again):
        for change in history:
            known.apply(change)
    for change in history:  # as after a full read, which has the result of entries that are then applied
        read_again.apply(change)
    assert (read_again.topics, read_again.states) == (from_start.topics, from_start.states)


@given(st.lists(st.integers(0, 2 * LARGEST_TRANSACTION), max_size=30), st.integers(0, LARGEST_TRANSACTION))
def test_a_transaction_is_larger_than_zookeeper_accepts(sizes: list[int], first: int) -> None:
    parts = list(chunks((Sized(index, size) for index, size in enumerate(sizes)), first))
    assert [index for part in parts for index in part] == list(range(len(sizes)))
    for number, part in enumerate(parts):
        total = sum(sizes[index] for index in part) + (first if number == 0 else 0)
        assert part
        assert len(part) == 1 or total <= LARGEST_TRANSACTION
