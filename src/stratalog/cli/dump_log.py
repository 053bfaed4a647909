"""stratalog dump-log: show the content of a log's files, row by row.

Rows are printed as they are read, in columns of a fixed width, because a file may have millions of them.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from stratalog.cli.options import AsJson, CommandGroup, argument, flag, option
from stratalog.cli.output import BAD, DOUBTFUL, GOOD, NAME, QUIET, STRONG, Output, Part
from stratalog.cli.program import FOUND_PROBLEMS, complain, describe_os_error
from stratalog.cli.wording import decode_bytes, format_bytes, format_size, format_time, pluralize, printable
from stratalog.errors import StorageError
from stratalog.inspect.dump import Dump, Options, dump
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

_KEY_LIMIT, _VALUE_LIMIT = 40, 120
_COLUMNS: dict[type, str] = {
    OffsetEntryRow: f"{'slot':>9}  {'offset':>19}  {'position':>13}",
    TimeEntryRow: f"{'slot':>9}  {'timestamp':<24}  {'ms':>15}  {'offset':>19}",
    AbortedRow: f"{'producer':>12}  {'first offset':>14}  {'last offset':>14}  {'last stable offset':>18}",
    EpochRow: f"{'epoch':>9}  {'start offset':>19}",
    PartitionOffsetRow: f"{'offset':>19}  partition",
}

app = CommandGroup()


@app.add("dump-log")
def dump_log(
    files: Annotated[list[Path], argument("FILE...", "The files to show.")],
    records: Annotated[bool, flag("--records -r", "Show the records of each batch.")] = False,
    limit: Annotated[int | None, option("--limit -n", "COUNT", "Show this many rows of each file.", min=0)] = None,
    max_bytes: Annotated[
        int | None, option("--max-bytes", "BYTES", "Read this many bytes of each .log file.", min=0)
    ] = None,
    full: Annotated[bool, flag("--full", "Do not shorten keys and values.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show the content of a log's files: batches, records, index entries, producers, checkpoints.

    Reads *.log (magic 0, 1 and 2), *.index, *.timeindex, *.txnindex, *.snapshot, leader-epoch-checkpoint,
    *-offset-checkpoint and partition.metadata. Exit code 1: a file is corrupt; the position and the reason are shown.

    \b
    Examples:
      stratalog dump-log stratalog-data/orders-0/00000000000000000000.log
      stratalog dump-log --records --limit 20 stratalog-data/orders-0/*.log
      stratalog dump-log stratalog-data/orders-0/*.index stratalog-data/orders-0/*.timeindex
      stratalog dump-log --json stratalog-data/recovery-point-offset-checkpoint
    """
    output = Output(as_json=as_json)
    options = Options(records=records, max_bytes=max_bytes)
    code = 0
    for number, path in enumerate(files):
        code = max(code, _dump_file(output, path, options, limit, full=full, is_first=number == 0))
    raise typer.Exit(code)


def _dump_file(output: Output, path: Path, options: Options, limit: int | None, *, full: bool, is_first: bool) -> int:
    """Show one file, and return its exit code. An error does not keep the other files from being shown."""
    try:
        if path.is_dir():
            raise StorageError(f"{path}: is a directory; give the files in it, like {path}/*.log")
        if not path.exists():
            raise StorageError(f"{path}: no such file; check the path")
        dumped = dump(path, options)
        if not is_first and not output.as_json:
            output.line()
        printer = _RowPrinter(output, dumped, full=full)
        for row in dumped.rows:
            if limit is not None and printer.rows >= limit and row.type != "problem":
                if not output.as_json:
                    output.line(("  … more rows follow: raise --limit to see them", QUIET))
                break
            printer.print(row)
    except StorageError as error:
        return complain(str(error))
    except BrokenPipeError:
        raise
    except OSError as error:
        return complain(describe_os_error(error))
    if not printer.rows and not printer.problems and not output.as_json:
        output.line(("  no entries", QUIET))
    return FOUND_PROBLEMS if printer.problems else 0


class _RowPrinter:
    """Prints the rows of a file, and counts them. `problems` counts corruption only."""

    def __init__(self, output: Output, dumped: Dump, *, full: bool) -> None:
        self.rows = 0
        self.problems = 0
        self._output = output
        self._file = str(dumped.path)
        self._full = full
        self._header_of: type | None = None
        if not output.as_json:
            about = f"  {dumped.kind.value}, {format_size(dumped.size)}"
            output.line((printable(dumped.path), STRONG), (about, QUIET))

    def print(self, row: Row) -> None:
        if isinstance(row, ProblemRow):
            self.problems += not row.is_harmless
        else:
            self.rows += 1
        if self._output.as_json:
            self._output.json(row_fields(self._file, row))
            return
        if type(row) in _COLUMNS and self._header_of is not type(row):
            self._output.line((_COLUMNS[type(row)], QUIET))
            self._header_of = type(row)
        clips = isinstance(row, RecordRow) and not self._full
        for line in self._lines(row):
            self._output.line(*line, clip=clips)

    def _lines(self, row: Row) -> list[list[Part]]:
        match row:
            case BatchRow():
                return _batch_lines(row)
            case RecordRow():
                limits = (None, None) if self._full else (_KEY_LIMIT, _VALUE_LIMIT)
                return [_record_line(row, *limits)]
            case OffsetEntryRow():
                return [[f"{row.slot:>9}  ", (f"{row.offset:>19}", NAME), f"  {row.position:>13}"]]
            case TimeEntryRow():
                moment = f"{format_time(row.timestamp):<24}  {row.timestamp:>15}"
                return [[f"{row.slot:>9}  {moment}  ", (f"{row.offset:>19}", NAME)]]
            case AbortedRow():
                offsets = f"{row.first_offset:>14}  {row.last_offset:>14}  {row.last_stable_offset:>18}"
                return [[f"{row.producer_id:>12}  {offsets}"]]
            case ProducerRow():
                return _producer_lines(row)
            case EpochRow():
                return [[f"{row.epoch:>9}  ", (f"{row.start_offset:>19}", NAME)]]
            case PartitionOffsetRow():
                return [[(f"{row.offset:>19}", NAME), f"  {row.topic}-{row.partition}"]]
            case TopicIdRow():
                return [[f"  version {row.version}  topic id ", (row.topic_id, NAME), f"  ({row.uuid})"]]
            case ProblemRow():
                left = f"; {row.bytes_left} bytes are left" if row.bytes_left else ""
                label = ("  note: ", QUIET) if row.is_harmless else ("  DAMAGED: ", BAD)
                return [[label, f"at position {row.position}: {printable(row.reason)}{left}"]]


def _batch_lines(row: BatchRow) -> list[list[Part]]:
    crc = ("crc ok", GOOD) if row.crc_valid else ("crc WRONG", BAD)
    flags = {"transactional": row.is_transactional, "control": row.is_control, "horizon": row.has_delete_horizon}
    details = [
        f"{row.timestamp_type} {format_time(row.base_timestamp)} .. {format_time(row.max_timestamp)}",
        f"magic {row.magic}, leader epoch {row.leader_epoch}, crc {row.crc:#010x}, attributes {row.attributes:#04x}",
    ]
    if row.producer_id >= 0:
        sequences = f"{row.base_sequence}..{row.last_sequence}"
        details.append(f"producer {row.producer_id} epoch {row.producer_epoch} sequence {sequences}")
    details[-1] = ", ".join([details[-1], *(name for name, is_set in flags.items() if is_set)])
    about = f"  {pluralize(row.record_count, 'record')}, {row.size} bytes, {row.codec}, "
    offsets = (f"{row.base_offset}..{row.last_offset}", NAME)
    lines: list[list[Part]] = [[(f"@ {row.position:<12}", QUIET), offsets, about, crc]]
    for detail in details:
        lines.append([(f"{'':14}{detail}", QUIET)])
    return lines


def _record_line(row: RecordRow, key_limit: int | None, value_limit: int | None) -> list[Part]:
    line: list[Part] = [(f"{'':4}{row.offset:<12} ", NAME), (f"{format_time(row.timestamp)}  ", QUIET)]
    if row.control is not None:
        epoch = "" if row.coordinator_epoch is None else f"  coordinator epoch {row.coordinator_epoch}"
        return [*line, (row.control, DOUBTFUL), epoch]
    headers = "  ".join(f"{printable(name)}={format_bytes(value, key_limit)}" for name, value in row.headers)
    line += [format_bytes(row.key, key_limit), (" = ", QUIET), format_bytes(row.value, value_limit)]
    return [*line, (f"  [{headers}]" if headers else "", QUIET)]


def _producer_lines(row: ProducerRow) -> list[list[Part]]:
    first = row.transaction_first_offset
    open_since = f"open since offset {first}" if first >= 0 else "none open"
    last = f"last sequence {row.last_sequence}, last offset {row.last_offset}, offset delta {row.offset_delta}"
    return [
        [("  producer ", QUIET), (str(row.producer_id), NAME), f" epoch {row.producer_epoch}"],
        [f"    {last}, {format_time(row.timestamp)}"],
        [f"    transaction: {open_since}; coordinator epoch {row.coordinator_epoch}"],
    ]


def row_fields(file: str, row: Row) -> dict[str, Any]:
    """Return the fields of a row as JSON has them."""
    fields = {"type": row.type, "file": printable(file), **asdict(row)}
    if isinstance(row, RecordRow):
        fields |= _content_fields("key", row.key) | _content_fields("value", row.value)
        fields["headers"] = [{"key": key, **_content_fields("value", value)} for key, value in row.headers]
    return fields


def _content_fields(name: str, content: bytes | None) -> dict[str, str | None]:
    text, encoding = (None, None) if content is None else decode_bytes(content)
    return {name: text, f"{name}_encoding": encoding}
