"""The metadata of a cluster, as one broker reads and writes it.

ZooKeeper decides everything. Any broker writes: each change is one transaction with the new content, a change entry for
the other brokers, and checks that what the change relies on is still true. Every broker follows the change entries, and
has an immutable view of the whole (`view`). All methods run on the event loop; only ZooKeeper is waited for.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping, Sequence

from stratalog.broker.metadata import znodes
from stratalog.broker.metadata.attempts import repeat
from stratalog.broker.metadata.change_entries import BrokersChanged, format_entry
from stratalog.broker.metadata.cluster_follower import ClusterFollower, Listener
from stratalog.broker.metadata.cluster_view import ClusterView, PartitionId
from stratalog.broker.metadata.partition_state import PartitionState
from stratalog.broker.metadata.registration import Registration
from stratalog.broker.metadata.session import ZooKeeperSession
from stratalog.broker.metadata.state_changes import Decide, StateChanges
from stratalog.broker.metadata.topic_changes import PlannedTopic, TopicChanges
from stratalog.broker.metadata.znodes import UnreadableZnodeError
from stratalog.broker.metadata.zookeeper_errors import ConflictError
from stratalog.broker.metadata.zookeeper_requests import Check, Create, Delete, SetData
from stratalog.errors import StratalogError

__all__ = ["ClusterMetadata", "PlannedTopic", "Registration"]

_LARGEST_PRODUCER_ID = 2**62


class ClusterMetadata:
    """Created by `join`. After an expired session, the broker registers again by itself, with a higher broker epoch."""

    def __init__(self, follower: ClusterFollower) -> None:
        self._follower = follower
        self._session = follower.session
        self._states = StateChanges(follower)
        self._topics = TopicChanges(follower, self._states)

    @classmethod
    async def join(
        cls,
        session: ZooKeeperSession,
        registration: Registration,
        *,
        cluster_id: str | None,
        may_found: bool = True,
    ) -> ClusterMetadata:
        """Register a broker in its cluster, and read all metadata.

        `cluster_id`: the one of the data directory, None if that is empty. A new cluster takes it over. `may_found`:
        False if the broker has been in its cluster already, so that an emptied ZooKeeper is an error. Raises
        WrongClusterError for another cluster, NodeIdInUseError if another broker has the node id,
        UnreadableZnodeError if the cluster has a newer format version, and the errors of the session."""
        follower = ClusterFollower(session, registration)
        await follower.join(cluster_id, may_found=may_found)
        return cls(follower)

    # Reading

    @property
    def view(self) -> ClusterView:
        """The newest view of this broker. It is replaced when metadata changes, never changed."""
        return self._follower.view

    @property
    def node_id(self) -> int:
        return self._follower.node_id

    @property
    def broker_epoch(self) -> int:
        """The broker epoch of this broker's registration; -1 while it is not registered."""
        return self._follower.broker_epoch

    @property
    def entry_numbers(self) -> Sequence[int]:
        """The numbers of the change entries that ZooKeeper keeps, oldest first."""
        return self._follower.entry_numbers

    def can_lead(self) -> bool:
        """Return whether the broker is registered, in a session that can't have ended. Goes by the clock: it may turn
        False before any event is received."""
        return self._follower.is_registered()

    def on_change(self, listener: Listener) -> None:
        """Call `listener` with the old and the new view after each change, on the event loop and in order."""
        self._follower.on_change(listener)

    async def catch_up(self) -> None:
        """Wait until the view has everything that ZooKeeper has now, for a limited time."""
        await self._follower.catch_up(brokers=True)

    # Partitions

    async def change_state(
        self, id: PartitionId, state: PartitionState, joining: Mapping[int, int] | None = None
    ) -> PartitionState:
        """Write the state of a partition by compare-and-set: see StateChanges.change_state."""
        return await self._states.change_state(id, state, joining)

    async def change_states(
        self, ids: Collection[PartitionId], decide: Decide, checks: Sequence[Check] = ()
    ) -> dict[PartitionId, PartitionState | StratalogError]:
        """Change the states of many partitions as `decide` says: see StateChanges.change_states."""
        return await self._states.change_states(ids, decide, checks)

    # Topics and settings

    async def create_topics(self, topics: Sequence[PlannedTopic]) -> list[StratalogError | None]:
        """Create topics, each on its own. Return an error for each that is not created."""
        return await self._topics.create_topics(topics)

    async def add_partitions(self, name: str, assignment: Sequence[Sequence[int]]) -> None:
        """Add partitions with these replicas: see TopicChanges.add_partitions."""
        await self._topics.add_partitions(name, assignment)

    async def delete_topic(self, name: str, topic_id: uuid.UUID) -> None:
        """Delete the topic and its states. Raises UnknownTopicError."""
        await self._topics.delete_topic(name, topic_id)

    async def change_settings(self, name: str, settings: Mapping[str, str], min_insync: int) -> None:
        """Replace the topic's own settings: see TopicChanges.change_settings."""
        await self._topics.change_settings(name, settings, min_insync)

    async def change_broker_settings(self, node_id: str, settings: Mapping[str, str]) -> None:
        """Replace the settings that were changed while a broker ran; "" stands for all brokers."""
        await self._topics.change_broker_settings(node_id, settings)

    async def forget_broker(self, node_id: int) -> bool:
        """Remove what ZooKeeper keeps about a broker that is not registered. Return False if it keeps nothing. Raises
        ConflictError if the broker registers at the same time."""
        self._follower.check_registered()
        path = znodes.registration_path(node_id)
        condition = await self._session.get(path)
        if condition is None:
            return False
        ephemeral = znodes.broker_id_path(node_id)
        if await self._session.get(ephemeral) is not None:
            raise ConflictError(0, "exists", ephemeral)
        entry = Create(znodes.CHANGE_PREFIX, format_entry([BrokersChanged()]), sequential=True)
        await self._session.commit([Delete(path, condition.version), entry])
        return True

    async def remove_abandoned(self) -> None:
        """Remove the states of topic ids that no topic has. The controller does so."""
        await self._topics.remove_abandoned()

    # This broker

    async def producer_ids(self, count: int) -> int:
        """Reserve `count` producer ids that no other broker gets. Return the first."""

        async def reserve() -> int:
            self._follower.check_registered()
            znode = await self._session.get(znodes.PRODUCER_IDS)
            if znode is None:
                raise UnreadableZnodeError(
                    f"znode {znodes.PRODUCER_IDS} is missing; create it with the next unused producer id: "
                    f"{znodes.format_producer_ids(0).decode()} for a cluster without idempotent producers"
                )
            first = znodes.parse_producer_ids(znode.data)
            if first + count > _LARGEST_PRODUCER_ID:
                raise UnreadableZnodeError(f"znode {znodes.PRODUCER_IDS}: no producer ids are left after {first}")
            data = znodes.format_producer_ids(first + count)
            await self._session.commit([SetData(znodes.PRODUCER_IDS, data, znode.version)])
            return first

        return await repeat(reserve)

    async def begin_leaving(self) -> None:
        """Register as shutting down: the controller moves leaderships away, and no ISR takes this broker."""
        self._follower.keep_leaving()

        async def write() -> None:
            self._follower.check_registered()
            path = znodes.registration_path(self.node_id)
            znode = await self._session.get(path)
            if znode is None:
                raise UnreadableZnodeError(f"znode {path} is missing; restart the broker")
            condition = znodes.parse_condition(path, znode.data)
            if not condition.is_leaving:
                data = znodes.format_condition(condition._replace(is_leaving=True))
                entry = Create(znodes.CHANGE_PREFIX, format_entry([BrokersChanged()]), sequential=True)
                own = Check(znodes.broker_id_path(self.node_id), -1)
                await self._session.commit([own, SetData(path, data, znode.version), entry])

        await repeat(write)
        await self.catch_up()

    async def leave(self) -> None:
        """Stop following, and end the registration. Closing the session would do so too."""
        await self._follower.stop()
        if self._follower.is_registered():
            try:
                await self._session.commit([Delete(znodes.broker_id_path(self.node_id))])
            except ConflictError:
                pass  # it is gone already
