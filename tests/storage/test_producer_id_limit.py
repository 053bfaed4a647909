"""A client that writes with ever new producer ids must not make a log remember all of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from stratalog.clock import ManualClock
from stratalog.errors import OutOfOrderSequenceError, TooManyProducersError
from stratalog.records.builder import build_control_batch
from stratalog.records.format import ControlType
from stratalog.storage import Log, LogDirectory, Origin
from stratalog.storage.config import DirectoryConfig
from stratalog.storage.producers import IDLE_MS
from tests.storage.hand_made import START_MS, batch_of, left_by_kill

LIMIT = 4


class Lab:
    def __init__(self, data: Path) -> None:
        self.clock = ManualClock(START_MS)
        self.directory = self.open(data)

    def open(self, data: Path) -> LogDirectory:
        return LogDirectory.open(
            data,
            {"segment.index.bytes": 1024},
            directory_config=DirectoryConfig(stratalog_max_producer_ids_per_partition=LIMIT),
            clock=self.clock,
            background=False,
        )

    @property
    def log(self) -> Log:
        return self.directory.log("orders", 0)

    def produce(self, producer: int, sequence: int = 0, *, is_transactional: bool = False) -> None:
        batch = batch_of(
            self.clock.now_ms(),
            producer_id=producer,
            producer_epoch=0,
            base_sequence=sequence,
            is_transactional=is_transactional,
        )
        self.log.append(batch)

    def remembered(self) -> list[int]:
        return [producer.producer_id for producer in self.log.producers]


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    lab = Lab(tmp_path / "data")
    yield lab
    lab.directory.close()


def test_new_producers_replace_those_that_are_idle_for_longest(lab: Lab) -> None:
    for producer in range(LIMIT):
        lab.produce(producer)
    lab.clock.advance(IDLE_MS)
    lab.produce(0, 1)
    lab.clock.advance(1)
    for producer in (10, 11):
        lab.produce(producer)
    assert lab.remembered() == [3, 0, 10, 11]
    lab.produce(0, 2)
    lab.produce(1, 5)  # a producer that was forgotten goes on
    assert lab.remembered() == [10, 11, 0, 1]


def test_new_producer_is_refused_while_all_others_are_active(lab: Lab) -> None:
    for producer in range(LIMIT):
        lab.produce(producer)
    end = lab.log.log_end_offset
    with pytest.raises(
        TooManyProducersError, match=r"orders-0 has 4 producers .* id 10 is refused: stratalog\.max\.producer\.ids\.per"
    ):
        lab.produce(10)
    assert (lab.log.log_end_offset, lab.remembered()) == (end, list(range(LIMIT)))
    lab.produce(3, 1)  # the others go on, and their duplicates are still found
    lab.produce(3, 1)
    assert lab.log.log_end_offset == end + 1
    with pytest.raises(OutOfOrderSequenceError):
        lab.produce(3, 7)


def test_producer_with_an_open_transaction_is_not_forgotten(lab: Lab) -> None:
    for producer in range(LIMIT):
        lab.produce(producer, is_transactional=producer < 2)
    lab.clock.advance(2 * IDLE_MS)
    for producer in (10, 11):
        lab.produce(producer)
    assert set(lab.remembered()) == {0, 1, 10, 11}
    with pytest.raises(TooManyProducersError):
        lab.produce(12)
    marker = build_control_batch(ControlType.COMMIT, 0, 0, 3, START_MS)
    lab.log.append(marker, origin=Origin.COORDINATOR)
    lab.clock.advance(2 * IDLE_MS)
    for producer in (12, 13, 14):
        lab.produce(producer)
    assert set(lab.remembered()) == {1, 12, 13, 14}


def test_records_without_a_producer_id_are_never_refused(lab: Lab) -> None:
    for producer in range(LIMIT):
        lab.produce(producer)
    lab.log.append(batch_of(START_MS))


@pytest.mark.parametrize("is_killed", [False, True])
def test_restart_remembers_no_more_producers(lab: Lab, tmp_path: Path, is_killed: bool) -> None:
    for producer in range(3 * LIMIT):
        lab.produce(producer)
        lab.clock.advance(IDLE_MS)
    assert lab.remembered() == [8, 9, 10, 11]
    if is_killed:
        killed = left_by_kill(lab.directory.path, tmp_path / "killed")
        lab.directory.close()
        lab.directory = lab.open(killed)
    else:
        lab.directory.close()
        lab.directory = lab.open(lab.directory.path)
    assert lab.remembered() == [8, 9, 10, 11]
