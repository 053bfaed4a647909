"""The settings of Apache Kafka's brokers that are not supported, each with a reason of one line.

So a user with a server.properties of Kafka learns which settings to leave out, and none is ignored silently.
"""

from __future__ import annotations

_COORDINATION = "brokers coordinate through ZooKeeper (zookeeper.connect)"
_SECURITY = "TLS, SASL, ACLs and delegation tokens are not available yet; listen on an address in a trusted network"
_THREADS = "requests are served by one event loop, so there is no pool to size"
_TIERS = "tiered storage is not available yet"
_TWO_PHASES = "transactions of external coordinators (KIP-939) are not available"
_SHARE = "share groups are not available; use consumer groups or classic groups"
_STREAMS = "groups of the Streams protocol are not available; Kafka Streams works with classic groups"
_QUOTAS = "quotas are not available yet"
_METRICS = "metrics are served for Prometheus: start with --metrics HOST:PORT"
_WAITING = "waiting requests are kept at their partitions; there is no list to purge"
_PLUGINS = "Java classes can't be loaded"
_OLD = "Kafka 4 has removed it"

# A rule that ends with a dot is for all names that start with it. The first rule that matches a name decides.
_RULES: tuple[tuple[str, str], ...] = (
    ("log.dir", "set the data directory with --data-dir"),
    ("log.dirs", "set the data directory with --data-dir"),
    ("log.dir.failure.timeout.ms", "there is one data directory; if it fails, requests get KAFKA_STORAGE_ERROR"),
    ("metadata.log.dir", "set the data directory with --data-dir"),
    ("listeners", "set the address with --listen HOST:PORT, and the address for clients with advertised.listeners"),
    ("port", "set the address with --listen HOST:PORT"),
    ("host.name", "set the address with --listen HOST:PORT"),
    ("advertised.host.name", "set advertised.listeners"),
    ("advertised.port", "set advertised.listeners"),
    ("listener.name.", "there is one listener; use the setting without this prefix"),
    ("listener.security.protocol.map", _SECURITY),
    ("early.start.listeners", "there is one listener, which opens when the broker is ready"),
    ("inter.broker.listener.name", _COORDINATION),
    ("inter.broker.protocol.version", _OLD),
    ("log.message.format.version", _OLD),
    ("log.message.downconversion.enable", _OLD),
    (
        "log.message.timestamp.difference.max.ms",
        f"{_OLD}; use log.message.timestamp.before.max.ms and log.message.timestamp.after.max.ms",
    ),
    ("zookeeper.max.in.flight.requests", "requests to ZooKeeper are pipelined without a setting"),
    ("zookeeper.set.acl", _SECURITY),
    ("zookeeper.ssl.", _SECURITY),
    ("zookeeper.clientCnxnSocket", _SECURITY),
    ("zookeeper.metadata.migration.enable", "metadata stays in ZooKeeper"),
    ("process.roles", "the process is both broker and controller"),
    ("controller.quota.", _QUOTAS),
    ("controller.", _COORDINATION),
    ("controlled.shutdown.max.retries", "a broker that stops waits for its successors once, at most 30 s"),
    ("controlled.shutdown.retry.backoff.ms", "a broker that stops waits for its successors once, at most 30 s"),
    ("broker.heartbeat.interval.ms", _COORDINATION),
    ("broker.session.timeout.ms", _COORDINATION),
    ("broker.id.generation.enable", _OLD),
    ("reserved.broker.max.id", _OLD),
    ("initial.broker.registration.timeout.ms", _COORDINATION),
    ("leader.imbalance.per.broker.percentage", _OLD),
    ("replica.alter.log.dirs.", "there is one data directory"),
    ("num.replica.alter.log.dirs.threads", "there is one data directory"),
    ("replication.quota.", _QUOTAS),
    ("alter.log.dirs.", "there is one data directory"),
    ("follower.replication.", _QUOTAS),
    ("leader.replication.", _QUOTAS),
    ("metadata.", _COORDINATION),
    ("eligible.leader.replicas.", "eligible leader replicas are always remembered"),
    ("unclean.leader.election.interval.ms", "unclean elections, where allowed, are held at once"),
    ("num.network.threads", _THREADS),
    ("num.io.threads", _THREADS),
    ("background.threads", _THREADS),
    ("num.recovery.threads.per.data.dir", "logs are opened one after the other, which is fast after a clean shutdown"),
    (
        "queued.max.requests",
        "a connection has one request in progress, and none is queued; use queued.max.request.bytes",
    ),
    ("request.timeout.ms", _COORDINATION),
    ("socket.connection.setup.", _COORDINATION),
    ("max.connection.creation.rate", "use max.connections and max.connections.per.ip"),
    ("max.connections.per.ip.overrides", "not available; max.connections.per.ip applies to every address"),
    ("connection.failed.authentication.delay.ms", _SECURITY),
    ("connections.max.reauth.ms", _SECURITY),
    ("log.local.", _TIERS),
    ("remote.", _TIERS),
    ("transaction.two.phase.commit.enable", _TWO_PHASES),
    ("transaction.state.log.load.buffer.size", "transactions are read from the log when the broker starts"),
    ("add.partitions.to.txn.", "the coordinator is in the same process and answers at once"),
    ("producer.id.expiration.check.interval.ms", "producers expire whenever retention is applied"),
    ("group.share.", _SHARE),
    ("share.", _SHARE),
    ("group.streams.", _STREAMS),
    ("group.coordinator.threads", _THREADS),
    ("group.coordinator.append.linger.ms", "a group's records are appended at once"),
    ("group.coordinator.cached.buffer.max.bytes", "no buffers are cached"),
    ("group.coordinator.rebalance.protocols", "classic groups and consumer groups (KIP-848) are always both available"),
    ("group.coordinator.new.enable", _OLD),
    ("offsets.commit.timeout.ms", "committed offsets are appended to one log, without waiting for replicas"),
    ("offsets.commit.required.acks", _OLD),
    ("offsets.load.buffer.size", "committed offsets are read from the log when the broker starts"),
    ("offsets.topic.compression.codec", "records of __consumer_offsets are not compressed"),
    ("quota.", _QUOTAS),
    ("client.quota.callback.class", _QUOTAS),
    ("ssl.", _SECURITY),
    ("sasl.", _SECURITY),
    ("security.", _SECURITY),
    ("authorizer.", _SECURITY),
    ("super.users", _SECURITY),
    ("allow.everyone.if.no.acl.found", _SECURITY),
    ("delegation.token.", _SECURITY),
    ("principal.builder.class", _SECURITY),
    ("password.encoder.", _SECURITY),
    ("metric.reporters", _METRICS),
    ("auto.include.jmx.reporter", _METRICS),
    ("metrics.", _METRICS),
    ("kafka.metrics.", _METRICS),
    ("telemetry.", _METRICS),
    ("fetch.purgatory.", _WAITING),
    ("producer.purgatory.", _WAITING),
    ("delete.records.purgatory.", _WAITING),
    ("create.topic.policy.class.name", _PLUGINS),
    ("alter.config.policy.class.name", _PLUGINS),
    ("log.flush.start.offset.checkpoint.interval.ms", "a log start offset is saved durably whenever it changes"),
    ("log.initial.task.delay.ms", "the housekeeper starts when the broker is ready"),
    ("unstable.", "there are no features to unlock"),
    ("confluent.", "it is a setting of Confluent Server, not of Apache Kafka"),
)


def why_refused(name: str) -> str | None:
    """Return the reason why a setting is not supported, or None if no rule matches the name."""
    for rule, reason in _RULES:
        if name == rule or (rule.endswith(".") and name.startswith(rule)):
            return reason
    return None


def refusals() -> tuple[tuple[str, str], ...]:
    """Return all rules with their reasons, for the documentation. A name that ends with a dot is a prefix."""
    return _RULES
