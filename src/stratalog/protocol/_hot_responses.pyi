from collections.abc import Sequence, Sized

from stratalog.protocol.fetch import FetchedPartition
from stratalog.protocol.produce import ProducedPartition

def encode_produce_response(version: int, topics: Sequence[tuple[str | bytes, list[ProducedPartition]]]) -> bytes: ...
def encode_fetch_response(
    version: int,
    error_code: int,
    session_id: int,
    topics: Sequence[tuple[str | bytes, list[FetchedPartition]]],
) -> tuple[list[bytes | Sized], int]: ...
