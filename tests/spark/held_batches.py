"""Two concurrent batch writes in a process of its own, which pause in their commit: the first, of the rows "lost-0" and
so on, before the decision, and the second, of the rows "kept-0" and so on, directly after it.

Run by test_exactly_once.py: main(SERVERS, TOPIC, SCRATCH, FIRST). The file FIRST exists when the first write pauses.
"""

from __future__ import annotations

import threading
from pathlib import Path

from tests.spark.batch_driver import ROWS, TASKS
from tests.spark.driver_session import dying_session, when_stdin_closes


def main(servers: str, topic: str, scratch: str, first: str) -> None:
    spark = dying_session(scratch)
    ended = threading.Event()
    when_stdin_closes(ended.set)

    def write(name: str) -> None:
        # createDataFrame makes the session active in this thread; otherwise the format is not found.
        rows = spark.createDataFrame([(f"{name}-{number}",) for number in range(ROWS)], "value string")
        writer = rows.coalesce(TASKS).write.format("dying").mode("append").option("kafka.bootstrap.servers", servers)
        writer.option("topic", topic).option("delivery", "exactly-once").save()

    threading.Thread(target=write, args=("lost",), daemon=True).start()
    while not Path(first).exists() and not ended.wait(0.05):
        pass
    threading.Thread(target=write, args=("kept",), daemon=True).start()
    ended.wait()
