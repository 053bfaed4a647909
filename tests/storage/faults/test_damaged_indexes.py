"""An index is a hint: whatever bit of it is flipped, every offset and every time is found as before, without an error.

A small log and every look-up that there is, so that no entry goes unasked.
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

FLIPS = 70  # of each kind of index
SETTINGS: dict[str, Any] = {"segment_bytes": 2500, "segment_index_bytes": 256, "index_interval_bytes": 150}


class SmallLog:
    """Three segments of some ten batches; timestamps rise, and fall a little now and then."""

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
            for _ in range(2):  # the second time with indexes that were made again
                for record in self.records:
                    first = next(built.log.read(record.offset, 0).batches()).header
                    assert first.base_offset in self.batches, f"read({record.offset}) begins with {first}"
                    assert first.base_offset <= record.offset <= first.last_offset, f"read({record.offset}): {first}"
                    right = next(one for one in self.records if one.timestamp >= record.timestamp)
                    found = built.log.find_timestamp(record.timestamp)
                    assert found == (right.offset, right.timestamp), f"time of {record.offset}: {found}"
            assert list(built.log.records()) == self.records


def _batches(log: Log) -> list[Batch]:
    found: list[Batch] = []
    offset = 0
    while offset < log.log_end_offset:
        found += list(log.read(offset, 100_000).batches())
        offset = found[-1].header.next_offset
    return found


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("suffix", [names.OFFSET_INDEX, names.TIME_INDEX])
def test_flipped_bit_in_an_index_changes_no_answer(scratch: Path, suffix: str, clean: bool) -> None:
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
