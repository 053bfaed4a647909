"""Errors of the library, explained to someone who types commands: the messages name commands and options."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from stratalog.cli.broker_names import similar_group, similar_topic
from stratalog.client.errors import (
    BrokerError,
    DeliveryTimeoutError,
    GroupNotFoundError,
    RecordTooLargeError,
    Subject,
    TopicExistsError,
)
from stratalog.errors import (
    BrokerUnreachableError,
    ClientError,
    ConnectError,
    ConnectTimeoutError,
    RequestTimeoutError,
    StratalogError,
    UnknownHostError,
    UnknownTopicError,
)
from stratalog.protocol.error_codes import ErrorCode
from stratalog.records.format import HEADER_SIZE

_TOPIC_LIMIT = "max.message.bytes"
_START_BROKER = "is a broker running there? start one: stratalog serve, or give --bootstrap-server"


def explain(error: BaseException, *, can_create: bool = True, server: str | None = None) -> str:
    """Return the message of an error, with advice. `server` can suggest a name for a mistyped one.
    `can_create`: creating a topic that does not exist would help."""
    subject = error.subject if isinstance(error, BrokerError) else None
    if isinstance(error, UnknownTopicError) and subject is not None and subject.kind == "topic":
        return _missing_topic(subject.name, can_create, server)
    if isinstance(error, TopicExistsError) and subject is not None:
        return f"{subject} already exists; {error.advice}"
    if isinstance(error, ClientError):
        advice = _advice_for(error, subject, server)
        return f"{error.problem}; {advice}" if advice else error.problem
    return str(error)


def _advice_for(error: ClientError, subject: Subject | None, server: str | None) -> str:
    if isinstance(error, GroupNotFoundError) and subject is not None and server is not None:
        similar = similar_group(subject.name, server)
        return f"{error.advice}; did you mean {similar!r}?" if similar else error.advice
    if isinstance(error, UnknownTopicError):
        return "check the name, or create the topic: stratalog topic create"
    if error.code == ErrorCode.transactional_id_not_found:
        return "check the id: `stratalog transaction list` shows all"
    if error.code == ErrorCode.invalid_record and "key" in (getattr(error, "broker_message", None) or ""):
        return "the topic is compacted: give keys, with --key-separator, or as fields with --json"
    unreachable = _connection_failure(error)
    if isinstance(unreachable, UnknownHostError):
        return "check the name, or give another --bootstrap-server"
    return error.advice if unreachable is None else _START_BROKER


def _connection_failure(error: BaseException | None) -> StratalogError | None:
    """Return the failed attempt to connect that an error comes from."""
    while isinstance(error, BrokerUnreachableError | RequestTimeoutError | DeliveryTimeoutError):
        if isinstance(error, ConnectError | ConnectTimeoutError | UnknownHostError):
            return error
        error = error.__cause__
    return None


def _missing_topic(name: str, can_create: bool, server: str | None) -> str:
    similar = None if server is None else similar_topic(name, server)
    create = f", and `stratalog topic create {name}` creates it" if can_create else ""
    if similar is None:
        return f"topic {name!r} does not exist; `stratalog topic list` shows all topics{create}"
    return f"topic {name!r} does not exist; did you mean {similar!r}? `stratalog topic list` shows all topics{create}"


def explain_too_large(error: RecordTooLargeError, topic: str, admin_config: Mapping[str, Any] | None = None) -> str:
    """Return the message of the error with the commands that raise the limits. If the producer refused the record,
    `admin_config` is for looking up whether it is past the topic's limit too."""
    message = error.broker_message or str(error)
    if error.setting is None or error.size is None:
        raise_limit = _raise_topic_limit(topic, "BYTES" if error.size is None else str(error.size))
        return f"{message}; send less in a record, or raise the topic's limit: {raise_limit}"
    needed = error.size + HEADER_SIZE  # with the batch around the record
    advice = f"send less in a record, or raise this producer's limit: --set {error.setting}={needed}"
    limit = None if admin_config is None else _topic_limit(topic, admin_config)
    if limit is not None and needed > limit:
        raise_limit = _raise_topic_limit(topic, str(needed))
        advice += f", and the topic's, as its {_TOPIC_LIMIT} is {limit}: {raise_limit}"
    return f"{message}; {advice}"


def _raise_topic_limit(topic: str, size: str) -> str:
    return f"stratalog config set topic {shlex.quote(topic)} {_TOPIC_LIMIT}={size}"


def _topic_limit(topic: str, admin_config: Mapping[str, Any]) -> int | None:
    """Return the topic's limit, or None if the broker does not report it."""
    from stratalog.client.admin import Admin, ConfigResource

    try:
        with Admin.from_config(admin_config) as admin:
            value = admin.describe_config(ConfigResource.topic(topic), names=[_TOPIC_LIMIT])[_TOPIC_LIMIT].value
    except (StratalogError, KeyError):
        return None
    return int(value) if value is not None and value.isdecimal() else None
