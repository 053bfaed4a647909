from typing_extensions import Buffer

class BinaryColumn:
    def __init__(
        self,
        validity: Buffer | None,
        offsets: Buffer | None,
        data: Buffer | None,
        start: int,
        rows: int,
        is_large: bool,
    ) -> None: ...

class ColumnEncoder:
    def __init__(
        self,
        rows: int,
        key: BinaryColumn | None,
        value: BinaryColumn | None,
        timestamps: Buffer | None = None,
        header_offsets: Buffer | None = None,
        header_keys: BinaryColumn | None = None,
        header_values: BinaryColumn | None = None,
        *,
        no_timestamp: int = -1,
    ) -> None: ...
    @property
    def rows(self) -> int: ...
    def encode(self, start: int, max_bytes: int, into: bytearray | None = None) -> tuple[bytearray, int, int, int]: ...
    def plan(self, order: Buffer | None, start: int, end: int, max_bytes: int) -> tuple[int, int, int, int]: ...
    def encode_planned(
        self,
        order: Buffer | None,
        start: int,
        end: int,
        size: int,
        base_timestamp: int,
        into: bytearray | None = None,
        capacity: int = 0,
    ) -> bytearray: ...
