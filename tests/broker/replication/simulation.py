"""A cluster in one thread: the real rules of replication, with a simulated network, clock, ZooKeeper and disks.

One seed is one run. `python -m tests.broker.replication.simulation SEED` replays it and prints its steps. At each step
the run picks one thing that may happen now: a message arrives or is lost, a broker is killed, paused, cut off, or loses
what it has not synced, a session expires, a client produces or reads. In the end everything is healed, and the run
checks what must hold:

- a record that was acknowledged with acks=all is in the log of every later leader;
- logs agree up to the high watermark, and an epoch has one writer;
- every member of the ISR has every acknowledged record;
- a record that a consumer saw stays at its offset;
- a broker acknowledges nothing after its session has ended.

At most one broker at a time may lack the tail that a power cut took: that is what min.insync.replicas=2 is for.

`faults` breaks one rule on purpose. tests/broker/replication/test_simulation.py shows that each is noticed.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterable

from stratalog.broker.controller.decisions import create, elect, prefer, without_brokers, without_tail
from stratalog.broker.metadata.partition_state import PartitionState
from stratalog.broker.replication.rules import Leadership
from stratalog.broker.replication.truncation import EpochEnd, diverging_epoch, truncation_offset
from tests.broker.replication.simulated_cluster import (
    Entry,
    Message,
    Registration,
    Session,
    SimulatedBroker,
    ViolationError,
    ZooKeeper,
)

BROKERS = (0, 1, 2)
MIN_INSYNC = 2
SESSION_MS = 60
LEASE_MS = SESSION_MS * 2 // 3
LAG_MS = 50
FAULTS = ("shrinks at once", "truncates to the high watermark", "has no lease", "ignores broker epochs")


class Simulation:
    def __init__(self, seed: int, *, faults: tuple[str, ...] = (), log: Callable[[str], None] | None = None) -> None:
        self.rng = random.Random(f"replication {seed}")
        self.faults = faults
        # Each run has its own mix of failures: rare combinations need many of one kind.
        self.fail_chance = self.rng.choice((0.003, 0.008, 0.02))
        self.mend_chance = self.rng.choice((0.02, 0.05, 0.1))
        self.failures = [self.rng.choice((0, 1, 1, 4)) for _ in range(4)]
        self.reordering = self.rng.choice((1, 6, 50))  # messages that may overtake each other
        self.longest_tick_ms = self.rng.choice((2, 4, 8))
        self.now_ms = 0
        self.brokers = [SimulatedBroker(node_id) for node_id in BROKERS]
        self.messages: list[Message] = []
        self.cut: set[frozenset[str]] = set()
        self.acknowledged: dict[str, int] = {}  # value to the offset after it
        self.consumed: dict[int, Entry] = {}
        self.writers: dict[int, int] = {}  # leader epoch to broker
        self.produced = 0
        self._log = log
        self.zookeeper = ZooKeeper([])
        for broker in self.brokers:
            self.register(broker)
        alive = {broker.node_id: broker.broker_epoch for broker in self.brokers}
        self.zookeeper.history.append(create(BROKERS, alive, MIN_INSYNC))

    def run(self, steps: int = 1500) -> None:
        for _ in range(steps):
            self.step()
        self.heal()
        self.check_end()

    def note(self, text: str) -> None:
        if self._log is not None:
            self._log(f"{self.now_ms:6} {text}")

    # What may happen

    def step(self) -> None:
        chance = self.rng.random()
        broker = self.rng.choice(self.brokers)
        if chance < 0.35 and self.messages:
            self.deliver(self.take(self.messages[self.rng.randrange(min(len(self.messages), self.reordering))]))
        elif chance < 0.36 and self.messages:
            self.messages.pop(self.rng.randrange(len(self.messages)))  # lost
        elif chance < 0.42:
            self.now_ms += self.rng.randint(1, self.longest_tick_ms)
            self.expire_sessions()
        elif chance < 0.45:
            self.control()
        elif chance < 0.452:
            self.elect_preferred()
        elif chance < 0.452 + self.fail_chance:
            self.fail(broker)
        elif chance < 0.452 + self.fail_chance + self.mend_chance:
            self.mend(broker)
        elif broker.is_up and not broker.is_paused:
            self.act(broker)

    def act(self, broker: SimulatedBroker) -> None:
        chance = self.rng.random()
        if chance < 0.15:
            self.ping(broker)
        elif chance < 0.30:
            self.read_metadata(broker)
        elif chance < 0.65:
            self.fetch(broker)
        elif chance < 0.80:
            self.produce(broker)
        elif chance < 0.90:
            self.change_isr(broker)
        elif chance < 0.97:
            self.consume(broker)
        else:
            broker.synced = len(broker.log)

    def fail(self, broker: SimulatedBroker) -> None:
        if not any(self.failures):
            return
        fail = self.rng.choices((self.kill, self.cut_power, self.pause, self.cut_link), self.failures)[0]
        fail(broker)

    def kill(self, broker: SimulatedBroker) -> None:
        if broker.is_up:
            self.note(f"{broker.name} is killed")
            broker.is_up = False
            broker.forget_memory()

    def cut_power(self, broker: SimulatedBroker) -> None:
        joining = self.about_to_join()
        if joining and self.rng.random() < 0.5:
            broker = self.brokers[self.rng.choice(joining)]  # the worst moment
        if broker.is_up and not any(other.lacks_tail for other in self.brokers):
            kept = self.rng.randint(broker.synced, len(broker.log))
            self.note(f"{broker.name} loses power, and {len(broker.log) - kept} records")
            del broker.log[kept:]
            broker.is_up = False
            broker.lost_tail = broker.lacks_tail = True
            broker.forget_memory()

    def about_to_join(self) -> list[int]:
        leaderships = [broker.leadership for broker in self.brokers if broker.leadership is not None]
        return [
            node_id
            for leadership in leaderships
            for node_id in leadership.proposed_isr or ()
            if node_id not in leadership.state.isr
        ]

    def pause(self, broker: SimulatedBroker) -> None:
        if broker.is_up:
            self.note(f"{broker.name} is paused")
            broker.is_paused = True

    def cut_link(self, _: SimulatedBroker) -> None:
        names = [each.name for each in self.brokers] + ["zookeeper"]
        link = frozenset(self.rng.sample(names, 2))
        self.note(f"cut between {' and '.join(sorted(link))}")
        self.cut.add(link)

    def mend(self, broker: SimulatedBroker) -> None:
        if not broker.is_up:
            self.note(f"{broker.name} starts")
            broker.is_up = True
            broker.high_watermark = self.rng.randint(0, min(broker.high_watermark, len(broker.log)))  # its checkpoint
        elif broker.is_paused:
            self.note(f"{broker.name} continues")
            broker.is_paused = False
        elif self.cut:
            self.cut.remove(self.rng.choice(sorted(self.cut, key=sorted)))

    def send(self, sender: str, receiver: str, arrive: Callable[[], None]) -> None:
        connection = next((broker.broker_epoch for broker in self.brokers if broker.name == sender), 0)
        self.messages.append(Message((sender, receiver, connection), arrive))

    def take(self, message: Message) -> Message:
        """Return the first message of the connection that this one is on."""
        first = next(each for each in self.messages if each.connection == message.connection)
        self.messages.remove(first)
        return first

    def deliver(self, message: Message) -> None:
        if message.link not in self.cut:
            message.arrive()

    # ZooKeeper

    def register(self, broker: SimulatedBroker) -> None:
        """As a reconnect does: a new session and a new broker epoch. What the broker knew counts no more."""
        zookeeper = self.zookeeper
        lost_tail, log, high_watermark = broker.lost_tail, broker.log, broker.high_watermark
        broker.forget_memory()
        broker.log, broker.high_watermark = log, min(high_watermark, len(log))
        previous = zookeeper.registered.get(broker.node_id)
        if previous is not None:
            previous.session.is_alive = False
        broker.session = Session(zookeeper.next_number(), self.now_ms)
        broker.broker_epoch = zookeeper.next_number()
        zookeeper.registered[broker.node_id] = Registration(
            broker.session, broker.broker_epoch, lost_tail or (previous is not None and previous.lost_tail)
        )
        broker.lost_tail = False
        broker.lease_ends_ms = self.now_ms + LEASE_MS
        self.note(f"{broker.name} registers with broker epoch {broker.broker_epoch}")

    def ping(self, broker: SimulatedBroker) -> None:
        sent_ms, session = self.now_ms, broker.session

        def at_zookeeper() -> None:
            if session is not None and session.is_alive:
                session.heard_ms = self.now_ms
                self.send("zookeeper", broker.name, at_broker)
            elif session is broker.session:
                self.send("zookeeper", broker.name, ended)

        def at_broker() -> None:
            if broker.session is session and not broker.is_paused:
                broker.lease_ends_ms = max(broker.lease_ends_ms, sent_ms + LEASE_MS)

        def ended() -> None:
            if broker.is_up and not broker.is_paused and broker.session is session:
                self.register(broker)

        self.send(broker.name, "zookeeper", at_zookeeper)

    def expire_sessions(self) -> None:
        for node_id, registration in list(self.zookeeper.registered.items()):
            session = registration.session
            if session.is_alive and self.now_ms - session.heard_ms > SESSION_MS:
                self.note(f"the session of broker {node_id} expires")
                session.is_alive = False

    def control(self) -> None:
        """The controller's turn. Its writes are fenced, so it is as if it always saw the newest state."""
        zookeeper = self.zookeeper
        state = zookeeper.state
        for node_id, registration in zookeeper.registered.items():
            if registration.lost_tail:
                state = without_tail(state, node_id)
                registration.lost_tail = False
        dead = {node_id for node_id in BROKERS if not self.is_registered(node_id)}
        for node_id in dead:
            registration_of_dead = zookeeper.registered.pop(node_id, None)
            if registration_of_dead is not None and registration_of_dead.lost_tail:
                self.brokers[node_id].lost_tail = True
        state = without_brokers(state, dead)
        alive = {node_id: each.broker_epoch for node_id, each in zookeeper.registered.items()}
        self.write_if_changed(elect(state, alive), "controller")

    def elect_preferred(self) -> None:
        alive = {node_id: each.broker_epoch for node_id, each in self.zookeeper.registered.items()}
        self.write_if_changed(prefer(self.zookeeper.state, alive), "preferred leader")

    def is_registered(self, node_id: int) -> bool:
        registration = self.zookeeper.registered.get(node_id)
        return registration is not None and registration.session.is_alive

    def write_if_changed(self, state: PartitionState, why: str) -> None:
        if state is not self.zookeeper.state and state != self.zookeeper.state:
            self.zookeeper.write(state)
            self.note(f"{why}: {self.zookeeper.state}")

    def read_metadata(self, broker: SimulatedBroker) -> None:
        """Reads the next change, or several, if its session is alive."""
        session = broker.session
        if session is None or not session.is_alive or frozenset((broker.name, "zookeeper")) in self.cut:
            return
        newest = len(self.zookeeper.history) - 1
        if broker.seen == newest:
            return
        broker.seen = newest if broker.seen < 0 else self.rng.randint(broker.seen + 1, newest)
        self.apply(broker, self.zookeeper.history[broker.seen])

    def apply(self, broker: SimulatedBroker, state: PartitionState) -> None:
        leadership = broker.leadership
        if state.leader == broker.node_id and state.leader_broker_epoch == broker.broker_epoch:
            if leadership is not None and broker.leader_epoch == state.leader_epoch:
                leadership.learned(state)
                self.advance(broker)
            else:
                broker.leadership = self.lead(broker, state)
        else:
            broker.leadership = None
            broker.unacknowledged = []
            if "truncates to the high watermark" in self.faults and state.leader_epoch != broker.leader_epoch:
                del broker.log[broker.high_watermark :]
                broker.synced = min(broker.synced, len(broker.log))
        broker.leader, broker.leader_epoch = state.leader, state.leader_epoch

    def lead(self, broker: SimulatedBroker, state: PartitionState) -> Leadership:
        self.note(f"{broker.name} leads in epoch {state.leader_epoch} from {len(broker.log)}")
        kind = ShrinkingAtOnce if "shrinks at once" in self.faults else Leadership
        return kind(
            broker.node_id,
            state,
            epoch_start=len(broker.log),
            high_watermark=broker.high_watermark,
            now_ms=self.now_ms,
        )

    # Leaders and followers

    def may_serve(self, broker: SimulatedBroker) -> bool:
        return "has no lease" in self.faults or self.now_ms < broker.lease_ends_ms

    def fetch(self, broker: SimulatedBroker) -> None:
        if broker.leadership is not None or broker.leader < 0:
            return
        leader = self.brokers[broker.leader]
        offset = len(broker.log)
        last_epoch = broker.log[-1][0] if broker.log else -1
        asked_in, broker_epoch = broker.leader_epoch, broker.broker_epoch

        def at_leader() -> None:
            leadership = leader.leadership
            if not leader.is_up or leader.is_paused or leadership is None or not self.may_serve(leader):
                return
            if leader.leader_epoch != asked_in:
                return
            end = len(leader.log)
            if "truncates to the high watermark" not in self.faults:
                diverging = diverging_epoch(leader.epochs, end, last_epoch, offset) if last_epoch >= 0 else None
                if diverging is not None:
                    self.send(leader.name, broker.name, lambda: self.diverged(broker, asked_in, offset, diverging))
                    return
            if offset > end:
                return
            if not leadership.fetched(broker.node_id, offset, broker_epoch, end, self.now_ms):
                return
            self.advance(leader)
            entries, high_watermark = leader.log[offset : offset + 3], leader.high_watermark
            self.send(
                leader.name,
                broker.name,
                lambda: self.copied(broker, broker_epoch, asked_in, offset, entries, high_watermark),
            )

        self.send(broker.name, leader.name, at_leader)

    def diverged(self, broker: SimulatedBroker, asked_in: int, offset: int, diverging: EpochEnd) -> None:
        if not self.follows(broker, asked_in) or len(broker.log) != offset:
            return
        end = truncation_offset(broker.epochs, len(broker.log), diverging)
        self.note(f"{broker.name} truncates from {len(broker.log)} to {end}")
        del broker.log[end:]
        broker.synced = min(broker.synced, end)
        broker.high_watermark = min(broker.high_watermark, end)

    def copied(
        self,
        broker: SimulatedBroker,
        broker_epoch: int,
        asked_in: int,
        offset: int,
        entries: list[Entry],
        high_watermark: int,
    ) -> None:
        if not self.follows(broker, asked_in) or broker.broker_epoch != broker_epoch or len(broker.log) != offset:
            return
        broker.log.extend(entries)
        broker.high_watermark = max(broker.high_watermark, min(high_watermark, len(broker.log)))

    def follows(self, broker: SimulatedBroker, epoch: int) -> bool:
        return broker.is_up and not broker.is_paused and broker.leadership is None and broker.leader_epoch == epoch

    def change_isr(self, broker: SimulatedBroker) -> None:
        leadership, session = broker.leadership, broker.session
        if leadership is None or session is None or not self.may_serve(broker):
            return
        if leadership.proposed_isr is not None:
            self.ask_for_isr(broker, leadership, session, leadership.proposed_isr)
            return
        checks_epochs = "ignores broker epochs" not in self.faults
        registered = {
            node_id: registration.broker_epoch
            for node_id, registration in self.zookeeper.registered.items()
            if registration.session.is_alive and not registration.lost_tail
        }
        joining = []
        for node_id in BROKERS:
            follower = leadership.follower(node_id)
            epoch = registered.get(node_id)
            if follower is not None and not checks_epochs:
                epoch = follower.broker_epoch
            if leadership.can_join(node_id, epoch):
                joining.append(node_id)
        leaving = leadership.lagging(len(broker.log), self.now_ms, LAG_MS)
        if not joining and not leaving:
            return
        isr = leadership.proposal(add=joining, remove=leaving)
        self.note(f"{broker.name} proposes the ISR {isr}")
        self.ask_for_isr(broker, leadership, session, isr)

    def ask_for_isr(
        self, broker: SimulatedBroker, leadership: Leadership, session: Session, isr: tuple[int, ...]
    ) -> None:
        base = leadership.state
        state = base.with_isr(isr)
        epochs = dict(leadership.joining)

        def at_zookeeper() -> None:
            if not session.is_alive:
                return
            zookeeper = self.zookeeper
            fits = zookeeper.state.partition_epoch == base.partition_epoch and (
                "ignores broker epochs" in self.faults
                or all(
                    self.is_registered(node_id)
                    and not zookeeper.registered[node_id].lost_tail
                    and zookeeper.registered[node_id].broker_epoch == epoch
                    for node_id, epoch in epochs.items()
                )
            )
            if fits:
                zookeeper.write(state)
                self.check_members(self.acknowledged)
                for joined in (self.brokers[node_id] for node_id in epochs):
                    if joined.broker_epoch == epochs[joined.node_id]:  # else it has lost its tail since
                        joined.lacks_tail = False
                self.note(f"the ISR is {state.isr}, eligible are {state.elr}")
            written = zookeeper.state
            self.send("zookeeper", broker.name, lambda: answered(fits, written))

        def answered(fits: bool, written: PartitionState) -> None:
            if not broker.is_up or broker.is_paused or broker.leadership is not leadership:
                return
            if written.leader_epoch != broker.leader_epoch:
                return  # it has another leader, as the next read of the metadata shows
            if fits:
                leadership.learned(written)
            else:
                leadership.refused(base.partition_epoch, written)
            self.advance(broker)

        self.send(broker.name, "zookeeper", at_zookeeper)

    def advance(self, broker: SimulatedBroker) -> None:
        leadership = broker.leadership
        assert leadership is not None
        before = leadership.high_watermark
        broker.high_watermark = leadership.advance(len(broker.log), self.now_ms, LAG_MS)
        if broker.high_watermark < before:
            raise ViolationError(f"the high watermark went back from {before} to {broker.high_watermark}")
        for end, value in [record for record in broker.unacknowledged if record[0] <= broker.high_watermark]:
            broker.unacknowledged.remove((end, value))
            if self.may_serve(broker):
                self.check_session(broker)
                if len(leadership.state.isr) >= MIN_INSYNC:
                    self.acknowledged[value] = end
                    self.check_members([value])

    def check_members(self, values: Iterable[str]) -> None:
        """Each member of the ISR has what was acknowledged, unless it lost its tail and ZooKeeper does not know yet."""
        for member in (self.brokers[node_id] for node_id in self.zookeeper.state.isr):
            registration = self.zookeeper.registered.get(member.node_id)
            if member.lost_tail or registration is None or registration.lost_tail:
                continue
            lacking = set(values) - {value for _, value in member.log}
            if lacking:
                raise ViolationError(f"{member.name} is in the ISR without {sorted(lacking)}")

    def check_session(self, broker: SimulatedBroker) -> None:
        if broker.session is None or not broker.session.is_alive:
            raise ViolationError(f"{broker.name} acknowledges a record after its session has ended")

    # Clients

    def produce(self, broker: SimulatedBroker) -> None:
        leadership = broker.leadership
        if leadership is None or not self.may_serve(broker) or len(leadership.state.isr) < MIN_INSYNC:
            return
        self.check_session(broker)  # as acks=1 would acknowledge it now
        self.produced += 1
        value = f"v{self.produced}"
        writer = self.writers.setdefault(broker.leader_epoch, broker.node_id)
        if writer != broker.node_id:
            raise ViolationError(f"brokers {writer} and {broker.node_id} both write in epoch {broker.leader_epoch}")
        broker.log.append((broker.leader_epoch, value))
        broker.unacknowledged.append((len(broker.log), value))
        self.advance(broker)

    def consume(self, broker: SimulatedBroker) -> None:
        if broker.leadership is None or not self.may_serve(broker):
            return
        for offset, entry in enumerate(broker.log[: broker.high_watermark]):
            if self.consumed.setdefault(offset, entry) != entry:
                raise ViolationError(f"offset {offset} was {self.consumed[offset]}, and is {entry} on {broker.name}")

    # The end

    def heal(self) -> None:
        self.cut.clear()
        self.note("everything is healed")
        for broker in self.brokers:
            while not broker.is_up or broker.is_paused:
                self.mend(broker)
        for _ in range(80):
            for broker in self.brokers:
                self.ping(broker)
                self.read_metadata(broker)
                self.fetch(broker)
                self.change_isr(broker)
            while self.messages:
                self.deliver(self.messages.pop(0))
            self.now_ms += 1
            self.expire_sessions()
            for broker in self.brokers:
                if broker.session is None or not broker.session.is_alive:
                    self.register(broker)
            self.control()

    def check_end(self) -> None:
        state = self.zookeeper.state
        if not state.has_leader or set(state.isr) != set(BROKERS):
            raise ViolationError(f"the partition does not recover: {state}")
        leader = self.brokers[state.leader]
        values = {value for _, value in leader.log}
        lost = [value for value in self.acknowledged if value not in values]
        if lost:
            raise ViolationError(f"acknowledged and lost: {lost}")
        for broker in self.brokers:
            end = min(broker.high_watermark, leader.high_watermark)
            if broker.log[:end] != leader.log[:end]:
                raise ViolationError(f"{broker.name} and {leader.name} differ before offset {end}")
        self.consume(leader)


class ShrinkingAtOnce(Leadership):
    """Forgets a member of the ISR when it proposes to remove it."""

    @property
    def maximal_isr(self) -> frozenset[int]:
        return frozenset(self.state.isr if self._proposed is None else self._proposed)


def first_violation(seeds: Iterable[int], faults: tuple[str, ...] = ()) -> tuple[int, str] | None:
    for seed in seeds:
        try:
            Simulation(seed, faults=faults).run()
        except ViolationError as error:
            return seed, str(error)
    return None


if __name__ == "__main__":
    Simulation(int(sys.argv[1]), faults=tuple(sys.argv[2:]), log=print).run()
