"""Offsets that were committed in a transaction that is still open, by producer. Pure.

They count once a marker says so, and from where they were written: what is written between them and the marker is newer
than they are, as it is for a compacted log. So what comes later takes their place at once, and they stay only to say
that the offset is not stable yet.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from stratalog.broker.groups.offset_records import CommittedOffset, OffsetKey


class PendingOffsets:
    def __init__(self) -> None:
        self._producers: dict[int, dict[OffsetKey, CommittedOffset | None]] = {}  # None: superseded
        self._groups: dict[str, dict[OffsetKey, int]] = {}  # how many producers have it pending

    def __contains__(self, key: OffsetKey) -> bool:
        return bool(self._groups) and key in self._groups.get(key.group_id, {})

    def of(self, group_id: str) -> list[OffsetKey]:
        return list(self._groups.get(group_id, {}))

    def group_ids(self) -> list[str]:
        return list(self._groups)

    def keys(self, producer_id: int) -> list[OffsetKey]:
        return list(self._producers.get(producer_id, {}))

    def add(self, producer_id: int, offsets: Iterable[tuple[OffsetKey, CommittedOffset | None]]) -> None:
        held = self._producers.setdefault(producer_id, {})
        for key, offset in offsets:
            self.supersede(key)
            if key not in held:
                counts = self._groups.setdefault(key.group_id, {})
                counts[key] = counts.get(key, 0) + 1
            held[key] = offset
        if not held:
            del self._producers[producer_id]

    def supersede(self, key: OffsetKey) -> None:
        """Something newer was written for it."""
        if key in self:
            for held in self._producers.values():
                if key in held:
                    held[key] = None

    def take(self, producer_id: int, key: OffsetKey) -> CommittedOffset | None:
        """It is not pending any more. None: there is nothing to be had from it."""
        held: Mapping[OffsetKey, CommittedOffset | None] = self._producers.get(producer_id, {})
        if key not in held:
            return None
        offset = self._producers[producer_id].pop(key)
        if not self._producers[producer_id]:
            del self._producers[producer_id]
        counts = self._groups[key.group_id]
        counts[key] -= 1
        if not counts[key]:
            del counts[key]
        if not counts:
            del self._groups[key.group_id]
        return offset
