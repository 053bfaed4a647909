"""Counters of the broker's work. They are plain numbers, which the metrics page reads on request."""

from __future__ import annotations

from stratalog.protocol.api_keys import ApiKey


class Counters:
    def __init__(self) -> None:
        self.requests = dict.fromkeys(map(int, ApiKey), 0)  # by number, because hashing an enum is slow
        self.request_seconds = dict.fromkeys(map(int, ApiKey), 0.0)
        self.refused_requests = 0  # could not be parsed, or are not served
        self.failed_produce = 0  # because of the disk
        self.refused_produce = 0  # because a batch breaks a rule
        self.failed_fetch = 0
        self.records_in = 0
        self.record_bytes_in = 0
        self.record_bytes_out = 0

    def produced(self, records: int, size: int) -> None:
        self.records_in += records
        self.record_bytes_in += size
