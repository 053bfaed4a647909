"""stratalog lookup: show how a record is looked up, step by step.

The steps are in chapters, whose titles are on the left. The result of each chapter is marked.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from stratalog.cli.dump_log import row_fields
from stratalog.cli.moments import parse_timestamp
from stratalog.cli.options import AsJson, CommandGroup, argument, option
from stratalog.cli.output import BAD, DOUBTFUL, GOOD, NAME, QUIET, STRONG, Output, Part
from stratalog.cli.program import CommandError
from stratalog.cli.wording import format_bytes, format_duration, format_size, format_time, pluralize, printable
from stratalog.inspect.index_file import IndexEntry
from stratalog.inspect.lookup import explain_offset
from stratalog.inspect.lookup_steps import (
    BatchSeen,
    EntryCompared,
    Explanation,
    FloorEntry,
    IndexDoubted,
    LargestTimestamp,
    Scanned,
    SegmentChosen,
    SegmentCompared,
    SegmentLeft,
    Step,
)
from stratalog.inspect.lookup_time import explain_timestamp

_CHAPTER = 13  # with the mark after it, the lookup in a log of a million records fits 80 columns

app = CommandGroup()


@app.add("lookup")
def lookup(
    directory: Annotated[Path, argument("DIR", "A partition directory.")],
    offset: Annotated[int | None, argument("[OFFSET]", "The offset to look up.")] = None,
    timestamp: Annotated[
        str | None, option("--timestamp -t", "T", "A time instead of an offset: milliseconds or ISO 8601.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show how an offset or a timestamp is looked up, step by step, and what that costs.

    Shows the segment and why it is chosen, every comparison in its indexes, every batch that is stepped over, and the
    record. A timestamp leads to the first record that is not older.

    \b
    Examples:
      stratalog lookup stratalog-data/orders-0 123456
      stratalog lookup stratalog-data/orders-0 --timestamp 2026-01-31T12:00:00Z
      stratalog lookup stratalog-data/orders-0 --timestamp 1769860800000 --json
    """
    if (offset is None) == (timestamp is None):
        raise CommandError("give either an OFFSET or --timestamp T, like: stratalog lookup stratalog-data/orders-0 42")
    if offset is not None:
        subject, explanation = f"offset {offset:,}", explain_offset(directory, offset)
    else:
        milliseconds = parse_timestamp(timestamp or "")
        subject = f"timestamp {format_time(milliseconds)} ({milliseconds})"
        explanation = explain_timestamp(directory, milliseconds)
    output = Output(as_json=as_json)
    if as_json:
        _print_json(output, explanation)
    else:
        print_steps(output, explanation, subject, is_time=offset is None)


def print_steps(output: Output, explanation: Explanation, subject: str, *, is_time: bool) -> None:
    start, end = explanation.log_start_offset, explanation.log_end_offset
    content = f"offsets {start:,} to {end - 1:,}" if end > start else f"empty, next offset {end:,}"
    output.line((subject, STRONG), (" in ", QUIET), printable(explanation.partition), (f"  ({content})", QUIET))
    printer = _StepPrinter(output)
    for step in explanation.steps:
        printer.print(step)
    record = explanation.record
    title = (f"{'record':<{_CHAPTER}}", STRONG)
    if record is not None:
        output.line(
            title,
            (f"offset {record.offset:,}", NAME),
            (f"  {format_time(record.timestamp)}  ", QUIET),
            format_bytes(record.key, 40),
            (" = ", QUIET),
            format_bytes(record.value, 120),
            clip=True,
        )
    elif explanation.batch is not None:
        output.line(title, ("the batch includes that offset, but compaction has removed the record", DOUBTFUL))
    elif is_time:
        output.line(title, ("none: every record is older", DOUBTFUL))
    else:
        output.line(title, (f"none yet: {end:,} is the log end offset, which the next record gets", DOUBTFUL))
    cost = explanation.cost
    sums = [
        pluralize(cost.comparisons, "comparison"),
        f"{format_size(cost.bytes_read)} read",
        f"{pluralize(cost.batches_stepped_over, 'batch')} stepped over",
    ]
    output.line((f"{'cost':<{_CHAPTER}}", STRONG), ", ".join(sums), (f", {format_duration(cost.seconds)}", GOOD))


class _StepPrinter:
    def __init__(self, output: Output) -> None:
        self._output = output
        self._chapter = ""

    def print(self, step: Step) -> None:
        match step:
            case SegmentCompared():
                compared = f"#{step.slot:<5} base offset {step.base_offset:>11,} "
                self._line("segment", compared, _direction(step.goes_right))
            case LargestTimestamp():
                verdict = ("enough", GOOD) if step.is_enough else ("older", QUIET)
                largest = format_time(step.timestamp)
                self._line("segment", f"base offset {step.base_offset:>11,} up to {largest} ", verdict)
            case SegmentChosen():
                file = (f"{step.base_offset:020d}.log", NAME)
                self._result("segment", file, (f" of {pluralize(step.count, 'segment')}", QUIET))
                self._line("segment", (step.why, QUIET))
            case SegmentLeft():
                self._line("log", (f"{step.why}", DOUBTFUL))
            case EntryCompared():
                entry = f"slot {step.entry.slot:<5,} {_entry(step.index, step.entry)} "
                self._line(step.index, entry, _direction(step.goes_right))
            case FloorEntry():
                self._print_floor(step)
            case IndexDoubted():
                self._line(step.index, (f"refuted: {step.why}; ", BAD), "walking from the start of the segment")
            case Scanned():
                for batch in step.head:
                    self._print_batch(batch)
                if step.omitted:
                    self._line("log", (f"… {step.omitted:,} more batches that do not match …", QUIET))
                for batch in step.tail:
                    self._print_batch(batch)
                if not step.batches:
                    self._line("log", ("no batch from there on", QUIET))

    def _print_floor(self, step: FloorEntry) -> None:
        if step.entry is not None:
            slot = f"slot {step.entry.slot:<5,} "
            self._result(step.index, slot, (_entry(step.index, step.entry), NAME), (" floor", GOOD))
        elif step.count:
            entries = "the only entry is" if step.count == 1 else f"all {step.count:,} entries are"
            self._result(step.index, (f"{entries} after it: from the start of the segment", QUIET))
        else:
            self._result(step.index, ("has no entries: from the start of the segment", QUIET))

    def _print_batch(self, batch: BatchSeen) -> None:
        offsets = f"{batch.base_offset:,}..{batch.last_offset:,}"
        position = f"@ {batch.position:<11,} {batch.size:>7,} bytes  "
        if batch.is_found:
            self._result("log", position, (offsets, NAME), (f"  {batch.verdict}", GOOD))
        else:
            self._line("log", position, offsets, (f"  {batch.verdict}", QUIET))

    def _line(self, chapter: str, *parts: Part, mark: str = "  ") -> None:
        title = chapter if chapter != self._chapter else ""
        self._chapter = chapter
        self._output.line((f"{title:<{_CHAPTER}}", STRONG), (mark, GOOD), *parts, clip=True)

    def _result(self, chapter: str, *parts: Part) -> None:
        self._line(chapter, *parts, mark="▸ ")


def _direction(goes_right: bool) -> Part:
    return ("<= go right" if goes_right else ">  go left", QUIET)


def _entry(index: str, entry: IndexEntry) -> str:
    if index == "time index":
        return f"{format_time(entry.key)} at offset {entry.value:,}"
    return f"offset {entry.key:>11,} at {entry.value:>11,}"


def _print_json(output: Output, explanation: Explanation) -> None:
    for step in explanation.steps:
        fields = asdict(step)
        if isinstance(fields.get("entry"), IndexEntry):
            fields["entry"] = fields["entry"]._asdict()  # a tuple would be a list without names
        output.json({"type": "step", "step": _snake_case(type(step).__name__), **fields})
    record, file = explanation.record, explanation.file
    result: dict[str, Any] = {
        "type": "result",
        "partition": printable(explanation.partition),
        "log_start_offset": explanation.log_start_offset,
        "log_end_offset": explanation.log_end_offset,
        "file": None if file is None else printable(file),
        "batch": None if explanation.batch is None else asdict(explanation.batch),
        "record": None if record is None else row_fields(str(file), record),
        "cost": asdict(explanation.cost),
    }
    output.json(result)


def _snake_case(name: str) -> str:
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name).lstrip("_")
