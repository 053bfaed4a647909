"""A process that writes to a log and compacts it continuously, until it is killed.

    python -m tests.storage.compaction.compacting_child PATH KEYS

It prints the value of each append that returned, one per line. The key of a value is value % KEYS.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from stratalog.records.builder import build_batch
from stratalog.storage import DirectoryConfig, LogConfig, LogDirectory
from stratalog.storage.compaction.config import CleanerConfig
from tests.storage.compaction.keyed_log import SETTINGS, TOPIC
from tests.storage.faults.racing import Unsynced

CONFIG = LogConfig(**{**SETTINGS, "segment_bytes": 900})


def main(path: Path, keys: int) -> None:
    directory = LogDirectory.open(
        path,
        CONFIG,
        directory_config=DirectoryConfig(log_retention_check_interval_ms=1),
        cleaner_config=CleanerConfig(log_cleaner_backoff_ms=1),
        disk=Unsynced(),
    )
    log = directory.log(TOPIC, 0)
    value = log.log_end_offset
    while True:
        # Offsets, sequences and values are the same number, so the log end offset is the next value.
        producer = {"producer_id": 5, "producer_epoch": 0, "base_sequence": value}
        log.append(build_batch([(b"%d" % (value % keys), b"%d" % value)], **producer))  # type: ignore[arg-type]
        os.write(1, b"%d\n" % value)
        value += 1


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
