"""Groups and members that waste memory or time, or claim to be another member."""

from __future__ import annotations

from struct import Struct
from typing import Any

import pytest

from stratalog.protocol.api_keys import ApiKey
from stratalog.protocol.error_codes import ErrorCode
from tests.broker.bad_input.client import RawClient
from tests.broker.bad_input.conftest import Attacked
from tests.broker.bad_input.healthy import TOPIC as HEALTHY
from tests.broker.bad_input.memory import MB, PeakMemory
from tests.protocol.kio_messages import framed, request_body, request_frame, request_header

MOST = 2**31 - 1
LONG_ID = "g" * (32 * 1024)
LONGEST_OLD_ID = "g" * (2**15 - 1)
STATE_LIMIT = 40 * MB


@pytest.fixture(scope="module")
def settings() -> dict[str, object]:
    return {"group.initial.rebalance.delay.ms": 0, "stratalog.max.coordinator.state.bytes": STATE_LIMIT}


def join(**given: Any) -> dict[str, Any]:
    return {
        "group_id": "attacked",
        "session_timeout": 10_000,
        "rebalance_timeout": 1000,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": b"mine"}],
    } | given


def joined(client: RawClient, version: int = 9, **given: Any) -> Any:
    """Join, with a second request if the broker requires a member id."""
    answer = client.request(ApiKey.JOIN_GROUP, join(**given), version)
    if answer.error_code == ErrorCode.member_id_required:
        answer = client.request(ApiKey.JOIN_GROUP, join(**given) | {"member_id": answer.member_id}, version)
    return answer


# Ids


@pytest.mark.parametrize("group_id", [LONGEST_OLD_ID, LONG_ID, "g" * 3 * MB], ids=["32767", "32 KiB", "3 MiB"])
def test_a_giant_group_id_takes_no_memory(
    attacked: Attacked, peak_memory: PeakMemory, client: RawClient, group_id: str
) -> None:
    peak_memory.reset()
    before = attacked.coordinator_state()
    errors = {
        joined(client, group_id=group_id).error_code,
        client.request(ApiKey.HEARTBEAT, {"group_id": group_id, "member_id": "m"}).error_code,
        client.request(ApiKey.SYNC_GROUP, {"group_id": group_id, "member_id": "m"}).error_code,
        client.request(
            ApiKey.CONSUMER_GROUP_HEARTBEAT, {"group_id": group_id, "member_id": "m", "member_epoch": 0}
        ).error_code,
    }
    assert ErrorCode.unknown_server_error not in errors
    if len(group_id) > 2**15:
        assert ErrorCode.none not in errors
    assert attacked.coordinator_state() - before < MB
    peak_memory.check(60 * MB)


@pytest.mark.parametrize("member_id", [LONGEST_OLD_ID, LONG_ID, "m" * 3 * MB], ids=["32767", "32 KiB", "3 MiB"])
def test_a_giant_member_id_or_instance_id_takes_no_memory(
    attacked: Attacked, peak_memory: PeakMemory, client: RawClient, member_id: str
) -> None:
    peak_memory.reset()
    before = attacked.coordinator_state()
    answer = joined(client, member_id=member_id)
    assert answer.error_code in (ErrorCode.unknown_member_id, ErrorCode.invalid_request)
    joined(client, group_id="instances", group_instance_id=member_id)
    heartbeat = {"group_id": "giants", "member_id": member_id, "member_epoch": 0, "subscribed_topic_names": [HEALTHY]}
    client.request(ApiKey.CONSUMER_GROUP_HEARTBEAT, heartbeat | {"rebalance_timeout": 1000, "topic_partitions": []})
    assert attacked.coordinator_state() - before < MB
    peak_memory.check(80 * MB)


@pytest.mark.parametrize("group_id", ["", "a\nb", "\0", "..", "ü"])
def test_a_strange_group_id_is_refused_or_works(client: RawClient, group_id: str) -> None:
    expected = ErrorCode.invalid_group_id if group_id == "" else ErrorCode.none
    assert joined(client, group_id=group_id).error_code == expected


# Classic groups


def test_a_hundred_thousand_protocols_are_refused(
    attacked: Attacked, peak_memory: PeakMemory, client: RawClient
) -> None:
    peak_memory.reset()
    body = request_body(ApiKey.JOIN_GROUP, 0, join(protocols=[]))[:-4]
    for count in (90_000, 100_001):
        protocols = b"".join(b"\0\x05%05d\0\0\0\0" % number for number in range(count))
        frame = framed(request_header(ApiKey.JOIN_GROUP, 0) + body + Struct(">i").pack(count) + protocols)
        with attacked.client() as client:
            if not client.is_refused(frame):
                assert count < 100_000  # the response has an error
    groups = client_groups(attacked)
    assert "attacked" not in groups or groups["attacked"] != "Stable"
    peak_memory.check(80 * MB)


def client_groups(attacked: Attacked) -> dict[str, str]:
    with attacked.client() as client:
        return {each.group_id: each.group_state for each in client.request(ApiKey.LIST_GROUPS, {}).groups}


@pytest.mark.parametrize("timeouts", [(0, 1000), (-1, 1000), (MOST, 1000), (1, 1), (10_000, MOST)])
def test_timeouts_beyond_the_limits_are_refused_or_limited(client: RawClient, timeouts: tuple[int, int]) -> None:
    session, rebalance = timeouts
    answer = joined(client, group_id="timed", session_timeout=session, rebalance_timeout=rebalance)
    expected = ErrorCode.none if session == 10_000 else ErrorCode.invalid_session_timeout
    assert answer.error_code == expected
    client.request(ApiKey.LEAVE_GROUP, {"group_id": "timed", "members": [{"member_id": answer.member_id}]})


def test_members_with_megabytes_of_metadata_stay_within_the_limit(attacked: Attacked, peak_memory: PeakMemory) -> None:
    peak_memory.reset()
    clients = [attacked.client() for _ in range(12)]
    for client in clients:
        protocols = [{"name": "range", "metadata": b"x" * 3 * MB}]
        client.send(request_frame(ApiKey.JOIN_GROUP, 3, join(group_id="heavy", protocols=protocols)))
    attacked.healthy.check()
    assert attacked.coordinator_state() <= STATE_LIMIT
    peak_memory.check(150 * MB)
    for client in clients:
        client.close()


def test_an_assignment_of_megabytes_is_refused(attacked: Attacked, peak_memory: PeakMemory, client: RawClient) -> None:
    member = joined(client, group_id="synced")
    assert member.error_code == ErrorCode.none
    before = attacked.coordinator_state()
    peak_memory.reset()
    assigned = [{"member_id": member.member_id, "assignment": b"x" * 3 * MB}]
    sync = {"group_id": "synced", "generation_id": member.generation_id, "member_id": member.member_id}
    names = {"protocol_type": "consumer", "protocol_name": "range"}
    answer = client.request(ApiKey.SYNC_GROUP, sync | names | {"assignments": assigned})
    assert answer.error_code != ErrorCode.none
    strangers = [{"member_id": f"nobody-{number}", "assignment": b"x" * 30} for number in range(50_000)]
    client.request(ApiKey.SYNC_GROUP, sync | names | {"assignments": strangers})
    assert attacked.coordinator_state() - before < MB
    peak_memory.check(100 * MB)


def test_forged_member_ids_and_generations_are_refused(attacked: Attacked, client: RawClient) -> None:
    member = joined(client, group_id="forged")
    mine = {"group_id": "forged", "generation_id": member.generation_id, "member_id": member.member_id}
    with attacked.client() as thief:
        for forged, expected in (
            ({"member_id": "somebody"}, ErrorCode.unknown_member_id),
            ({"generation_id": MOST}, ErrorCode.illegal_generation),
            ({"generation_id": -5}, ErrorCode.illegal_generation),
        ):
            assert thief.request(ApiKey.HEARTBEAT, mine | forged).error_code == expected
            offsets = {"name": HEALTHY, "partitions": [{"partition_index": 0, "committed_offset": 5}]}
            named = {"generation_id_or_member_epoch": (mine | forged)["generation_id"]}
            committed = thief.request(ApiKey.OFFSET_COMMIT, mine | forged | named | {"topics": [offsets]}, version=9)
            assert committed.topics[0].partitions[0].error_code == expected
    client.request(ApiKey.LEAVE_GROUP, {"group_id": "forged", "members": [{"member_id": member.member_id}]})


# KIP-848

_BOMBS = {
    "nested stars": "(a*)*b",
    "alternatives": "(a|aa)+$",
    "a large repetition": "a{100000}",
    "repetitions of repetitions": "((a{100}){100}){100}",
    "deep": "(" * 5000 + ")" * 5000,
    "long": "a|" * 50_000,
    "counted classes": "[a-z]{1,1000}[a-z]{1,1000}",
    "no pattern": "[",
    "a megabyte": "x" * MB,
}


@pytest.mark.parametrize("pattern", _BOMBS.values(), ids=_BOMBS)
def test_an_expensive_pattern_is_refused_or_harmless(
    attacked: Attacked, peak_memory: PeakMemory, client: RawClient, pattern: str
) -> None:
    peak_memory.reset()
    heartbeat = {
        "group_id": "patterns",
        "member_id": "patterned",
        "member_epoch": 0,
        "rebalance_timeout": 1000,
        "subscribed_topic_regex": pattern,
        "topic_partitions": [],
    }
    answer = client.request(ApiKey.CONSUMER_GROUP_HEARTBEAT, heartbeat)
    assert answer.error_code in (ErrorCode.none, ErrorCode.invalid_regular_expression, ErrorCode.invalid_request)
    client.request(ApiKey.CONSUMER_GROUP_HEARTBEAT, heartbeat | {"member_epoch": -1})
    peak_memory.check(80 * MB)


def test_a_subscription_to_very_many_names_is_refused(
    attacked: Attacked, peak_memory: PeakMemory, client: RawClient
) -> None:
    peak_memory.reset()
    before = attacked.coordinator_state()
    heartbeat = {
        "group_id": "names",
        "member_id": "greedy",
        "member_epoch": 0,
        "rebalance_timeout": 1000,
        "topic_partitions": [],
        "subscribed_topic_names": [f"topic-{number}" for number in range(90_000)],
    }
    answer = client.request(ApiKey.CONSUMER_GROUP_HEARTBEAT, heartbeat, version=1)
    assert answer.error_code == ErrorCode.unknown_server_error  # as in Kafka
    assert "max.message.bytes" in answer.error_message
    assert attacked.coordinator_state() - before < MB
    peak_memory.check(100 * MB)


def test_a_forged_member_epoch_is_fenced(client: RawClient) -> None:
    heartbeat = {"group_id": "epochs", "member_id": "member", "rebalance_timeout": 1000, "topic_partitions": []}
    subscribed = {"subscribed_topic_names": [HEALTHY]}
    assert client.request(ApiKey.CONSUMER_GROUP_HEARTBEAT, heartbeat | subscribed | {"member_epoch": 0}).error_code == 0
    for epoch in (MOST, 77, -3, -(2**31)):
        answer = client.request(ApiKey.CONSUMER_GROUP_HEARTBEAT, heartbeat | {"member_epoch": epoch})
        assert answer.error_code in (
            ErrorCode.fenced_member_epoch,
            ErrorCode.invalid_request,
            ErrorCode.unknown_member_id,
        ), epoch
    client.request(ApiKey.CONSUMER_GROUP_HEARTBEAT, heartbeat | {"member_epoch": -1})


# Offsets


def test_metadata_of_an_offset_that_is_too_long_is_refused(client: RawClient) -> None:
    offsets = {"partition_index": 0, "committed_offset": 5, "committed_metadata": "x" * 3 * MB}
    request: dict[str, Any] = {"group_id": "verbose", "generation_id_or_member_epoch": -1, "member_id": ""}
    topics = [{"name": HEALTHY, "partitions": [offsets]}]
    committed = client.request(ApiKey.OFFSET_COMMIT, request | {"topics": topics}, version=9)
    assert committed.topics[0].partitions[0].error_code == ErrorCode.offset_metadata_too_large


@pytest.mark.parametrize("index", [1, MOST, -1, -(2**31)])
def test_offsets_of_unknown_partitions_are_refused(client: RawClient, index: int) -> None:
    request: dict[str, Any] = {"group_id": "astray", "generation_id_or_member_epoch": -1, "member_id": ""}
    topics = [{"name": HEALTHY, "partitions": [{"partition_index": index, "committed_offset": 5}]}]
    committed = client.request(ApiKey.OFFSET_COMMIT, request | {"topics": topics}, version=9)
    assert committed.topics[0].partitions[0].error_code == ErrorCode.unknown_topic_or_partition


def test_reading_very_many_groups_does_not_create_them(
    attacked: Attacked, peak_memory: PeakMemory, client: RawClient
) -> None:
    peak_memory.reset()
    before = set(client_groups(attacked))
    names = [f"asked-for-{number}" for number in range(9_000)]
    client.request(ApiKey.DESCRIBE_GROUPS, {"groups": names})
    client.request(ApiKey.DELETE_GROUPS, {"groups_names": names})
    client.request(ApiKey.OFFSET_FETCH, {"groups": [{"group_id": name, "topics": None} for name in names]}, version=9)
    client.request(ApiKey.FIND_COORDINATOR, {"coordinator_keys": names})
    client.request(ApiKey.CONSUMER_GROUP_DESCRIBE, {"group_ids": names})
    assert set(client_groups(attacked)) == before
    peak_memory.check(100 * MB)


# State that stays in memory


def leave_all(client: RawClient, members: dict[str, str]) -> None:
    for group_id, member_id in members.items():
        client.request(ApiKey.LEAVE_GROUP, {"group_id": group_id, "members": [{"member_id": member_id}]})


def test_metadata_in_many_groups_is_refused_at_the_limit(
    attacked: Attacked, peak_memory: PeakMemory, client: RawClient
) -> None:
    peak_memory.reset()
    # Members that do not sync within their rebalance timeout are removed, which would make room for others.
    patient = {"session_timeout": 600_000, "rebalance_timeout": 600_000}
    protocols = [{"name": "range", "metadata": b"x" * MB}]
    answers = {
        f"fat-{number}": joined(client, group_id=f"fat-{number}", protocols=protocols, **patient)
        for number in range(100)
    }
    inside = {group: one.member_id for group, one in answers.items() if one.error_code == ErrorCode.none}
    assert 20 <= len(inside) <= 30, "three quarters of stratalog.max.coordinator.state.bytes"
    refused = {one.error_code for group, one in answers.items() if group not in inside}
    assert refused == {ErrorCode.group_max_size_reached}
    assert STATE_LIMIT // 2 < attacked.coordinator_state() <= STATE_LIMIT * 3 // 4
    peak_memory.check(100 * MB)
    assert "stratalog.max.coordinator.state.bytes" in attacked.process.logs
    # Existing members can continue.
    group = next(iter(inside))
    mine = {"group_id": group, "generation_id": answers[group].generation_id, "member_id": inside[group]}
    names = {"protocol_type": "consumer", "protocol_name": "range"}
    shares = [{"member_id": inside[group], "assignment": b"share"}]
    synced = client.request(ApiKey.SYNC_GROUP, mine | names | {"assignments": shares})
    assert synced.error_code in (
        ErrorCode.none,
        ErrorCode.unknown_server_error,
    )  # the group may be too large for a record
    # Members that leave make room for others.
    leave_all(client, inside)
    answer = joined(client, group_id="after", protocols=protocols)
    assert answer.error_code == ErrorCode.none
    leave_all(client, {"after": answer.member_id})


def test_subscriptions_in_many_kip_848_groups_are_refused_at_the_limit(
    attacked: Attacked, peak_memory: PeakMemory, client: RawClient
) -> None:
    peak_memory.reset()
    heartbeat = {"member_epoch": 0, "rebalance_timeout": 1000, "topic_partitions": []}
    names = [f"{number:05}" for number in range(30_000)]
    inside = []
    answer: Any = None
    for number in range(30):
        who = {"group_id": f"named-{number}", "member_id": f"m-{number}"}
        answer = client.request(ApiKey.CONSUMER_GROUP_HEARTBEAT, heartbeat | who | {"subscribed_topic_names": names})
        if answer.error_code != ErrorCode.none:
            break
        inside.append(who)
    assert answer.error_code == ErrorCode.group_max_size_reached
    assert "stratalog.max.coordinator.state.bytes" in answer.error_message
    assert attacked.coordinator_state() <= STATE_LIMIT * 3 // 4
    assert inside
    for who in inside:
        client.request(ApiKey.CONSUMER_GROUP_HEARTBEAT, who | {"member_epoch": -1})
    again = client.request(ApiKey.CONSUMER_GROUP_HEARTBEAT, heartbeat | inside[0] | {"subscribed_topic_names": names})
    assert again.error_code == ErrorCode.none
    client.request(ApiKey.CONSUMER_GROUP_HEARTBEAT, inside[0] | {"member_epoch": -1})
    peak_memory.check(100 * MB)


def test_transactional_ids_are_refused_at_the_limit(
    attacked: Attacked, peak_memory: PeakMemory, client: RawClient
) -> None:
    """Runs last, because transactional ids expire only after a week."""
    peak_memory.reset()
    errors = []
    for number in range(600):
        wanted = {"transactional_id": f"{number}-" + "t" * 30_000, "transaction_timeout": 1_000}
        errors.append(client.request(ApiKey.INIT_PRODUCER_ID, wanted, version=4).error_code)
        if errors[-1] != ErrorCode.none:
            break
    assert errors[-1] == ErrorCode.policy_violation
    assert set(errors[:-1]) == {ErrorCode.none}
    again = {"transactional_id": "0-" + "t" * 30_000, "transaction_timeout": 1_000}
    assert client.request(ApiKey.INIT_PRODUCER_ID, again, version=4).error_code == ErrorCode.none
    assert attacked.coordinator_state() <= STATE_LIMIT
    peak_memory.check(100 * MB)
