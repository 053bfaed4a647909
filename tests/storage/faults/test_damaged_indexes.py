"""An index is a hint: with any bit flipped, every lookup by offset and timestamp gives the same result, without an
error.

The log is small and every lookup is made, so that every entry is used.
"""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from stratalog.records.batch import Batch
from stratalog.storage import Log, names
from tests.storage.log_builder import LogBuilder

FLIPS = 70  # per kind of index
SETTINGS: dict[str, Any] = {"segment_bytes": 2500, "segment_index_bytes": 256, "index_interval_bytes": 150}


class SmallLog:
    """A log of three segments of about ten batches. Timestamps rise, and sometimes fall a little."""

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        rng = random.Random(1)
        with LogBuilder(scratch / "live", **SETTINGS) as built:
            while len(built.log.segments) < 3 or built.log.segments[-1].size < 1500:
                time = 1_700_000_000_000 + built.next_offset * 10 - rng.choice([0, 0, 25])
                built.append(rng.randint(1, 3), value_size=40, timestamp=time)
            self.batches = {batch.header.base_offset: batch.header for batch in _batches(built.log)}
            self.records = built.history
            self._killed = built.left_by_kill(scratch / "killed")

    def sound(self, clean: bool) -> Path:
        return self._scratch / "live" if clean else self._killed

    def check(self, path: Path) -> None:
        with LogBuilder(path, **SETTINGS) as built:
            for _ in range(2):  # the second time with rebuilt indexes
                for record in self.records:
                    first = next(built.log.read(record.offset, 0).batches()).header
                    assert first.base_offset in self.batches, f"read({record.offset}) begins with {first}"
                    assert first.base_offset <= record.offset <= first.last_offset, f"read({record.offset}): {first}"
                    right = next(candidate for candidate in self.records if candidate.timestamp >= record.timestamp)
                    match = built.log.find_timestamp(record.timestamp)
                    assert match == (right.offset, right.timestamp), f"timestamp of {record.offset}: {match}"
            assert list(built.log.records()) == self.records


def _batches(log: Log) -> list[Batch]:
    batches: list[Batch] = []
    offset = 0
    while offset < log.log_end_offset:
        batches += list(log.read(offset, 100_000).batches())
        offset = batches[-1].header.next_offset
    return batches


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("suffix", [names.OFFSET_INDEX, names.TIME_INDEX])
def test_flipped_bit_in_an_index_changes_no_lookup(scratch: Path, suffix: str, clean: bool) -> None:
    log = SmallLog(scratch)
    rng = random.Random(f"{suffix} {clean}")
    files = sorted(path.relative_to(log.sound(clean)) for path in log.sound(clean).rglob(f"*{suffix}"))
    for number in range(FLIPS):
        name = files[number % len(files)]
        damaged = scratch / "damaged"
        shutil.copytree(log.sound(clean), damaged, ignore=shutil.ignore_patterns(names.LOCK))
        content = bytearray((damaged / name).read_bytes())
        bit = rng.randrange(min(len(content), 120) * 8)
        content[bit // 8] ^= 1 << bit % 8
        (damaged / name).write_bytes(content)
        try:
            log.check(damaged)
        except Exception as error:
            raise AssertionError(f"{name}, bit {bit}, {'clean' if clean else 'unclean'}: {error!r}") from error
        shutil.rmtree(damaged)
