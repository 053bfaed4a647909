"""How far partitions go, for who asks a hundred times a second, as an idle stream does.

One small request to each leader, over connections that stay open. With many partitions it is not so small: an answer is
then taken for known for five times as long as it took, so that asking takes a sixth of the time at most. With few it is
always fresh, as processAllAvailable expects: what was acknowledged before is seen. Which partitions there are is asked
once a second, and whenever a broker's answer says that something has changed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from stratalog.client.errors import ClientError
from stratalog.spark.broker_offsets import BrokerOffsets, Offsets, Partitions

logger = logging.getLogger("stratalog.spark")

PARTITIONS_SECONDS = 1.0
FEW = 100  # partitions whose ends are asked for each time
REST = 5.0  # times as long as an answer took
MOST_REST_SECONDS = 5.0
QUICK_SECONDS = 2.0  # how long the leaders that are known are asked before all is asked anew


class LatestOffsets:
    def __init__(self, broker: BrokerOffsets, clock: Callable[[], float] = time.monotonic) -> None:
        self._broker = broker
        self._clock = clock
        self._partitions: Partitions | None = None
        self._partitions_until = float("-inf")
        self._latest: Offsets = {}
        self._latest_until = float("-inf")

    def partitions(self) -> Partitions:
        """Asked now; a topic that does not exist is an error."""
        self._partitions = self._broker.partitions()
        self._partitions_until = self._clock() + PARTITIONS_SECONDS
        return self._partitions

    def known(self) -> Partitions:
        """As last heard."""
        return self._partitions if self._partitions is not None else self._refreshed()

    def get(self, *, anew: bool = False) -> tuple[Offsets, Partitions]:
        """The ends of all partitions that exist. Topics that are gone are left out. `anew`: all asked for now."""
        began = self._clock()
        if anew:
            self._latest_until = self._partitions_until = float("-inf")
        if self._partitions is not None and began < self._latest_until:
            return self._latest, self._partitions
        latest = self._quickly() if began < self._partitions_until else None
        if latest is None:
            latest = self._broker.latest(self._refreshed().places)
        assert self._partitions is not None
        ended = self._clock()
        self._latest = latest
        if len(latest) > FEW:
            self._latest_until = ended + min(MOST_REST_SECONDS, REST * (ended - began))
        return latest, self._partitions

    def _refreshed(self) -> Partitions:
        self._partitions = self._broker.partitions(missing_ok=True)
        self._partitions_until = self._clock() + PARTITIONS_SECONDS
        return self._partitions

    def _quickly(self) -> Offsets | None:
        if self._partitions is None:
            return None
        try:
            return self._broker.latest_again(self._partitions.places, QUICK_SECONDS)
        except ClientError as error:
            logger.info("asking for the partitions again: %s", error)
            return None
