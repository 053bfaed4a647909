"""Records as lines: `produce` makes records of lines, and `consume` lines of records."""

from __future__ import annotations

import fcntl
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO

from stratalog.cli import envelopes
from stratalog.cli.envelopes import Envelope
from stratalog.cli.program import CommandError

if TYPE_CHECKING:
    import pyarrow as pa

    from stratalog.cli.record_template import RecordTemplate
    from stratalog.client.consumer import ConsumerRecord

_SHOWN = 60
_CHUNK_BYTES = 1024 * 1024


def chunks_of_lines(stream: BinaryIO) -> Iterator[list[bytes]]:
    """Yield complete lines without their ends, as they arrive: a slow pipe is not waited for."""
    _enlarge(stream)
    rest = b""
    while chunk := stream.read1(_CHUNK_BYTES):  # type: ignore[attr-defined]
        *lines, rest = (rest + chunk).split(b"\n")
        if lines:
            yield lines
    if rest:
        yield [rest]


class BrokenLineError(CommandError):
    """A line that can't become a record, or can't be sent. It has to be repaired or skipped."""

    def __init__(self, line: int, message: str) -> None:
        super().__init__(message)
        self.line = line


@dataclass(frozen=True)
class LineFormat:
    """A record on a line: JSON, its value, or its key, the separator and its value. `consume` may have a template."""

    as_json: bool = False
    key_separator: bytes | None = None
    template: RecordTemplate | None = None

    def read(
        self, lines: Iterable[bytes], name: str, first: int, headers: Sequence[tuple[str, bytes]]
    ) -> Iterator[tuple[int, Envelope]]:
        """Yield the numbers of lines and their records. `headers` are added to each record; `name` is the input's and
        `first` the number of the first line."""
        for number, line in enumerate(lines, first):
            if self.as_json:
                if line.strip():
                    record = _envelope(line, name, number)
                    yield number, record._replace(headers=[*record.headers, *headers]) if headers else record
            elif self.key_separator is None:
                yield number, Envelope(None, line, list(headers), None, None)
            else:
                key, separator, value = line.partition(self.key_separator)
                if not separator:
                    raise BrokenLineError(
                        number,
                        f"{name}, line {number:,}: the key separator {self.key_separator.decode(errors='replace')!r} "
                        f"is not in {line[:_SHOWN].decode(errors='replace')!r}; give another --key-separator, or none "
                        "for records without keys",
                    )
                yield number, Envelope(key, value, list(headers), None, None)

    def highest_partition(self, lines: Iterable[bytes]) -> int:
        """Return the highest partition that the lines name, or -1. Lines that are not records are skipped."""
        highest = -1
        for line in lines:
            try:
                partition = envelopes.from_line(line, "").partition if self.as_json else None
            except CommandError:
                continue
            highest = max(highest, -1 if partition is None else partition)
        return highest

    def table(self, lines: list[bytes], partition: int | None, *, overrides_partition: bool) -> pa.Table | None:
        """Return the records of many lines as columns. With `overrides_partition`, all go to `partition`, or by their
        keys without one, whatever the lines say. Return None if columns are not possible, or would hide which line is
        wrong."""
        columns = self._columns(lines)
        if columns is None:
            return None
        import pyarrow as pa

        types = {"key": pa.binary(), "value": pa.binary(), "timestamp": pa.int64(), "partition": pa.int32()}
        table = pa.table({name: pa.array(column, types[name]) for name, column in columns.items()})
        if overrides_partition:
            table = table.drop_columns(["partition"]) if "partition" in columns else table
            if partition is not None:
                table = table.append_column("partition", pa.repeat(pa.scalar(partition, pa.int32()), table.num_rows))
        return table

    def _columns(self, lines: list[bytes]) -> dict[str, list[Any]] | None:
        if self.as_json:
            return envelopes.columns(lines)
        if self.key_separator is None:
            return {"value": lines}
        parts = [line.partition(self.key_separator) for line in lines]
        if not all(separator for _, separator, _ in parts):
            return None
        return {"key": [key for key, _, _ in parts], "value": [value for _, _, value in parts]}

    def write(self, record: ConsumerRecord) -> bytes:
        if self.template is not None:
            return self.template.write(record)
        if self.as_json:
            line = envelopes.to_line(
                record.topic,
                record.partition,
                record.offset,
                record.timestamp,
                record.key,
                record.value,
                record.headers,
            )
            return line.encode("ascii") + b"\n"
        value = record.value or b""
        if self.key_separator is None:
            return value + b"\n"
        return b"%b%b%b\n" % (record.key or b"", self.key_separator, value)


def _envelope(line: bytes, name: str, number: int) -> Envelope:
    try:
        return envelopes.from_line(line, f"{name}, line {number:,}")
    except CommandError as error:
        raise BrokenLineError(number, str(error)) from None


def _enlarge(stream: BinaryIO) -> None:
    """Let a pipe hold a complete chunk, because many lines at once cost less than a few at a time."""
    try:
        fcntl.fcntl(stream.fileno(), fcntl.F_SETPIPE_SZ, _CHUNK_BYTES)
    except (OSError, ValueError, AttributeError):
        pass  # the stream is not a pipe, or its size is fixed
