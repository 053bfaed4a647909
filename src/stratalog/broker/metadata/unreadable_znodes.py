"""Reports znodes that can't be read, each problem once."""

from __future__ import annotations

import logging

from stratalog.broker.metadata.znodes import UnreadableZnodeError

logger = logging.getLogger(__name__)

_MOST_REMEMBERED = 1000


class UnreadableZnodes:
    """Logs each problem once. After many different problems, it forgets them and starts over."""

    def __init__(self) -> None:
        self._reported: set[str] = set()

    def report(self, error: UnreadableZnodeError, consequence: str) -> None:
        message = str(error)
        if message in self._reported:
            return
        if len(self._reported) >= _MOST_REMEMBERED:
            self._reported.clear()
        self._reported.add(message)
        logger.error("%s; %s", message, consequence)
