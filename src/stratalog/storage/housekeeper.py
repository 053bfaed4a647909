"""The thread that maintains the logs of a data directory: flushing, rolling, retention, checkpoints, deletions.

It calls only public methods of the logs. An error of one log is logged and does not affect the others. The log is tried
again at the next interval.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable

from stratalog.errors import StratalogError
from stratalog.storage.config import DirectoryConfig
from stratalog.storage.home import LogHome
from stratalog.storage.log import Log

logger = logging.getLogger(__name__)


class Housekeeper:
    """Runs the periodic tasks of a data directory in a thread, or in turn()."""

    def __init__(self, config: DirectoryConfig, logs: Callable[[], Iterable[Log]], home: LogHome) -> None:
        clock = home.clock
        self._logs = logs
        self._clock = clock
        self._deletions = home.deletions
        self._recovery_points = home.recovery_points
        self._overdue_rolls = home.overdue_rolls
        self._wake = home.roll_requested
        self._is_stopping = False
        self._tasks: list[tuple[float, Callable[[], None]]] = [
            (config.log_flush_scheduler_interval_ms / 1000, self._flush),
            (config.log_retention_check_interval_ms / 1000, self._apply_retention),
            (config.log_flush_offset_checkpoint_interval_ms / 1000, self._save_recovery_points),
        ]
        now = clock.monotonic()
        self._due = [now + interval for interval, _ in self._tasks]
        self._pause = min(1.0, *(interval for interval, _ in self._tasks))
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="stratalog-housekeeper", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._is_stopping = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join()

    def turn(self) -> None:
        """Run the tasks that are due now."""
        self._roll_overdue()
        now = self._clock.monotonic()
        for index, (interval, task) in enumerate(self._tasks):
            if now >= self._due[index]:
                self._due[index] = now + interval
                task()
        self._deletions.run()

    def _run(self) -> None:
        while not self._is_stopping:
            self._wake.wait(self._pause)
            self._wake.clear()
            if not self._is_stopping:
                self.turn()

    def _roll_overdue(self) -> None:
        while self._overdue_rolls:
            self._each(Log.roll_if_overdue, [self._overdue_rolls.pop()])

    def _flush(self) -> None:
        self._each(Log.flush_if_due)

    def _apply_retention(self) -> None:
        self._each(Log.roll_if_due)
        self._each(lambda log: self._report(log, log.apply_retention()))

    def _report(self, log: Log, verdicts: Iterable[tuple[int, str]]) -> None:
        for base_offset, reason in verdicts:
            logger.info("%s: deleted the segment at %d: %s", log.path, base_offset, reason)

    def _save_recovery_points(self) -> None:
        logs = list(self._logs())
        try:
            self._recovery_points.update(lambda: {log.partition: log.recovery_point for log in logs})
        except OSError as error:
            logger.error("can't save recovery points: %s", error)

    def _each(self, act: Callable[[Log], object], logs: Iterable[Log] | None = None) -> None:
        for log in self._logs() if logs is None else logs:
            try:
                act(log)
            except StratalogError as error:
                if not log.is_closed:
                    logger.error("%s: %s", log.path, error)
            except Exception:
                # An unexpected error in one log must not stop the housekeeping of all others.
                logger.exception("%s: housekeeping failed", log.path)
