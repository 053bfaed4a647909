"""The parts of a simulated cluster: brokers with logs and disks, ZooKeeper with sessions, messages on their way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from stratalog.broker.metadata.partition_state import PartitionState
from stratalog.broker.replication.rules import Leadership
from stratalog.storage.leader_epochs import LeaderEpochs

Entry = tuple[int, str]  # leader epoch and value


class ViolationError(AssertionError):
    """A rule does not hold."""


@dataclass
class Message:
    """Something on its way: `arrive` runs when it is delivered, unless the link is cut then. Messages of one connection
    arrive in order."""

    connection: tuple[str, str, int]  # sender, receiver, and what tells connections between the two apart
    arrive: Callable[[], None]

    @property
    def link(self) -> frozenset[str]:
        return frozenset(self.connection[:2])


@dataclass
class Session:
    number: int
    heard_ms: int
    is_alive: bool = True


@dataclass
class Registration:
    session: Session
    broker_epoch: int
    lost_tail: bool  # until the controller has taken the broker out of the ISR


@dataclass
class ZooKeeper:
    history: list[PartitionState]
    registered: dict[int, Registration] = field(default_factory=dict)
    counter: int = 0

    @property
    def state(self) -> PartitionState:
        return self.history[-1]

    def write(self, state: PartitionState) -> None:
        self.history.append(replace(state, partition_epoch=self.state.partition_epoch + 1))

    def next_number(self) -> int:
        self.counter += 1
        return self.counter


@dataclass
class SimulatedBroker:
    node_id: int
    is_up: bool = True
    is_paused: bool = False
    log: list[Entry] = field(default_factory=list)
    synced: int = 0
    lost_tail: bool = False  # since its last registration
    lacks_tail: bool = False  # since it was last in the ISR
    high_watermark: int = 0
    session: Session | None = None
    broker_epoch: int = -1
    lease_ends_ms: int = -1
    seen: int = -1  # states of ZooKeeper's history that it has read
    leadership: Leadership | None = None
    leader: int = -1
    leader_epoch: int = -1
    unacknowledged: list[tuple[int, str]] = field(default_factory=list)  # offset after the record, and its value

    @property
    def name(self) -> str:
        return f"broker {self.node_id}"

    @property
    def epochs(self) -> LeaderEpochs:
        epochs = LeaderEpochs()
        for offset, (epoch, _) in enumerate(self.log):
            epochs.learn(epoch, offset)
        return epochs

    def forget_memory(self) -> None:
        self.session, self.leadership = None, None
        self.broker_epoch = self.leader = self.leader_epoch = self.seen = -1
        self.lease_ends_ms = -1
        self.unacknowledged = []
        self.is_paused = False
