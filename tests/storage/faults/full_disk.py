"""Random work on a full disk: clear errors, no SIGBUS from a mapped index, and everything works when there is space
again.

Run as a program on an empty file system of a few megabytes, which it fills:

    python -m tests.storage.faults.full_disk MOUNT_POINT SEED
"""

from __future__ import annotations

import errno
import logging
import os
import random
import shutil
import sys
from pathlib import Path

from stratalog.errors import StorageError
from stratalog.storage.disk import Disk
from tests.storage.faults.checks import check_goes_on, check_log
from tests.storage.faults.failing_calls import accept_failure, open_again
from tests.storage.faults.workload import Workload

_PAGE = 4096
_PAGES_LEFT = [0, 0, 1, 2, 3, 4, 5, 7, 9, 12]
_STEPS = 60


class Filler:
    """A file that takes all space except some pages."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def fill(self, pages_left: int) -> None:
        fd = os.open(self._path, os.O_WRONLY | os.O_CREAT)
        try:
            size = 0
            while True:
                size += os.pwrite(fd, bytes(_PAGE), size)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            os.ftruncate(fd, max(size - pages_left * _PAGE, 0))
        finally:
            os.close(fd)

    def make_room(self) -> None:
        self._path.unlink(missing_ok=True)


def work_on_full_disk(mount_point: Path, seed: int, pages_left: int) -> int:
    """Return how many steps failed because the disk was full."""
    filler = Filler(mount_point / "filler")
    path = mount_point / "data"
    rng = random.Random(seed)
    # Indexes of several pages, so that stores need more than the first block.
    workload = Workload(path, seed, Disk(), segment_bytes=9000, segment_index_bytes=16_384, index_interval_bytes=0)
    refused = 0
    for _ in range(_STEPS):
        filler.fill(pages_left)
        try:
            workload.step()
        except StorageError as error:
            assert os.strerror(errno.ENOSPC) in str(error), f"not for want of room: {error}"
            refused += 1
            filler.make_room()
            if workload.doing == "reopen":
                open_again(workload)
            accept_failure(workload, error)
        check_log(workload.log, workload.model, rng, looks=2)  # reading needs no space
    filler.make_room()
    workload.append()
    workload.reopen()
    check_log(workload.log, workload.model, rng)
    check_goes_on(workload.log)
    workload.directory.close()
    shutil.rmtree(path)
    return refused


def run(mount_point: Path, seed: int) -> None:
    for number, pages_left in enumerate(_PAGES_LEFT):
        print(f"seed {seed + number}, {pages_left} pages left", flush=True)
        refused = work_on_full_disk(mount_point, seed + number, pages_left)
        assert refused or pages_left, "nothing met the full disk"
        print(f"seed {seed + number}, {pages_left} pages left: {refused} of {_STEPS} steps refused", flush=True)


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    run(Path(sys.argv[1]), int(sys.argv[2]))
