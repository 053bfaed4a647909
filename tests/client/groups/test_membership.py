"""One member's life in a group, with both protocols: what it is told, what it keeps, and when it is out."""

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
    found: list[Any] = []
    deadline = time.monotonic() + SECONDS
    while len(found) < count and time.monotonic() < deadline:
        found += [record for records in consumer.poll(1).values() for record in records]
    return found


@pytest.mark.any_broker
@both
def test_a_new_consumer_goes_on_where_the_last_one_of_its_group_closed(
    protocol: dict[str, Any], bootstrap: str, topic: str, name: str
) -> None:
    fill(bootstrap, topic)
    for first in (0, 4):
        with Consumer(bootstrap, group_id=name, max_poll_records=4, **(QUICK | protocol)) as consumer:
            consumer.subscribe([topic])
            assert [record.offset for record in read(consumer, 1)] == [first, first + 1, first + 2, first + 3]


@pytest.mark.any_broker
@both
def test_iteration_commits_the_records_that_the_loop_came_back_from(
    protocol: dict[str, Any], bootstrap: str, topic: str, name: str
) -> None:
    fill(bootstrap, topic)
    settings = QUICK | protocol | {"auto_commit_interval_ms": 10}
    with Consumer(bootstrap, group_id=name, **settings) as consumer:
        consumer.subscribe([topic])
        records = iter(consumer)
        for _ in range(4):
            next(records)
        place = TopicPartition(topic, 0)

        def committed() -> bool:
            time.sleep(0.15)
            next(records)
            found = consumer.committed([place])[place]
            return found is not None and 4 <= found.offset <= consumer.position(place) - 1

        assert any(committed() for _ in range(6))


@pytest.mark.any_broker
@both
def test_listener_hears_of_what_comes_and_goes(
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
    kinds = [kind for kind, places in first.notes.events if places]
    assert "lost" not in kinds
    held: set[TopicPartition] = set()
    for kind, places in first.notes.events:
        held = held | set(places) if kind == "assigned" else held - set(places)
    assert held == set()
    assert kinds.count("assigned") >= 2
    assert second.notes.kinds()[-1] == "revoked"


@pytest.mark.any_broker
def test_cooperative_members_keep_what_they_keep(bootstrap: str, name: str, new_topic: NewTopic) -> None:
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
        place for kind, places in first.notes.events[:-1] if kind == "revoked" for place in places
    }
    assert revoked_before_the_end.isdisjoint(kept)


@pytest.mark.any_broker
@both
def test_static_member_that_is_back_in_time_has_its_partitions_again_without_a_rebalance(
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
def test_second_consumer_with_the_same_instance_id_puts_the_first_one_out(
    bootstrap: str, topic: str, name: str
) -> None:
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
def test_member_that_does_not_poll_in_time_is_out_and_comes_back_with_the_next_poll(
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
def test_topics_that_match_a_pattern_are_read_those_to_come_too(
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
def test_partitions_that_are_added_and_topics_that_appear_are_read(
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
    one, two = new_topic(), new_topic()
    with Consumer(bootstrap, group_id=name, **(QUICK | protocol)) as consumer:
        for topics in ([one], [one, two], [two]):
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
def test_what_a_listener_raises_comes_out_of_poll_and_the_member_stays(bootstrap: str, topic: str, name: str) -> None:
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
def test_seek_in_a_listener_counts(bootstrap: str, topic: str, name: str) -> None:
    fill(bootstrap, topic)
    with Consumer(bootstrap, group_id=name, **QUICK) as consumer:

        class Seeking(RebalanceListener):
            def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
                for place in partitions:
                    consumer.seek(place, 7)

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
def test_callback_of_an_asynchronous_commit_is_called_in_the_polling_thread(
    protocol: dict[str, Any], bootstrap: str, topic: str, name: str
) -> None:
    fill(bootstrap, topic)
    told: list[tuple[Any, Any, int]] = []
    with Consumer(bootstrap, group_id=name, **(QUICK | protocol | {"enable_auto_commit": False})) as consumer:
        consumer.subscribe([topic])
        read(consumer, 10)
        consumer.commit_async(callback=lambda offsets, error: told.append((offsets, error, threading.get_ident())))
        wait_until(lambda: not consumer.poll(0.05) and bool(told), lambda: "it was not called")
        [(offsets, error, thread)] = told
        assert error is None
        assert offsets[TopicPartition(topic, 0)].offset == 10
        assert thread == threading.get_ident()
        assert consumer.committed([(topic, 0)])[TopicPartition(topic, 0)] == offsets[TopicPartition(topic, 0)]


def test_member_id_and_generation_are_told(bootstrap: str, topic: str, name: str) -> None:
    with Consumer(bootstrap, group_id=name, **QUICK) as consumer:
        assert consumer.group_metadata() == (name, -1, "", None)
        consumer.subscribe([topic])
        wait_until(lambda: not consumer.poll(0.1) and bool(consumer.assignment()), lambda: "it has nothing")
        told = consumer.group_metadata()
        assert told.generation >= 1
        assert told.member_id
