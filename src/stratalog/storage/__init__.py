"""The embeddable storage engine: Kafka's log on disk. `Log` is one partition, `LogDirectory` has many."""

from stratalog.storage.appending import Appended, Origin
from stratalog.storage.config import DirectoryConfig, LogConfig
from stratalog.storage.file_slice import FileSlice
from stratalog.storage.log import Log
from stratalog.storage.log_directory import LogDirectory
from stratalog.storage.names import TopicPartition
from stratalog.storage.readable_log import Read
from stratalog.storage.recovery import Cut, RecoveryReport
from stratalog.storage.segment import TimestampedOffset

__all__ = [
    "Appended",
    "Cut",
    "DirectoryConfig",
    "FileSlice",
    "Log",
    "LogConfig",
    "LogDirectory",
    "Origin",
    "Read",
    "RecoveryReport",
    "TimestampedOffset",
    "TopicPartition",
]
