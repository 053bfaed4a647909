"""What a transactional producer asks of its coordinator, and of a group's: each until it is done, or time is over.

Two protocols. By transaction.version 2 (KIP-890) a Produce or TxnOffsetCommit adds its partition to the transaction by
itself, and EndTxn gives the producer its next epoch. By the older one partitions and groups are added first, and the
epoch stays. Which one it is, the cluster says among its finalized features.

What is raised is a BrokerError whose code decides what becomes of the transaction, or one that is retriable: then the
time was too short.
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
_FIRST_BUMP = 3  # of InitProducerId: the first that takes a producer id, to go on with its next epoch
_HIGHEST_ADD = 3  # of AddPartitionsToTxn: those behind it are for brokers
_LAST_OF_VERSION_1 = {ApiKey.END_TXN: 4, ApiKey.TXN_OFFSET_COMMIT: 4}
_END_WITH_NEXT_EPOCH = 5  # of EndTxn
_FIRST_WITH_MEMBERS = 3  # of TxnOffsetCommit
_BUSY_MS = 10  # the transaction before is still being ended, which is a matter of milliseconds
_MOVED = (ErrorCode.not_coordinator, ErrorCode.coordinator_not_available)
_KIND = CoordinatorKind.TRANSACTION


class Identity(NamedTuple):
    """Who a producer is to brokers."""

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
        self._busy = Backoff(min(_BUSY_MS, settings.retry_backoff_ms), settings.retry_backoff_ms)

    async def start(self, who: Identity | None, seconds: float) -> Identity:
        """InitProducerId: the producer of this transactional id, and no other, from now on. With `who`, it goes on as
        the one that it is, with the next epoch."""
        body = {
            "transactional_id": self.transactional_id,
            "transaction_timeout": self._timeout_ms,
            "producer_id": -1 if who is None else who.producer_id,
            "producer_epoch": -1 if who is None else who.epoch,
        }
        lowest = 0 if who is None else _FIRST_BUMP

        async def ask(left: float) -> Identity:
            answer = await self._ask(ApiKey.INIT_PRODUCER_ID, body, left, lowest=lowest)
            is_too_long = answer.error_code == ErrorCode.invalid_transaction_timeout
            said = f"transaction.timeout.ms is {self._timeout_ms}; the broker's transaction.max.timeout.ms is the most"
            self._check(answer.error_code, about=said if is_too_long else "")
            return Identity(int(answer.producer_id), int(answer.producer_epoch))

        return await self._until_done(ask, seconds)

    async def uses_version_2(self, seconds: float) -> bool:
        """What the coordinator says, as of its connection."""
        node = await self._cluster.coordinator(_KIND, self.transactional_id, timeout=seconds)
        connection = await self._cluster.connection(node, Purpose.COORDINATOR)
        return connection.features.get(FEATURE, 0) >= 2

    async def add_partitions(self, who: Identity, places: Iterable[TopicPartition], seconds: float) -> None:
        topics = [{"name": name, "partitions": indexes} for name, indexes in by_topic(places).items()]
        body = {
            "v3_and_below_transactional_id": self.transactional_id,
            "v3_and_below_producer_id": who.producer_id,
            "v3_and_below_producer_epoch": who.epoch,
            "v3_and_below_topics": topics,
        }

        async def ask(left: float) -> None:
            answer = await self._ask(ApiKey.ADD_PARTITIONS_TO_TXN, body, left, highest=_HIGHEST_ADD)
            for topic in answer.results_by_topic_v3_and_below:
                for one in topic.results_by_partition:
                    if one.partition_error_code != ErrorCode.operation_not_attempted:  # another has the reason
                        place = TopicPartition(topic.name, one.partition_index)
                        self._check(one.partition_error_code, about=f"{place}, added to a transaction")

        await self._until_done(ask, seconds)

    async def add_group(self, who: Identity, group_id: str, seconds: float) -> None:
        body = {**self._who(who), "group_id": group_id}

        async def ask(left: float) -> None:
            answer = await self._ask(ApiKey.ADD_OFFSETS_TO_TXN, body, left)
            self._check(answer.error_code, about=f"group {group_id!r}, added to a transaction")

        await self._until_done(ask, seconds)

    async def commit_offsets(
        self,
        who: Identity,
        group: GroupMetadata,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        is_version_2: bool,
        seconds: float,
    ) -> None:
        body = {
            **self._who(who),
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
            answer = await self._cluster.ask_coordinator(
                CoordinatorKind.GROUP, group.group_id, api, body, lowest=lowest, highest=highest, timeout=left
            )
            for topic in answer.topics:
                for one in topic.partitions:
                    place = TopicPartition(topic.name, one.partition_index)
                    self._check(one.error_code, about=f"the offset of {place} for group {group.group_id!r}")

        await self._until_done(ask, seconds)

    async def end(self, who: Identity, *, commit: bool, is_version_2: bool, seconds: float) -> Identity:
        """Who the producer is from now on."""
        body = {**self._who(who), "committed": commit}
        highest = None if is_version_2 else _LAST_OF_VERSION_1[ApiKey.END_TXN]

        async def ask(left: float) -> Identity:
            answer = await self._ask(ApiKey.END_TXN, body, left, highest=highest)
            self._check(answer.error_code)
            if getattr(answer, "producer_id", -1) < 0:
                return who
            return Identity(int(answer.producer_id), int(answer.producer_epoch))

        return await self._until_done(ask, seconds)

    def post_commit(self, who: Identity, answered: Answered) -> bool:
        """As `end`, by version 2, without waiting: `answered` is called. False: the coordinator is not connected."""
        connection = self._cluster.coordinator_connection(_KIND, self.transactional_id)
        if connection is None or connection.version_of(ApiKey.END_TXN) < _END_WITH_NEXT_EPOCH:
            return False
        body = encode_request(ApiKey.END_TXN, _END_WITH_NEXT_EPOCH, {**self._who(who), "committed": True})
        connection.post(ApiKey.END_TXN, _END_WITH_NEXT_EPOCH, [body], timeout=self._request_timeout, answered=answered)
        return True

    def read_end(self, answer: memoryview) -> Identity:
        """Who the producer is from now on, as an answer to `post_commit` says. Raises what it says else."""
        said = decode_response(ApiKey.END_TXN, _END_WITH_NEXT_EPOCH, answer)
        self._check(said.error_code)
        return Identity(int(said.producer_id), int(said.producer_epoch))

    def _who(self, who: Identity) -> dict[str, Any]:
        return {
            "transactional_id": self.transactional_id,
            "producer_id": who.producer_id,
            "producer_epoch": who.epoch,
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
                wait = (self._busy if is_busy else self._backoff).seconds(failures)
                if not error.is_retriable or loop.time() + wait >= deadline:
                    raise
            await asyncio.sleep(wait)
