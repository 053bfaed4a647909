"""The checker itself: it finds each planted fault, and nothing in a valid history."""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.clients.interface import Place
from tests.clients.transaction_history import History, Kind, Outcome, Read, Reader, Transaction, Write, check

PLACES = [Place("t", partition) for partition in range(3)]


def transaction(number: int, outcome: Outcome = Outcome.COMMITTED, writer: str = "w") -> Transaction:
    """Return writes with one value for each partition."""
    writes = tuple(Write(place, b"%s-%d-%d" % (writer.encode(), number, place.partition)) for place in PLACES)
    return Transaction(writer, writes, outcome)


def as_it_was(*transactions: Transaction, without: frozenset[int] = frozenset()) -> tuple[Read, ...]:
    """Return the reads of a log with all of these transactions except some. Each marker takes an offset."""
    ends: dict[Place, int] = defaultdict(int)
    seen = []
    for number, one in enumerate(transactions):
        for place, value in one.writes:
            if one.outcome is not Outcome.ABORTED and number not in without:
                seen.append(Read(place, ends[place], value))
            ends[place] += 1
        for place in {place for place, _ in one.writes}:
            ends[place] += 1
    return tuple(seen)


def reader(reads: tuple[Read, ...], name: str = "r", reached_end: bool = True) -> Reader:
    return Reader(name, (reads[:3], (), reads[3:]), reached_end)


GOOD = [transaction(0), transaction(1, Outcome.ABORTED), transaction(2, Outcome.UNKNOWN), transaction(3)]
SEEN = as_it_was(*GOOD)


def kinds(*readers: Reader, transactions: list[Transaction] | None = None) -> list[Kind]:
    return [finding.kind for finding in check(History(transactions or GOOD, readers))]


def test_a_valid_history_has_no_findings() -> None:
    assert kinds(reader(SEEN), reader(SEEN[:4], "early", reached_end=False)) == []


def test_a_commit_with_a_lost_response_may_be_visible_or_not() -> None:
    assert kinds(reader(as_it_was(*GOOD, without=frozenset([2])))) == []


def test_a_commit_with_a_lost_response_is_not_visible_in_part() -> None:
    (some,) = (read for read in SEEN if read.value == b"w-2-1")
    assert kinds(reader(tuple(read for read in SEEN if read != some))) == [Kind.TORN_TRANSACTION]


def test_lost_write_is_found() -> None:
    assert kinds(reader(as_it_was(*GOOD, without=frozenset([3])))) == [Kind.LOST_WRITE] * 3


def test_lost_write_of_one_partition_is_a_torn_transaction_too() -> None:
    assert kinds(reader(SEEN[:-1])) == [Kind.LOST_WRITE, Kind.TORN_TRANSACTION]


def test_an_unfinished_reader_has_lost_nothing() -> None:
    assert kinds(reader(SEEN[:-1], reached_end=False)) == []


def test_duplicate_is_found() -> None:
    again = SEEN[-1]._replace(offset=99)
    assert kinds(reader((*SEEN, again))) == [Kind.DUPLICATE]


def test_a_duplicate_is_found_if_two_readers_saw_one_copy_each() -> None:
    moved = SEEN[-1]._replace(offset=99)
    assert kinds(reader(SEEN), reader((*SEEN[:-1], moved), "other")) == [Kind.DUPLICATE]


def test_an_aborted_read_of_any_reader_is_found() -> None:
    aborted = Read(PLACES[0], 99, b"w-1-0")
    found = kinds(reader(SEEN), reader((aborted,), "early", reached_end=False))
    assert found == [Kind.ABORTED_READ]


def test_an_aborted_transaction_that_is_visible_in_part_is_also_torn() -> None:
    aborted = Read(PLACES[0], 2, b"w-1-0")
    assert kinds(reader((aborted, *SEEN[3:]), reached_end=True), transactions=GOOD[1:]) == [
        Kind.ABORTED_READ,
        Kind.TORN_TRANSACTION,
    ]


@pytest.mark.parametrize("at", [0, 4])
def test_a_repeated_or_earlier_offset_is_found(at: int) -> None:
    assert kinds(reader((*SEEN[: at + 4], SEEN[at], *SEEN[at + 4 :]))) == [Kind.NON_MONOTONIC_POLL]


def test_values_of_a_writer_in_another_order_are_found() -> None:
    first, last = SEEN[0], SEEN[-3]
    swapped = {first: first._replace(value=last.value), last: last._replace(value=first.value)}
    assert set(kinds(reader(tuple(swapped.get(read, read) for read in SEEN)))) == {Kind.NON_MONOTONIC_POLL}


def test_writers_may_alternate_in_any_order() -> None:
    both = [transaction(0, writer="a"), transaction(1, writer="b")]
    assert kinds(reader(as_it_was(*reversed(both))), transactions=both) == []


def test_readers_that_saw_different_values_at_an_offset_are_found() -> None:
    other = SEEN[0]._replace(value=b"w-2-0")
    found = kinds(reader(SEEN), reader((other,), "other", reached_end=False))
    assert Kind.DIVERGING_READ in found


def test_an_unwritten_or_misplaced_value_is_found() -> None:
    assert kinds(reader((*SEEN, Read(PLACES[0], 99, b"nobody's")))) == [Kind.UNWRITTEN_VALUE]
    elsewhere = SEEN[-1]._replace(place=PLACES[0], offset=99)
    assert Kind.UNWRITTEN_VALUE in kinds(reader((*SEEN[:-1], elsewhere)))


def test_a_history_that_writes_a_value_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="written twice"):
        check(History([GOOD[0], GOOD[0]], []))


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[Transaction], Reader]:
    """Draw the transactions of several writers in the order of their ends, and the outcomes of unknown commits."""
    outcomes = draw(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(Outcome)), min_size=1, max_size=12))
    written = [transaction(number, outcome, writer) for number, (writer, outcome) in enumerate(outcomes)]
    unknown = [number for number, one in enumerate(written) if one.outcome is Outcome.UNKNOWN]
    vanished = frozenset(draw(st.sets(st.sampled_from(unknown)))) if unknown else frozenset()
    return written, reader(as_it_was(*written, without=vanished))


@given(histories())
def test_no_valid_history_has_findings(history: tuple[list[Transaction], Reader]) -> None:
    written, seen = history
    assert check(History(written, [seen])) == []


@given(histories(), st.randoms(use_true_random=False))
def test_a_removal_from_a_valid_history_is_found(
    history: tuple[list[Transaction], Reader], chance: random.Random
) -> None:
    written, seen = history
    reads = [*seen.reads]
    if not reads:
        return
    gone = chance.choice(reads)
    found = check(History(written, [replace(seen, polls=(tuple(read for read in reads if read != gone),))]))
    (origin,) = [one for one in written if any(write.value == gone.value for write in one.writes)]
    expected = {Kind.TORN_TRANSACTION} | ({Kind.LOST_WRITE} if origin.outcome is Outcome.COMMITTED else set())
    assert {finding.kind for finding in found} == expected
