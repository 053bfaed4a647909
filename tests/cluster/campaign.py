"""Random faults of a cluster under load: leaders killed and paused, links cut, ZooKeeper killed, page caches lost.

The seed decides the order of the faults, their victims and their durations. Another run with the same seed does the
same, though not at the same microseconds. Every few rounds, the history of the client is checked, and a new topic takes
over.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

from stratalog.lab.cluster import LabCluster
from tests.cluster.power_loss import lose_page_cache
from tests.cluster.traffic import (
    HANGING,
    Traffic,
    check,
    create_topic,
    leaders,
    wait_for_isr,
    wait_for_successors,
)

KINDS = ("kill", "stop", "cut", "zookeeper")
PARTITIONS = 4
_ROUNDS_PER_TOPIC = 10
_SECONDS = 180.0  # until a cluster has recovered from a fault, on a machine under load
_LONGEST_OUTAGE = 8.0
_SETTINGS = {
    "zookeeper.session.timeout.ms": 3000,
    "replica.lag.time.max.ms": 3000,
    "default.replication.factor": 3,
    "min.insync.replicas": 2,
    "log.segment.bytes": 256 * 1024,
    "log.index.size.max.bytes": 64 * 1024,
    "log.retention.check.interval.ms": 365 * 24 * 60 * 60 * 1000,
}


class Campaign:
    """One cluster and its faults. An AssertionError names the round in which something was wrong."""

    def __init__(
        self,
        where: Path,
        seed: int,
        report: Callable[[str], None] = lambda _: None,
        *,
        dies_with_thread: bool = False,
    ) -> None:
        self.seed = seed
        self.done: Counter[str] = Counter()
        self.acknowledged = 0
        self.slowest = 0.0
        """The most seconds from the begin of a fault until all partitions took writes again."""
        self._random = random.Random(seed)
        self._counts: dict[str, int] = {}
        self._cluster = LabCluster(where, settings=_SETTINGS, links=True, dies_with_thread=dies_with_thread)
        self._report = report

    def run(self, counts: Mapping[str, int], seconds: float, tick: Callable[[], None] = lambda: None) -> None:
        """Run so many rounds of each kind, in random order, and begin no round after `seconds`."""
        self._counts = {kind: counts.get(kind, 0) for kind in KINDS}
        kinds = [kind for kind, count in self._counts.items() for _ in range(count)]
        self._random.shuffle(kinds)
        deadline = time.monotonic() + seconds
        try:
            self._cluster.start()
            for start in range(0, len(kinds), _ROUNDS_PER_TOPIC):
                if time.monotonic() < deadline:
                    self._chapter(start, kinds[start : start + _ROUNDS_PER_TOPIC], deadline, tick)
            self._cluster.stop()
        finally:
            self._cluster.kill()

    def _chapter(self, number: int, kinds: list[str], deadline: float, tick: Callable[[], None]) -> None:
        topic = f"rounds-{number}"
        create_topic(self._cluster, topic, PARTITIONS)
        what = "the topic is created"
        try:
            with Traffic(self._cluster, topic, PARTITIONS, **HANGING) as traffic:
                traffic.wait_for_more(50, _SECONDS)
                for offset, kind in enumerate(kinds):
                    if time.monotonic() > deadline:
                        break
                    what = f"round {number + offset}"
                    begin = time.monotonic()
                    what += f", {self._strike(kind, topic)}"
                    traffic.wait_for_more(20, _SECONDS)
                    self.slowest = max(self.slowest, time.monotonic() - begin)
                    if self._random.random() < 0.7:  # else the next fault meets replicas that are still behind
                        wait_for_isr(self._cluster, topic, 3, _SECONDS)
                        traffic.wait_for_more(20, _SECONDS)
                    self._report(f"{what}: {time.monotonic() - begin:.1f} s")
                    self.done[kind] += 1
                    tick()
                wait_for_isr(self._cluster, topic, 3, _SECONDS)
            check(self._cluster, traffic)
        except Exception as error:
            raise AssertionError(
                f"seed {self.seed} with {self._counts}, {what}: {type(error).__name__}: {error}"
            ) from error
        self.acknowledged += len(traffic.acknowledged)

    def _strike(self, kind: str, topic: str) -> str:
        """Cause a fault and end it. Return its description."""
        rng, cluster = self._random, self._cluster
        partition, chance, outage = rng.randrange(PARTITIONS), rng.random(), rng.uniform(0.0, _LONGEST_OUTAGE)
        wait_for_isr(cluster, topic, 2, _SECONDS, at_least=True)
        leader = leaders(cluster, topic).get(partition, -1)
        victim = leader if leader in cluster.brokers else 1
        if kind == "zookeeper":
            cluster.zookeeper.kill()
            time.sleep(outage / 2)
            if chance < 0.4:
                cluster.broker(victim).kill()
            time.sleep(outage / 2)
            cluster.zookeeper.start()
            if chance < 0.4:
                cluster.broker(victim).start()
            return f"ZooKeeper was away for {outage:.1f} s" + (f", leader {victim} was killed" if chance < 0.4 else "")
        if kind == "stop":
            cluster.broker(victim).pause()
            time.sleep(outage / 2)
            other = victim % len(cluster.brokers) + 1
            if chance < 0.3:
                cluster.broker(other).kill()
            time.sleep(outage / 2)
            cluster.broker(victim).resume()
            if chance < 0.3:
                cluster.broker(other).start()
            return f"broker {victim} was paused for {outage:.1f} s" + (
                f", broker {other} was killed" if chance < 0.3 else ""
            )
        if kind == "cut":
            links = cluster.links[victim]
            chosen = [[links.zookeeper], [links.listener], list(links)][int(3 * chance)]
            for link in chosen:
                link.cut()
            time.sleep(outage)
            for link in chosen:
                if outage > _LONGEST_OUTAGE / 2:
                    link.reset()
                link.restore()
            names = [name for name, link in links._asdict().items() if link in chosen]
            return f"links {names} of broker {victim} were cut for {outage:.1f} s"
        return self._kill(topic, victim, chance, outage)

    def _kill(self, topic: str, victim: int, chance: float, outage: float) -> str:
        cluster = self._cluster
        if chance < 0.1:
            for broker in cluster.brokers.values():
                broker.kill()
            cluster.start_brokers(self._random.sample(sorted(cluster.brokers), k=len(cluster.brokers)))
            return "all brokers were killed"
        if chance < 0.3:
            wait_for_isr(cluster, topic, 3, _SECONDS)
            cluster.broker(victim).kill()
            lost = lose_page_cache(cluster.broker(victim).data_dir, self._random)
            cluster.broker(victim).start()
            wait_for_isr(cluster, topic, 3, _SECONDS)
            return f"leader {victim} was killed and lost {lost} bytes"
        cluster.broker(victim).kill()
        if chance < 0.6:
            wait_for_successors(cluster, topic, victim)
        elif chance < 0.8:
            time.sleep(outage / 4)
        cluster.broker(victim).start()
        return f"leader {victim} was killed"
