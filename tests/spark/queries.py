"""Streaming queries on a machine that has other things to do."""

from __future__ import annotations

from collections.abc import Callable

from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.query import StreamingQuery

SECONDS = 240
_ATTEMPTS = 5


def started(start: Callable[[], StreamingQuery]) -> StreamingQuery:
    """A query with the trigger availableNow, done."""
    return _on_a_busy_machine(start, _ended)


def going(start: Callable[[], StreamingQuery]) -> StreamingQuery:
    """A query that has done what there was to do, and waits for more."""
    return _on_a_busy_machine(start, StreamingQuery.processAllAvailable)


def _ended(query: StreamingQuery) -> None:
    assert query.awaitTermination(SECONDS), "the query did not end"


def _on_a_busy_machine(start: Callable[[], StreamingQuery], wait: Callable[[StreamingQuery], None]) -> StreamingQuery:
    """Spark gives a Python process ten seconds to start and then fails the query, before anything was read: that is
    tried again."""
    for attempt in range(_ATTEMPTS):
        query = start()
        try:
            wait(query)
        except StreamingQueryException as error:
            if "failed to connect back" not in str(error) or attempt == _ATTEMPTS - 1:
                raise
        else:
            return query
    raise AssertionError
