"""A stream that reads all there is, or goes on for ever, with its progress told and its state in a folder.

The state is Spark's checkpoint: a job that was stopped goes on from it, and what it wrote before counts once.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from stratalog.pipelines.cluster import FORMAT, ClusterAddress
from stratalog.pipelines.progress import Progress

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

_POLL_SECONDS = 1


def run_stream(
    frame: DataFrame,
    cluster: ClusterAddress,
    topic: str,
    state: str,
    progress: Progress,
    *,
    every: float | None = None,
    stop: threading.Event | None = None,
) -> int:
    """Write a streaming frame to a topic, once or `every` so many seconds until `stop`; the records written."""
    options = {**cluster.options(), "topic": topic, "checkpointLocation": state}
    writer = frame.writeStream.format(FORMAT).options(**options)
    writer = writer.trigger(availableNow=True) if every is None else writer.trigger(processingTime=f"{every} seconds")
    query = writer.start()
    told = _Rows()
    try:
        while not query.awaitTermination(_POLL_SECONDS):
            progress.reached(told.count(query))
            if stop is not None and stop.is_set():
                break
    finally:
        # Also on an interrupt: the step under way is not committed, and is done again by the next run.
        query.stop()
    done = told.count(query)
    progress.reached(done)
    return done


class _Rows:
    """Adds up what a query reports of its steps; each is reported several times, and only the last hundred are kept."""

    def __init__(self) -> None:
        self._by_step: dict[int, int] = {}

    def count(self, query: StreamingQuery) -> int:
        for report in query.recentProgress:
            self._by_step[report["batchId"]] = int(report["numInputRows"])
        return sum(self._by_step.values())


def is_started(state: str) -> bool:
    """Whether a job has left its state there. Only for folders of this machine; others are taken for new."""
    return (Path(state.removeprefix("file://")) / "metadata").exists()


def default_state(job: str, *names: str) -> str:
    """Beside where the command runs, so that the same command finds it again."""
    return str(Path("stratalog-state") / "-".join((job, *names)))


def options_text(options: Mapping[str, object]) -> dict[str, str]:
    """As Spark takes them."""
    return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in options.items()}
