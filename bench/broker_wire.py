"""Broker requests of the benchmarks other than the load: topics, topic ids, and the first requests of a client."""

from __future__ import annotations

import io
import socket
import time
import uuid
from collections.abc import Sequence
from datetime import timedelta
from types import TracebackType
from typing import Any

from kio.schema.api_versions.v3.request import ApiVersionsRequest
from kio.schema.api_versions.v3.response import ApiVersionsResponse
from kio.schema.create_topics.v7.request import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from kio.schema.create_topics.v7.response import CreateTopicsResponse
from kio.schema.delete_records.v2.request import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from kio.schema.delete_records.v2.response import DeleteRecordsResponse
from kio.schema.delete_topics.v5.request import DeleteTopicsRequest
from kio.schema.delete_topics.v5.response import DeleteTopicsResponse
from kio.schema.incremental_alter_configs.v1.request import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from kio.schema.incremental_alter_configs.v1.response import IncrementalAlterConfigsResponse
from kio.schema.list_offsets.v7.request import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from kio.schema.list_offsets.v7.response import ListOffsetsResponse
from kio.schema.metadata.v12.request import MetadataRequest, MetadataRequestTopic
from kio.schema.metadata.v12.response import MetadataResponse
from kio.schema.produce.v9.response import ProduceResponse
from kio.schema.types import BrokerId, TopicName
from kio.serial import entity_reader, entity_writer
from kio.static.primitive import i8, i16, i32, i32Timedelta, i64
from typing_extensions import Buffer

from bench.broker_load import WAIT_SECONDS, WrongResponseError, connect

WAIT = i32Timedelta.parse(timedelta(seconds=WAIT_SECONDS))


class Wire:
    """One connection with one request at a time, parsed with kio."""

    def __init__(self, port: int) -> None:
        self._sock = connect(port)
        self._correlation_id = 0

    def __enter__(self) -> Wire:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._sock.close()

    def greet(self) -> None:
        """Send the first requests of every client: ApiVersions, then Metadata of all topics."""
        request = ApiVersionsRequest(client_software_name="bench", client_software_version="1")
        if self._call(request, ApiVersionsResponse).error_code:
            raise WrongResponseError("ApiVersions failed")
        self._call(MetadataRequest(topics=None, include_topic_authorized_operations=False), MetadataResponse)

    def create_topic(self, name: str, partitions: int = 1, settings: dict[str, str] | None = None) -> None:
        self.create_topics([name], partitions, settings)

    def create_topics(self, names: Sequence[str], partitions: int, settings: dict[str, str] | None = None) -> None:
        """Create all topics with one request."""
        configs = tuple(CreatableTopicConfig(name=key, value=value) for key, value in (settings or {}).items())
        topics = tuple(
            CreatableTopic(
                name=TopicName(name),
                num_partitions=i32(partitions),
                replication_factor=i16(1),
                assignments=(),
                configs=configs,
            )
            for name in names
        )
        for response in self._call(CreateTopicsRequest(topics=topics, timeout=WAIT), CreateTopicsResponse).topics:
            if response.error_code:
                raise WrongResponseError(f"CreateTopics: {response.error_code!r} {response.error_message}")

    def await_leader(self, name: str) -> None:
        self.await_leaders([name], 1)

    def await_leaders(self, names: Sequence[str], partitions: int) -> None:
        """Wait until all partitions can be used: Kafka confirms new topics before that."""
        indexes = tuple(ListOffsetsPartition(partition_index=i32(n), timestamp=i64(-1)) for n in range(partitions))
        topics = tuple(ListOffsetsTopic(name=TopicName(name), partitions=indexes) for name in names)
        request = ListOffsetsRequest(replica_id=BrokerId(-1), isolation_level=i8(0), topics=topics)
        deadline = time.monotonic() + WAIT_SECONDS
        while True:
            answer = self._call(request, ListOffsetsResponse)
            failures = [
                f"{topic.name}-{partition.partition_index} has no leader: {partition.error_code!r}"
                for topic in answer.topics
                for partition in topic.partitions
                if partition.error_code
            ]
            if not failures:
                return
            if time.monotonic() > deadline:
                raise WrongResponseError(failures[0])
            time.sleep(0.01)

    def alter_configs(self, names: Sequence[str], settings: dict[str, str]) -> None:
        """Set these settings for all topics with one request."""
        configs = tuple(
            AlterableConfig(name=key, config_operation=i8(0), value=value) for key, value in settings.items()
        )
        resources = tuple(
            AlterConfigsResource(resource_type=i8(2), resource_name=name, configs=configs) for name in names
        )
        request = IncrementalAlterConfigsRequest(resources=resources, validate_only=False)
        for answer in self._call(request, IncrementalAlterConfigsResponse).responses:
            if answer.error_code:
                raise WrongResponseError(f"IncrementalAlterConfigs: {answer.error_code!r} {answer.error_message}")

    def delete_topic(self, name: str) -> None:
        self.delete_topics([name])

    def delete_topics(self, names: Sequence[str]) -> None:
        """Delete all topics with one request."""
        request = DeleteTopicsRequest(topic_names=tuple(TopicName(name) for name in names), timeout=WAIT)
        for response in self._call(request, DeleteTopicsResponse).responses:
            if response.error_code:
                raise WrongResponseError(f"DeleteTopics: {response.error_code!r} {response.error_message}")

    def delete_records(self, name: str, partitions: Sequence[int]) -> None:
        """Delete all records of these partitions of a topic with one request."""
        requested = tuple(DeleteRecordsPartition(partition_index=i32(index), offset=i64(-1)) for index in partitions)
        topic = DeleteRecordsTopic(name=TopicName(name), partitions=requested)
        request = DeleteRecordsRequest(topics=(topic,), timeout=WAIT)
        for response in self._call(request, DeleteRecordsResponse).topics[0].partitions:
            if response.error_code:
                raise WrongResponseError(f"DeleteRecords of {name}-{response.partition_index}: {response.error_code!r}")

    def topic_id(self, name: str) -> uuid.UUID:
        requested = MetadataRequestTopic(topic_id=None, name=TopicName(name))
        request = MetadataRequest(
            topics=(requested,), allow_auto_topic_creation=False, include_topic_authorized_operations=False
        )
        topic = self._call(request, MetadataResponse).topics[0]
        if topic.error_code or topic.topic_id is None:
            raise WrongResponseError(f"Metadata of {name}: {topic.error_code!r}")
        topic_id: uuid.UUID = topic.topic_id
        return topic_id

    def produce(self, frame: Buffer) -> None:
        """Send a prepared Produce frame; every partition in it has to be written."""
        for topic in self._exchange(frame, ProduceResponse).responses:
            for partition in topic.partition_responses:
                if partition.error_code:
                    raise WrongResponseError(f"Produce to {topic.name}-{partition.index}: {partition.error_code!r}")

    def _call(self, request: Any, response: Any) -> Any:
        self._correlation_id += 1
        header = request.__header_schema__(
            request_api_key=request.__api_key__,
            request_api_version=request.__version__,
            correlation_id=i32(self._correlation_id),
            client_id="bench",
        )
        out = io.BytesIO()
        entity_writer(type(header))(out, header)
        entity_writer(type(request))(out, request)
        return self._exchange(len(out.getvalue()).to_bytes(4, "big") + out.getvalue(), response)

    def _exchange(self, frame: Buffer, response: Any) -> Any:
        self._sock.sendall(frame)
        data = self._receive(int.from_bytes(self._receive(4), "big"))
        size = entity_reader(response.__header_schema__)(data, 0)[1]
        return entity_reader(response)(data, size)[0]

    def _receive(self, size: int) -> bytes:
        data = self._sock.recv(size, socket.MSG_WAITALL)
        if len(data) != size:
            raise WrongResponseError("the connection was closed")
        return data
