"""Compaction on a full disk: the log is set aside, no store into a mapped index raises SIGBUS, and compaction works
when there is space again. Run as a program on an empty file system of a few megabytes, which it fills:

    python -m tests.storage.compaction.full_disk MOUNT_POINT
"""

from __future__ import annotations

import logging
import shutil
import sys
from pathlib import Path

from stratalog.storage.disk import Disk
from tests.storage.compaction.keyed_log import KeyedLog, pair_of
from tests.storage.faults.full_disk import Filler

PAGES_LEFT = [0, 1, 2, 3, 4, 6, 9, 14, 20, 40]


def compact_on_full_disk(mount_point: Path, pages_left: int) -> bool:
    """Return True if the run failed because the disk was full."""
    path, filler = mount_point / "data", Filler(mount_point / "filler")
    # Indexes of several pages, so that stores need more than the first block.
    with KeyedLog(path, disk=Disk(), segment_bytes=60_000, segment_index_bytes=16_384, index_interval_bytes=0) as keyed:
        for number in range(900):
            keyed.put(f"{number % 500}={number}{'x' * 40}")
        keyed.roll().put("grows=1")
        latest = {record.key: pair_of(record) for record in keyed.history}
        filler.fill(pages_left)
        keyed.directory.cleaner.turn()
        aside = keyed.directory.cleaner.set_aside()
        assert all("No space left" in entry.reason for entry in aside.values()), aside
        assert {record.key: pair_of(record) for record in keyed.log.records()} == latest
        filler.make_room()
        keyed.clock.advance(10**7)
        keyed.put("again=1").roll()
        keyed.clean()
        assert list(keyed.log.records()) == keyed.survivors()
    shutil.rmtree(path)
    return bool(aside)


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    met = [compact_on_full_disk(Path(sys.argv[1]), pages) for pages in PAGES_LEFT]
    assert met[0], "nothing met the full disk"
    assert not met[-1], "there was room enough"
