"""The rows of a dump as lines. Widths are fixed, not fitted: a dump may have millions of rows, and none waits."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from stratalog.cli import wording
from stratalog.cli.output import BAD, DOUBTFUL, GOOD, NAME, QUIET, STRONG, Output
from stratalog.inspect.rows import (
    AbortedRow,
    BatchRow,
    EpochRow,
    OffsetEntryRow,
    PartitionOffsetRow,
    ProblemRow,
    ProducerRow,
    RecordRow,
    Row,
    TimeEntryRow,
    TopicIdRow,
)

if TYPE_CHECKING:
    from stratalog.inspect.dump import Dump

SHORT_KEY, SHORT_VALUE = 40, 120
_COLUMNS: dict[type, str] = {
    OffsetEntryRow: f"{'slot':>9}  {'offset':>19}  {'position':>13}",
    TimeEntryRow: f"{'slot':>9}  {'timestamp':<24}  {'ms':>15}  {'offset':>19}",
    AbortedRow: f"{'producer':>12}  {'first offset':>14}  {'last offset':>14}  {'last stable offset':>18}",
    EpochRow: f"{'epoch':>9}  {'start offset':>19}",
    PartitionOffsetRow: f"{'offset':>19}  partition",
}


class RowPrinter:
    """`shown` counts rows, `problems` those that are damage."""

    def __init__(self, output: Output, dump: Dump, *, full: bool) -> None:
        self.shown = 0
        self.problems = 0
        self._output = output
        self._file = str(dump.path)
        self._key_limit = None if full else SHORT_KEY
        self._value_limit = None if full else SHORT_VALUE
        self._clip = not full
        self._columns_of: type | None = None
        if not output.as_json:
            about = f"  {dump.kind.value}, {wording.size(dump.size)}"
            output.line((wording.name(dump.path), STRONG), (about, QUIET))

    def row(self, row: Row) -> None:
        self.shown += 1
        if isinstance(row, ProblemRow):
            self.problems += not row.is_harmless
            self.shown -= 1
        if self._output.as_json:
            self._output.json(as_json(self._file, row))
            return
        columns = _COLUMNS.get(type(row))
        if columns is not None and self._columns_of is not type(row):
            self._output.line((columns, QUIET))
            self._columns_of = type(row)
        self._line(row)

    def cut_short(self) -> None:
        if not self._output.as_json:
            self._output.line(("  … more rows follow: raise --limit to see them", QUIET))

    def end(self) -> None:
        if not self.shown and not self.problems and not self._output.as_json:
            self._output.line(("  no entries", QUIET))

    def _line(self, row: Row) -> None:
        match row:
            case BatchRow():
                self._batch(row)
            case RecordRow():
                self._record(row)
            case OffsetEntryRow():
                self._output.line(f"{row.slot:>9}  ", (f"{row.offset:>19}", NAME), f"  {row.position:>13}")
            case TimeEntryRow():
                moment = f"{wording.timestamp(row.timestamp):<24}  {row.timestamp:>15}"
                self._output.line(f"{row.slot:>9}  {moment}  ", (f"{row.offset:>19}", NAME))
            case AbortedRow():
                offsets = f"{row.first_offset:>14}  {row.last_offset:>14}  {row.last_stable_offset:>18}"
                self._output.line(f"{row.producer_id:>12}  {offsets}")
            case ProducerRow():
                self._producer(row)
            case EpochRow():
                self._output.line(f"{row.epoch:>9}  ", (f"{row.start_offset:>19}", NAME))
            case PartitionOffsetRow():
                self._output.line((f"{row.offset:>19}", NAME), f"  {row.topic}-{row.partition}")
            case TopicIdRow():
                self._output.line(f"  version {row.version}  topic id ", (row.topic_id, NAME), f"  ({row.uuid})")
            case ProblemRow():
                self._problem(row)

    def _batch(self, row: BatchRow) -> None:
        crc = ("crc ok", GOOD) if row.crc_valid else ("crc WRONG", BAD)
        count = wording.plural(row.record_count, "record")
        self._output.line(
            (f"@ {row.position:<12}", QUIET),
            (f"{row.base_offset}..{row.last_offset}", NAME),
            f"  {count}, {row.size} bytes, {row.codec}, ",
            crc,
        )
        times = f"{wording.timestamp(row.base_timestamp)} .. {wording.timestamp(row.max_timestamp)}"
        self._output.line((f"{'':14}{row.timestamp_type} {times}", QUIET))
        self._output.line((f"{'':14}{_details(row)}", QUIET))

    def _record(self, row: RecordRow) -> None:
        begin = (f"{'':4}{row.offset:<12} ", NAME), (f"{wording.timestamp(row.timestamp)}  ", QUIET)
        if row.control is not None:
            epoch = "" if row.coordinator_epoch is None else f"  coordinator epoch {row.coordinator_epoch}"
            self._output.line(*begin, (row.control, DOUBTFUL), epoch, clip=self._clip)
            return
        headers = "  ".join(f"{_text(key)}={wording.content(value, self._key_limit)}" for key, value in row.headers)
        self._output.line(
            *begin,
            wording.content(row.key, self._key_limit),
            (" = ", QUIET),
            wording.content(row.value, self._value_limit),
            (f"  [{headers}]" if headers else "", QUIET),
            clip=self._clip,
        )

    def _producer(self, row: ProducerRow) -> None:
        begin = row.transaction_first_offset
        open_since = f"open since offset {begin}" if begin >= 0 else "none open"
        self._output.line(("  producer ", QUIET), (str(row.producer_id), NAME), f" epoch {row.producer_epoch}")
        last = f"last sequence {row.last_sequence}, last offset {row.last_offset}, offset delta {row.offset_delta}"
        self._output.line(f"    {last}, {wording.timestamp(row.timestamp)}")
        self._output.line(f"    transaction: {open_since}; coordinator epoch {row.coordinator_epoch}")

    def _problem(self, row: ProblemRow) -> None:
        left = f"; {row.bytes_left} bytes are left" if row.bytes_left else ""
        label = ("  note: ", QUIET) if row.is_harmless else ("  DAMAGED: ", BAD)
        self._output.line(label, f"at position {row.position}: {wording.name(row.reason)}{left}")


def _details(row: BatchRow) -> str:
    details = (
        f"magic {row.magic}, leader epoch {row.leader_epoch}, crc {row.crc:#010x}, attributes {row.attributes:#04x}"
    )
    if row.producer_id >= 0:
        sequences = f"{row.base_sequence}..{row.last_sequence}"
        details += f"\n{'':14}producer {row.producer_id} epoch {row.producer_epoch} sequence {sequences}"
    flags = {"transactional": row.is_transactional, "control": row.is_control, "horizon": row.has_delete_horizon}
    return ", ".join([details, *(flag for flag, is_set in flags.items() if is_set)])


def _text(key: str) -> str:
    return wording.name(key)


def as_json(file: str, row: Row) -> dict[str, Any]:
    fields = {"type": row.type, "file": wording.name(file), **asdict(row)}
    if isinstance(row, RecordRow):
        fields |= _bytes_as_json("key", row.key) | _bytes_as_json("value", row.value)
        fields["headers"] = [{"key": key, **_bytes_as_json("value", value)} for key, value in row.headers]
    return fields


def _bytes_as_json(name: str, content: bytes | None) -> dict[str, str | None]:
    text, encoding = (None, None) if content is None else wording.encoded(content)
    return {name: text, f"{name}_encoding": encoding}
