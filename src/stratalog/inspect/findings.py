"""What verification has to say: one finding for each thing, with its place and what to do about it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Protocol

FINDINGS_A_FILE = 20


class Severity(Enum):
    """ERROR: records are damaged. WARNING: something beside them is wrong, and can be made again from them.
    NOTE: worth knowing, nothing is wrong."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class Finding:
    severity: Severity
    file: Path
    position: int | None
    what: str
    advice: str


class Observer(Protocol):
    """The receiver of findings and progress during a verification."""

    def report(self, finding: Finding) -> None:
        """Receive a finding."""

    def advanced(self, size: int) -> None:
        """Learn that `size` more bytes of logs were checked."""


class Findings:
    """Passes findings on, of each file only the first few: a file of garbage would else fill the screen, or the
    memory. `counts` has all of them."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._of_file: Counter[Path] = Counter()
        self.counts: Counter[Severity] = Counter()

    def error(self, file: Path, position: int | None, what: str, advice: str) -> None:
        self._add(Finding(Severity.ERROR, file, position, what, advice))

    def warning(self, file: Path, position: int | None, what: str, advice: str) -> None:
        self._add(Finding(Severity.WARNING, file, position, what, advice))

    def note(self, file: Path, position: int | None, what: str, advice: str = "nothing to do") -> None:
        self._add(Finding(Severity.NOTE, file, position, what, advice))

    def advanced(self, size: int) -> None:
        self._observer.advanced(size)

    def end_of(self, file: Path) -> None:
        """Say how many findings of a file were not passed on."""
        more = self._of_file.pop(file, 0) - FINDINGS_A_FILE
        if more > 0:
            advice = "look at the first ones: the rest usually follows from them"
            self._observer.report(Finding(Severity.NOTE, file, None, f"{more} more findings in this file", advice))

    def _add(self, finding: Finding) -> None:
        self.counts[finding.severity] += 1
        self._of_file[finding.file] += 1
        if self._of_file[finding.file] <= FINDINGS_A_FILE:
            self._observer.report(finding)
