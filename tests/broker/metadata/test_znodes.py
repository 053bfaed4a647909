from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.broker.metadata import znodes
from stratalog.broker.metadata.cluster_view import ClusterTopic, PartitionId
from stratalog.broker.metadata.partition_state import PartitionState
from stratalog.broker.metadata.znodes import BrokerCondition, BrokerEndpoint, ControllerClaim, UnreadableZnodeError

TOPIC_ID = uuid.UUID(int=7)
STATE = PartitionState((1, 2, 3), 1, 5, (1,), 10**12, (2,), -1, (3,), (2,), 2, 9)

PARSERS: list[Callable[[bytes], object]] = [
    znodes.parse_cluster_id,
    lambda data: znodes.parse_endpoint("/brokers/ids/1", data),
    lambda data: znodes.parse_condition("/brokers/registrations/1", data),
    znodes.parse_claim,
    znodes.parse_controller_epoch,
    znodes.parse_producer_ids,
    lambda data: znodes.parse_settings("/config/brokers/1", data),
    lambda data: znodes.parse_topic("orders", data, 0),
    lambda data: znodes.parse_state("/partitions/x/0", data, 0),
]


def test_the_bytes_of_a_znode_change() -> None:
    assert json.loads(znodes.format_state(STATE)) == {
        "version": 1,
        "replicas": [1, 2, 3],
        "leader": 1,
        "leader_epoch": 5,
        "leader_broker_epoch": 10**12,
        "isr": [1],
        "min_insync": 2,
        "elr": [2],
        "adding": [3],
        "removing": [2],
    }
    assert znodes.format_state(PartitionState((0,), 0, 0, (0,), last_known_leader=0)) == (
        b'{"version":1,"replicas":[0],"leader":0,"leader_epoch":0,"leader_broker_epoch":-1,"isr":[0],"min_insync":1,'
        b'"last_known_leader":0}'
    )
    topic = ClusterTopic("orders", TOPIC_ID, 3, {"retention.ms": "5"}, 2)
    assert znodes.format_topic(topic) == (
        b'{"version":1,"id":"00000000-0000-0000-0000-000000000007","partitions":3,"min_insync":2,'
        b'"settings":{"retention.ms":"5"}}'
    )
    assert znodes.partition_path(PartitionId(TOPIC_ID, 2)) == f"/partitions/{TOPIC_ID}/2"


def test_content_is_read_back_differently() -> None:
    assert znodes.parse_state("/p", znodes.format_state(STATE), 9) == STATE
    topic = ClusterTopic("orders", TOPIC_ID, 3, {"retention.ms": "5"}, 2, 4)
    assert znodes.parse_topic("orders", znodes.format_topic(topic), 4) == topic
    endpoint = BrokerEndpoint("host", 9092, None, 6000)
    assert znodes.parse_endpoint("/b", znodes.format_endpoint(endpoint)) == endpoint
    condition = BrokerCondition(lost_tail=True, is_leaving=False)
    assert znodes.parse_condition("/b", znodes.format_condition(condition)) == condition
    assert znodes.parse_claim(znodes.format_claim(ControllerClaim(3, 4))) == ControllerClaim(3, 4)
    assert znodes.parse_producer_ids(znodes.format_producer_ids(77)) == 77


@given(st.sampled_from(PARSERS), st.binary(max_size=60))
def test_rubbish_is_accepted(parse: Callable[[bytes], object], data: bytes) -> None:
    with pytest.raises(UnreadableZnodeError, match=r"^znode /"):
        parse(data)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
VALID: list[dict[str, Any]] = [
    json.loads(znodes.format_state(STATE)),
    json.loads(znodes.format_topic(ClusterTopic("orders", TOPIC_ID, 3))),
    json.loads(znodes.format_endpoint(BrokerEndpoint("host", 9092, "rack", 6000))),
    json.loads(znodes.format_condition(BrokerCondition(lost_tail=False, is_leaving=False))),
    json.loads(znodes.format_claim(ControllerClaim(1, 1))),
]


@given(st.sampled_from(VALID), st.sampled_from(PARSERS), st.data(), json_values)
def test_a_field_with_rubbish_crashes_the_broker(
    valid: dict[str, Any], parse: Callable[[bytes], object], data: st.DataObject, value: object
) -> None:
    changed = valid | {data.draw(st.sampled_from(sorted(valid))): value}
    try:
        parse(json.dumps(changed).encode())
    except UnreadableZnodeError as error:
        assert str(error).startswith("znode /")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"leader": 7}, "field 'leader' is 7; it must be -1, or a member of the ISR"),
        ({"leader": True}, "field 'leader' is True; it must be a number"),
        ({"replicas": []}, "field 'replicas'"),
        ({"replicas": [1, 1]}, "field 'replicas'"),
        ({"isr": [9], "leader": -1}, "field 'isr'"),
        ({"elr": [1]}, "field 'elr'"),
        ({"removing": [1, 2, 3]}, "field 'removing'"),
        ({"leader_epoch": 2**31}, "field 'leader_epoch'"),
        ({"version": 2}, "format version 2, and this broker knows versions up to 1"),
        ({"version": None}, "field 'version'"),
    ],
)
def test_a_state_that_breaks_a_rule_is_accepted(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UnreadableZnodeError, match=f"znode /p: .*{message}"):
        znodes.parse_state("/p", json.dumps(VALID[0] | changes).encode(), 0)


def test_a_topic_with_two_billion_partitions_uses_up_the_memory() -> None:
    data = json.dumps(VALID[1] | {"partitions": 2_000_000_000}).encode()
    with pytest.raises(UnreadableZnodeError, match="znode /topics/orders: field 'partitions'"):
        znodes.parse_topic("orders", data, 0)


def test_a_topic_name_leads_out_of_the_data_directory() -> None:
    with pytest.raises(UnreadableZnodeError, match="topic name"):
        znodes.parse_topic("..", znodes.format_topic(ClusterTopic("..", TOPIC_ID, 1)), 0)


def test_deep_nesting_crashes_the_broker() -> None:
    with pytest.raises(UnreadableZnodeError, match="not JSON"):
        znodes.parse_cluster_id(b"[" * 100_000)


def test_a_znode_with_another_name_is_taken_for_an_entry() -> None:
    assert znodes.change_number("c-0000000012") == 12
    assert znodes.change_number(znodes.change_path(12)) == 12
    for name in ("c-12", "d-0000000012", "c-000000001x", "c-", "", "xc-0000000012", "c-²²²²²²²²²²"):
        assert znodes.change_number(name) is None
    assert znodes.parse_node_id("12") == 12
    for name in ("012", "-1", "", "x", "²", "1.0"):
        assert znodes.parse_node_id(name) is None


def test_settings_of_all_brokers_are_those_of_a_broker() -> None:
    assert znodes.settings_path("") == "/config/brokers/default"
    assert znodes.settings_node_id("default") == ""
    assert znodes.settings_node_id("4") == "4"


def test_the_state_of_a_partition_loses_a_field() -> None:
    assert replace(STATE, partition_epoch=3) == znodes.parse_state("/p", znodes.format_state(STATE), 3)
