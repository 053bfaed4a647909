"""Power cuts in the middle of random work: every record that was durable must be there afterwards.

`run` works on a log over a FaultyDisk and takes crash images before random calls of the disk and between steps. It
opens each image with the real disk and checks it: no exception, the records are those that were appended, without a gap
from the log start offset on, no durable record is missing, no truncated record is back, and appends work.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stratalog.storage import LogDirectory
from stratalog.storage.names import CLEAN_SHUTDOWN
from tests.storage.faults.checks import check_goes_on, check_log
from tests.storage.faults.faulty_disk import FaultyDisk
from tests.storage.faults.workload import Allowed, Workload
from tests.storage.log_builder import PARTITION


class PowerCuts:
    """Takes `images` crash images during one random workload."""

    def __init__(
        self,
        where: Path,
        seed: int,
        images: int,
        *,
        progress: Callable[[], None] | None = None,
        workload: type[Workload] = Workload,
    ) -> None:
        self.where = where
        self.seed = seed
        self.images = images
        self.taken = 0
        self._progress = progress
        self._rng = random.Random(f"power cuts {seed}")
        self._until_next = 0
        self._disk = FaultyDisk(where / "live")
        # Small segments roll and are deleted often. In a large segment, much is not flushed yet.
        settings: dict[str, Any] = {"flush_messages": 40} if seed % 4 == 3 else {}
        if seed % 2:
            settings |= {"segment_bytes": 15_000, "segment_index_bytes": 1024, "retention_bytes": 40_000}
        self.workload = workload(where / "live", seed, self._disk, **settings)

    def run(self) -> None:
        self._disk.on_call = self._before_call
        try:
            while self.taken < self.images:
                self.workload.step()
                # Most calls come from flushes. Between the steps, there is more to lose.
                if self._rng.random() < 0.2:
                    self._cut_power()
            self._disk.on_call = None
            check_log(self.workload.log, self.workload.model, self._rng)
        except Exception as error:
            raise AssertionError(f"seed {self.seed}, doing {self.workload.doing}: {error}") from error
        finally:
            self._disk.on_call = None
            self.workload.directory.close()
            self._disk.forget()

    def _before_call(self) -> None:
        self._until_next -= 1
        if self._until_next < 0:
            self._until_next = self._rng.randint(0, 60)
            self._cut_power()

    def _cut_power(self) -> None:
        if self.taken >= self.images:
            return
        self.taken += 1
        target = self.where / f"image-{self.taken}"
        self._disk.crash_image(random.Random(f"{self.seed}/{self.taken}"), target)
        try:
            check_image(target, self.workload, random.Random(self.taken))
        except Exception as error:
            raise AssertionError(f"image {self.taken}, left in {target}: {error!r}") from error
        shutil.rmtree(target)
        if self._progress is not None:
            self._progress()


def check_image(path: Path, workload: Workload, rng: random.Random) -> None:
    allowed = workload.allowed
    for _ in range(2):  # the second time after a clean close
        with LogDirectory.open(path, workload.config, background=False) as directory:
            log = directory.log(*PARTITION)
            _check_bounds(allowed, log.log_start_offset, log.log_end_offset)
            model = allowed.model.cut(log.log_end_offset)
            # An interrupted truncation may have moved the start back, before epochs that were already forgotten.
            check_log(log, model, rng, looks=3, epochs_from=allowed.highest_start)
    with LogDirectory.open(path, workload.config, background=False) as directory:
        log = directory.log(*PARTITION)
        check_goes_on(log)
        records = list(log.records())
    (path / CLEAN_SHUTDOWN).unlink()
    with LogDirectory.open(path, workload.config, background=False) as directory:
        assert list(directory.log(*PARTITION).records()) == records, (
            "what was appended after the cut is not what is there"
        )


def _check_bounds(allowed: Allowed, start: int, end: int) -> None:
    assert end >= allowed.promised, f"log ends at {end}, but all up to {allowed.promised} was promised"
    assert end <= allowed.model.end, f"log ends at {end}, but only {allowed.model.end} were appended"
    assert allowed.lowest_start <= start <= allowed.highest_start, (
        f"log starts at {start}, not between {allowed.lowest_start} and {allowed.highest_start}"
    )
