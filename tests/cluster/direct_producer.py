"""Requests to one broker at its own port, past every link and whatever the cluster's metadata says."""

from __future__ import annotations

from stratalog.lab.cluster import LabCluster
from stratalog.protocol.api_keys import ApiKey
from stratalog.protocol.error_codes import ErrorCode
from stratalog.records.builder import build_batch
from tests.broker.bad_input.client import RawClient
from tests.protocol.kio_messages import framed, read_response, request_body, request_header

_VERSION = 12  # of Produce
_TIMEOUT_MS = 2_000


class DirectProducer:
    """Sends single records to one broker, without idempotence, and without following the leader."""

    def __init__(self, cluster: LabCluster, node_id: int, topic: str, partition: int = 0) -> None:
        self._client = RawClient(cluster.broker(node_id).port)
        self._topic = topic
        self._partition = partition

    def send(self, value: bytes, acks: int) -> None:
        """Send a request whose response `response` returns."""
        data = {"index": self._partition, "records": bytes(build_batch([(None, value)]))}
        values = {
            "acks": acks,
            "timeout": _TIMEOUT_MS,
            "topic_data": [{"name": self._topic, "partition_data": [data]}],
        }
        header = request_header(ApiKey.PRODUCE, _VERSION, correlation_id=1, client_id="direct")
        self._client.send(framed(header + request_body(ApiKey.PRODUCE, _VERSION, values)))

    def response(self) -> ErrorCode:
        _, response = read_response(ApiKey.PRODUCE, _VERSION, self._client.receive())
        (topic,) = response.responses
        (partition,) = topic.partition_responses
        return ErrorCode(partition.error_code)

    def produce(self, value: bytes, acks: int) -> ErrorCode:
        self.send(value, acks)
        return self.response()

    def __enter__(self) -> DirectProducer:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()
