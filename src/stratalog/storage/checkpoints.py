"""Parses and formats the small text files of a data directory, in Kafka's formats.

    offset checkpoints        "0\\n<count>\\n" then "<topic> <partition> <offset>" lines, in the data directory
    leader-epoch-checkpoint   "0\\n<count>\\n" then "<epoch> <start offset>" lines, in the partition
    partition.metadata        "version: 0\\ntopic_id: <22 characters of base64>", in the partition
    .kafka_cleanshutdown      JSON with a version and a broker epoch, in the data directory

All of them are written with Disk.replace. They have no checksum, so a reader must cope with a wrong number: the log
uses the numbers as limits that its own bytes confirm or correct.
"""

from __future__ import annotations

import base64
import binascii
import json
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path

from stratalog.errors import CorruptCheckpointError
from stratalog.storage.names import TopicPartition

_VERSION = 0
_INT_MAX = 2**31 - 1
_LONG_MAX = 2**63 - 1


def format_offsets(offsets: Mapping[TopicPartition, int]) -> bytes:
    lines = [f"{partition.topic} {partition.partition} {offset}" for partition, offset in sorted(offsets.items())]
    return _format(lines)


def read_offsets(path: Path) -> dict[TopicPartition, int]:
    """Return the offsets by partition. A missing file is the same as an empty one. Raises CorruptCheckpointError."""
    offsets = {}
    for number, line in enumerate(_read(path), start=3):
        fields = line.split(" ")
        if len(fields) != 3:
            raise CorruptCheckpointError(f"{path}: line {number} is {line!r}, not 'topic partition offset'")
        partition = TopicPartition(fields[0], _number(path, number, fields[1], _INT_MAX))
        offsets[partition] = _number(path, number, fields[2])
    return offsets


def format_epochs(epochs: Iterable[tuple[int, int]]) -> bytes:
    return _format([f"{epoch} {start}" for epoch, start in epochs])


def read_epochs(path: Path) -> list[tuple[int, int]]:
    """Return the pairs of leader epoch and start offset in the order of the file. A missing file is the same as an
    empty one. Raises CorruptCheckpointError."""
    epochs = []
    for number, line in enumerate(_read(path), start=3):
        fields = line.split(" ")
        if len(fields) != 2:
            raise CorruptCheckpointError(f"{path}: line {number} is {line!r}, not 'epoch offset'")
        epochs.append((_number(path, number, fields[0], _INT_MAX), _number(path, number, fields[1])))
    return epochs


def format_partition_metadata(topic_id: uuid.UUID) -> bytes:
    encoded = base64.urlsafe_b64encode(topic_id.bytes).decode().rstrip("=")
    return f"version: 0\ntopic_id: {encoded}".encode()


def read_partition_metadata(path: Path) -> uuid.UUID | None:
    """Return the topic id, or None if the file is missing. Raises CorruptCheckpointError."""
    content = _content(path)
    if content is None:
        return None
    fields = dict(line.split(": ", 1) for line in content.splitlines() if ": " in line)
    if fields.get("version") != "0":
        raise CorruptCheckpointError(f"{path}: version is {fields.get('version', '')!r}; only version 0 is supported")
    try:
        return uuid.UUID(bytes=base64.urlsafe_b64decode(fields["topic_id"] + "=="))
    except (KeyError, ValueError, binascii.Error) as error:
        raise CorruptCheckpointError(
            f"{path}: topic_id is {fields.get('topic_id', '')!r}, not 16 bytes of base64"
        ) from error


def format_clean_shutdown() -> bytes:
    return json.dumps({"version": 0, "brokerEpoch": -1}, separators=(",", ":")).encode()


def _format(lines: list[str]) -> bytes:
    return "".join(f"{line}\n" for line in [str(_VERSION), str(len(lines)), *lines]).encode()


def _read(path: Path) -> list[str]:
    content = _content(path)
    if not content:  # Kafka's broker creates the file empty and writes it later
        return []
    lines = content.splitlines()
    if len(lines) < 2:
        raise CorruptCheckpointError(f"{path}: has {len(lines)} lines; a version and a count were expected")
    if _number(path, 1, lines[0]) != _VERSION:
        raise CorruptCheckpointError(f"{path}: version is {lines[0]!r}; only version 0 is supported")
    entries = lines[2:]
    if _number(path, 2, lines[1]) != len(entries):
        raise CorruptCheckpointError(f"{path}: count is {lines[1]!r}, but {len(entries)} entries follow")
    return entries


def _content(path: Path) -> str | None:
    try:
        if path.exists() and not path.is_file():  # opening a named pipe would block until a process writes to it
            raise CorruptCheckpointError(f"{path}: is not a file")
        return path.read_bytes().decode("ascii")
    except FileNotFoundError:
        return None
    except UnicodeDecodeError as error:
        raise CorruptCheckpointError(f"{path}: is not text: {error}") from error


def _number(path: Path, line: int, text: str, largest: int = _LONG_MAX) -> int:
    # int() alone would also accept "+1", "1_0", blanks, and numbers that are too large for the field.
    if not text.isdecimal() or len(text) > len(str(largest)) or int(text) > largest:
        raise CorruptCheckpointError(f"{path}: line {line} has {text!r} where a number was expected")
    return int(text)
