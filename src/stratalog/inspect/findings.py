"""The findings of a verification: each has a severity, a file, a position and advice."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Protocol

FINDINGS_PER_FILE = 20


class Severity(Enum):
    """The severity of a finding. ERROR: records are damaged. WARNING: another file is wrong, and can be rebuilt from
    the records. NOTE: nothing is wrong."""

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
    """A filter that passes the first findings of each file to an observer: a damaged file could have so many that they
    fill the screen or the memory. `counts` counts all of them."""

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
        """Report how many findings of a file were not passed on."""
        more = self._of_file.pop(file, 0) - FINDINGS_PER_FILE
        if more > 0:
            advice = "look at the first ones: the rest usually follows from them"
            self._observer.report(Finding(Severity.NOTE, file, None, f"{more} more findings in this file", advice))

    def _add(self, finding: Finding) -> None:
        self.counts[finding.severity] += 1
        self._of_file[finding.file] += 1
        if self._of_file[finding.file] <= FINDINGS_PER_FILE:
            self._observer.report(finding)
