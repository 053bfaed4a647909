"""A record that is too large: which limit it is past, the client's, the topic's or both, and how each is raised."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import Any

from stratalog.client.admin import Admin, ConfigResource
from stratalog.client.errors import RecordTooLargeError
from stratalog.errors import StratalogError
from stratalog.records.format import HEADER_SIZE

_TOPIC_LIMIT = "max.message.bytes"
_CLIENT_LIMIT = re.compile(r"of (?P<size>\d+) bytes .* (?:is more than|exceeds) (?P<name>\S+) = (?P<limit>\d+)")
_BATCH = re.compile(r"batch has (?P<size>\d+) bytes")


def described(
    error: RecordTooLargeError, topic: str, admin_config: Mapping[str, Any] | None = None, codec: str = "none"
) -> str:
    """What the error says, with the commands that raise the limits. With `admin_config`, the topic's limit is looked up
    where the client's is passed: a record that is compressed may fit it."""
    message = error.broker_message or ""
    by_client = _CLIENT_LIMIT.search(message)
    if by_client is None:
        size = _BATCH.search(message)
        enough = size["size"] if size is not None else "BYTES"
        return f"{message or error}; send less in a record, or raise the topic's limit: {_setting(topic, enough)}"
    needed = int(by_client["size"]) + HEADER_SIZE  # of the batch around it
    advice = f"send less in a record, or raise this producer's limit: --set {by_client['name']}={needed}"
    limit = None if admin_config is None or codec != "none" else _topic_limit(topic, admin_config)
    if limit is not None and needed > limit:
        advice += f", and the topic's, as its {_TOPIC_LIMIT} is {limit}: {_setting(topic, str(needed))}"
    return f"{message}; {advice}"


def _setting(topic: str, size: str) -> str:
    return f"stratalog config set topic {shlex.quote(topic)} {_TOPIC_LIMIT}={size}"


def _topic_limit(topic: str, admin_config: Mapping[str, Any]) -> int | None:
    """None where the broker does not say: this is a courtesy."""
    try:
        with Admin.from_config(admin_config) as admin:
            value = admin.describe_config(ConfigResource.topic(topic), names=[_TOPIC_LIMIT])[_TOPIC_LIMIT].value
    except (StratalogError, KeyError):
        return None
    return int(value) if value is not None and value.isdecimal() else None
