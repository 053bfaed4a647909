from collections.abc import Iterable, Sequence
from typing import TypeAlias

from typing_extensions import Buffer

Header: TypeAlias = tuple[str, bytes | None]

class Record:
    def __init__(
        self,
        *,
        offset: int = 0,
        timestamp: int = -1,
        timestamp_type: int = 0,
        key: bytes | None = None,
        value: bytes | None = None,
        headers: Iterable[Header] = (),
    ) -> None: ...
    @property
    def offset(self) -> int: ...
    @property
    def timestamp(self) -> int: ...
    @property
    def timestamp_type(self) -> int: ...
    @property
    def key(self) -> bytes | None: ...
    @property
    def value(self) -> bytes | None: ...
    @property
    def headers(self) -> tuple[Header, ...]: ...
    def __eq__(self, other: object) -> bool: ...
    def __hash__(self) -> int: ...

def uninitialized(size: int) -> bytearray: ...
def find_timestamp(
    payload: Buffer, count: int, base_offset: int, base_timestamp: int, timestamp: int, start_offset: int
) -> tuple[int, int] | None: ...

class RecordsWriter:
    def __init__(self, base_timestamp: int | None = None) -> None: ...
    @property
    def size(self) -> int: ...
    @property
    def record_count(self) -> int: ...
    @property
    def last_offset_delta(self) -> int: ...
    @property
    def base_timestamp(self) -> int: ...
    @property
    def max_timestamp(self) -> int: ...
    def append(
        self,
        value: Buffer | None = None,
        key: Buffer | None = None,
        headers: Sequence[Header] = (),
        timestamp: int = -1,
        offset_delta: int | None = None,
    ) -> int: ...
    def extend(
        self,
        records: Iterable[Record | tuple[Buffer | None, Buffer | None]],
        offset_deltas: Iterable[int] | None = None,
    ) -> None: ...
    def batch_bytes(self, header_size: int) -> bytearray: ...

def decode_records(
    payload: Buffer,
    count: int,
    base_offset: int,
    base_timestamp: int,
    timestamp_type: int,
    append_time: int,
) -> list[Record]: ...
def size_upper_bound(value: Buffer | None, key: Buffer | None, headers: Sequence[Header]) -> int: ...
