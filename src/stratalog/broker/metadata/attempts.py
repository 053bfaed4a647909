"""Repeats changes in ZooKeeper that were refused, or whose responses were lost.

An attempt reads the newest content first. So it finds out whether an earlier attempt has counted, and plans from what
is there now.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from stratalog.broker.metadata.zookeeper_errors import (
    ConflictError,
    OutcomeUnknownError,
    SessionEndedError,
    ZooKeeperUnreachableError,
)
from stratalog.errors import StratalogError

logger = logging.getLogger(__name__)

T = TypeVar("T")

_MOST_ATTEMPTS = 100
_SECONDS = 15.0
_FIRST_PAUSE_SECONDS = 0.01
_LONGEST_PAUSE_SECONDS = 1.0


class BusyMetadataError(StratalogError):
    """Metadata that other brokers changed so often that each attempt to change it was refused."""

    code = 7  # REQUEST_TIMED_OUT: clients retry


async def repeat(attempt: Callable[[], Awaitable[T]]) -> T:
    """Return the result of the first attempt that is neither refused nor lost. Raises BusyMetadataError, or
    the error of the last attempt if ZooKeeper stays away."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + _SECONDS
    pause = _FIRST_PAUSE_SECONDS
    for _ in range(_MOST_ATTEMPTS):
        try:
            return await attempt()
        except ConflictError as error:
            refusal = error
        except (OutcomeUnknownError, SessionEndedError, ZooKeeperUnreachableError) as error:
            if loop.time() > deadline:
                raise
            logger.info("a change in ZooKeeper is tried again: %s", error)
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
    raise BusyMetadataError(
        f"each of {_MOST_ATTEMPTS} attempts was refused, because other brokers change the same metadata: {refusal}"
    )
