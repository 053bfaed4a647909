"""The small files next to the logs, read as a whole and parsed with the storage engine's code.

There are two differences: for any bytes, the only parse error is CorruptCheckpointError, and an empty file has no
entries, as in Kafka.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from stratalog.errors import CorruptCheckpointError
from stratalog.inspect.read_only_file import read_small
from stratalog.storage import checkpoints
from stratalog.storage.names import TopicPartition
from stratalog.storage.producer_state import ProducerEntry, parse_snapshot

T = TypeVar("T")

META_PROPERTIES = "meta.properties"


def read_offsets(path: Path) -> dict[TopicPartition, int]:
    return _parse(path, checkpoints.read_offsets, {})


def read_epochs(path: Path) -> list[tuple[int, int]]:
    return _parse(path, checkpoints.read_epochs, [])


def read_topic_id(path: Path) -> uuid.UUID:
    topic_id = _parse(path, checkpoints.read_partition_metadata, None)
    if topic_id is None:
        raise CorruptCheckpointError(f"{path}: is empty; it must have a version and a topic id")
    return topic_id


def read_node_id(data_dir: Path) -> int | None:
    """Return the node id of the broker that a data directory belongs to; None if the directory does not say it."""
    try:
        content = read_small(data_dir / META_PROPERTIES).decode(errors="replace")
    except OSError:
        return None
    properties = dict(line.split("=", 1) for line in content.splitlines() if "=" in line)
    node_id = properties.get("node.id", properties.get("broker.id", "")).strip()
    return int(node_id) if node_id.isascii() and node_id.isdigit() else None


def read_producers(path: Path) -> list[ProducerEntry]:
    return parse_snapshot(read_small(path), str(path))


def _parse(path: Path, parse: Callable[[Path], T], empty: T) -> T:
    if not read_small(path):
        return empty
    try:
        return parse(path)
    except ValueError as error:  # a number with more digits than int() accepts
        raise CorruptCheckpointError(f"{path}: {error}") from error
