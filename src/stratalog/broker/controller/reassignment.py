"""Moving replicas: adding -> caught up -> switched -> removed (KIP-455). Pure.

While a reassignment runs, `replicas` has the target first, and then the replicas that will go. It ends when every
replica of the target is in the ISR. A change that would leave no replica that may lead raises ReassignmentError.

A change that removes replicas begins a new leader epoch. If a removed replica is added again later, its leader must not
take the fetches that it sent before, with a log that is deleted, for those of the new replica.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from stratalog.broker.metadata.partition_state import NO_LEADER, PartitionState
from stratalog.errors import StratalogError


class ReassignmentError(StratalogError):
    """The replicas that would remain have not every committed record. The message names them."""

    code = 39  # INVALID_REPLICA_ASSIGNMENT


def begin(state: PartitionState, target: tuple[int, ...]) -> PartitionState:
    """Return the state with a reassignment to `target`, instead of one that may be running."""
    original = original_replicas(state)
    if target == original:
        return cancel(state)
    adding = tuple(replica for replica in target if replica not in original)
    removing = tuple(replica for replica in original if replica not in target)
    replicas = (*target, *removing)
    dropped = [replica for replica in state.replicas if replica not in replicas]
    return replace(_drop(state, dropped), replicas=replicas, adding=adding, removing=removing)


def original_replicas(state: PartitionState) -> tuple[int, ...]:
    """Return the replicas as they were before the reassignment."""
    return tuple(replica for replica in state.replicas if replica not in state.adding)


def target_replicas(state: PartitionState) -> tuple[int, ...]:
    return tuple(replica for replica in state.replicas if replica not in state.removing)


def cancel(state: PartitionState) -> PartitionState:
    """Return the state without the reassignment: the added replicas go."""
    original = original_replicas(state)
    return replace(_drop(state, state.adding), replicas=original, adding=(), removing=())


def finish(state: PartitionState) -> PartitionState:
    """Return the state after the reassignment, if every replica of its target is in sync; else the same state. It may
    lack a leader then: elect() follows."""
    target = target_replicas(state)
    if not state.is_reassigning or not set(target) <= set(state.isr):
        return state
    return replace(_drop(state, state.removing), replicas=target, adding=(), removing=())


def _drop(state: PartitionState, dropped: Collection[int]) -> PartitionState:
    """Remove replicas from the ISR, in a new leader epoch."""
    if not dropped:
        return state
    isr = tuple(replica for replica in state.isr if replica not in dropped)
    elr = tuple(replica for replica in state.elr if replica not in dropped)
    if not isr and not elr and (state.isr or state.elr):
        raise ReassignmentError(f"none of the replicas that would remain is in sync; in sync are {list(state.isr)}")
    leader = NO_LEADER if state.leader in dropped else state.leader
    return replace(state, isr=isr, elr=elr, leader=leader, leader_epoch=state.leader_epoch + 1)
