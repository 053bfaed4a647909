"""The admin client: describes and changes topics, settings, groups, offsets, records and brokers of a cluster.

    with Admin("localhost:9092") as admin:
        admin.create_topic("orders", partitions=6, config={"retention.ms": 3_600_000})
        for topic, info in admin.list_topics().items():
            print(topic, len(info.partitions))

A call for one item returns its result or raises its error. A call for many items returns Outcomes: `outcomes[item]`
returns that item's result or raises its error, `outcomes.errors` has all errors by item, and `outcomes.check()` raises
the first error. `timeout` is in seconds; the default is default_api_timeout_ms. Threads may share an Admin.
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

from stratalog.client.administration import (
    brokers,
    configs,
    group_offsets,
    groups,
    own,
    records,
    replicas,
    topics,
    transactions,
    two_phase,
)
from stratalog.client.administration.brokers import ClusterDescription, LogDir, Replica
from stratalog.client.administration.configs import (
    ConfigChange,
    ConfigEntry,
    ConfigOperation,
    ConfigResource,
    ConfigSource,
    ResourceKind,
)
from stratalog.client.administration.groups import GroupDescription, GroupListing, GroupMember
from stratalog.client.administration.outcomes import Outcomes
from stratalog.client.administration.records import ListedOffset, OffsetSpec
from stratalog.client.administration.replicas import ElectionType, Reassignment
from stratalog.client.administration.topics import CHOSEN_BY_BROKER, CreatedTopic, NewTopic
from stratalog.client.administration.transactions import (
    ActiveProducer,
    HangingTransaction,
    TransactionDescription,
    TransactionListing,
)
from stratalog.client.cluster import Cluster
from stratalog.client.io_thread import IoThread
from stratalog.client.metadata import TopicInfo, TopicPartition, to_topic_partition
from stratalog.client.offsets import OffsetAndMetadata
from stratalog.client.prepared_transaction import PreparedTransaction
from stratalog.client.settings import AdminOptions, AdminSettings

__all__ = [
    "ActiveProducer",
    "Admin",
    "ClusterDescription",
    "ConfigChange",
    "ConfigEntry",
    "ConfigOperation",
    "ConfigResource",
    "ConfigSource",
    "CreatedTopic",
    "ElectionType",
    "GroupDescription",
    "GroupListing",
    "GroupMember",
    "HangingTransaction",
    "ListedOffset",
    "LogDir",
    "NewTopic",
    "OffsetSpec",
    "Outcomes",
    "PreparedTransaction",
    "Reassignment",
    "Replica",
    "ResourceKind",
    "TransactionDescription",
    "TransactionListing",
]

T = TypeVar("T")
_CLOSE_SECONDS = 5.0


class Admin:
    """An admin client. Its settings are Kafka's, with underscores for dots; `from_config` takes them with dots."""

    def __init__(self, bootstrap_servers: str | Sequence[str], /, **settings: Unpack[AdminOptions]) -> None:
        self._start(AdminSettings.from_options(bootstrap_servers, settings))

    @classmethod
    def from_config(cls, config: Mapping[str, object]) -> Self:
        """Create an Admin from Kafka's setting names: {"bootstrap.servers": "localhost:9092", "client.id": "me"}."""
        admin = cls.__new__(cls)
        admin._start(AdminSettings.parse(config))
        return admin

    def _start(self, settings: AdminSettings) -> None:
        self.settings = settings
        self._io = IoThread(f"admin {settings.client_id}")
        self._cluster = Cluster(settings, allow_auto_create_topics=False)

    def close(self) -> None:
        """Close the client. Calls that other threads are waiting in raise ClientClosedError."""
        self._io.close(self._cluster.close(), _CLOSE_SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_io") and self._io.unusable is None:
            self.close()

    def _run(self, call: Coroutine[Any, Any, T]) -> T:
        return self._io.run(call)

    # Topics

    def create_topic(
        self,
        name: str,
        partitions: int = CHOSEN_BY_BROKER,
        replication_factor: int = CHOSEN_BY_BROKER,
        config: Mapping[str, object] | None = None,
        *,
        validate_only: bool = False,
        timeout: float | None = None,
    ) -> CreatedTopic:
        topic = NewTopic(name, partitions, replication_factor, config or {})
        return self.create_topics([topic], validate_only=validate_only, timeout=timeout)[name]

    def create_topics(
        self, new: Iterable[NewTopic | str], *, validate_only: bool = False, timeout: float | None = None
    ) -> Outcomes[str, CreatedTopic]:
        """Create topics. With `validate_only`, return the same results and errors, and create nothing."""
        new_topics = [NewTopic(topic) if isinstance(topic, str) else topic for topic in new]
        return self._run(topics.create_topics(self._cluster, new_topics, validate_only, timeout))

    def delete_topic(self, name: str, *, timeout: float | None = None) -> None:
        return self.delete_topics([name], timeout=timeout)[name]

    def delete_topics(self, names: Iterable[str], *, timeout: float | None = None) -> Outcomes[str, None]:
        return self._run(topics.delete_topics(self._cluster, _many(names), timeout))

    def list_topics(self, *, include_internal: bool = False, timeout: float | None = None) -> dict[str, TopicInfo]:
        """Return all topics by name, sorted by name."""
        return self._run(topics.list_topics(self._cluster, include_internal, timeout))

    def describe_topic(self, name: str, *, timeout: float | None = None) -> TopicInfo:
        return self.describe_topics([name], timeout=timeout)[name]

    def describe_topics(self, names: Iterable[str], *, timeout: float | None = None) -> Outcomes[str, TopicInfo]:
        return self._run(topics.describe_topics(self._cluster, _many(names), timeout))

    def create_partitions(
        self, counts: Mapping[str, int], *, validate_only: bool = False, timeout: float | None = None
    ) -> Outcomes[str, None]:
        """Add partitions to topics until they have these counts. From then on, keys map to other partitions."""
        return self._run(topics.create_partitions(self._cluster, counts, validate_only, timeout))

    # Settings

    def describe_config(
        self, resource: ConfigResource, *, names: Iterable[str] | None = None, timeout: float | None = None
    ) -> dict[str, ConfigEntry]:
        return self.describe_configs([resource], names=names, timeout=timeout)[resource]

    def describe_configs(
        self,
        resources: Iterable[ConfigResource],
        *,
        names: Iterable[str] | None = None,
        include_documentation: bool = False,
        timeout: float | None = None,
    ) -> Outcomes[ConfigResource, dict[str, ConfigEntry]]:
        """Return the settings of each resource by name: all settings, or those in `names`."""
        return self._run(configs.describe_configs(self._cluster, resources, names, include_documentation, timeout))

    def alter_config(
        self,
        resource: ConfigResource,
        changes: Mapping[str, object],
        *,
        validate_only: bool = False,
        timeout: float | None = None,
    ) -> None:
        return self.alter_configs({resource: changes}, validate_only=validate_only, timeout=timeout)[resource]

    def alter_configs(
        self,
        changes: Mapping[ConfigResource, Mapping[str, object]],
        *,
        validate_only: bool = False,
        timeout: float | None = None,
    ) -> Outcomes[ConfigResource, None]:
        """Change the named settings and no others. A value of None resets a setting to its default; a ConfigChange
        adds values to a list or removes them."""
        return self._run(configs.alter_configs(self._cluster, changes, validate_only, timeout))

    # Groups

    def list_groups(
        self, *, states: Iterable[str] = (), types: Iterable[str] = (), timeout: float | None = None
    ) -> list[GroupListing]:
        """Return all groups, or those in these states (Stable, Empty, ...) or of these types (classic, consumer)."""
        return self._run(groups.list_groups(self._cluster, _many(states), _many(types), timeout))

    def describe_group(self, name: str, *, timeout: float | None = None) -> GroupDescription:
        return self.describe_groups([name], timeout=timeout)[name]

    def describe_groups(self, names: Iterable[str], *, timeout: float | None = None) -> Outcomes[str, GroupDescription]:
        """Describe groups of both kinds: classic groups and those of KIP-848."""
        return self._run(groups.describe_groups(self._cluster, _many(names), timeout))

    def delete_group(self, name: str, *, timeout: float | None = None) -> None:
        return self.delete_groups([name], timeout=timeout)[name]

    def delete_groups(self, names: Iterable[str], *, timeout: float | None = None) -> Outcomes[str, None]:
        """Delete groups. A group with members can't be deleted."""
        return self._run(groups.delete_groups(self._cluster, _many(names), timeout))

    def list_group_offsets(
        self, group: str, partitions: Iterable[TopicPartition] | None = None, *, timeout: float | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the group's committed offsets: all, or those of `partitions`. Leaves out partitions that have none."""
        return self._run(group_offsets.list_group_offsets(self._cluster, group, partitions, timeout))

    def alter_group_offsets(
        self,
        group: str,
        offsets: Mapping[TopicPartition, OffsetAndMetadata | int],
        *,
        timeout: float | None = None,
    ) -> Outcomes[TopicPartition, None]:
        """Commit offsets for a group. If the group has members, each partition fails with UNKNOWN_MEMBER_ID."""
        return self._run(group_offsets.alter_group_offsets(self._cluster, group, offsets, timeout))

    def delete_group_offsets(
        self, group: str, partitions: Iterable[TopicPartition], *, timeout: float | None = None
    ) -> Outcomes[TopicPartition, None]:
        """Delete committed offsets. They must belong to topics that no member of the group is subscribed to."""
        return self._run(group_offsets.delete_group_offsets(self._cluster, group, partitions, timeout))

    # Records

    def list_offsets(
        self,
        specs: Mapping[TopicPartition, OffsetSpec | int],
        *,
        read_committed: bool = False,
        timeout: float | None = None,
    ) -> Outcomes[TopicPartition, ListedOffset]:
        """Look up one offset for each partition, by an OffsetSpec or by a timestamp in milliseconds since 1970. With
        `read_committed`, LATEST is the last stable offset."""
        return self._run(records.list_offsets(self._cluster, specs, read_committed, timeout))

    def delete_records(
        self, before: Mapping[TopicPartition, int], *, timeout: float | None = None
    ) -> Outcomes[TopicPartition, int]:
        """Delete all records before these offsets (-1: all records). Returns the partitions' new log start offsets."""
        return self._run(records.delete_records(self._cluster, before, timeout))

    # Transactions

    def list_transactions(
        self,
        *,
        states: Iterable[str] = (),
        producer_ids: Iterable[int] = (),
        longer_than_ms: int | None = None,
        pattern: str | None = None,
        timeout: float | None = None,
    ) -> list[TransactionListing]:
        """Return all transactional ids, or those that match each filter: in one of these states (Ongoing,
        CompleteCommit, ...), with one of these producer ids, with a transaction that has been open for longer than
        `longer_than_ms`, or with an id that the whole of `pattern` (RE2) matches."""
        call = transactions.list_transactions(
            self._cluster, _many(states), producer_ids, longer_than_ms, pattern, timeout
        )
        return self._run(call)

    def describe_transaction(self, transactional_id: str, *, timeout: float | None = None) -> TransactionDescription:
        return self.describe_transactions([transactional_id], timeout=timeout)[transactional_id]

    def describe_transactions(
        self, transactional_ids: Iterable[str], *, timeout: float | None = None
    ) -> Outcomes[str, TransactionDescription]:
        return self._run(transactions.describe_transactions(self._cluster, _many(transactional_ids), timeout))

    def describe_producers(
        self, partitions: Iterable[TopicPartition], *, timeout: float | None = None
    ) -> Outcomes[TopicPartition, tuple[ActiveProducer, ...]]:
        """Return the idempotent and transactional producers whose state the partitions keep."""
        return self._run(transactions.describe_producers(self._cluster, partitions, timeout))

    def find_hanging_transactions(
        self, partitions: Iterable[TopicPartition], *, timeout: float | None = None
    ) -> list[HangingTransaction]:
        """Return the open transactions in these partitions that no coordinator will end."""
        return self._run(transactions.find_hanging_transactions(self._cluster, partitions, timeout))

    def abort_transaction(
        self,
        partition: TopicPartition,
        producer_id: int,
        producer_epoch: int,
        coordinator_epoch: int = 0,
        *,
        timeout: float | None = None,
    ) -> None:
        """Abort a hanging transaction in one partition, without its coordinator. Do not use it for a transaction that a
        coordinator knows: that transaction could then be aborted here and committed in other partitions."""
        call = transactions.abort_transaction(
            self._cluster, to_topic_partition(partition), producer_id, producer_epoch, coordinator_epoch, timeout
        )
        return self._run(call)

    # Brokers

    def describe_cluster(self, *, timeout: float | None = None) -> ClusterDescription:
        return self._run(brokers.describe_cluster(self._cluster, timeout))

    def api_versions(self, node: int, *, timeout: float | None = None) -> dict[int, tuple[int, int]]:
        """Return the APIs that a broker serves: the lowest and the highest version of each, by API key."""
        return self._run(brokers.api_versions(self._cluster, node, timeout))

    def describe_log_dirs(
        self,
        nodes: Iterable[int] | None = None,
        *,
        partitions: Iterable[TopicPartition] | None = None,
        timeout: float | None = None,
    ) -> Outcomes[int, dict[str, LogDir]]:
        """Return the data directories of all brokers or of `nodes`, by path, with the size of each partition: of all
        partitions, or of `partitions`."""
        return self._run(brokers.describe_log_dirs(self._cluster, nodes, partitions, timeout))

    # Replicas

    def elect_leaders(
        self,
        partitions: Iterable[TopicPartition] | None = None,
        *,
        election_type: ElectionType = ElectionType.PREFERRED,
        timeout: float | None = None,
    ) -> Outcomes[TopicPartition, None]:
        """Elect leaders of these partitions, or of all (None). The result for all has only the partitions for which an
        election was necessary."""
        return self._run(replicas.elect_leaders(self._cluster, election_type, partitions, timeout))

    def alter_partition_reassignments(
        self, targets: Mapping[TopicPartition, Sequence[int] | None], *, timeout: float | None = None
    ) -> Outcomes[TopicPartition, None]:
        """Begin to move partitions to these brokers, the first of which is the preferred leader; None cancels what is
        running. It returns before the data has moved: see list_partition_reassignments."""
        return self._run(replicas.alter_reassignments(self._cluster, targets, timeout))

    def list_partition_reassignments(
        self, partitions: Iterable[TopicPartition] | None = None, *, timeout: float | None = None
    ) -> dict[TopicPartition, Reassignment]:
        """Return the reassignments that are running: all, or those of these partitions."""
        return self._run(replicas.list_reassignments(self._cluster, partitions, timeout))

    def eligible_leaders(
        self, topics: Iterable[str], *, timeout: float | None = None
    ) -> dict[TopicPartition, tuple[int, ...]]:
        """Return the eligible leader replicas of partitions that have some (KIP-966): replicas outside the ISR that may
        lead without losing a committed record. Brokers without DescribeTopicPartitions report none."""
        return self._run(replicas.eligible_leaders(self._cluster, _many(topics), timeout))

    # For Stratalog brokers only

    def compaction_status(self, topic: str | None = None, *, timeout: float | None = None) -> list[dict[str, Any]]:
        """Return a row for each partition: how much is dirty, what is due, and what prevents the rest. Without a topic,
        return all compacted partitions. Raises UnsupportedVersionError if the broker is not Stratalog."""
        return self._run(own.compaction_status(self._cluster, topic, timeout))

    def explain_compaction(
        self, topic: str, key: bytes, partition: int | None = None, *, timeout: float | None = None
    ) -> list[dict[str, Any]]:
        """Return the records of a key by partition, with the reason why each still exists. Reads the whole topic."""
        return self._run(own.explain_compaction(self._cluster, topic, key, partition, timeout))

    def compaction_dry_run(
        self, topic: str, partition: int | None = None, *, timeout: float | None = None
    ) -> list[dict[str, Any]]:
        """Return what compaction would save now, by partition. Takes as long as the compaction itself."""
        return self._run(own.compaction_dry_run(self._cluster, topic, partition, timeout))

    def prepared_transactions(self, prefix: str = "", *, timeout: float | None = None) -> list[PreparedTransaction]:
        """Return the prepared transactions whose transactional ids begin with `prefix`."""
        return self._run(two_phase.prepared(self._cluster, prefix, timeout))

    def finish_transactions(
        self, prepared: Iterable[PreparedTransaction], *, commit: bool, timeout: float | None = None
    ) -> list[PreparedTransaction]:
        """Commit or abort all these transactions by one append. If one of them can't be ended this way, none is.

        Their transactional ids must map to the same partition of __transaction_state. The call is idempotent. Returns
        each transaction with the producer id and epoch that its producer has now.
        """
        return self._run(two_phase.finish(self._cluster, prepared, commit=commit, timeout=timeout))

    def abort_transactions(self, prefix: str, *, close: bool = False, timeout: float | None = None) -> list[str]:
        """Abort the open transactions of all transactional ids with this prefix, prepared or not, and fence their
        producers. Returns the ids whose transactions have ended. With `close`, the broker refuses new transactions
        under the prefix until it restarts, and the result includes the ids without an open transaction."""
        return self._run(two_phase.abort(self._cluster, prefix, close=close, timeout=timeout))

    def forget_transactions(self, transactional_ids: Iterable[str], *, timeout: float | None = None) -> None:
        """Make the broker forget transactional ids that are no longer used. They must have no open transaction."""
        self._run(two_phase.forget(self._cluster, _many(transactional_ids), timeout))


def _many(names: Iterable[str]) -> list[str]:
    if isinstance(names, str):
        raise TypeError(f"expected a list of names, not the string {names!r}; pass [{names!r}]")
    return list(names)
