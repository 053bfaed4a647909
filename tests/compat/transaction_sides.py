"""One broker, ours or Apache Kafka's, seen by a transactional producer on the wire.

Responses are recorded in a form that is the same for both: producer ids are numbered in the order in which they appear.
Requests that get CONCURRENT_TRANSACTIONS are retried, because Kafka ends transactions in the background.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kio.schema.errors import ErrorCode

from stratalog.broker.transactions.state import ProducerIdAndEpoch
from stratalog.protocol.api_keys import ApiKey
from stratalog.protocol.fields import FieldReader
from stratalog.records import Batch, Record, batches, build_batch, read_control, records_of
from tests.compat.test_admin_answers import Wire, creation, topic

NOBODY = ProducerIdAndEpoch(-1, -1)
TIMEOUT_MS = 60_000
TIMESTAMP = time.time_ns() // 1_000_000  # of all records: much older ones would make a segment each
PATIENCE_SECONDS = 30.0
PAUSE_SECONDS = 0.01
BUSY = ErrorCode.concurrent_transactions
OWN = ("t", "u", "g")
COMES_AGAIN = (BUSY, ErrorCode.coordinator_load_in_progress, ErrorCode.coordinator_not_available)


@dataclass(frozen=True)
class Seen:
    """A request and the broker's response."""

    what: str
    answer: Any


@dataclass(frozen=True)
class Described:
    """A transactional id in a response to DescribeTransactions."""

    error: ErrorCode
    state: str
    is_begun: bool
    who: ProducerIdAndEpoch
    topics: list[tuple[str, list[int]]]

    @property
    def is_prepared(self) -> bool:
        return self.state.startswith("Prepare")


def parse_described(answer: bytes) -> Described:
    """Parse the first transaction of a response."""
    fields = FieldReader(answer, "DescribeTransactions", flexible=True)
    fields.int32(), fields.varint()  # throttle time, count
    error, _, state, _ = ErrorCode(fields.int16()), fields.string(), fields.string(), fields.int32()
    started_ms, producer_id, epoch = fields.int64(), fields.int64(), fields.int16()

    def topic() -> tuple[str, list[int]]:
        name, indexes = fields.string(), fields.array(fields.int32)
        fields.tagged_fields()
        return name, indexes

    return Described(error, state, started_ms > 0, ProducerIdAndEpoch(producer_id, epoch), fields.array(topic))


class Side:
    def __init__(self, address: str) -> None:
        self.wire = Wire(address)
        self.seen: list[Seen] = []
        self._story = ""
        self._names: dict[int, str] = {}

    def close(self) -> None:
        self.wire.close()

    def begin_story(self, name: str) -> None:
        """Begin a story with topics of its own, t of two partitions and u of one, the transactional id t and the group
        g."""
        self.go_on(name)
        self._create("t", 2)
        self._create("u", 1)

    def go_on(self, name: str) -> None:
        """Continue a story of another connection."""
        self.seen, self._names, self._story = [], {}, name

    def _own(self, name: str) -> str:
        return f"{self._story}-{name}" if name in OWN else name

    def _own_id(self, transactional_id: str | None) -> str | None:
        return None if transactional_id is None else self._own(transactional_id)

    def ask(self, key: ApiKey, version: int, **fields: Any) -> Any:
        return self.wire.ask(key, version, fields)

    def _note(self, what: str, *answer: Any) -> None:
        self.seen.append(Seen(what, answer))

    def _named(self, who: ProducerIdAndEpoch) -> str:
        if who.producer_id < 0:
            return f"nobody:{who.epoch}"
        name = self._names.setdefault(who.producer_id, f"p{len(self._names)}")
        return f"{name}:{who.epoch}"

    # Preparation

    def make_ready(self) -> None:
        """Wait for the coordinator. Kafka creates __transaction_state at the first FindCoordinator."""
        deadline = time.monotonic() + 2 * PATIENCE_SECONDS
        while True:
            self.ask(ApiKey.FIND_COORDINATOR, 4, key_type=1, coordinator_keys=["ready"])
            self.ask(ApiKey.FIND_COORDINATOR, 4, key_type=0, coordinator_keys=["ready"])
            if self._init("ready", NOBODY, TIMEOUT_MS, 5).error_code is ErrorCode.none:
                return
            assert time.monotonic() < deadline, "no coordinator"
            time.sleep(PAUSE_SECONDS)

    def _create(self, name: str, partitions: int) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            (made,) = self.wire.ask(ApiKey.CREATE_TOPICS, 7, creation(topic(self._own(name), partitions))).topics
            if made.error_code is not ErrorCode.invalid_replication_factor or time.monotonic() > deadline:
                break
            time.sleep(PAUSE_SECONDS)  # on a slow machine, Kafka's broker loses its session
        assert made.error_code is ErrorCode.none
        for index in range(partitions):  # who made them hears of it before who leads them
            partition = {"partition_index": index, "timestamp": -1, "current_leader_epoch": -1}
            asked = {"name": self._own(name), "partitions": [partition]}
            fields = {"replica_id": -1, "isolation_level": 0, "topics": [asked]}
            _patient(
                lambda fields=fields: self.ask(ApiKey.LIST_OFFSETS, 5, **fields).topics[0].partitions[0].error_code,
                lambda code: code is not ErrorCode.none,
            )

    # InitProducerId

    def init(
        self,
        transactional_id: str | None,
        claimed: ProducerIdAndEpoch = NOBODY,
        timeout_ms: int = TIMEOUT_MS,
        version: int = 5,
    ) -> ProducerIdAndEpoch:
        answer = self._again(lambda: self._init(transactional_id, claimed, timeout_ms, version))
        who = ProducerIdAndEpoch(answer.producer_id, answer.producer_epoch)
        what = f"init {transactional_id} as {self._named(claimed)}, {timeout_ms} ms, v{version}"
        self._note(what, answer.error_code.name, self._named(who))
        return who

    def init_once(self, transactional_id: str) -> None:
        """Send InitProducerId once, without retries."""
        self._note(f"init {transactional_id} once", self._init(transactional_id, NOBODY, TIMEOUT_MS, 5).error_code.name)

    def _init(self, transactional_id: str | None, claimed: ProducerIdAndEpoch, timeout_ms: int, version: int) -> Any:
        fields: dict[str, Any] = {"transactional_id": self._own_id(transactional_id), "transaction_timeout": timeout_ms}
        fields |= {"producer_id": claimed.producer_id, "producer_epoch": claimed.epoch}
        return self.ask(ApiKey.INIT_PRODUCER_ID, version, **fields)

    # Partitions and offsets

    def add(
        self,
        transactional_id: str,
        who: ProducerIdAndEpoch,
        name: str,
        *indexes: int,
        version: int = 3,
        verify: bool = False,
    ) -> None:
        fields: dict[str, Any] = {"transactional_id": self._own(transactional_id), "producer_id": who.producer_id}
        fields |= {"producer_epoch": who.epoch, "topics": [{"name": self._own(name), "partitions": list(indexes)}]}

        def codes() -> list[ErrorCode]:
            if version < 4:
                old = {f"v3_and_below_{field}": value for field, value in fields.items()}
                results = self.ask(ApiKey.ADD_PARTITIONS_TO_TXN, version, **old).results_by_topic_v3_and_below
            else:
                one = {**fields, "verify_only": verify}
                answer = self.ask(ApiKey.ADD_PARTITIONS_TO_TXN, version, transactions=[one])
                if answer.error_code is not ErrorCode.none:
                    return [answer.error_code]
                results = answer.results_by_transaction[0].topic_results
            return [each.partition_error_code for result in results for each in result.results_by_partition]

        found = _patient(codes, lambda codes: any(code in COMES_AGAIN for code in codes))
        what = f"add {name} {indexes} to {transactional_id} as {self._named(who)}, v{version}, verify {verify}"
        self._note(what, sorted(code.name for code in found))

    def add_offsets(self, transactional_id: str, who: ProducerIdAndEpoch, group: str, version: int = 3) -> None:
        answer = self._again(
            lambda: self.ask(
                ApiKey.ADD_OFFSETS_TO_TXN,
                version,
                transactional_id=self._own(transactional_id),
                producer_id=who.producer_id,
                producer_epoch=who.epoch,
                group_id=self._own(group),
            )
        )
        what = f"add offsets of {group} to {transactional_id} as {self._named(who)}, v{version}"
        self._note(what, answer.error_code.name)

    def commit_offset(
        self,
        transactional_id: str,
        who: ProducerIdAndEpoch,
        group: str,
        name: str,
        offset: int,
        version: int = 3,
        **more: Any,
    ) -> None:
        partition = {"partition_index": 0, "committed_offset": offset, "committed_metadata": ""}
        fields: dict[str, Any] = {"transactional_id": self._own(transactional_id), "group_id": self._own(group)}
        fields |= {"producer_id": who.producer_id, "producer_epoch": who.epoch, "member_id": ""}
        fields |= {"generation_id": -1, "group_instance_id": None} | more
        fields["topics"] = [{"name": self._own(name), "partitions": [{**partition, "committed_leader_epoch": -1}]}]

        def code() -> ErrorCode:
            (topic,) = self.ask(ApiKey.TXN_OFFSET_COMMIT, version, **fields).topics
            found: ErrorCode = topic.partitions[0].error_code
            return found

        what = f"offset {offset} of {group} in {transactional_id} as {self._named(who)}, v{version}, {more}"
        self._note(what, _patient(code, lambda code: code in COMES_AGAIN).name)

    # Produce

    def produce(
        self,
        transactional_id: str | None,
        who: ProducerIdAndEpoch,
        name: str,
        value: bytes,
        *,
        sequence: int = 0,
        version: int = 12,
        transactional: bool = True,
        partition: int = 0,
        count: int = 1,
    ) -> None:
        batch = build_batch(
            [Record(value=value, timestamp=TIMESTAMP)] * count,
            producer_id=who.producer_id,
            producer_epoch=who.epoch,
            base_sequence=sequence,
            is_transactional=transactional,
        )
        part = {"index": partition, "records": bytes(batch)}
        data = {"name": self._own(name), "partition_data": [part]}
        fields: dict[str, Any] = {"transactional_id": self._own_id(transactional_id), "acks": -1, "timeout": TIMEOUT_MS}
        fields["topic_data"] = [data]

        def code() -> ErrorCode:
            (answer,) = self.ask(ApiKey.PRODUCE, version, **fields).responses[0].partition_responses
            found: ErrorCode = answer.error_code
            return found

        found = _patient(code, lambda code: code in (*COMES_AGAIN, ErrorCode.not_enough_replicas))
        what = f"produce {value!r} x {count} from {sequence} as {self._named(who)} of {transactional_id}, v{version}"
        self._note(f"{what}, transactional {transactional}", found.name)

    # EndTxn

    def end(
        self, transactional_id: str, who: ProducerIdAndEpoch, *, commit: bool, version: int = 5
    ) -> ProducerIdAndEpoch:
        answer = self._again(
            lambda: self.ask(
                ApiKey.END_TXN,
                version,
                transactional_id=self._own(transactional_id),
                producer_id=who.producer_id,
                producer_epoch=who.epoch,
                committed=commit,
            )
        )
        if answer.error_code is ErrorCode.none:
            self._settled(transactional_id)  # Kafka may respond before the markers are written
        told = ProducerIdAndEpoch(answer.producer_id, answer.producer_epoch) if version >= 5 else NOBODY
        what = f"{'commit' if commit else 'abort'} {transactional_id} as {self._named(who)}, v{version}"
        self._note(what, answer.error_code.name, self._named(told))
        return told if answer.error_code is ErrorCode.none and version >= 5 else who

    def write_marker(self, who: ProducerIdAndEpoch, name: str, *, commit: bool, coordinator_epoch: int = 0) -> None:
        topics = [{"name": self._own(name), "partition_indexes": [0]}]
        marker: dict[str, Any] = {
            "producer_id": who.producer_id,
            "producer_epoch": who.epoch,
            "transaction_result": commit,
        }
        marker |= {"topics": topics, "coordinator_epoch": coordinator_epoch, "transaction_version": 0}
        (answer,) = self.ask(ApiKey.WRITE_TXN_MARKERS, 1, markers=[marker]).markers
        error = answer.topics[0].partitions[0].error_code
        self._note(f"marker for {name} as {self._named(who)}, of coordinator {coordinator_epoch}", error.name)

    # The results

    def look(self, transactional_id: str, *names: str) -> None:
        """Return the state of the transactional id, the producers of the partitions, and the records that
        read_committed readers see."""
        self._note(f"state of {transactional_id}", *self._state(transactional_id))
        for name in names:
            self._note(f"producers of {name}", *self._producers(name))
            self._note(f"committed in {name}", *self._committed(name))

    def _state(self, transactional_id: str) -> list[Any]:
        one = self._settled(transactional_id)
        topics = sorted((name.removeprefix(f"{self._story}-"), sorted(indexes)) for name, indexes in one.topics)
        known = one.error is ErrorCode.none
        return [one.error.name, one.state, self._named(one.who) if known else None, one.is_begun, topics]

    def committed_offset(self, group: str, name: str) -> int:
        asked: dict[str, Any] = {"group_id": self._own(group), "member_id": None, "member_epoch": -1}
        asked["topics"] = [{"name": self._own(name), "partition_indexes": [0]}]
        found = self._again(lambda: self.ask(ApiKey.OFFSET_FETCH, 9, groups=[asked], require_stable=True).groups[0])
        offset: int = found.topics[0].partitions[0].committed_offset
        return offset

    def _settled(self, transactional_id: str) -> Described:
        found: Described = _patient(
            lambda: self._described(transactional_id), lambda one: one.is_prepared or one.error in COMES_AGAIN
        )
        return found

    def await_state(self, transactional_id: str, state: str) -> None:
        one = _patient(lambda: self._described(transactional_id), lambda one: one.state != state)
        self._note(f"{transactional_id} becomes", one.state)

    def _described(self, transactional_id: str) -> Described:
        asked = {"transactional_ids": [self._own(transactional_id)]}
        return parse_described(bytes(self.wire.ask_raw(ApiKey.DESCRIBE_TRANSACTIONS, 0, asked)))

    def _producers(self, name: str) -> list[Any]:
        topics = [{"name": self._own(name), "partition_indexes": [0]}]
        (found,) = self.ask(ApiKey.DESCRIBE_PRODUCERS, 0, topics=topics).topics[0].partitions
        return sorted(
            (
                self._named(ProducerIdAndEpoch(one.producer_id, one.producer_epoch)),
                one.last_sequence,
                one.current_txn_start_offset,
            )
            for one in found.active_producers
        )

    def _committed(self, name: str) -> Sequence[Any]:
        partition = {"partition": 0, "current_leader_epoch": -1, "fetch_offset": 0, "last_fetched_epoch": -1}
        partition |= {"log_start_offset": -1, "partition_max_bytes": 2**20}
        asked = {"topic": self._own(name), "partitions": [partition]}
        answer = self.ask(
            ApiKey.FETCH,
            12,
            replica_id=-1,
            max_wait=0,
            min_bytes=0,
            max_bytes=2**20,
            isolation_level=1,
            session_id=0,
            session_epoch=-1,
            topics=[asked],
            forgotten_topics_data=[],
            rack_id="",
        )
        (found,) = answer.responses[0].partitions
        aborted = [(one.producer_id, one.first_offset) for one in found.aborted_transactions or ()]
        named = sorted((self._named(ProducerIdAndEpoch(producer_id, 0)), first) for producer_id, first in aborted)
        batches_found = [_in_words(batch) for batch in batches(bytes(found.records or b""))]
        return [found.high_watermark, found.last_stable_offset, named, batches_found]

    def _again(self, ask: Any) -> Any:
        return _patient(ask, lambda answer: answer.error_code in COMES_AGAIN)


def _patient(ask: Any, comes_again: Any) -> Any:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while comes_again(answer := ask()) and time.monotonic() < deadline:
        time.sleep(PAUSE_SECONDS)
    return answer


def _in_words(batch: Batch) -> tuple[Any, ...]:
    header = batch.header
    if header.is_control:
        return header.base_offset, header.producer_epoch, read_control(batch)[0].name
    values = [bytes(record.value or b"") for record in records_of(batch)]
    return header.base_offset, header.producer_epoch, header.base_sequence, header.is_transactional, values
