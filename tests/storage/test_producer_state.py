"""The producer state on its own, given headers. (test_producers.py tests it in a log.)"""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.errors import (
    CorruptCheckpointError,
    InvalidProducerEpochError,
    InvalidTransactionStateError,
    OutOfOrderSequenceError,
)
from stratalog.records._framing import BatchHeader, parse_header
from stratalog.records.builder import build_control_batch
from stratalog.records.format import ControlType
from stratalog.storage.producer_state import CompletedTransaction, ProducerBatch, ProducerState
from tests.storage.hand_made import GOLDEN, batch_of

SNAPSHOTS = sorted(GOLDEN.glob("*/*.snapshot"))
SEQUENCE_MAX = 2**31 - 1


def header(
    sequence: int,
    count: int = 1,
    *,
    offset: int = 0,
    producer: int = 7,
    epoch: int = 0,
    timestamp: int = 1000,
    **fields: Any,
) -> BatchHeader:
    data = batch_of(
        *[timestamp] * count,
        base_offset=offset,
        producer_id=producer,
        producer_epoch=epoch,
        base_sequence=sequence,
        **fields,
    )
    parsed = parse_header(data)
    assert parsed is not None
    return parsed


def marker(offset: int, *, producer: int = 7, epoch: int = 0, timestamp: int = 2000) -> BatchHeader:
    parsed = parse_header(build_control_batch(ControlType.COMMIT, producer, epoch, 3, timestamp, base_offset=offset))
    assert parsed is not None
    return parsed


def state_after(*headers: BatchHeader) -> ProducerState:
    state = ProducerState()
    for each in headers:
        state.update(each)
    return state


def test_batch_with_the_next_sequence_is_accepted() -> None:
    state = state_after(header(0, 3))
    state.check(header(3))
    assert state.find_duplicate(header(3)) is None


@pytest.mark.parametrize("sequence", [0, 2, 4, 100])
def test_gap_and_overlap_are_refused_with_both_numbers(sequence: int) -> None:
    state = state_after(header(0, 3))
    with pytest.raises(
        OutOfOrderSequenceError, match=f"producer 7 sent sequence {sequence} where 3 was expected"
    ) as caught:
        state.check(header(sequence))
    assert caught.value.code == 45


def test_unknown_producer_may_start_with_any_sequence() -> None:
    ProducerState().check(header(12345))
    state_after(header(0)).check(header(12345, producer=8))


def test_last_five_batches_are_recognised_and_a_sixth_is_not() -> None:
    headers = [header(number * 2, 2, offset=number * 2) for number in range(6)]
    state = state_after(*headers)
    assert state.find_duplicate(headers[0]) is None
    for number in range(1, 6):
        duplicate = state.find_duplicate(headers[number])
        assert duplicate is not None
        assert (duplicate.base_offset, duplicate.last_offset) == (number * 2, number * 2 + 1)


def test_batch_of_another_length_is_not_a_duplicate() -> None:
    state = state_after(header(0, 3))
    assert state.find_duplicate(header(0, 2)) is None
    assert state.find_duplicate(header(1, 2)) is None
    assert state.find_duplicate(header(0, 3, epoch=1)) is None
    assert state.find_duplicate(header(0, 3, producer=8)) is None


@pytest.mark.parametrize(("last", "first"), [(SEQUENCE_MAX, 0), (SEQUENCE_MAX - 1, SEQUENCE_MAX)])
def test_sequence_wraps_around(last: int, first: int) -> None:
    state = state_after(header(last))
    state.check(header(first))
    with pytest.raises(OutOfOrderSequenceError):
        state.check(header((first + 1) % (SEQUENCE_MAX + 1)))


def test_batch_whose_sequence_wraps_is_recognised() -> None:
    wrapping = header(SEQUENCE_MAX - 1, 4, offset=10)
    assert wrapping.last_sequence == 1
    state = state_after(wrapping)
    state.check(header(2))
    assert state.find_duplicate(wrapping) == ProducerBatch(1, 13, 3, 1000)
    with pytest.raises(OutOfOrderSequenceError, match="where 2 was expected"):
        state.check(header(1))


def test_new_epoch_starts_at_zero_and_forgets_the_old_batches() -> None:
    state = state_after(header(0, 3))
    with pytest.raises(OutOfOrderSequenceError, match="starts producer epoch 1 with sequence 3 instead of 0"):
        state.check(header(3, epoch=1))
    state.check(header(0, epoch=1))
    state.update(header(0, 5, epoch=1, offset=3))
    assert state.find_duplicate(header(0, 3)) is None
    producer = state.get(7)
    assert producer is not None
    assert (producer.epoch, len(producer.batches)) == (1, 1)


def test_old_epoch_is_fenced() -> None:
    state = state_after(header(0, epoch=4))
    with pytest.raises(
        InvalidProducerEpochError, match="producer 7 has producer epoch 4 in this log; a batch with producer epoch 3"
    ) as caught:
        state.check(header(1, epoch=3))
    assert caught.value.code == 47


def test_marker_of_the_next_epoch_makes_the_next_batch_start_at_zero() -> None:
    state = state_after(header(0, 3, is_transactional=True))
    state.complete(marker(3, epoch=1), aborted=False, coordinator_epoch=0)
    with pytest.raises(OutOfOrderSequenceError, match="sequence 3 where 0 was expected"):
        state.check(header(3, epoch=1))
    state.check(header(0, epoch=1))


def test_oldest_open_transaction_limits_the_last_stable_offset() -> None:
    state = ProducerState()
    opened = [state.first_open_transaction]
    for each in (
        header(0, 2, offset=0, producer=1, is_transactional=True),
        header(0, 2, offset=2, producer=2, is_transactional=True),
        header(2, 1, offset=4, producer=1, is_transactional=True),
    ):
        state.update(each)
        opened.append(state.first_open_transaction)
    assert opened == [None, 0, 0, 0]
    first = state.complete(marker(5, producer=1), aborted=True, coordinator_epoch=9)
    assert first == CompletedTransaction(1, 0, 5, True)
    assert state.first_open_transaction == state.last_stable_offset_after(first) == 2
    second = state.complete(marker(6, producer=2), aborted=False, coordinator_epoch=9)
    assert second == CompletedTransaction(2, 2, 6, False)
    assert state.last_stable_offset_after(second) == 7


def test_batch_outside_the_open_transaction_of_its_producer_is_refused() -> None:
    state = state_after(header(0, is_transactional=True))
    with pytest.raises(InvalidTransactionStateError, match="open in this log since offset 0"):
        state.check(header(1, offset=1))
    state.check(header(1, offset=1, is_transactional=True))


def test_marker_without_a_transaction_completes_nothing() -> None:
    state = state_after(header(0))
    assert state.complete(marker(1), aborted=True, coordinator_epoch=0) is None


def test_idle_producers_are_forgotten_but_not_in_a_transaction() -> None:
    state = state_after(
        header(0, producer=1, timestamp=1000),
        header(0, producer=2, timestamp=3000),
        header(0, producer=3, timestamp=1000, is_transactional=True),
    )
    state.forget_before(2000)
    assert sorted(producer.producer_id for producer in state) == [2, 3]


@pytest.mark.parametrize("path", SNAPSHOTS, ids=lambda path: f"{path.parent.name}-{path.stem.lstrip('0')}")
def test_kafkas_snapshot_is_read_and_written_again(path: Path) -> None:
    state = ProducerState.from_snapshot(path.read_bytes(), str(path))
    seen = json.loads((path.parent / "expected.json").read_text())["snapshots"].get(path.name)
    assert seen is None or sorted(p["producer_id"] for p in seen) == sorted(p.producer_id for p in state)
    assert state.to_snapshot() == path.read_bytes()


producers = st.lists(
    st.tuples(
        st.integers(0, 2**40), st.integers(0, 100), st.integers(0, SEQUENCE_MAX), st.integers(1, 3), st.booleans()
    ),
    unique_by=lambda fields: fields[0],
    max_size=5,
)


@given(producers=producers)
def test_snapshot_restores_the_last_batch_of_each_producer(producers: list[tuple[int, int, int, int, bool]]) -> None:
    state = ProducerState()
    for offset, (producer, epoch, sequence, count, transactional) in enumerate(producers):
        state.update(
            header(sequence, count, offset=offset * 5, producer=producer, epoch=epoch, is_transactional=transactional)
        )
    again = ProducerState.from_snapshot(state.to_snapshot(), "snapshot")
    assert list(again) == list(state)
    assert again.first_open_transaction == state.first_open_transaction


@given(position=st.integers(0, 10 + 46 - 1), bit=st.integers(0, 7))
def test_snapshot_with_a_flipped_bit_is_refused(position: int, bit: int) -> None:
    content = bytearray(state_after(header(0, 3)).to_snapshot())
    content[position] ^= 1 << bit
    with pytest.raises(CorruptCheckpointError, match="some-file"):
        ProducerState.from_snapshot(bytes(content), "some-file")


@pytest.mark.parametrize("length", [0, 1, 9, 10, 55])
def test_truncated_snapshot_is_refused(length: int) -> None:
    content = state_after(header(0, 3)).to_snapshot()
    with pytest.raises(CorruptCheckpointError):
        ProducerState.from_snapshot(content[:length], "snapshot")


def test_snapshot_of_an_unknown_version_is_refused() -> None:
    content = struct.pack(">h", 2) + ProducerState().to_snapshot()[2:]
    with pytest.raises(CorruptCheckpointError, match="version is 2; only version 1 is supported"):
        ProducerState.from_snapshot(content, "snapshot")
