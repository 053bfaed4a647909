"""Error codes of brokers as exceptions: their classes, and messages with advice."""

from __future__ import annotations

import pickle

import pytest

from stratalog import errors as base
from stratalog.client import errors
from stratalog.client.errors import BrokerError, ClientError, RecordTooLargeError, error_of, is_retriable
from stratalog.errors import ConnectTimeoutError
from stratalog.protocol.error_codes import ErrorCode


def test_every_code_has_an_exception_that_names_it() -> None:
    for code in ErrorCode:
        error = error_of(code, "what the broker said", about="orders-0")
        assert isinstance(error, ClientError)
        assert (error.code, error.name, error.is_retriable) == (int(code), code.name.upper(), code.retriable)
        assert str(error).startswith(f"orders-0: {code.name.upper()} (error {int(code)}): what the broker said")


def test_an_unknown_error_code_is_a_broker_error() -> None:
    error = error_of(999)
    assert type(error) is BrokerError
    assert str(error) == "UNKNOWN_ERROR_CODE (error 999)"
    assert not is_retriable(999)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (ErrorCode.unknown_topic_or_partition, base.UnknownTopicError),
        (ErrorCode.unknown_topic_or_partition, LookupError),
        (ErrorCode.topic_already_exists, base.TopicExistsError),
        (ErrorCode.offset_out_of_range, base.OffsetOutOfRangeError),
        (ErrorCode.out_of_order_sequence_number, base.OutOfOrderSequenceError),
        (ErrorCode.message_too_large, base.MessageTooLargeError),
        (ErrorCode.invalid_config, base.ConfigError),
    ],
)
def test_errors_of_the_log_are_base_classes_of_the_clients(code: ErrorCode, kind: type[Exception]) -> None:
    assert isinstance(error_of(code), kind)


def test_messages_have_advice() -> None:
    assert "create the topic" in str(error_of(ErrorCode.unknown_topic_or_partition))
    assert str(error_of(ErrorCode.throttling_quota_exceeded)).endswith("it may be temporary; retry")


@pytest.mark.parametrize(
    ("code", "message", "expected"),
    [
        (
            ErrorCode.invalid_topic_exception,
            None,
            "; a name consists of 1 to 249 letters, digits, dots, underscores and hyphens",
        ),
        (ErrorCode.invalid_topic_exception, "orders is the broker's own and can't be deleted", " can't be deleted"),
        (ErrorCode.invalid_topic_exception, "topic 'a_b' would collide with 'a.b'", "'a.b'; choose another name"),
        (ErrorCode.invalid_partitions, "topic 'orders' has 3 partitions; there can't be fewer", " can't be fewer"),
        (ErrorCode.invalid_partitions, None, "; the number of a topic's partitions can only grow"),
        (ErrorCode.message_too_large, "the broker's words", "or raise the topic's max.message.bytes"),
    ],
)
def test_advice_fits_the_brokers_message(code: ErrorCode, message: str | None, expected: str) -> None:
    assert str(error_of(code, message)).endswith(expected)


def test_record_past_a_limit_of_the_producer_names_that_limit_also_after_pickling() -> None:
    error = pickle.loads(pickle.dumps(RecordTooLargeError.at_client("a record", 7, "max.request.size", 5, "orders")))
    assert (error.size, error.setting) == (7, "max.request.size")
    assert str(error).endswith(
        "a record of 7 bytes with its overhead is more than max.request.size = 5; send smaller records, or raise the "
        "producer's max.request.size"
    )


def test_a_message_names_its_object_once() -> None:
    error = error_of(ErrorCode.invalid_partitions, "topic 'orders' has 1 partition", about="topic 'orders'")
    assert str(error) == "INVALID_PARTITIONS (error 37): topic 'orders' has 1 partition"


@pytest.mark.parametrize("code", [ErrorCode.unknown_topic_or_partition, ErrorCode.invalid_request])
def test_errors_can_be_pickled(code: ErrorCode) -> None:
    error = error_of(code, "said", about="orders")
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), again.code) == (type(error), str(error), error.code)


def test_every_class_is_exported() -> None:
    public = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, ClientError) and not name.startswith("_")
    }
    assert public <= set(errors.__all__)
    assert issubclass(errors.RequestTimeoutError, TimeoutError)


def test_an_error_repeats_its_advice_after_pickling() -> None:
    error = ConnectTimeoutError("no connection from 127.0.0.1:9092 within 1 s")
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.advice, type(again)) == (str(error), error.advice, ConnectTimeoutError)
