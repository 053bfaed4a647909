"""The broker's memory of what exists, in one small file of the data directory: stratalog-metadata.json.

Replaced whole and synced, so after a crash or a power cut it is the old or the new, never a mix. Beside it lies Kafka's
meta.properties, with the cluster's id and the broker's number; a directory that Kafka wrote keeps its own.
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


@dataclass(frozen=True)
class Topic:
    name: str
    id: uuid.UUID
    partition_count: int
    settings: Mapping[str, str] = field(default_factory=dict)  # those that differ from the broker's, as text
    deleting: bool = False

    @property
    def is_internal(self) -> bool:
        return self.name in INTERNAL_TOPICS


@dataclass(frozen=True)
class Metadata:
    topics: Mapping[str, Topic] = field(default_factory=dict)
    next_producer_id: int = 0
    broker_settings: Mapping[str, str] = field(default_factory=dict)  # changed while it ran, for this broker
    cluster_settings: Mapping[str, str] = field(default_factory=dict)  # the same, for all brokers
    group_settings: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # by group id


class MetadataStore:
    """Not for two threads at a time: whoever changes something holds the only right to."""

    def __init__(self, directory: Path, disk: Disk) -> None:
        self.path = directory / METADATA_FILE
        self._properties = directory / META_PROPERTIES
        self._disk = disk
        self.metadata = self._read()

    def change(self, **changes: Any) -> Metadata:
        """Durable when it returns; raises StorageError, and nothing has changed."""
        changed = replace(self.metadata, **changes)
        try:
            self._disk.replace(self.path, _format(changed))
        except OSError as error:
            logger.error("%s: can't be written: %s", self.path, error)
            raise StorageError(f"{self.path}: can't be written: {error}") from error
        self.metadata = changed
        return changed

    def identity(self, node_id: int) -> str:
        """The cluster's id. Raises StorageError where the directory belongs to another broker number."""
        found = self._read_properties()
        known = found.get("node.id", found.get("broker.id"))
        if known is not None and known != str(node_id):
            raise StorageError(
                f"{self._properties}: the directory belongs to node.id {known}, this broker's is {node_id}; "
                f"start it with --set node.id={known}, or on another directory"
            )
        if found.get("cluster.id"):
            return found["cluster.id"]
        cluster_id = _new_id()
        lines = ["version=1", f"cluster.id={cluster_id}", f"node.id={node_id}", f"directory.id={_new_id()}"]
        try:
            self._disk.replace(self._properties, "".join(f"{line}\n" for line in lines).encode())
        except OSError as error:
            raise StorageError(f"{self._properties}: can't be written: {error}") from error
        return cluster_id

    def _read_properties(self) -> dict[str, str]:
        try:
            text = self._properties.read_bytes().decode()
        except FileNotFoundError:
            return {}
        except (OSError, UnicodeDecodeError) as error:
            raise StorageError(f"{self._properties}: can't be read: {error}") from error
        lines = (line.partition("=") for line in text.splitlines() if not line.startswith("#"))
        return {name.strip(): value.strip() for name, equals, value in lines if equals}

    def _read(self) -> Metadata:
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:
            return Metadata()
        except OSError as error:
            raise StorageError(f"{self.path}: can't be read: {error}") from error
        try:
            return _parse(json.loads(content))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CorruptCheckpointError(
                f"{self.path}: is not what this broker writes ({type(error).__name__}: {error}); put a backup in its "
                "place, or move it away: topics are then found again from their directories, their settings are not"
            ) from error


def _format(metadata: Metadata) -> bytes:
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


def _parse(content: Any) -> Metadata:
    if content["version"] != _FORMAT:
        raise ValueError(f"version is {content['version']!r}; {_FORMAT} is known")
    topics = {name: _parse_topic(name, entry) for name, entry in content["topics"].items()}
    next_producer_id = _number("next_producer_id", content["next_producer_id"], 0)
    cluster_settings = _texts(content.get("cluster_settings", {}))
    group_settings = {str(name): _texts(settings) for name, settings in content.get("group_settings", {}).items()}
    return Metadata(topics, next_producer_id, _texts(content["broker_settings"]), cluster_settings, group_settings)


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
        raise ValueError(f"{name} is {value!r}; it must be a number from {minimum} on")
    return value


def _new_id() -> str:
    """As Kafka writes ids: 16 random bytes in URL-safe base64."""
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
