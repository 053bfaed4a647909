"""The log of a temperature sensor: append readings, then look them up by offset and by time.

Run with: .venv/bin/python examples/embedded_log.py [directory]
"""

from __future__ import annotations

import math
import sys
import tempfile
from pathlib import Path

from stratalog.records import Record, build_batch
from stratalog.storage import Log

START = 1_700_000_000_000
READINGS = 10_000


def reading(second: int) -> Record:
    celsius = 20 + 5 * math.sin(second / 600)
    return Record(key=b"kitchen", value=f"{celsius:.2f}".encode(), timestamp=START + second * 1000)


def main(directory: Path) -> None:
    with Log.open(directory / "temperatures-0", {"segment.bytes": 65_536}) as log:
        for first in range(0, READINGS, 100):
            log.append(build_batch([reading(second) for second in range(first, first + 100)], codec="zstd"))
        print(f"{log.log_end_offset} readings in {len(log.segments)} segments, {log.size} bytes")

        match = log.find_timestamp(START + 3_600_000)
        assert match is not None
        record = next(log.records(start=match.offset))
        print(f"after an hour (offset {record.offset}): {(record.value or b'').decode()} degrees")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as temporary:
            main(Path(temporary))
