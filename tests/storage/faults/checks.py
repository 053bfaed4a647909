"""Compares a log with its model, through every way of reading. Raises AssertionError with the difference."""

from __future__ import annotations

import random
from dataclasses import replace

from stratalog.records.builder import build_batch
from stratalog.records.reader import records_of
from stratalog.storage import Log
from tests.storage.faults.model import Aborted, Model, ProducerFacts
from tests.storage.log_builder import record_at

AFTERWARDS = 77_000_000  # the seed of records that are appended after the fault


def check_log(log: Log, model: Model, rng: random.Random, *, looks: int = 8, epochs_from: int = 0) -> None:
    """Check that the log has the records of the model from the log start offset on, with `looks` lookups of each
    kind."""
    assert log.log_end_offset == model.end, f"log ends at {log.log_end_offset}, not {model.end}"
    assert list(log.records()) == model.records(log.log_start_offset), "records() gives something else"
    for _ in range(looks):
        if log.log_start_offset < model.end:
            check_read(log, model, rng.randrange(log.log_start_offset, model.end), rng.choice([0, 100, 1000, 100_000]))
    check_times(log, model, rng, looks)
    check_epochs(log, model, max(epochs_from, log.log_start_offset))
    check_producers(log, model)


def check_read(log: Log, model: Model, offset: int, max_bytes: int) -> None:
    read = log.read(offset, max_bytes)
    batches = list(read.batches())
    assert batches, f"read({offset}) gives no batch"
    first = batches[0].header
    assert first.base_offset == read.base_offset
    assert first.base_offset <= offset <= first.last_offset, f"read({offset}) begins with {first}"
    expected = {batch.base_offset: batch for batch in model.batches}
    for batch in batches:
        assert batch.crc_matches(), f"read({offset}) gives a damaged batch: {batch}"
        appended = expected.get(batch.header.base_offset)
        assert appended is not None, f"read({offset}) gives a batch that was never appended: {batch}"
        assert records_of(batch) == appended.records, f"read({offset}) gives other records in {batch}"
        assert batch.header.leader_epoch == appended.leader_epoch


def check_times(log: Log, model: Model, rng: random.Random, looks: int) -> None:
    records = model.all_records(log.log_start_offset)
    times = [record.timestamp for record in records]
    timestamps = {*(rng.choice(times) + rng.choice([-1, 0, 1]) for _ in range(looks if times else 0)), 2**62}
    for time in sorted(timestamps):
        first = next((record for record in records if record.timestamp >= time), None)
        match = log.find_timestamp(time)
        expected = None if first is None else (first.offset, first.timestamp)
        assert match == expected, f"find_timestamp({time}) gives {match}, not {expected}"


def check_epochs(log: Log, model: Model, start: int) -> None:
    epochs = model.epochs()
    for offset in range(start, model.end):
        epoch = log.leader_epochs.epoch_of(offset)
        assert epoch == epochs[offset], f"leader epoch of offset {offset} is {epoch}, not {epochs[offset]}"


def check_producers(log: Log, model: Model) -> None:
    """Check the producers. A producer whose records are all deleted may be forgotten, and a transaction may seem to
    begin with its first remaining record. The state must be right for the remaining records."""
    start = log.log_start_offset
    expected, aborted = model.producers()
    known: dict[int, ProducerFacts] = {}
    for producer in log.producers:
        last = producer.batches[-1] if producer.batches else None
        known[producer.producer_id] = ProducerFacts(
            producer.epoch,
            -1 if last is None else last.last_sequence,
            -1 if last is None else last.last_offset,
            producer.transaction_first_offset,
        )
    for producer_id, facts in known.items():
        assert producer_id in expected, f"producer {producer_id} never wrote: {facts}"
        right = expected[producer_id]
        if right.last_offset < start and facts.last_offset < 0:  # only a marker of the producer remains
            right = replace(right, last_sequence=-1, last_offset=-1)
        same = _visible_state(model, producer_id, facts, start) == _visible_state(model, producer_id, right, start)
        assert same, f"producer {producer_id}: {facts}, not {right}"
    for producer_id, facts in expected.items():
        assert producer_id in known or facts.last_offset < start, f"producer {producer_id} is forgotten: {facts}"
    entries = [entry for segment in log.segments for entry in segment.transaction_index.entries()]
    listed = [Aborted(entry.producer_id, entry.first_offset, entry.last_offset) for entry in entries]
    assert _visible_transactions(model, listed, start) == _visible_transactions(model, aborted, start), (
        f"aborted transactions are listed as {listed}, not {aborted}; the log starts at {start}"
    )


def _visible_transactions(model: Model, transactions: list[Aborted], start: int) -> list[Aborted]:
    reaching = [transaction for transaction in transactions if transaction.last_offset >= start]
    visible = [_visible_transaction(model, transaction, start) for transaction in reaching]
    return [transaction for transaction in visible if transaction.first_offset >= 0]


def _visible_state(model: Model, producer_id: int, facts: ProducerFacts, start: int) -> ProducerFacts:
    first = facts.transaction_first_offset
    visible = None if first is None else _first_visible(model, producer_id, first, model.end, start)
    return replace(facts, transaction_first_offset=visible)


def _visible_transaction(model: Model, aborted: Aborted, start: int) -> Aborted:
    first = _first_visible(model, aborted.producer_id, aborted.first_offset, aborted.last_offset, start)
    return replace(aborted, first_offset=-1 if first is None else first)


def _first_visible(model: Model, producer_id: int, first: int, last: int, start: int) -> int | None:
    """Return the first offset of a transaction at or after the log start offset."""
    batches = [batch for batch in model.batches if batch.producer_id == producer_id and not batch.marker]
    within = [batch.base_offset for batch in batches if first <= batch.base_offset < last and batch.next_offset > start]
    return within[0] if within else None


def check_goes_on(log: Log, batches: int = 2) -> None:
    """Check that appends succeed and return the next offsets."""
    for _ in range(batches):
        end = log.log_end_offset
        record = record_at(end, seed=AFTERWARDS)
        appended = log.append(build_batch([record]))
        assert (appended.base_offset, appended.last_offset) == (end, end), f"appended at {appended}, not {end}"
        assert list(log.records(end)) == [record], "what was appended just now reads back as something else"
