"""The requests of a transactional producer to its coordinator and to groups' coordinators, with retries until a
timeout.

There are two protocols. With transaction.version 2 (KIP-890), a Produce or TxnOffsetCommit adds its partition to the
transaction implicitly, and EndTxn gives the producer its next epoch. With the older protocol, partitions and groups are
added first, and the epoch stays. The finalized features of the cluster say which protocol it uses.

The calls raise BrokerErrors, whose codes decide what happens to the transaction, or retriable errors, which mean that
the time was too short.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypeVar

from stratalog.client.backoff import Backoff
from stratalog.client.cluster import Cluster, CoordinatorKind
from stratalog.client.connections import Purpose
from stratalog.client.errors import ClientError, error_of
from stratalog.client.groups.membership import by_topic
from stratalog.client.metadata import TopicPartition
from stratalog.client.offsets import GroupMetadata, OffsetAndMetadata, offset_topics
from stratalog.client.producer_settings import ProducerSettings
from stratalog.net.broker_connection import Answered
from stratalog.protocol.api_keys import ApiKey
from stratalog.protocol.error_codes import ErrorCode
from stratalog.protocol.messages import decode_response, encode_request

T = TypeVar("T")

FEATURE = "transaction.version"
_FIRST_BUMP = 3  # the first version of InitProducerId that takes a producer id, to continue with its next epoch
_HIGHEST_ADD = 3  # the last version of AddPartitionsToTxn for clients; later versions are for brokers
_LAST_OF_VERSION_1 = {ApiKey.END_TXN: 4, ApiKey.TXN_OFFSET_COMMIT: 4}
_END_WITH_NEXT_EPOCH = 5  # the first version of EndTxn that returns the next epoch
_FIRST_WITH_MEMBERS = 3  # the first version of TxnOffsetCommit with the member's identity
_BUSY_MS = 10  # the coordinator is still ending the previous transaction, which takes milliseconds
_MOVED = (ErrorCode.not_coordinator, ErrorCode.coordinator_not_available)
_KIND = CoordinatorKind.TRANSACTION


class IdAndEpoch(NamedTuple):
    producer_id: int
    epoch: int


class TransactionRequests:
    def __init__(self, cluster: Cluster, settings: ProducerSettings) -> None:
        assert settings.transactional_id is not None
        self.transactional_id = settings.transactional_id
        self._cluster = cluster
        self._timeout_ms = settings.transaction_timeout_ms
        self._request_timeout = settings.request_timeout_ms / 1000
        self._backoff = Backoff(settings.retry_backoff_ms, settings.retry_backoff_max_ms)
        self._busy_backoff = Backoff(min(_BUSY_MS, settings.retry_backoff_ms), settings.retry_backoff_ms)

    async def start(self, producer: IdAndEpoch | None, seconds: float) -> IdAndEpoch:
        """Claim the transactional id with InitProducerId, which fences all other producers. With `producer`, keep its
        id and get its next epoch."""
        body = {
            "transactional_id": self.transactional_id,
            "transaction_timeout": self._timeout_ms,
            "producer_id": -1 if producer is None else producer.producer_id,
            "producer_epoch": -1 if producer is None else producer.epoch,
        }
        lowest = 0 if producer is None else _FIRST_BUMP

        async def ask(left: float) -> IdAndEpoch:
            response = await self._ask(ApiKey.INIT_PRODUCER_ID, body, left, lowest=lowest)
            about = ""
            if response.error_code == ErrorCode.invalid_transaction_timeout:
                about = f"transaction.timeout.ms is {self._timeout_ms}; the limit is the broker's "
                about += "transaction.max.timeout.ms"
            self._check(response.error_code, about=about)
            return IdAndEpoch(int(response.producer_id), int(response.producer_epoch))

        return await self._until_done(ask, seconds)

    async def uses_version_2(self, seconds: float) -> bool:
        """Return whether the coordinator uses transaction.version 2, from the features of its connection."""
        node = await self._cluster.coordinator(_KIND, self.transactional_id, timeout=seconds)
        connection = await self._cluster.connection(node, Purpose.COORDINATOR)
        return connection.features.get(FEATURE, 0) >= 2

    async def add_partitions(self, producer: IdAndEpoch, partitions: Iterable[TopicPartition], seconds: float) -> None:
        topics = [{"name": name, "partitions": indexes} for name, indexes in by_topic(partitions).items()]
        body = {
            "v3_and_below_transactional_id": self.transactional_id,
            "v3_and_below_producer_id": producer.producer_id,
            "v3_and_below_producer_epoch": producer.epoch,
            "v3_and_below_topics": topics,
        }

        async def ask(left: float) -> None:
            response = await self._ask(ApiKey.ADD_PARTITIONS_TO_TXN, body, left, highest=_HIGHEST_ADD)
            for topic in response.results_by_topic_v3_and_below:
                for result in topic.results_by_partition:
                    # operation_not_attempted: the result of another partition has the reason
                    if result.partition_error_code != ErrorCode.operation_not_attempted:
                        partition = TopicPartition(topic.name, result.partition_index)
                        self._check(result.partition_error_code, about=f"{partition}, added to a transaction")

        await self._until_done(ask, seconds)

    async def add_group(self, producer: IdAndEpoch, group_id: str, seconds: float) -> None:
        body = {**self._producer_fields(producer), "group_id": group_id}

        async def ask(left: float) -> None:
            response = await self._ask(ApiKey.ADD_OFFSETS_TO_TXN, body, left)
            self._check(response.error_code, about=f"group {group_id!r}, added to a transaction")

        await self._until_done(ask, seconds)

    async def commit_offsets(
        self,
        producer: IdAndEpoch,
        group: GroupMetadata,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        is_version_2: bool,
        seconds: float,
    ) -> None:
        body = {
            **self._producer_fields(producer),
            "group_id": group.group_id,
            "generation_id": group.generation,
            "member_id": group.member_id,
            "group_instance_id": group.instance_id,
            "topics": offset_topics(offsets),
        }
        api = ApiKey.TXN_OFFSET_COMMIT
        lowest = 0 if group.generation < 0 and not group.member_id else _FIRST_WITH_MEMBERS
        highest = None if is_version_2 else _LAST_OF_VERSION_1[api]

        async def ask(left: float) -> None:
            response = await self._cluster.ask_coordinator(
                CoordinatorKind.GROUP, group.group_id, api, body, lowest=lowest, highest=highest, timeout=left
            )
            for topic in response.topics:
                for result in topic.partitions:
                    partition = TopicPartition(topic.name, result.partition_index)
                    self._check(result.error_code, about=f"the offset of {partition} for group {group.group_id!r}")

        await self._until_done(ask, seconds)

    async def end(self, producer: IdAndEpoch, *, commit: bool, is_version_2: bool, seconds: float) -> IdAndEpoch:
        """End the transaction, and return the producer id and epoch that the producer has from now on."""
        body = {**self._producer_fields(producer), "committed": commit}
        highest = None if is_version_2 else _LAST_OF_VERSION_1[ApiKey.END_TXN]

        async def ask(left: float) -> IdAndEpoch:
            response = await self._ask(ApiKey.END_TXN, body, left, highest=highest)
            self._check(response.error_code)
            if getattr(response, "producer_id", -1) < 0:
                return producer
            return IdAndEpoch(int(response.producer_id), int(response.producer_epoch))

        return await self._until_done(ask, seconds)

    def post_commit(self, producer: IdAndEpoch, on_response: Answered) -> bool:
        """Send a commit by version 2, and don't wait: `on_response` is called. Return False if the coordinator is not
        connected."""
        connection = self._cluster.coordinator_connection(_KIND, self.transactional_id)
        if connection is None or connection.version_of(ApiKey.END_TXN) < _END_WITH_NEXT_EPOCH:
            return False
        body = encode_request(
            ApiKey.END_TXN, _END_WITH_NEXT_EPOCH, {**self._producer_fields(producer), "committed": True}
        )
        connection.post(
            ApiKey.END_TXN, _END_WITH_NEXT_EPOCH, [body], timeout=self._request_timeout, answered=on_response
        )
        return True

    def read_end(self, response: memoryview) -> IdAndEpoch:
        """Read the response to `post_commit`: raise its error, or return the producer id and epoch from now on."""
        decoded = decode_response(ApiKey.END_TXN, _END_WITH_NEXT_EPOCH, response)
        self._check(decoded.error_code)
        return IdAndEpoch(int(decoded.producer_id), int(decoded.producer_epoch))

    def _producer_fields(self, producer: IdAndEpoch) -> dict[str, Any]:
        return {
            "transactional_id": self.transactional_id,
            "producer_id": producer.producer_id,
            "producer_epoch": producer.epoch,
        }

    async def _ask(
        self, api: ApiKey, body: dict[str, Any], seconds: float, *, lowest: int = 0, highest: int | None = None
    ) -> Any:
        return await self._cluster.ask_coordinator(
            _KIND, self.transactional_id, api, body, lowest=lowest, highest=highest, timeout=seconds
        )

    def _check(self, code: ErrorCode, *, about: str = "") -> None:
        if code in _MOVED:
            self._cluster.forget_coordinator(_KIND, self.transactional_id)
        if code != ErrorCode.none:
            raise error_of(code, about=f"transactional id {self.transactional_id!r}{f': {about}' if about else ''}")

    async def _until_done(self, ask: Callable[[float], Awaitable[T]], seconds: float) -> T:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        failures = 0
        while True:
            try:
                return await ask(max(deadline - loop.time(), 0.0))
            except ClientError as error:
                failures += 1
                is_busy = error.code == ErrorCode.concurrent_transactions
                wait = (self._busy_backoff if is_busy else self._backoff).seconds(failures)
                if not error.is_retriable or loop.time() + wait >= deadline:
                    raise
            await asyncio.sleep(wait)
