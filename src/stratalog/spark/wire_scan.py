"""Reads a range of offsets of a partition over the wire, from any Kafka-compatible broker, as Arrow batches.

Fetched batches go to the decoder in one piece. The client's thread requests the next part as soon as one has arrived,
up to a limit, while the task's thread decodes. The scan follows the leader when it moves. While the broker is away, it
retries for `patience_seconds` after the last part.

Offsets without a record are not data loss: compaction and transactions leave gaps. Records are lost if they are before
the log start offset or after the log end offset, or if the topic is not the one that was planned.
"""

from __future__ import annotations

import asyncio
import queue
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from stratalog.client.administration.records import OffsetSpec, list_offsets
from stratalog.client.backoff import Backoff
from stratalog.client.connections import Purpose
from stratalog.client.errors import error_of
from stratalog.client.fetch_exchange import (
    FetchErrorAction,
    FetchExchange,
    FetchParameters,
    PartitionResponse,
    action_for,
)
from stratalog.client.metadata import PartitionInfo, TopicPartition
from stratalog.errors import BrokerUnreachableError, ClientError, RequestTimeoutError, StratalogError
from stratalog.protocol.api_keys import ApiKey
from stratalog.protocol.error_codes import ErrorCode
from stratalog.protocol.fetch import WantedPartition
from stratalog.records._framing import parse_headers
from stratalog.spark.broker_client import BrokerClient, using
from stratalog.spark.data_loss import report_data_loss
from stratalog.spark.decoding import Decoder
from stratalog.spark.scan_request import READ_COMMITTED

if TYPE_CHECKING:
    from stratalog.spark.scan_request import OffsetRange, ScanRequest

_QUEUED_PARTS = 3  # fetched parts that may wait for the decoder
_MISSING_ATTEMPTS = 5  # a broker that has just started may not know an existing topic yet


def scan(range: OffsetRange, request: ScanRequest) -> Iterator[pa.RecordBatch]:
    """Yield the rows of the range that the request selects. Raises DataLossError, CorruptBatchError or ClientError."""
    if range.size <= 0:
        return
    decoder = _decoder(range, request, range.start)
    with using(request.kafka) as client:
        for part in _RangeFetch(client, range, request, decoder.next_offset).parts():
            if part.follows_loss:
                # Its first batch may also contain records from before the loss, so a new decoder starts here.
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
    """Complete batches from the response to a request for `offset`. `fault` is the error in the bytes after them."""

    offset: int
    data: memoryview
    aborted: tuple[tuple[int, int], ...]
    next_offset: int
    follows_loss: bool
    fault: StratalogError | None = None


class _RangeFetch:
    """Fetches the parts of a range. All methods except `parts` run in the client's thread."""

    def __init__(self, client: BrokerClient, range: OffsetRange, request: ScanRequest, start: int) -> None:
        settings = client.settings
        self._client = client
        self._cluster = client.cluster
        self._settings = settings
        self._range = range
        self._request = request
        self._partition = TopicPartition(range.topic, range.partition)
        self._offset = max(start, range.start)
        self._max_bytes = max(1, settings.max_partition_fetch_bytes)
        self._read_committed = request.isolation == READ_COMMITTED
        self._backoff = Backoff(settings.retry_backoff_ms, settings.retry_backoff_max_ms)
        self._out: queue.SimpleQueue[_Part | BaseException | None] = queue.SimpleQueue()
        self._room = asyncio.Semaphore(_QUEUED_PARTS)
        self._missing_attempts = 0
        self._follows_loss = False

    def parts(self) -> Iterator[_Part]:
        running = self._client.io.submit(self._run())
        try:
            while (part := self._out.get()) is not None:
                if isinstance(part, asyncio.CancelledError):
                    raise ClientError(f"the client was closed while it read {self._range}")
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
        """Return the next part, or None if nothing is left in the range."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._request.patience_seconds
        failures = 0
        last_error: ClientError | None = None
        while True:
            try:
                async with asyncio.timeout_at(deadline):
                    leader = await self._leader()
                    if not await self._is_planned_topic():
                        self._report_lost_rest("was deleted and created again")
                        return None
                    fetched, response = await self._fetch(leader)
                    outcome = await self._outcome(fetched, response)
                if outcome is not _RETRY:
                    return outcome if isinstance(outcome, _Part) else None
                last_error = last_error or BrokerUnreachableError(
                    f"{self._range}: the leader does not have these offsets yet"
                )
            except ClientError as error:
                if not error.is_retriable:
                    raise
                last_error = error
                self._cluster.refresh_soon()
            except TimeoutError:
                pass
            failures += 1
            wait = self._backoff.seconds(failures)
            if loop.time() + wait >= deadline:
                raise self._timed_out(last_error)
            await asyncio.sleep(wait)

    def _timed_out(self, last_error: ClientError | None) -> ClientError:
        cause = last_error or self._cluster.last_failure
        return RequestTimeoutError(
            f"{self._range}: no records arrived within {self._request.patience_seconds:g} s, at offset {self._offset}"
            f"{f': {cause}' if cause else ''}; kafkaConsumer.pollTimeoutMs sets this timeout"
        )

    # One request

    async def _fetch(self, leader: PartitionInfo) -> tuple[PartitionResponse, memoryview]:
        connection = await self._cluster.connection(leader.leader, Purpose.DATA)
        parameters = FetchParameters(
            max_wait_ms=self._settings.fetch_max_wait_ms,
            min_bytes=1,
            max_bytes=max(self._max_bytes, self._settings.fetch_max_bytes),
            read_committed=self._read_committed,
            rack_id=self._settings.client_rack,
        )
        exchange = FetchExchange(
            parameters,
            {self._partition: WantedPartition(self._offset, leader.leader_epoch, self._max_bytes)},
            {self._partition.topic: self._cluster.metadata.topics[self._partition.topic].id},
        )
        version = connection.version_of(ApiKey.FETCH, *exchange.versions)
        seconds = self._settings.request_timeout_ms / 1000
        response = await connection.exchange(ApiKey.FETCH, version, [exchange.request(version)], timeout=seconds)
        broker = f"{connection.host}:{connection.port}"
        for _, fetched in exchange.response(response, about=f"fetch of {self._partition} from {broker}"):
            return fetched, response
        raise BrokerUnreachableError(f"{broker}: the Fetch response does not contain {self._partition}")

    async def _leader(self) -> PartitionInfo:
        leader = self._cluster.metadata.leader_of(*self._partition)
        if leader is None:
            await self._cluster.refresh([self._partition.topic])
            leader = self._cluster.metadata.leader_of(*self._partition)
        if leader is None:
            info = self._cluster.metadata.topics.get(self._partition.topic)
            code = ErrorCode.unknown_topic_or_partition if info is None else info.error_code
            raise error_of(int(code) or int(ErrorCode.leader_not_available), about=str(self._partition))
        return leader

    # Its outcome

    async def _outcome(self, fetched: PartitionResponse, response: memoryview) -> _Part | _Retry | None:
        """Return a part, or _RETRY, or None if nothing is left in the range."""
        if fetched.error_code:
            return await self._on_error(fetched.error_code)
        if fetched.end > fetched.start:
            return self._part(response[fetched.start : fetched.end], fetched.aborted)
        # There is no batch up to the leader's end: the rest of the range was compacted away.
        is_stable_known = self._read_committed and fetched.last_stable_offset >= 0
        visible = fetched.last_stable_offset if is_stable_known else fetched.high_watermark
        return None if visible >= self._range.end else _RETRY

    def _part(self, data: memoryview, aborted: list[tuple[int, int]] | None) -> _Part | _Retry:
        headers, length, fault = parse_headers(data)
        if not headers and fault is None:
            # Brokers before KIP-74 truncate a batch that is larger than the request allows.
            self._max_bytes = min(2 * self._max_bytes, self._settings.receive_message_max_bytes)
            return _RETRY
        next_offset = headers[-1].next_offset if headers else self._offset
        follows_loss, self._follows_loss = self._follows_loss, False
        return _Part(
            self._offset,
            data[:length],
            tuple(aborted or ()),
            max(next_offset, self._offset),
            follows_loss,
            fault,
        )

    async def _on_error(self, code: int) -> _Retry | None:
        match action_for(code):
            case FetchErrorAction.CHECK_OFFSET:
                return await self._out_of_range()
            case FetchErrorAction.CHECK_TOPIC:
                self._missing_attempts += 1
                await self._cluster.refresh([self._partition.topic])
                if self._missing_attempts >= _MISSING_ATTEMPTS:
                    self._report_lost_rest("was deleted")
                    return None
                raise error_of(code, about=str(self._partition))
            case FetchErrorAction.REFRESH_METADATA:
                await self._cluster.refresh([self._partition.topic])
                return _RETRY
            case FetchErrorAction.RETRY:
                return _RETRY
            case FetchErrorAction.FAIL:
                raise error_of(code, about=str(self._partition))

    async def _is_planned_topic(self) -> bool:
        """Return False if the topic's id is not the planned one. Metadata that differs may be older than the plan, so
        it is refreshed first. Without ids, the answer is True."""
        planned = self._range.topic_id
        for attempt in range(2):
            info = self._cluster.metadata.topics.get(self._partition.topic)
            if planned is None or info is None or info.error_code or info.id in (None, planned):
                return True
            if not attempt:
                await self._cluster.refresh([self._partition.topic])
        return False

    def _report_lost_rest(self, event: str) -> None:
        report_data_loss(
            f"{self._partition} {event} before offsets {self._offset} to {self._range.end} were read",
            self._request.fail_on_data_loss,
        )

    async def _out_of_range(self) -> _Retry | None:
        """Handle records that retention or a user has deleted, or a log that ends before the range."""
        specs = {self._partition: OffsetSpec.EARLIEST}
        offsets = (await list_offsets(self._cluster, specs, False, None)).check()
        log_start = offsets[self._partition].offset
        if log_start > self._offset:
            next_offset = min(log_start, self._range.end)
            report_data_loss(
                f"offsets {self._offset} to {next_offset} of {self._partition} were deleted before they were read: the "
                f"log starts at offset {log_start}",
                self._request.fail_on_data_loss,
            )
            self._offset = next_offset
            self._follows_loss = True
            return _RETRY if next_offset < self._range.end else None
        report_data_loss(
            f"offset {self._offset} of {self._partition} is after the log end offset: the topic was deleted and "
            f"created again, or lost its last records",
            self._request.fail_on_data_loss,
        )
        return None


class _Retry:
    """The outcome that calls for the same request again."""


_RETRY = _Retry()
