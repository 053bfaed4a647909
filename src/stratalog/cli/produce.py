"""stratalog produce: lines of stdin or a file become records of a topic."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

import typer

from stratalog.cli.cluster_options import (
    DEFAULT_SERVER,
    PATIENCE_MS,
    BootstrapServer,
    ClientSettings,
    client_config,
    unescaped,
)
from stratalog.cli.program import CommandError

if TYPE_CHECKING:
    from stratalog.cli.envelopes import Envelope
    from stratalog.cli.progress_line import ProgressLine
    from stratalog.client.producer import Producer

HELP = """Send lines to a topic: each line of stdin, or of --file, is a record.

A line is a record's value; with --key-separator, its key and its value; with --json, an object as `stratalog consume
--json` prints it, with key, value, headers, timestamp and partition, and bytes as {"base64": "..."}. Records with the
same key go to the same partition. When it ends, every record is acknowledged; if one could not be delivered, the exit
code is 2 and the error says how many were.

\b
Examples:
  echo "tea" | stratalog produce orders
  stratalog produce orders --key-separator : < orders.txt
  stratalog produce orders --header source=import --compression zstd --file orders.txt
  stratalog consume orders --json | stratalog produce orders-copy --json
"""
_LINGER_MS = 20  # for what comes out of files and pipes; what is typed goes out at once
_BATCH_BYTES = 256 * 1024
_LAST_SECONDS = 5.0


def command(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", show_default=False, help="Where to send to.")],
    bootstrap_server: BootstrapServer = DEFAULT_SERVER,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", metavar="FILE", show_default=False, help="Read lines from here.")
    ] = None,
    key_separator: Annotated[
        str | None,
        typer.Option(
            "--key-separator", "-K", metavar="TEXT", show_default=False, help=r"Ends the key on each line; \t is a tab."
        ),
    ] = None,
    headers: Annotated[
        list[str] | None,
        typer.Option("--header", "-H", metavar="NAME=VALUE", help="A header of every record. Repeatable."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Each line is a JSON object, as consume prints it.")] = False,
    partition: Annotated[
        int | None, typer.Option("--partition", "-p", min=0, show_default=False, help="Send all to this partition.")
    ] = None,
    by_key: Annotated[
        bool, typer.Option("--by-key", help="With --json: choose partitions by keys, not as the lines say.")
    ] = False,
    compression: Annotated[
        str, typer.Option("--compression", "-z", metavar="CODEC", help="none, gzip, snappy, lz4 or zstd.")
    ] = "none",
    acks: Annotated[str, typer.Option(metavar="0|1|all", help="Whose acknowledgement to wait for.")] = "all",
    settings: ClientSettings = None,
) -> None:
    from stratalog.cli.progress_line import ProgressLine
    from stratalog.cli.record_lines import LineFormat

    if as_json and key_separator is not None:
        raise CommandError("--key-separator is for plain lines; with --json the key is a field of the object")
    separator = None if key_separator is None else unescaped("--key-separator", key_separator)
    if separator == b"":
        raise CommandError("--key-separator is empty; give what is between key and value, like :")
    added = _parse_headers(headers or [])
    config = client_config(bootstrap_server, _own_settings(compression, acks, file), settings)
    with _lines(file) as (name, lines):
        records = LineFormat(as_json, separator).read(lines, name, added)
        if partition is not None or by_key:
            records = (record._replace(partition=partition) for record in records)
        with ProgressLine(also_if=file is not None or not sys.stdin.isatty()) as progress:
            _send(config, topic, records, progress)


def _own_settings(compression: str, acks: str, file: Path | None) -> dict[str, object]:
    is_typed = file is None and sys.stdin.isatty()
    own: dict[str, object] = {
        "compression.type": compression,
        "acks": acks,
        "linger.ms": 0 if is_typed else _LINGER_MS,
        "batch.size": _BATCH_BYTES,
        "max.block.ms": PATIENCE_MS,
    }
    if acks != "all":
        own["enable.idempotence"] = False
    return own


def _send(config: dict[str, Any], topic: str, records: Iterable[Envelope], progress: ProgressLine) -> None:
    from stratalog.client.producer import Producer

    outcome = _Outcome()
    producer = Producer.from_config(config)
    patience: float | None = _LAST_SECONDS  # for what was read before an error or an interrupt
    try:
        count = None  # of partitions
        for record in records:
            outcome.check()
            if record.partition is not None:
                count = count or len(producer.partitions_for(topic))
                _check_partition(record.partition, topic, count)
            _send_one(producer, topic, record, outcome)
            progress.add(1, len(record.value or b"") + len(record.key or b""))
        patience = None
    finally:
        producer.close(patience)
    outcome.check()


def _send_one(producer: Producer, topic: str, record: Envelope, outcome: _Outcome) -> None:
    sent = producer.send(
        topic,
        record.value,
        key=record.key,
        headers=record.headers or None,
        partition=record.partition,
        timestamp=record.timestamp,
    )
    outcome.sent += 1
    sent.add_done_callback(outcome.settle)


def _check_partition(partition: int, topic: str, count: int) -> None:
    """A producer would wait for it to be added, and then say less."""
    if partition >= count:
        raise CommandError(
            f"partition is {partition}; {topic} has the partitions 0 to {count - 1}; give another --partition, or "
            f"--by-key to choose by keys, or add some: stratalog topic add-partitions {topic} {partition + 1}"
        )


class _Outcome:
    """Of all records; nothing is kept of those that were delivered."""

    def __init__(self) -> None:
        self.sent = 0
        self.failed = 0
        self.first_error: BaseException | None = None

    def settle(self, sent: Any) -> None:
        """Called in the producer's own thread."""
        error = sent.exception()
        if error is not None:
            self.failed += 1
            self.first_error = self.first_error or error

    def check(self) -> None:
        if self.first_error is not None:
            raise CommandError(
                f"{self.failed:,} of {self.sent:,} records were not delivered: {self.first_error}"
            ) from self.first_error


@contextmanager
def _lines(file: Path | None) -> Iterator[tuple[str, BinaryIO]]:
    if file is None or str(file) == "-":
        yield "stdin", sys.stdin.buffer
        return
    with file.open("rb", buffering=io.DEFAULT_BUFFER_SIZE * 32) as opened:
        yield str(file), opened


def _parse_headers(headers: list[str]) -> list[tuple[str, bytes]]:
    """In order, and a name may come twice."""
    parsed = []
    for header in headers:
        name, equals, value = header.partition("=")
        if not equals:
            raise CommandError(f"--header is {header!r}; it must be like source=import")
        parsed.append((name, value.encode()))
    return parsed
