"""The APIs of KIP-848 consumer groups, whose partitions the broker assigns.

| key | API | versions | behaviour |
|---|---|---|---|
| 68 | ConsumerGroupHeartbeat | 0-1 | to join, stay, revoke partitions and leave; regular expressions from 1 |
| 69 | ConsumerGroupDescribe | 0-1 | members with current and target assignment; their type from 1 |

While a group is being upgraded or downgraded, its description includes the members that use the classic protocol.
Known gap: there are no ACLs, so every operation is authorized.
"""

from __future__ import annotations

import uuid
from typing import Any

from stratalog.broker.apis.groups import MOST_GROUPS, distinct
from stratalog.broker.groups.config import GroupConfig
from stratalog.broker.groups.consumer_coordinator import ConsumerGroups
from stratalog.broker.groups.consumer_group import ConsumerGroup, GroupTopics
from stratalog.broker.groups.consumer_member import ConsumerMember
from stratalog.broker.groups.consumer_records import Assignment
from stratalog.broker.groups.consumer_requests import GroupRefusedError, Heartbeat
from stratalog.broker.requests import Handler, Reply, RequestContext
from stratalog.protocol.api_keys import ApiKey
from stratalog.protocol.error_codes import ErrorCode
from stratalog.protocol.messages import to_ms

_CLASSIC_MEMBER = 0
_CONSUMER_MEMBER = 1
_NO_TOPIC = uuid.UUID(int=0)
_NOT_ASKED = -(2**31)
_ALL_OPERATIONS = sum(1 << code for code in (3, 6, 8, 10, 11))  # read, delete, describe, describe and alter configs


class ConsumerGroupApis:
    def __init__(self, groups: ConsumerGroups, topics: GroupTopics, config: GroupConfig) -> None:
        self._groups = groups
        self._topics = topics
        self._config = config

    def routes(self) -> dict[ApiKey, Handler]:
        return {
            ApiKey.CONSUMER_GROUP_HEARTBEAT: self.consumer_group_heartbeat,
            ApiKey.CONSUMER_GROUP_DESCRIBE: self.consumer_group_describe,
        }

    async def consumer_group_heartbeat(self, request: Any, context: RequestContext) -> Reply:
        try:
            answer = await self._groups.heartbeat(_heartbeat(request, context), context.api_version)
        except GroupRefusedError as refused:
            return {
                "error_code": refused.code,
                "error_message": refused.message,
                "member_epoch": 0,
                "heartbeat_interval": 0,
            }
        left = answer.member_epoch < 0
        return {
            "error_code": ErrorCode.none,
            "member_id": answer.member_id,
            "member_epoch": answer.member_epoch,
            "heartbeat_interval": 0 if left else self._groups.settings_of(request.group_id).heartbeat_interval_ms,
            "assignment": None if answer.assignment is None else _assignment(answer.assignment),
        }

    def consumer_group_describe(self, request: Any, _context: RequestContext) -> Reply:
        operations = _ALL_OPERATIONS if request.include_authorized_operations else _NOT_ASKED
        group_ids = distinct(request.group_ids, MOST_GROUPS, "ConsumerGroupDescribe")
        return {"groups": [self._describe(group_id, operations) for group_id in group_ids]}

    def _describe(self, group_id: str, operations: int) -> Reply:
        try:
            group = self._groups.describe(group_id)
        except GroupRefusedError as refused:
            return _undescribed(group_id, refused)
        return {
            "error_code": ErrorCode.none,
            "group_id": group_id,
            "group_state": group.state_name,
            "group_epoch": group.epoch,
            "assignment_epoch": group.assignment_epoch,
            "assignor_name": group.preferred_assignor(self._config.group_consumer_assignors),
            "members": [self._described_member(group, member) for member in group.members.values()],
            "authorized_operations": operations,
        }

    def _described_member(self, group: ConsumerGroup, member: ConsumerMember) -> Reply:
        return {
            "member_id": member.member_id,
            "instance_id": member.instance_id,
            "rack_id": member.rack_id,
            "member_epoch": member.member_epoch,
            "client_id": member.client_id,
            "client_host": member.client_host,
            "subscribed_topic_names": member.subscribed_topic_names,
            "subscribed_topic_regex": member.subscribed_topic_regex,
            "assignment": self._named(member.assigned),
            "target_assignment": self._named(group.target.get(member.member_id, {})),
            "member_type": _CONSUMER_MEMBER if member.classic is None else _CLASSIC_MEMBER,
        }

    def _named(self, assignment: Assignment) -> Reply:
        """Return partitions with the names of their topics, without deleted topics."""
        topics = [(self._topics.by_id(topic_id), partitions) for topic_id, partitions in assignment.items()]
        return {
            "topic_partitions": [
                {"topic_id": topic.id, "topic_name": topic.name, "partitions": sorted(partitions)}
                for topic, partitions in topics
                if topic is not None
            ]
        }


def _heartbeat(request: Any, context: RequestContext) -> Heartbeat:
    return Heartbeat(
        group_id=request.group_id,
        member_id=request.member_id,
        member_epoch=request.member_epoch,
        instance_id=request.instance_id,
        rack_id=request.rack_id,
        rebalance_timeout_ms=to_ms(request.rebalance_timeout),
        subscribed_topic_names=request.subscribed_topic_names,
        subscribed_topic_regex=getattr(request, "subscribed_topic_regex", None),
        server_assignor=request.server_assignor,
        owned=_owned(request.topic_partitions),
        client_id=context.client_id or "",
        client_host=f"/{context.client_host}",  # as Java formats an address, and as tools show it
    )


def _owned(topic_partitions: Any) -> Assignment | None:
    if topic_partitions is None:
        return None
    owned: dict[uuid.UUID, frozenset[int]] = {}
    for topic in topic_partitions:
        topic_id = topic.topic_id or _NO_TOPIC
        owned[topic_id] = owned.get(topic_id, frozenset()).union(topic.partitions)
    return owned


def _assignment(assignment: Assignment) -> Reply:
    return {
        "topic_partitions": [
            {"topic_id": topic_id, "partitions": sorted(partitions)} for topic_id, partitions in assignment.items()
        ]
    }


def _undescribed(group_id: str, refused: GroupRefusedError) -> Reply:
    return {
        "error_code": refused.code,
        "error_message": refused.message,
        "group_id": group_id,
        "group_state": "",
        "group_epoch": 0,
        "assignment_epoch": 0,
        "assignor_name": "",
        "members": [],
    }
