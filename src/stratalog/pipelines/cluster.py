"""The brokers that a job reads from and writes to, and how Spark's reader and writer reach them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from stratalog.client.admin import Admin, OffsetSpec
from stratalog.client.metadata import TopicInfo, TopicPartition
from stratalog.pipelines.export_plan import PartitionBounds
from stratalog.spark.option_values import data_dirs
from stratalog.spark.options import consumer_settings
from stratalog.spark.read_options import ReadOptions, options_for_ranges
from stratalog.spark.scan_request import READ_COMMITTED, OffsetRange

FORMAT = "stratalog"


@dataclass(frozen=True)
class ClusterAddress:
    """`settings` are the client's, by Kafka's names. `log_dirs` are data directories that the executors can read."""

    bootstrap_servers: str
    settings: Mapping[str, str] = field(default_factory=dict)
    log_dirs: Sequence[str] = ()

    def admin(self) -> Admin:
        return Admin.from_config(self._client_settings())

    def options(self) -> dict[str, str]:
        """Return the options for a Spark reader or writer."""
        return {f"kafka.{name}": value for name, value in self._client_settings().items()}

    def read_options(self) -> dict[str, str]:
        """Return the options for a Spark reader. It skips records of open and aborted transactions."""
        read = {**self.options(), "includeHeaders": "true", "isolation.level": READ_COMMITTED}
        return read | ({"log.dirs": ",".join(self.log_dirs)} if self.log_dirs else {})

    def range_options(
        self, ranges: Iterable[OffsetRange], *, fail_on_data_loss: bool, min_partitions: int | None
    ) -> ReadOptions:
        """Return the options of a batch that reads exactly these ranges, otherwise as `read_options`."""
        return options_for_ranges(
            ranges,
            consumer_settings(self._client_settings()),
            isolation=READ_COMMITTED,
            include_headers=True,
            fail_on_data_loss=fail_on_data_loss,
            data_dirs=data_dirs("log.dirs", ",".join(self.log_dirs)) if self.log_dirs else None,
            min_partitions=min_partitions,
        )

    def _client_settings(self) -> dict[str, str]:
        return {"bootstrap.servers": self.bootstrap_servers, **self.settings}


def bounds_of(admin: Admin, topics: Iterable[TopicInfo]) -> dict[TopicPartition, PartitionBounds]:
    """Return the log start offset of each partition, and its last stable offset."""
    partitions = [TopicPartition(topic.name, info.partition) for topic in topics for info in topic.partitions]
    earliest = admin.list_offsets(dict.fromkeys(partitions, OffsetSpec.EARLIEST)).check()
    latest = admin.list_offsets(dict.fromkeys(partitions, OffsetSpec.LATEST), read_committed=True).check()
    return {
        partition: PartitionBounds(earliest[partition].offset, latest[partition].offset) for partition in partitions
    }
