"""The brokers that a job reads from and writes to, and how Spark's source and sink are told of them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from stratalog.client.admin import Admin, OffsetSpec
from stratalog.client.metadata import TopicInfo, TopicPartition
from stratalog.pipelines.export_plan import Bounds
from stratalog.spark.scan_request import OffsetRange

FORMAT = "stratalog"


@dataclass(frozen=True)
class ClusterAddress:
    """`settings`: a client's, by Kafka's names. `log_dirs`: data directories that executors see, to read files from."""

    bootstrap_servers: str
    settings: Mapping[str, str] = field(default_factory=dict)
    log_dirs: Sequence[str] = ()

    def admin(self) -> Admin:
        return Admin.from_config({"bootstrap.servers": self.bootstrap_servers, **self.settings})

    def options(self) -> dict[str, str]:
        """For a reader or a writer of Spark's."""
        own = {f"kafka.{name}": value for name, value in self.settings.items()}
        return {"kafka.bootstrap.servers": self.bootstrap_servers, **own}

    def read_options(self) -> dict[str, str]:
        """For a reader: records of transactions that were aborted, or are open, are no records."""
        read = {**self.options(), "includeHeaders": "true", "isolation.level": "read_committed"}
        return read | ({"log.dirs": ",".join(self.log_dirs)} if self.log_dirs else {})


def bounds_of(admin: Admin, topics: Iterable[TopicInfo]) -> dict[tuple[str, int], Bounds]:
    """Where each partition begins, and where what is committed of it ends."""
    places = [TopicPartition(topic.name, one.partition) for topic in topics for one in topic.partitions]
    first = admin.list_offsets(dict.fromkeys(places, OffsetSpec.EARLIEST)).check()
    last = admin.list_offsets(dict.fromkeys(places, OffsetSpec.LATEST), read_committed=True).check()
    return {(place.topic, place.partition): Bounds(first[place].offset, last[place].offset) for place in places}


def range_options(ranges: Iterable[OffsetRange]) -> dict[str, str]:
    """Options that read exactly these offsets."""
    by_topic: dict[str, list[OffsetRange]] = {}
    for one in ranges:
        by_topic.setdefault(one.topic, []).append(one)
    return {
        "assign": json.dumps({topic: [one.partition for one in of] for topic, of in by_topic.items()}),
        "startingOffsets": json.dumps({t: {str(one.partition): one.start for one in of} for t, of in by_topic.items()}),
        "endingOffsets": json.dumps({t: {str(one.partition): one.end for one in of} for t, of in by_topic.items()}),
    }
