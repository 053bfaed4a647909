"""Two batch writes at once, in a process of its own, each standing still inside of its commit: the first, of rows
"lost-0" and so on, before the decision, and the second, of "kept-0" and so on, right behind it.

Run by test_exactly_once.py: main(SERVERS, TOPIC, SCRATCH, FIRST), where FIRST is the file that says where the first is.
"""

from __future__ import annotations

import threading
from pathlib import Path

from tests.spark.batch_driver import ROWS, TASKS
from tests.spark.driver_session import dying_session, when_told_to_end


def main(servers: str, topic: str, scratch: str, first: str) -> None:
    spark = dying_session(scratch)
    ended = threading.Event()
    when_told_to_end(ended.set)

    def write(name: str) -> None:
        # Made of Python's rows, as that tells this thread of the session, and only so the format is found in it.
        rows = spark.createDataFrame([(f"{name}-{number}",) for number in range(ROWS)], "value string")
        writer = rows.coalesce(TASKS).write.format("dying").mode("append").option("kafka.bootstrap.servers", servers)
        writer.option("topic", topic).option("delivery", "exactly-once").save()

    threading.Thread(target=write, args=("lost",), daemon=True).start()
    while not Path(first).exists() and not ended.wait(0.05):
        pass
    threading.Thread(target=write, args=("kept",), daemon=True).start()
    ended.wait()
