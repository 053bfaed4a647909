"""The content that a log must have, as plain lists. Each result of a log's methods is computed again from the appended
batches, in the simplest possible way."""

from __future__ import annotations

from dataclasses import dataclass, field

from stratalog.records._records import Record


@dataclass(frozen=True)
class AppendedBatch:
    records: list[Record]
    leader_epoch: int
    producer_id: int = -1
    producer_epoch: int = -1
    base_sequence: int = -1
    is_transactional: bool = False
    marker: str = ""  # "commit" or "abort" for a control batch

    @property
    def base_offset(self) -> int:
        return self.records[0].offset

    @property
    def next_offset(self) -> int:
        return self.records[-1].offset + 1


@dataclass
class ProducerFacts:
    epoch: int
    last_sequence: int = -1
    last_offset: int = -1
    transaction_first_offset: int | None = None


@dataclass(frozen=True)
class Aborted:
    producer_id: int
    first_offset: int
    last_offset: int


@dataclass
class Model:
    """The batches in order, from offset 0 on, including those before the log start offset."""

    batches: list[AppendedBatch] = field(default_factory=list)

    @property
    def end(self) -> int:
        return self.batches[-1].next_offset if self.batches else 0

    def cut(self, end: int) -> Model:
        """Return the model of the same log when it ends at `end`, which must be between two batches."""
        kept = [batch for batch in self.batches if batch.next_offset <= end]
        model = Model(kept)
        assert model.end == end, f"a log ends at offset {end}, in the middle of a batch"
        return model

    def batch_base(self, offset: int) -> int:
        """Return the base offset of the batch that contains `offset`, where a truncation ends the log."""
        return next((batch.base_offset for batch in self.batches if offset < batch.next_offset), self.end)

    def records(self, start: int) -> list[Record]:
        """Return the records as Log.records() does, without markers."""
        records = [record for batch in self.batches if not batch.marker for record in batch.records]
        return [record for record in records if record.offset >= start]

    def all_records(self, start: int) -> list[Record]:
        return [record for batch in self.batches for record in batch.records if record.offset >= start]

    def epochs(self) -> list[int]:
        """Return the leader epoch of each offset."""
        return [batch.leader_epoch for batch in self.batches for _ in batch.records]

    def producers(self) -> tuple[dict[int, ProducerFacts], list[Aborted]]:
        """Return each producer's state at the end of the log, and all aborted transactions."""
        producers: dict[int, ProducerFacts] = {}
        aborted = []
        for batch in self.batches:
            if batch.producer_id < 0:
                continue
            facts = producers.setdefault(batch.producer_id, ProducerFacts(batch.producer_epoch))
            if batch.marker:
                first, facts.transaction_first_offset = facts.transaction_first_offset, None
                if batch.marker == "abort" and first is not None:
                    aborted.append(Aborted(batch.producer_id, first, batch.base_offset))
            else:
                facts.last_sequence = batch.base_sequence + len(batch.records) - 1
                facts.last_offset = batch.next_offset - 1
                if batch.is_transactional and facts.transaction_first_offset is None:
                    facts.transaction_first_offset = batch.base_offset
        return producers, aborted
