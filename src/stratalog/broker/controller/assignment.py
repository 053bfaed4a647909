"""Where the replicas of new partitions go: spread over brokers and racks, as Kafka's AdminUtils does. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import zip_longest

from stratalog.errors import InvalidReplicaAssignmentError, InvalidReplicationFactorError

_SHOWN = 10  # brokers of a list that a client sent


def assign_replicas(
    partition_count: int, factor: int, brokers: Mapping[int, str | None], start: int, first_partition: int = 0
) -> list[tuple[int, ...]]:
    """Return the replicas of each new partition; the first is the preferred leader.

    Leaders go around all brokers, and so do the followers of each broker's partitions, with a shift that grows after
    each round. If every broker has a rack, the replicas of a partition lie in as many racks as possible.

    `brokers`: node ids and racks. `start`: any number; it chooses the first leader. `first_partition`: the number of
    the first partition to place, if the topic has others already.
    """
    if factor < 1:
        raise InvalidReplicationFactorError(f"replication factor is {factor}; it must be 1 or more")
    if factor > len(brokers):
        raise InvalidReplicationFactorError(
            f"replication factor is {factor}, and {len(brokers)} brokers are available; start more brokers, or "
            "choose a smaller replication factor"
        )
    racks = {node_id: rack for node_id, rack in brokers.items() if rack is not None}
    if len(racks) < len(brokers):
        racks = dict.fromkeys(sorted(brokers), "")
    order = _alternating(racks)
    rack_count = len(set(racks.values()))
    placements = []
    for number in range(first_partition, first_partition + partition_count):
        shift = start + (number // len(order) - max(0, first_partition - 1) // len(order))
        placements.append(_replicas(order, racks, rack_count, (number + start) % len(order), shift, factor))
    return placements


def _alternating(racks: Mapping[int, str]) -> list[int]:
    """Return the brokers so that neighbours lie in different racks: the first of each rack, the second of each, ..."""
    by_rack: dict[str, list[int]] = defaultdict(list)
    for node_id in sorted(racks):
        by_rack[racks[node_id]].append(node_id)
    rows = zip_longest(*(by_rack[rack] for rack in sorted(by_rack)))
    return [node_id for row in rows for node_id in row if node_id is not None]


def _replicas(
    order: Sequence[int], racks: Mapping[int, str], rack_count: int, first: int, shift: int, factor: int
) -> tuple[int, ...]:
    replicas = [order[first]]
    used_racks = {racks[order[first]]}
    step = shift * rack_count if rack_count > 1 else shift
    while len(replicas) < factor:
        candidate = order[(first + 1 + step % (len(order) - 1)) % len(order)]
        step += 1
        if candidate not in replicas and (racks[candidate] not in used_racks or len(used_racks) == rack_count):
            replicas.append(candidate)
            used_racks.add(racks[candidate])
    return tuple(replicas)


def check_assignment(
    assignment: Sequence[Sequence[int]], brokers: Mapping[int, object], *, first_partition: int = 0
) -> None:
    """Raise InvalidReplicaAssignmentError unless each partition has replicas on different brokers, all of which exist,
    and all partitions have the same number of replicas. `brokers`: the brokers that exist, by node id.
    `first_partition`: the number of the first partition that is assigned."""
    if not assignment:
        raise InvalidReplicaAssignmentError("the assignment has no partition; give each partition its replicas")
    for partition, replicas in enumerate(assignment, start=first_partition):
        shown = list(replicas[:_SHOWN])
        if not replicas:
            raise InvalidReplicaAssignmentError(f"partition {partition} has no replicas; give it at least one broker")
        if len(set(replicas)) < len(replicas):
            raise InvalidReplicaAssignmentError(
                f"partition {partition} has replicas {shown}; a broker may hold only one of them"
            )
        unknown = [replica for replica in replicas if replica not in brokers]
        if unknown:
            raise InvalidReplicaAssignmentError(
                f"partition {partition} has replicas {shown}; broker {unknown[0]} is not registered"
            )
        if len(replicas) != len(assignment[0]):
            raise InvalidReplicaAssignmentError(
                f"partition {partition} has {len(replicas)} replicas, and partition {first_partition} has "
                f"{len(assignment[0])}; give all partitions the same number"
            )
