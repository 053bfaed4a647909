"""Copies partitions from their leader to this broker, which follows.

A fetcher has one connection to one leader, and one request in flight. Its partitions are appended in a thread, as they
were received: a batch is checked and written, never rebuilt. A follower whose log diverges from the leader's is
truncated first, by leader epochs and never by the high watermark.

A role changes while nothing is appended: `remove` returns when no thread works on the partition any more.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from stratalog.broker.replication.config import ClusterConfig
from stratalog.broker.replication.partition import ReplicatedPartition
from stratalog.broker.replication.truncation import EpochEnd, truncation_offset
from stratalog.errors import ClientError, MalformedResponseError, StratalogError
from stratalog.net.broker_connection import BrokerConnection
from stratalog.protocol._fetch_response import parse_fetch_response
from stratalog.protocol.api_keys import ApiKey
from stratalog.protocol.error_codes import ErrorCode
from stratalog.protocol.fetch import HIGHEST, WantedPartition, encode_fetch_request
from stratalog.protocol.fetch_session import FetchSession, Key
from stratalog.storage.appending import WouldWaitError

logger = logging.getLogger(__name__)

_LOWEST = 15  # the first version with a follower's broker epoch
_LARGEST_BATCH = 256 * 1024 * 1024  # beyond the limits of a request
_STALE_VIEW = (
    ErrorCode.not_leader_or_follower,
    ErrorCode.fenced_leader_epoch,
    ErrorCode.unknown_leader_epoch,
    ErrorCode.unknown_topic_id,
    ErrorCode.unknown_topic_or_partition,
)
_STALE_VIEW_SECONDS = 0.05  # the leader or this broker learns of the change in a moment; doubled each time
_REFRESH_SECONDS = 5.0  # after which all positions are sent as they are now
_BYTES_AT_ONCE = 512 * 1024  # of a response that the event loop appends itself
_QUICK_SECONDS = 0.005
"""A leader that can't hold a request answers at once, without records. This is the pause before the next request."""


class Leader(NamedTuple):
    """The broker that is fetched from, in one registration."""

    node_id: int
    host: str
    port: int
    epoch: int


class _Copied(NamedTuple):
    """One partition of a response, and the leader epoch for which it was requested."""

    key: Key
    partition: ReplicatedPartition
    leader_epoch: int
    error: int
    high_watermark: int
    log_start_offset: int
    records: memoryview
    diverging: EpochEnd | None


class ReplicaFetcher:
    def __init__(
        self,
        leader: Leader,
        config: ClusterConfig,
        node_id: int,
        broker_epoch: Callable[[], int],
        in_thread: Callable[[Callable[[], None]], Awaitable[None]],
    ) -> None:
        """`broker_epoch` returns the epoch of this broker's registration; `in_thread` runs work that waits for the
        disk."""
        self.leader = leader
        self._config = config
        self._node_id = node_id
        self._broker_epoch = broker_epoch
        self._in_thread = in_thread
        self._partitions: dict[Key, ReplicatedPartition] = {}
        self._not_before: dict[Key, float] = {}  # when a partition with an error is fetched again
        self._stale_for: dict[Key, float] = {}  # the next pause of a partition whose leader is not known here
        self._loop = asyncio.get_running_loop()
        self._positions: dict[Key, WantedPartition] = {}  # what the next request is for
        self._outdated: set[Key] = set()  # whose positions may have changed
        self._refreshed_at = self._loop.time()
        self._changed = asyncio.Event()
        self._is_appending = False
        self._appended = asyncio.Event()
        self._connection: BrokerConnection | None = None
        self._session = FetchSession()
        self._is_unreachable = False
        self._task = asyncio.create_task(self._run(), name=f"fetcher of {leader.node_id}")

    def __len__(self) -> int:
        return len(self._partitions)

    def add(self, partition: ReplicatedPartition) -> None:
        """Copy this partition too. A request that waits at the leader is given up, so that it begins at once."""
        key = _key(partition)
        self._partitions[key] = partition
        self._forget_errors(key)
        self._outdated.add(key)
        self._changed.set()
        if self._connection is not None and self._connection.in_flight and not self._is_appending:
            self._connection.close()

    async def remove(self, partition: ReplicatedPartition) -> None:
        """Stop copying the partition, and return when no thread works on it."""
        key = _key(partition)
        self._partitions.pop(key, None)
        self._forget_errors(key)
        self._outdated.add(key)
        await self._until_appended()

    async def stop(self) -> None:
        self._partitions.clear()
        await self._until_appended()
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._disconnect()

    async def _until_appended(self) -> None:
        while self._is_appending:
            self._appended.clear()
            await self._appended.wait()

    def _forget_errors(self, key: Key) -> None:
        self._not_before.pop(key, None)
        self._stale_for.pop(key, None)

    # The loop

    async def _run(self) -> None:
        while True:
            try:
                await self._fetch_once()
            except ClientError as error:
                self._session.failed()
                self._disconnect()
                if error.code == ErrorCode.network_exception and self._connection_was_given_up():
                    continue
                self._report_unreachable(error)
                await asyncio.sleep(self._config.replica_fetch_backoff_ms / 1000)
            except Exception:
                logger.exception("copying from broker %d failed; it is tried again", self.leader.node_id)
                self._session.failed()
                self._disconnect()
                await asyncio.sleep(self._config.replica_fetch_backoff_ms / 1000)

    def _connection_was_given_up(self) -> bool:
        """Return whether partitions were added, for which the connection was closed."""
        if self._changed.is_set():
            self._changed.clear()
            return True
        return False

    async def _fetch_once(self) -> None:
        now = self._loop.time()
        self._update_positions(now)
        if not self._positions:
            await self._wait_for_work(now)
            return
        self._changed.clear()
        request = self._session.next_request(self._positions)
        connection = await self._connected()
        version = connection.version_of(ApiKey.FETCH, _LOWEST, HIGHEST)
        body = encode_fetch_request(
            version,
            max_wait_ms=self._longest_wait_ms(now),
            min_bytes=self._config.replica_fetch_min_bytes,
            max_bytes=self._config.replica_fetch_response_max_bytes,
            read_committed=False,
            session_id=request.session_id,
            session_epoch=request.epoch,
            topics=request.topics,
            forgotten=request.forgotten,
            replica=(self._node_id, self._broker_epoch()),
        )
        timeout = (self._config.replica_socket_timeout_ms + self._config.replica_fetch_wait_max_ms) / 1000
        response = await connection.exchange(ApiKey.FETCH, version, [body], timeout=timeout)
        if self._is_unreachable:
            logger.info("broker %d answers again", self.leader.node_id)
            self._is_unreachable = False
        _, error, session_id, topics = parse_fetch_response(response, version)
        self._session.answered(session_id, error)
        copied = []
        for topic, partitions in topics:
            for fields in partitions:
                key = topic, fields[0]
                if (position := self._positions.get(key)) is None:
                    raise MalformedResponseError(
                        f"broker {self.leader.node_id} sent a partition that was not requested"
                    )
                partition = self._partitions.get(key)
                if partition is not None:  # else this broker does not follow it any more
                    records = response[fields[6] : fields[7]]
                    epoch = position.leader_epoch
                    copied.append(_Copied(key, partition, epoch, fields[1], fields[2], fields[4], records, fields[9]))
        await self._take(copied)
        self._outdated.update(each.key for each in copied)
        if self._loop.time() - now < _QUICK_SECONDS and not any(len(each.records) for each in copied):
            await asyncio.sleep(_QUICK_SECONDS)

    def _update_positions(self, now: float) -> None:
        """Bring the positions up to date that may have changed. All others stay as they were sent: a broker may follow
        thousands of partitions, of which few get records."""
        if now >= self._refreshed_at + _REFRESH_SECONDS:  # retention moves log start offsets
            self._outdated.update(self._partitions)
            self._refreshed_at = now
        if self._not_before:
            self._outdated.update(key for key, at in self._not_before.items() if at <= now)
        for key in self._outdated:
            partition = self._partitions.get(key)
            if partition is None or partition.is_offline or self._not_before.get(key, 0.0) > now:
                self._positions.pop(key, None)
            else:
                self._positions[key] = self._position(partition)
        self._outdated.clear()

    async def _wait_for_work(self, now: float) -> None:
        """Wait until a partition is added, or one that had an error may be fetched again."""
        due = [at for key, at in self._not_before.items() if key in self._partitions]
        try:
            async with asyncio.timeout(max(min(due) - now, 0.001) if due else None):
                await self._changed.wait()
        except TimeoutError:
            pass
        self._changed.clear()

    def _longest_wait_ms(self, now: float) -> int:
        """Return how long the leader may hold the request: until a partition that had an error is due again."""
        longest = self._config.replica_fetch_wait_max_ms
        if not self._not_before:
            return longest
        due = [at - now for key, at in self._not_before.items() if at > now and key in self._partitions]
        return min([longest, *(max(int(seconds * 1000), 1) for seconds in due)])

    def _position(self, partition: ReplicatedPartition) -> WantedPartition:
        log = partition.log
        last_epoch = log.leader_epochs.latest
        return WantedPartition(
            log.log_end_offset,
            partition.leader_epoch,
            self._config.replica_fetch_max_bytes,
            -1 if last_epoch is None else last_epoch,
            log.log_start_offset,
        )

    # Taking over what the leader has

    async def _take(self, response: list[_Copied]) -> None:
        """Append, truncate, or remember an error, for each partition that still has the same leader epoch."""
        current = [
            copied
            for copied in response
            if self._partitions.get(copied.key) is copied.partition
            and copied.partition.leader_epoch == copied.leader_epoch
        ]
        work = [copied for copied in current if not self._has_failed(copied)]
        if not work:
            return
        ends = {copied.key: copied.partition.log.log_end_offset for copied in work}
        failures: dict[Key, StratalogError] = {}

        waiting = _append_at_once(work, failures)

        def change_logs() -> None:
            for copied in waiting:
                try:
                    _change_log(copied)
                except StratalogError as error:
                    failures[copied.key] = error

        if waiting:
            self._is_appending = True
            try:
                await asyncio.shield(asyncio.ensure_future(self._in_thread(change_logs)))
            finally:
                self._is_appending = False
                self._appended.set()
        for copied in work:
            failure = failures.get(copied.key)
            if failure is not None:
                self._delay(copied, f"can't follow broker {self.leader.node_id}: {failure}")
            elif copied.partition.log.log_end_offset < ends[copied.key] or copied.diverging is not None:
                copied.partition.truncated()
            else:
                self._forget_errors(copied.key)
                copied.partition.copied(copied.high_watermark, len(copied.records))

    def _has_failed(self, copied: _Copied) -> bool:
        """Return whether the leader answered with an error, other than one that says where its log starts."""
        key, partition, error = copied.key, copied.partition, copied.error
        if not error:
            return False
        if error == ErrorCode.offset_out_of_range and copied.log_start_offset >= 0:
            return copied.log_start_offset <= partition.log.log_end_offset  # a wrong answer: nothing is missing
        if error in _STALE_VIEW:
            longest = self._config.replica_fetch_backoff_ms / 1000
            seconds = self._stale_for.get(key, _STALE_VIEW_SECONDS)
            self._stale_for[key] = min(2 * seconds, longest)
            self._not_before[key] = self._loop.time() + seconds
        else:
            name = ErrorCode(error).name.upper()
            self._delay(copied, f"broker {self.leader.node_id} answers the fetch with {name}")
        return True

    def _delay(self, copied: _Copied, reason: str) -> None:
        if copied.key not in self._not_before:
            logger.warning("%s-%d: %s; it is tried again", copied.partition.topic, copied.partition.index, reason)
        self._not_before[copied.key] = self._loop.time() + self._config.replica_fetch_backoff_ms / 1000

    # The connection

    async def _connected(self) -> BrokerConnection:
        if self._connection is None or self._connection.is_closed:
            self._session.failed()
            self._connection = await BrokerConnection.open(
                self.leader.host,
                self.leader.port,
                client_id=f"broker-{self._node_id}-fetcher",
                timeout=self._config.replica_socket_timeout_ms / 1000,
                most_response_bytes=self._most_response_bytes(),
                receive_buffer=self._config.replica_socket_receive_buffer_bytes,
            )
        return self._connection

    def _most_response_bytes(self) -> int:
        """The first batch of a response may be larger than any limit of the request."""
        return 2 * self._config.replica_fetch_response_max_bytes + _LARGEST_BATCH

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _report_unreachable(self, error: ClientError) -> None:
        if not self._is_unreachable:
            logger.warning("broker %d can't be copied from: %s", self.leader.node_id, error)
            self._is_unreachable = True


def _key(partition: ReplicatedPartition) -> Key:
    return partition.id.topic_id.bytes, partition.index


def _append_at_once(response: list[_Copied], failures: dict[Key, StratalogError]) -> list[_Copied]:
    """Append what takes little time on the event loop: a thread would cost more than the append. Return the rest."""
    room = _BYTES_AT_ONCE
    rest = []
    for copied in response:
        log, size = copied.partition.log, len(copied.records)
        if (
            copied.error
            or copied.diverging is not None
            or log.log_start_offset < copied.log_start_offset
            or size > room
        ):
            rest.append(copied)
        elif size:
            room -= size
            try:
                log.append_from_leader_at_once(copied.records)
            except WouldWaitError:
                rest.append(copied)
            except StratalogError as error:
                failures[copied.key] = error
    return rest


def _change_log(copied: _Copied) -> None:
    """Append records, or remove what the leader does not have. Runs in a thread."""
    log = copied.partition.log
    if copied.error:  # the leader's log begins after the end of this one
        logger.warning(
            "%s-%d: the leader's log starts at offset %d, after the end of this one, %d; it is copied from there",
            copied.partition.topic,
            copied.partition.index,
            copied.log_start_offset,
            log.log_end_offset,
        )
        log.restart_at(copied.log_start_offset)
    elif copied.diverging is not None:
        offset = truncation_offset(log.leader_epochs, log.log_end_offset, copied.diverging)
        logger.info(
            "%s-%d: truncated from offset %d to %d: the leader's log diverges after epoch %d, offset %d",
            copied.partition.topic,
            copied.partition.index,
            log.log_end_offset,
            offset,
            *copied.diverging,
        )
        if offset < log.log_start_offset:
            log.restart_at(offset)
        else:
            log.truncate(offset)
    else:
        if len(copied.records):
            log.append_from_leader(copied.records)
        committed = min(copied.high_watermark, log.log_end_offset)
        if log.log_start_offset < copied.log_start_offset <= committed:
            log.high_watermark = max(log.high_watermark or 0, committed)
            log.advance_start(copied.log_start_offset)
