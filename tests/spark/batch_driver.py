"""Batch writes, one after the other, in a process of its own, until its input is closed: twenty rows each.

Run by batch_rounds.py: main(SERVERS, TOPIC, BEGUN, DONE). Which write begins, and which has returned, is a line in the
files BEGUN and DONE; the first is numbered by how many were begun before.
"""

from __future__ import annotations

import itertools
import logging
from pathlib import Path

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from tests.spark.driver_session import dying_session, when_told_to_end

ROWS = 20  # of a write
TASKS = 2


def main(servers: str, topic: str, begun: str, done: str) -> None:
    spark = dying_session(begun)
    ended: list[bool] = []
    when_told_to_end(lambda: ended.append(True))
    for number in itertools.count(len(Path(begun).read_text().splitlines())):
        if ended:
            return
        _note(begun, number)
        rows = spark.range(0, ROWS, 1, TASKS).selectExpr(f"concat('{number}-', id) as value")
        writer = rows.write.format("dying").mode("append").option("kafka.bootstrap.servers", servers)
        try:
            writer.option("topic", topic).option("delivery", "exactly-once").save()
        except (
            PySparkException,
            Py4JJavaError,
        ) as error:  # the broker died, or too many workers did: it is there wholly, or not at all
            logging.warning("write %d: %s", number, error)
        else:
            _note(done, number)


def _note(file: str, number: int) -> None:
    with Path(file).open("a") as lines:
        lines.write(f"{number}\n")
