"""The controller's decision about one partition: from the view, and the partition's newest state, to the next one.
Pure."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from stratalog.broker.controller.decisions import create, elect, prefer, without_brokers, without_tail
from stratalog.broker.controller.reassignment import finish
from stratalog.broker.metadata.cluster_view import ClusterView, PartitionId, RegisteredBroker
from stratalog.broker.metadata.partition_state import PartitionState


def next_state(
    state: PartitionState, view: ClusterView, *, min_insync: int | None = None, unclean: bool = False
) -> PartitionState:
    """Return the state that follows from the brokers that are registered now; the same state if nothing changes.

    Brokers that lost their tails leave the ISR before a leader is elected. Then brokers that have gone leave it, or are
    shutting down; a reassignment that has caught up ends; and a leader is elected, if the partition lacks one.

    `min_insync`: the topic's min.insync.replicas, None if it is unknown. `unclean`: a replica may lead that lacks
    committed records.
    """
    alive = view.live_epochs()
    if state.leader_epoch < 0:  # it never had a leader, so no replica has any record
        new = create(state.replicas, alive, state.min_insync)
        return replace(new, adding=state.adding, removing=state.removing, partition_epoch=state.partition_epoch)
    changed = _without_losses(state, view)
    gone = [replica for replica in changed.replicas if replica not in alive]
    changed = finish(without_brokers(changed, gone))
    changed = _without_losses(changed, view)  # a broker that led since its loss may be leaving
    if min_insync is not None and min_insync != changed.min_insync:
        changed = changed.with_min_insync(min_insync)
    changed = elect(changed, alive, unclean=unclean)
    return state if changed == state else changed


def _without_losses(state: PartitionState, view: ClusterView) -> PartitionState:
    for broker in view.brokers.values():
        if broker.lost_tail and not _leads_since_its_loss(state, broker):
            state = without_tail(state, broker.node_id)
    return state


def has_unhandled_loss(state: PartitionState, broker: RegisteredBroker) -> bool:
    """Return whether the broker is still eligible because of a log whose end it has lost."""
    is_eligible = broker.node_id in state.isr or broker.node_id in state.elr
    return is_eligible and not _leads_since_its_loss(state, broker)


def _leads_since_its_loss(state: PartitionState, broker: RegisteredBroker) -> bool:
    """Return whether the broker was elected under this registration: its log counts as it is now."""
    return state.leader == broker.node_id and state.leader_broker_epoch == broker.epoch


def preferred_state(state: PartitionState, view: ClusterView) -> PartitionState:
    """Return the state with the preferred leader, if that is alive and in sync."""
    preferred = view.brokers.get(state.preferred_leader)
    if preferred is None or preferred.lost_tail:
        return state
    return prefer(state, view.live_epochs())


def imbalanced_partitions(view: ClusterView, percentage: int) -> list[PartitionId]:
    """Return the partitions whose preferred leaders could lead instead of the present ones, of the brokers that lack
    more than this percentage of the leaderships that they are preferred for."""
    preferred: dict[int, int] = defaultdict(int)
    movable: dict[int, list[PartitionId]] = defaultdict(list)
    for id, state in view.states.items():
        preferred[state.preferred_leader] += 1
        if not state.is_reassigning and preferred_state(state, view) is not state:
            movable[state.preferred_leader].append(id)
    return [id for node_id, ids in movable.items() if len(ids) * 100 > percentage * preferred[node_id] for id in ids]
