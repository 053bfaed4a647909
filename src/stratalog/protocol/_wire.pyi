from typing_extensions import Buffer

FetchTopic = tuple[str | bytes, list["FetchPartition"]]
ForgottenTopic = tuple[str | bytes, list[int]]
ProducePartition = tuple[int, int, int]
FetchPartition = tuple[int, int, int, int, int, int]

FINE: int
NO_RECORDS: int
TOO_SMALL: int
OLD_MAGIC: int
UNKNOWN_MAGIC: int
SEVERAL_BATCHES: int
TRANSACTIONAL: int
ZSTD_TOO_EARLY: int

def parse_request_header(frame: Buffer) -> tuple[int, int, int, str | None, int]: ...
def batch_fault(frame: Buffer, start: int, end: int, version: int) -> int: ...
def parse_produce(
    frame: Buffer, position: int, version: int
) -> tuple[str | None, int, int, list[tuple[str | bytes, list[ProducePartition]]]]: ...
def parse_fetch(
    frame: Buffer, position: int, version: int
) -> tuple[
    tuple[int, int] | None, int, int, int, int, int, int, list[FetchTopic], list[ForgottenTopic], str | None
]: ...
