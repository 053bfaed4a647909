"""The end offsets of partitions, for an idle stream, which looks them up a hundred times a second.

A lookup is one small request to each leader, over open connections. With many partitions it is larger: the result is
then reused for five times as long as the lookup took, so lookups take at most a sixth of the time. With few partitions
the result is always fresh, because processAllAvailable must see every acknowledged record. The list of partitions is
refreshed once a second, and when a response shows that it has changed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from stratalog.client.errors import ClientError
from stratalog.spark.broker_offsets import BrokerOffsets, Offsets, Partitions

logger = logging.getLogger("stratalog.spark")

PARTITIONS_SECONDS = 1.0
FEW = 100  # partitions that are looked up each time
REUSE = 5.0  # times the duration of a lookup
MOST_REUSE_SECONDS = 5.0
QUICK_SECONDS = 2.0  # for lookups at known leaders, before the partitions are refreshed


class LatestOffsets:
    def __init__(self, broker: BrokerOffsets, clock: Callable[[], float] = time.monotonic) -> None:
        self._broker = broker
        self._clock = clock
        self._partitions: Partitions | None = None
        self._partitions_until = float("-inf")
        self._latest: Offsets = {}
        self._latest_until = float("-inf")

    def partitions(self) -> Partitions:
        """Look up the partitions. A missing topic is an error."""
        self._partitions = self._broker.partitions()
        self._partitions_until = self._clock() + PARTITIONS_SECONDS
        return self._partitions

    def known(self) -> Partitions:
        """Return the partitions of the last lookup."""
        return self._partitions if self._partitions is not None else self._refreshed()

    def get(self, *, fresh: bool = False) -> tuple[Offsets, Partitions]:
        """Return the end offsets of all existing partitions. With `fresh`, look up offsets and partitions now."""
        began = self._clock()
        if fresh:
            self._latest_until = self._partitions_until = float("-inf")
        if self._partitions is not None and began < self._latest_until:
            return self._latest, self._partitions
        latest = self._quickly() if began < self._partitions_until else None
        if latest is None:
            latest = self._broker.latest(self._refreshed().partitions)
        assert self._partitions is not None
        ended = self._clock()
        self._latest = latest
        if len(latest) > FEW:
            self._latest_until = ended + min(MOST_REUSE_SECONDS, REUSE * (ended - began))
        return latest, self._partitions

    def _refreshed(self) -> Partitions:
        self._partitions = self._broker.partitions(missing_ok=True)
        self._partitions_until = self._clock() + PARTITIONS_SECONDS
        return self._partitions

    def _quickly(self) -> Offsets | None:
        if self._partitions is None:
            return None
        try:
            return self._broker.latest_again(self._partitions.partitions, QUICK_SECONDS)
        except ClientError as error:
            logger.info("looking up the partitions again: %s", error)
            return None
