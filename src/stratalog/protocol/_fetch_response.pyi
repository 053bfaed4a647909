from typing_extensions import Buffer

FetchResponsePartition = tuple[
    int, int, int, int, int, list[tuple[int, int]] | None, int, int, int, tuple[int, int] | None
]

def parse_fetch_response(
    body: Buffer, version: int
) -> tuple[int, int, int, list[tuple[str | bytes, list[FetchResponsePartition]]]]: ...
