"""Partitions as commands take them: a whole topic (orders), or some of it (orders:0, orders:0,3)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stratalog.cli.program import CommandError
from stratalog.cli.wording import partitions_of
from stratalog.client.metadata import TopicPartition

if TYPE_CHECKING:
    from stratalog.client.admin import Admin


def parse_places(admin: Admin, what: str, text: str) -> list[TopicPartition]:
    """`what` names the option or argument in messages."""
    name, colon, numbers = text.partition(":")
    there = len(admin.describe_topic(name).partitions)
    if not colon:
        return [TopicPartition(name, partition) for partition in range(there)]
    wanted = numbers.split(",")
    for number in wanted:
        if not (number.isascii() and number.isdigit()) or int(number) >= there:
            raise CommandError(f"{what} is {text!r}; {name} has {partitions_of(there)}, like {name}:0")
    return [TopicPartition(name, int(number)) for number in dict.fromkeys(wanted)]
