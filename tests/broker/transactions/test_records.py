from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.broker.transactions.records import (
    parse_key,
    parse_transaction,
    transaction_key,
    transaction_record,
    transaction_tombstone,
)
from stratalog.broker.transactions.state import Transaction, TransactionState
from stratalog.errors import GroupRecordError
from stratalog.storage.names import TopicPartition

PARTITIONS = frozenset([TopicPartition("b", 2), TopicPartition("a", 1), TopicPartition("a", 0)])
ONGOING = Transaction("tx", 5, 3, 60_000, TransactionState.ONGOING, PARTITIONS, 1000, 2000, client_version=2)


def test_record_has_the_same_bytes_as_kafkas() -> None:
    key, value = transaction_record(ONGOING)
    assert key == b"\0\0\0\2tx"
    assert value is not None
    assert value.hex(" ") == (
        "00 01 "  # version
        "00 00 00 00 00 00 00 05 00 03 00 00 ea 60 01 "  # producer id, epoch, timeout, status
        "03 02 61 03 00 00 00 00 00 00 00 01 00 02 62 02 00 00 00 02 00 "  # a: 0, 1; b: 2
        "00 00 00 00 00 00 07 d0 00 00 00 00 00 00 03 e8 "  # updated, started
        "01 02 02 00 02"  # the client's transaction.version
    )


def test_record_of_version_0_has_the_same_bytes_as_kafkas() -> None:
    _, value = transaction_record(Transaction("tx", 5, 3, 60_000, TransactionState.EMPTY, updated_ms=2000), version=0)
    assert value is not None
    assert value.hex(" ") == (
        "00 00 00 00 00 00 00 00 00 05 00 03 00 00 ea 60 00 ff ff ff ff 00 00 00 00 00 00 07 d0 ff ff ff ff ff ff ff ff"
    )


def test_next_and_previous_producer_id_are_written_and_read() -> None:
    one = Transaction("t", 5, 32767, 1, TransactionState.PREPARE_COMMIT, PARTITIONS, 1, 2, 2, previous_id=4, next_id=6)
    key, value = transaction_record(one)
    assert value is not None
    assert parse_transaction(parse_key(key), value) == one


def test_tombstone_has_the_key_of_its_id() -> None:
    assert transaction_tombstone("tx") == (transaction_key("tx"), None)


@given(
    st.builds(
        Transaction,
        st.text(max_size=20),
        st.integers(0, 2**63 - 1),
        st.integers(0, 2**15 - 1),
        st.integers(1, 2**31 - 1),
        st.sampled_from([state for state in TransactionState if state is not TransactionState.EMPTY]),
        st.frozensets(st.builds(TopicPartition, st.text(min_size=1, max_size=9), st.integers(0, 99)), max_size=9),
        st.integers(-1, 2**62),
        st.integers(-1, 2**62),
        client_version=st.sampled_from((0, 1, 2)),
        last_epoch=st.just(-1),  # which is not written
        previous_id=st.integers(-1, 2**63 - 1),
        next_id=st.integers(-1, 2**63 - 1),
        own_timeout_ms=st.integers(-1, 2**31 - 1),
    ),
    st.sampled_from((0, 1)),
)
def test_written_record_is_read_back(one: Transaction, version: int) -> None:
    key, value = transaction_record(one, version)
    assert value is not None
    read = parse_transaction(parse_key(key), value)
    assert read == (one if version == 1 else Transaction(*[getattr(one, name) for name in _OLD_FIELDS]))


_OLD_FIELDS = (
    "transactional_id",
    "producer_id",
    "epoch",
    "timeout_ms",
    "state",
    "partitions",
    "started_ms",
    "updated_ms",
)


@pytest.mark.parametrize("damage", [b"", b"\0", b"\0\2", b"\0\1\0\0", b"\xff\xff"])
def test_damaged_value_is_an_error_and_no_crash(damage: bytes) -> None:
    with pytest.raises(GroupRecordError):
        parse_transaction("t", damage)


def test_unknown_status_and_key_are_errors() -> None:
    _, value = transaction_record(ONGOING)
    assert value is not None
    with pytest.raises(GroupRecordError, match="status 9"):
        parse_transaction("t", value[:16] + b"\x09" + value[17:])
    with pytest.raises(GroupRecordError, match="type 1"):
        parse_key(b"\0\1\0\2tx")
