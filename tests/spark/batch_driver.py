"""Batch writes of twenty rows, one after the other, in a process of its own, until its stdin is closed.

Run by batch_rounds.py: main(SERVERS, TOPIC, BEGUN, DONE). Each write adds its number to the file BEGUN when it begins,
and to DONE when it has returned. Numbers continue after those in BEGUN.
"""

from __future__ import annotations

import itertools
import logging
from pathlib import Path

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from tests.spark.driver_session import dying_session, when_stdin_closes

ROWS = 20  # per write
TASKS = 2


def main(servers: str, topic: str, begun: str, done: str) -> None:
    spark = dying_session(begun)
    ended: list[bool] = []
    when_stdin_closes(lambda: ended.append(True))
    for number in itertools.count(len(Path(begun).read_text().splitlines())):
        if ended:
            return
        _note(begun, number)
        rows = spark.range(0, ROWS, 1, TASKS).selectExpr(f"concat('{number}-', id) as value")
        writer = rows.write.format("dying").mode("append").option("kafka.bootstrap.servers", servers)
        try:
            writer.option("topic", topic).option("delivery", "exactly-once").save()
        except (PySparkException, Py4JJavaError) as error:
            # The broker was killed, or too many workers: the write is in the topic completely or not at all.
            logging.warning("write %d: %s", number, error)
        else:
            _note(done, number)


def _note(file: str, number: int) -> None:
    with Path(file).open("a") as lines:
        lines.write(f"{number}\n")
