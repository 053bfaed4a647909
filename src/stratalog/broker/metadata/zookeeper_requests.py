"""Znodes, the operations of a ZooKeeper transaction, and their limits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from stratalog.broker.metadata.zookeeper_errors import TooLargeError

MAX_TRANSACTION_BYTES = 1_000_000
"""ZooKeeper closes the connection of a client whose request is over jute.maxbuffer, which is 1 MiB less a byte."""
OPERATION_OVERHEAD = 72
"""More than the bytes of an operation other than its path and data: lengths, header, permissions, flags, version."""


class Znode(NamedTuple):
    """The contents of a znode."""

    data: bytes
    version: int
    created: int
    """The transaction that created the znode (czxid). It tells a znode from a later one with the same path."""
    owner: int
    """The session of an ephemeral znode, else 0."""


class Create(NamedTuple):
    """Creates a znode. A sequential one gets a number of ten digits after its path, higher than its siblings'."""

    path: str
    data: bytes = b""
    ephemeral: bool = False
    sequential: bool = False


class SetData(NamedTuple):
    """Replaces the data of a znode that has this version; -1 is any version."""

    path: str
    data: bytes
    version: int


class Delete(NamedTuple):
    """Deletes a znode without children that has this version; -1 is any version."""

    path: str
    version: int = -1


class Check(NamedTuple):
    """Requires that a znode has this version; -1 is any version."""

    path: str
    version: int


Operation = Create | SetData | Delete | Check


class Watch:
    """A callback that runs once: when its znode changes, or after its connection was lost."""

    def __init__(self, callback: Callable[[], None]) -> None:
        self._callback: Callable[[], None] | None = callback

    def fire(self) -> None:
        callback, self._callback = self._callback, None
        if callback is not None:
            callback()


def transaction_size(operations: Sequence[Operation], root: str = "") -> int:
    """Return the size of a transaction in bytes, or a little more. Callers that plan several transactions use it."""
    size = 0
    for operation in operations:
        size += OPERATION_OVERHEAD + len(root) + len(operation.path.encode())
        if isinstance(operation, Create | SetData):
            size += len(operation.data)
    return size


def check_size(operations: Sequence[Operation], root: str) -> None:
    """Raise TooLargeError if a transaction is over the limit."""
    size = transaction_size(operations, root)
    if size > MAX_TRANSACTION_BYTES:
        raise TooLargeError(
            f"a ZooKeeper transaction of {len(operations)} operations, the first on {operations[0].path}, has {size} "
            f"bytes; the limit is {MAX_TRANSACTION_BYTES}; use several transactions, or smaller znodes"
        )
