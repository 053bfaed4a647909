from collections.abc import Iterable
from typing import TypeAlias

from typing_extensions import Buffer

from stratalog.records._records import Record

KEY: int
VALUE: int
HEADERS: int
OFFSET: int
TIMESTAMP: int
TIMESTAMP_TYPE: int

BinaryBuffers: TypeAlias = tuple[Buffer | None, Buffer, Buffer, int]
HeaderBuffers: TypeAlias = tuple[Buffer, int, BinaryBuffers, BinaryBuffers]

class ColumnDecoder:
    def __init__(self, columns: int, rows: int = 0, content: int = 0, column_limit: int = 2147483647) -> None: ...
    @property
    def rows(self) -> int: ...
    def add_batch(
        self,
        payload: Buffer,
        count: int,
        base_offset: int,
        base_timestamp: int,
        timestamp_type: int,
        append_time: int,
        start_offset: int,
        end_offset: int,
    ) -> None: ...
    def add_records(self, records: Iterable[Record]) -> None: ...
    @property
    def content(self) -> int: ...
    def mark(self) -> tuple[int, int]: ...
    def cut(self, mark: tuple[int, int]) -> None: ...
    def finish(self) -> dict[int, Buffer | BinaryBuffers | HeaderBuffers]: ...

def utf8_is_valid(text: bytes) -> bool: ...
