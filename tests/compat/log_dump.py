"""The output of Apache Kafka's DumpLogSegments as structures, with every complaint that it makes.

The tool prints keys and values as text with no escapes. They are read here by the sizes it prints before
them, so a value with a line feed or with " payload: " in it comes out whole, as long as it is UTF-8. It
prints header names but no header values.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from tests.compat.jvm import ToolOutput, joined, run_tool

DUMP_LOG_SEGMENTS = "kafka.tools.DumpLogSegments"


class Kind(Enum):
    """The kinds of complaint; the value is how the tool's line begins where it is the tool that says it."""

    INDEX_MISMATCH = "Mismatches in :"
    TIMESTAMP_MISMATCH = "Found timestamp mismatch in :"
    TIMESTAMP_OUT_OF_ORDER = "Found out of order timestamp in :"
    OFFSET_NOT_FOUND = "The following indexed offsets are not found in the log."
    NON_CONSECUTIVE = "Non-consecutive offsets in "
    UNKNOWN_FILE = "Ignoring unknown file "
    CORRUPT_SNAPSHOT = "Snapshot "
    EXCEPTION = "Exception in thread "
    OTHER_ERROR = "(anything else on stderr)"
    EXIT_CODE = "(the tool failed)"
    INVALID_BATCH = "(isvalid: false)"
    TRAILING_BYTES = "(bytes after the last whole batch)"
    UNREADABLE = "(output that this parser does not know)"


@dataclass(frozen=True)
class Complaint:
    kind: Kind
    text: str


@dataclass(frozen=True)
class DumpedRecord:
    offset: int
    timestamp_type: str
    timestamp: int
    key_size: int
    value_size: int
    sequence: int | None
    header_keys: tuple[str, ...]
    control: str | None
    key: bytes | None
    value: bytes | None


@dataclass(frozen=True)
class DumpedBatch:
    """`header` has every field of the tool's line under the tool's own name, as text."""

    header: dict[str, str]
    records: list[DumpedRecord]

    def number(self, name: str) -> int:
        return int(self.header[name])

    @property
    def last_offset(self) -> int:
        return self.number("lastOffset" if "lastOffset" in self.header else "offset")

    @property
    def position(self) -> int:
        return self.number("position")

    @property
    def timestamp_type(self) -> str:
        return next(name for name in self.header if name in ("CreateTime", "LogAppendTime", "NoTimestampType"))


@dataclass
class DumpedFile:
    """Batches for a .log; `entries` for the others, each a tool's line as name -> text."""

    batches: list[DumpedBatch] = field(default_factory=list)
    entries: list[dict[str, str]] = field(default_factory=list)
    passed_sanity_check: bool = False
    is_empty_index: bool = False

    @property
    def records(self) -> list[DumpedRecord]:
        return [record for batch in self.batches for record in batch.records]

    def pairs(self, first: str, second: str) -> list[tuple[int, int]]:
        return [(int(entry[first]), int(entry[second])) for entry in self.entries]


@dataclass
class Dump:
    files: dict[Path, DumpedFile] = field(default_factory=dict)
    complaints: list[Complaint] = field(default_factory=list)

    def __getitem__(self, file: Path) -> DumpedFile:
        return self.files[file]

    def complaints_but(self, *allowed: Kind) -> list[Complaint]:
        """Return the complaints of other kinds. For a compacted log, which has gaps,
        `complaints_but(Kind.NON_CONSECUTIVE)` must be empty."""
        return [complaint for complaint in self.complaints if complaint.kind not in allowed]


def dump_log_segments(files: Sequence[Path], *flags: str) -> Dump:
    """Run the tool once on all files, with `flags` as on its command line ("--deep-iteration", ...)."""
    return parse_dump(files, run_tool(DUMP_LOG_SEGMENTS, ["--files", joined(files), *flags]), flags)


def segment_files(directory: Path) -> list[Path]:
    """Return the files of a partition that the tool can read: log, indexes and snapshots of every segment."""
    suffixes = (".log", ".index", ".timeindex", ".txnindex", ".snapshot")
    return sorted(path for path in directory.iterdir() if path.suffix in suffixes)


def parse_dump(files: Sequence[Path], output: ToolOutput, flags: Sequence[str] = ()) -> Dump:
    dump = Dump(complaints=_complaints_on_stderr(output.stderr))
    if output.exit_code != 0:
        dump.complaints.append(Complaint(Kind.EXIT_CODE, f"exit code {output.exit_code}"))
    _Parser(output.stdout, set(files), dump, printing="--print-data-log" in flags).parse()
    return dump


def _complaints_on_stderr(stderr: str) -> list[Complaint]:
    """Return a complaint for each line that is not indented, with the indented lines after it."""
    complaints: list[Complaint] = []
    for line in stderr.splitlines():
        detail = line.startswith((" ", "\t", "Indexed offset:", "Caused by:"))
        if complaints and detail:
            complaints[-1] = Complaint(complaints[-1].kind, f"{complaints[-1].text}\n{line}")
        elif line.strip():
            kind = next((kind for kind in Kind if line.startswith(kind.value)), Kind.OTHER_ERROR)
            complaints.append(Complaint(kind, line))
    return complaints


_DUMPING = re.compile(rb"Dumping ([^\n]*)\n")
_START = re.compile(rb"Log starting offset: (\d+)\n")
_BATCH = re.compile(rb"((?:baseOffset|offset): [^|\n]* isvalid: (?:true|false))\n")
_ENTRY = re.compile(rb"((?:offset|timestamp|version|producerId): [^\n]*)\n")
_RECORD = re.compile(
    rb"\| offset: (-?\d+) (\w+): (-?\d+) keySize: (-?\d+) valueSize: (-?\d+)"
    rb"(?: sequence: (-?\d+) headerKeys: \[([^\]\n]*)\])?(?: isValid: \w+ crc: \d+\}?)?"
    rb"(?: (endTxnMarker: \w+ coordinatorEpoch: -?\d+|controlType: [^\n]*))?"
)
_TRAILING = re.compile(rb"(Found \d+ invalid bytes at the end of [^\n]*)\n")
_NAMED = re.compile(r"(\w+): (\S*)")


class _Parser:
    """A cursor over the tool's output. It raises an error at the first line that it can't parse."""

    def __init__(self, stdout: bytes, files: set[Path], dump: Dump, *, printing: bool) -> None:
        self.data = stdout
        self.files = files
        self.dump = dump
        self.printing = printing
        self.position = 0
        self.current = DumpedFile()

    def parse(self) -> None:
        while self.position < len(self.data):
            if not self._file_head() and not self._log_line() and not self._index_line():
                said = self.data[self.position : self.position + 200].decode("utf-8", "replace")
                self.dump.complaints.append(Complaint(Kind.UNREADABLE, said))
                return

    def _take(self, pattern: re.Pattern[bytes]) -> re.Match[bytes] | None:
        match = pattern.match(self.data, self.position)
        if match:
            self.position = match.end()
        return match

    def _file_head(self) -> bool:
        match = self._take(_DUMPING)
        if match is None:
            return False
        self.current = self.dump.files[Path(match[1].decode())] = DumpedFile()
        return True

    def _log_line(self) -> bool:
        if self._take(_START):
            return True
        if trailing := self._take(_TRAILING):
            self.dump.complaints.append(Complaint(Kind.TRAILING_BYTES, trailing[1].decode()))
            return True
        if batch := self._take(_BATCH):
            header = dict(_NAMED.findall(batch[1].decode()))
            self.current.batches.append(DumpedBatch(header, []))
            if header["isvalid"] != "true":
                self.dump.complaints.append(Complaint(Kind.INVALID_BATCH, batch[1].decode()))
            return True
        return bool(self.current.batches) and self._record()

    def _record(self) -> bool:
        match = self._take(_RECORD)
        if match is None:
            return False
        key_size, value_size = int(match[4]), int(match[5])
        control = match[8].decode() if match[8] else None
        key = value = None
        if self.printing and control is None:
            key = self._sized(b" key: ", key_size)
            value = self._sized(b" payload: ", value_size)
        if self.data[self.position : self.position + 1] != b"\n":
            return False
        self.position += 1
        self.current.batches[-1].records.append(
            DumpedRecord(
                offset=int(match[1]),
                timestamp_type=match[2].decode(),
                timestamp=int(match[3]),
                key_size=key_size,
                value_size=value_size,
                sequence=int(match[6]) if match[6] else None,
                header_keys=tuple(match[7].decode().split(",")) if match[7] else (),
                control=control,
                key=key,
                value=value,
            )
        )
        return True

    def _sized(self, label: bytes, size: int) -> bytes | None:
        if size < 0 or not self.data.startswith(label, self.position):
            return None
        start = self.position + len(label)
        self.position = start + size
        return self.data[start : self.position]

    def _index_line(self) -> bool:
        for file in self.files:
            name = str(file).encode()
            for ending, attribute in (
                (b" passed sanity check.\n", "passed_sanity_check"),
                (b" is empty.\n", "is_empty_index"),
            ):
                if self.data.startswith(name + ending, self.position):
                    self.position += len(name) + len(ending)
                    setattr(self.current, attribute, True)
                    return True
        if entry := self._take(_ENTRY):
            self.current.entries.append(dict(_NAMED.findall(entry[1].decode())))
            return True
        return False
