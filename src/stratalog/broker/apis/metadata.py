"""Metadata (key 3), versions 0-13: returns the brokers and topics by name or topic id, and creates topics automatically
if client and broker allow it.

A topic that a request creates is in its response, ready for use. The broker caches responses until a topic changes, so
that a thousand clients that send the same request after a restart cost as much as one.

Known gaps: there is no authorizer, so responses say that every operation is allowed.
"""

from __future__ import annotations

import uuid
from collections.abc import Awaitable
from functools import partial
from typing import Any

from stratalog.broker.background import RunInBackground
from stratalog.broker.metadata.membership import BrokersAndPlacements, Placement
from stratalog.broker.metadata.topics import Topic, TopicRegistry
from stratalog.broker.requests import Handler, Reply, RequestContext
from stratalog.broker.settings import BrokerConfig
from stratalog.errors import StratalogError, TopicExistsError
from stratalog.protocol.api_keys import ApiKey
from stratalog.protocol.error_codes import ErrorCode
from stratalog.protocol.messages import encode_reply
from stratalog.storage import names

ALL_TOPIC_OPERATIONS = 0b1101_1111_1000  # read, write, create, delete, alter, describe, describe and alter configs
ALL_CLUSTER_OPERATIONS = 0b1_1111_1010_0000
_NOT_ASKED = -(2**31)
_CACHED_RESPONSES = 64
_LARGEST_CACHED = 1024 * 1024
_MOST_TOPICS_CACHED = 100  # in the request


class MetadataApi:
    def __init__(
        self,
        topics: TopicRegistry,
        config: BrokerConfig,
        membership: BrokersAndPlacements,
        run_in_background: RunInBackground,
    ) -> None:
        self._topics = topics
        self._config = config
        self._membership = membership
        self._run_in_background = run_in_background
        self._responses: dict[Any, bytearray] = {}
        self._responses_of = -1  # the version of the registry for which they are valid

    def routes(self) -> dict[ApiKey, Handler]:
        return {ApiKey.METADATA: self.metadata}

    def metadata(self, request: Any, context: RequestContext) -> Reply | bytearray | Awaitable[Reply]:
        missing = self._missing(request)
        if missing:
            return self._create_and_reply(missing, request, context)
        if self._responses_of != self._topics.version:
            self._responses.clear()
            self._responses_of = self._topics.version
        key = (context.api_version, request)
        response = self._responses.get(key)
        if response is None:
            response = encode_reply(ApiKey.METADATA, context.api_version, self._reply(request, context.api_version, {}))
            is_small = len(request.topics or ()) <= _MOST_TOPICS_CACHED and len(response) <= _LARGEST_CACHED
            if is_small and len(self._responses) < _CACHED_RESPONSES:
                self._responses[key] = response
        return response

    # Auto-creation

    def _missing(self, request: Any) -> list[str]:
        """Return the topics to create."""
        if not request.topics or not self._config.auto_create_topics_enable:
            return []
        if not getattr(request, "allow_auto_topic_creation", True):
            return []
        requested = {topic.name for topic in request.topics if topic.name is not None}
        return sorted(name for name in requested if self._topics.get(name) is None)

    async def _create_and_reply(self, missing: list[str], request: Any, context: RequestContext) -> Reply:
        errors = {}
        for name in missing:
            try:
                names.check_topic(name)  # before the thread has to
                await self._run_in_background(partial(self._topics.create, name, self._config.num_partitions, {}))
            except TopicExistsError:
                pass  # for another client
            except StratalogError as error:
                errors[name] = error.code
        return self._reply(request, context.api_version, errors)

    # The reply

    def _reply(self, request: Any, version: int, errors: dict[str, int]) -> Reply:
        of_topics = getattr(request, "include_topic_authorized_operations", False)
        of_cluster = getattr(request, "include_cluster_authorized_operations", False)
        return {
            "brokers": [broker._asdict() for broker in self._membership.brokers()],
            "cluster_id": self._membership.cluster_id,
            "controller_id": self._membership.controller,
            "topics": self._describe_requested(
                request, version, ALL_TOPIC_OPERATIONS if of_topics else _NOT_ASKED, errors
            ),
            "cluster_authorized_operations": ALL_CLUSTER_OPERATIONS if of_cluster else _NOT_ASKED,
        }

    def _describe_requested(self, request: Any, version: int, operations: int, errors: dict[str, int]) -> list[Reply]:
        if request.topics is None or (version == 0 and not request.topics):
            return [self._describe(topic, operations) for topic in self._topics.all()]
        described = []
        for requested in dict.fromkeys(request.topics):  # as in Kafka, repeated topics are described once
            topic_id: uuid.UUID | None = getattr(requested, "topic_id", None)
            if requested.name is not None:
                topic = self._topics.get(requested.name)
                error = errors.get(requested.name, _why_missing(requested.name))
            elif topic_id is not None:
                topic, error = self._topics.by_id(topic_id), int(ErrorCode.unknown_topic_id)
            else:
                topic, error = None, int(ErrorCode.invalid_request)
            if topic is not None:
                described.append(self._describe(topic, operations))
            else:
                name = requested.name if requested.name is not None or version >= 12 else ""
                described.append({**_NO_TOPIC, "error_code": error, "name": name, "topic_id": topic_id})
        return described

    def _describe(self, topic: Topic, operations: int) -> Reply:
        return {
            "error_code": 0,
            "name": topic.name,
            "topic_id": topic.id,
            "is_internal": topic.is_internal,
            "topic_authorized_operations": operations,
            "partitions": [
                _described(partition.index, self._membership.placement(partition))
                for partition in self._topics.partitions(topic.name)
            ],
        }


def _described(index: int, placement: Placement) -> Reply:
    return {
        "error_code": placement.error,
        "partition_index": index,
        "leader_id": placement.leader,
        "leader_epoch": placement.leader_epoch,
        "replica_nodes": placement.replicas,
        "isr_nodes": placement.in_sync,
        "offline_replicas": placement.offline,
    }


_NO_TOPIC: Reply = {"is_internal": False, "partitions": (), "topic_authorized_operations": _NOT_ASKED}


def _why_missing(name: str) -> int:
    try:
        names.check_topic(name)
    except StratalogError as error:
        return error.code
    return int(ErrorCode.unknown_topic_or_partition)
