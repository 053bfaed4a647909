"""Stops a job in the middle, by an exception like an interrupt, or by its `stop` event."""

from __future__ import annotations

import threading

from stratalog.pipelines.progress import NoProgress


class StoppedError(Exception):
    pass


class StopAfter(NoProgress):
    """Raises StoppedError when the job has reported progress so many times."""

    def __init__(self, times: int) -> None:
        self._left = times

    def reached(self, done: int) -> None:
        self._left -= done > 0
        if self._left == 0:
            self._left = -1
            raise StoppedError


class SetStop(NoProgress):
    """Sets the `stop` event when the job has processed so many records."""

    def __init__(self, records: int = 1) -> None:
        self.stop = threading.Event()
        self._records = records

    def reached(self, done: int) -> None:
        if done >= self._records:
            self.stop.set()
