from typing_extensions import Buffer

FetchTopic = tuple[str | bytes, list["FetchPartition"]]
ForgottenTopic = tuple[str | bytes, list[int]]
ProducePartition = tuple[int, int, int]
FetchPartition = tuple[int, int, int, int, int]

def parse_request_header(frame: Buffer) -> tuple[int, int, int, str | None, int]: ...
def skip_tagged_fields(frame: Buffer, position: int) -> int: ...
def parse_produce(
    frame: Buffer, position: int, version: int
) -> tuple[str | None, int, int, list[tuple[str | bytes, list[ProducePartition]]]]: ...
def parse_fetch(
    frame: Buffer, position: int, version: int
) -> tuple[int, int, int, int, int, int, int, list[FetchTopic], list[ForgottenTopic]]: ...
