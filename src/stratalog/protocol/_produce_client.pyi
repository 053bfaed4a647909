from collections.abc import Mapping, Sequence

from typing_extensions import Buffer

def encode_produce_request(
    version: int, acks: int, timeout_ms: int, topics: Mapping[str, Sequence[tuple[int, bytearray]]]
) -> list[bytearray]: ...
def decode_produce_response(
    version: int, body: Buffer
) -> tuple[int, dict[tuple[str, int], tuple[int, int, int, str | None]]]: ...
