"""A look-up as a story: chapters on the left, steps on the right, the outcome of each marked."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from stratalog.cli import wording
from stratalog.cli.output import BAD, DOUBTFUL, GOOD, NAME, QUIET, STRONG, Output, Part
from stratalog.inspect.index_file import IndexEntry
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

_CHAPTER = 13  # with the mark behind it, the look-up of a log of a million records fits 80 columns


def tell_story(output: Output, explanation: Explanation, wanted: int, *, is_time: bool) -> None:
    what = f"timestamp {wording.timestamp(wanted)} ({wanted})" if is_time else f"offset {wanted:,}"
    start, end = explanation.log_start_offset, explanation.log_end_offset
    holds = f"offsets {start:,} to {end - 1:,}" if end > start else f"empty, next offset {end:,}"
    output.line((what, STRONG), (" in ", QUIET), wording.name(explanation.partition), (f"  ({holds})", QUIET))
    teller = _Teller(output, wanted, is_time=is_time)
    for step in explanation.steps:
        teller.tell(step)
    _tell_end(output, explanation, is_time=is_time)


def _tell_end(output: Output, explanation: Explanation, *, is_time: bool) -> None:
    if explanation.record is not None:
        record = explanation.record
        output.line(
            (f"{'record':<{_CHAPTER}}", STRONG),
            (f"offset {record.offset:,}", NAME),
            (f"  {wording.timestamp(record.timestamp)}  ", QUIET),
            wording.content(record.key, 40),
            (" = ", QUIET),
            wording.content(record.value, 120),
            clip=True,
        )
    elif explanation.batch is not None:
        text = "the batch reaches that offset, but the record is gone: compaction took it"
        output.line((f"{'record':<{_CHAPTER}}", STRONG), (text, DOUBTFUL))
    elif is_time:
        output.line((f"{'record':<{_CHAPTER}}", STRONG), ("none: every record is older", DOUBTFUL))
    else:
        text = f"none yet: {explanation.log_end_offset:,} is the log's end, the offset that the next record gets"
        output.line((f"{'record':<{_CHAPTER}}", STRONG), (text, DOUBTFUL))
    cost = explanation.cost
    output.line(
        (f"{'cost':<{_CHAPTER}}", STRONG), cost_line(explanation), (f", {wording.duration(cost.seconds)}", GOOD)
    )


def cost_line(explanation: Explanation) -> str:
    cost = explanation.cost
    over = wording.plural(cost.batches_stepped_over, "batch")
    return (
        f"{wording.plural(cost.comparisons, 'comparison')}, {wording.size(cost.bytes_read)} read, {over} stepped over"
    )


class _Teller:
    def __init__(self, output: Output, wanted: int, *, is_time: bool) -> None:
        self._output = output
        self._wanted = f"{wanted}" if is_time else f"{wanted:,}"
        self._is_time = is_time
        self._chapter = ""

    def tell(self, step: Step) -> None:
        match step:
            case SegmentCompared():
                relation = "<=" if step.goes_right else "> "
                self._line(
                    "segment", f"#{step.slot:<5} base offset {step.base_offset:>11,} ", _way(step.goes_right, relation)
                )
            case LargestTimestamp():
                verdict = ("enough", GOOD) if step.is_enough else ("older", QUIET)
                moment = wording.timestamp(step.timestamp)
                self._line("segment", f"base offset {step.base_offset:>11,} up to {moment} ", verdict)
            case SegmentChosen():
                text = f"{step.base_offset:020d}.log"
                self._outcome("segment", (text, NAME), (f" of {wording.plural(step.count, 'segment')}", QUIET))
                self._line("segment", (step.why, QUIET))
            case SegmentLeft():
                self._line("log", (f"{step.why}", DOUBTFUL))
            case EntryCompared():
                relation = "<=" if step.goes_right else "> "
                self._line(
                    step.index,
                    f"slot {step.entry.slot:<5,} {_entry(step.index, step.entry)} ",
                    _way(step.goes_right, relation),
                )
            case FloorEntry():
                self._floor(step)
            case IndexDoubted():
                self._line(step.index, (f"not to be believed: {step.why}; ", BAD), "walking from the segment's start")
            case Scanned():
                self._scan(step)

    def _floor(self, step: FloorEntry) -> None:
        if step.entry is not None:
            slot = f"slot {step.entry.slot:<5,} "
            self._outcome(step.index, slot, (_entry(step.index, step.entry), NAME), (" floor", GOOD))
        elif step.count:
            self._outcome(step.index, (f"{_all_entries(step.count)} past it: from the segment's start", QUIET))
        else:
            self._outcome(step.index, ("has no entries: from the segment's start", QUIET))

    def _scan(self, step: Scanned) -> None:
        for seen in step.head:
            self._batch(seen)
        if step.omitted:
            self._line("log", (f"… {step.omitted:,} more batches, none of them it …", QUIET))
        for seen in step.tail:
            self._batch(seen)
        if not step.batches:
            self._line("log", ("no batch from there on", QUIET))

    def _batch(self, seen: BatchSeen) -> None:
        offsets = f"{seen.base_offset:,}..{seen.last_offset:,}"
        place = f"@ {seen.position:<11,} {seen.size:>7,} bytes  "
        if seen.is_found:
            self._outcome("log", place, (offsets, NAME), (f"  {seen.verdict}", GOOD))
        else:
            self._line("log", place, offsets, (f"  {seen.verdict}", QUIET))

    def _line(self, chapter: str, *parts: Part) -> None:
        self._put(chapter, "  ", parts)

    def _outcome(self, chapter: str, *parts: Part) -> None:
        self._put(chapter, "▸ ", parts)

    def _put(self, chapter: str, mark: str, parts: tuple[Part, ...]) -> None:
        title = chapter if chapter != self._chapter else ""
        self._chapter = chapter
        self._output.line((f"{title:<{_CHAPTER}}", STRONG), (mark, GOOD), *parts, clip=True)


def _way(goes_right: bool, relation: str) -> Part:
    return (f"{relation} go {'right' if goes_right else 'left'}", QUIET)


def _entry(index: str, entry: IndexEntry) -> str:
    if index == "time index":
        return f"{wording.timestamp(entry.key)} at offset {entry.value:,}"
    return f"offset {entry.key:>11,} at {entry.value:>11,}"


def tell_as_json(output: Output, explanation: Explanation) -> None:
    for step in explanation.steps:
        output.json({"type": "step", "step": _snake(type(step).__name__), **_plain(asdict(step))})
    result: dict[str, Any] = {
        "type": "result",
        "partition": wording.name(explanation.partition),
        "log_start_offset": explanation.log_start_offset,
        "log_end_offset": explanation.log_end_offset,
        "file": None if explanation.file is None else wording.name(explanation.file),
        "batch": None if explanation.batch is None else asdict(explanation.batch),
        "record": None if explanation.record is None else record_as_json(explanation),
        "cost": asdict(explanation.cost),
    }
    output.json(result)


def record_as_json(explanation: Explanation) -> dict[str, Any]:
    from stratalog.cli.row_lines import as_json

    assert explanation.record is not None
    return as_json(str(explanation.file), explanation.record)


def _plain(fields: dict[str, Any]) -> dict[str, Any]:
    """Index entries by name: as a tuple they would be a bare list in JSON."""
    entry = fields.get("entry")
    if isinstance(entry, IndexEntry):
        fields["entry"] = entry._asdict()
    return fields


def _snake(name: str) -> str:
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name).lstrip("_")


def _all_entries(count: int) -> str:
    return "the only entry is" if count == 1 else f"all {count:,} entries are"
