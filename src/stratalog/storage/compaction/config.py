"""The settings of a data directory's cleaner, under Kafka's names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from stratalog.settings import INT_MAX, Settings, boolean, decimal, integer, setting

_LARGEST_DOUBLE = 1.7976931348623157e308


@dataclass(frozen=True, kw_only=True)
class CleanerConfig(Settings):
    """The settings of the threads that compact logs."""

    kind: ClassVar[str] = "a cleaner"

    log_cleaner_enable: bool = setting(True, boolean(), "whether logs with cleanup.policy=compact are compacted")
    log_cleaner_threads: int = setting(1, integer(1, INT_MAX), "how many logs are compacted at a time", dynamic=True)
    log_cleaner_dedupe_buffer_size: int = setting(
        128 * 1024**2,
        integer(1024**2),
        "memory of all threads together for maps of keys; a key takes 24 bytes",
        dynamic=True,
    )
    log_cleaner_io_buffer_size: int = setting(
        512 * 1024, integer(0, INT_MAX), "memory of all threads together for reading and writing", dynamic=True
    )
    log_cleaner_io_buffer_load_factor: float = setting(
        0.9,
        decimal(0.1, 0.99),
        "how full a map of keys may be; a fuller map takes less memory and more time",
        dynamic=True,
    )
    log_cleaner_io_max_bytes_per_second: float = setting(
        _LARGEST_DOUBLE,
        decimal(1, _LARGEST_DOUBLE),
        "most bytes that compaction reads and writes per second",
        dynamic=True,
    )
    log_cleaner_backoff_ms: int = setting(
        15_000, integer(0), "how long the cleaner sleeps when no log is due", dynamic=True
    )
