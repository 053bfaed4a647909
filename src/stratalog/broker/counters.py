"""What happened, counted. Plain numbers: the metrics page reads them when it is asked for."""

from __future__ import annotations

from stratalog.protocol.api_keys import ApiKey


class Counters:
    def __init__(self) -> None:
        self.requests = dict.fromkeys(map(int, ApiKey), 0)  # by number: an enum's hash is a call of its own
        self.request_seconds = dict.fromkeys(map(int, ApiKey), 0.0)
        self.refused_requests = 0  # that could not be read, or not be answered
        self.failed_produce = 0  # for the disk's reasons
        self.refused_produce = 0  # for the client's: a batch that breaks a rule
        self.failed_fetch = 0
        self.records_in = 0
        self.record_bytes_in = 0
        self.record_bytes_out = 0

    def produced(self, records: int, size: int) -> None:
        self.records_in += records
        self.record_bytes_in += size
