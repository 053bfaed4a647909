"""A client that works normally during the attacks, and fails if it sees an effect of them."""

from __future__ import annotations

import time
from typing import Any

from stratalog.protocol.api_keys import ApiKey
from stratalog.protocol.error_codes import ErrorCode
from stratalog.records.builder import build_batch
from stratalog.records.reader import read_records
from tests.broker.bad_input.client import RawClient

TOPIC = "healthy"
_LOADING_SECONDS = 20


class HealthyClient:
    """Uses one connection to produce a record, fetch it, commit its offset and fetch the committed offset."""

    def __init__(self, port: int) -> None:
        self._client = RawClient(port, seconds=30)
        self._written = 0
        created = self._client.request(ApiKey.CREATE_TOPICS, {"topics": [topic(TOPIC, 1)], "timeout": 30_000})
        assert created.topics[0].error_code in (ErrorCode.none, ErrorCode.topic_already_exists)
        described = self._client.request(ApiKey.METADATA, {"topics": [{"name": TOPIC}]}, version=12)
        self._topic_id = described.topics[0].topic_id

    def check(self) -> None:
        """Run one round."""
        value = b"record %d" % self._written
        offset = self._write(value)
        assert self._read(offset) == value
        self._commit(offset)
        self._written += 1

    def close(self) -> None:
        self._client.close()

    def _write(self, value: bytes) -> int:
        records = bytes(build_batch([(None, value)]))
        data = {"name": TOPIC, "topic_id": self._topic_id, "partition_data": [{"index": 0, "records": records}]}
        produced = self._client.request(ApiKey.PRODUCE, {"acks": -1, "timeout": 30_000, "topic_data": [data]})
        answer = produced.responses[0].partition_responses[0]
        assert answer.error_code == ErrorCode.none, answer
        return answer.base_offset  # type: ignore[no-any-return]

    def _read(self, offset: int) -> bytes | None:
        partition = {"partition": 0, "fetch_offset": offset, "partition_max_bytes": 2**20}
        fetch = {"min_bytes": 1, "max_wait": 5000, "topics": [{"topic_id": self._topic_id, "partitions": [partition]}]}
        fetched = self._client.request(ApiKey.FETCH, fetch).responses[0].partitions[0]
        assert fetched.error_code == ErrorCode.none, fetched
        return read_records(fetched.records)[0].value

    def _commit(self, offset: int) -> None:
        topics = [{"topic_id": self._topic_id, "partitions": [{"partition_index": 0, "committed_offset": offset}]}]
        group: dict[str, Any] = {"group_id": "healthy-group", "generation_id_or_member_epoch": -1, "member_id": ""}
        deadline = time.monotonic() + _LOADING_SECONDS
        while True:
            committed = self._client.request(ApiKey.OFFSET_COMMIT, group | {"topics": topics})
            error = committed.topics[0].partitions[0].error_code
            if (
                error != ErrorCode.coordinator_load_in_progress or time.monotonic() > deadline
            ):  # the broker has just started
                break
            time.sleep(0.05)
        assert error == ErrorCode.none, committed
        asked = [{"topic_id": self._topic_id, "partition_indexes": [0]}]
        found = self._client.request(ApiKey.OFFSET_FETCH, {"groups": [{"group_id": "healthy-group", "topics": asked}]})
        assert found.groups[0].topics[0].partitions[0].committed_offset == offset, found


def topic(name: str, partitions: int) -> dict[str, Any]:
    return {"name": name, "num_partitions": partitions, "replication_factor": 1}
