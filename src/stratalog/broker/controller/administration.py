"""Elections, reassignments and removals of brokers that an administrator requests. Any broker serves them; ZooKeeper
checks each change."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from stratalog.broker.apis.error_fields import RefusedError
from stratalog.broker.controller.assignment import check_assignment
from stratalog.broker.controller.decisions import elect, without_tail
from stratalog.broker.controller.partition_decisions import next_state, preferred_state
from stratalog.broker.controller.reassignment import begin, cancel, original_replicas
from stratalog.broker.metadata.cluster_metadata import ClusterMetadata
from stratalog.broker.metadata.cluster_view import PartitionId
from stratalog.broker.metadata.partition_state import PartitionState
from stratalog.broker.metadata.zookeeper_errors import ConflictError
from stratalog.errors import StratalogError

Outcomes = dict[PartitionId, PartitionState | StratalogError]

_INVALID_REPLICATION_FACTOR = 38
_INVALID_REQUEST = 42
_PREFERRED_LEADER_NOT_AVAILABLE = 80
_ELIGIBLE_LEADERS_NOT_AVAILABLE = 83
_ELECTION_NOT_NEEDED = 84
_NO_REASSIGNMENT_IN_PROGRESS = 85
_BROKER_ID_NOT_REGISTERED = 102


async def elect_preferred(metadata: ClusterMetadata, partitions: Collection[PartitionId]) -> Outcomes:
    """Make the preferred leaders of these partitions lead. Return each partition's state, or why it has none: its
    leader is the preferred one already, or that is dead or not in sync."""

    def decide(_: PartitionId, state: PartitionState) -> PartitionState:
        if state.leader == state.preferred_leader:
            raise RefusedError(_ELECTION_NOT_NEEDED, f"broker {state.leader} leads already, as the preferred leader")
        changed = preferred_state(state, metadata.view)
        if changed is state:
            raise RefusedError(
                _PREFERRED_LEADER_NOT_AVAILABLE,
                f"broker {state.preferred_leader}, the preferred leader, is not alive, or not in the ISR "
                f"{list(state.isr)}",
            )
        return changed

    return await metadata.change_states(partitions, decide)


async def elect_unclean(metadata: ClusterMetadata, partitions: Collection[PartitionId]) -> Outcomes:
    """Give a leader to each of these partitions that has none, though it may lack committed records. Return each
    partition's state, or why no leader was elected."""

    def decide(_: PartitionId, state: PartitionState) -> PartitionState:
        alive = metadata.view.live_epochs()
        if state.has_leader and state.leader in alive:
            raise RefusedError(_ELECTION_NOT_NEEDED, f"broker {state.leader} leads the partition")
        changed = elect(next_state(state, metadata.view), alive, unclean=True)
        if not changed.has_leader:
            raise RefusedError(_ELIGIBLE_LEADERS_NOT_AVAILABLE, f"none of the replicas {list(state.replicas)} is alive")
        return changed

    return await metadata.change_states(partitions, decide)


async def reassign(
    metadata: ClusterMetadata,
    targets: Mapping[PartitionId, tuple[int, ...] | None],
    *,
    may_change_factor: bool = True,
) -> Outcomes:
    """Begin to move the replicas of partitions to these brokers; None cancels what is running. The controller ends a
    reassignment when all new replicas are in sync. `may_change_factor`: a target may have another number of replicas.
    Return each partition's state, or why it can't be reassigned."""

    def decide(id: PartitionId, state: PartitionState) -> PartitionState:
        target = targets[id]
        if target is None and not state.is_reassigning:
            raise RefusedError(_NO_REASSIGNMENT_IN_PROGRESS, "no reassignment of the partition is running")
        if target is not None:
            check_assignment([target], metadata.view.brokers)
            factor = len(original_replicas(state))
            if not may_change_factor and len(target) != factor:
                raise RefusedError(
                    _INVALID_REPLICATION_FACTOR,
                    f"the partition has {factor} replicas, and the new assignment {len(target)}; the request allows no "
                    "change of their number",
                )
        changed = cancel(state) if target is None else begin(state, target)
        return next_state(changed, metadata.view)

    return await metadata.change_states(targets, decide)


async def unregister(metadata: ClusterMetadata, node_id: int) -> None:
    """Forget a broker that is down: its replicas leave every ISR, and are not eligible to lead. Raises StratalogError
    if it is alive or unknown."""
    await metadata.catch_up()
    if node_id in metadata.view.brokers:
        raise RefusedError(
            _INVALID_REQUEST, f"broker {node_id} is alive and would register again; stop it, and repeat the request"
        )
    states = metadata.view.states.items()
    trusted = [id for id, state in states if node_id in state.isr or node_id in state.elr]
    outcomes = await metadata.change_states(trusted, lambda _, state: without_tail(state, node_id))
    for outcome in outcomes.values():
        if isinstance(outcome, StratalogError):
            raise outcome
    try:
        was_known = await metadata.forget_broker(node_id)
    except ConflictError as error:
        raise RefusedError(_INVALID_REQUEST, f"broker {node_id} is registering again; stop it first") from error
    if not was_known and not trusted:
        raise RefusedError(_BROKER_ID_NOT_REGISTERED, f"broker {node_id} is not registered")
