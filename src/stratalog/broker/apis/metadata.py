"""Metadata (key 3), versions 0-13: brokers, topics by name or id, auto-creation where client and broker allow it.

A topic that is created for a client is in the same answer, ready to be used. Answers are kept until a topic changes:
a thousand clients that ask the same after a restart cost one.

Known gaps: there is no authorizer, so whoever asks is told that every operation is allowed.
"""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from stratalog.broker.background import RunInBackground
from stratalog.broker.metadata.topics import Topic, TopicRegistry
from stratalog.broker.requests import Handler, Reply, RequestContext
from stratalog.broker.settings import Address, BrokerConfig
from stratalog.errors import StratalogError, TopicExistsError
from stratalog.protocol.api_keys import ApiKey
from stratalog.protocol.error_codes import ErrorCode
from stratalog.protocol.messages import encode_reply
from stratalog.storage import names

ALL_TOPIC_OPERATIONS = 0b1101_1111_1000  # read, write, create, delete, alter, describe, describe and alter configs
ALL_CLUSTER_OPERATIONS = 0b1_1111_1010_0000
_NOT_ASKED = -(2**31)
_KEPT_ANSWERS = 64
_LARGEST_KEPT = 1024 * 1024
_MOST_TOPICS_KEPT = 100  # in the question


class MetadataApi:
    def __init__(
        self,
        topics: TopicRegistry,
        config: BrokerConfig,
        cluster_id: str,
        address: Callable[[], Address],
        run_in_background: RunInBackground,
    ) -> None:
        self._topics = topics
        self._config = config
        self._cluster_id = cluster_id
        self._address = address
        self._run_in_background = run_in_background
        self._answers: dict[Any, bytearray] = {}
        self._answers_of = -1  # the version of the registry that they are of

    def routes(self) -> dict[ApiKey, Handler]:
        return {ApiKey.METADATA: self.metadata}

    def metadata(self, request: Any, context: RequestContext) -> Reply | bytearray | Awaitable[Reply]:
        missing = self._missing(request)
        if missing:
            return self._create_and_answer(missing, request, context)
        if self._answers_of != self._topics.version:
            self._answers.clear()
            self._answers_of = self._topics.version
        question = (context.api_version, request)
        answer = self._answers.get(question)
        if answer is None:
            answer = encode_reply(ApiKey.METADATA, context.api_version, self._answer(request, context.api_version, {}))
            is_small = len(request.topics or ()) <= _MOST_TOPICS_KEPT and len(answer) <= _LARGEST_KEPT
            if is_small and len(self._answers) < _KEPT_ANSWERS:
                self._answers[question] = answer
        return answer

    # Auto-creation

    def _missing(self, request: Any) -> list[str]:
        """The topics that are to be created."""
        if not request.topics or not self._config.auto_create_topics_enable:
            return []
        if not getattr(request, "allow_auto_topic_creation", True):
            return []
        wanted = {topic.name for topic in request.topics if topic.name is not None}
        return sorted(name for name in wanted if self._topics.get(name) is None)

    async def _create_and_answer(self, missing: list[str], request: Any, context: RequestContext) -> Reply:
        errors = {}
        for name in missing:
            try:
                names.check_topic(name)  # before the thread is bothered
                await self._run_in_background(partial(self._topics.create, name, self._config.num_partitions, {}))
            except TopicExistsError:
                pass  # another client was faster
            except StratalogError as error:
                errors[name] = error.code
        return self._answer(request, context.api_version, errors)

    # The answer

    def _answer(self, request: Any, version: int, errors: dict[str, int]) -> Reply:
        host, port = self._address()
        node_id = self._config.node_id
        of_topics = getattr(request, "include_topic_authorized_operations", False)
        of_cluster = getattr(request, "include_cluster_authorized_operations", False)
        return {
            "brokers": [{"node_id": node_id, "host": host, "port": port, "rack": None}],
            "cluster_id": self._cluster_id,
            "controller_id": node_id,
            "topics": self._wanted(request, version, ALL_TOPIC_OPERATIONS if of_topics else _NOT_ASKED, errors),
            "cluster_authorized_operations": ALL_CLUSTER_OPERATIONS if of_cluster else _NOT_ASKED,
        }

    def _wanted(self, request: Any, version: int, operations: int, errors: dict[str, int]) -> list[Reply]:
        if request.topics is None or (version == 0 and not request.topics):
            return [self._describe(topic, operations) for topic in self._topics.all()]
        described = []
        for wanted in dict.fromkeys(request.topics):  # one that is asked for a thousand times is told once, as by Kafka
            topic_id: uuid.UUID | None = getattr(wanted, "topic_id", None)
            if wanted.name is not None:
                topic, error = self._topics.get(wanted.name), errors.get(wanted.name, _unknown(wanted.name))
            elif topic_id is not None:
                topic, error = self._topics.by_id(topic_id), int(ErrorCode.unknown_topic_id)
            else:
                topic, error = None, int(ErrorCode.invalid_request)
            if topic is not None:
                described.append(self._describe(topic, operations))
            else:
                name = wanted.name if wanted.name is not None or version >= 12 else ""
                described.append({**_NOTHING, "error_code": error, "name": name, "topic_id": topic_id})
        return described

    def _describe(self, topic: Topic, operations: int) -> Reply:
        node = (self._config.node_id,)
        return {
            "error_code": 0,
            "name": topic.name,
            "topic_id": topic.id,
            "is_internal": topic.is_internal,
            "topic_authorized_operations": operations,
            "partitions": [
                {
                    "error_code": ErrorCode.leader_not_available if partition.is_offline else 0,
                    "partition_index": partition.index,
                    "leader_id": -1 if partition.is_offline else node[0],
                    "leader_epoch": partition.leader_epoch,
                    "replica_nodes": node,
                    "isr_nodes": () if partition.is_offline else node,
                    "offline_replicas": node if partition.is_offline else (),
                }
                for partition in self._topics.partitions(topic.name)
            ],
        }


_NOTHING: Reply = {"is_internal": False, "partitions": (), "topic_authorized_operations": _NOT_ASKED}


def _unknown(name: str) -> int:
    try:
        names.check_topic(name)
    except StratalogError as error:
        return error.code
    return int(ErrorCode.unknown_topic_or_partition)
