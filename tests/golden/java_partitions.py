"""The partitions that Kafka's Java client chooses for 10,000 keys, and how to ask it.

`java-partitions.bin` has six bytes per key: Utils.murmur2 (i32) and BuiltInPartitioner.partitionForKey (u16), both of
kafka-clients 4.1.2. The keys are not in the file: `keys` generates them, of every length from 0 to 99 bytes.
`python -m tests.golden.java_partitions` asks Java again and writes the file.
"""

from __future__ import annotations

import hashlib
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

FILE = Path(__file__).with_name("java-partitions.bin")
PROGRAM = Path(__file__).with_name("generate") / "java" / "KeyPartitions.java"
KEYS = 10_000
ANSWER = struct.Struct(">iH")


def keys() -> Iterator[tuple[bytes, int]]:
    """Yield each key with the number of partitions to choose from, 1 to 1,000."""
    for number in range(KEYS):
        yield hashlib.shake_256(b"%d" % number).digest(number % 100), number * 7 % 1000 + 1


def golden() -> list[tuple[int, int]]:
    """Return (murmur2, partition) of each key."""
    return list(ANSWER.iter_unpack(FILE.read_bytes()))


def ask_java() -> bytes:
    from tests.compat.fetch_kafka import fetch_kafka

    request = b"".join(struct.pack(">ii", count, len(key)) + key for key, count in keys())
    command = ["java", "-cp", str(fetch_kafka() / "*"), str(PROGRAM)]
    return subprocess.run(command, input=request, stdout=subprocess.PIPE, check=True, timeout=120).stdout


if __name__ == "__main__":
    FILE.write_bytes(ask_java())
