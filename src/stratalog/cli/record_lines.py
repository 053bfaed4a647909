"""Records as lines: for `produce` from lines to what is sent, for `consume` from records to lines."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stratalog.cli import envelopes
from stratalog.cli.envelopes import Envelope
from stratalog.cli.program import CommandError

if TYPE_CHECKING:
    from stratalog.client.consumer import ConsumerRecord

_SHOWN = 60


@dataclass(frozen=True)
class LineFormat:
    """How a record is written on a line: as JSON, or its value, or its key, the separator and its value."""

    as_json: bool = False
    key_separator: bytes | None = None

    def read(self, lines: Iterable[bytes], name: str, headers: Sequence[tuple[str, bytes]]) -> Iterator[Envelope]:
        """`headers` are added to each record. A newline ends a record and is no part of it."""
        for number, line in enumerate(lines, 1):
            content = line.removesuffix(b"\n")
            if self.as_json:
                if content.strip():
                    record = envelopes.from_line(content, f"{name}, line {number}")
                    yield record._replace(headers=[*record.headers, *headers]) if headers else record
            elif self.key_separator is None:
                yield Envelope(None, content, list(headers), None, None)
            else:
                key, separator, value = content.partition(self.key_separator)
                if not separator:
                    raise CommandError(
                        f"{name}, line {number}: the key separator {self.key_separator.decode(errors='replace')!r} is "
                        f"not in {content[:_SHOWN].decode(errors='replace')!r}; give another --key-separator, or none "
                        "for records without keys"
                    )
                yield Envelope(key, value, list(headers), None, None)

    def write(self, record: ConsumerRecord) -> bytes:
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
