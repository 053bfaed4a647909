from typing_extensions import Buffer

from stratalog.records._framing import BatchHeader

MAX_HELD_DECOMPRESSED: int

def check_header(header: BatchHeader) -> None: ...
def parse_for_append(data: Buffer, max_batch_bytes: int) -> list[BatchHeader]: ...
def check_contents(
    data: Buffer,
    headers: list[BatchHeader],
    max_decompressed: int = ...,
    earliest: int = ...,
    payloads: list[Buffer] | None = None,
) -> int: ...
def check_records(payload: Buffer, header: BatchHeader, start: int = 0, end: int = -1) -> tuple[int, int]: ...
def find_refused(
    data: Buffer,
    headers: list[BatchHeader],
    max_decompressed: int,
    needs_keys: bool,
    earliest: int,
    latest: int,
    most: int,
) -> list[tuple[int, bool, int]]: ...
