"""The process that the demo kills: appends batches to a log for ever, and says after each where the log ends."""

from __future__ import annotations

import os
import sys

from stratalog.records.builder import build_batch
from stratalog.storage import Log

RECORDS_A_BATCH = 100


def main(directory: str) -> None:
    with Log.open(directory) as log:
        while True:
            appended = log.append(build_batch([(b"key", bytes(100))] * RECORDS_A_BATCH))
            os.write(sys.stdout.fileno(), b"%d\n" % (appended.last_offset + 1))


if __name__ == "__main__":
    main(sys.argv[1])
