"""kcat as Debian ships it (an older librdkafka than the one in confluent-kafka) against our broker."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stratalog.records.batch import batches
from stratalog.records.format import Codec
from tests.broker.process import BrokerProcess
from tests.compat.fetch_debian import DebianProgram, fetch
from tests.compat.fetch_kafka import CannotFetchError

pytestmark = pytest.mark.compat

SECONDS = 60
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


@pytest.fixture(scope="module")
def kcat() -> DebianProgram:
    try:
        return fetch("kcat")
    except CannotFetchError as error:
        pytest.skip(f"kcat can't be had on this machine: {error}")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    settings = {"num.partitions": 2, "group.initial.rebalance.delay.ms": 0}
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data", settings) as running:
        yield running
        assert running.errors() == []


def run(kcat: DebianProgram, broker: BrokerProcess, *arguments: str, stdin: str = "") -> str:
    done = subprocess.run(
        [kcat.program, "-b", broker.address, *arguments],
        input=stdin,
        env=kcat.environment(),
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_metadata_is_listed(kcat: DebianProgram, broker: BrokerProcess) -> None:
    run(kcat, broker, "-P", "-t", "listed", stdin="one\n")
    metadata: dict[str, Any] = json.loads(run(kcat, broker, "-L", "-J", "-t", "listed"))
    assert metadata["brokers"] == [{"id": 1, "name": broker.address}]
    (topic,) = metadata["topics"]
    assert topic["topic"] == "listed"
    assert [(one["partition"], one["leader"]) for one in topic["partitions"]] == [(0, 1), (1, 1)]


@pytest.mark.parametrize("codec", CODECS)
def test_records_are_read_back_and_stored_with_the_requested_codec(
    kcat: DebianProgram, broker: BrokerProcess, codec: str
) -> None:
    """librdkafka before 2.11.1 compresses nothing when Produce 0 is not among the versions."""
    topic, lines = f"codec-{codec}", [f"key{n}:{'value' * 20}{n}" for n in range(200)]
    produce = ["-P", "-t", topic, "-p", "0", "-K:", "-X", "linger.ms=200", "-X", "acks=all"]
    headers = ["-H", "trace=42", "-H", "empty="]
    run(kcat, broker, *produce, *headers, "-z", codec, stdin="\n".join(lines) + "\n")
    read = run(kcat, broker, "-C", "-t", topic, "-p", "0", "-o", "beginning", "-e", "-q", "-f", r"%o|%h|%k:%s\n")
    assert read.splitlines() == [f"{offset}|trace=42,empty=|{line}" for offset, line in enumerate(lines)]
    (log,) = (broker.data_dir / f"{topic}-0").glob("*.log")
    assert {batch.header.codec for batch in batches(log.read_bytes())} == {Codec[codec.upper()]}


def test_idempotent_producer_and_null_values(kcat: DebianProgram, broker: BrokerProcess) -> None:
    produce = ["-P", "-t", "nulls", "-p", "0", "-K:", "-Z", "-X", "enable.idempotence=true"]
    run(kcat, broker, *produce, stdin="a:1\nb:\nc:3\n")
    read = run(kcat, broker, "-C", "-t", "nulls", "-p", "0", "-o", "beginning", "-e", "-q", "-J")
    assert [(one["key"], one["payload"]) for one in map(json.loads, read.splitlines())] == [
        ("a", "1"),
        ("b", None),
        ("c", "3"),
    ]


def test_a_group_reads_all_and_continues_after_its_committed_offset(kcat: DebianProgram, broker: BrokerProcess) -> None:
    run(kcat, broker, "-P", "-t", "grouped", stdin="".join(f"{n}\n" for n in range(100)))
    group = ["-X", "auto.offset.reset=earliest", "-e", "-q", "-G", "readers", "grouped"]
    assert sorted(map(int, run(kcat, broker, *group).split())) == list(range(100))
    run(kcat, broker, "-P", "-t", "grouped", stdin="100\n101\n")
    assert sorted(map(int, run(kcat, broker, *group).split())) == [100, 101]


def test_offsets_are_found_by_time(kcat: DebianProgram, broker: BrokerProcess) -> None:
    run(kcat, broker, "-P", "-t", "timed", "-p", "0", stdin="first\n")
    (line,) = run(kcat, broker, "-C", "-t", "timed", "-p", "0", "-o", "beginning", "-e", "-q", "-f", r"%T\n").split()
    for time, offset in ((int(line), 0), (int(line) - 1000, 0), (int(line) + 1_000_000, -1), (-1, 1), (-2, 0)):
        assert run(kcat, broker, "-Q", "-t", f"timed:0:{time}").split() == ["timed", "[0]", "offset", str(offset)]


def test_the_last_records_and_a_range_are_read(kcat: DebianProgram, broker: BrokerProcess, tmp_path: Path) -> None:
    lines = tmp_path / "lines"
    lines.write_text("".join(f"{n}\n" for n in range(20)))
    run(kcat, broker, "-P", "-t", "tail", "-p", "1", "-l", str(lines))
    assert run(kcat, broker, "-C", "-t", "tail", "-p", "1", "-o", "-3", "-e", "-q").split() == ["17", "18", "19"]
    assert run(kcat, broker, "-C", "-t", "tail", "-p", "1", "-o", "5", "-c", "2", "-q").split() == ["5", "6"]
