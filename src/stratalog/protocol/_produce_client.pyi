from typing_extensions import Buffer

def encode_produce_request(
    version: int,
    acks: int,
    timeout_ms: int,
    topics: dict[str, list[tuple[int, bytearray]]],
    transactional_id: bytes | None = None,
) -> list[bytes | bytearray]: ...
def decode_produce_response(
    version: int, body: Buffer
) -> tuple[int, dict[tuple[str, int], tuple[int, int, int, str | None]]]: ...
