from typing_extensions import Buffer

from stratalog.records._framing import BatchHeader

SLOT_SIZE: int

class KeyMap:
    slots: int
    most: int
    count: int
    latest: int
    def __init__(self, slots: int, load_factor: float, seed: bytes) -> None: ...
    def __len__(self) -> int: ...
    def clear(self) -> None: ...
    def get(self, key: bytes) -> int: ...
    def put(self, key: bytes | None, offset: int) -> bool: ...
    def add(
        self, payload: Buffer, header: BatchHeader, from_offset: int, start: int = 0, end: int = -1
    ) -> bool: ...
    def add_batches(self, buffer: Buffer, headers: list[BatchHeader], first: int, from_offset: int) -> int: ...
    def list_last(self, start: int, most_bytes: int) -> None: ...
    def skip_dead(self, headers: list[BatchHeader], first: int) -> int: ...

class Kept:
    count: int
    removed: int
    tombstones: int
    max_timestamp_delta: int
    max_timestamp: int
    payload: bytearray | None

def filter_batch(
    payload: Buffer, header: BatchHeader, keys: KeyMap, drop_tombstones: bool, start: int = 0, end: int = -1
) -> Kept: ...
def reseal(
    batch: bytearray, buffer: Buffer, header: BatchHeader, record_count: int, max_timestamp: int
) -> None: ...
def copy_plain(
    keys: KeyMap,
    buffer: Buffer,
    headers: list[BatchHeader],
    first: int,
    now_ms: int,
    out: bytearray,
    kept_headers: list[BatchHeader],
) -> tuple[int, bool]: ...
def rebase_timestamps(
    payload: Buffer, header: BatchHeader, count: int, shift: int, start: int, end: int
) -> bytearray: ...
def find_key(
    payload: Buffer, header: BatchHeader, key: bytes, start: int, end: int
) -> list[tuple[int, int, int]]: ...
