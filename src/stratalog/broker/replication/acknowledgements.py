"""The appends of a Produce request with acks=all that wait for the in-sync replicas.

The response is complete when the last of them is replicated, or has failed, or when the request's timeout is over. No
thread or task waits meanwhile, only a future and a timer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from stratalog.broker.partition import Partition
from stratalog.broker.replication.partition import OnReplicated, ReplicatedPartition
from stratalog.net.response_queue import Response
from stratalog.protocol.current_leader import CurrentLeader
from stratalog.protocol.error_codes import ErrorCode
from stratalog.protocol.produce import ProducedPartition

Results = list[tuple[str | bytes, list[ProducedPartition]]]

_LONGEST_WAIT_MS = 600_000  # a client can set any timeout

_MESSAGES = {
    ErrorCode.not_leader_or_follower: "another broker leads the partition now, and may not have the records",
    ErrorCode.not_enough_replicas_after_append: "the records are in the leader's log, but too few replicas are in sync",
    ErrorCode.request_timed_out: "the in-sync replicas did not copy the records before the request's timeout",
}


class PendingReplication:
    def __init__(self, timeout_ms: int) -> None:
        self._timeout_ms = min(max(timeout_ms, 0), _LONGEST_WAIT_MS)
        self._waiting: dict[int, tuple[ReplicatedPartition, OnReplicated, ProducedPartition]] = {}
        self._failed: dict[int, ProducedPartition] = {}  # with the error, by id() of the result
        self._results: list[ProducedPartition] = []  # so that no other object gets the id() of one
        self._response: asyncio.Future[Response] | None = None
        self._respond: Callable[[], Response] | None = None

    @property
    def is_waiting(self) -> bool:
        return bool(self._waiting or self._failed)

    def add(self, partition: Partition, offset: int, produced: ProducedPartition) -> None:
        """Wait for the in-sync replicas to have the records before `offset`."""
        assert isinstance(partition, ReplicatedPartition)
        call = partial(self._replicated, id(produced))
        self._waiting[id(produced)] = (partition, call, produced)
        partition.when_replicated(offset, call)

    def wait(self, respond: Callable[[], Response]) -> asyncio.Future[Response]:
        """Return a future of what `respond` returns when nothing waits any more."""
        loop = asyncio.get_running_loop()
        self._response = loop.create_future()
        self._respond = respond
        timer = loop.call_later(self._timeout_ms / 1000, self._time_out)
        self._response.add_done_callback(lambda _: timer.cancel())
        self._response.add_done_callback(self._leave)
        if not self._waiting:
            self._complete()
        return self._response

    def with_errors(self, results: Results) -> Results:
        """Return the results, with an error for each append that is not replicated."""
        if not self._failed:
            return results
        failed = self._failed
        return [(topic, [failed.get(id(each), each) for each in partitions]) for topic, partitions in results]

    def _replicated(self, key: int, error: ErrorCode) -> None:
        partition, _, produced = self._waiting.pop(key)
        if error:
            self._fail(
                produced, error, partition.current_leader() if error is ErrorCode.not_leader_or_follower else None
            )
        if not self._waiting:
            self._complete()

    def _fail(self, produced: ProducedPartition, error: ErrorCode, leader: CurrentLeader | None = None) -> None:
        message = _MESSAGES.get(error)
        self._results.append(produced)
        self._failed[id(produced)] = ProducedPartition(
            produced.partition, int(error), error_message=message, current_leader=leader
        )

    def _complete(self) -> None:
        if self._response is not None and not self._response.done():
            assert self._respond is not None
            try:
                self._response.set_result(self._respond())
            except Exception as error:
                self._response.set_exception(error)

    def _time_out(self) -> None:
        for _, _, produced in self._waiting.values():
            self._fail(produced, ErrorCode.request_timed_out)
        self._leave()
        self._complete()

    def _leave(self, _: object = None) -> None:
        """Stop to wait; also called when the client closed its connection, which cancels the future."""
        waiting, self._waiting = self._waiting, {}
        for partition, call, _ in waiting.values():
            partition.forget(call)
