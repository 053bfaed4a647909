"""stratalog produce: lines of stdin or a file become records of a topic."""

from __future__ import annotations

import io
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, BinaryIO

import typer

from stratalog.cli import news
from stratalog.cli.broker_names import complete_topic
from stratalog.cli.cluster_options import (
    DEFAULT_SERVER,
    PATIENCE_MS,
    BootstrapServer,
    ClientSettings,
    client_config,
    unescaped,
)
from stratalog.cli.program import CommandError

HELP = """Send lines to a topic: each line of stdin, or of --file, is a record.

A line is a record's value; with --key-separator, its key and its value; with --json, an object as `stratalog consume
--json` prints it, with key, value, headers, timestamp and partition, and bytes as {"base64": "..."}. Records with the
same key go to the same partition.

When it ends, every record is acknowledged. If it fails or is interrupted, the exit code is not 0; it says how many
records are acknowledged, and with which line to go on: the first that is not acknowledged.

\b
Examples:
  echo "tea" | stratalog produce orders
  stratalog produce orders --key-separator : < orders.txt
  stratalog produce orders --header source=import --compression zstd --file orders.txt
  stratalog consume orders --json | stratalog produce orders-copy --json --by-key
  tail -n +5001 orders.txt | stratalog produce orders
"""
_LINGER_MS = 20  # for what comes out of files and pipes; what is typed goes out at once
_BATCH_BYTES = 256 * 1024


def command(
    context: typer.Context,
    topic: Annotated[
        str,
        typer.Argument(metavar="TOPIC", show_default=False, autocompletion=complete_topic, help="Where to send to."),
    ],
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
    from stratalog.cli.repeated_command import repeated
    from stratalog.cli.sending import Sending

    if as_json and key_separator is not None:
        raise CommandError("--key-separator is for plain lines; with --json the key is a field of the object")
    separator = None if key_separator is None else unescaped("--key-separator", key_separator)
    if separator == b"":
        raise CommandError("--key-separator is empty; give what is between key and value, like :")
    added = _parse_headers(headers or [])
    config = client_config(bootstrap_server, _own_settings(compression, acks, file), settings)
    line_format = LineFormat(as_json, separator)
    with _opened(file) as (name, stream):
        progress = ProgressLine(also_if=not stream.isatty(), total_bytes=_bytes_left(stream))
        with progress:
            command_line = repeated(context, without="file")
            sending = Sending(config, topic, line_format, added, partition, by_key=by_key, command=command_line)
            done = sending.run(stream, name, progress)
        if not sys.stderr.isatty():
            news.say(done)  # a terminal has the progress line


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


@contextmanager
def _opened(file: Path | None) -> Iterator[tuple[str, BinaryIO]]:
    if file is None or str(file) == "-":
        yield "stdin", sys.stdin.buffer
        return
    if file.is_dir():
        raise CommandError(f"--file is {file}, which is a directory; give a file of lines")
    with file.open("rb", buffering=io.DEFAULT_BUFFER_SIZE * 32) as opened:
        yield str(file), opened


def _bytes_left(stream: BinaryIO) -> int | None:
    """Of a file, also where it is given as stdin; a pipe does not tell."""
    try:
        about = os.fstat(stream.fileno())
        return about.st_size - stream.tell() if stat.S_ISREG(about.st_mode) else None
    except (OSError, ValueError):
        return None


def _parse_headers(headers: list[str]) -> list[tuple[str, bytes]]:
    """In order, and a name may come twice."""
    parsed = []
    for header in headers:
        name, equals, value = header.partition("=")
        if not equals:
            raise CommandError(f"--header is {header!r}; it must be like source=import")
        parsed.append((name, value.encode()))
    return parsed
