"""Random steps on a log and on its model, with the states that a power cut may leave.

Segments and indexes are tiny, so that a few hundred steps roll, fill indexes, truncate and delete often. `allowed` is
right at every moment, also in the middle of a step, because a fault may occur in any call.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stratalog.clock import ManualClock
from stratalog.records._records import Record
from stratalog.records.builder import build_batch, build_control_batch
from stratalog.records.format import Codec, ControlType
from stratalog.records.reader import read_records
from stratalog.storage import Log, LogConfig, LogDirectory, Origin
from stratalog.storage.disk import Disk
from tests.storage.faults.checks import check_read, check_times
from tests.storage.faults.model import AppendedBatch, Model
from tests.storage.log_builder import PARTITION, START_MS, STEP_MS, record_at

SETTINGS: dict[str, Any] = {
    "segment_bytes": 2048,
    "segment_index_bytes": 256,
    "index_interval_bytes": 200,
    "retention_ms": -1,
    "retention_bytes": 12_000,
    "file_delete_delay_ms": 1000,
    "producer_id_expiration_ms": 2**62,
}
_IDEMPOTENT = 1000
_TRANSACTIONAL = 1001


@dataclass(frozen=True)
class Allowed:
    """The states that a power cut may leave: the batches of `model` from a start between the two limits to an end at or
    after `promised`."""

    model: Model
    promised: int
    lowest_start: int
    highest_start: int


class Workload:
    def __init__(self, path: Path, seed: int, disk: Disk, **settings: Any) -> None:
        self.path = path
        self.disk = disk
        self.rng = random.Random(seed)
        self.seed = seed
        self.clock = ManualClock(START_MS)
        self.config = LogConfig(**{**SETTINGS, **settings})
        self.model = Model()
        self.generation = 0
        self.leader_epoch = 0
        self.allowed = Allowed(self.model, 0, 0, 0)
        self.doing = "open"
        self.directory: LogDirectory
        self.log: Log
        self.open()

    def open(self) -> None:
        self.directory = LogDirectory.open(self.path, self.config, disk=self.disk, clock=self.clock, background=False)
        self.log = self.directory.log(*PARTITION)

    def step(self) -> None:
        """Make one random call on the log, and update the model."""
        steps = self.steps()
        chosen = self.rng.choices(list(steps), list(steps.values()))[0]
        self.doing = chosen.__name__
        chosen()
        self.doing += ", done"

    def steps(self) -> dict[Callable[[], None], int]:
        """Return the steps and how often they are chosen."""
        return {
            self.append: 50,
            self.look: 5,
            self.end_transaction: 5,
            self.roll: 3,
            self.flush: 4,
            self.truncate: 4,
            self.advance_start: 3,
            self.apply_retention: 4,
            self.save_recovery_point: 5,
            self.turn: 5,
            self.reopen: 2,
        }

    def append(self) -> None:
        self.append_batches(self._random_batches())

    def end_transaction(self) -> None:
        facts = self.model.producers()[0].get(_TRANSACTIONAL)
        if facts is None or facts.transaction_first_offset is None:
            return
        marker = self.rng.choice(["commit", "abort"])
        kind = ControlType.COMMIT if marker == "commit" else ControlType.ABORT
        end = self.model.end
        data = build_control_batch(kind, _TRANSACTIONAL, 0, 1, START_MS + end * STEP_MS, base_offset=end)
        records = read_records(data, include_control=True)
        self.append_batches([AppendedBatch(records, self.leader_epoch, _TRANSACTIONAL, 0, -1, True, marker)], data)

    def append_batches(self, batches: list[AppendedBatch], control: bytearray | None = None) -> None:
        data = self._encode(batches) if control is None else control
        grown = Model([*self.model.batches, *batches])
        self._expect(grown)
        origin = Origin.CLIENT if control is None else Origin.COORDINATOR
        appended = self.log.append(data, leader_epoch=batches[0].leader_epoch, origin=origin)
        assert (appended.base_offset, appended.last_offset) == (self.model.end, grown.end - 1)
        self.settle(grown)

    def look(self) -> None:
        """Read at a random offset: its segment may not be open yet, or its index may have to be rebuilt."""
        start, end = self.log.log_start_offset, self.model.end
        if start < end:
            check_read(self.log, self.model, self.rng.randrange(start, end), self.rng.choice([0, 1000]))
            check_times(self.log, self.model, self.rng, 1)

    def roll(self) -> None:
        self.log.roll()
        self.settle(self.model, promised=self.model.end)

    def flush(self) -> None:
        self.log.flush()
        self.settle(self.model, promised=self.model.end)

    def truncate(self) -> None:
        start = self.log.log_start_offset
        if start >= self.model.end:
            return
        # Mostly near the end, because otherwise the log would always be short.
        offset = max(start, self.model.end - int(self.rng.expovariate(1 / 12)))
        base = self.model.batch_base(offset)
        promised = min(self.allowed.promised, base)
        self.allowed = Allowed(self.model, promised, min(start, base), start)
        assert self.log.truncate(offset) == base
        self.generation += 1
        self.settle(self.model.cut(base), promised=promised)

    def advance_start(self) -> None:
        start, end = self.log.log_start_offset, self.model.end
        offset = self.rng.randint(start, end) if self.rng.random() < 0.2 else min(end, start + self.rng.randint(0, 8))
        self._expect(self.model, highest_start=offset)
        self.log.advance_start(offset)
        self.settle(self.model)

    def apply_retention(self) -> None:
        self._expect(self.model, highest_start=self.model.end)
        self.log.apply_retention()
        self.settle(self.model)

    def save_recovery_point(self) -> None:
        self.log.save_recovery_point()

    def turn(self) -> None:
        """Run the housekeeper some minutes later."""
        self._expect(self.model, highest_start=self.model.end)
        self.clock.advance(self.rng.choice([1_000, 60_000, 400_000]))
        self.directory.turn()
        self.settle(self.model)

    def reopen(self) -> None:
        self.directory.close()
        self.open()
        self.settle(self.model, promised=self.model.end)

    def _expect(self, model: Model, *, highest_start: int | None = None) -> None:
        start = self.log.log_start_offset
        self.allowed = Allowed(model, self.allowed.promised, start, start if highest_start is None else highest_start)

    def settle(self, model: Model, *, promised: int | None = None) -> None:
        """Update `allowed` after a step: everything before the recovery point and the active segment is durable."""
        self.model = model
        promised = self.allowed.promised if promised is None else promised
        promised = max(promised, self.log.recovery_point, self.log.segments[-1].base_offset)
        start = self.log.log_start_offset
        self.allowed = Allowed(model, promised, start, start)

    def _random_batches(self) -> list[AppendedBatch]:
        rng, end = self.rng, self.model.end
        if rng.random() < 0.03:
            self.leader_epoch += 1
        producer_id = rng.choice([-1, -1, -1, _IDEMPOTENT, _TRANSACTIONAL])
        facts = self.model.producers()[0].get(producer_id)
        sequence = -1 if producer_id < 0 else 0 if facts is None else facts.last_sequence + 1
        batches = []
        for _ in range(rng.choice([1, 1, 1, 2, 3])):
            records = self._random_records(end)
            end += len(records)
            batches.append(
                AppendedBatch(
                    records,
                    self.leader_epoch,
                    producer_id,
                    -1 if producer_id < 0 else 0,
                    sequence,
                    producer_id == _TRANSACTIONAL,
                )
            )
            sequence += len(records) if producer_id >= 0 else 0
        return batches

    def _random_records(self, offset: int) -> list[Record]:
        rng = self.rng
        count, value_size = rng.choice([(1, None), (1, 0), (3, None), (6, 20), (2, 250)])
        late = rng.choice([0, 0, 0, 300, -200])  # timestamps don't always rise with the offsets
        has_time = rng.random() > 0.05
        return [
            record_at(
                at,
                seed=self.seed,
                generation=self.generation,
                value_size=value_size,
                timestamp=START_MS + at * STEP_MS + late if has_time else -1,
            )
            for at in range(offset, offset + count)
        ]

    def _encode(self, batches: list[AppendedBatch]) -> bytearray:
        data = bytearray()
        for batch in batches:
            data += build_batch(
                batch.records,
                codec=self.rng.choice(list(Codec)),
                producer_id=batch.producer_id,
                producer_epoch=batch.producer_epoch,
                base_sequence=batch.base_sequence,
                is_transactional=batch.is_transactional,
            )
        return data
