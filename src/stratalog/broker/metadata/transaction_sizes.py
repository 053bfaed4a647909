"""The sizes of ZooKeeper transactions: what fits into one, and how the rest is divided. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T")

LARGEST_TRANSACTION = 512 * 1024
"""Half of what ZooKeeper accepts in a request (jute.maxbuffer, 1 MiB)."""

OPERATION_OVERHEAD = 120  # the header of an operation, its permissions, its flags


class Sized(NamedTuple, Generic[T]):
    item: T
    size: int  # what it adds to a transaction, in bytes


def operation_size(path: str, *contents: bytes) -> int:
    """Return what an operation adds to a transaction, with the copy of its content in the change entry."""
    return OPERATION_OVERHEAD + len(path) + sum(map(len, contents))


def chunks(items: Iterable[Sized[T]], first_size: int = 0) -> Iterator[list[T]]:
    """Divide the items, in order, so that each part fits into a transaction. `first_size`: what the first transaction
    has already. An item that is too large on its own is a part of its own."""
    chunk: list[T] = []
    size = first_size
    for item, item_size in items:
        if chunk and size + item_size > LARGEST_TRANSACTION:
            yield chunk
            chunk, size = [], 0
        chunk.append(item)
        size += item_size
    if chunk:
        yield chunk
