"""Starts streaming queries, also on a busy machine."""

from __future__ import annotations

from collections.abc import Callable

from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.query import StreamingQuery

SECONDS = 240
_ATTEMPTS = 5


def started(start: Callable[[], StreamingQuery]) -> StreamingQuery:
    """Run a query with the trigger availableNow to its end."""
    return _on_a_busy_machine(start, _ended)


def going(start: Callable[[], StreamingQuery]) -> StreamingQuery:
    """Start a query, and wait until it has processed all records."""
    return _on_a_busy_machine(start, StreamingQuery.processAllAvailable)


def _ended(query: StreamingQuery) -> None:
    assert query.awaitTermination(SECONDS), "the query did not end"


def _on_a_busy_machine(start: Callable[[], StreamingQuery], wait: Callable[[StreamingQuery], None]) -> StreamingQuery:
    """Retry a query whose Python process took more than ten seconds to start, after which Spark fails the query before
    it reads anything."""
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
