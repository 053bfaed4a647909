"""A client's view of the cluster, with brokers that a test makes say what it likes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager
from typing import Any

import pytest

from stratalog.client.cluster import Cluster, CoordinatorKind
from stratalog.client.connections import Purpose
from stratalog.client.errors import (
    BrokerUnreachableError,
    ClientClosedError,
    CoordinatorError,
    GroupAuthorizationError,
    MalformedResponseError,
    RequestTimeoutError,
    UnknownTopicOrPartitionError,
    UnsupportedVersionError,
)
from stratalog.client.metadata import ClusterMetadata
from stratalog.client.settings import CommonSettings
from stratalog.protocol.api_keys import ApiKey
from stratalog.protocol.error_codes import ErrorCode
from tests.net.fake_broker import CLOSE, SILENCE, FakeBroker, Request, partition, topic, versions
from tests.net.harness import SECONDS, run, until

NOWHERE = "127.0.0.1:1"
METADATA = ApiKey.METADATA
GROUP = CoordinatorKind.GROUP


@asynccontextmanager
async def clustered(servers: str, **options: Any) -> AsyncIterator[Cluster]:
    given = {"retry_backoff_ms": 10, "reconnect_backoff_ms": 10, "reconnect_backoff_max_ms": 50} | options
    cluster = Cluster(CommonSettings.from_options(servers, given))
    try:
        yield cluster
    finally:
        await cluster.close()


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with FakeBroker({"orders": 3}) as fake:
        yield fake


@pytest.fixture
def pair() -> Iterator[list[FakeBroker]]:
    """Nodes 1 and 2 of one cluster; the first leads."""
    with ExitStack() as stack:
        brokers = [stack.enter_context(FakeBroker({"orders": 1})) for _ in range(2)]
        nodes = [
            {"node_id": number, "host": "127.0.0.1", "port": one.port, "rack": None}
            for number, one in enumerate(brokers, 1)
        ]
        for one in brokers:
            one.say(METADATA, lambda request, one=one: one.metadata(brokers=nodes))  # type: ignore[misc]
        yield brokers


def test_metadata_is_a_snapshot_of_what_the_broker_says(broker: FakeBroker) -> None:
    async def scenario() -> None:
        async with clustered(broker.address) as cluster:
            assert cluster.metadata.topics == {}
            found = await cluster.refresh(["orders"])
            assert found is cluster.metadata
            assert (found.cluster_id, found.controller_id) == ("fake", 1)
            assert found.nodes[1].port == broker.port
            assert [one.partition for one in found.topics["orders"].partitions] == [0, 1, 2]
            leader = found.leader_of("orders", 2)
            assert leader is not None
            assert (leader.leader, leader.leader_epoch) == (1, 0)
            assert found.leader_of("orders", 3) is None
            assert found.leader_of("orders", -1) is None
            assert found.leader_of("others", 0) is None
            topic_id = found.topics["orders"].id
            assert topic_id is not None
            assert found.name_of(topic_id) == "orders"

    run(scenario)


def test_many_who_ask_at_once_share_a_request(broker: FakeBroker) -> None:
    async def scenario() -> None:
        async with clustered(broker.address) as cluster:
            await asyncio.gather(*[cluster.refresh([f"topic-{number}"]) for number in range(50)])
            assert broker.requests.count(METADATA) <= 2
            assert broker.connections == 1

    run(scenario)


def test_who_asks_while_a_request_is_under_way_gets_a_newer_answer(broker: FakeBroker) -> None:
    async def scenario() -> None:
        async with clustered(broker.address) as cluster:
            first = asyncio.create_task(cluster.refresh())
            await until(lambda: METADATA in broker.requests)
            broker.topics["late"] = 1
            assert "late" in (await cluster.refresh(["late"])).topics
            await first

    run(scenario)


def test_servers_that_are_not_there_are_passed_over(broker: FakeBroker) -> None:
    async def scenario() -> None:
        async with clustered(f"{NOWHERE},{broker.address},127.0.0.1:2") as cluster:
            assert (await cluster.refresh(timeout=SECONDS)).nodes

    run(scenario)


def test_a_broker_that_comes_up_late_is_found() -> None:
    async def scenario() -> None:
        with FakeBroker() as broker:
            broker.say(ApiKey.API_VERSIONS, CLOSE)
            async with clustered(broker.address) as cluster:
                waiting = asyncio.create_task(cluster.refresh())
                await until(lambda: broker.connections >= 3)
                broker.say(ApiKey.API_VERSIONS, versions())
                assert (await asyncio.wait_for(waiting, SECONDS)).nodes

    run(scenario)


def test_no_answer_in_time_is_an_error_that_says_why() -> None:
    async def scenario() -> None:
        async with clustered(NOWHERE) as cluster:
            with pytest.raises(RequestTimeoutError, match=r"within 0\.2 s: 127\.0\.0\.1:1 can't be reached"):
                await cluster.refresh(timeout=0.2)

    run(scenario)


def test_a_cluster_that_moved_is_found_through_the_bootstrap_servers(broker: FakeBroker) -> None:
    async def scenario() -> None:
        with FakeBroker() as moved:
            async with clustered(broker.address) as cluster:
                broker.say(METADATA, moved.metadata())
                await cluster.refresh()
                assert cluster.metadata.nodes[1].port == moved.port
                moved.close()
                broker.say(METADATA, broker.metadata())
                await cluster.refresh(timeout=SECONDS)
                assert cluster.metadata.nodes[1].port == broker.port

    run(scenario)


def test_a_node_with_a_new_address_is_connected_to_there(broker: FakeBroker) -> None:
    async def scenario() -> None:
        with FakeBroker() as other:
            async with clustered(broker.address) as cluster:
                await cluster.refresh()
                first = await cluster.connection(1)
                broker.say(METADATA, other.metadata())
                await cluster.refresh()
                second = await cluster.connection(1)
                assert (first.port, second.port) == (broker.port, other.port)
                assert first.is_closed

    run(scenario)


def test_the_bootstrap_connection_is_used_on(broker: FakeBroker) -> None:
    async def scenario() -> None:
        async with clustered(broker.address) as cluster:
            await cluster.refresh()
            await cluster.refresh()
            await cluster.ask_any(METADATA, {"topics": [], "include_topic_authorized_operations": False})
            assert broker.connections == 1

    run(scenario)


def test_records_that_are_waited_for_hold_up_nothing_else(broker: FakeBroker) -> None:
    async def scenario() -> None:
        async with clustered(broker.address) as cluster:
            await cluster.refresh()
            data = await cluster.connection(1)
            waiting = data.exchange(ApiKey.FETCH, 12, [b""], timeout=SECONDS)  # which is never answered
            await cluster.refresh(timeout=SECONDS)
            assert await cluster.connection(1) is data
            assert await cluster.connection(1, Purpose.CONTROL) is not data
            assert not waiting.done()
            waiting.cancel()

    run(scenario)


def test_who_asks_for_a_connection_at_once_shares_the_attempt(broker: FakeBroker) -> None:
    async def scenario() -> None:
        async with clustered(broker.address) as cluster:
            await cluster.refresh()
            before = broker.connections
            found = await asyncio.gather(*[cluster.connection(1) for _ in range(20)])
            assert len(set(found)) == 1
            assert broker.connections == before + 1

    run(scenario)


def test_an_attempt_survives_the_first_who_wanted_it(broker: FakeBroker) -> None:
    async def scenario() -> None:
        async with clustered(broker.address) as cluster:
            await cluster.refresh()
            first = asyncio.create_task(cluster.connection(1))
            second = asyncio.create_task(cluster.connection(1))
            await asyncio.sleep(0)
            first.cancel()
            assert not (await second).is_closed

    run(scenario)


def test_a_node_that_nobody_knows_is_unreachable(broker: FakeBroker) -> None:
    async def scenario() -> None:
        async with clustered(broker.address) as cluster:
            await cluster.refresh()
            with pytest.raises(BrokerUnreachableError, match="node 77 is not in the cluster's metadata"):
                await cluster.connection(77)

    run(scenario)


def test_a_lost_connection_has_metadata_asked_for_again(broker: FakeBroker) -> None:
    async def scenario() -> None:
        async with clustered(broker.address) as cluster:
            await cluster.refresh()
            await cluster.connection(1)
            before = broker.requests.count(METADATA)
            broker.cut()
            await until(lambda: broker.requests.count(METADATA) > before)

    run(scenario)


def test_metadata_is_asked_for_again_when_it_is_old(broker: FakeBroker) -> None:
    async def scenario() -> None:
        async with clustered(broker.address, metadata_max_age_ms=20) as cluster:
            await cluster.refresh()
            await until(lambda: broker.requests.count(METADATA) >= 4)

    run(scenario)


def test_a_hurry_while_a_refresh_is_under_way_is_not_forgotten(broker: FakeBroker) -> None:
    async def scenario() -> None:
        async with clustered(broker.address, retry_backoff_ms=30) as cluster:
            for _ in range(3):
                cluster.refresh_soon()
                await cluster.refresh()
            before = broker.requests.count(METADATA)
            cluster.refresh_soon()
            cluster.refresh_soon()
            await until(lambda: broker.requests.count(METADATA) > before)

    run(scenario)


def test_listeners_hear_of_each_snapshot_and_one_that_fails_harms_nobody(broker: FakeBroker) -> None:
    async def scenario() -> None:
        seen: list[ClusterMetadata] = []

        def broken(_: ClusterMetadata) -> None:
            raise ZeroDivisionError

        async with clustered(broker.address) as cluster:
            cluster.on_change(broken)
            cluster.on_change(seen.append)
            assert [await cluster.refresh(), await cluster.refresh()] == seen

    run(scenario)


def test_a_broker_that_is_behind_does_not_bring_an_old_leader_back(broker: FakeBroker) -> None:
    async def scenario() -> None:
        async with clustered(broker.address) as cluster:

            async def leader(**said: Any) -> int:
                broker.say(METADATA, broker.metadata(topics=[topic("orders", 0, partitions=[partition(0, **said)])]))
                found = (await cluster.refresh(["orders"])).leader_of("orders", 0)
                assert found is not None
                return found.leader

            assert await leader(leader_id=2, leader_epoch=5) == 2
            assert await leader(leader_id=1, leader_epoch=4) == 2
            assert await leader(leader_id=1, leader_epoch=6) == 1

    run(scenario)


def test_a_topic_that_was_made_again_has_its_own_epochs(broker: FakeBroker) -> None:
    async def scenario() -> None:
        async with clustered(broker.address) as cluster:
            old = topic("orders", 0, partitions=[partition(0, leader_id=2, leader_epoch=5)])
            broker.say(METADATA, broker.metadata(topics=[old]))
            await cluster.refresh(["orders"])
            broker.say(METADATA, broker.metadata(topics=[old | {"topic_id": None, "partitions": [partition(0)]}]))
            found = (await cluster.refresh()).leader_of("orders", 0)
            assert found is not None
            assert found.leader == 1

    run(scenario)


def test_a_partition_without_a_leader_has_none(broker: FakeBroker) -> None:
    async def scenario() -> None:
        async with clustered(broker.address) as cluster:
            headless = partition(0, error_code=int(ErrorCode.leader_not_available), leader_id=-1)
            broker.say(METADATA, broker.metadata(topics=[topic("orders", 0, partitions=[headless])]))
            found = await cluster.refresh(["orders"])
            assert found.leader_of("orders", 0) is None
            assert len(found.topics["orders"].partitions) == 1

    run(scenario)


def test_a_topic_is_waited_for_until_it_is_there(broker: FakeBroker) -> None:
    def later(request: Request) -> dict[str, Any]:
        missing = topic("new", 0, error_code=int(ErrorCode.unknown_topic_or_partition))
        return broker.metadata(topics=[topic("new", 2) if broker.requests.count(METADATA) > 3 else missing])

    async def scenario() -> None:
        broker.say(METADATA, later)
        async with clustered(broker.address) as cluster:
            assert len((await cluster.topic("new", timeout=SECONDS)).partitions) == 2

    run(scenario)


def test_a_topic_that_never_comes_is_an_error_that_names_it(broker: FakeBroker) -> None:
    async def scenario() -> None:
        async with clustered(broker.address) as cluster:
            with pytest.raises(UnknownTopicOrPartitionError, match=r"topic 'missing'.*create it"):
                await cluster.topic("missing", timeout=0.2)

    run(scenario)


def test_a_topic_with_a_name_that_can_not_be_is_refused_at_once(broker: FakeBroker) -> None:
    async def scenario() -> None:
        wrong = topic("a/b", 0, error_code=int(ErrorCode.invalid_topic_exception))
        broker.say(METADATA, broker.metadata(topics=[wrong]))
        async with clustered(broker.address) as cluster:
            with pytest.raises(ValueError, match="INVALID_TOPIC_EXCEPTION"):
                await cluster.topic("a/b", timeout=SECONDS)

    run(scenario)


@pytest.mark.parametrize("numbers", [[0, 2], [0, 0], [-1], [2**31 - 1]])
def test_partitions_with_gaps_are_an_error_and_no_hang(broker: FakeBroker, numbers: list[int]) -> None:
    async def scenario() -> None:
        bad = topic("orders", 0, partitions=[partition(number) for number in numbers])
        broker.say(METADATA, broker.metadata(topics=[bad]))
        async with clustered(broker.address) as cluster:
            with pytest.raises(MalformedResponseError, match="'orders' has partitions"):
                await cluster.refresh(["orders"])

    run(scenario)


def test_a_broker_that_is_too_old_is_an_error_and_no_hang(broker: FakeBroker) -> None:
    async def scenario() -> None:
        broker.say(ApiKey.API_VERSIONS, versions(METADATA=(0, 1)))
        async with clustered(broker.address) as cluster:
            with pytest.raises(UnsupportedVersionError, match="METADATA in versions 0 to 1"):
                await cluster.refresh()

    run(scenario)


@pytest.mark.parametrize("said", [{"brokers": []}, {"error_code": int(ErrorCode.rebootstrap_required)}])
def test_a_broker_without_a_say_is_asked_again_until_it_has_one(broker: FakeBroker, said: dict[str, Any]) -> None:
    async def scenario() -> None:
        broker.say(METADATA, broker.metadata(**said))
        async with clustered(broker.address) as cluster:
            waiting = asyncio.create_task(cluster.refresh())
            await until(lambda: broker.requests.count(METADATA) >= 3)
            broker.say(METADATA, broker.metadata())
            await asyncio.wait_for(waiting, SECONDS)

    run(scenario)


def test_another_node_answers_where_one_is_gone(pair: list[FakeBroker]) -> None:
    async def scenario() -> None:
        async with clustered(pair[0].address) as cluster:
            await cluster.refresh()
            pair[0].close()
            for one in pair:
                one.say(ApiKey.LIST_GROUPS, {"error_code": 0, "groups": []})
            assert (await cluster.ask_any(ApiKey.LIST_GROUPS, {}, timeout=SECONDS)).groups == ()
            assert ApiKey.LIST_GROUPS in pair[1].requests

    run(scenario)


def test_the_controller_is_looked_for_where_it_moved(pair: list[FakeBroker]) -> None:
    def refuse(request: Request) -> dict[str, Any]:
        for one in pair:
            said = one.metadata(controller_id=2)
            said["brokers"] = [
                {"node_id": number, "host": "127.0.0.1", "port": each.port, "rack": None}
                for number, each in enumerate(pair, 1)
            ]
            one.say(METADATA, said)
        return created(ErrorCode.not_controller)

    def created(code: ErrorCode) -> dict[str, Any]:
        return {
            "topics": [{"name": "new", "topic_id": None, "error_code": int(code), "error_message": None, "configs": []}]
        }

    async def scenario() -> None:
        pair[0].say(ApiKey.CREATE_TOPICS, refuse)
        pair[1].say(ApiKey.CREATE_TOPICS, created(ErrorCode.none))
        async with clustered(pair[0].address) as cluster:
            response = await cluster.ask_controller(ApiKey.CREATE_TOPICS, {"topics": []}, timeout=SECONDS)
            assert response.topics[0].error_code == ErrorCode.none
            assert ApiKey.CREATE_TOPICS in pair[0].requests

    run(scenario)


def found_at(node: int, port: int, code: int = 0) -> dict[str, Any]:
    one = {"key": "g", "node_id": node, "host": "127.0.0.1", "port": port, "error_code": code, "error_message": None}
    return one | {"coordinators": [one]}


def beat(code: ErrorCode) -> dict[str, Any]:
    return {"error_code": int(code)}


HEARTBEAT_BODY = {"group_id": "g", "generation_id": 1, "member_id": "m"}


@pytest.mark.parametrize("highest", [6, 3])
def test_a_coordinator_is_asked_for_once(broker: FakeBroker, highest: int) -> None:
    async def scenario() -> None:
        broker.say(ApiKey.API_VERSIONS, versions(FIND_COORDINATOR=(0, highest)))
        broker.say(ApiKey.FIND_COORDINATOR, found_at(1, broker.port))
        broker.say(ApiKey.HEARTBEAT, beat(ErrorCode.none))
        async with clustered(broker.address) as cluster:
            for _ in range(3):
                await cluster.ask_coordinator(GROUP, "g", ApiKey.HEARTBEAT, HEARTBEAT_BODY, timeout=SECONDS)
            assert broker.requests.count(ApiKey.FIND_COORDINATOR) == 1

    run(scenario)


def test_a_coordinator_that_metadata_does_not_know_yet_is_reached(broker: FakeBroker) -> None:
    async def scenario() -> None:
        with FakeBroker() as other:
            broker.say(ApiKey.FIND_COORDINATOR, found_at(9, other.port))
            other.say(ApiKey.HEARTBEAT, beat(ErrorCode.none))
            async with clustered(broker.address) as cluster:
                await cluster.ask_coordinator(GROUP, "g", ApiKey.HEARTBEAT, HEARTBEAT_BODY, timeout=SECONDS)
                assert ApiKey.HEARTBEAT in other.requests

    run(scenario)


@pytest.mark.parametrize("answer", [beat(ErrorCode.not_coordinator), beat(ErrorCode.coordinator_not_available), CLOSE])
def test_a_coordinator_that_moved_is_looked_for_again(pair: list[FakeBroker], answer: Any) -> None:
    def moved(request: Request) -> Any:
        for one in pair:
            one.say(ApiKey.FIND_COORDINATOR, found_at(2, pair[1].port))
        return answer

    async def scenario() -> None:
        for one in pair:
            one.say(ApiKey.FIND_COORDINATOR, found_at(1, pair[0].port))
        pair[0].say(ApiKey.HEARTBEAT, moved)
        pair[1].say(ApiKey.HEARTBEAT, beat(ErrorCode.none))
        async with clustered(pair[0].address) as cluster:
            await cluster.ask_coordinator(GROUP, "g", ApiKey.HEARTBEAT, HEARTBEAT_BODY, timeout=SECONDS)
            assert await cluster.coordinator(GROUP, "g") == 2

    run(scenario)


def test_a_coordinator_that_loads_is_waited_for(broker: FakeBroker) -> None:
    def loading(request: Request) -> Any:
        broker.say(ApiKey.HEARTBEAT, beat(ErrorCode.none))
        return beat(ErrorCode.coordinator_load_in_progress)

    async def scenario() -> None:
        broker.say(ApiKey.FIND_COORDINATOR, found_at(1, broker.port))
        broker.say(ApiKey.HEARTBEAT, loading)
        async with clustered(broker.address) as cluster:
            await cluster.ask_coordinator(GROUP, "g", ApiKey.HEARTBEAT, HEARTBEAT_BODY, timeout=SECONDS)
            assert broker.requests.count(ApiKey.FIND_COORDINATOR) == 1

    run(scenario)


def test_a_coordinator_that_never_is_there_ends_in_its_error(broker: FakeBroker) -> None:
    async def scenario() -> None:
        broker.say(ApiKey.FIND_COORDINATOR, found_at(-1, -1, int(ErrorCode.coordinator_not_available)))
        async with clustered(broker.address) as cluster:
            with pytest.raises(CoordinatorError, match="group 'g'"):
                await cluster.coordinator(GROUP, "g", timeout=0.2)

    run(scenario)


def test_a_group_that_may_not_be_used_is_refused_at_once(broker: FakeBroker) -> None:
    async def scenario() -> None:
        broker.say(ApiKey.FIND_COORDINATOR, found_at(-1, -1, int(ErrorCode.group_authorization_failed)))
        async with clustered(broker.address) as cluster:
            with pytest.raises(GroupAuthorizationError, match="administrator"):
                await cluster.coordinator(GROUP, "g", timeout=SECONDS)

    run(scenario)


def test_a_node_that_is_silent_ends_in_a_timeout(broker: FakeBroker) -> None:
    async def scenario() -> None:
        async with clustered(broker.address, request_timeout_ms=50) as cluster:
            await cluster.refresh()
            with pytest.raises(RequestTimeoutError, match="LIST_GROUPS"):
                await cluster.request(1, ApiKey.LIST_GROUPS, {})
            with pytest.raises(RequestTimeoutError):
                await cluster.ask_any(ApiKey.LIST_GROUPS, {}, timeout=0.2)

    run(scenario)


def test_closing_ends_all_that_waits(broker: FakeBroker) -> None:
    async def scenario() -> None:
        broker.say(METADATA, SILENCE)
        async with clustered(broker.address) as cluster:
            waiting = [asyncio.create_task(cluster.refresh()) for _ in range(3)]
            await until(lambda: METADATA in broker.requests)
            await cluster.close()
            for outcome in await asyncio.gather(*waiting, return_exceptions=True):
                assert isinstance(outcome, ClientClosedError)
            with pytest.raises(ClientClosedError):
                await cluster.refresh()

    run(scenario)


def test_connections_that_nobody_uses_are_closed(broker: FakeBroker) -> None:
    async def scenario() -> None:
        async with clustered(broker.address, connections_max_idle_ms=40) as cluster:
            await cluster.refresh()
            connection = await cluster.connection(1)
            await until(lambda: connection.is_closed)
            assert not (await cluster.connection(1)).is_closed

    run(scenario)


def test_topics_that_are_no_longer_wanted_are_not_asked_for(broker: FakeBroker) -> None:
    asked: list[bytes] = []

    def note(request: Request) -> dict[str, Any]:
        asked.append(bytes(request.body))
        return broker.metadata()

    async def scenario() -> None:
        broker.say(METADATA, note)
        async with clustered(broker.address) as cluster:
            cluster.track_topics(["keep", "drop"])
            await cluster.refresh()
            cluster.untrack_topics(["drop", "never-wanted"])
            await cluster.refresh()
            assert [b"drop" in body for body in asked] == [True, False]
            assert [b"keep" in body for body in asked] == [True, True]

    run(scenario)
