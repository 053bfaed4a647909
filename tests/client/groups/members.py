"""Group members as in a program: each polls in a thread of its own, and records what it gets."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from stratalog.client.consumer import Consumer, RebalanceListener, TopicPartition

PATIENCE_SECONDS = 60.0
QUICK: dict[str, Any] = {
    "auto_offset_reset": "earliest",
    "session_timeout_ms": 10_000,
    "heartbeat_interval_ms": 100,
    "auto_commit_interval_ms": 3_600_000,  # on revoke and close only
    "fetch_max_wait_ms": 50,
}
Got = tuple[int, int]  # partition and offset


class Notes(RebalanceListener):
    def __init__(self) -> None:
        self.events: list[tuple[str, tuple[TopicPartition, ...]]] = []

    def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
        self.events.append(("assigned", tuple(partitions)))

    def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
        self.events.append(("revoked", tuple(partitions)))

    def on_partitions_lost(self, partitions: list[TopicPartition]) -> None:
        self.events.append(("lost", tuple(partitions)))

    def kinds(self) -> list[str]:
        return [kind for kind, _ in self.events]


class MemberThread:
    def __init__(self, bootstrap: str, group: str, topics: Iterable[str], **settings: Any) -> None:
        self.got: list[Got] = []
        self.notes = Notes()
        self.failure: BaseException | None = None
        self._stopping = threading.Event()
        self.consumer = Consumer(bootstrap, group_id=group, **(QUICK | settings))
        self.consumer.subscribe(topics, self.notes)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                for records in self.consumer.poll(0.05).values():
                    self.got += [(record.partition, record.offset) for record in records]
            self.consumer.close()
        except BaseException as error:
            self.failure = error

    @property
    def owned(self) -> set[TopicPartition]:
        return self.consumer.assignment()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(PATIENCE_SECONDS)
        if self.failure is not None:
            raise self.failure


def wait_until(done: Callable[[], bool], what: Callable[[], str]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not done():
        if time.monotonic() > deadline:
            raise AssertionError(f"{PATIENCE_SECONDS} s have passed, and {what()}")
        time.sleep(0.02)


def wait_until_shared(members: list[MemberThread], partitions: int) -> None:
    """Wait until each partition is assigned to exactly one member, and no member is without partitions."""

    def is_shared() -> bool:
        for member in members:
            if member.failure is not None:
                raise member.failure
        owned = [member.owned for member in members]
        return sum(map(len, owned)) == partitions == len(set().union(*owned)) and all(owned)

    wait_until(is_shared, lambda: f"the partitions are shared as {[sorted(member.owned) for member in members]}")
