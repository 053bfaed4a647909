"""Records for scenarios with groups, and how they are counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from tests.clients.interface import Client, Message, Place, Received


def fill(client: Client, address: str, places: Sequence[Place], each: int) -> None:
    with client.producer(address) as producer:
        for place in places:
            producer.send(place.topic, [Message(b"%d" % n, partition=place.partition) for n in range(each)])


def offsets(received: Sequence[Received]) -> Counter[tuple[Place, int]]:
    return Counter((one.place, one.offset) for one in received)


def all_of(places: Sequence[Place], each: int) -> Counter[tuple[Place, int]]:
    return Counter((place, offset) for place in places for offset in range(each))
