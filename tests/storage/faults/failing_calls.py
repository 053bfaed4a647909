"""A fixed sequence of steps with a fault at the Nth call of the disk. Every step succeeds or raises StorageError. The
log then has exactly the acknowledged records: at once, after the fault, and after reopening."""

from __future__ import annotations

import gc
import os
import random
import shutil
from pathlib import Path

from stratalog.errors import StorageError
from stratalog.storage import Log
from tests.storage.faults.checks import check_goes_on, check_log
from tests.storage.faults.failing_disk import FailingDisk
from tests.storage.faults.workload import Workload

STEPS = 70


class FailingCalls:
    """The same steps for the same seed, with a fault that starts at call `nth` and lasts `length` calls."""

    def __init__(
        self, path: Path, seed: int, fault: str, nth: int, length: int, workload: type[Workload] = Workload
    ) -> None:
        self.name = f"seed {seed}, {fault} at call {nth} for {length}"
        self.path = path
        self.disk = FailingDisk()
        self.rng = random.Random(seed)
        self.workload = workload(path, seed, self.disk, flush_messages=60, segment_bytes=1500)
        self.is_open = True
        self.disk.arm(fault, nth, length)

    def run(self) -> bool:
        """Run the steps. Return True if the fault occurred, False if the work was finished before call `nth`."""
        try:
            for _ in range(STEPS):
                self._step()
            self.disk.heal()
            self._check()
            self._reopen_and_check()
        except Exception as error:
            where = f"{self.name}, struck {self.disk.struck}, doing {self.workload.doing}"
            raise AssertionError(f"{where}: {error!r}") from error
        finally:
            self.disk.heal()
            if self.is_open:
                self.workload.directory.close()
        return bool(self.disk.struck)

    def _step(self) -> None:
        before = len(self.disk.struck)
        try:
            self.workload.step()
        except StorageError as error:
            assert len(self.disk.struck) > before, f"an error without a fault: {error}"
            self._accept(error)
        except Exception as error:
            raise AssertionError(f"not a StorageError: {error!r}") from error
        if len(self.disk.struck) > before:
            self._look_again()

    def _look_again(self) -> None:
        """Read right after a fault, while more calls may fail: the records are right, or the read fails."""
        try:
            records = list(self.workload.log.records())
        except StorageError:
            return
        assert records == self.workload.model.records(self.workload.log.log_start_offset)

    def _accept(self, error: StorageError) -> None:
        with self.disk.paused():
            if self.workload.doing == "reopen":
                self.is_open = False
                open_again(self.workload)
                self.is_open = True
            accept_failure(self.workload, error)

    def _check(self) -> None:
        check_log(self.workload.log, self.workload.model, self.rng)
        self.workload.append()

    def _reopen_and_check(self) -> None:
        """Reopen and check twice: after kill -9, which leaves no clean-shutdown marker, and after a clean close."""
        killed = self.path.with_name(self.path.name + "-killed")
        shutil.copytree(self.path, killed, ignore=shutil.ignore_patterns(".lock"))
        self.workload.directory.close()
        model = self.workload.model
        for path in (killed, self.path):
            self.workload.path = path
            self.workload.open()
            check_log(self.workload.log, model, self.rng)
            check_goes_on(self.workload.log)
            self.workload.directory.close()
        self.is_open = False
        shutil.rmtree(killed)


def open_again(workload: Workload) -> None:
    """Open again after closing or opening failed: the directory must not be locked."""
    workload.directory.close()
    workload.open()


def accept_failure(workload: Workload, error: StorageError) -> None:
    """Check the log after a step failed and the cause is gone: it is unchanged, except that truncations and deletions
    may be partly done. Update the model."""
    doing, message, allowed = workload.doing, str(error), workload.allowed
    end = _end(workload.log)
    if "can't append the leader's batches" in message:
        assert workload.model.end <= end <= allowed.model.end
    elif doing in ("append", "end_transaction"):
        flush_failed = "can't flush" in message
        assert flush_failed or "nothing was appended" in message, f"which of the two? {message}"
        expected = allowed.model.end if flush_failed else workload.model.end
        assert end == expected, f"append raised {message!r}, and the log ends at {end} instead of {expected}"
    elif doing == "truncate":
        assert allowed.promised <= end <= workload.model.end
        workload.generation += 1
    else:
        assert end == workload.model.end, f"{doing} failed, and the log ends at {end}, not {workload.model.end}"
    assert allowed.lowest_start <= workload.log.log_start_offset <= allowed.highest_start
    workload.settle(allowed.model.cut(end))


def _end(log: Log) -> int:
    """Return the offset where reading ends. This also loads a half-changed log again."""
    read = log.read(log.log_start_offset, 1)
    assert read.log_end_offset == log.log_end_offset
    return log.log_end_offset


def open_descriptors() -> int:
    gc.collect()
    return len(os.listdir("/proc/self/fd"))
