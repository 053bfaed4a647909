"""The harness for tests against Apache Kafka: its log dumper, its broker, its command line tools."""

from __future__ import annotations

from tests.compat.jvm import ToolFailedError, ToolOutput, run_tool, run_tool_or_fail
from tests.compat.kafka_server import KafkaServer, ServerFailedError
from tests.compat.log_dump import (
    Complaint,
    Dump,
    DumpedBatch,
    DumpedFile,
    DumpedRecord,
    Kind,
    dump_log_segments,
    segment_files,
)

__all__ = [
    "Complaint",
    "Dump",
    "DumpedBatch",
    "DumpedFile",
    "DumpedRecord",
    "KafkaServer",
    "Kind",
    "ServerFailedError",
    "ToolFailedError",
    "ToolOutput",
    "dump_log_segments",
    "run_tool",
    "run_tool_or_fail",
    "segment_files",
]
