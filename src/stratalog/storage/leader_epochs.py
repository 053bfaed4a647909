"""The leader epochs of a log as pairs of epoch and start offset, both rising. Pure; the log saves them.

Replicas use them to find the offset where their logs diverge, and consumers to find out whether records that they have
read were truncated.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable


class LeaderEpochs:
    """The leader epochs of one log."""

    def __init__(self, entries: Iterable[tuple[int, int]] = ()) -> None:
        self._epochs: list[int] = []
        self._starts: list[int] = []
        for epoch, start in entries:
            self.assign(epoch, start)

    @property
    def entries(self) -> list[tuple[int, int]]:
        return list(zip(self._epochs, self._starts, strict=True))

    @property
    def latest(self) -> int | None:
        return self._epochs[-1] if self._epochs else None

    def assign(self, epoch: int, start_offset: int) -> bool:
        """Record that `epoch` begins at `start_offset`. Return True if that changed anything.

        An entry that contradicts it (a newer epoch, or a later start) is removed, because the newest writer is right.
        """
        if epoch < 0 or start_offset < 0:
            return False
        if self._epochs and self._epochs[-1] == epoch and self._starts[-1] <= start_offset:
            return False
        while self._epochs and (self._epochs[-1] >= epoch or self._starts[-1] >= start_offset):
            self._epochs.pop()
            self._starts.pop()
        self._epochs.append(epoch)
        self._starts.append(start_offset)
        return True

    def learn(self, epoch: int, start_offset: int) -> bool:
        """Record the leader epoch of a batch that is after all entries. Return True if that changed anything.

        Only a newer epoch does. An epoch older than the earlier ones is ignored, because no leader writes it.
        """
        if self._epochs and epoch <= self._epochs[-1]:
            return False
        return self.assign(epoch, start_offset)

    def epoch_of(self, offset: int) -> int | None:
        """Return the leader epoch that wrote `offset`, or None if it is unknown."""
        slot = bisect_right(self._starts, offset) - 1
        return None if slot < 0 else self._epochs[slot]

    def end_offset(self, epoch: int, log_end_offset: int) -> tuple[int, int] | None:
        """Return the largest leader epoch up to `epoch` and the offset where the next one begins, as Kafka's
        OffsetForLeaderEpoch does. Return None if all known epochs are larger."""
        slot = bisect_right(self._epochs, epoch) - 1
        if slot < 0:
            return None
        end = self._starts[slot + 1] if slot + 1 < len(self._starts) else log_end_offset
        return self._epochs[slot], end

    def truncate_end(self, offset: int) -> bool:
        """Forget epochs that begin at or after `offset`. Return True if there were any."""
        before = len(self._starts)
        while self._starts and self._starts[-1] >= offset:
            self._epochs.pop()
            self._starts.pop()
        return len(self._starts) != before

    def truncate_start(self, offset: int) -> bool:
        """Forget epochs that end at or before `offset`, and let the epoch of `offset` begin there. Return True if that
        changed anything."""
        slot = bisect_right(self._starts, offset) - 1
        if slot < 0 or (slot == 0 and self._starts[0] == offset):
            return False
        del self._epochs[:slot], self._starts[:slot]
        self._starts[0] = offset
        return True
