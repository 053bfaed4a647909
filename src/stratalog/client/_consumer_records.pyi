from collections.abc import Callable, Sequence
from typing import Any, Self

from typing_extensions import Buffer

from stratalog.client._fetched_batches import FetchedBatches, Progress
from stratalog.client.metadata import TopicPartition
from stratalog.records._column_decoder import ColumnDecoder

class ConsumerRecord:
    offset: int
    timestamp: int
    timestamp_type: int
    leader_epoch: int
    key: Any
    value: Any
    headers: tuple[tuple[str, bytes | None], ...]
    def __init__(
        self,
        topic: str,
        partition: int,
        offset: int,
        *,
        timestamp: int = -1,
        timestamp_type: int = 0,
        key: Any = None,
        value: Any = None,
        headers: tuple[tuple[str, bytes | None], ...] = (),
        leader_epoch: int = -1,
    ) -> None: ...
    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...

class FetchedRecords(FetchedBatches):
    def __init__(
        self,
        partition: TopicPartition,
        progress: Progress,
        fetch_offset: int,
        body: Buffer,
        start: int,
        end: int,
        *,
        aborted: Sequence[tuple[int, int]] | None = None,
        read_committed: bool = False,
        check_crcs: bool = True,
        max_decompressed: int = ...,
        key_deserializer: Callable[[bytes], Any] | None = None,
        value_deserializer: Callable[[bytes], Any] | None = None,
    ) -> None: ...
    def take(self, limit: int) -> list[ConsumerRecord]: ...
    def take_columns(self, decoder: ColumnDecoder, limit: int) -> int: ...

class Interrupt:
    is_set: bool
    taken: int

class RecordIterator:
    def __init__(
        self, refill: Callable[[FetchedRecords | None], FetchedRecords | None], interrupt: Interrupt
    ) -> None: ...
    def __iter__(self) -> Self: ...
    def __next__(self) -> ConsumerRecord: ...
