"""The broker's metadata, in one small file of the data directory: stratalog-metadata.json.

The file is replaced as a whole and synced, so after a crash or a power cut it has the old or the new content, never a
mix. Next to it is Kafka's meta.properties, with the cluster id and the node id. A directory that Kafka wrote keeps its
own meta.properties.
"""

from __future__ import annotations

import base64
import json
import logging
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from stratalog.errors import CorruptCheckpointError, StorageError
from stratalog.storage import names
from stratalog.storage.disk import Disk

logger = logging.getLogger(__name__)

METADATA_FILE = "stratalog-metadata.json"
INTERNAL_TOPICS = frozenset(("__consumer_offsets", "__transaction_state"))
META_PROPERTIES = "meta.properties"
_FORMAT = 1
_COORDINATED_BY = "stratalog.coordinated.by"


@dataclass(frozen=True)
class Topic:
    name: str
    id: uuid.UUID
    partition_count: int
    settings: Mapping[str, str] = field(default_factory=dict)  # own settings of the topic, as text
    deleting: bool = False

    @property
    def is_internal(self) -> bool:
        return self.name in INTERNAL_TOPICS


@dataclass(frozen=True)
class StoredMetadata:
    topics: Mapping[str, Topic] = field(default_factory=dict)
    next_producer_id: int = 0
    broker_settings: Mapping[str, str] = field(default_factory=dict)  # changed while the broker ran, for this broker
    cluster_settings: Mapping[str, str] = field(default_factory=dict)  # changed while the broker ran, for all brokers
    group_settings: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # by group id


class MetadataStore:
    """Reads and replaces the metadata. Only one thread at a time may change it."""

    def __init__(self, directory: Path, disk: Disk) -> None:
        self.path = directory / METADATA_FILE
        self._properties = directory / META_PROPERTIES
        self._disk = disk
        self.metadata = self._read()

    def change(self, **changes: Any) -> StoredMetadata:
        """Change these fields, durably. Raises StorageError; then nothing has changed."""
        changed = replace(self.metadata, **changes)
        try:
            self._disk.replace(self.path, _format(changed))
        except OSError as error:
            logger.error("%s: can't be written: %s", self.path, error)
            raise StorageError(f"{self.path}: can't be written: {error}") from error
        self.metadata = changed
        return changed

    def load_cluster_id(self, node_id: int) -> str:
        """Return the cluster id; a new data directory gets one. Raises StorageError if the directory belongs to another
        node.id."""
        cluster_id = self.read_cluster_id(node_id)
        if cluster_id is None:
            cluster_id = _new_id()
            self.save_cluster_id(node_id, cluster_id)
        return cluster_id

    def read_cluster_id(self, node_id: int) -> str | None:
        """Return the cluster id, None for a new data directory. Raises StorageError if the directory belongs to another
        node.id."""
        properties = self._read_properties()
        known = properties.get("node.id", properties.get("broker.id"))
        if known is not None and known != str(node_id):
            raise StorageError(
                f"{self._properties}: the data directory belongs to node.id {known}, but this broker has node.id "
                f"{node_id}; start it with --set node.id={known}, or with another data directory"
            )
        return properties.get("cluster.id") or None

    @property
    def belongs_to_cluster(self) -> bool:
        """True if a broker of a cluster has used the data directory: its topics are in ZooKeeper."""
        return self._read_properties().get(_COORDINATED_BY) == "zookeeper"

    def save_cluster_id(self, node_id: int, cluster_id: str, *, in_cluster: bool = False) -> None:
        """Save the ids in meta.properties; with `in_cluster`, also that the topics are in ZooKeeper."""
        new = {"version": "1", "directory.id": _new_id()} | self._read_properties()
        new |= {"cluster.id": cluster_id, "node.id": str(node_id)} | (
            {_COORDINATED_BY: "zookeeper"} if in_cluster else {}
        )
        try:
            self._disk.replace(self._properties, "".join(f"{name}={value}\n" for name, value in new.items()).encode())
        except OSError as error:
            raise StorageError(f"{self._properties}: can't be written: {error}") from error

    def _read_properties(self) -> dict[str, str]:
        try:
            text = self._properties.read_bytes().decode()
        except FileNotFoundError:
            return {}
        except (OSError, UnicodeDecodeError) as error:
            raise StorageError(f"{self._properties}: can't be read: {error}") from error
        lines = (line.partition("=") for line in text.splitlines() if not line.startswith("#"))
        return {name.strip(): value.strip() for name, equals, value in lines if equals}

    def _read(self) -> StoredMetadata:
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:
            return StoredMetadata()
        except OSError as error:
            raise StorageError(f"{self.path}: can't be read: {error}") from error
        try:
            return _parse(json.loads(content))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CorruptCheckpointError(
                f"{self.path}: is not valid ({type(error).__name__}: {error}); replace it with a backup, or move it "
                "away: the broker then adopts the topics from their directories, without their settings"
            ) from error


def _format(metadata: StoredMetadata) -> bytes:
    topics = {
        topic.name: {
            "id": str(topic.id),
            "partitions": topic.partition_count,
            "settings": dict(topic.settings),
            **({"deleting": True} if topic.deleting else {}),
        }
        for topic in metadata.topics.values()
    }
    content = {
        "version": _FORMAT,
        "next_producer_id": metadata.next_producer_id,
        "broker_settings": dict(metadata.broker_settings),
        "cluster_settings": dict(metadata.cluster_settings),
        "group_settings": {group_id: dict(settings) for group_id, settings in metadata.group_settings.items()},
        "topics": topics,
    }
    return (json.dumps(content, indent=1) + "\n").encode()


def _parse(content: Any) -> StoredMetadata:
    if content["version"] != _FORMAT:
        raise ValueError(f"version is {content['version']!r}; it must be {_FORMAT}")
    topics = {name: _parse_topic(name, entry) for name, entry in content["topics"].items()}
    next_producer_id = _number("next_producer_id", content["next_producer_id"], 0)
    cluster_settings = _texts(content.get("cluster_settings", {}))
    group_settings = {str(name): _texts(settings) for name, settings in content.get("group_settings", {}).items()}
    return StoredMetadata(
        topics, next_producer_id, _texts(content["broker_settings"]), cluster_settings, group_settings
    )


def _parse_topic(name: str, entry: Any) -> Topic:
    names.check_topic(name)
    partition_count = _number(f"partitions of {name}", entry["partitions"], 1)
    return Topic(
        name, uuid.UUID(entry["id"]), partition_count, _texts(entry["settings"]), bool(entry.get("deleting", False))
    )


def _texts(settings: Any) -> dict[str, str]:
    return {str(name): str(value) for name, value in settings.items()}


def _number(name: str, value: object, minimum: int) -> int:
    if not isinstance(value, int) or value < minimum:
        raise ValueError(f"{name} is {value!r}; it must be a number of at least {minimum}")
    return value


def _new_id() -> str:
    """Return a new id as Kafka writes it: 16 random bytes in URL-safe base64."""
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
