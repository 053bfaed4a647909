"""The partitions of a request, each once. A hundred thousand repetitions of four bytes in a request must not
cause a hundred thousand long entries in the response."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

T = TypeVar("T")


def each_partition_once(topics: Iterable[tuple[str, Iterable[tuple[int, T]]]]) -> dict[str, dict[int, T]]:
    """Return the request for each partition, by topic and number. If a partition is repeated, its last entry counts."""
    requested: dict[str, dict[int, T]] = {}
    for name, partitions in topics:
        requested.setdefault(name, {}).update(partitions)
    return requested
