"""stratalog produce: send the lines of stdin or a file to a topic."""

from __future__ import annotations

import io
import os
import shlex
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import typer

from stratalog.cli.broker_names import complete_topic
from stratalog.cli.options import TIMEOUT_MS, Client, CommandGroup, argument, flag, option, unescape
from stratalog.cli.program import CommandError
from stratalog.cli.progress import RecordProgress, print_line
from stratalog.cli.record_lines import LineFormat
from stratalog.cli.sending import Sending

_LINGER_MS = 20  # for files and pipes; typed lines are sent at once
_BATCH_BYTES = 256 * 1024

app = CommandGroup()


@app.add("produce")
def produce(
    context: typer.Context,
    topic: Annotated[str, argument("TOPIC", "The topic to send to.", autocompletion=complete_topic)],
    client: Client,
    file: Annotated[Path | None, option("--file -f", "FILE", "Read the lines from this file.")] = None,
    key_separator: Annotated[
        str | None, option("--key-separator -K", "TEXT", r"Ends the key on each line; \t is a tab.")
    ] = None,
    headers: Annotated[
        list[str] | None, option("--header -H", "NAME=VALUE", "A header of every record. Repeatable.")
    ] = None,
    as_json: Annotated[bool, flag("--json", "Each line is a JSON object, as consume prints it.")] = False,
    partition: Annotated[
        int | None, option("--partition -p", "NUMBER", "Send all records to this partition.", min=0)
    ] = None,
    by_key: Annotated[
        bool, flag("--by-key", "With --json: choose partitions by keys and ignore those of the lines.")
    ] = False,
    compression: Annotated[
        str, option("--compression -z", "CODEC", "none, gzip, snappy, lz4 or zstd.", show_default=True)
    ] = "none",
    acks: Annotated[
        str, option("--acks", "0|1|all", "Which brokers must acknowledge a record.", show_default=True)
    ] = "all",
) -> None:
    """Send lines to a topic: each line of stdin, or of --file, is a record.

    A line is a record's value; with --key-separator, its key and its value; with --json, an object as `stratalog
    consume --json` prints it, with key, value, headers, timestamp and partition, and bytes as {"base64": "..."}.
    Records with the same key go to the same partition.

    When the command ends, every record is acknowledged. If it fails or is interrupted, the exit code is not 0; it says
    how many records are acknowledged, and from which line to continue: the first that is not acknowledged.

    \b
    Examples:
      echo "tea" | stratalog produce orders
      stratalog produce orders --key-separator : < orders.txt
      stratalog produce orders --header source=import --compression zstd --file orders.txt
      stratalog consume orders --json | stratalog produce orders-copy --json --by-key
      tail -n +5001 orders.txt | stratalog produce orders
    """
    if as_json and key_separator is not None:
        raise CommandError("--key-separator is for plain lines, and --json has the key as a field; give one")
    separator = None if key_separator is None else unescape("--key-separator", key_separator)
    if separator == b"":
        raise CommandError("--key-separator is empty; give the text between key and value, like :")
    config = client.config(_defaults(compression, acks, is_typed=file is None and sys.stdin.isatty()))
    line_format, added_headers = LineFormat(as_json, separator), _parse_headers(headers or [])
    with _open(file) as (name, stream):
        with RecordProgress(on_terminal=not stream.isatty(), total_bytes=_bytes_left(stream)) as progress:
            command = repeat_command(context, without="file")
            sending = Sending(config, topic, line_format, added_headers, partition, by_key=by_key, command=command)
            done = sending.run(stream, name, progress)
        if not sys.stderr.isatty():
            print_line(f"stratalog: {done}")  # a terminal has the progress summary


def _defaults(compression: str, acks: str, *, is_typed: bool) -> dict[str, object]:
    defaults: dict[str, object] = {
        "compression.type": compression,
        "acks": acks,
        "linger.ms": 0 if is_typed else _LINGER_MS,
        "batch.size": _BATCH_BYTES,
        "max.block.ms": TIMEOUT_MS,
    }
    if acks != "all":
        defaults["enable.idempotence"] = False
    return defaults


@contextmanager
def _open(file: Path | None) -> Iterator[tuple[str, BinaryIO]]:
    """Yield the name of the input for messages, and the input."""
    if file is None or str(file) == "-":
        yield "stdin", sys.stdin.buffer
        return
    if file.is_dir():
        raise CommandError(f"--file is {file}, which is a directory; give a file of lines")
    with file.open("rb", buffering=io.DEFAULT_BUFFER_SIZE * 32) as stream:
        yield str(file), stream


def _bytes_left(stream: BinaryIO) -> int | None:
    """Return the bytes of a file that are still to be read, also if it is stdin. A pipe doesn't know its length."""
    try:
        status = os.fstat(stream.fileno())
        return status.st_size - stream.tell() if stat.S_ISREG(status.st_mode) else None
    except (OSError, ValueError):
        return None


def _parse_headers(headers: list[str]) -> list[tuple[str, bytes]]:
    """Return the headers in order. A name may come twice."""
    parsed = []
    for header in headers:
        name, equals, value = header.partition("=")
        if not equals:
            raise CommandError(f"--header is {header!r}; it must be like source=import")
        parsed.append((name, value.encode()))
    return parsed


def repeat_command(context: typer.Context, *, without: str) -> str:
    """Return the command line of a context, for a shell, except one parameter. It has long option names, and leaves out
    values from the environment."""
    words = context.command_path.split()
    for parameter in context.command.params:
        name = parameter.name or ""
        source = context.get_parameter_source(name)
        if name != without and source is not None and source.name == "COMMANDLINE":
            words += _words(parameter, context.params[name])
    return shlex.join(words)


def _words(parameter: Any, value: object) -> Iterator[str]:
    for item in value if isinstance(value, list | tuple) else [value]:
        word = str(item.value if isinstance(item, Enum) else item)
        if parameter.param_type_name == "argument":
            yield word
        elif isinstance(item, bool):
            yield from (max(parameter.opts, key=len),) if item else ()
        else:
            yield max(parameter.opts, key=len)
            yield word
