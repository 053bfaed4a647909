"""The controller's decisions about leaders and in-sync replicas: from a partition's state to its next one. Pure.

Each function returns the new state, or the same object if nothing changes. A new leader always gets a new leader epoch.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from stratalog.broker.metadata.partition_state import NO_LEADER, PartitionState

BrokerEpochs = Mapping[int, int]
"""The brokers that are alive and not shutting down, with the broker epochs under which they are registered now."""


def create(replicas: tuple[int, ...], alive: BrokerEpochs, min_insync: int = 1) -> PartitionState:
    """Return the state of a new partition: every replica that is alive is in sync, and the first of them leads."""
    isr = tuple(replica for replica in replicas if replica in alive)
    return elect(PartitionState(replicas, NO_LEADER, -1, isr, min_insync=min_insync), alive)


def without_brokers(state: PartitionState, gone: Collection[int]) -> PartitionState:
    """Return the state after brokers have died or begun to shut down: they leave the ISR, and lead nothing. Replicas
    that leave a small ISR stay eligible to lead: their logs survive in the page cache, or on the disk."""
    if state.leader not in gone and not any(replica in gone for replica in state.isr):
        return state
    isr = tuple(replica for replica in state.isr if replica not in gone)
    changed = state.with_isr(isr)
    return replace(changed, leader=NO_LEADER) if state.leader in gone else changed


def without_tail(state: PartitionState, broker: int) -> PartitionState:
    """Return the state after a broker has come back that may have lost the end of its log, in a power cut: it is
    eligible for nothing until it has copied the log again. If it was the last eligible replica, it is remembered."""
    if broker not in state.isr and broker not in state.elr:
        return state
    isr = tuple(replica for replica in state.isr if replica != broker)
    elr = tuple(replica for replica in state.elr if replica != broker)
    return replace(
        state,
        isr=isr,
        elr=elr,
        leader=NO_LEADER if state.leader == broker else state.leader,
        last_known_leader=state.last_known_leader if isr or elr else broker,
    )


def elect(state: PartitionState, alive: BrokerEpochs, *, unclean: bool = False) -> PartitionState:
    """Return the state with a leader, if it has none that is registered as it was when elected: the first replica, in
    the order of the assignment, that is alive and in the ISR; else one that is eligible. With `unclean`, else any
    replica that is alive, though committed records may be lost. A replica that lost its tail leads only if no other
    replica was eligible when it did."""
    if state.has_leader and alive.get(state.leader) == state.leader_broker_epoch:
        return state
    live = [replica for replica in state.replicas if replica in alive]
    for replica in live:
        if replica in state.isr:
            return _led_by(state, replica, alive, state.isr)
    if not state.isr:
        for replica in live:
            if replica in state.elr:
                return _led_by(state, replica, alive, (replica,))
        if not state.elr and state.last_known_leader in live:
            return _led_by(state, state.last_known_leader, alive, (state.last_known_leader,))
        if unclean and live:
            return _led_by(replace(state, elr=()), live[0], alive, (live[0],))
    return state


def prefer(state: PartitionState, alive: BrokerEpochs) -> PartitionState:
    """Return the state with the preferred leader, if it is alive and in sync."""
    preferred = state.preferred_leader
    if state.leader == preferred or preferred not in alive or preferred not in state.isr:
        return state
    return _led_by(state, preferred, alive, state.isr)


def _led_by(state: PartitionState, leader: int, alive: BrokerEpochs, isr: tuple[int, ...]) -> PartitionState:
    return replace(
        state,
        leader=leader,
        leader_epoch=state.leader_epoch + 1,
        leader_broker_epoch=alive[leader],
        isr=isr,
        elr=tuple(replica for replica in state.elr if replica not in isr),
        last_known_leader=NO_LEADER,
    )
