"""A client's view of the cluster, with brokers whose responses a test chooses."""

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
from stratalog.client.metadata import MetadataSnapshot
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
    settings = {"retry_backoff_ms": 10, "reconnect_backoff_ms": 10, "reconnect_backoff_max_ms": 50} | options
    cluster = Cluster(CommonSettings.from_options(servers, settings))
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
    """Start brokers 1 and 2 of one cluster; broker 1 leads all partitions."""
    with ExitStack() as stack:
        brokers = [stack.enter_context(FakeBroker({"orders": 1})) for _ in range(2)]
        nodes = [
            {"node_id": number, "host": "127.0.0.1", "port": fake.port, "rack": None}
            for number, fake in enumerate(brokers, 1)
        ]
        for fake in brokers:
            fake.say(METADATA, lambda request, fake=fake: fake.metadata(brokers=nodes))  # type: ignore[misc]
        yield brokers


def test_metadata_is_a_snapshot_of_the_brokers_response(broker: FakeBroker) -> None:
    async def scenario() -> None:
        async with clustered(broker.address) as cluster:
            assert cluster.metadata.topics == {}
            metadata = await cluster.refresh(["orders"])
            assert metadata is cluster.metadata
            assert (metadata.cluster_id, metadata.controller_id) == ("fake", 1)
            assert metadata.nodes[1].port == broker.port
            assert [info.partition for info in metadata.topics["orders"].partitions] == [0, 1, 2]
            leader = metadata.leader_of("orders", 2)
            assert leader is not None
            assert (leader.leader, leader.leader_epoch) == (1, 0)
            assert metadata.leader_of("orders", 3) is None
            assert metadata.leader_of("orders", -1) is None
            assert metadata.leader_of("others", 0) is None
            topic_id = metadata.topics["orders"].id
            assert topic_id is not None
            assert metadata.name_of(topic_id) == "orders"

    run(scenario)


def test_simultaneous_refreshes_share_one_request(broker: FakeBroker) -> None:
    async def scenario() -> None:
        async with clustered(broker.address) as cluster:
            await asyncio.gather(*[cluster.refresh([f"topic-{number}"]) for number in range(50)])
            assert broker.requests.count(METADATA) <= 2
            assert broker.connections == 1

    run(scenario)


def test_a_refresh_during_a_request_gets_the_next_response(broker: FakeBroker) -> None:
    async def scenario() -> None:
        async with clustered(broker.address) as cluster:
            first = asyncio.create_task(cluster.refresh())
            await until(lambda: METADATA in broker.requests)
            broker.topics["late"] = 1
            assert "late" in (await cluster.refresh(["late"])).topics
            await first

    run(scenario)


def test_unreachable_bootstrap_servers_are_skipped(broker: FakeBroker) -> None:
    async def scenario() -> None:
        async with clustered(f"{NOWHERE},{broker.address},127.0.0.1:2") as cluster:
            assert (await cluster.refresh(timeout=SECONDS)).nodes

    run(scenario)


def test_a_broker_that_starts_late_is_reached() -> None:
    async def scenario() -> None:
        with FakeBroker() as broker:
            broker.say(ApiKey.API_VERSIONS, CLOSE)
            async with clustered(broker.address) as cluster:
                waiting = asyncio.create_task(cluster.refresh())
                await until(lambda: broker.connections >= 3)
                broker.say(ApiKey.API_VERSIONS, versions())
                assert (await asyncio.wait_for(waiting, SECONDS)).nodes

    run(scenario)


def test_a_metadata_timeout_has_the_reason() -> None:
    async def scenario() -> None:
        async with clustered(NOWHERE) as cluster:
            with pytest.raises(RequestTimeoutError, match=r"within 0\.2 s: 127\.0\.0\.1:1 can't be reached"):
                await cluster.refresh(timeout=0.2)

    run(scenario)


def test_a_moved_cluster_is_reached_through_the_bootstrap_servers(broker: FakeBroker) -> None:
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


def test_a_broker_with_a_new_address_is_connected_to_at_that_address(broker: FakeBroker) -> None:
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


def test_the_bootstrap_connection_is_reused_for_its_broker(broker: FakeBroker) -> None:
    async def scenario() -> None:
        async with clustered(broker.address) as cluster:
            await cluster.refresh()
            await cluster.refresh()
            await cluster.ask_any(METADATA, {"topics": [], "include_topic_authorized_operations": False})
            assert broker.connections == 1

    run(scenario)


def test_a_waiting_fetch_does_not_delay_other_requests(broker: FakeBroker) -> None:
    async def scenario() -> None:
        async with clustered(broker.address) as cluster:
            await cluster.refresh()
            data = await cluster.connection(1)
            waiting = data.exchange(ApiKey.FETCH, 12, [b""], timeout=SECONDS)  # the broker never responds
            await cluster.refresh(timeout=SECONDS)
            assert await cluster.connection(1) is data
            assert await cluster.connection(1, Purpose.CONTROL) is not data
            assert not waiting.done()
            waiting.cancel()

    run(scenario)


def test_simultaneous_callers_share_a_connection_attempt(broker: FakeBroker) -> None:
    async def scenario() -> None:
        async with clustered(broker.address) as cluster:
            await cluster.refresh()
            before = broker.connections
            connections = await asyncio.gather(*[cluster.connection(1) for _ in range(20)])
            assert len(set(connections)) == 1
            assert broker.connections == before + 1

    run(scenario)


def test_a_connection_attempt_survives_the_cancellation_of_its_first_caller(broker: FakeBroker) -> None:
    async def scenario() -> None:
        async with clustered(broker.address) as cluster:
            await cluster.refresh()
            first = asyncio.create_task(cluster.connection(1))
            second = asyncio.create_task(cluster.connection(1))
            await asyncio.sleep(0)
            first.cancel()
            assert not (await second).is_closed

    run(scenario)


def test_a_broker_missing_in_metadata_is_unreachable(broker: FakeBroker) -> None:
    async def scenario() -> None:
        async with clustered(broker.address) as cluster:
            await cluster.refresh()
            with pytest.raises(BrokerUnreachableError, match="node 77 is not in the cluster's metadata"):
                await cluster.connection(77)

    run(scenario)


def test_a_lost_connection_triggers_a_metadata_request(broker: FakeBroker) -> None:
    async def scenario() -> None:
        async with clustered(broker.address) as cluster:
            await cluster.refresh()
            await cluster.connection(1)
            before = broker.requests.count(METADATA)
            broker.cut()
            await until(lambda: broker.requests.count(METADATA) > before)

    run(scenario)


def test_old_metadata_is_refreshed(broker: FakeBroker) -> None:
    async def scenario() -> None:
        async with clustered(broker.address, metadata_max_age_ms=20) as cluster:
            await cluster.refresh()
            await until(lambda: broker.requests.count(METADATA) >= 4)

    run(scenario)


def test_refresh_soon_during_a_refresh_causes_another_refresh(broker: FakeBroker) -> None:
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


def test_listeners_get_each_snapshot_although_one_of_them_raises(broker: FakeBroker) -> None:
    async def scenario() -> None:
        seen: list[MetadataSnapshot] = []

        def broken(_: MetadataSnapshot) -> None:
            raise ZeroDivisionError

        async with clustered(broker.address) as cluster:
            cluster.on_change(broken)
            cluster.on_change(seen.append)
            assert [await cluster.refresh(), await cluster.refresh()] == seen

    run(scenario)


def test_a_stale_response_does_not_bring_back_an_old_leader(broker: FakeBroker) -> None:
    async def scenario() -> None:
        async with clustered(broker.address) as cluster:

            async def leader(**changed: Any) -> int:
                broker.say(METADATA, broker.metadata(topics=[topic("orders", 0, partitions=[partition(0, **changed)])]))
                leader_info = (await cluster.refresh(["orders"])).leader_of("orders", 0)
                assert leader_info is not None
                return leader_info.leader

            assert await leader(leader_id=2, leader_epoch=5) == 2
            assert await leader(leader_id=1, leader_epoch=4) == 2
            assert await leader(leader_id=1, leader_epoch=6) == 1

    run(scenario)


def test_a_recreated_topic_does_not_inherit_leader_epochs(broker: FakeBroker) -> None:
    async def scenario() -> None:
        async with clustered(broker.address) as cluster:
            old = topic("orders", 0, partitions=[partition(0, leader_id=2, leader_epoch=5)])
            broker.say(METADATA, broker.metadata(topics=[old]))
            await cluster.refresh(["orders"])
            broker.say(METADATA, broker.metadata(topics=[old | {"topic_id": None, "partitions": [partition(0)]}]))
            leader_info = (await cluster.refresh()).leader_of("orders", 0)
            assert leader_info is not None
            assert leader_info.leader == 1

    run(scenario)


def test_a_partition_without_a_leader_has_no_leader_in_metadata(broker: FakeBroker) -> None:
    async def scenario() -> None:
        async with clustered(broker.address) as cluster:
            headless = partition(0, error_code=int(ErrorCode.leader_not_available), leader_id=-1)
            broker.say(METADATA, broker.metadata(topics=[topic("orders", 0, partitions=[headless])]))
            metadata = await cluster.refresh(["orders"])
            assert metadata.leader_of("orders", 0) is None
            assert len(metadata.topics["orders"].partitions) == 1

    run(scenario)


def test_a_missing_topic_is_waited_for(broker: FakeBroker) -> None:
    def later(request: Request) -> dict[str, Any]:
        missing = topic("new", 0, error_code=int(ErrorCode.unknown_topic_or_partition))
        return broker.metadata(topics=[topic("new", 2) if broker.requests.count(METADATA) > 3 else missing])

    async def scenario() -> None:
        broker.say(METADATA, later)
        async with clustered(broker.address) as cluster:
            assert len((await cluster.topic("new", timeout=SECONDS)).partitions) == 2

    run(scenario)


def test_the_error_for_a_topic_that_stays_missing_names_it(broker: FakeBroker) -> None:
    async def scenario() -> None:
        async with clustered(broker.address) as cluster:
            with pytest.raises(UnknownTopicOrPartitionError, match=r"topic 'missing'.*create the topic"):
                await cluster.topic("missing", timeout=0.2)

    run(scenario)


def test_a_topic_name_that_is_not_valid_is_refused_at_once(broker: FakeBroker) -> None:
    async def scenario() -> None:
        wrong = topic("a/b", 0, error_code=int(ErrorCode.invalid_topic_exception))
        broker.say(METADATA, broker.metadata(topics=[wrong]))
        async with clustered(broker.address) as cluster:
            with pytest.raises(ValueError, match="INVALID_TOPIC_EXCEPTION"):
                await cluster.topic("a/b", timeout=SECONDS)

    run(scenario)


@pytest.mark.parametrize("numbers", [[0, 2], [0, 0], [-1], [2**31 - 1]])
def test_gaps_between_partition_numbers_are_an_error(broker: FakeBroker, numbers: list[int]) -> None:
    async def scenario() -> None:
        bad = topic("orders", 0, partitions=[partition(number) for number in numbers])
        broker.say(METADATA, broker.metadata(topics=[bad]))
        async with clustered(broker.address) as cluster:
            with pytest.raises(MalformedResponseError, match="'orders' has partitions"):
                await cluster.refresh(["orders"])

    run(scenario)


def test_a_broker_that_is_too_old_is_an_error(broker: FakeBroker) -> None:
    async def scenario() -> None:
        broker.say(ApiKey.API_VERSIONS, versions(METADATA=(0, 1)))
        async with clustered(broker.address) as cluster:
            with pytest.raises(UnsupportedVersionError, match="versions 0 to 1 of METADATA"):
                await cluster.refresh()

    run(scenario)


@pytest.mark.parametrize("response", [{"brokers": []}, {"error_code": int(ErrorCode.rebootstrap_required)}])
def test_a_broker_without_metadata_is_retried_until_it_has_some(broker: FakeBroker, response: dict[str, Any]) -> None:
    async def scenario() -> None:
        broker.say(METADATA, broker.metadata(**response))
        async with clustered(broker.address) as cluster:
            waiting = asyncio.create_task(cluster.refresh())
            await until(lambda: broker.requests.count(METADATA) >= 3)
            broker.say(METADATA, broker.metadata())
            await asyncio.wait_for(waiting, SECONDS)

    run(scenario)


def test_a_request_to_any_broker_survives_the_loss_of_one(pair: list[FakeBroker]) -> None:
    async def scenario() -> None:
        async with clustered(pair[0].address) as cluster:
            await cluster.refresh()
            pair[0].close()
            for fake in pair:
                fake.say(ApiKey.LIST_GROUPS, {"error_code": 0, "groups": []})
            assert (await cluster.ask_any(ApiKey.LIST_GROUPS, {}, timeout=SECONDS)).groups == ()
            assert ApiKey.LIST_GROUPS in pair[1].requests

    run(scenario)


def test_a_moved_controller_is_found(pair: list[FakeBroker]) -> None:
    def refuse(request: Request) -> dict[str, Any]:
        for fake in pair:
            metadata = fake.metadata(controller_id=2)
            metadata["brokers"] = [
                {"node_id": number, "host": "127.0.0.1", "port": member.port, "rack": None}
                for number, member in enumerate(pair, 1)
            ]
            fake.say(METADATA, metadata)
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
    fields = {"key": "g", "node_id": node, "host": "127.0.0.1", "port": port, "error_code": code, "error_message": None}
    return fields | {"coordinators": [fields]}


def beat(code: ErrorCode) -> dict[str, Any]:
    return {"error_code": int(code)}


HEARTBEAT_BODY = {"group_id": "g", "generation_id": 1, "member_id": "m"}


@pytest.mark.parametrize("highest", [6, 3])
def test_a_coordinator_is_looked_up_once(broker: FakeBroker, highest: int) -> None:
    async def scenario() -> None:
        broker.say(ApiKey.API_VERSIONS, versions(FIND_COORDINATOR=(0, highest)))
        broker.say(ApiKey.FIND_COORDINATOR, found_at(1, broker.port))
        broker.say(ApiKey.HEARTBEAT, beat(ErrorCode.none))
        async with clustered(broker.address) as cluster:
            for _ in range(3):
                await cluster.ask_coordinator(GROUP, "g", ApiKey.HEARTBEAT, HEARTBEAT_BODY, timeout=SECONDS)
            assert broker.requests.count(ApiKey.FIND_COORDINATOR) == 1

    run(scenario)


def test_a_coordinator_missing_in_metadata_is_reached(broker: FakeBroker) -> None:
    async def scenario() -> None:
        with FakeBroker() as other:
            broker.say(ApiKey.FIND_COORDINATOR, found_at(9, other.port))
            other.say(ApiKey.HEARTBEAT, beat(ErrorCode.none))
            async with clustered(broker.address) as cluster:
                await cluster.ask_coordinator(GROUP, "g", ApiKey.HEARTBEAT, HEARTBEAT_BODY, timeout=SECONDS)
                assert ApiKey.HEARTBEAT in other.requests

    run(scenario)


@pytest.mark.parametrize("answer", [beat(ErrorCode.not_coordinator), beat(ErrorCode.coordinator_not_available), CLOSE])
def test_a_moved_coordinator_is_looked_up_again(pair: list[FakeBroker], answer: Any) -> None:
    def moved(request: Request) -> Any:
        for fake in pair:
            fake.say(ApiKey.FIND_COORDINATOR, found_at(2, pair[1].port))
        return answer

    async def scenario() -> None:
        for fake in pair:
            fake.say(ApiKey.FIND_COORDINATOR, found_at(1, pair[0].port))
        pair[0].say(ApiKey.HEARTBEAT, moved)
        pair[1].say(ApiKey.HEARTBEAT, beat(ErrorCode.none))
        async with clustered(pair[0].address) as cluster:
            await cluster.ask_coordinator(GROUP, "g", ApiKey.HEARTBEAT, HEARTBEAT_BODY, timeout=SECONDS)
            assert await cluster.coordinator(GROUP, "g") == 2

    run(scenario)


def test_a_loading_coordinator_is_waited_for(broker: FakeBroker) -> None:
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


def test_a_coordinator_that_stays_unavailable_is_an_error(broker: FakeBroker) -> None:
    async def scenario() -> None:
        broker.say(ApiKey.FIND_COORDINATOR, found_at(-1, -1, int(ErrorCode.coordinator_not_available)))
        async with clustered(broker.address) as cluster:
            with pytest.raises(CoordinatorError, match="group 'g'"):
                await cluster.coordinator(GROUP, "g", timeout=0.2)

    run(scenario)


def test_an_unauthorized_group_is_refused_at_once(broker: FakeBroker) -> None:
    async def scenario() -> None:
        broker.say(ApiKey.FIND_COORDINATOR, found_at(-1, -1, int(ErrorCode.group_authorization_failed)))
        async with clustered(broker.address) as cluster:
            with pytest.raises(GroupAuthorizationError, match="administrator"):
                await cluster.coordinator(GROUP, "g", timeout=SECONDS)

    run(scenario)


def test_a_broker_that_does_not_respond_causes_a_timeout(broker: FakeBroker) -> None:
    async def scenario() -> None:
        async with clustered(broker.address, request_timeout_ms=50) as cluster:
            await cluster.refresh()
            with pytest.raises(RequestTimeoutError, match="LIST_GROUPS"):
                await cluster.request(1, ApiKey.LIST_GROUPS, {})
            with pytest.raises(RequestTimeoutError):
                await cluster.ask_any(ApiKey.LIST_GROUPS, {}, timeout=0.2)

    run(scenario)


def test_close_ends_all_waiting_calls(broker: FakeBroker) -> None:
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


def test_idle_connections_are_closed(broker: FakeBroker) -> None:
    async def scenario() -> None:
        async with clustered(broker.address, connections_max_idle_ms=40) as cluster:
            await cluster.refresh()
            connection = await cluster.connection(1)
            await until(lambda: connection.is_closed)
            assert not (await cluster.connection(1)).is_closed

    run(scenario)


def test_untracked_topics_are_not_requested(broker: FakeBroker) -> None:
    bodies: list[bytes] = []

    def note(request: Request) -> dict[str, Any]:
        bodies.append(bytes(request.body))
        return broker.metadata()

    async def scenario() -> None:
        broker.say(METADATA, note)
        async with clustered(broker.address) as cluster:
            cluster.track_topics(["keep", "drop"])
            await cluster.refresh()
            cluster.untrack_topics(["drop", "never-wanted"])
            await cluster.refresh()
            assert [b"drop" in body for body in bodies] == [True, False]
            assert [b"keep" in body for body in bodies] == [True, True]

    run(scenario)
