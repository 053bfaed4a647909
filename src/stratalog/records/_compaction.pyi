from typing_extensions import Buffer

from stratalog.records._framing import BatchHeader
from stratalog.records._key_map import KeyMap

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
def reseal(batch: bytearray, buffer: Buffer, header: BatchHeader, record_count: int, max_timestamp: int) -> None: ...
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
def find_key(payload: Buffer, header: BatchHeader, key: bytes, start: int, end: int) -> list[tuple[int, int, int]]: ...
