"""The errors of a ZooKeeper session, each of which says whether the request has happened."""

from __future__ import annotations

from typing import Literal

from stratalog.errors import StratalogError

ConflictReason = Literal["exists", "missing", "version", "children"]


class ZooKeeperError(StratalogError):
    """ZooKeeper refused a request, or can't be used. Nothing has changed, unless the class says otherwise."""


class ZooKeeperUnreachableError(ZooKeeperError):
    """There was no connection to ZooKeeper before the deadline. The request was not sent."""


class SessionEndedError(ZooKeeperError):
    """The ZooKeeper session of a request is over: it expired or was closed. The request has not happened. After an
    expiry, requests are possible again from SessionEvent.RENEWED on."""


class OutcomeUnknownError(ZooKeeperError):
    """The connection was lost before the response to a transaction. It has happened completely or not at all; a read
    that succeeds afterwards shows which."""


class ZooKeeperConnectionLostError(ZooKeeperError):
    """The connection was lost before a response. A session handles it: it sends reads again, and raises
    OutcomeUnknownError for transactions."""


class MissingZnodeError(ZooKeeperError):
    """A znode that does not exist."""


class TooLargeError(ZooKeeperError, ValueError):
    """A transaction that is larger than ZooKeeper accepts. It was not sent."""

    code = 10  # MESSAGE_TOO_LARGE


class ConflictError(ZooKeeperError):
    """A transaction whose operation number `index` did not fit the data in ZooKeeper. No operation has happened.

    `reason` is `exists` (a znode to be created), `missing` (a znode, or the parent of a znode to be created), `version`
    (a znode with another version), or `children` (a znode to be deleted has children).
    """

    def __init__(self, index: int, reason: ConflictReason, path: str) -> None:
        self.index = index
        self.reason = reason
        self.path = path
        super().__init__(f"operation {index} of a ZooKeeper transaction, on {path}, was refused: {_MEANINGS[reason]}")


_MEANINGS: dict[ConflictReason, str] = {
    "exists": "the znode exists already",
    "missing": "the znode or its parent does not exist",
    "version": "the znode has another version",
    "children": "the znode has children",
}
