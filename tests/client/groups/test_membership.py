"""A member's life in a group, with both protocols: what it is assigned, what it keeps, and when it has to leave."""

from __future__ import annotations

import re
import threading
import time
from typing import Any

import pytest

from stratalog.client.consumer import Consumer, RebalanceListener, TopicPartition
from stratalog.client.errors import (
    ClientError,
    CommitFailedError,
    FencedInstanceIdError,
    WakeupError,
)
from stratalog.client.producer import Producer
from tests.client.conftest import NewTopic
from tests.client.groups.members import QUICK, MemberThread, Notes, wait_until, wait_until_shared
from tests.clients.admin import create_topic, grow_topic

SECONDS = 60.0
CLASSIC: dict[str, Any] = {"group_protocol": "classic"}
COOPERATIVE: dict[str, Any] = {"partition_assignment_strategy": "cooperative-sticky"}
KIP_848: dict[str, Any] = {"group_protocol": "consumer"}
both = pytest.mark.parametrize("protocol", [CLASSIC, KIP_848], ids=["classic", "consumer"])


def fill(bootstrap: str, topic: str, count: int = 10, partition: int = 0) -> None:
    with Producer(bootstrap) as producer:
        for number in range(count):
            producer.send(topic, b"%d" % number, partition=partition)


def read(consumer: Consumer, count: int) -> list[Any]:
    records: list[Any] = []
    deadline = time.monotonic() + SECONDS
    while len(records) < count and time.monotonic() < deadline:
        records += [record for of_partition in consumer.poll(1).values() for record in of_partition]
    return records


@pytest.mark.any_broker
@both
def test_new_consumer_continues_where_the_last_member_closed(
    protocol: dict[str, Any], bootstrap: str, topic: str, name: str
) -> None:
    fill(bootstrap, topic)
    for first in (0, 4):
        with Consumer(bootstrap, group_id=name, max_poll_records=4, **(QUICK | protocol)) as consumer:
            consumer.subscribe([topic])
            assert [record.offset for record in read(consumer, 1)] == [first, first + 1, first + 2, first + 3]


@pytest.mark.any_broker
@both
def test_iteration_commits_the_records_that_the_loop_is_done_with(
    protocol: dict[str, Any], bootstrap: str, topic: str, name: str
) -> None:
    fill(bootstrap, topic, 5000)  # more than the loop reads until its deadline
    settings = QUICK | protocol | {"auto_commit_interval_ms": 10}
    with Consumer(bootstrap, group_id=name, **settings) as consumer:
        consumer.subscribe([topic])
        records = iter(consumer)
        for _ in range(4):
            next(records)
        partition = TopicPartition(topic, 0)

        def is_committed() -> bool:
            next(records)
            committed = consumer.committed([partition])[partition]
            return committed is not None and 4 <= committed.offset <= consumer.position(partition) - 1

        wait_until(is_committed, lambda: f"{consumer.committed([partition])} is committed")


@pytest.mark.any_broker
@both
def test_listener_is_called_for_all_changes(
    protocol: dict[str, Any], bootstrap: str, name: str, new_topic: NewTopic
) -> None:
    topic = new_topic(2)
    first = MemberThread(bootstrap, name, [topic], **protocol)
    wait_until_shared([first], 2)
    second = MemberThread(bootstrap, name, [topic], **protocol)
    wait_until_shared([first, second], 2)
    second.stop()
    wait_until_shared([first], 2)
    first.stop()
    kinds = [kind for kind, partitions in first.notes.events if partitions]
    assert "lost" not in kinds
    held: set[TopicPartition] = set()
    for kind, partitions in first.notes.events:
        held = held | set(partitions) if kind == "assigned" else held - set(partitions)
    assert held == set()
    assert kinds.count("assigned") >= 2
    assert second.notes.kinds()[-1] == "revoked"


@pytest.mark.any_broker
def test_cooperative_members_read_on_in_the_partitions_they_keep(
    bootstrap: str, name: str, new_topic: NewTopic
) -> None:
    topic = new_topic(4)
    first = MemberThread(bootstrap, name, [topic], **COOPERATIVE)
    wait_until_shared([first], 4)
    second = MemberThread(bootstrap, name, [topic], **COOPERATIVE)
    wait_until_shared([first, second], 4)
    kept = first.owned
    first.stop()
    second.stop()
    assert len(kept) == 2
    revoked_before_the_end = {
        partition for kind, partitions in first.notes.events[:-1] if kind == "revoked" for partition in partitions
    }
    assert revoked_before_the_end.isdisjoint(kept)


@pytest.mark.any_broker
@both
def test_static_member_that_returns_in_time_gets_its_partitions_without_a_rebalance(
    protocol: dict[str, Any], bootstrap: str, name: str, new_topic: NewTopic
) -> None:
    topic = new_topic(2)
    other = MemberThread(bootstrap, name, [topic], group_instance_id="other", **protocol)
    static = MemberThread(bootstrap, name, [topic], group_instance_id="static", **protocol)
    wait_until_shared([other, static], 2)
    events, owned = len(other.notes.events), static.owned
    static.stop()
    again = MemberThread(bootstrap, name, [topic], group_instance_id="static", **protocol)
    wait_until(lambda: again.owned == owned, lambda: f"it has {again.owned}, not {owned}")
    assert len(other.notes.events) == events
    other.stop()
    again.stop()


@pytest.mark.any_broker
def test_second_consumer_with_the_same_instance_id_fences_the_first(bootstrap: str, topic: str, name: str) -> None:
    settings = QUICK | {"group_instance_id": "same"}
    with (
        Consumer(bootstrap, group_id=name, **settings) as first,
        Consumer(bootstrap, group_id=name, **settings) as second,
    ):
        first.subscribe([topic])
        while not first.assignment():
            first.poll(0.1)
        second.subscribe([topic])
        while not second.assignment():
            second.poll(0.1)
        with pytest.raises(FencedInstanceIdError, match=r"group\.instance\.id"):
            for _ in range(600):
                first.poll(0.1)


@both
def test_member_that_does_not_poll_in_time_leaves_and_returns_with_the_next_poll(
    protocol: dict[str, Any], bootstrap: str, topic: str, name: str
) -> None:
    fill(bootstrap, topic)
    settings = QUICK | protocol | {"max_poll_interval_ms": 1500}
    notes = Notes()
    with Consumer(bootstrap, group_id=name, **settings) as consumer:
        consumer.subscribe([topic], notes)
        assert len(read(consumer, 10)) == 10
        other = MemberThread(bootstrap, name, [topic], **protocol)
        wait_until(lambda: len(other.owned) == 1, lambda: "the other member has not got the partition")
        with pytest.raises(CommitFailedError, match=r"max\.poll\.interval\.ms"):
            consumer.commit()
        other.stop()
        wait_until(lambda: not consumer.poll(0.1) and bool(consumer.assignment()), lambda: "it is not back")
        assert "lost" in notes.kinds()
        consumer.commit({TopicPartition(topic, 0): 7})


@pytest.mark.any_broker
@both
def test_existing_and_new_topics_that_match_a_pattern_are_read(
    protocol: dict[str, Any], bootstrap: str, name: str
) -> None:
    create_topic(bootstrap, f"{name}-one")
    create_topic(bootstrap, f"other-{name}")
    settings = QUICK | protocol | {"metadata_max_age_ms": 300}
    with Consumer(bootstrap, group_id=name, **settings) as consumer:
        consumer.subscribe(re.compile(re.escape(name) + "-.*"))
        wait_until(
            lambda: not consumer.poll(0.1) and len(consumer.assignment()) == 1,
            lambda: f"it has {consumer.assignment()}",
        )
        create_topic(bootstrap, f"{name}-two")
        wait_until(
            lambda: not consumer.poll(0.1) and len(consumer.assignment()) == 2,
            lambda: f"it has {consumer.assignment()}",
        )
        assert consumer.subscription() == {f"{name}-one", f"{name}-two"}


@pytest.mark.any_broker
@both
def test_added_partitions_and_new_topics_are_read(
    protocol: dict[str, Any], bootstrap: str, topic: str, name: str
) -> None:
    settings = QUICK | protocol | {"metadata_max_age_ms": 300}
    with Consumer(bootstrap, group_id=name, **settings) as consumer:
        consumer.subscribe([topic, f"{topic}-later"])
        wait_until(
            lambda: not consumer.poll(0.1) and len(consumer.assignment()) == 1,
            lambda: f"it has {consumer.assignment()}",
        )
        grow_topic(bootstrap, topic, 3)
        create_topic(bootstrap, f"{topic}-later")
        wait_until(
            lambda: not consumer.poll(0.1) and len(consumer.assignment()) == 4,
            lambda: f"it has {consumer.assignment()}",
        )


@pytest.mark.any_broker
@both
def test_subscribing_to_other_topics_changes_the_assignment(
    protocol: dict[str, Any], bootstrap: str, name: str, new_topic: NewTopic
) -> None:
    first, second = new_topic(), new_topic()
    with Consumer(bootstrap, group_id=name, **(QUICK | protocol)) as consumer:
        for topics in ([first], [first, second], [second]):
            consumer.subscribe(topics)
            expected = {TopicPartition(topic, 0) for topic in topics}
            wait_until(
                lambda expected=expected: not consumer.poll(0.1) and consumer.assignment() == expected,  # type: ignore[misc]
                lambda: f"it has {consumer.assignment()}",
            )
        consumer.unsubscribe()
        assert consumer.assignment() == set()
        with pytest.raises(ClientError, match="nothing to read"):
            consumer.poll(0)


@pytest.mark.any_broker
def test_exception_of_a_listener_is_raised_by_poll_and_the_member_stays(bootstrap: str, topic: str, name: str) -> None:
    class Failing(RebalanceListener):
        def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
            raise ZeroDivisionError

    with Consumer(bootstrap, group_id=name, **QUICK) as consumer:
        consumer.subscribe([topic], Failing())
        with pytest.raises(ZeroDivisionError):
            for _ in range(100):
                consumer.poll(0.1)
        assert consumer.assignment() == {TopicPartition(topic, 0)}


@pytest.mark.any_broker
def test_seek_in_a_listener_is_effective(bootstrap: str, topic: str, name: str) -> None:
    fill(bootstrap, topic)
    with Consumer(bootstrap, group_id=name, **QUICK) as consumer:

        class Seeking(RebalanceListener):
            def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
                for partition in partitions:
                    consumer.seek(partition, 7)

        consumer.subscribe([topic], Seeking())
        assert [record.offset for record in read(consumer, 3)] == [7, 8, 9]


@pytest.mark.any_broker
@both
def test_wakeup_ends_a_wait_in_another_thread(protocol: dict[str, Any], bootstrap: str, topic: str, name: str) -> None:
    with Consumer(bootstrap, group_id=name, **(QUICK | protocol)) as consumer:
        consumer.subscribe([topic])
        threading.Timer(0.3, consumer.wakeup).start()
        with pytest.raises(WakeupError):
            for _ in consumer:
                pass
        assert consumer.poll(0.01) == {}


@pytest.mark.any_broker
@both
def test_commit_callback_is_called_in_the_polling_thread(
    protocol: dict[str, Any], bootstrap: str, topic: str, name: str
) -> None:
    fill(bootstrap, topic)
    calls: list[tuple[Any, Any, int]] = []
    with Consumer(bootstrap, group_id=name, **(QUICK | protocol | {"enable_auto_commit": False})) as consumer:
        consumer.subscribe([topic])
        read(consumer, 10)
        consumer.commit_async(callback=lambda offsets, error: calls.append((offsets, error, threading.get_ident())))
        wait_until(lambda: not consumer.poll(0.05) and bool(calls), lambda: "it was not called")
        [(offsets, error, thread)] = calls
        assert error is None
        assert offsets[TopicPartition(topic, 0)].offset == 10
        assert thread == threading.get_ident()
        assert consumer.committed([(topic, 0)])[TopicPartition(topic, 0)] == offsets[TopicPartition(topic, 0)]


def test_group_metadata_has_the_member_id_and_generation(bootstrap: str, topic: str, name: str) -> None:
    with Consumer(bootstrap, group_id=name, **QUICK) as consumer:
        assert consumer.group_metadata() == (name, -1, "", None)
        consumer.subscribe([topic])
        wait_until(lambda: not consumer.poll(0.1) and bool(consumer.assignment()), lambda: "it has nothing")
        metadata = consumer.group_metadata()
        assert metadata.generation >= 1
        assert metadata.member_id
