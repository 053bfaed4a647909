"""Plans where replicas go: off a broker that is drained, or balanced over brokers and racks. Pure.

A plan moves as little data as possible: a replica moves only if its broker is not a target, if its partition could lie
in more racks, or if its broker has at least two replicas more than another. Changing the order of a partition's
replicas moves no data, so the plan does that freely, to give each broker as many preferred leaders as any other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias

from stratalog.cli.wording import pluralize
from stratalog.topic_partition import TopicPartition

Assignment: TypeAlias = Mapping[TopicPartition, tuple[int, ...]]
"""The replicas of each partition; the first is the preferred leader."""


class ImpossiblePlanError(ValueError):
    """A partition has more replicas than brokers that may hold them. The message names it."""


def drain(assignment: Assignment, racks: Mapping[int, str | None], drained: Iterable[int]) -> Assignment:
    """Return the new replicas of the partitions that lie on drained brokers. `racks`: all brokers, by node id."""
    leaving = set(drained)
    targets = {node_id: rack for node_id, rack in racks.items() if node_id not in leaving}
    plan = _Plan(assignment, targets)
    plan.leave_others()
    moved = [partition for partition, replicas in assignment.items() if leaving.intersection(replicas)]
    plan.balance_leaders(moved)
    return plan.changes()


def balance(assignment: Assignment, targets: Mapping[int, str | None]) -> Assignment:
    """Return the new replicas of the partitions that have to change so that the target brokers hold them evenly.
    `targets`: node ids and racks."""
    plan = _Plan(assignment, targets)
    plan.leave_others()
    plan.spread_over_racks()
    plan.balance_replicas()
    plan.balance_leaders(list(assignment))
    return plan.changes()


class _Plan:
    def __init__(self, assignment: Assignment, targets: Mapping[int, str | None]) -> None:
        for partition, replicas in assignment.items():
            if len(replicas) > len(targets):
                raise ImpossiblePlanError(
                    f"{partition} has {pluralize(len(replicas), 'replica')}, and {pluralize(len(targets), 'broker')} "
                    "may hold them; leave more brokers"
                )
        self._before = assignment
        self._replicas = {partition: list(replicas) for partition, replicas in assignment.items()}
        self._targets = sorted(targets)
        has_racks = all(rack is not None for rack in targets.values())
        self._racks = {node_id: rack if has_racks else "" for node_id, rack in targets.items()}
        self._loads = Counter(replica for replicas in assignment.values() for replica in replicas)

    def changes(self) -> Assignment:
        after = {partition: tuple(replicas) for partition, replicas in self._replicas.items()}
        return {partition: replicas for partition, replicas in after.items() if replicas != self._before[partition]}

    def leave_others(self) -> None:
        """Move the replicas that lie on brokers which are no targets."""
        for replicas in self._replicas.values():
            for replica in [each for each in replicas if each not in self._racks]:
                self._move(replicas, replica, min(self._candidates(replicas), key=self._cost(replicas, replica)))

    def spread_over_racks(self) -> None:
        """Move replicas that share a rack, as long as there is another rack for them."""
        for replicas in self._replicas.values():
            while len(self._racks_of(replicas)) < min(len(replicas), len(set(self._racks.values()))):
                shared = [each for each in replicas if not self._is_alone_in_rack(replicas, each)]
                replica = max(shared, key=lambda each: (self._loads[each], replicas.index(each)))
                self._move(replicas, replica, min(self._candidates(replicas), key=self._cost(replicas, replica)))

    def balance_replicas(self) -> None:
        """Move replicas from brokers with many to brokers with at least two fewer, without giving up racks."""
        while self._move_one_from_high_to_low():
            pass

    def _move_one_from_high_to_low(self) -> bool:
        by_load = sorted(self._targets, key=lambda node_id: (self._loads[node_id], node_id))
        for high in reversed(by_load):
            for low in by_load:
                if self._loads[high] - self._loads[low] < 2:
                    break
                for partition, replicas in self._replicas.items():
                    if high not in replicas or low in replicas:
                        continue
                    after = [low if each == high else each for each in replicas]
                    if len(self._racks_of(after)) >= len(self._racks_of(replicas)):
                        self._move(self._replicas[partition], high, low)
                        return True
        return False

    def balance_leaders(self, partitions: Iterable[TopicPartition]) -> None:
        """Change the order of replicas so that brokers are the preferred leaders of equally many partitions."""
        chosen = [self._replicas[partition] for partition in partitions]
        leaders = Counter(replicas[0] for replicas in self._replicas.values() if replicas)
        while (path := _shortest_relief(chosen, leaders)) is not None:
            for replicas, successor in path:
                leaders[replicas[0]] -= 1
                leaders[successor] += 1
                replicas.remove(successor)
                replicas.insert(0, successor)

    def _candidates(self, replicas: list[int]) -> list[int]:
        return [node_id for node_id in self._targets if node_id not in replicas]

    def _cost(self, replicas: list[int], replaced: int) -> Callable[[int], tuple[bool, int, int]]:
        """Return the order in which brokers are considered for a replica that moves: another rack, then fewer
        replicas."""
        used = {self._racks[each] for each in replicas if each != replaced and each in self._racks}
        return lambda node_id: (self._racks[node_id] in used, self._loads[node_id], node_id)

    def _move(self, replicas: list[int], source: int, target: int) -> None:
        replicas[replicas.index(source)] = target
        self._loads[source] -= 1
        self._loads[target] += 1

    def _racks_of(self, replicas: list[int]) -> set[str | None]:
        return {self._racks[replica] for replica in replicas}

    def _is_alone_in_rack(self, replicas: list[int], replica: int) -> bool:
        return sum(self._racks[each] == self._racks[replica] for each in replicas) == 1


def _shortest_relief(chosen: list[list[int]], leaders: Counter[int]) -> list[tuple[list[int], int]] | None:
    """Return the fewest changes of preferred leaders that take one partition from a broker and give one to a broker
    with at least two fewer. Each change is a partition's replicas and its new leader. None: nothing can be better."""
    steps: dict[int, dict[int, list[int]]] = {}
    for replicas in chosen:
        for other in replicas[1:]:
            steps.setdefault(replicas[0], {}).setdefault(other, replicas)
    for start in sorted(steps, key=lambda node_id: (-leaders[node_id], node_id)):
        came_from: dict[int, int] = {start: start}
        queue = [start]
        for node_id in queue:
            if leaders[start] - leaders[node_id] >= 2:
                path = []
                while node_id != start:
                    path.append((steps[came_from[node_id]][node_id], node_id))
                    node_id = came_from[node_id]
                return path
            for other in steps.get(node_id, ()):
                if other not in came_from:
                    came_from[other] = node_id
                    queue.append(other)
    return None
