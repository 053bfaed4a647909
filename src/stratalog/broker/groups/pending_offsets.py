"""Pending offsets: those that were committed in a transaction that is still open, by producer. Pure.

A COMMIT marker makes them count, from the position at which they were written, as in a compacted log. So an offset that
is written between them and the marker is newer. Such an offset supersedes them: at once if it is outside a transaction,
otherwise when its transaction is committed. Superseded offsets stay only to mark the offset as not stable yet.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from stratalog.broker.groups.offset_records import CommittedOffset, OffsetKey
from stratalog.broker.state_budget import text_bytes

_OFFSET_BYTES = 500  # without its metadata
_PENDING_BYTES = 500  # for the entries by producer and by group


def offset_bytes(offset: CommittedOffset | None) -> int:
    """Return the memory that an offset takes. None takes none."""
    return 0 if offset is None else _OFFSET_BYTES + text_bytes(offset.metadata)


def pending_bytes(key: OffsetKey, offset: CommittedOffset | None) -> int:
    return _PENDING_BYTES + text_bytes(key.group_id) + text_bytes(key.topic) + offset_bytes(offset)


class _Written(NamedTuple):
    moment: int  # counts the writes
    offset: CommittedOffset


def _bytes_of(key: OffsetKey, written: _Written | None) -> int:
    return pending_bytes(key, None if written is None else written.offset)


class PendingOffsets:
    """The pending offsets of all producers."""

    def __init__(self) -> None:
        self._moment = 0
        self.state_bytes = 0
        self._producers: dict[int, dict[OffsetKey, _Written | None]] = {}  # None: superseded
        self._groups: dict[str, dict[OffsetKey, int]] = {}  # how many producers have this key pending

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
            self._moment += 1
            if key not in held:
                counts = self._groups.setdefault(key.group_id, {})
                counts[key] = counts.get(key, 0) + 1
            else:
                self.state_bytes -= _bytes_of(key, held[key])
            self.state_bytes += pending_bytes(key, offset)
            held[key] = None if offset is None else _Written(self._moment, offset)
        if not held:
            del self._producers[producer_id]

    def supersede(self, key: OffsetKey, before: int | None = None) -> None:
        """Mark the pending offsets of a key as superseded: all of them, or those that were written before a moment."""
        if key in self:
            for held in self._producers.values():
                written = held.get(key)
                if written is not None and (before is None or written.moment < before):
                    held[key] = None
                    self.state_bytes -= offset_bytes(written.offset)

    def take(self, producer_id: int, key: OffsetKey, *, commit: bool) -> CommittedOffset | None:
        """Remove a pending offset because its transaction ends. Return it if it counts: it is committed and not
        superseded."""
        if key not in self._producers.get(producer_id, {}):
            return None
        written = self._producers[producer_id].pop(key)
        self.state_bytes -= _bytes_of(key, written)
        if not self._producers[producer_id]:
            del self._producers[producer_id]
        counts = self._groups[key.group_id]
        counts[key] -= 1
        if not counts[key]:
            del counts[key]
        if not counts:
            del self._groups[key.group_id]
        if written is None or not commit:
            return None
        self.supersede(key, written.moment)
        return written.offset
