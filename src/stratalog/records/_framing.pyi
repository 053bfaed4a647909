from typing_extensions import Buffer

from stratalog.errors import StratalogError

class BatchHeader:
    position: int
    size: int
    base_offset: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    crc: int
    leader_epoch: int
    magic: int
    attributes: int
    last_offset_delta: int
    producer_epoch: int
    base_sequence: int
    record_count: int
    @property
    def last_offset(self) -> int: ...
    @property
    def next_offset(self) -> int: ...
    @property
    def last_sequence(self) -> int: ...
    @property
    def codec(self) -> int: ...
    @property
    def timestamp_type(self) -> int: ...
    @property
    def is_transactional(self) -> bool: ...
    @property
    def is_control(self) -> bool: ...
    @property
    def has_delete_horizon(self) -> bool: ...

def parse_header(buffer: Buffer, position: int = 0) -> BatchHeader | None: ...
def parse_headers(
    buffer: Buffer, start: int = 0, end: int = -1
) -> tuple[list[BatchHeader], int, StratalogError | None]: ...
def find_batch(
    buffer: Buffer, target: int, origin: int = 0, previous: int = -1, expected: int = -1
) -> tuple[BatchHeader | None, int, int, int]: ...
def stamp(
    buffer: Buffer, headers: list[BatchHeader], base_offset: int, leader_epoch: int, append_time: int = -1
) -> int: ...
def set_max_timestamp(buffer: Buffer, header: BatchHeader, max_timestamp: int) -> None: ...
def crc_matches(buffer: Buffer, header: BatchHeader) -> bool: ...
def count_valid(
    buffer: Buffer, headers: list[BatchHeader], first: int, previous: int, limit: int, checksums: bool
) -> int: ...
