"""The broker's metrics for Prometheus, collected on request from numbers that the broker keeps anyway."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, SummaryMetricFamily
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from stratalog.broker.broker import Broker
from stratalog.protocol.api_keys import ApiKey


class BrokerCollector(Collector):
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def collect(self) -> Iterator[Metric]:
        yield from self._requests()
        yield from self._traffic()
        yield from self._connections()
        yield from self._partitions()
        yield from self._compaction()
        yield from self._groups()

    def _requests(self) -> Iterator[Metric]:
        counters = self._broker.counters
        requests = SummaryMetricFamily(
            "stratalog_request_seconds", "Requests by API, from arrival to response, waits included", labels=["api"]
        )
        for key in ApiKey:
            if counters.requests[key]:
                requests.add_metric([key.name.lower()], counters.requests[key], counters.request_seconds[key])
        yield requests
        yield CounterMetricFamily(
            "stratalog_refused_requests", "Requests that closed their connection", counters.refused_requests
        )

    def _traffic(self) -> Iterator[Metric]:
        counters, server = self._broker.counters, self._broker.server
        yield CounterMetricFamily("stratalog_records_in", "Records appended by producers", counters.records_in)
        yield CounterMetricFamily("stratalog_record_bytes_in", "Bytes of appended batches", counters.record_bytes_in)
        yield CounterMetricFamily("stratalog_record_bytes_out", "Bytes of batches fetched", counters.record_bytes_out)
        yield CounterMetricFamily(
            "stratalog_failed_produce", "Appends that failed because of the disk", counters.failed_produce
        )
        yield CounterMetricFamily(
            "stratalog_refused_produce", "Batches that broke a rule of the log", counters.refused_produce
        )
        yield CounterMetricFamily("stratalog_failed_fetch", "Reads for fetches that failed", counters.failed_fetch)
        yield CounterMetricFamily("stratalog_network_bytes_in", "Bytes received", server.received)
        yield CounterMetricFamily("stratalog_network_bytes_out", "Bytes sent", server.sent)

    def _connections(self) -> Iterator[Metric]:
        server, sessions = self._broker.server, self._broker.fetch_sessions
        yield GaugeMetricFamily("stratalog_connections", "Open connections", len(server.connections))
        yield CounterMetricFamily("stratalog_connections_accepted", "Connections accepted", server.accepted)
        yield CounterMetricFamily(
            "stratalog_connections_refused", "Connections refused because of a limit", server.refused
        )
        yield GaugeMetricFamily(
            "stratalog_waiting_fetches", "Fetches that wait for records", self._broker.fetch.waiting
        )
        yield GaugeMetricFamily("stratalog_fetch_sessions", "Incremental fetch sessions", len(sessions))
        yield CounterMetricFamily(
            "stratalog_fetch_sessions_evicted", "Fetch sessions replaced by new ones", sessions.evicted
        )

    def _partitions(self) -> Iterator[Metric]:
        labels = ["topic", "partition"]
        start = GaugeMetricFamily("stratalog_log_start_offset", "Log start offset", labels=labels)
        end = GaugeMetricFamily("stratalog_log_end_offset", "Log end offset, which the next record gets", labels=labels)
        size = GaugeMetricFamily("stratalog_log_bytes", "Bytes of records in a log", labels=labels)
        segments = GaugeMetricFamily("stratalog_log_segments", "Segments of a log", labels=labels)
        for partition in self._broker.topics.all_partitions():
            if not partition.is_hosted:
                continue  # in a cluster, other brokers have its replicas
            names = [partition.topic, str(partition.index)]
            log = partition.log
            start.add_metric(names, log.log_start_offset)
            end.add_metric(names, log.log_end_offset)
            size.add_metric(names, log.size)
            segments.add_metric(names, len(log.segments))
        yield from (start, end, size, segments)
        yield GaugeMetricFamily("stratalog_topics", "Topics", len(self._broker.topics.all()))

    def _compaction(self) -> Iterator[Metric]:
        cleaner = self._broker.directory.cleaner
        counters = cleaner.counters
        labels = ["topic", "partition"]
        yield CounterMetricFamily("stratalog_compaction_runs", "Compaction runs", counters.runs)
        yield CounterMetricFamily("stratalog_compaction_failures", "Compaction runs that failed", counters.failures)
        yield CounterMetricFamily(
            "stratalog_compaction_bytes_read", "Bytes that compaction runs have read", counters.bytes_read
        )
        yield CounterMetricFamily(
            "stratalog_compaction_bytes_saved", "Bytes that compaction runs have freed", counters.bytes_saved
        )
        set_aside = GaugeMetricFamily("stratalog_compaction_set_aside", "Logs that can't be compacted", labels=labels)
        for partition in cleaner.set_aside():
            set_aside.add_metric([partition.topic, str(partition.partition)], 1)
        yield set_aside

    def _groups(self) -> Iterator[Metric]:
        states = GaugeMetricFamily("stratalog_groups", "Consumer groups by kind and state", labels=["kind", "state"])
        counts: dict[tuple[str, str], int] = {}
        for group in self._broker.groups.groups():
            key = (group.kind, group.state_name)
            counts[key] = counts.get(key, 0) + 1
        for names, count in sorted(counts.items()):
            states.add_metric(names, count)
        yield states
        budget = self._broker.groups.budget
        yield GaugeMetricFamily(
            "stratalog_coordinator_state_bytes",
            "Memory of groups, committed offsets and transactional ids",
            budget.used,
        )
        yield GaugeMetricFamily(
            "stratalog_coordinator_state_limit_bytes", "stratalog.max.coordinator.state.bytes", budget.limit
        )
        yield CounterMetricFamily(
            "stratalog_coordinator_state_refusals", "Requests refused because of that limit", budget.refusals
        )


class MetricsPage:
    def __init__(self, broker: Broker) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(BrokerCollector(broker))
        if broker.member is not None:
            from stratalog.broker.cluster_metrics import ClusterCollector  # imports kazoo, which only clusters need

            self._registry.register(ClusterCollector(broker, broker.member))
        ProcessCollector(registry=self._registry)

    def render(self) -> tuple[str, bytes]:
        return CONTENT_TYPE_LATEST, generate_latest(self._registry)
