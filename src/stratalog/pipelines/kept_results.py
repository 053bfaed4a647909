"""A file of the results of finished pieces, so that a job that was stopped can continue after them.

Each line is a JSON object, appended and synced. A line that a crash cut short is ignored, and its piece runs again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from stratalog.errors import StorageError


class KeptResults:
    """The results of one job. `job` describes it, so that a file with the results of a different job is refused."""

    def __init__(self, path: Path, job: Mapping[str, object]) -> None:
        self._path = path
        self._job = json.loads(json.dumps(job))
        self._results = self._read()
        self._file = path.open("ab")
        if self._file.tell() == 0:
            self._append({"job": self._job})
        elif self._is_torn():
            self._file.write(b"\n")

    def get(self, piece: str) -> Any | None:
        return self._results.get(piece)

    def keep(self, results: Mapping[str, object]) -> None:
        """Append results. They are durable when the call returns."""
        for piece, result in results.items():
            self._append({"piece": piece, "result": result})
        self._file.flush()
        os.fsync(self._file.fileno())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def _append(self, line: Mapping[str, object]) -> None:
        self._file.write(json.dumps(line).encode() + b"\n")

    def _is_torn(self) -> bool:
        with self._path.open("rb") as file:
            file.seek(-1, os.SEEK_END)
            return file.read() != b"\n"

    def _read(self) -> dict[str, Any]:
        try:
            lines = self._path.read_bytes().splitlines()
        except FileNotFoundError:
            return {}
        parsed = [line for line in map(_parsed, lines) if line is not None]
        if lines and (not parsed or parsed[0].get("job") != self._job):
            raise StorageError(
                f"{self._path}: contains results of another job or of other options; name another file, or delete it"
            )
        return {line["piece"]: line["result"] for line in parsed[1:] if "piece" in line and "result" in line}


def _parsed(line: bytes) -> dict[str, Any] | None:
    try:
        parsed = json.loads(line)
    except ValueError:
        return None
    return parsed if isinstance(parsed, dict) else None
