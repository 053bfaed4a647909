"""The types that every API handler takes and returns."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple, Protocol

from stratalog.protocol.api_keys import ApiKey

Reply = dict[str, Any]
"""A response by kio's field names; protocol.messages.encode_reply() encodes it for a version. A handler may also return
the encoded body, as a bytearray."""


class LongReply(Reply):
    """A reply that may be very long. It is encoded in portions, between which the event loop serves other requests. Its
    arrays may be Elements, which are created as they are encoded."""


class RequestContext(NamedTuple):
    api_key: ApiKey
    api_version: int
    client_id: str | None
    client_host: str


Handler = Callable[[Any, RequestContext], Reply | bytearray | Awaitable[Reply | bytearray]]


class ApiFamily(Protocol):
    def routes(self) -> Mapping[ApiKey, Handler]:
        """Return the handlers of the family's requests."""
