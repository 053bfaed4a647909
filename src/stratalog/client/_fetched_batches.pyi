from stratalog.client.metadata import TopicPartition

class Progress:
    offset: int
    leader_epoch: int
    def __init__(self, offset: int = -1, leader_epoch: int = -1) -> None: ...

class FetchedBatches:
    partition: TopicPartition
    progress: Progress
    size: int
    fetch_offset: int
    end_offset: int
    end_epoch: int
    record_count: int
    is_exhausted: bool
    is_well_formed: bool
