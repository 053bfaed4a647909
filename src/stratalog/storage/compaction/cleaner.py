"""The cleaner of a data directory: threads that compact the dirtiest of the logs that are due.

A log that can't be compacted (a corrupt batch, a full disk) is set aside with the reason, and tried again after a delay
that grows. The other logs are compacted meanwhile. Reading and writing respect log.cleaner.io.max.bytes.per.second. As
in Kafka, cleaner-offset-checkpoint has the offset before which each log is clean. A run that a crash interrupted is
repeated.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from stratalog.clock import Clock
from stratalog.errors import CleanerBusyError, StratalogError
from stratalog.storage.compaction.compactor import (
    SMALLEST_CHUNK,
    Budget,
    Cleaned,
    CleaningStoppedError,
    Compactor,
)
from stratalog.storage.compaction.config import CleanerConfig
from stratalog.storage.compaction.plan import Dirt, assess
from stratalog.storage.compaction.throttle import Throttle
from stratalog.storage.home import LogHome
from stratalog.storage.log import Log
from stratalog.storage.names import TopicPartition

logger = logging.getLogger(__name__)

_SHORTEST_ASIDE, _LONGEST_ASIDE = 1.0, 3600.0  # seconds until a log that was set aside is tried again


@dataclass(frozen=True)
class SetAside:
    """The reason why a log could not be compacted, and when it is tried again."""

    reason: str
    failures: int
    until: float  # by the monotonic clock
    since_ms: int


@dataclass(frozen=True)
class CleanerStatus:
    """The state of one log: how dirty it is, and what happened to it last."""

    partition: TopicPartition
    dirt: Dirt
    is_running: bool
    set_aside: SetAside | None
    last_run: Cleaned | None
    last_run_ms: int | None


@dataclass
class CleanerCounters:
    """Totals since the start, for metrics."""

    runs: int = 0
    failures: int = 0
    bytes_read: int = 0
    bytes_saved: int = 0


class LogCleaner:
    """Compacts the logs of a data directory in threads, or in turn()."""

    def __init__(self, config: CleanerConfig, logs: Callable[[], Iterable[Log]], home: LogHome) -> None:
        self.counters = CleanerCounters()
        self._config = config
        self._logs = logs
        self._clock: Clock = home.clock
        self._offsets = home.cleaner_offsets
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._running: set[TopicPartition] = set()
        self._set_aside: dict[TopicPartition, SetAside] = {}
        self._last: dict[TopicPartition, tuple[Cleaned, int]] = {}
        self._threads: list[threading.Thread] = []
        self._throttle = Throttle(config.log_cleaner_io_max_bytes_per_second, self._clock, self._stop)

    def start(self) -> None:
        if not self._config.log_cleaner_enable:
            return
        for number in range(self._config.log_cleaner_threads):
            thread = threading.Thread(target=self._run, name=f"stratalog-cleaner-{number}", daemon=True)
            thread.start()
            self._threads.append(thread)

    def stop(self) -> None:
        """Stop the threads and wait for them. A run in progress stops, and its segments that are not swapped in yet are
        discarded."""
        self._stop.set()
        for thread in self._threads:
            thread.join()
        self._threads.clear()

    def reconfigure(self, config: CleanerConfig) -> None:
        """Use other settings. A run in progress stops and starts again."""
        if config == self._config:
            return
        was_running = bool(self._threads)
        self.stop()
        self._stop.clear()
        self._config = config
        self._throttle.rate = config.log_cleaner_io_max_bytes_per_second
        if was_running:
            self.start()

    def _budget(self) -> Budget:
        config = self._config
        return Budget(
            memory=config.log_cleaner_dedupe_buffer_size // config.log_cleaner_threads,
            load_factor=config.log_cleaner_io_buffer_load_factor,
            chunk=max(config.log_cleaner_io_buffer_size // config.log_cleaner_threads // 2, SMALLEST_CHUNK),
            account=self._throttle.account,
            stop=self._stop,
        )

    def turn(self) -> Cleaned | None:
        """Compact the dirtiest log that is due and return the result. If it fails, try the next one. Return None if no
        log is due any more, or if a run was stopped."""
        while (log := self._take()) is not None:
            try:
                cleaned = self._clean(log)
            finally:
                with self._lock:
                    self._running.discard(log.partition)
            if cleaned is not None or log.partition not in self._set_aside:
                return cleaned
        return None

    def status(self, log: Log) -> CleanerStatus:
        last = self._last.get(log.partition)
        return CleanerStatus(
            log.partition,
            self.dirt_of(log),
            log.partition in self._running,
            self._set_aside.get(log.partition),
            None if last is None else last[0],
            None if last is None else last[1],
        )

    def dry_run(self, log: Log) -> Cleaned:
        """Return what compacting the log now would save. It takes as long as a run, and some disk space, but replaces
        nothing.

        Raises CleanerBusyError while the log is being compacted, because both would write to the same files.
        """
        with self._lock:
            if log.partition in self._running:
                raise CleanerBusyError(f"{log.partition} is being compacted; retry when that is done")
            self._running.add(log.partition)
        try:
            generation = log.generation
            return Compactor(log, self.dirt_of(log), self._budget(), self._clock.now_ms(), generation).run(dry=True)
        finally:
            with self._lock:
                self._running.discard(log.partition)

    def set_aside(self) -> dict[TopicPartition, SetAside]:
        return dict(self._set_aside)

    def dirt_of(self, log: Log) -> Dirt:
        segments = log.segments
        checkpointed = self._offsets.get(log.partition)
        first_dirty = max(checkpointed, log.log_start_offset)
        if first_dirty > segments[-1].base_offset:
            first_dirty = log.log_start_offset  # left by a deleted log of this name; cleaning it all is always right
        return assess(
            [segment.retention_facts() for segment in segments],
            log.config,
            first_dirty_offset=first_dirty,
            last_stable_offset=log.first_unstable_offset,
            high_watermark=log.high_watermark,
            now_ms=self._clock.now_ms(),
        )

    def _run(self) -> None:
        while not self._stop.wait(0 if self._has_cleaned() else self._config.log_cleaner_backoff_ms / 1000):
            pass

    def _has_cleaned(self) -> bool:
        try:
            return self.turn() is not None
        except Exception:
            logger.exception("the cleaner failed")  # but continues, so that the other logs are compacted
            return False

    def _take(self) -> Log | None:
        """Mark the dirtiest log that is due as running and return it. Logs that another thread compacts are skipped."""
        now = self._clock.monotonic()
        best: Log | None = None
        most = -1.0
        with self._lock:
            logs = list(self._logs())
            self._forget_all_but({log.partition for log in logs})
            for log in logs:
                aside = self._set_aside.get(log.partition)
                if log.partition in self._running or (aside is not None and now < aside.until):
                    continue
                if "compact" not in log.config.cleanup_policy:
                    continue
                try:
                    dirt = self.dirt_of(log)
                except (StratalogError, OSError) as error:
                    if not log.is_closed:
                        self._put_aside(log, str(error))
                    continue
                if dirt.is_due and dirt.ratio > most:
                    best, most = log, dirt.ratio
            if best is not None:
                self._running.add(best.partition)
        return best

    def _forget_all_but(self, partitions: set[TopicPartition]) -> None:
        for partition in {*self._set_aside, *self._last} - partitions:
            self._set_aside.pop(partition, None)
            self._last.pop(partition, None)

    def _clean(self, log: Log) -> Cleaned | None:
        now_ms = self._clock.now_ms()
        generation = log.generation
        try:
            cleaned = Compactor(log, self.dirt_of(log), self._budget(), now_ms, generation).run()
            if not log.note_clean(cleaned.first_dirty_offset, generation):
                return None
        except CleaningStoppedError:
            return None
        except (StratalogError, OSError, MemoryError) as error:
            if not log.is_closed:
                self._put_aside(log, str(error))
            return None
        except Exception as error:  # an unexpected error must not keep the other logs from being compacted
            logger.exception("%s: compaction failed", log.path)
            self._put_aside(log, f"{type(error).__name__}: {error}")
            return None
        self._set_aside.pop(log.partition, None)
        self._last[log.partition] = (cleaned, now_ms)
        self.counters.runs += 1
        self.counters.bytes_read += cleaned.bytes_read
        self.counters.bytes_saved += cleaned.bytes_before - cleaned.bytes_after
        logger.info(
            "%s: compacted up to offset %d: %d bytes became %d, %d segments became %d",
            log.path,
            cleaned.first_dirty_offset,
            cleaned.bytes_before,
            cleaned.bytes_after,
            cleaned.segments_before,
            cleaned.segments_after,
        )
        return cleaned

    def _put_aside(self, log: Log, reason: str) -> None:
        before = self._set_aside.get(log.partition)
        failures = 1 if before is None else before.failures + 1
        backoff = max(self._config.log_cleaner_backoff_ms / 1000, _SHORTEST_ASIDE)
        pause = min(backoff * 2.0 ** min(failures, 32), _LONGEST_ASIDE)
        self._set_aside[log.partition] = SetAside(
            reason, failures, self._clock.monotonic() + pause, self._clock.now_ms()
        )
        self.counters.failures += 1
        if before is None or before.reason != reason:
            logger.error("%s: can't compact the log; setting it aside: %s", log.path, reason)
