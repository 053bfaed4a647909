"""Stops a job in its middle, as an interrupt or whoever holds its `stop` would."""

from __future__ import annotations

import threading

from stratalog.pipelines.progress import NoProgress


class StoppedError(Exception):
    pass


class StopAfter(NoProgress):
    """As an interrupt would, when the job has told so many times that it got on."""

    def __init__(self, times: int) -> None:
        self._left = times

    def reached(self, done: int) -> None:
        self._left -= done > 0
        if self._left == 0:
            self._left = -1
            raise StoppedError


class TellToStop(NoProgress):
    """Sets the event that the job looks at, once it has got so far."""

    def __init__(self, records: int = 1) -> None:
        self.stop = threading.Event()
        self._records = records

    def reached(self, done: int) -> None:
        if done >= self._records:
            self.stop.set()
