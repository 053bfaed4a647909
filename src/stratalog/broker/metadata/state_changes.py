"""Changes of partition states, by compare-and-set: a change counts only if its partition epoch is still the newest.

Each transaction has the new states, the change entry, and checks of the registrations that the change relies on: a
replica joins an ISR or leads only if its broker is still registered as this broker saw it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from stratalog.broker.metadata import znodes
from stratalog.broker.metadata.attempts import BusyMetadataError
from stratalog.broker.metadata.change_entries import PartitionChanged, format_entry
from stratalog.broker.metadata.cluster_follower import ClusterFollower
from stratalog.broker.metadata.cluster_view import PartitionId
from stratalog.broker.metadata.partition_state import PartitionState
from stratalog.broker.metadata.transaction_sizes import Sized, chunks, operation_size
from stratalog.broker.metadata.zookeeper_errors import ConflictError
from stratalog.broker.metadata.zookeeper_requests import Check, Create, Operation, SetData
from stratalog.errors import StratalogError, UnknownTopicError

Decide = Callable[[PartitionId, PartitionState], PartitionState]
"""From the state of a partition to its next one; the same state if nothing changes."""

_MOST_ATTEMPTS = 10
_MOST_IN_FLIGHT = 8


class _Write(NamedTuple):
    id: PartitionId
    old: PartitionState
    new: PartitionState  # with the partition epoch that it will have


class StateChanges:
    """Writes partition states for one broker. All methods run on the event loop."""

    def __init__(self, follower: ClusterFollower) -> None:
        self._follower = follower

    async def change_state(
        self, id: PartitionId, state: PartitionState, joining: Mapping[int, int] | None = None
    ) -> PartitionState:
        """Write the state if ZooKeeper still has its partition epoch. Return what ZooKeeper has now: the written state,
        or the current one if the change was refused.

        A change is also refused if this broker leads the partition under an earlier registration, or if a broker joins
        the ISR that may not. `joining`: the broker epochs under which the joining brokers were found in sync; default
        is those of the view. Raises UnknownTopicError if the partition does not exist, OutcomeUnknownError and
        SessionEndedError."""
        follower = self._follower
        follower.check_registered()
        view, own_epoch = follower.view, follower.broker_epoch
        old = follower.known_state(id)
        if old is None or old.partition_epoch != state.partition_epoch:
            old = await self.newest(id)
        if old.partition_epoch != state.partition_epoch:
            return old
        if state.leader == follower.node_id and state.leader_broker_epoch != own_epoch:
            return await self.newest(id)
        for replica in set(state.isr) - set(old.isr):
            epoch = view.joinable_epoch(replica)
            if epoch is None or (joining is not None and joining.get(replica) != epoch):
                return await self.newest(id)
        write = _Write(id, old, replace(state, partition_epoch=state.partition_epoch + 1))
        registered = {node_id: broker.fence for node_id, broker in view.brokers.items()}
        try:
            await self._commit([write], registered, [])
        except ConflictError:
            return await self.newest(id)
        return write.new

    async def newest(self, id: PartitionId) -> PartitionState:
        """Return the state that ZooKeeper has. Raises UnknownTopicError."""
        states = await self._follower.reader.states([id])
        if id not in states:
            raise UnknownTopicError(f"partition {id.partition} of topic id {id.topic_id} does not exist any more")
        return states[id]

    async def change_states(
        self, ids: Collection[PartitionId], decide: Decide, checks: Sequence[Check] = ()
    ) -> dict[PartitionId, PartitionState | StratalogError]:
        """Change the states of many partitions, in transactions that run at the same time. If one is refused, read the
        newest states of its partitions, and decide again. Return each partition's state, or the error that `decide`
        raised for it; a partition that does not exist any more is missing.

        `checks` are part of each transaction. Raises ConflictError with the index of a check that fails, and the errors
        of the session."""
        results: dict[PartitionId, PartitionState | StratalogError] = {}
        states = {id: state for id in ids if (state := self._follower.known_state(id)) is not None}
        for _ in range(_MOST_ATTEMPTS):
            writes = self._decide(states, decide, results)
            refused = await self._write(writes, checks, results)
            if not refused:
                return results
            await self._follower.catch_up(brokers=True)
            states = await self._follower.reader.states(refused)
        busy = BusyMetadataError(f"{_MOST_ATTEMPTS} attempts were refused: other brokers change the partition")
        return results | dict.fromkeys(states, busy)

    def _decide(
        self,
        states: Mapping[PartitionId, PartitionState],
        decide: Decide,
        results: dict[PartitionId, PartitionState | StratalogError],
    ) -> list[_Write]:
        writes = []
        for id, old in states.items():
            try:
                new = decide(id, old)
            except StratalogError as error:
                results[id] = error
                continue
            if new == old:
                results[id] = old
            else:
                writes.append(_Write(id, old, replace(new, partition_epoch=old.partition_epoch + 1)))
        return writes

    async def _write(
        self,
        writes: Iterable[_Write],
        checks: Sequence[Check],
        results: dict[PartitionId, PartitionState | StratalogError],
    ) -> list[PartitionId]:
        """Write states in transactions. Return the partitions whose transactions were refused."""
        registered = {node_id: broker.fence for node_id, broker in self._follower.view.brokers.items()}
        limit = asyncio.Semaphore(_MOST_IN_FLIGHT)

        async def commit(chunk: list[_Write]) -> list[PartitionId]:
            async with limit:
                try:
                    await self._commit(chunk, registered, checks)
                except ConflictError as error:
                    if error.index < len(checks):
                        raise
                    return [write.id for write in chunk]
            results.update((write.id, write.new) for write in chunk)
            return []

        sized = (Sized(write, _size(write)) for write in writes)
        refused = await asyncio.gather(*map(commit, chunks(sized)))
        return [id for ids in refused for id in ids]

    async def _commit(self, writes: Sequence[_Write], registered: Mapping[int, int], checks: Sequence[Check]) -> None:
        """Write these states in one transaction. `registered`: the fences of the registered brokers."""
        follower = self._follower
        operations: list[Operation] = [*checks, Check(znodes.broker_id_path(follower.node_id), -1)]
        for node_id in sorted(set().union(*map(_relied_on, writes))):
            operations.append(Check(znodes.broker_id_path(node_id), -1))
            operations.append(Check(znodes.registration_path(node_id), registered.get(node_id, -1)))
        for write in writes:
            data = znodes.format_state(write.new)
            operations.append(SetData(znodes.partition_path(write.id), data, write.old.partition_epoch))
        changes = [PartitionChanged(write.id, write.new) for write in writes]
        operations.append(Create(znodes.CHANGE_PREFIX, format_entry(changes), sequential=True))
        await follower.session.commit(operations)
        for change in changes:
            follower.take(change)


def _relied_on(write: _Write) -> set[int]:
    """Return the brokers whose registrations a change relies on: those that join the ISR, and a new leader."""
    relied = set(write.new.isr) - set(write.old.isr)
    if write.new.has_leader and write.new.leader_broker_epoch != write.old.leader_broker_epoch:
        relied.add(write.new.leader)
    return relied


def _size(write: _Write) -> int:
    data = znodes.format_state(write.new)
    return operation_size(znodes.partition_path(write.id), data, data)
