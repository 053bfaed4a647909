"""The state of a partition in a cluster: its replicas, its leader, and which replicas may lead. Pure.

The controller and the leader change it by compare-and-set: a change names the version that it was made from
(`partition_epoch`), and counts only if that is still the newest.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

NO_LEADER = -1


@dataclass(frozen=True, slots=True)
class PartitionState:
    """`leader_broker_epoch`: the registration under which the leader was elected. A broker that has registered again
    since must not lead in this epoch: it may have lost records that it had served.

    `isr`: the in-sync replicas, which have every committed record. `elr`: eligible leader replicas, which left the ISR
    while it had fewer than `min_insync` members; no record was committed without them since, so they have every
    committed record too. `adding` and `removing`: what a reassignment changes in `replicas`.

    `min_insync` is the topic's min.insync.replicas. It is part of the state so that a lower value can't commit records
    before the replicas that lack them are no longer eligible."""

    replicas: tuple[int, ...]
    leader: int
    leader_epoch: int
    isr: tuple[int, ...]
    leader_broker_epoch: int = -1
    elr: tuple[int, ...] = ()
    last_known_leader: int = NO_LEADER  # the last member of ISR and ELR, which a power cut took out of both
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()
    min_insync: int = 1
    partition_epoch: int = 0

    @property
    def has_leader(self) -> bool:
        return self.leader != NO_LEADER

    @property
    def is_reassigning(self) -> bool:
        return bool(self.adding or self.removing)

    @property
    def preferred_leader(self) -> int:
        return self.replicas[0]

    def with_min_insync(self, min_insync: int) -> Self:
        """Return the state with another min.insync.replicas. If the ISR is large enough now, no other replica stays
        eligible: records may be committed without it from here on."""
        return replace(self, min_insync=min_insync).with_isr(self.isr)

    def with_isr(self, isr: tuple[int, ...]) -> Self:
        """Return the state with another ISR. Replicas that leave it while it is too small stay eligible to lead."""
        if len(isr) >= min(self.min_insync, len(self.replicas)):
            elr: tuple[int, ...] = ()
        else:
            left = [replica for replica in self.isr if replica not in isr]
            elr = tuple(dict.fromkeys([*self.elr, *left]))
        elr = tuple(replica for replica in elr if replica not in isr and replica in self.replicas)
        return replace(self, isr=isr, elr=elr, last_known_leader=NO_LEADER if isr or elr else self.last_known_leader)
