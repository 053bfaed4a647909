"""Fetch (key 1), versions 4-18, with sessions (KIP-227): topics by name below 13, by id from there on.

Records go from the file to the socket. A fetch that finds fewer than min_bytes waits until enough was appended or its
time is over, and costs nothing meanwhile. Batches that may have to be read from the disk are read into the page cache
by a thread first: only the fetches that request them wait, and a fetch that has enough from other partitions is
answered without them. read_committed readers get records up to the last stable offset, with the aborted transactions
among them. What a response of the session has already reported about a partition is not repeated.

In a cluster, followers fetch too. A follower reads up to the log end offset, and its fetch reports what it has; a
consumer reads up to the high watermark. A follower whose log diverges from this one gets the epoch and the offset up to
which they may agree, and one that needs records from before the log start offset gets that offset with
OFFSET_OUT_OF_RANGE. A single broker answers a follower with NOT_LEADER_OR_FOLLOWER. From version 16 on, the errors
NOT_LEADER_OR_FOLLOWER and FENCED_LEADER_EPOCH of a cluster name the current leader and its address.

With `replica.selector.class` (KIP-392), the leader's response names an in-sync replica in the rack that the consumer
names, and no records. A follower serves such a consumer up to its own high watermark: a fetch from there on waits, and
one from after the end of its log gets OFFSET_NOT_AVAILABLE.

Known gap: there are no tiered segments.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple, cast

from stratalog.broker.apis.leader_epoch_check import check_leader_epoch
from stratalog.broker.apis.replicated_fetch import (
    FetchingFollower,
    diverging_epoch_of_client,
    is_idle_follower,
    refusal_of_replicated,
)
from stratalog.broker.counters import Counters
from stratalog.broker.fetch_sessions import (
    FINAL_EPOCH,
    INITIAL_EPOCH,
    CachedPartition,
    CachedSession,
    FetchSessions,
    TopicKey,
)
from stratalog.broker.long_polls import LongPolls, long_poll_bytes
from stratalog.broker.metadata.topics import TopicRegistry
from stratalog.broker.partition import Partition
from stratalog.broker.waiting import WaitingFetch
from stratalog.broker.worker_threads import WorkerThreads
from stratalog.errors import OffsetOutOfRangeError, StratalogError
from stratalog.net.response_queue import Part
from stratalog.protocol._wire import parse_fetch
from stratalog.protocol.error_codes import ErrorCode
from stratalog.protocol.fetch import FIRST_FLEXIBLE, NO_REPLICA, FetchedPartition, encode_fetch_response
from stratalog.protocol.frames import response_start
from stratalog.storage.appending import WouldWaitError
from stratalog.storage.log import Log

if TYPE_CHECKING:
    from stratalog.protocol._wire import FetchPartition

_READ_COMMITTED = 1
_NO_TIME = 0.001  # seconds; timers are no finer
_FIRST_WITH_SESSIONS = 7
_FIRST_WITH_RACK = 11
_FIRST_BY_ID = 13
_MOST_READS_AHEAD = 64  # for fetches that are already answered
_MOST_WARM = 1_000  # reads into the page cache that are remembered until a fetch makes use of them


class _ColdRead(NamedTuple):
    """Batches that may have to be read from the disk."""

    log: Log
    offset: int
    max_bytes: int


class _Fetch(NamedTuple):
    """A request, once its session is known."""

    version: int
    correlation_id: int
    session: CachedSession | None
    partitions: Iterable[CachedPartition]
    follower: FetchingFollower | None
    rack: str | None  # of a consumer; None in versions without it
    committed_only: bool
    min_bytes: int
    max_bytes: int
    is_full: bool  # reports every partition, not only those that changed


class _Result(NamedTuple):
    fetched: list[tuple[CachedPartition, FetchedPartition]]
    size: int
    must_not_wait: bool
    waits_for: list[Partition]
    cold: list[_ColdRead]


class FetchApi:
    def __init__(
        self,
        topics: TopicRegistry,
        sessions: FetchSessions,
        counters: Counters,
        worker_threads: WorkerThreads,
        long_polls: LongPolls,
        *,
        max_bytes: Callable[[], int],
        longest_wait: float,
    ) -> None:
        self._topics = topics
        self._sessions = sessions
        self._counters = counters
        self._worker_threads = worker_threads
        self._long_polls = long_polls
        self._max_bytes = max_bytes
        self._longest_wait = longest_wait
        self._waiting: set[WaitingFetch] = set()
        self._reads_ahead: set[asyncio.Future[None]] = set()
        self._warm: OrderedDict[tuple[Log, int], int] = OrderedDict()  # bytes that a thread has read, by log and offset
        self._draining = False

    def drain(self) -> None:
        """Answer all waiting fetches with what there is. From here on no fetch waits."""
        self._draining = True
        for waiting in tuple(self._waiting):
            waiting.finish()

    def serve(
        self, frame: memoryview, position: int, version: int, correlation_id: int
    ) -> list[Part] | Awaitable[list[Part]]:
        replica, max_wait, min_bytes, max_bytes, isolation, session_id, epoch, topics, forgotten, rack = parse_fetch(
            frame, position, version
        )
        session, error = self._session(version, session_id, epoch, topics, forgotten)
        if error:
            return self._respond(version, correlation_id, [], int(error), 0)
        is_full = version < _FIRST_WITH_SESSIONS or epoch in (INITIAL_EPOCH, FINAL_EPOCH)
        fetch = _Fetch(
            version,
            correlation_id,
            session,
            session.partitions.values() if session is not None else _sessionless(topics),
            None if replica is None else FetchingFollower(*replica),
            rack if version >= _FIRST_WITH_RACK else None,
            isolation == _READ_COMMITTED,
            min_bytes,
            min(max_bytes, self._max_bytes()),
            is_full,
        )
        result = self.read(fetch)
        if self.is_enough(result, min_bytes) or (max_wait <= 0 and not result.cold):
            return self.finish(fetch, result)
        size = long_poll_bytes(result.waits_for, () if session is not None else fetch.partitions)
        if not self._long_polls.admit(size):
            return self._wait(fetch, result, 0) if result.cold else self.finish(fetch, result)
        response = self._wait(fetch, result, min(max(max_wait, 0) / 1000, self._longest_wait))
        response.add_done_callback(lambda _: self._long_polls.release(size))
        return response

    def is_enough(self, result: _Result, min_bytes: int) -> bool:
        if result.size >= min_bytes and (result.size or not result.cold):
            return True
        return result.must_not_wait or self._draining or not (result.waits_for or result.cold)

    def _wait(self, fetch: _Fetch, result: _Result, seconds: float) -> asyncio.Future[list[Part]]:
        """Register the fetch with its partitions before this returns: an append may follow in the same turn of the
        event loop, and must find it."""
        pending = _PendingFetch(self, fetch, seconds)
        pending.wait_for(result, seconds)
        return pending.response

    def poll(self, partitions: Iterable[Partition], missing: int, seconds: float, *, is_follower: bool) -> WaitingFetch:
        """Wait until so many bytes can be read from the partitions, or the time is over."""
        waiting = WaitingFetch(partitions, missing, seconds, is_follower=is_follower)
        self._waiting.add(waiting)
        waiting.done.add_done_callback(lambda _: self._waiting.discard(waiting))
        return waiting

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    # Batches on the disk

    def warm_up(self, fetch: _Fetch, cold: list[_ColdRead]) -> asyncio.Future[None]:
        """Read batches into the page cache in a thread, no more than the fetch may return. The next read of them is
        made, whether or not the kernel has dropped some again: a fetch must get on."""

        def read() -> None:
            room = max(fetch.max_bytes, 0)
            for log, offset, max_bytes in cold:
                size = log.warm_up(offset, min(max_bytes, room))
                self._warm[log, offset] = size
                room -= size
                if room <= 0:
                    break
            while len(self._warm) > _MOST_WARM:
                self._warm.popitem(last=False)

        return asyncio.ensure_future(self._worker_threads.read_ahead(read))

    def _read_ahead(self, fetch: _Fetch, cold: list[_ColdRead]) -> None:
        """Read batches into the page cache for the next fetch; this one is answered without them."""
        if len(self._reads_ahead) < _MOST_READS_AHEAD:
            reading = self.warm_up(fetch, cold)
            self._reads_ahead.add(reading)
            reading.add_done_callback(self._reads_ahead.discard)

    # Sessions

    def _session(
        self,
        version: int,
        session_id: int,
        epoch: int,
        topics: list[tuple[TopicKey, list[FetchPartition]]],
        forgotten: list[tuple[TopicKey, list[int]]],
    ) -> tuple[CachedSession | None, int]:
        if version < _FIRST_WITH_SESSIONS:
            return None, 0
        by_id = version >= _FIRST_BY_ID
        if epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            if session_id:
                self._sessions.close(session_id)
            if epoch == FINAL_EPOCH:
                return None, 0
            session = self._sessions.open(topics, by_topic_id=by_id)
            if session is not None and not self._sessions.remember(session, topics):
                session = None  # it fetches in full each time
            return session, 0
        resumed = self._sessions.resume(session_id, epoch, by_topic_id=by_id)
        if isinstance(resumed, CachedSession):
            if not self._sessions.remember(resumed, topics, forgotten):
                return None, ErrorCode.fetch_session_id_not_found  # makes the client fetch in full
            return resumed, 0
        return None, resumed

    # Reading

    def read(self, fetch: _Fetch) -> _Result:
        fetched = []
        size = 0
        must_not_wait = False
        waits_for = []
        cold: list[_ColdRead] = []
        for cached in fetch.partitions:
            partition, part = self._fetch_partition(cached, fetch, fetch.max_bytes - size, cold, first=size == 0)
            if partition is not None:
                waits_for.append(partition)
            if part is None:
                continue
            if part.records is not None:
                size += len(part.records)
            if part.error_code or part.diverging_epoch is not None:
                must_not_wait = True
            elif fetch.follower is not None and part.log_start_offset > cached.requested[5]:
                must_not_wait = True  # DeleteRecords waits until the follower has deleted the records too
            elif part.preferred_replica != NO_REPLICA:
                must_not_wait = True
            fetched.append((cached, part))
        if fetch.follower is not None:
            fetch.follower.is_recorded = True
        return _Result(fetched, size, must_not_wait, waits_for, cold)

    def _fetch_partition(
        self, cached: CachedPartition, fetch: _Fetch, room: int, cold: list[_ColdRead], *, first: bool
    ) -> tuple[Partition | None, FetchedPartition | None]:
        """Return the partition, if the fetch may wait for it, and what to report about it, None if nothing is new. Add
        to `cold` if its batches may have to be read from the disk: they are not part of the report then."""
        index, current_epoch, offset, last_epoch, max_bytes, _ = cached.requested
        partition, error = self._find(cached.topic, index)
        if partition is None:
            return None, FetchedPartition(index, int(error))
        if partition.is_replicated or fetch.follower is not None:
            if not fetch.is_full and is_idle_follower(partition, cached, fetch.follower):
                return partition, None
            refusal = refusal_of_replicated(partition, cached, fetch.follower, fetch.rack)
            if refusal is not None:
                return None, refusal
            return partition, self._read_partition(
                cached, partition, fetch, min(max(room, 0), max(max_bytes, 0)), cold, first
            )
        log = partition.log
        end, start = log.log_end_offset, log.log_start_offset
        knows_all = offset == end == cached.high_watermark and start == cached.log_start_offset and not fetch.is_full
        if knows_all and current_epoch in (-1, partition.leader_epoch):
            return partition, None  # at the end: the most common case by far
        error = check_leader_epoch(partition, current_epoch)
        if error:
            return None, FetchedPartition(index, int(error))
        if last_epoch >= 0:
            diverging = diverging_epoch_of_client(partition, last_epoch, offset)
            if diverging is not None:
                return None, FetchedPartition(index, 0, end, -1, start, diverging_epoch=diverging)
        return partition, self._read_partition(
            cached, partition, fetch, min(max(room, 0), max(max_bytes, 0)), cold, first
        )

    def _read_partition(
        self,
        cached: CachedPartition,
        partition: Partition,
        fetch: _Fetch,
        max_bytes: int,
        cold: list[_ColdRead],
        first: bool,
    ) -> FetchedPartition | None:
        log = partition.log
        offset = cached.requested[2]
        stable = partition.last_stable_offset
        limit = stable if fetch.committed_only else None
        if partition.is_replicated and limit is None and fetch.follower is None:
            limit = partition.high_watermark
        records: Part | None = None
        aborted: list[tuple[int, int]] | None = [] if fetch.committed_only else None
        warm_bytes = self._warm.pop((log, offset), None) if self._warm and (max_bytes or first) else None
        try:
            if warm_bytes is None:
                read = log.read_at_once(offset, max_bytes, max_offset=limit, at_least_one=first)
            else:
                read = log.read(offset, min(max_bytes, warm_bytes), max_offset=limit, at_least_one=True)
            end, start = read.log_end_offset, read.log_start_offset
            if read.slice.length:
                records = read.slice.sendable()
                if fetch.committed_only:
                    aborted = [(each.producer_id, each.first_offset) for each in log.aborted_in(read, offset, stable)]
        except WouldWaitError:
            if max_bytes or first:
                cold.append(_ColdRead(log, offset, max_bytes))
            end, start = log.log_end_offset, log.log_start_offset
        except OffsetOutOfRangeError:
            return FetchedPartition(cached.partition, int(ErrorCode.offset_out_of_range))
        except StratalogError as error:
            self._counters.failed_fetch += 1
            partition.report_unreadable(error)
            return FetchedPartition(cached.partition, error.code)
        if partition.is_replicated:
            end = partition.high_watermark
        is_news = records is not None or end != cached.high_watermark or start != cached.log_start_offset
        if not is_news and not fetch.is_full:
            return None
        return FetchedPartition(cached.partition, 0, end, min(stable, end), start, aborted, records)

    def _find(self, topic: TopicKey, index: int) -> tuple[Partition | None, int]:
        if isinstance(topic, bytes):
            known = self._topics.by_id_bytes(topic)
            if known is None:
                return None, ErrorCode.unknown_topic_id
            topic = known.name
        return self._topics.partition(topic, index), ErrorCode.unknown_topic_or_partition

    # Responding

    def finish(self, fetch: _Fetch, result: _Result) -> list[Part]:
        by_topic: dict[TopicKey, list[FetchedPartition]] = {}
        session = fetch.session
        if result.cold:
            self._read_ahead(fetch, result.cold)
        for cached, fetched in result.fetched:
            by_topic.setdefault(cached.topic, []).append(fetched)
            if session is not None:
                # An error is reported again each time, until the client acts on it.
                cached.high_watermark = -1 if fetched.error_code else fetched.high_watermark
                cached.log_start_offset = -1 if fetched.error_code else fetched.log_start_offset
                if fetched.records is not None:
                    session.move_to_end(cached)
        self._counters.record_bytes_out += result.size
        session_id = 0 if session is None else session.id
        return self._respond(fetch.version, fetch.correlation_id, list(by_topic.items()), 0, session_id)

    def _respond(
        self,
        version: int,
        correlation_id: int,
        topics: list[tuple[TopicKey, list[FetchedPartition]]],
        error_code: int,
        session_id: int,
    ) -> list[Part]:
        pieces, size = encode_fetch_response(version, error_code, session_id, topics)
        start = response_start(correlation_id, size, flexible=version >= FIRST_FLEXIBLE)
        return [start, *cast("list[Part]", pieces)]


class _PendingFetch:
    """A fetch that waits for more records, or for a thread that reads batches into the page cache.

    Once the response is there, nothing refers to it but its connection: it may hold descriptors of many segments, which
    must not wait for the garbage collector.
    """

    def __init__(self, api: FetchApi, fetch: _Fetch, seconds: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._api = api
        self._fetch = fetch
        self._deadline = self._loop.time() + seconds
        self._poll: WaitingFetch | None = None
        self._reading: asyncio.Future[None] | None = None
        self.response: asyncio.Future[list[Part]] = self._loop.create_future()
        self.response.add_done_callback(self._leave)

    def wait_for(self, result: _Result, seconds: float) -> None:
        if result.cold:
            self._reading = self._api.warm_up(self._fetch, result.cold)
            self._reading.add_done_callback(self._read_again)
            return
        self._poll = self._api.poll(
            result.waits_for,
            self._fetch.min_bytes - result.size,
            seconds,
            is_follower=self._fetch.follower is not None,
        )
        self._poll.done.add_done_callback(self._read_again)

    def _read_again(self, waited: asyncio.Future[None]) -> None:
        if self.response.done():  # the client closed its connection
            return
        try:
            waited.result()
            result = self._api.read(self._fetch)
            seconds = self._deadline - self._loop.time()
            # New records may be part of an open transaction: a read_committed reader waits on for its end.
            if (seconds <= _NO_TIME and not result.cold) or self._api.is_enough(result, self._fetch.min_bytes):
                self.response.set_result(self._api.finish(self._fetch, result))
            else:
                self.wait_for(result, seconds)
        except Exception as error:
            self.response.set_exception(error)

    def _leave(self, _: asyncio.Future[list[Part]]) -> None:
        if self._poll is not None:
            self._poll.finish()
        if self._reading is not None:
            self._reading.cancel()  # of a client that closed its connection; a thread may not have begun yet


def _sessionless(topics: list[tuple[TopicKey, list[FetchPartition]]]) -> Iterable[CachedPartition]:
    """Return each partition once: one that a request names a thousand times is answered once."""
    once = {
        (topic, requested[0]): CachedPartition(topic, requested[0], requested)
        for topic, partitions in topics
        for requested in partitions
    }
    return once.values()
