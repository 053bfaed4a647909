"""Checks a history of transactional writers and readers of committed records for contradictions. Pure.

A history has every transaction, with the outcome that its writer knows, and every poll of every reader. `check` returns
a finding for each observation that is impossible in a log with transactions:

| finding | what |
|---|---|
| lost write | a value of a committed transaction that a reader did not see although it read to the end |
| duplicate | a value at more than one offset |
| aborted read | a value of a transaction that was not committed |
| torn transaction | some of a transaction's values are visible and others are not |
| non-monotonic poll | a reader gets an offset again or an earlier one, or a writer's values in another order |
| diverging read | two readers saw different values at one offset |
| unwritten value | a value that no writer wrote |

A commit whose response was lost is UNKNOWN: it may be visible or not, but only as a whole. A transaction whose commit
was never requested counts as ABORTED, whether or not the abort was confirmed.

The checker is part of the tests and not of stratalog.testing, because it depends on what these tests record.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from tests.clients.interface import Place


class Outcome(Enum):
    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"


class Kind(Enum):
    LOST_WRITE = "lost write"
    DUPLICATE = "duplicate"
    ABORTED_READ = "aborted read"
    TORN_TRANSACTION = "torn transaction"
    NON_MONOTONIC_POLL = "non-monotonic poll"
    DIVERGING_READ = "diverging read"
    UNWRITTEN_VALUE = "unwritten value"


class Write(NamedTuple):
    place: Place
    value: bytes  # unique among all writes


@dataclass(frozen=True)
class Transaction:
    """A transaction of one writer. A history has a writer's transactions in the order in which it began them."""

    writer: str
    writes: tuple[Write, ...]
    outcome: Outcome


class Read(NamedTuple):
    place: Place
    offset: int
    value: bytes


@dataclass(frozen=True)
class Reader:
    """A reader that began at the first offset and never sought. If `reached_end` is set, it has seen everything."""

    name: str
    polls: tuple[tuple[Read, ...], ...]
    reached_end: bool

    @property
    def reads(self) -> Iterator[Read]:
        return (read for poll in self.polls for read in poll)


@dataclass(frozen=True)
class History:
    transactions: Sequence[Transaction]
    readers: Sequence[Reader]


@dataclass(frozen=True)
class Finding:
    kind: Kind
    what: str


def check(history: History) -> list[Finding]:
    """Return all findings, in no particular order."""
    return [*_Check(history).findings()]


class _Origin(NamedTuple):
    transaction: Transaction
    place: Place
    order: int  # among all writes of its writer


@dataclass
class _Check:
    history: History
    origins: dict[bytes, _Origin] = field(default_factory=dict)

    def __post_init__(self) -> None:
        orders: dict[str, int] = defaultdict(int)
        for transaction in self.history.transactions:
            for place, value in transaction.writes:
                if value in self.origins:
                    raise ValueError(f"{value!r} is written twice: the history can't be checked")
                orders[transaction.writer] += 1
                self.origins[value] = _Origin(transaction, place, orders[transaction.writer])

    def findings(self) -> Iterator[Finding]:
        yield from self._values()
        for reader in self.history.readers:
            yield from self._order(reader)
            if reader.reached_end:
                yield from self._whole(reader)

    def _values(self) -> Iterator[Finding]:
        """Check the values that readers have seen: where each was seen, and which transaction wrote it."""
        at: dict[bytes, set[tuple[Place, int]]] = defaultdict(set)
        values: dict[tuple[Place, int], set[bytes]] = defaultdict(set)
        for reader in self.history.readers:
            for place, offset, value in reader.reads:
                at[value].add((place, offset))
                values[place, offset].add(value)
        for value, where in at.items():
            yield from self._value(value, where)
        for (place, offset), seen in values.items():
            if len(seen) > 1:
                yield Finding(Kind.DIVERGING_READ, f"offset {offset} of {_named(place)} is {_listed(seen)}")

    def _value(self, value: bytes, where: set[tuple[Place, int]]) -> Iterator[Finding]:
        origin = self.origins.get(value)
        if origin is None or any(place != origin.place for place, _ in where):
            yield Finding(Kind.UNWRITTEN_VALUE, f"{value!r} at {sorted(where)}")
            return
        if len(where) > 1:
            yield Finding(Kind.DUPLICATE, f"{value!r} at {sorted(where)}")
        if origin.transaction.outcome is Outcome.ABORTED:
            yield Finding(Kind.ABORTED_READ, f"{value!r} of {origin.transaction.writer} at {sorted(where)}")

    def _order(self, reader: Reader) -> Iterator[Finding]:
        last_offset: dict[Place, int] = {}
        last_write: dict[tuple[Place, str], int] = {}
        for place, offset, value in reader.reads:
            before = last_offset.get(place, -1)
            if offset <= before:
                said = f"{reader.name} got offset {offset} of {_named(place)} after {before}"
                yield Finding(Kind.NON_MONOTONIC_POLL, said)
            last_offset[place] = max(before, offset)
            origin = self.origins.get(value)
            if origin is None:
                continue
            key = place, origin.transaction.writer
            if offset > before and origin.order < last_write.get(key, 0):
                said = f"{reader.name} got {value!r} of {_named(place)} behind a later one of the same writer"
                yield Finding(Kind.NON_MONOTONIC_POLL, said)
            last_write[key] = max(last_write.get(key, 0), origin.order)

    def _whole(self, reader: Reader) -> Iterator[Finding]:
        seen = {value for _, _, value in reader.reads}
        for transaction in self.history.transactions:
            missing = [write for write in transaction.writes if write.value not in seen]
            if transaction.outcome is Outcome.COMMITTED:
                for place, value in missing:
                    said = f"{reader.name} has not seen {value!r}, committed to {_named(place)} by {transaction.writer}"
                    yield Finding(Kind.LOST_WRITE, said)
            if 0 < len(missing) < len(transaction.writes):
                said = f"{reader.name} has seen only some of {_listed(value for _, value in transaction.writes)}: "
                yield Finding(Kind.TORN_TRANSACTION, said + f"not {_listed(value for _, value in missing)}")


def _named(place: Place) -> str:
    return f"{place.topic}-{place.partition}"


def _listed(values: Iterable[bytes]) -> str:
    return ", ".join(repr(value) for value in sorted(values))
