"""Requests about consumer groups, classic and of KIP-848: ListGroups, DescribeGroups, ConsumerGroupDescribe and
DeleteGroups. A request about a group goes to its coordinator."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from stratalog.client.administration.outcomes import Collected, Outcomes
from stratalog.client.cluster import Cluster, CoordinatorKind
from stratalog.client.errors import ClientError, GroupNotFoundError, Subject, UnsupportedVersionError, error_of
from stratalog.client.groups.member_data import decode_assignment
from stratalog.client.metadata import Node, TopicPartition
from stratalog.errors import MalformedResponseError
from stratalog.protocol.api_keys import ApiKey
from stratalog.protocol.error_codes import ErrorCode

CONSUMER = "consumer"  # the protocol type of consumers in classic groups, and the type of KIP-848 groups
CLASSIC = "classic"
_FIRST_WITH_STATES = 4  # of ListGroups
_FIRST_WITH_TYPES = 5
_AT_ONCE = 64  # groups in flight; with thousands at once, the last requests would wait past their timeout


@dataclass(frozen=True, slots=True)
class GroupListing:
    name: str
    state: str  # empty from brokers before Kafka 2.6
    type: str  # classic, consumer, ...; empty from brokers before Kafka 3.8
    protocol_type: str


@dataclass(frozen=True, slots=True)
class GroupMember:
    id: str
    client_id: str
    host: str
    assignment: tuple[TopicPartition, ...]
    instance_id: str | None = None
    epoch: int | None = None  # None in classic groups
    target: tuple[TopicPartition, ...] | None = None  # the partitions it will own after the rebalance; None likewise


@dataclass(frozen=True, slots=True)
class GroupDescription:
    name: str
    state: str
    type: str  # classic or consumer
    assignor: str
    coordinator: Node
    members: tuple[GroupMember, ...]
    epoch: int | None = None  # None for classic groups
    protocol_type: str = CONSUMER


async def list_groups(
    cluster: Cluster, states: Iterable[str], types: Iterable[str], timeout: float | None
) -> list[GroupListing]:
    """List the groups of all brokers. Each broker lists the groups that it coordinates."""
    body = {"states_filter": list(states), "types_filter": list(types)}
    lowest = _FIRST_WITH_TYPES if body["types_filter"] else _FIRST_WITH_STATES if body["states_filter"] else 0
    await cluster.retry(lambda seconds: cluster.refresh(timeout=seconds), timeout)

    async def ask(node: int) -> Any:
        async def attempt(seconds: float) -> Any:
            response = await cluster.request(node, ApiKey.LIST_GROUPS, body, lowest=lowest, timeout=seconds)
            if response.error_code != ErrorCode.none:
                raise error_of(response.error_code, about=f"the groups of broker {node}")
            return response

        return await cluster.retry(attempt, timeout)

    responses = await asyncio.gather(*[ask(node) for node in cluster.metadata.nodes])
    by_name = {group.group_id: group for response in responses for group in response.groups}
    return [
        GroupListing(
            name, getattr(group, "group_state", ""), getattr(group, "group_type", "").lower(), group.protocol_type
        )
        for name, group in sorted(by_name.items())
    ]


async def describe_groups(
    cluster: Cluster, names: Iterable[str], timeout: float | None
) -> Outcomes[str, GroupDescription]:
    requested = list(dict.fromkeys(names))
    collected: Collected[str, GroupDescription] = Collected({name: Subject("group", name) for name in requested})

    slots = asyncio.Semaphore(_AT_ONCE)

    async def describe(name: str) -> None:
        try:
            async with slots:
                collected.results[name] = await _describe(cluster, name, timeout)
        except ClientError as error:
            collected.fail(name, error)

    await asyncio.gather(*[describe(name) for name in requested])
    return collected.outcomes()


async def _describe(cluster: Cluster, name: str, timeout: float | None) -> GroupDescription:
    """Describe a group as a KIP-848 group, or as a classic one if it isn't one or the broker does not know them."""
    try:
        return await _describe_consumer_group(cluster, name, timeout)
    except (GroupNotFoundError, UnsupportedVersionError):
        return await _describe_classic_group(cluster, name, timeout)


async def _describe_consumer_group(cluster: Cluster, name: str, timeout: float | None) -> GroupDescription:
    body = {"group_ids": [name], "include_authorized_operations": False}
    group = await _only_group(cluster, ApiKey.CONSUMER_GROUP_DESCRIBE, name, body, timeout)
    members = tuple(
        GroupMember(
            member.member_id,
            member.client_id,
            member.client_host,
            _partitions(member.assignment),
            member.instance_id,
            member.member_epoch,
            _partitions(member.target_assignment),
        )
        for member in group.members
    )
    node = await _coordinator(cluster, name, timeout)
    return GroupDescription(name, group.group_state, CONSUMER, group.assignor_name, node, members, group.group_epoch)


async def _describe_classic_group(cluster: Cluster, name: str, timeout: float | None) -> GroupDescription:
    body = {"groups": [name], "include_authorized_operations": False}
    group = await _only_group(cluster, ApiKey.DESCRIBE_GROUPS, name, body, timeout)
    if group.group_state == "Dead":  # before version 6, the state of a group that does not exist
        raise error_of(ErrorCode.group_id_not_found, about=Subject("group", name))
    members = tuple(
        GroupMember(
            member.member_id,
            member.client_id,
            member.client_host,
            _classic_partitions(member.member_assignment, group.protocol_type),
            getattr(member, "group_instance_id", None),
        )
        for member in group.members
    )
    node = await _coordinator(cluster, name, timeout)
    return GroupDescription(
        name, group.group_state, CLASSIC, group.protocol_data, node, members, protocol_type=group.protocol_type
    )


async def _only_group(cluster: Cluster, key: ApiKey, name: str, body: dict[str, Any], timeout: float | None) -> Any:
    response = await cluster.ask_coordinator(CoordinatorKind.GROUP, name, key, body, timeout=timeout)
    for group in response.groups:
        if group.group_id == name:
            if group.error_code != ErrorCode.none:
                raise error_of(group.error_code, getattr(group, "error_message", None), about=Subject("group", name))
            return group
    raise MalformedResponseError(f"group {name!r}: the coordinator's response does not mention it")


async def _coordinator(cluster: Cluster, name: str, timeout: float | None) -> Node:
    return cluster.node(await cluster.coordinator(CoordinatorKind.GROUP, name, timeout=timeout))


def _partitions(assignment: Any) -> tuple[TopicPartition, ...]:
    return tuple(
        sorted(
            TopicPartition(topic.topic_name, index)
            for topic in assignment.topic_partitions
            for index in topic.partitions
        )
    )


def _classic_partitions(assignment: bytes, protocol_type: str) -> tuple[TopicPartition, ...]:
    """Decode a consumer's assignment. Return () for other protocol types, whose members define their own format."""
    if not assignment or protocol_type != CONSUMER:
        return ()
    try:
        return tuple(sorted(decode_assignment(assignment).partitions))
    except MalformedResponseError:
        return ()


async def delete_groups(cluster: Cluster, names: Iterable[str], timeout: float | None) -> Outcomes[str, None]:
    requested = list(dict.fromkeys(names))
    collected: Collected[str, None] = Collected({name: Subject("group", name) for name in requested})

    slots = asyncio.Semaphore(_AT_ONCE)

    async def delete(name: str) -> None:
        body = {"groups_names": [name]}
        try:
            async with slots:
                response = await cluster.ask_coordinator(
                    CoordinatorKind.GROUP, name, ApiKey.DELETE_GROUPS, body, timeout=timeout
                )
            for deleted in response.results:
                collected.take(deleted.group_id, deleted, None)
        except ClientError as error:
            collected.fail(name, error)

    await asyncio.gather(*[delete(name) for name in requested])
    return collected.outcomes()
