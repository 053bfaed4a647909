"""What there is to say of transactions, for people or as JSON."""

from __future__ import annotations

import re
from collections.abc import Sequence, Set
from datetime import UTC, datetime

from stratalog.cli.output import QUIET, STRONG, Output
from stratalog.cli.program import CommandError, printable
from stratalog.cli.tables import print_table
from stratalog.client.admin import Admin, HangingTransaction, TransactionDescription, TransactionListing
from stratalog.client.errors import UnsupportedVersionError
from stratalog.client.metadata import TopicPartition
from stratalog.client.prepared_transaction import PreparedTransaction

_NEVER_MS = 2**31 - 1
_PLACE = re.compile(r"(?P<topic>.+):(?P<partition>[0-9]{1,10})")


def prepared_ids(admin: Admin) -> frozenset[str]:
    """Those that wait for another process to end them, which only a Stratalog broker has."""
    try:
        return frozenset(one.transactional_id for one in admin.prepared_transactions())
    except UnsupportedVersionError:
        return frozenset()


def list_lines(output: Output, found: Sequence[TransactionListing], prepared: Set[str]) -> None:
    if output.as_json:
        for one in found:
            fields = {"transactional_id": one.transactional_id, "state": one.state, "producer_id": one.producer_id}
            output.json({"type": "transaction", **fields, "prepared": one.transactional_id in prepared})
    elif found:
        rows = [
            (one.transactional_id, _state(one.state, one.transactional_id in prepared), str(one.producer_id))
            for one in found
        ]
        print_table(output, ("transactional id", "state", "producer"), rows)
    else:
        output.line(("no transactions; they appear with their first producer", QUIET))


def _state(state: str, is_prepared: bool) -> str:
    return f"{state}, prepared" if is_prepared else state


def description_lines(output: Output, one: TransactionDescription, *, is_prepared: bool) -> None:
    if output.as_json:
        output.json(
            {
                "type": "transaction",
                "transactional_id": one.transactional_id,
                "state": one.state,
                "prepared": is_prepared,
                "producer_id": one.producer_id,
                "producer_epoch": one.producer_epoch,
                "timeout_ms": one.timeout_ms,
                "started_ms": one.started_ms,
                "partitions": [[place.topic, place.partition] for place in one.partitions],
            }
        )
        return
    timeout = "no timeout" if one.timeout_ms == _NEVER_MS else f"timeout {one.timeout_ms:,} ms"
    state = _state(one.state, is_prepared)
    about = f"  {state}, producer {one.producer_id} epoch {one.producer_epoch}, {timeout}"
    if one.started_ms is not None:
        about += f", begun {_time(one.started_ms)}"
    output.line((printable(one.transactional_id), STRONG), (about, QUIET))
    if one.partitions:
        print_table(output, ("topic", "partition"), [(topic, str(index)) for topic, index in one.partitions], "  ")
    else:
        output.line(("  no partition is part of it", QUIET))


def hanging_lines(output: Output, found: Sequence[HangingTransaction]) -> None:
    if output.as_json:
        for place, producer in ((one.partition, one.producer) for one in found):
            output.json(
                {
                    "type": "hanging_transaction",
                    "topic": place.topic,
                    "partition": place.partition,
                    "producer_id": producer.producer_id,
                    "producer_epoch": producer.producer_epoch,
                    "coordinator_epoch": producer.coordinator_epoch,
                    "start_offset": producer.transaction_start,
                    "last_timestamp_ms": producer.last_timestamp_ms,
                }
            )
    elif found:
        rows = [
            (
                one.partition.topic,
                str(one.partition.partition),
                str(one.producer.producer_id),
                str(one.producer.producer_epoch),
                one.producer.transaction_start,
                _time(one.producer.last_timestamp_ms),
            )
            for one in found
        ]
        print_table(output, ("topic", "partition", "producer", "epoch", "open since", "last write"), rows)
    else:
        output.line(("no transaction hangs", QUIET))


def places_of(admin: Admin, topics: Sequence[str]) -> list[TopicPartition]:
    """All partitions of these topics, or all that there are."""
    found = admin.describe_topics(topics).check() if topics else admin.list_topics(include_internal=True)
    return [TopicPartition(name, index) for name, topic in found.items() for index in range(len(topic.partitions))]


def place_of(text: str) -> TopicPartition:
    match = _PLACE.fullmatch(text)
    if match is None:
        raise CommandError(f"TOPIC:PARTITION is {text!r}; it must be like orders:0")
    return TopicPartition(match["topic"], int(match["partition"]))


def hanging_one(admin: Admin, place: TopicPartition, producer_id: int) -> HangingTransaction:
    for one in admin.find_hanging_transactions([place]):
        if one.producer.producer_id == producer_id:
            return one
    raise CommandError(
        f"producer {producer_id} has no transaction in {place} that hangs; `stratalog transaction list --hanging` has "
        "all that do, and those that a coordinator knows end by themselves"
    )


def prepared_one(admin: Admin, transactional_id: str) -> PreparedTransaction:
    for one in admin.prepared_transactions(transactional_id):
        if one.transactional_id == transactional_id:
            return one
    raise CommandError(
        f"{transactional_id!r} has no transaction that is prepared; `stratalog transaction list` has all ids, and what "
        "is open without being prepared is ended by its coordinator"
    )


def _time(milliseconds: int) -> str:
    if milliseconds < 0:
        return "-"
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
