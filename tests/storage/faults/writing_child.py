"""A process that writes to a log until it is killed, and reports acknowledged appends on a pipe.

    python -m tests.storage.faults.writing_child

reads lines "SEED NTH PATH" and forks a writer for each (a fork costs milliseconds, a new interpreter half a second).
The writer reports "pid N", "opened START END" and, after each append that returned, "acknowledged END". The parent
reports "gone STATUS" when the writer is dead and has released all its files.

The appended batches depend only on the seed and the offset, so the killing process can compute them too.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

from stratalog.records._framing import stamp
from stratalog.records.batch import batches as batches_in
from stratalog.records.builder import build_batch
from stratalog.records.format import Codec
from stratalog.storage import DirectoryConfig, Log, LogConfig, LogDirectory
from tests.storage.faults.model import AppendedBatch
from tests.storage.log_builder import PARTITION, records_from

MOST_RECORDS = 2000  # a writer that gets so far waits to be killed, so that reading everything back is quick
_PRODUCER = 1000
_EPOCH_LENGTH = 400  # consecutive offsets with the same leader epoch
_SHAPES: list[tuple[int, int | None]] = [(1, None), (1, 0), (3, None), (6, 20), (2, 250), (15, 30)]
_LARGE = (6, 150_000)  # a kill may interrupt the write of such a batch


def config_of(seed: int) -> LogConfig:
    rng = random.Random(f"settings {seed}")
    return LogConfig(
        segment_bytes=4 * 1024**2 if is_large(seed) else rng.choice([4000, 4000, 12_000, 100_000]),
        segment_index_bytes=rng.choice([64, 256, 10_240]),
        index_interval_bytes=rng.choice([0, 200, 4096]),
        segment_ms=rng.choice([500, 7 * 86_400_000]),
        flush_messages=rng.choice([1, 20, 2**62, 2**62]),
        flush_ms=rng.choice([0, 5, 2**62]),
        retention_ms=-1,
        retention_bytes=rng.choice([-1, -1, 10_000, 40_000]),
        file_delete_delay_ms=rng.choice([0, 3]),
        producer_id_expiration_ms=2**62,  # because the records are years old
    )


def is_large(seed: int) -> bool:
    return seed % 6 == 3


def next_append(seed: int, offset: int) -> list[AppendedBatch]:
    """Return the batches that the writer with this seed appends in one call to a log that ends at `offset`."""
    rng = random.Random(f"{seed}/{offset}")
    batches = []
    epoch = offset // _EPOCH_LENGTH
    idempotent = seed % 2 == 0
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        count, size = _LARGE if is_large(seed) and rng.random() < 0.2 else rng.choice(_SHAPES)
        records = records_from(offset, count, seed=seed, value_size=size)
        # One producer writes everything, so its sequence numbers are the offsets.
        producer = (_PRODUCER, 0, offset) if idempotent else (-1, -1, -1)
        batches.append(AppendedBatch(records, epoch, *producer))
        offset += count
    return batches


def encode(seed: int, batches: list[AppendedBatch]) -> bytearray:
    data = bytearray()
    for batch in batches:
        data += build_batch(
            batch.records,
            codec=random.Random(f"codec {seed}/{batch.base_offset}").choice(list(Codec)),
            producer_id=batch.producer_id,
            producer_epoch=batch.producer_epoch,
            base_sequence=batch.base_sequence,
        )
    return data


def write(seed: int, nth: int, path: Path) -> None:
    """Append without end, with an occasional other call. A housekeeper with short intervals runs too."""
    rng = random.Random(f"steps {seed}/{nth}")
    often = DirectoryConfig(
        log_retention_check_interval_ms=rng.choice([2, 1000]),
        log_flush_scheduler_interval_ms=rng.choice([2, 1000]),
        log_flush_offset_checkpoint_interval_ms=rng.choice([2, 1000]),
        max_open_segments=3,
    )
    directory = LogDirectory.open(path, config_of(seed), directory_config=often)
    log = directory.log(*PARTITION)
    _say(f"opened {log.log_start_offset} {log.log_end_offset}")
    first = log.log_end_offset
    others: dict[Any, int] = {log.flush: 3, log.roll: 3, log.save_recovery_point: 2, log.apply_retention: 2}
    while log.log_end_offset < first + MOST_RECORDS:
        batches = next_append(seed, log.log_end_offset)
        _say(f"acknowledged {_append(log, seed, batches)}")
        if rng.random() < 0.1:
            rng.choices(list(others), list(others.values()))[0]()
    signal.pause()


def _append(log: Log, seed: int, batches: list[AppendedBatch]) -> int:
    """Append as a leader or, for every third seed, as a follower, and return the log end offset."""
    data, epoch = encode(seed, batches), batches[0].leader_epoch
    if seed % 3 != 1:
        return log.append(data, leader_epoch=epoch).last_offset + 1
    stamp(data, [batch.header for batch in batches_in(data)], log.log_end_offset, epoch)
    return log.append_from_leader(data)


def _say(line: str) -> None:
    os.write(1, f"{line}\n".encode())  # short enough that a kill can't split it


def _fork_writer(seed: int, nth: int, path: Path) -> None:
    pid = os.fork()
    if pid == 0:
        _say(f"pid {os.getpid()}")
        try:
            write(seed, nth, path)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    _, status = os.waitpid(pid, 0)
    _say(f"gone {os.waitstatus_to_exitcode(status)}")


def main() -> None:
    for line in sys.stdin:
        seed, nth, path = line.rstrip("\n").split(" ", 2)
        _fork_writer(int(seed), int(nth), Path(path))


if __name__ == "__main__":
    main()
