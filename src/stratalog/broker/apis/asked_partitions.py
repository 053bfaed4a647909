"""Which partitions a request asks for, each once: a question of four bytes, asked a hundred thousand times in one
request, must not make a hundred thousand long answers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

T = TypeVar("T")


def each_partition_once(topics: Iterable[tuple[str, Iterable[tuple[int, T]]]]) -> dict[str, dict[int, T]]:
    """What is asked of each partition, by topic and number; of a partition that is there twice, the last counts."""
    wanted: dict[str, dict[int, T]] = {}
    for name, partitions in topics:
        wanted.setdefault(name, {}).update(partitions)
    return wanted
