"""Transactions that are prepared and ended together, with power cuts at random calls of the disk.

The coordinator, its logs and their partitions are real, over a disk that remembers what is durable. The next broker
opens a crash image and loads it. Then time passes, and the test checks what readers of committed records see.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from stratalog.broker.partition import Partition
from stratalog.broker.transactions.admission import TransactionOperation
from stratalog.broker.transactions.state import ProducerIdAndEpoch
from stratalog.broker.transactions.two_phase import PreparedProducer, TwoPhase
from stratalog.protocol.error_codes import ErrorCode
from stratalog.records._framing import BatchHeader
from stratalog.records.builder import build_batch
from stratalog.storage.disk import Disk
from stratalog.storage.log import Log
from tests.broker.apis.admin_lab import AdminLab
from tests.broker.transactions.transaction_lab import tasks_done
from tests.storage.faults.faulty_disk import FaultyDisk

T = TypeVar("T")

TOPIC, PARTITIONS = "orders", 3
IDS = [f"task-{number}" for number in range(4)]
TIMEOUT_MS, DECISION_MS = 60_000, 86_400_000
Row = tuple[int, bytes]  # the partition, and the value


@dataclass
class Group:
    """Transactions that end by one append. `state` is what a power cut may leave of them now."""

    rows: dict[str, list[Row]] = field(default_factory=dict)  # by transactional id
    state: str = "undecided"  # and then "deciding", "committed", "aborted"

    @property
    def all_rows(self) -> set[Row]:
        return {row for rows in self.rows.values() for row in rows}


class World(AdminLab):
    def __init__(self, data: Path, disk: Disk | None = None, *, flushes: bool = False) -> None:
        flushed = {"log_flush_interval_messages": 1} if flushes else {}
        super().__init__(data, disk, transaction_state_log_num_partitions=1, offsets_topic_num_partitions=1, **flushed)
        self.coordinator = self.transactions.coordinator
        self.two_phase = TwoPhase(self.coordinator, self.transactions.ids, self.clock)
        self._runner = asyncio.Runner()

    def __exit__(self, *error: object) -> None:
        self._runner.close()
        super().__exit__(*error)

    def respond(self, reply: Awaitable[T]) -> T:
        """Run a request's handler on the event loop, and return when a broker would send its response."""

        async def run() -> T:
            result = await reply
            pending = self.transactions.flushes.pending()
            assert pending is None or await pending is None
            return result

        return self._runner.run(run())

    def respond_at_once(self, call: Callable[[], T]) -> T:
        async def reply() -> T:
            return call()

        return self.respond(reply())

    def orders(self) -> list[Partition]:
        return list(self.topics.partitions(TOPIC))

    def begin(self, transactional_id: str) -> PreparedProducer:
        for _ in range(3):  # an open transaction is aborted first
            error, producer = self.respond(self.coordinator.initialize(transactional_id, TIMEOUT_MS, None))
            if error is ErrorCode.none:
                return PreparedProducer(transactional_id, producer)
        raise AssertionError(error)

    def write(self, member: PreparedProducer, rows: list[Row]) -> None:
        """Write two batches to each partition, so that a power cut can come between them."""
        sequences: dict[int, int] = {}
        for index, value in rows:
            partition = self.orders()[index]
            admit = partial(
                self.transactions.admission.admit,
                member.transactional_id,
                partition,
                member.producer,
                TransactionOperation.ADD,
            )
            error = self.respond_at_once(admit)
            assert error is ErrorCode.none, error
            sequence = sequences.get(index, 0)
            sequences[index] = sequence + 1
            partition.log.append(batch_of(value, sequence, member.producer), leader_epoch=partition.leader_epoch)

    def prepare(self, member: PreparedProducer, decision_ms: int) -> None:
        assert self.respond_at_once(lambda: self.two_phase.prepare(member, decision_ms)) is None

    def finish(self, members: list[PreparedProducer], *, commit: bool) -> None:
        producers = self.respond(self.two_phase.finish(members, commit=commit))
        assert isinstance(producers, list), producers

    def let_time_pass(self) -> None:
        """Let all timeouts and time limits pass, and wait for the aborts."""

        async def later() -> None:
            self.clock.advance(DECISION_MS * 1000 + 1)
            self.coordinator.abort_timed_out()
            await tasks_done(self.coordinator)

        self._runner.run(later())

    def visible(self) -> list[Row]:
        """Return the rows that readers of committed records see."""
        found = []
        for partition in self.orders():
            log, stable = partition.log, partition.last_stable_offset
            aborted = log.aborted_transactions(0, stable)
            for header in headers_of(log, stable):
                if header.is_control or any(
                    one.producer_id == header.producer_id and one.first_offset <= header.base_offset <= one.last_offset
                    for one in aborted
                ):
                    continue
                records = log.records(header.base_offset, header.next_offset)
                found += [(partition.index, bytes(record.value or b"")) for record in records]
        return found


def headers_of(log: Log, end: int) -> Iterator[BatchHeader]:
    offset = 0
    while offset < end:
        for batch in log.read(offset, 2**20, max_offset=end).batches():  # of one segment at a time
            yield batch.header
            offset = batch.header.next_offset


def batch_of(value: bytes, sequence: int, who: ProducerIdAndEpoch) -> bytearray:
    return build_batch(
        [(b"k", value)],
        base_sequence=sequence,
        producer_id=who.producer_id,
        producer_epoch=who.epoch,
        is_transactional=True,
    )


Check = Callable[[World, list[Group]], None]


class PowerCutsOfTransactions:
    """A workload during which `images` crash images are taken."""

    def __init__(self, where: Path, seed: int, images: int, *, flushes: bool) -> None:
        self.where = where
        self.seed = seed
        self._groups: list[Group] = []
        self._taken: list[tuple[Path, list[Group]]] = []
        self._most = images
        self._flushes = flushes
        self._rng = random.Random(f"transactions {seed}")
        self._until_next = 0
        self._disk = FaultyDisk(where / "live")
        self._number = 0

    def run(self, check: Check) -> None:
        """Run the workload, and call `check` for each image with its broker and the groups at the time of the image."""
        with World(self.where / "live", self._disk, flushes=self._flushes) as world:
            world.topics.create(TOPIC, PARTITIONS, {})
            world.begin("first")  # creates __transaction_state
            self._disk.on_call = self._before_call
            while len(self._taken) < self._most:
                self._step(world)
                if self._rng.random() < 0.3:  # most calls of the disk are flushes; between steps more is unflushed
                    self._cut_power()
            self._disk.on_call = None
        self._disk.forget()
        for number, (image, groups) in enumerate(self._taken):
            try:
                with World(image) as world:
                    check(world, groups)
            except Exception as error:
                raise AssertionError(f"seed {self.seed}, image {number}: {error!r}") from error

    def _before_call(self) -> None:
        self._until_next -= 1
        if self._until_next < 0:
            self._until_next = self._rng.randint(0, 40)
            self._cut_power()

    def _cut_power(self) -> None:
        if len(self._taken) < self._most:
            number = len(self._taken)
            image = self.where / f"image-{number}"
            self._disk.crash_image(random.Random(f"{self.seed}/{number}"), image)
            self._taken.append((image, [replace(group, rows=dict(group.rows)) for group in self._groups]))

    def _step(self, world: World) -> None:
        rng = self._rng
        group = Group()
        self._groups.append(group)
        members = []
        for transactional_id in rng.sample(IDS, rng.randint(1, 3)):
            member = world.begin(transactional_id)
            rows = [(partition, self._value()) for partition in rng.sample(range(PARTITIONS), 2) for _ in range(2)]
            group.rows[transactional_id] = rows
            world.write(member, rows)
            world.prepare(member, DECISION_MS)
            members.append(member)
        chance = rng.random()
        if chance < 0.6:
            group.state = "deciding"
            world.finish(members, commit=True)
            group.state = "committed"
        elif chance < 0.8:
            group.state = "aborted"
            world.finish(members, commit=False)
        if rng.random() < 0.3:
            rng.choice([one.log for one in world.topics.all_partitions()]).flush()

    def _value(self) -> bytes:
        self._number += 1
        return b"%d" % self._number
