"""Readers see complete batches of one log, whatever a follower does to it: append, truncate, restart."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from stratalog.errors import OffsetOutOfRangeError, StorageError
from tests.storage.log_builder import PARTITION
from tests.storage.replicas import leaders_batch, open_follower


def test_readers_of_a_follower_see_no_torn_log(tmp_path: Path) -> None:
    with open_follower(tmp_path, file_delete_delay_ms=0) as directory:
        log = directory.log(*PARTITION)
        stop = threading.Event()
        failures: list[BaseException] = []
        counts = [0, 0, 0]

        def read(number: int) -> None:
            while not stop.is_set():
                generation, start = log.generation, log.log_start_offset
                try:
                    batches = list(log.read(start, 10_000, max_offset=log.log_end_offset).batches())
                    log.find_timestamp(0)
                    assert log.max_timestamp_before(start + 5) >= -1
                except OffsetOutOfRangeError:
                    continue
                except StorageError:  # the slice was truncated
                    assert log.generation != generation
                    continue
                except BaseException as error:
                    failures.append(error)
                    return
                if log.generation == generation and all(batch.crc_matches() for batch in batches):
                    offsets = [batch.header.base_offset for batch in batches]
                    if offsets and offsets != list(range(offsets[0], offsets[0] + 2 * len(offsets), 2)):
                        failures.append(AssertionError(offsets))
                    counts[number] += 1

        threads = [threading.Thread(target=read, args=(number,)) for number in range(3)]
        for thread in threads:
            thread.start()
        until, rounds = time.monotonic() + 3, 0
        while time.monotonic() < until and not failures:
            rounds += 1
            base = log.log_end_offset
            for offset in range(base, base + 60, 2):
                log.append_from_leader(leaders_batch(offset, 2, leader_epoch=rounds))
            if rounds % 3 == 0:
                log.truncate(base + 20)
            if rounds % 5 == 0:
                log.restart_at((rounds * 37) % 400)
        stop.set()
        for thread in threads:
            thread.join()
        assert not failures
        assert min(counts) > 0
        assert rounds > 10
