"""What every API handler takes and gives."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from stratalog.protocol.api_keys import ApiKey

Reply = dict[str, Any]
"""By kio's field names; protocol.messages.encode_reply() writes it for a version. A handler may also give the encoded
body itself, as a bytearray."""


class LongReply(Reply):
    """A reply that may be very long, so it is written in portions, and others have their turn in between. Its arrays
    may be Elements, which are made as they are written."""


class RequestContext(NamedTuple):
    api_key: ApiKey
    api_version: int
    client_id: str | None
    client_host: str


Handler = Callable[[Any, RequestContext], Reply | bytearray | Awaitable[Reply | bytearray]]
