"""Records as lines: for `produce` from lines to what is sent, for `consume` from records to lines."""

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
    """Whole lines without their ends, as many as have come: a pipe may be slow, and nobody wants to wait for more."""
    _widen(stream)
    rest = b""
    while chunk := stream.read1(_CHUNK_BYTES):  # type: ignore[attr-defined]
        *lines, rest = (rest + chunk).split(b"\n")
        if lines:
            yield lines
    if rest:
        yield [rest]


class BrokenLineError(CommandError):
    """A line that no record can be made of, or none that could be sent: to be repaired or skipped."""

    def __init__(self, line: int, message: str) -> None:
        super().__init__(message)
        self.line = line


@dataclass(frozen=True)
class LineFormat:
    """How a record is written on a line: as JSON, or its value, or its key, the separator and its value. A template is
    for `consume` only."""

    as_json: bool = False
    key_separator: bytes | None = None
    template: RecordTemplate | None = None

    def read(
        self, lines: Iterable[bytes], name: str, first: int, headers: Sequence[tuple[str, bytes]]
    ) -> Iterator[tuple[int, Envelope]]:
        """With the numbers of their lines. `headers` are added to each; `first` is the number of the first line."""
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
        """Of all that the lines name; -1 for none. A line that is no record names none."""
        highest = -1
        for line in lines:
            try:
                partition = envelopes.from_line(line, "").partition if self.as_json else None
            except CommandError:
                continue
            highest = max(highest, -1 if partition is None else partition)
        return highest

    def table(self, lines: list[bytes], partition: int | None, *, is_chosen: bool) -> pa.Table | None:
        """The same as columns, for many lines; None where that can't be, or would hide which line is wrong. `partition`
        is that of all where `is_chosen`, whatever the lines say; None: by their keys."""
        columns = self._columns(lines)
        if columns is None:
            return None
        import pyarrow as pa

        table = pa.table({name: pa.array(column, _types()[name]) for name, column in columns.items()})
        if is_chosen:
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


def _types() -> dict[str, pa.DataType]:
    import pyarrow as pa

    return {"key": pa.binary(), "value": pa.binary(), "timestamp": pa.int64(), "partition": pa.int32()}


def _widen(stream: BinaryIO) -> None:
    """A pipe that holds a whole chunk: many lines at once take less than a few at a time."""
    try:
        fcntl.fcntl(stream.fileno(), fcntl.F_SETPIPE_SZ, _CHUNK_BYTES)
    except (OSError, ValueError, AttributeError):
        pass  # no pipe, or one that must stay as it is
