from collections.abc import Iterable

from typing_extensions import Buffer

from stratalog.records._column_decoder import BinaryBuffers, HeaderBuffers

class ScanDecoder:
    def __init__(
        self,
        columns: int,
        *,
        start: int = 0,
        end: int = ...,
        from_timestamp: int = ...,
        until_timestamp: int = ...,
        keys: Iterable[bytes] | None = None,
        read_committed: bool = False,
        most_rows: int = 100_000,
        most_bytes: int = 16777216,
        max_decompressed: int = 268435456,
    ) -> None: ...
    @property
    def next_offset(self) -> int: ...
    @property
    def position(self) -> int: ...
    @property
    def at_offset(self) -> int: ...
    @property
    def last_fed(self) -> int: ...
    @property
    def is_done(self) -> bool: ...
    @property
    def rows(self) -> int: ...
    def feed(self, data: Buffer, aborted: Iterable[tuple[int, int, int]] = (), continues: bool = False) -> None: ...
    def release(self) -> None: ...
    def run(self) -> bool: ...
    def take(self) -> tuple[int, dict[int, Buffer | BinaryBuffers | HeaderBuffers]]: ...
