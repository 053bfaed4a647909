"""The metrics of a broker that belongs to a cluster. Their names follow those that Kafka's dashboards show, such as
UnderReplicatedPartitions, IsrShrinksPerSec and ActiveControllerCount.

What the leader of a partition knows is reported by its leader, and what the controller knows by the controller, so that
sums over all brokers count everything once. A single broker has none of these metrics.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from stratalog.broker.broker import Broker
from stratalog.broker.cluster_member import ClusterMember
from stratalog.broker.metadata.cluster_view import ClusterView
from stratalog.broker.metadata.partition_state import PartitionState
from stratalog.broker.replication.partition import ReplicatedPartition


class ClusterCollector(Collector):
    def __init__(self, broker: Broker, member: ClusterMember) -> None:
        self._broker = broker
        self._member = member
        self._elections = 0
        self._unclean_elections = 0
        member.metadata.on_change(self._count_elections)

    @property
    def _is_controller(self) -> bool:
        return self._member.metadata.view.controller == self._broker.config.node_id

    def collect(self) -> Iterator[Metric]:
        yield from self._partitions()
        yield from self._followers()
        yield from self._isr_changes()
        yield from self._controller()

    def _hosted(self) -> Iterator[ReplicatedPartition]:
        for partition in self._broker.topics.all_partitions():
            if isinstance(partition, ReplicatedPartition) and partition.is_hosted:
                yield partition

    def _led_states(self) -> list[PartitionState]:
        return [each.leadership.state for each in self._hosted() if each.leadership is not None]

    def _partitions(self) -> Iterator[Metric]:
        led = self._led_states()
        yield GaugeMetricFamily("stratalog_partition_count", "Replicas on this broker", sum(1 for _ in self._hosted()))
        yield GaugeMetricFamily("stratalog_leader_count", "Partitions that this broker leads", len(led))
        yield GaugeMetricFamily(
            "stratalog_under_replicated_partitions",
            "Partitions that this broker leads, with replicas out of sync",
            sum(not set(state.replicas).difference(state.adding) <= set(state.isr) for state in led),
        )
        yield GaugeMetricFamily(
            "stratalog_under_min_isr_partitions",
            "Partitions that this broker leads, with fewer replicas in sync than min.insync.replicas",
            sum(len(state.isr) < _required(state) for state in led),
        )
        yield GaugeMetricFamily(
            "stratalog_at_min_isr_partitions",
            "Partitions that this broker leads, which accept no writes if one more replica falls out of sync",
            sum(len(state.isr) == _required(state) for state in led),
        )
        yield GaugeMetricFamily(
            "stratalog_reassigning_partitions",
            "Partitions that this broker leads, whose replicas are being moved",
            sum(state.is_reassigning for state in led),
        )

    def _followers(self) -> Iterator[Metric]:
        lags = GaugeMetricFamily(
            "stratalog_replica_lag",
            "Records that a follower lacks of a partition that this broker leads",
            labels=["topic", "partition", "follower"],
        )
        highest = 0
        for partition in self._hosted():
            leadership, end = partition.leadership, partition.log.log_end_offset
            if leadership is None:
                continue
            for replica in leadership.state.replicas:
                follower = leadership.follower(replica)
                if follower is not None:
                    lag = max(end - max(follower.log_end, 0), 0)
                    highest = max(highest, lag)
                    lags.add_metric([partition.topic, str(partition.index), str(replica)], lag)
        yield lags
        yield GaugeMetricFamily("stratalog_replica_max_lag", "The highest of these lags", highest)

    def _isr_changes(self) -> Iterator[Metric]:
        changes = self._member.replicas.isr_changes
        yield CounterMetricFamily(
            "stratalog_isr_shrinks", "ISRs that this leader has removed replicas from", changes.shrinks
        )
        yield CounterMetricFamily(
            "stratalog_isr_expands", "ISRs that this leader has added replicas to", changes.expands
        )

    def _controller(self) -> Iterator[Metric]:
        view, is_controller = self._member.metadata.view, self._is_controller
        live = view.live_epochs()
        states = view.states.values() if is_controller else ()
        yield GaugeMetricFamily("stratalog_active_controller_count", "1 on the controller, else 0", int(is_controller))
        yield GaugeMetricFamily(
            "stratalog_registered_brokers",
            "Brokers of the cluster that are alive, as the controller sees it",
            len(view.brokers) if is_controller else 0,
        )
        yield GaugeMetricFamily(
            "stratalog_offline_partitions",
            "Partitions of the cluster without a leader, as the controller sees it",
            sum(state.leader not in view.brokers for state in states),
        )
        yield GaugeMetricFamily(
            "stratalog_preferred_replica_imbalance",
            "Partitions whose first replica is alive and does not lead, as the controller sees it",
            sum(state.leader != state.preferred_leader and state.preferred_leader in live for state in states),
        )
        yield CounterMetricFamily(
            "stratalog_leader_elections", "Leaders elected while this broker was the controller", self._elections
        )
        yield CounterMetricFamily(
            "stratalog_unclean_leader_elections",
            "Those of them that may have lost committed records",
            self._unclean_elections,
        )

    def _count_elections(self, old: ClusterView, new: ClusterView) -> None:
        if new.controller != self._broker.config.node_id:
            return
        for key, state in new.states.items():
            before = old.states.get(key)
            if before is None or before is state or not state.has_leader:
                continue
            if (state.leader, state.leader_broker_epoch) != (before.leader, before.leader_broker_epoch):
                self._elections += 1
                self._unclean_elections += state.leader not in before.isr and state.leader not in before.elr


def _required(state: PartitionState) -> int:
    return min(state.min_insync, len(state.replicas))
