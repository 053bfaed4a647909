"""A power cut: it takes the end of each log that was not synced from a broker's data directory."""

from __future__ import annotations

import random
from pathlib import Path

from stratalog.storage import names
from stratalog.storage.checkpoints import read_offsets
from stratalog.storage.names import TopicPartition


def lose_page_cache(data_dir: Path, rng: random.Random) -> int:
    """Cut each log to a random length that it may have after a power cut: at least what was synced. The broker must
    have been killed. Return how many bytes are lost."""
    recovery_points = read_offsets(data_dir / names.RECOVERY_POINT_CHECKPOINT)
    lost = 0
    for directory in data_dir.iterdir():
        partition = names.parse_partition_directory(directory.name)
        segments = sorted(directory.glob("*.log")) if partition is not None else []
        if partition is None or not segments:
            continue
        synced = _synced_size(segments[-1], recovery_points.get(TopicPartition(*partition), 0))
        size = segments[-1].stat().st_size
        kept = rng.choice([synced, rng.randint(synced, size)])
        with segments[-1].open("r+b") as file:
            file.truncate(kept)
        lost += size - kept
    (data_dir / names.BOOT_NOTE).write_text("the boot before\n")
    return lost


def _synced_size(segment: Path, recovery_point: int) -> int:
    """Return the size of the batches before the recovery point."""
    data = segment.read_bytes()
    position = 0
    while position + 12 <= len(data) and int.from_bytes(data[position : position + 8]) < recovery_point:
        position += 12 + int.from_bytes(data[position + 8 : position + 12])
    return min(position, len(data))
