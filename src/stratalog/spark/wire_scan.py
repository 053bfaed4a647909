"""A range of a partition over the wire, from any Kafka-compatible broker, as Arrow batches.

Batches are fetched as they are and go to the decoder in one piece: no record is looked at on the way. The client's
thread asks for the next part as soon as one has come, up to so many ahead, while the task's thread decodes. The leader
is followed when it moves; a broker that is away is asked again for `patience_seconds`, counted from the last part.

Offsets without a record are no loss: compaction and transactions leave gaps. Lost is what lies before the partition's
first offset, or behind its end, or in a topic that is no longer the one that was planned.
"""

from __future__ import annotations

import asyncio
import logging
import queue
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from stratalog.client.administration.records import OffsetSpec, list_offsets
from stratalog.client.backoff import Backoff
from stratalog.client.connections import Purpose
from stratalog.client.errors import REFRESHES_METADATA, error_of, is_retriable
from stratalog.client.metadata import PartitionInfo, TopicPartition
from stratalog.errors import BrokerUnreachableError, ClientError, RequestTimeoutError, StratalogError
from stratalog.net.broker_connection import BrokerConnection
from stratalog.protocol._fetch_response import parse_fetch_response
from stratalog.protocol.api_keys import ApiKey
from stratalog.protocol.error_codes import ErrorCode
from stratalog.protocol.fetch import FIRST_BY_ID, HIGHEST, LOWEST, Topic, WantedPartition, encode_fetch_request
from stratalog.records._framing import parse_headers
from stratalog.spark.broker_client import BrokerClient, using
from stratalog.spark.data_loss import report_data_loss
from stratalog.spark.decoding import Decoder
from stratalog.spark.scan_request import READ_COMMITTED

if TYPE_CHECKING:
    from stratalog.protocol._fetch_response import FetchResponsePartition
    from stratalog.spark.scan_request import OffsetRange, ScanRequest

logger = logging.getLogger(__name__)

_AHEAD = 3  # parts that may lie here undecoded
_NO_SESSION, _FINAL_EPOCH = 0, -1
_PARTITION_GONE = {int(ErrorCode.unknown_topic_or_partition), int(ErrorCode.unknown_topic_id)}
_GONE_ATTEMPTS = 5  # a broker that has just started may not know yet of a topic that is there


def scan(range: OffsetRange, request: ScanRequest) -> Iterator[pa.RecordBatch]:
    """Yields at least whatever is wanted of the range; raises DataLossError, CorruptBatchError or a ClientError."""
    if range.size <= 0:
        return
    decoder = _decoder(range, request, range.start)
    with using(request.kafka) as client:
        for part in _RangeFetch(client, range, request, decoder.next_offset).parts():
            if part.is_behind_a_loss:
                # The batch that the first offset lies in may still have records of before.
                yield from decoder.finish()
                decoder = _decoder(range, request, part.offset)
            yield from decoder.decode(part.data, part.aborted)
            if decoder.is_done:
                break
            if part.fault is not None:
                raise part.fault
    yield from decoder.finish()


def _decoder(range: OffsetRange, request: ScanRequest, start: int) -> Decoder:
    return Decoder(
        range.topic,
        range.partition,
        request.columns,
        request.predicate,
        start,
        range.end,
        request.isolation,
        rows_per_batch=request.rows_per_batch,
        bytes_per_batch=request.bytes_per_batch,
    )


@dataclass(frozen=True)
class _Part:
    """Whole batches, as an answer to a request for `offset`. `fault`: what is wrong with the bytes behind them."""

    offset: int
    data: memoryview
    aborted: tuple[tuple[int, int], ...]
    next_offset: int
    is_behind_a_loss: bool
    fault: StratalogError | None = None


class _RangeFetch:
    """Everything but `parts` happens in the client's thread."""

    def __init__(self, client: BrokerClient, range: OffsetRange, request: ScanRequest, start: int) -> None:
        settings = client.settings
        self._client = client
        self._cluster = client.cluster
        self._settings = settings
        self._range = range
        self._request = request
        self._place = TopicPartition(range.topic, range.partition)
        self._offset = max(start, range.start)
        self._max_bytes = max(1, settings.max_partition_fetch_bytes)
        self._backoff = Backoff(settings.retry_backoff_ms, settings.retry_backoff_max_ms)
        self._out: queue.SimpleQueue[_Part | BaseException | None] = queue.SimpleQueue()
        self._room = asyncio.Semaphore(_AHEAD)
        self._gone = 0
        self._is_behind_a_loss = False

    def parts(self) -> Iterator[_Part]:
        running = self._client.io.submit(self._run())
        try:
            while (part := self._out.get()) is not None:
                if isinstance(part, asyncio.CancelledError):
                    raise ClientError(f"the client was closed while {self._range} was read")
                if isinstance(part, BaseException):
                    raise part
                self._client.io.call_soon(self._room.release)
                yield part
        finally:
            running.cancel()

    async def _run(self) -> None:
        try:
            while self._offset < self._range.end:
                await self._room.acquire()
                part = await self._next_part()
                if part is None:
                    break
                self._offset = part.next_offset
                self._out.put(part)
                if part.fault is not None:
                    return
            self._out.put(None)
        except BaseException as error:
            self._out.put(error)
            if not isinstance(error, Exception):
                raise

    async def _next_part(self) -> _Part | None:
        """None: nothing is left in the range."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._request.patience_seconds
        failures = 0
        last: ClientError | None = None
        while True:
            try:
                async with asyncio.timeout_at(deadline):
                    leader = await self._leader()
                    if not await self._is_same_topic():
                        self._lost("was deleted and made again")
                        return None
                    told, answer = await self._fetch(leader)
                    outcome = await self._outcome(told, answer)
                if outcome is not _AGAIN:
                    return outcome if isinstance(outcome, _Part) else None
                last = last or BrokerUnreachableError(f"{self._range}: the leader does not have it yet")
            except ClientError as error:
                if not error.is_retriable:
                    raise
                last = error
                self._cluster.refresh_soon()
            except TimeoutError:
                pass
            failures += 1
            wait = self._backoff.seconds(failures)
            if loop.time() + wait >= deadline:
                raise self._too_late(last)
            await asyncio.sleep(wait)

    def _too_late(self, last: ClientError | None) -> ClientError:
        why = last or self._cluster.last_failure
        return RequestTimeoutError(
            f"{self._range}: nothing more came for {self._request.patience_seconds:g} s, at offset {self._offset}"
            f"{f': {why}' if why else ''}; kafkaConsumer.pollTimeoutMs says how long to wait"
        )

    # One request

    async def _fetch(self, leader: PartitionInfo) -> tuple[FetchResponsePartition, memoryview]:
        connection = await self._cluster.connection(leader.leader, Purpose.DATA)
        topic_id = self._cluster.metadata.topics[self._place.topic].id
        version = connection.version_of(ApiKey.FETCH, LOWEST, FIRST_BY_ID - 1 if topic_id is None else HIGHEST)
        topic: Topic = topic_id.bytes if topic_id is not None and version >= FIRST_BY_ID else self._place.topic
        body = self._encoded(version, topic, leader)
        seconds = self._settings.request_timeout_ms / 1000
        answer = await connection.exchange(ApiKey.FETCH, version, [body], timeout=seconds)
        return self._told(answer, version, connection), answer

    async def _leader(self) -> PartitionInfo:
        leader = self._cluster.metadata.leader_of(*self._place)
        if leader is None:
            await self._cluster.refresh([self._place.topic])
            leader = self._cluster.metadata.leader_of(*self._place)
        if leader is None:
            info = self._cluster.metadata.topics.get(self._place.topic)
            code = ErrorCode.unknown_topic_or_partition if info is None else info.error_code
            raise error_of(int(code) or int(ErrorCode.leader_not_available), about=str(self._place))
        return leader

    def _encoded(self, version: int, topic: Topic, leader: PartitionInfo) -> bytearray:
        wanted = WantedPartition(self._offset, leader.leader_epoch, self._max_bytes)
        return encode_fetch_request(
            version,
            max_wait_ms=self._settings.fetch_max_wait_ms,
            min_bytes=1,
            max_bytes=max(self._max_bytes, self._settings.fetch_max_bytes),
            read_committed=self._request.isolation == READ_COMMITTED,
            session_id=_NO_SESSION,
            session_epoch=_FINAL_EPOCH,
            topics={topic: [(self._place.partition, wanted)]},
            forgotten={},
            rack_id=self._settings.client_rack,
        )

    def _told(self, answer: memoryview, version: int, connection: BrokerConnection) -> FetchResponsePartition:
        _, error_code, _, topics = parse_fetch_response(answer, version)
        if error_code:
            raise error_of(error_code, about=f"fetch of {self._place} from {connection.host}:{connection.port}")
        for _, partitions in topics:
            for told in partitions:
                if told[0] == self._place.partition:
                    return told
        raise BrokerUnreachableError(f"{connection.host}:{connection.port} answers nothing about {self._place}")

    # What became of it

    async def _outcome(self, told: FetchResponsePartition, answer: memoryview) -> _Part | _Again | None:
        _, error_code, high_watermark, stable, _, aborted, start, end, _, _ = told
        if error_code:
            return await self._on_error(error_code)
        if end > start:
            return self._part(answer[start:end], aborted)
        # Nothing between here and the end that the leader knows: the rest of the range was compacted away.
        visible = stable if self._request.isolation == READ_COMMITTED and stable >= 0 else high_watermark
        return None if visible >= self._range.end else _AGAIN

    def _part(self, data: memoryview, aborted: list[tuple[int, int]] | None) -> _Part | _Again:
        headers, whole, fault = parse_headers(data)
        if not headers and fault is None:
            # Brokers before KIP-74 cut a batch that is larger than what was asked for.
            self._max_bytes = min(2 * self._max_bytes, self._settings.receive_message_max_bytes)
            return _AGAIN
        following = headers[-1].next_offset if headers else self._offset
        is_behind_a_loss, self._is_behind_a_loss = self._is_behind_a_loss, False
        return _Part(
            self._offset,
            data[:whole],
            tuple(aborted or ()),
            max(following, self._offset),
            is_behind_a_loss,
            fault,
        )

    async def _on_error(self, code: int) -> _Again | None:
        if code == ErrorCode.offset_out_of_range:
            return await self._out_of_range()
        error = error_of(code, about=str(self._place))
        if code in _PARTITION_GONE:
            self._gone += 1
            await self._cluster.refresh([self._place.topic])
            if self._gone >= _GONE_ATTEMPTS:
                self._lost("is gone")
                return None
            raise error
        if code in REFRESHES_METADATA:
            await self._cluster.refresh([self._place.topic])
            return _AGAIN
        if is_retriable(code):
            return _AGAIN
        raise error

    async def _is_same_topic(self) -> bool:
        """As far as ids tell, where the plan has one. What is known here may be older than the plan, so it is asked."""
        planned = self._range.topic_id
        for attempt in range(2):
            info = self._cluster.metadata.topics.get(self._place.topic)
            if planned is None or info is None or info.error_code or info.id in (None, planned):
                return True
            if not attempt:
                await self._cluster.refresh([self._place.topic])
        return False

    def _lost(self, what: str) -> None:
        report_data_loss(
            f"{self._place} {what} before offsets {self._offset} to {self._range.end} were read",
            self._request.fail_on_data_loss,
        )

    async def _out_of_range(self) -> _Again | None:
        """Records that retention or a user deleted while they were being read; or a log that ends before the range."""
        specs = {self._place: OffsetSpec.EARLIEST}
        found = (await list_offsets(self._cluster, specs, False, None)).check()
        first = found[self._place].offset
        if first > self._offset:
            upto = min(first, self._range.end)
            report_data_loss(
                f"offsets {self._offset} to {upto} of {self._place} are not there any more: it begins at {first} now",
                self._request.fail_on_data_loss,
            )
            self._offset = upto
            self._is_behind_a_loss = True
            return _AGAIN if upto < self._range.end else None
        report_data_loss(
            f"offset {self._offset} of {self._place} is behind its end: the topic was deleted and made again, or lost "
            f"its last records",
            self._request.fail_on_data_loss,
        )
        return None


class _Again:
    """The same request once more."""


_AGAIN = _Again()
